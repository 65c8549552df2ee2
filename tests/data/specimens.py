"""One small valid file of every kind, all with the same samples, and what must hold for anything read."""

from __future__ import annotations

import csv
import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from cdknet.data import Samples, arrays, binaries, embeddings, images, parquet, tables
from cdknet.data.checks import FREE_BYTES, MAX_EXPANSION


class Specimen(NamedTuple):
    """How to write a file of one kind from samples and labels, and how to read it back."""

    suffix: str
    make: Callable[[Path, np.ndarray, np.ndarray], None]
    read: Callable[..., Samples]
    has_labels: bool
    is_text: bool = False  # a truncated text file can still be valid
    ends_exactly: bool = True  # extra bytes at the end are detected


def some_samples(n: int = 7, side: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Grey images (n, side, side) and labels 0, 1, 2; the last third is unlabelled."""
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n) < 2 * n // 3, np.arange(n) % 3, -1)
    return rng.integers(0, 256, (n, side, side), dtype=np.uint8), y


def idx_bytes(X: np.ndarray) -> bytes:
    code = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}[X.dtype.str[1:]]
    head = struct.pack(f">BBBB{X.ndim}I", 0, 0, code, X.ndim, *X.shape)
    return head + X.astype(X.dtype.newbyteorder(">")).tobytes()


def make_csv(path: Path, X: np.ndarray, y: np.ndarray) -> None:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        flat = X.reshape(len(X), -1)
        out.writerow([f"p{j}" for j in range(flat.shape[1])] + ["label"])
        out.writerows([*row, "" if k == -1 else k] for row, k in zip(flat.tolist(), y.tolist(), strict=True))


def make_parquet(path: Path, X: np.ndarray, y: np.ndarray) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = X.reshape(len(X), -1)
    columns = {f"p{j}": flat[:, j] for j in range(flat.shape[1])}
    columns["label"] = pa.array([None if k == -1 else k for k in y.tolist()])
    pq.write_table(pa.table(columns), path)


def make_text(path: Path, X: np.ndarray, y: np.ndarray) -> None:
    flat = X.reshape(len(X), -1)
    path.write_text("".join(" ".join(map(str, row)) + "\n" for row in flat.tolist()))


def make_cifar(path: Path, X: np.ndarray, y: np.ndarray) -> None:
    pixels = np.resize(X.reshape(len(X), -1), (len(X), 3072))
    labels = np.column_stack([np.zeros(len(X)), np.maximum(y, 0)])
    path.write_bytes(np.hstack([labels, pixels]).astype(np.uint8).tobytes())


def make_images(folder: Path, X: np.ndarray, y: np.ndarray, suffix: str = ".png") -> None:
    for i, (pixels, k) in enumerate(zip(X, y.tolist(), strict=True)):
        sub = folder / ("unlabelled" if k == -1 else str(k))
        sub.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(sub / f"{i:03d}{suffix}")


def one_image(path: Path, X: np.ndarray, y: np.ndarray) -> None:
    Image.fromarray(np.kron(X[0], np.ones((3, 3), np.uint8))).save(path)


def read_alone(path: Path) -> Samples:
    """The folder reader on a folder with only this image (or whatever is at `path`)."""
    if not path.exists() or path.is_dir() or not path.is_file():
        images._header_size(path)
    return images.read_images(path.parent)


SPECIMENS = {
    "npy": Specimen(".npy", lambda p, X, y: np.save(p, X), arrays.read_npy, False),
    "npz": Specimen(".npz", lambda p, X, y: np.savez(p, X=X, y=y), arrays.read_npz, True, ends_exactly=False),
    "npz packed": Specimen(
        ".npz", lambda p, X, y: np.savez_compressed(p, X=X, y=y), arrays.read_npz, True, ends_exactly=False
    ),
    "idx": Specimen("-idx3-ubyte", lambda p, X, y: p.write_bytes(idx_bytes(X)), binaries.read_idx, False),
    "idx packed": Specimen(
        "-idx3-ubyte.gz",
        lambda p, X, y: p.write_bytes(gzip.compress(idx_bytes(X))),
        binaries.read_idx,
        False,
        ends_exactly=False,  # gzip allows zeros at its end
    ),
    "cifar": Specimen(".bin", make_cifar, binaries.read_cifar, True),
    "csv": Specimen(".csv", make_csv, tables.read_csv, True, is_text=True),
    "parquet": Specimen(".parquet", make_parquet, parquet.read_parquet, True),
    "text": Specimen(".txt", make_text, embeddings.read_text, False, is_text=True),
    "png": Specimen(".png", one_image, read_alone, False, ends_exactly=False),
    "jpeg": Specimen(".jpg", one_image, read_alone, False, ends_exactly=False),
    "webp": Specimen(".webp", one_image, read_alone, False, ends_exactly=False),
}


def check_valid(samples: Samples, file_bytes: int) -> None:
    """What holds for everything that a reader returns, however odd the file."""
    n = len(samples.X)
    assert n >= 1
    assert samples.X.dtype.kind in "iuf"
    assert samples.X.dtype.isnative
    assert samples.X.size >= n
    assert np.isfinite(samples.X).all()
    assert samples.ids.shape == (n,)
    assert len(set(samples.ids.tolist())) == n
    assert all(samples.ids.tolist())
    if samples.y is not None:
        assert samples.y.shape == (n,)
        assert samples.y.dtype.kind in "iU"
    assert samples.X.nbytes <= MAX_EXPANSION * file_bytes + FREE_BYTES
