"""The same samples in every kind of file get the same labels."""

import csv
import gzip
import json
import struct

import numpy as np
import pytest
from PIL import Image

from cdknet import data
from cdknet.cli import main

FEW = ["--method", "cd-knet", "--pretrain-epochs", "2", "--discover-epochs", "2", "--expand-epochs", "1"]
FEW += ["--expand-steps", "20", "--network", "mlp", "--no-calibrate"]
pytestmark = pytest.mark.usefixtures("no_pictures")
KINDS = ("npz", "npy", "csv", "parquet", "text", "idx", "idx.gz", "png folder")


@pytest.fixture(scope="module")
def images():
    """200 MNIST images where they are at hand, else digits blown up to 28 x 28."""
    try:
        full = data.load("mnist")
        X, y = np.asarray(full.X_train[:200]), full.y_train[:200]
    except FileNotFoundError:
        full = data.load("digits")
        X = np.kron(full.X_train[:200], np.ones((4, 4)))[:, 2:30, 2:30]
        X, y = (X * 15).astype(np.uint8), full.y_train[:200]
    return X, np.where(y < 5, y, -1)


def write(kind, folder, X, y):
    """The samples as one kind of file; the path, and what else `discover` must be told."""
    flat, own = X.reshape(len(X), -1), ["--shape", "28x28"]
    with (folder / "labels.csv").open("w", newline="") as file:
        rows = [("id", "label"), *((f"row {i}", c) for i, c in enumerate(y))]
        csv.writer(file).writerows(rows)
    if kind == "npz":
        np.savez(folder / "x.npz", X=X, y=y)
        return folder / "x.npz", []
    if kind == "npy":
        np.save(folder / "x.npy", X)
        return folder / "x.npy", ["--labels", str(folder / "labels.csv")]
    if kind == "csv":
        with (folder / "x.csv").open("w", newline="") as file:
            names = [*(f"p{i}" for i in range(784)), "label"]
            rows = ([*p, "" if c < 0 else c] for p, c in zip(flat.tolist(), y, strict=True))
            csv.writer(file).writerows([names, *rows])
        return folder / "x.csv", own
    if kind == "parquet":
        arrow = pytest.importorskip("pyarrow", reason="needs the extra [tables]")
        import pyarrow.parquet

        columns = {f"p{i}": flat[:, i] for i in range(784)}
        columns["label"] = arrow.array([None if c < 0 else int(c) for c in y])
        pyarrow.parquet.write_table(arrow.table(columns), folder / "x.parquet")
        return folder / "x.parquet", own
    if kind == "text":
        (folder / "x.txt").write_text("".join(" ".join(map(str, row)) + "\n" for row in flat.tolist()))
        return folder / "x.txt", [*own, "--labels", str(folder / "labels.csv")]
    if kind.startswith("idx"):
        end = ".gz" if kind.endswith("gz") else ""
        pack = gzip.compress if end else bytes
        pixels = struct.pack(">4B3I", 0, 0, 8, 3, *X.shape) + X.tobytes()
        labels = struct.pack(">4BI", 0, 0, 9, 1, len(y)) + y.astype(np.int8).tobytes()
        (folder / f"some-images-idx3-ubyte{end}").write_bytes(pack(pixels))
        (folder / f"some-labels-idx1-ubyte{end}").write_bytes(pack(labels))
        return folder / f"some-images-idx3-ubyte{end}", []
    for i, (picture, c) in enumerate(zip(X, y, strict=True)):
        place = folder / "pictures" / ("unlabelled" if c < 0 else str(c))
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place / f"{i:04}.png")
    return folder / "pictures", []


def discovered(path, extra, out):
    assert main(["discover", str(path), "--new-classes", "5", "--out", str(out), *FEW, *extra]) == 0
    with (out / "labels.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_same_samples_get_the_same_labels_from_every_kind(images, tmp_path):
    X, y = images
    # Pictures in folders come class by class, the unlabelled ones last: so do all the others here.
    order = np.argsort(np.where(y < 0, 99, y), kind="stable")
    X, y = X[order], y[order]
    found = {}
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        rows = discovered(*write(kind, tmp_path / kind, X, y), tmp_path / f"run-{kind}")
        assert len({row["id"] for row in rows}) == len(X)
        assert [row["given"] for row in rows] == [str(int(c >= 0)) for c in y]
        found[kind] = np.array([row["label"] for row in rows])
    # Tables and text hold numbers where the others hold pixels: standardised, they differ in rounding only.
    pixels, numbers = ("npz", "npy", "idx", "idx.gz", "png folder"), ("csv", "parquet", "text")
    for group in (pixels, numbers):
        for kind in group:
            assert np.array_equal(found[kind], found[group[0]]), kind
    assert np.mean(found["npz"] == found["csv"]) > 0.97


def test_columns_are_matched_by_name_and_not_by_place(tmp_path):
    (tmp_path / "a.csv").write_text("length,colour,label\n1,red,x\n2,blue,y\n3,red,\n")
    (tmp_path / "b.csv").write_text("colour,length\nblue,5\nred,6\ngreen,7\n")
    made, asked = data.open(tmp_path / "a.csv"), data.open(tmp_path / "b.csv")
    assert made.columns == ("length", "colour=red", "colour=blue")
    # green was never seen: neither red nor blue.
    there = asked.aligned(made.columns)
    assert there.X.tolist() == [[5, 0, 1], [6, 1, 0], [7, 0, 0]]
    assert there.notes[-1] == "column 'colour': 'green' was not there before, in 1 row(s) taken for none"
    assert made.aligned(made.columns) is made
    for header, message in (
        ("colour,width", "no column 'length'"),
        ("colour,length,width", "'width' that was not"),
    ):
        row = ",".join(["red", *"1" * header.count(",")])
        (tmp_path / "c.csv").write_text(f"{header}\n{row}\n")
        with pytest.raises(ValueError, match=message):
            data.open(tmp_path / "c.csv").aligned(made.columns)


def test_a_table_in_another_order_gets_the_same_labels(tmp_path):
    digits = data.load("digits")
    X, y = digits.X_train[:120].reshape(120, -1), digits.y_train[:120]
    names = [f"p{i}" for i in range(64)]
    for name, order in (("a.csv", np.arange(64)), ("b.csv", np.arange(64)[::-1])):
        with (tmp_path / name).open("w", newline="") as file:
            head = [*(names[i] for i in order), "label"]
            rows = ([*x[order], "" if c > 4 else c] for x, c in zip(X, y, strict=True))
            csv.writer(file).writerows([head, *rows])
    discovered(tmp_path / "a.csv", [], tmp_path / "run")
    labels = []
    for name in ("a.csv", "b.csv"):
        out = tmp_path / f"labels-{name}"
        assert main(["predict", str(tmp_path / "run"), str(tmp_path / name), "--out", str(out)]) == 0
        labels.append(out.read_text())
    assert labels[0] == labels[1]


def test_an_id_has_one_label(tmp_path):
    (tmp_path / "labels.csv").write_text("id,label\na,1\na,1\nb,2\n")
    assert data.read_labels(tmp_path / "labels.csv") == {"a": "1", "b": "2"}
    (tmp_path / "labels.csv").write_text("id,label\na,1\na,2\n")
    with pytest.raises(ValueError, match="Got '1' and '2' for 'a'"):
        data.read_labels(tmp_path / "labels.csv")
    with pytest.raises(FileNotFoundError, match="no such file"):
        data.read_labels(tmp_path / "nothing.csv")


def test_labels_beside_gaps_are_read_as_tables_read_them(tmp_path):
    (tmp_path / "truth.csv").write_text("id,label\na,3.0\nb,nan\nc,-1.0\nd,NaN\ne,4.0\nf,\n")
    assert data.read_labels(tmp_path / "truth.csv") == {"a": "3", "e": "4"}
    (tmp_path / "truth.csv").write_text("id,label\na,cat\nb,nan\nc,-1\n")
    assert data.read_labels(tmp_path / "truth.csv") == {"a": "cat"}


def test_labels_of_their_own_are_matched_by_id(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    (tmp_path / "labels.csv").write_text("id,label\nrow 2,7\nrow 0,\n")
    samples = data.attach_labels(data.open(tmp_path / "x.npy"), tmp_path / "labels.csv")
    assert samples.y.tolist() == [-1, -1, 7]
    (tmp_path / "labels.csv").write_text("id,label\nrow 2,cat\n")
    assert data.attach_labels(samples, tmp_path / "labels.csv").y.tolist() == ["-1", "-1", "cat"]
    (tmp_path / "labels.csv").write_text("id,label\nrow 0,07\nrow 1, 7\nrow 2,8\n")
    assert data.attach_labels(samples, tmp_path / "labels.csv").y.tolist() == ["07", "7", "8"]  # as in tables
    (tmp_path / "labels.csv").write_text("id,label\nrow 9,cat\n")
    with pytest.raises(ValueError, match="row 9"):
        data.attach_labels(samples, tmp_path / "labels.csv")


def test_recordings_are_labelled_by_slice_and_by_transmission(tmp_path):
    pytest.importorskip("sigmf", reason="needs the extra [rf]")
    from cdknet.radio import write_sigmf

    generator = np.random.default_rng(0)
    time = np.arange(256)
    labels = [("a", "b", None, None)[i % 4] for i in range(24)]
    waves = [np.exp(2j * np.pi * (0.02 + 0.1 * (i % 4)) * time) for i in range(24)]
    noisy = [w + 0.05 * (generator.normal(size=256) + 1j * generator.normal(size=256)) for w in waves]
    recording = write_sigmf(
        tmp_path / "air", [w.astype(np.complex64) for w in noisy], sample_rate=1e6, labels=labels
    )
    few = [*FEW, "--slice-length", "64"]
    assert main(["discover", str(recording), "--new-classes", "2", "--out", str(tmp_path / "run"), *few]) == 0
    out = tmp_path / "labels.csv"
    reading = ["--out", str(out), "--slice-length", "64"]
    assert main(["predict", str(tmp_path / "run"), str(recording), *reading]) == 0
    with out.open(newline="") as slices, (tmp_path / "labels.groups.csv").open(newline="") as groups:
        by_slice, by_transmission = list(csv.DictReader(slices)), list(csv.DictReader(groups))
    assert (len(by_slice), len(by_transmission)) == (96, 24)
    assert {row["label"] for row in by_transmission} <= {"a", "b", "new-1", "new-2"}


def test_a_column_is_not_another_kind_of_column_of_that_name():
    """Categories of a column stand in for each other; numbers and categories do not."""
    X = np.ones((2, 2), np.float32)
    ids, text = np.array(["a", "b"]), ("age", "colour")
    here = data.Samples(X, None, ids, "t.csv", columns=("age=(blank)", "colour=red"), categories=text)
    assert here.aligned(("colour=blue", "age=old")).X.tolist() == [[0, 0], [0, 0]]
    with pytest.raises(ValueError, match="text in column 'age', which held numbers"):
        here.aligned(("age", "colour=red"))
    numbers = data.Samples(X[:, :1], None, ids, "t.csv", columns=("age",))
    with pytest.raises(ValueError, match="no column 'age=old'"):
        numbers.aligned(("age=old",))


def test_a_column_of_numbers_may_have_any_name(tmp_path, capsys):
    """t=0.1 is no category of t."""
    generator = np.random.default_rng(0)

    def table(name, heads):
        with (tmp_path / name).open("w", newline="") as file:
            values = generator.normal(np.arange(60)[:, None] % 3, 0.1, (60, len(heads)))
            rows = ([*row, "ab"[i % 2], ("x", "y", "")[i % 3]] for i, row in enumerate(values))
            csv.writer(file).writerows([[*heads, "colour", "label"], *rows])
        return str(tmp_path / name)

    run, whole = str(tmp_path / "run"), table("whole.csv", ["t=0.1", "t=0.2"])
    quick = ["--network", "none", "--method", "sscd", "--expansion", "none", "--no-calibrate"]
    assert main(["discover", whole, "--new-classes", "1", "--out", run, *quick]) == 0
    out = ["--out", str(tmp_path / "labels.csv"), "--force"]
    assert main(["predict", run, whole, *out]) == 0
    less, config = table("less.csv", ["t=0.1"]), tmp_path / "run" / "config.json"
    for _ in range(2):
        capsys.readouterr()
        assert main(["predict", run, less, *out]) == 2
        assert "no column 't=0.2'" in capsys.readouterr().err
        told = json.loads(config.read_text())
        told.pop("categories", None)  # a run of an older version
        config.write_text(json.dumps(told))
    assert main(["predict", run, whole, *out]) == 0


def test_predict_reads_a_table_as_that_of_the_run_was_read(tmp_path, capsys):
    """Without the columns that were dropped, and with its gaps filled by the medians of the run."""
    generator = np.random.default_rng(0)

    def table(name, places, heads=("a", "b", "note", "label")):
        rows = [[*generator.normal(p, 0.1, 2), f"sample {i}", "xy "[p % 3]] for i, p in enumerate(places)]
        rows[0][0] = ""
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([heads, *(row[: len(heads)] for row in rows)])
        return str(tmp_path / name)

    run, whole = str(tmp_path / "run"), table("whole.csv", np.arange(90) % 3)
    quick = ["--network", "none", "--method", "sscd", "--expansion", "none", "--no-calibrate"]
    discover = ["discover", whole, "--new-classes", "1", "--out", run, *quick, "--drop", "note"]
    assert main(discover) == 2
    assert "--fill" in capsys.readouterr().err
    assert main([*discover, "--fill"]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["dropped"] == ["note"]
    assert config["fills"]["a"] == pytest.approx(1, abs=0.1)
    out = tmp_path / "labels.csv"
    for more in (table("more.csv", np.full(9, 3)), table("less.csv", np.full(9, 3), ("a", "b"))):
        capsys.readouterr()
        assert main(["predict", run, more, "--out", str(out), "--force"]) == 0
        assert f"the medians of the run's data: 'a' 1 with {config['fills']['a']:.4g}" in " ".join(
            capsys.readouterr().err.split()
        )
        assert main(["predict", run, more, "--out", str(out), "--force", "--no-fill"]) == 2
