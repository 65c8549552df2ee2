"""Files that need too much memory for their size are refused before it is allocated."""

from __future__ import annotations

import gzip
import io
import struct
import time
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from cdknet import data
from cdknet.data.checks import FREE_BYTES, MAX_EXPANSION


def refused_within_bounds(path: Path, match: str) -> None:
    """Refused with a ValueError, after seconds of work, and with no more memory than the contract allows."""
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(ValueError, match=match) as caught:
            data.open(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.iterdir())
    assert path.name in str(caught.value)
    assert peak < MAX_EXPANSION * size + FREE_BYTES
    assert time.process_time() - start < 20


def gzipped_zeros(n_bytes: int, head: bytes) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9) as file:
        file.write(head)
        for _ in range(n_bytes // 2**20):
            file.write(bytes(2**20))
    return out.getvalue()


def test_gzip_bomb_with_an_honest_header(tmp_path):
    path = tmp_path / "a-idx3-ubyte.gz"
    path.write_bytes(gzipped_zeros(200 * 2**20, struct.pack(">4I", 0x803, 200, 1024, 1024)))
    refused_within_bounds(path, "At most .* are allowed for a file of")


def test_gzip_bomb_behind_a_small_header(tmp_path):
    path = tmp_path / "a-idx3-ubyte.gz"
    path.write_bytes(gzipped_zeros(200 * 2**20, struct.pack(">4I", 0x803, 2, 2, 2)))
    refused_within_bounds(path, "unpacks to more than the 8 bytes")


def test_idx_header_that_declares_the_whole_address_space(tmp_path):
    head = struct.pack(">5I", 0x804, *[2**32 - 1] * 4)
    (tmp_path / "a.idx").write_bytes(head + bytes(100))
    refused_within_bounds(tmp_path / "a.idx", "header declares .* it may be truncated")
    (tmp_path / "a-idx.gz").write_bytes(gzip.compress(head + bytes(100)))
    refused_within_bounds(tmp_path / "a-idx.gz", "are allowed for a file of")


def test_zip_bomb(tmp_path):
    path = tmp_path / "a.npz"
    head = np.lib.format.magic(1, 0)
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({300 * 2**20}, 1)}}".ljust(117) + "\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("X.npy", "w") as file:
        file.write(head + struct.pack("<H", len(text)) + text.encode())
        for _ in range(300):
            file.write(bytes(2**20))
    refused_within_bounds(path, "unpacking would take")


def test_zip_whose_directory_hides_the_true_size(tmp_path):
    """The zip directory declares a small member that is in fact large. No more than declared is ever read."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, X=np.zeros((2**25, 1), np.uint8))
    content = path.read_bytes()
    true, lie = struct.pack("<I", 2**25 + 128), struct.pack("<I", 328)
    assert true in content
    path.write_bytes(content.replace(true, lie))
    refused_within_bounds(path, r"the archive has 200|not a valid \.npz")


def test_npz_with_too_many_members(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(1100):
            archive.writestr(f"{i}.npy", b"")
    refused_within_bounds(path, "at most 1000 arrays")


def png(width: int, height: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("side", "match"),
    [
        (5_000, "header declares 5000 x 5000"),
        (8_000, "are allowed for a file of"),
        (60_000, "limit|bomb"),
        (2**31 - 1, "limit|bomb"),
    ],
)
def test_image_bomb(side, match, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "a.png").write_bytes(png(side, side, zlib.compress(bytes(1000))))
    refused_within_bounds(folder, match)


def test_image_bomb_in_its_text_chunk(tmp_path):
    """PNG text may be compressed; Pillow limits its size."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    body = b"comment\0\0" + zlib.compress(bytes(100 * 2**20), 9)
    text = struct.pack(">I", len(body)) + b"zTXt" + body + struct.pack(">I", zlib.crc32(b"zTXt" + body))
    whole = png(8, 8, zlib.compress(bytes(72)))
    (folder / "a.png").write_bytes(whole[:33] + text + whole[33:])
    tracemalloc.start()
    try:
        data.open(folder)
    except ValueError as error:
        assert "a.png" in str(error)  # noqa: PT017
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MAX_EXPANSION * len(text) + FREE_BYTES


def test_one_long_name_does_not_widen_all_others(tmp_path):
    """numpy text is as wide as its longest entry: 500 characters times 60,000 rows would be 120 MB."""
    path = tmp_path / "a.csv"
    path.write_text("label,x\n" + "w" * 500 + ",1\n" + "a,1\n" * 60_000)
    refused_within_bounds(path, "labels would take")


def test_a_row_without_end(tmp_path):
    for name, content in (("a.csv", "a,b\n" + "1," * 3_000_000), ("a.txt", "1 " * 3_000_000)):
        path = tmp_path / name
        path.write_text(content)
        refused_within_bounds(path, "must be at most")
    path = tmp_path / "b.csv"
    path.write_text('a,b\n"' + "1\n" * 3_000_000)
    refused_within_bounds(path, "quotation mark|not a valid CSV")


def test_parquet_run_length_bomb(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow, the extra `tables`, is not installed")
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.zeros(20_000_000, np.float32)}), path)
    assert path.stat().st_size < 100_000
    refused_within_bounds(path, "would take")


def test_parquet_that_repeats_a_long_text_stores_it_once(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow, the extra `tables`, is not installed")
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    repeated = pa.DictionaryArray.from_arrays(
        np.zeros(100_000, np.int32), ["w" * 100_000]
    )  # 10 GB if written out
    pq.write_table(pa.table({"x": np.zeros(100_000, np.float32), "t": repeated}), path, store_schema=False)
    refused_within_bounds(path, "at most 512 characters. Got 100,000")


def test_a_large_honest_file_that_compresses_well_is_read(tmp_path):
    """The bound is for bombs: half a million equal labels, or sparse images, are not a bomb."""
    X = np.zeros((2000, 28, 28), np.uint8)
    X[:, 10:14, 10:14] = np.arange(2000)[:, None, None] % 256
    np.savez_compressed(tmp_path / "a.npz", X=X)
    np.testing.assert_array_equal(data.open(tmp_path / "a.npz").X, X)
