"""`open`: every kind of file returns what was written, and the kinds agree with each other."""

from __future__ import annotations

import csv
import inspect
import subprocess
import sys
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from specimens import SPECIMENS, idx_bytes, make_cifar, make_csv, make_images, make_parquet, some_samples

from cdknet import data

FLAT_KINDS = ("npy", "npz", "npz packed", "csv", "parquet", "text")


def peak_memory(call) -> int:
    """The most bytes that `call` held at once."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(path, match, **options):
    """Opening `path` is refused with a ValueError that names it and matches."""
    with pytest.raises(ValueError, match=match) as caught:
        data.open(path, **options)
    assert Path(path).name in str(caught.value)


@pytest.mark.parametrize("kind", FLAT_KINDS)
def test_the_kinds_agree_on_the_same_samples(kind, tmp_path):
    X, y = some_samples(12, 5)
    path = tmp_path / f"a{SPECIMENS[kind].suffix}"
    SPECIMENS[kind].make(path, X.reshape(len(X), -1), y)
    samples = data.open(path, shape=(5, 5))
    np.testing.assert_array_equal(samples.X, X)
    assert samples.ids.tolist() == [f"row {i}" for i in range(12)]
    assert samples.source == str(path)
    if SPECIMENS[kind].has_labels:
        np.testing.assert_array_equal(samples.y, y)
        assert samples.y.dtype == np.int64
    else:
        assert samples.y is None


@pytest.mark.parametrize("suffix", [".png", ".webp"])
def test_a_folder_of_lossless_images_agrees_with_arrays(suffix, tmp_path):
    X, y = some_samples(12, 16)
    if suffix == ".webp":  # lossless must be requested
        from PIL import Image

        for i, k in enumerate(y.tolist()):
            sub = tmp_path / ("unlabeled" if k == -1 else str(k))
            sub.mkdir(exist_ok=True)
            Image.fromarray(X[i]).convert("RGB").save(sub / f"{i:03d}.webp", lossless=True)
    else:
        make_images(tmp_path, X, y)
    samples = data.open(tmp_path)
    order = [int(Path(name).stem) for name in samples.ids]
    np.testing.assert_array_equal(samples.X, X[order])
    np.testing.assert_array_equal(samples.y, y[order])
    assert (tmp_path / samples.ids[0]).is_file()  # an id is the path of its sample


def test_idx_images_find_their_labels_beside_them(tmp_path):
    X, y = some_samples(9, 4)
    (tmp_path / "t-images-idx3-ubyte").write_bytes(idx_bytes(X))
    (tmp_path / "t-labels-idx1-ubyte").write_bytes(idx_bytes(y.astype(np.int8)))
    samples = data.open(tmp_path / "t-images-idx3-ubyte")
    np.testing.assert_array_equal(samples.X, X)
    np.testing.assert_array_equal(samples.y, y)
    assert samples.notes == ("labels from t-labels-idx1-ubyte, found in the same folder",)
    (tmp_path / "t-labels-idx1-ubyte").write_bytes(idx_bytes(y[:-1].astype(np.int8)))
    with pytest.raises(ValueError, match=r"t-labels.*one whole-number label for each of the 9"):
        data.open(tmp_path / "t-images-idx3-ubyte")
    refused(tmp_path / "t-labels-idx1-ubyte", "shape.*of labels")


@given(
    X=hnp.arrays(
        st.sampled_from([np.uint8, np.int8, np.int16, np.int32, np.float32, np.float64]),
        hnp.array_shapes(min_dims=2, max_dims=4, max_side=4),
        elements={"allow_nan": False, "allow_infinity": False} | {},
    )
)
def test_idx_npy_and_npz_preserve_every_number_type(X):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "a.idx").write_bytes(idx_bytes(X))
        np.save(root / "a.npy", X)
        np.save(root / "f.npy", np.asfortranarray(X))
        np.savez(root / "a.npz", X=X)
        np.savez_compressed(root / "b.npz", X=np.asfortranarray(X))
        for name in ("a.idx", "a.npy", "f.npy", "a.npz", "b.npz"):
            read = data.open(root / name).X
            np.testing.assert_array_equal(read, X)
            assert read.dtype == X.dtype


def test_arrays_are_views_of_the_file_where_it_holds_plain_bytes(tmp_path):
    X = np.zeros((4000, 1000), np.uint8)
    np.save(tmp_path / "a.npy", X)
    np.savez(tmp_path / "a.npz", X=X)
    (tmp_path / "a.idx").write_bytes(idx_bytes(X))
    make_cifar(tmp_path / "a.bin", np.zeros((1300, 3072), np.uint8), np.zeros(1300, int))
    for name in ("a.npy", "a.npz", "a.idx", "a.bin"):
        assert peak_memory(lambda name=name: data.open(tmp_path / name)) < 1.5e6, name
        assert not data.open(tmp_path / name).X.flags.writeable


def test_cifar_formats_are_distinguished_by_their_size(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    flat = pixels.reshape(6, -1)
    ten = np.column_stack([np.arange(6), flat]).astype(np.uint8)
    hundred = np.column_stack([np.full(6, 19), np.arange(94, 100), flat]).astype(np.uint8)
    (tmp_path / "ten.bin").write_bytes(ten.tobytes())
    (tmp_path / "hundred.bin").write_bytes(hundred.tobytes())
    for name, y in (("ten", np.arange(6)), ("hundred", np.arange(94, 100))):
        samples = data.open(tmp_path / f"{name}.bin")
        np.testing.assert_array_equal(samples.X, pixels)
        np.testing.assert_array_equal(samples.y, y)
    hundred[2, 1] = 100
    (tmp_path / "hundred.bin").write_bytes(hundred.tobytes())
    refused(tmp_path / "hundred.bin", "as CIFAR-100 it would have a label 100")


def test_big_endian_numbers_and_booleans_become_plain_numbers(tmp_path):
    np.save(tmp_path / "big.npy", np.arange(6, dtype=">f4").reshape(2, 3))
    np.save(tmp_path / "truth.npy", np.eye(3, dtype=bool))
    assert data.open(tmp_path / "big.npy").X.dtype == np.float32
    np.testing.assert_array_equal(data.open(tmp_path / "big.npy").X, np.arange(6).reshape(2, 3))
    assert data.open(tmp_path / "truth.npy").X.dtype == np.uint8


def test_npz_labels_may_be_numbers_or_text_with_gaps(tmp_path):
    path = tmp_path / "a.npz"
    for y, expected in (
        (np.array([0, 1, -1]), [0, 1, -1]),
        (np.array([0.0, 1.0, np.nan]), [0, 1, -1]),
        (np.array(["cat", "dog", ""]), ["cat", "dog", "-1"]),
        (np.array([b"cat", b"dog", b""]), ["cat", "dog", "-1"]),
        (np.array(["3", "4", ""]), [3, 4, -1]),
    ):
        np.savez(path, X=np.eye(3), y=y, ids=np.array(["a", "b", "c"]), extra=np.zeros(2))
        samples = data.open(path)
        assert samples.y.tolist() == expected
        assert samples.ids.tolist() == ["a", "b", "c"]
        assert "arrays not read: extra" in samples.notes
    for y, match in (
        (np.array([0.5, 1, 2]), "whole numbers or text. Got 0.5 at row 0"),
        (np.array([0, 1]), r"one entry per sample \(3,\). Got shape \(2,\)"),
        (np.array([1j, 1, 2]), "Got values of type complex128"),
        (np.array([2**63, 1, 2], dtype=np.uint64), "64-bit"),
        (np.array([np.inf, 1, 2]), "Got inf at row 0"),
    ):
        np.savez(path, X=np.eye(3), y=y)
        refused(path, match)


def test_ids_must_be_unique_and_not_blank(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(3), ids=np.array(["a", "b", "a"]))
    refused(tmp_path / "a.npz", r"ids must be unique.*'a' at rows 0 and 2")
    np.savez(tmp_path / "a.npz", X=np.eye(3), ids=np.array(["a", "", "c"]))
    refused(tmp_path / "a.npz", r"must have an id.*row 1")
    (tmp_path / "a.csv").write_text("id,x\ns1,1\ns1,2\n")
    refused(tmp_path / "a.csv", r"ids must be unique.*'s1' at rows 0 and 1")
    (tmp_path / "a.txt").write_text("king 1\nking 2\n")
    refused(tmp_path / "a.txt", r"ids must be unique.*'king'")


def test_text_that_could_not_be_written_out_is_refused(tmp_path):
    half = np.array(["a", "b\ud800", "c"])
    np.savez(tmp_path / "a.npz", X=np.eye(3), ids=half)
    refused(tmp_path / "a.npz", r"ids must be valid Unicode. Got 'b\\ud800'")
    np.savez(tmp_path / "a.npz", X=np.eye(3), y=half)
    refused(tmp_path / "a.npz", "labels must be valid Unicode")
    beyond = np.array([0x110000, 0, 0], np.uint32).view("<U1")  # no such character
    np.savez(tmp_path / "a.npz", X=np.eye(3), y=beyond)
    refused(tmp_path / "a.npz", "not a valid .npz file")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_counted_and_located(bad, tmp_path):
    X = np.ones((5, 3))
    X[3, 1] = X[4, 2] = bad
    np.save(tmp_path / "a.npy", X)
    np.savez(tmp_path / "a.npz", X=X)
    make_csv(tmp_path / "a.csv", X, np.zeros(5, int))
    make_parquet(tmp_path / "a.parquet", X, np.zeros(5, int))
    np.savetxt(tmp_path / "a.txt", X)
    (tmp_path / "a.idx").write_bytes(idx_bytes(X))
    for name in ("a.npy", "a.npz", "a.txt", "a.idx"):
        refused(tmp_path / name, r"Got 2 that are NaN or infinite, the first at row 3, index \(1,\)")
    for name in ("a.csv", "a.parquet"):
        refused(tmp_path / name, "Got 2 that are NaN or infinite, the first at row 3, column 'p1'")
        fix = "median: fill=True, --fill" if np.isnan(bad) else "--fill does not change it"
        refused(tmp_path / name, fix)  # infinity is not a gap


def test_values_that_are_not_finite_are_located_beyond_the_first_block(tmp_path, monkeypatch):
    monkeypatch.setattr("cdknet.data.checks.BLOCK_BYTES", 64)
    X = np.ones((50, 4))
    X[37, 2] = np.nan
    np.save(tmp_path / "a.npy", X)
    refused(tmp_path / "a.npy", r"Got 1 that are NaN or infinite, the first at row 37, index \(2,\)")


def test_numbers_too_large_for_the_networks_are_refused_not_rounded_to_infinity(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,1e300\n")
    refused(tmp_path / "a.csv", "row 1, column 'b'")


@pytest.mark.parametrize(
    ("X", "match"),
    [
        (np.zeros(5), r"one row per sample.*Got shape \(5,\)"),
        (np.zeros((0, 4)), "at least one sample"),
        (np.zeros((4, 0)), "at least one sample"),
        (np.array([["a"]]), "must hold numbers. Got values of type <U1"),
        (np.zeros((2, 3), complex), r"np\.stack\(\[X\.real, X\.imag\]"),
        (np.zeros(3, [("a", int)]), "plain numbers or text"),
    ],
)
def test_arrays_that_are_not_samples_are_refused(X, match, tmp_path):
    np.save(tmp_path / "a.npy", X)
    refused(tmp_path / "a.npy", match)
    np.savez(tmp_path / "a.npz", X=X)
    refused(tmp_path / "a.npz", match)


def test_pickles_are_never_opened(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    refused(tmp_path / "a.npy", "no pickle is ever opened")
    np.savez(tmp_path / "a.npz", X=np.array([[{"a": 1}]], dtype=object))
    refused(tmp_path / "a.npz", "no pickle is ever opened")


@pytest.mark.parametrize(
    "shape", ["(-3, 4)", "(99999999999, 9999999999)", "(3.0, 4)", "(True, 12)", "(1,)*40", "'ab'"]
)
def test_npy_headers_that_lie_are_refused(shape, tmp_path):
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + bytes(12))
    refused(path, "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.write(path, "X.npy")
    refused(tmp_path / "a.npz", "a.npz")


@pytest.mark.parametrize("length", [0, 1, 9, 20_000, 65_535])
def test_npy_headers_of_impossible_length_are_refused(length, tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + bytes(70_000))
    refused(path, "header must be 10 to 16384 bytes")


@pytest.mark.parametrize("rows", [4, 6, 9])
@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_npz_member_whose_header_and_size_disagree_is_refused(rows, packing, tmp_path):
    """A mapped array must neither end early nor extend into the next member."""
    np.save(tmp_path / "x.npy", np.ones((5, 5)))
    lying = (tmp_path / "x.npy").read_bytes().replace(b"(5, 5)", b"(%d, 5)" % rows)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", packing) as archive:
        archive.writestr("X.npy", lying)
        archive.writestr("padding.npy", bytes(1000))
    refused(tmp_path / "a.npz", rf"header declares {rows * 40} bytes .* the archive has 200")


def test_a_packed_member_with_a_wrong_checksum_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, X=np.eye(5))
    with zipfile.ZipFile(path) as archive:
        checksum = archive.infolist()[0].CRC.to_bytes(4, "little")
    content = path.read_bytes()
    assert content.count(checksum) >= 1
    path.write_bytes(content.replace(checksum, bytes(4)))
    refused(path, "not a valid .npz file.*CRC")


@pytest.mark.parametrize("shape", [(0, 4, 4), (4, 0, 4), (0,), (4, 4, 0)])
def test_idx_files_without_values_are_refused(shape, tmp_path):
    (tmp_path / "a.idx").write_bytes(idx_bytes(np.zeros(shape, np.uint8)))
    refused(tmp_path / "a.idx", "at least one value. Got shape")


def test_npz_member_names_do_not_touch_the_disk(tmp_path):
    inner = tmp_path / "x.npy"
    np.save(inner, np.eye(3))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.write(inner, "../../X.npy")
    before = sorted(tmp_path.rglob("*"))
    refused(tmp_path / "a.npz", r"an array named X.*Got '\.\./\.\./X'")
    assert sorted(tmp_path.rglob("*")) == before


def test_shape_is_checked_against_the_values_of_a_sample(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 12)))
    assert data.open(tmp_path / "a.npy", shape=(3, 4)).X.shape == (3, 3, 4)
    refused(tmp_path / "a.npy", "multiply to the 12 values", shape=(5, 5))
    refused(tmp_path / "a.npy", "multiply to the 12 values", shape=(-3, -4))


def test_options_that_do_not_apply_are_refused_not_ignored(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(3))
    refused(tmp_path / "a.npy", "label_column does not apply.*takes shape", label_column="a")
    refused(tmp_path / "a.npy", "sample_rate does not apply", sample_rate=1.0)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    refused(tmp_path / "a.csv", "image_size does not apply", image_size=32)


def test_the_kind_of_a_file_without_a_suffix_is_known_from_its_first_bytes(tmp_path):
    for kind in ("npy", "npz", "idx", "idx packed", "parquet"):
        made = tmp_path / f"made{SPECIMENS[kind].suffix}"
        SPECIMENS[kind].make(made, *some_samples())
        bare = tmp_path / f"bare {kind}"
        made.rename(bare)
        assert len(data.open(bare)) == 7


def test_the_error_for_an_unknown_kind_lists_the_supported_kinds(tmp_path):
    path = tmp_path / "thesis.docx"
    path.write_bytes(b"anything")
    with pytest.raises(ValueError, match=r"thesis\.docx: must be a supported kind of file") as caught:
        data.open(path)
    for suffixes, name in data.kinds():
        assert suffixes in str(caught.value)
        assert name in str(caught.value)
    (tmp_path / "one.png").write_bytes(b"x")
    refused(tmp_path / "one.png", "must be a folder of images. Got one image")


def test_a_path_that_cannot_exist_is_a_file_not_found_error():
    for path in ("absent.npz", "nul\0byte.npz", "x" * 5000):
        with pytest.raises(FileNotFoundError, match="no such file"):
            data.open(path)


def test_the_radio_options_of_open_are_those_of_the_radio_reader():
    radio = pytest.importorskip("cdknet.radio", reason="the radio readers are not installed")
    from cdknet.data.files import RADIO_OPTIONS

    parameters = inspect.signature(radio.open_recording).parameters.values()
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == set(RADIO_OPTIONS)


def test_importing_data_is_cheap():
    heavy = ["torch", "sklearn", "pyarrow", "matplotlib", "scipy", "pandas", "cdknet.radio"]
    code = f"import sys, cdknet.data; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_text_embeddings_may_carry_names_commas_comments_and_word2vecs_first_line(tmp_path):
    path = tmp_path / "a.txt"
    expected = [[1.0, 2.5, -3.0], [4.0, 5.0, 6e-3]]
    for text, ids in (
        ("1 2.5 -3\n4 5 6e-3\n", ["row 0", "row 1"]),
        ("1, 2.5, -3\n4,5,6e-3", ["row 0", "row 1"]),
        ("# made by hand\n\n1\t2.5\t-3\n\n4 5 6e-3\n", ["row 0", "row 1"]),
        ("king 1 2.5 -3\nqueen 4 5 6e-3\n", ["king", "queen"]),
        ("king,1,2.5,-3\nqueen,4,5,6e-3\n", ["king", "queen"]),
        ("2 3\n17 1 2.5 -3\n18 4 5 6e-3\n", ["17", "18"]),
        ("2 3\nking 1 2.5 -3\nqueen 4 5 6e-3\n", ["king", "queen"]),
        ("\ufeffking 1 2.5 -3\r\nqueen 4 5 6e-3\r\n", ["king", "queen"]),
    ):
        path.write_text(text, encoding="utf-8", newline="")
        samples = data.open(path)
        np.testing.assert_allclose(samples.X, expected, rtol=1e-6)
        assert samples.ids.tolist() == ids
        assert samples.y is None
    for text, match in (
        ("1 2\n3\n", "every line must hold 2 cells.*Got 1 in row 1"),
        ("1 2\n3 x\n", "must hold numbers. Got 'x' in row 1"),
        ("king\nqueen\n", "at least one number"),
        ("3 2\nking 1 2\nqueen 3 4\n", "declares 3 rows, file has 2"),
        ("# nothing\n", "one line of numbers per sample"),
        ("s1 0,12 1,50 3,25\ns2 1,00 2,00 3,00\n", "decimal point. Got '0,12'"),
        ("s1 0,12 1\n", "decimal point. Got '0,12'"),
        ("0,12 1 3,25e-2\n", "decimal point. Got '0,12'"),
    ):
        path.write_text(text)
        refused(path, match)


def test_csv_written_by_the_csv_module_is_read_back(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b c", "label"], [1.5, -2, 'say "hi", you'], [3, 4e2, ""]])
    samples = data.open(path)
    np.testing.assert_array_equal(samples.X, [[1.5, -2], [3, 400]])
    assert samples.y.tolist() == ['say "hi", you', "-1"]


def test_words_of_text_embeddings_may_be_any_text(tmp_path):
    """The words of published vocabularies include commas, # and unusual spaces."""
    words = ["the", ",", "#", "#tag", "a\u00a0b"]
    lines = [f"{word} 0.5 {i}" for i, word in enumerate(words)]
    (tmp_path / "glove.txt").write_text("\n".join(lines), encoding="utf-8")
    samples = data.open(tmp_path / "glove.txt")
    assert samples.ids.tolist() == words
    assert samples.X[:, 1].tolist() == [0, 1, 2, 3, 4]
    (tmp_path / "w2v.txt").write_text("\n".join(["5 2", *lines]), encoding="utf-8")
    assert data.open(tmp_path / "w2v.txt").ids.tolist() == words
