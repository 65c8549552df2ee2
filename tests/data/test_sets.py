"""The public data sets: their counts, their splits, and that a second load is fast."""

from __future__ import annotations

import gzip
import hashlib
import os
import time
import tracemalloc
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from specimens import idx_bytes, make_images

from cdknet import data
from cdknet.cli.tables import sets_table
from cdknet.data import sets, store
from cdknet.data.registry import MNIST, SETS


def on_this_machine(name: str) -> bool:
    return all(store.find(SETS[name], file) for file in SETS[name].files)


@pytest.fixture
def real(request, tmp_path_factory, monkeypatch):
    """Load a real data set by name, or skip and say why."""

    def load(name: str, **how) -> data.Dataset:
        if not on_this_machine(name):
            pytest.skip(
                f"the files of {name} are not on this machine: set CDKNET_DATA to a folder that has them, "
                f"or run `cdknet data fetch {name}`"
            )
        cache = tmp_path_factory.getbasetemp() / "cache"  # one for the whole test run: decoded once
        monkeypatch.setenv("CDKNET_DATA", os.pathsep.join(str(folder) for folder in store.folders()))
        monkeypatch.setenv("CDKNET_CACHE", str(cache))
        return data.load(name, **how)

    return load


REAL = ("mnist", "fashion-mnist", "cifar-100")


@pytest.mark.parametrize("name", [*REAL, "digits"])
def test_counts_shapes_and_classes_are_those_of_the_registry(name, real):
    dataset, public = real(name), SETS[name]
    assert (len(dataset.X_train), len(dataset.X_test)) == (public.n_train, public.n_test)
    assert (len(dataset.y_train), len(dataset.y_test)) == (public.n_train, public.n_test)
    assert dataset.X_train.dtype == np.uint8
    shape = {"mnist": (28, 28), "fashion-mnist": (28, 28), "cifar-100": (3, 32, 32), "digits": (8, 8)}[name]
    assert dataset.X_train.shape[1:] == dataset.X_test.shape[1:] == shape
    for y in (dataset.y_train, dataset.y_test):
        np.testing.assert_array_equal(np.unique(y), np.arange(len(dataset.class_names)))
    assert dataset.provenance.licence == public.licence


def test_wifi_csi_30_has_the_counts_of_the_registry(real):
    dataset, public = real("wifi-csi-30"), SETS["wifi-csi-30"]
    assert (len(dataset.X_train), len(dataset.X_test)) == (public.n_train, public.n_test)
    assert dataset.class_names == public.class_names
    assert dataset.kind == "channel state"
    assert len(dataset.groups_train) == len(dataset.X_train)


@pytest.mark.slow
def test_rf_50_sim_has_the_counts_of_the_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("CDKNET_CACHE", str(tmp_path))
    dataset, public = data.load("rf-50-sim"), SETS["rf-50-sim"]
    transmissions = len(set(dataset.groups_train)), len(set(dataset.groups_test))
    assert transmissions == (public.n_train, public.n_test)
    assert dataset.class_names == public.class_names
    assert dataset.X_train.shape[1:] == (2, 198)


@pytest.mark.parametrize("name", [*REAL, "wifi-csi-30"])
def test_the_real_files_pass_verification(name, real):
    real(name)
    report = data.verify(name)
    assert len(report) == len(SETS[name].files)
    assert all(row.ok for row in report), report


@pytest.mark.parametrize("name", REAL)
def test_a_second_load_is_fast_and_holds_no_pixels_in_memory(name, real):
    real(name)
    tracemalloc.start()
    start = time.process_time()
    dataset = data.load(name)
    seconds, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 1
    assert peak < 0.1 * dataset.X_train.nbytes
    assert not dataset.X_train.flags.writeable


def test_cifar_100_pixels_are_those_of_the_file(real):
    dataset = real("cifar-100")
    path = dataset.provenance.found[1]
    records = np.fromfile(path, np.uint8).reshape(-1, 3074)
    np.testing.assert_array_equal(dataset.y_test, records[:, 1])
    np.testing.assert_array_equal(dataset.X_test.reshape(10_000, -1), records[:, 2:])
    names = [dataset.class_names[k] for k in dataset.y_test[:3]]
    assert names == ["mountain", "forest", "seal"]  # as in the authors' own label file


def test_mnist_by_name_and_by_file_agree(real):
    dataset = real("mnist")
    samples = data.open(dataset.provenance.found[2])
    np.testing.assert_array_equal(samples.X, dataset.X_test)
    np.testing.assert_array_equal(samples.y, dataset.y_test)


def test_a_few_hundred_mnist_images_agree_in_every_kind_of_file(real, tmp_path):
    dataset = real("mnist")
    X = np.ascontiguousarray(dataset.X_train[:200])
    y = dataset.problem().train.y[:200]
    np.savez(tmp_path / "a.npz", X=X, y=y)
    table = np.column_stack([X.reshape(200, -1), y])
    names = ",".join([f"p{i}" for i in range(784)] + ["label"])
    np.savetxt(tmp_path / "a.csv", table, fmt="%d", delimiter=",", header=names, comments="")
    make_images(tmp_path / "images", X, y)
    arrays, csv = data.open(tmp_path / "a.npz"), data.open(tmp_path / "a.csv", shape=(28, 28))
    images = data.open(tmp_path / "images")
    back = np.argsort([int(name.split("/")[1].removesuffix(".png")) for name in images.ids])
    for samples, order in ((arrays, slice(None)), (csv, slice(None)), (images, back)):
        np.testing.assert_array_equal(samples.X[order], X)
        np.testing.assert_array_equal(samples.y[order], y)


def test_digits_split_is_fixed_and_complete():
    from sklearn.datasets import load_digits

    one, two = data.load("digits"), data.load("digits")
    np.testing.assert_array_equal(one.X_train, two.X_train)
    np.testing.assert_array_equal(one.X_test, two.X_test)
    everything = np.concatenate([one.X_train, one.X_test]).reshape(1797, -1)
    official = load_digits().data.astype(np.uint8)
    assert sorted(map(bytes, everything)) == sorted(map(bytes, official))
    assert (
        hashlib.sha256(one.y_train.astype(np.uint8).tobytes()).hexdigest()[:8] == "53f898fb"
    )  # the split never changes


PAPER = {
    "mnist": tuple(range(5, 10)),
    "fashion-mnist": tuple(range(5, 10)),
    "cifar-100": tuple(range(70, 100)),
    "digits": tuple(range(5, 10)),
}


def toy(name: str = "digits", **changes) -> data.Dataset:
    """Zeros with the classes and the split of `name`: splits need no files."""
    public = SETS[name]
    n = len(public.class_names)
    y = np.arange(4 * n) % n
    X = np.zeros((4 * n, 2, 2), np.uint8)
    provenance = data.Provenance("", "", "", "", ())
    made = data.Dataset(name, X, y, X, y, public.class_names, public.kind, provenance, public.new_classes)
    return replace(made, **changes)


@pytest.mark.parametrize("name", SETS)
def test_a_problem_hides_exactly_the_new_classes(name):
    dataset = toy(name)
    problem = dataset.problem(seed=3)
    new = dataset.new_classes(seed=3)
    hidden = np.isin(dataset.y_train, new)
    assert (problem.train.y[hidden] == data.UNLABELED).all()
    np.testing.assert_array_equal(problem.train.y[~hidden], dataset.y_train[~hidden])
    np.testing.assert_array_equal(problem.train_truth.is_new, hidden)
    np.testing.assert_array_equal(problem.test_truth.y, dataset.y_test)
    assert problem.train.X is dataset.X_train  # nothing is copied
    n_old_n_new = len(dataset.class_names) - len(new), len(new)
    counts = {"cifar-100": (70, 30), "rf-50-sim": (35, 15), "wifi-csi-30": (20, 10)}
    counts |= {"banking77": (58, 19), "stackoverflow-20": (15, 5), "snips-7": (5, 2)}
    expected = counts.get(name, (5, 5))
    assert n_old_n_new == expected
    if name in PAPER:
        assert new == PAPER[name]


def test_drawn_splits_follow_the_seed():
    dataset = toy("rf-50-sim")
    assert dataset.new_classes(seed=1) == dataset.new_classes(seed=1)
    assert dataset.new_classes(seed=1) != dataset.new_classes(seed=2)
    fixed = toy("cifar-100")
    assert fixed.new_classes(seed=1) == fixed.new_classes(seed=2)
    drawn = fixed.new_classes("random", seed=1)
    assert len(set(drawn)) == 30
    assert drawn != fixed.new_classes("random", seed=2)


def test_new_classes_may_be_named():
    dataset = toy("fashion-mnist")
    assert dataset.new_classes(["bag", 0, "sandal"]) == (0, 5, 8)
    for split in (["handbag"], [10], [-1], [1.5]):
        with pytest.raises(ValueError, match="split must name classes of fashion-mnist"):
            dataset.new_classes(split)
    with pytest.raises(ValueError, match=r"split must be one of paper, random.*Did you mean 'paper'"):
        dataset.new_classes("papre")
    with pytest.raises(ValueError, match="leave at least one class known"):
        dataset.problem(range(10))


def test_unknown_names_get_a_suggestion():
    for call in (data.load, data.fetch, data.verify, data.describe):
        with pytest.raises(ValueError, match=r"one of mnist, .*Did you mean 'fashion-mnist'"):
            call("fashion_mnist")


def test_describe_says_counts_licence_source_and_where_the_files_are(monkeypatch, tmp_path):
    monkeypatch.delenv("CDKNET_DATA", raising=False)
    monkeypatch.setenv("CDKNET_CACHE", str(tmp_path))
    for name in data.names():
        facts = data.describe(name)
        assert all(isinstance(value, str) and value for value in facts.values())
        assert facts["Licence"] == SETS[name].licence
        if SETS[name].files:
            assert facts["Files"] == "not on this machine"
    assert data.describe("mnist")["Paper's split"] == "5 old, 5 new (new: 5 to 9)"
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"x")
    assert "and 3 more that are not on this machine" in data.describe("mnist")["Files"]


def test_a_set_is_here_when_all_its_files_are(monkeypatch, tmp_path):
    monkeypatch.delenv("CDKNET_DATA", raising=False)
    monkeypatch.setenv("CDKNET_CACHE", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    here = []
    for file in SETS["mnist"].files:
        table = sets_table({name: data.describe(name) for name in ("mnist", "fashion-mnist", "digits")})
        here.append([*table.columns[-1].cells])
        (tmp_path / "mnist" / file.name).write_bytes(b"x")
    assert here == [["no", "no", "-"], *[["in part", "no", "-"]] * 3]
    assert [*sets_table({"mnist": data.describe("mnist")}).columns[-1].cells] == ["yes"]


def test_the_documentation_agrees_with_the_registry():
    page = Path(__file__).resolve().parents[2] / "docs" / "data.md"
    if not page.is_file():
        pytest.skip("the documentation is not beside the tests")
    text = page.read_text(encoding="utf-8")
    for name, public in SETS.items():
        section = text.split(f"\n### {name}\n")[1].split("\n### ")[0].split("\n## ")[0]
        if public.kind != "texts":
            assert f"pictures/data-{name}.png" in section
            assert (page.parent / "pictures" / f"data-{name}.png").is_file()
        assert public.licence.split(",")[0].split(";")[0].lower() in section.lower()
        if name != "rf-50-sim":
            assert f"{public.n_train:,} training" in section
            assert f"{public.n_test:,} test" in section
    for suffixes, _ in data.kinds():
        assert all(f"`{suffix}`" in text for suffix in suffixes.split(", ") if suffix != "a folder")


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """A data set in the format of MNIST, with our own files and their checksums."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "own" / "mnist"
    folder.mkdir(parents=True)
    X, y = rng.integers(0, 256, (2000, 28, 28), dtype=np.uint8), (np.arange(2000) % 10).astype(np.uint8)
    files = []
    for file, array in zip(MNIST.files, (X, y, X[:100], y[:100]), strict=True):
        content = idx_bytes(array)
        (folder / file.name).write_bytes(gzip.compress(content, 1))
        files.append(replace(file, size=len(content), sha256=hashlib.sha256(content).hexdigest()))
    monkeypatch.setitem(sets.SETS, "mnist", replace(MNIST, files=tuple(files)))
    monkeypatch.setenv("CDKNET_DATA", str(tmp_path / "own"))
    monkeypatch.setenv("CDKNET_CACHE", str(tmp_path / "cache"))
    return folder, X


def test_packed_images_are_decoded_once_into_the_cache(small_mnist, tmp_path, monkeypatch):
    _, X = small_mnist
    np.testing.assert_array_equal(data.load("mnist").X_train, X)
    copies = list((tmp_path / "cache" / "decoded").iterdir())
    assert len(copies) == 1  # the test part is too small to be worth a copy

    def never(path):
        raise AssertionError("decoded again")

    whole = sets.load_idx
    monkeypatch.setattr(
        sets, "load_idx", lambda path: never(path) if "train-images" in path.name else whole(path)
    )
    np.testing.assert_array_equal(data.load("mnist").X_train, X)


def test_a_damaged_copy_in_the_cache_is_made_again(small_mnist, tmp_path):
    _, X = small_mnist
    data.load("mnist")
    (copy,) = (tmp_path / "cache" / "decoded").iterdir()
    copy.write_bytes(copy.read_bytes()[:-10])
    np.testing.assert_array_equal(data.load("mnist").X_train, X)


def test_a_changed_source_is_never_read_from_the_old_copy(small_mnist):
    folder, X = small_mnist
    data.load("mnist")
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(X[::-1].copy()), 1))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz: must be the official file"):
        data.load("mnist")


def test_unpacked_files_and_a_cache_that_cannot_be_written_are_fine(small_mnist, tmp_path):
    folder, X = small_mnist
    (tmp_path / "cache").write_text("a file where the folder should be")
    np.testing.assert_array_equal(data.load("mnist").X_train, X)
    packed = folder / "train-images-idx3-ubyte.gz"
    (folder / "train-images-idx3-ubyte").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    dataset = data.load("mnist")
    np.testing.assert_array_equal(dataset.X_train, X)
    assert dataset.provenance.found[0].endswith("train-images-idx3-ubyte")


@pytest.mark.parametrize("name", [name for name, public in SETS.items() if public.kind != "texts"])
def test_the_contact_sheet_shows_every_class_and_marks_the_new_ones(name):
    dataset = toy(name)
    shape = {"colour images": (3, 4, 4), "grey images": (4, 4), "I/Q": (2, 9)}.get(dataset.kind, (3, 5))
    X = np.zeros((len(dataset.y_train), *shape), np.uint8)
    for k in range(len(dataset.class_names)):
        X[dataset.y_train == k] = k + 1
    sheet = np.asarray(data.sample_sheet(replace(dataset, X_train=X)))
    assert max(sheet.shape) < 1200
    orange = (np.abs(sheet.astype(int) - [0xC3, 0x52, 0x00]).sum(axis=-1) < 40).any(axis=1)
    assert orange.any()
    if dataset.kind == "grey images":
        for k in range(10):
            grey = (k + 1) * 255 // 255
            assert (sheet == [grey] * 3).all(axis=-1).sum() >= 4 * 64 * 64 * 0.9


TEXT_SETS = [name for name, public in SETS.items() if public.kind == "texts"]


@pytest.mark.parametrize("name", TEXT_SETS)
def test_sets_of_texts_have_the_counts_and_classes_of_the_registry(name, real):
    dataset, public = real(name, encoder=None), SETS[name]
    assert (len(dataset.texts_train), len(dataset.texts_test)) == (public.n_train, public.n_test)
    assert dataset.X_train.shape == (public.n_train, 0)
    for y in (dataset.y_train, dataset.y_test):
        np.testing.assert_array_equal(np.unique(y), np.arange(len(public.class_names)))
    assert all(row.ok for row in data.verify(name))


needs_wordllama = pytest.mark.skipif(
    find_spec("wordllama") is None or find_spec("tokenizers") is None,
    reason="needs wordllama: pip install 'cdknet[text]'",
)


@pytest.fixture
def small_texts(tmp_path, monkeypatch):
    """A set of texts like snips-7, with our own sentences and their checksums."""
    public, files = SETS["snips-7"], []
    (tmp_path / "own" / public.folder).mkdir(parents=True)
    for file, n in zip(public.files, (70, 14), strict=True):
        rows = "".join(
            f"request {i} for {public.class_names[i % 7]},{public.class_names[i % 7]}\n" for i in range(n)
        )
        content = f"text,label\n{rows}".encode()
        (tmp_path / "own" / public.folder / file.name).write_bytes(content)
        files.append(replace(file, size=len(content), sha256=hashlib.sha256(content).hexdigest()))
    monkeypatch.setitem(sets.SETS, "snips-7", replace(public, files=tuple(files)))
    monkeypatch.setenv("CDKNET_DATA", str(tmp_path / "own"))
    monkeypatch.setenv("CDKNET_CACHE", str(tmp_path / "cache"))


@needs_wordllama
def test_a_set_of_texts_is_loaded_as_vectors_with_its_texts(small_texts):
    dataset = data.load("snips-7", encoder="wordllama")
    assert dataset.X_train.shape == (70, 256)
    assert dataset.X_test.shape == (14, 256)
    assert dataset.texts_train[8] == "request 8 for BookRestaurant"
    assert dataset.class_names[dataset.y_train[8]] == "BookRestaurant"
    assert dataset.encoder["name"] == "wordllama"
    problem = dataset.problem(seed=1)
    assert len(set(problem.train.y[problem.train.y >= 0].tolist())) == 5
    assert dataset.new_classes(seed=1) != dataset.new_classes(seed=2)


@needs_wordllama
def test_embed_takes_a_set_of_texts_by_name(small_texts, tmp_path, capsys):
    from cdknet.cli import main

    out = tmp_path / "v.npz"
    assert main(["embed", "snips-7", "--encoder", "wordllama", "--out", str(out)]) == 0
    assert "70 vectors of 256 values by wordllama" in capsys.readouterr().out
    samples = data.open(out)
    assert samples.texts[1] == "request 1 for BookRestaurant"
    assert samples.ids[1] == "snips-7 1"
    assert len(set(samples.y.tolist())) == 6  # five old classes by name, and -1
    assert main(["embed", "digits", "--out", str(out), "--force"]) == 2
    assert "digits: embed needs texts. Got none." in capsys.readouterr().err


def test_a_changed_set_of_texts_is_refused(small_texts, tmp_path):
    path = next((tmp_path / "own").glob("intents/snips/test.csv"))
    path.write_bytes(path.read_bytes().replace(b"request 0", b"request x"))
    with pytest.raises(ValueError, match=r"test\.csv: must be the official file"):
        data.load("snips-7", encoder=None)
