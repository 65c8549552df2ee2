"""Commands where users stray: runs from Python, other tables, places that cannot be written, odd files."""

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cdknet import ClassDiscovery, data
from cdknet.cli import main
from cdknet.cli.base import as_flags
from cdknet.core.columns import is_categorical
from cdknet.core.metrics import clustering_accuracy
from cdknet.data import odd_labels
from cdknet.data.checks import DoubtfulData
from cdknet.inputs.arrays import Inputs, input_statistics
from cdknet.inputs.warnings import among_old, looks_mixed
from cdknet.radio import simulate
from cdknet.runs.summary import confidence_sentence

from contracts import blob_problem

pandas = pytest.importorskip("pandas")

X, Y, _ = blob_problem(n=80)
QUICK = ["--network", "none", "--method", "sscd", "--expansion", "none", "--no-calibrate"]
NOTHING = {"network": "none", "method": "sscd", "expansion": "none", "calibrate": False, "random_state": 0}


@pytest.fixture
def saved(tmp_path):
    """A run from Python, of a data frame, without its samples."""
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    model = ClassDiscovery(n_new_classes=2, **NOTHING).fit(frame, Y)
    return model, frame, str(model.save(tmp_path / "run", samples=False))


def read(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_columns_of_a_data_frame_are_matched_by_name(saved, tmp_path, recwarn):
    model, frame, run = saved
    frame[frame.columns[::-1]].to_csv(tmp_path / "back.csv", index=False)
    assert main(["predict", run, str(tmp_path / "back.csv"), "--out", str(tmp_path / "p.csv")]) == 0
    assert [row["label"] for row in read(tmp_path / "p.csv")] == [str(c) for c in model.predict(frame)]
    assert not [w for w in recwarn if "feature names" in str(w.message)]


def test_samples_of_a_run_from_python_are_called_as_readers_call_them(saved, tmp_path):
    _, _, run = saved
    np.save(tmp_path / "x.npy", X)
    assert read(tmp_path / "run" / "labels.csv")[3]["id"] == "row 3"
    report = ["report", run, "--data", str(tmp_path / "x.npy"), "-o", str(tmp_path / "r.html")]
    assert main(report) == 0
    (tmp_path / "truth.csv").write_text("id,label\nrow 3,x\nrow 4,y\n")
    assert main(["evaluate", run, "--truth", str(tmp_path / "truth.csv")]) == 0


def test_how_to_read_is_about_data(saved, tmp_path, capsys):
    _, _, run = saved
    assert main(["report", run, "--drop", "zip", "-o", str(tmp_path / "r.html")]) == 2
    assert "--drop says how to read --data" in capsys.readouterr().err


def test_a_large_seed_draws_its_map(tmp_path):
    np.savez(tmp_path / "x.npz", X=X, y=Y)
    discover = [
        "discover",
        str(tmp_path / "x.npz"),
        "--new-classes",
        "2",
        "--out",
        str(tmp_path / "run"),
        *QUICK,
    ]
    assert main([*discover, "--seed", str(2**32)]) == 2
    assert main([*discover, "--seed", str(2**32 - 1)]) == 0


@pytest.mark.usefixtures("no_pictures")
def test_predict_remembers_how_the_run_was_read(tmp_path, capsys):
    def table(name, heads, rows):
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([heads, *rows])
        return str(tmp_path / name)

    kinds = [("red", "blue")[i % 2] for i in range(len(X))]
    rows = [
        [f"s{i}", *x, k, "xyz"[y] if y >= 0 else ""]
        for i, (x, k, y) in enumerate(zip(X, kinds, Y, strict=True))
    ]
    heads = ["name", *"abcdef", "colour", "species"]
    whole, run, out = table("t.csv", heads, rows), str(tmp_path / "run"), str(tmp_path / "p.csv")
    flags = ["--label-column", "species", "--id-column", "name"]
    assert main(["discover", whole, "--new-classes", "2", "--out", run, *QUICK, *flags]) == 0
    assert main(["predict", run, whole, "--out", out]) == 0
    assert read(out)[5]["id"] == "s5"
    unlabelled = table("u.csv", heads[1:-1], [row[1:-1] for row in rows])
    assert main(["predict", run, unlabelled, "--out", out, "--force"]) == 0
    for change, said in (
        (lambda row: [*row[:-1], "more", row[-1]], "leave it out: --drop extra"),
        (
            lambda row: [row[0], "x" if row[1] != "" else "", *row[2:]],
            "text in column 'a', which held numbers",
        ),
        (lambda row: [*row[:7], 7, row[8]], "numbers in column 'colour', which held text"),
    ):
        named = [*heads[:-1], "extra", heads[-1]] if "extra" in said else heads
        other = table("o.csv", named, [change(row) for row in rows])
        capsys.readouterr()
        assert main(["predict", run, other, "--out", out, "--force"]) == 2
        assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("no_pictures")
def test_predict_takes_the_shape_of_the_run(tmp_path):
    np.savez(tmp_path / "x.npz", X=X, y=Y)
    run = str(tmp_path / "run")
    discover = ["discover", str(tmp_path / "x.npz"), "--new-classes", "2", "--out", run, "--shape", "2x3"]
    assert main([*discover, *QUICK]) == 0
    assert main(["predict", run, str(tmp_path / "x.npz"), "--out", str(tmp_path / "p.csv")]) == 0


@pytest.mark.parametrize("out", [".", "/", "x.npz/run", "locked/run"])
def test_where_nothing_can_be_written_is_said_before_the_work(out, tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "x.npz", X=X, y=Y)
    (tmp_path / "locked").mkdir()
    monkeypatch.chdir(tmp_path)
    if out.startswith("locked"):
        allowed = os.access
        monkeypatch.setattr(os, "access", lambda path, how: allowed(path, how) and path.name != "locked")
    assert main(["discover", "x.npz", "--new-classes", "2", "--out", out, *QUICK]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") <= 3
    assert "must have a name" in said or "may write to" in said or "must be a run folder" in said


@pytest.mark.parametrize("missing", ["options", "blueprint", "classes", "seed"])
def test_a_damaged_config_is_one_line(missing, saved, tmp_path, capsys):
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config[missing]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert main(["show", str(tmp_path / "run")]) == 2
    assert f"nothing on {missing}" in capsys.readouterr().err


# Files


@pytest.mark.parametrize("kind", ["png", "webp", "jpeg"])
def test_pictures_of_every_kind_are_turned_upright_whole(kind, tmp_path):
    for i in range(2):
        picture = Image.new("L", (20, 10), 30)
        picture.paste(255, (0, 0, 4, 10))
        exif = picture.getexif()
        exif[0x0112] = 6
        picture.convert("RGB").save(tmp_path / f"{i}.{kind}", exif=exif)
    assert data.open(tmp_path).X.shape[1:] == (20, 10)


@pytest.mark.parametrize(
    "text",
    ["id;label\nrow 0;cat\n", "id, label\nrow 0, cat\n", "ID,Label\nrow 0,cat\n", "label,id\ncat, row 0\n"],
)
def test_labels_of_their_own_are_read_as_tables_are(text, tmp_path):
    (tmp_path / "l.csv").write_text(text)
    assert data.read_labels(tmp_path / "l.csv") == {"row 0": "cat"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "Got an empty file"),
        ("cat\ndog\n", "such as: id,label"),
        ("label,id\n1\n2,zz\n", "every row must have 2 cells. Got 1 in row 0"),
    ],
)
def test_labels_that_cannot_be_read_say_how_to_write_them(text, match, tmp_path):
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(ValueError, match=match):
        data.read_labels(tmp_path / "l.csv")


def test_tables_say_what_is_wrong_with_them(tmp_path):
    def refuses(text, match):
        (tmp_path / "t.csv").write_text(text)
        with pytest.raises(ValueError, match=match):
            data.open(tmp_path / "t.csv")

    refuses("a;label\n" + "".join(f"{i},5;x\n" for i in range(70)), "must have a decimal point")
    refuses("a,c\n1,NA\n2,3\n", r"column 'c' holds numbers.*Got 'NA' in row 0\. .*--fill")
    refuses("c,c=red\nred,1\nblue,2\n", "two called 'c=red'")
    (tmp_path / "t.csv").write_text("a,c\n1,nan\n2,red\n")
    assert data.open(tmp_path / "t.csv").columns == ("a", "c=nan", "c=red")
    times = "".join(f"{1_700_000_000 + i},{i % 3}\n" for i in range(60))
    (tmp_path / "t.csv").write_text("when,a\n" + times)
    assert any("'when' varies by less than float32" in note for note in data.open(tmp_path / "t.csv").notes)


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path):
    (tmp_path / "file").write_text("")
    recipe = simulate.Simulation(n_devices=2, n_train=2, n_test=1)
    assert len(simulate.load_rf50_sim(tmp_path / "file" / "cache", recipe)["X_train"])


def test_images_are_counted_as_they_are_read(tmp_path):
    for i in range(3):
        Image.new("L", (8, 8), i).save(tmp_path / f"{i}.png")
    seen = []
    data.open(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_many_samples_are_predicted_in_parts_with_a_bar(saved, tmp_path, monkeypatch, capsys):
    _, frame, run = saved
    frame.to_csv(tmp_path / "t.csv", index=False)
    predict = ["predict", run, str(tmp_path / "t.csv"), "--force", "--out"]
    assert main([*predict, str(tmp_path / "whole.csv")]) == 0
    assert "predict" not in capsys.readouterr().err
    monkeypatch.setattr("cdknet.cli.fits.AT_ONCE", 16)
    monkeypatch.setattr("cdknet.cli.fits.MANY_SAMPLES", 80)
    assert main([*predict, str(tmp_path / "parts.csv")]) == 0
    assert "predict" in capsys.readouterr().err
    assert (tmp_path / "parts.csv").read_text() == (tmp_path / "whole.csv").read_text()


@pytest.mark.usefixtures("no_pictures")
def test_what_was_decided_of_labels_is_told_in_json_too(tmp_path, capsys):
    names = np.array(["ant", "bee", "cow"])
    y = np.where(Y < 0, np.where(np.arange(len(Y)) % 3 == 0, "NA", ""), names[Y])
    np.savez(tmp_path / "x.npz", X=X, y=y)
    run = str(tmp_path / "run")
    discover = ["discover", str(tmp_path / "x.npz"), "--new-classes", "2", "--out", run, "--json", *QUICK]
    assert main(discover) == 0
    shown = json.loads(capsys.readouterr().out)
    n = int((y == "NA").sum())
    assert f"label 'NA' ({n} samples) is taken for the name of a class; blank is unlabelled" in shown["notes"]
    rows = "".join(f"row {i},{names[c]}\n" for i, c in enumerate(Y) if c >= 0)
    (tmp_path / "labels.csv").write_text("id,label\n" + rows)
    assert main([*discover, "--force", "--labels", str(tmp_path / "labels.csv")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert any("in place of those in" in note for note in shown["notes"])
    assert "NA" not in str(shown["classes"])
    # Truth for samples whose class was given says nothing about what was found.
    assert main(["evaluate", run, "--truth", str(tmp_path / "labels.csv")]) == 2
    assert "Got only samples whose class the run was given" in " ".join(capsys.readouterr().err.split())


def test_too_few_old_classes_to_tune_on_are_said_in_a_sentence(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", X=X, y=Y)
    tune = ["tune", str(tmp_path / "x.npz"), "--new-classes", "2", "--out", str(tmp_path / "t.json")]
    assert main(tune) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "Options cannot be tried on hidden old classes: it takes 4 old classes of" in said
    assert said.endswith("and there are 3.")


def test_classes_that_differ_in_capitals_only_are_told():
    notes = odd_labels(np.array(["Adelie", "adelie", "Gentoo", "", "TBD"]))
    assert notes[0] == "labels 'Adelie' and 'adelie' are taken for classes of their own"
    assert notes[1].startswith("label 'TBD' (1 samples)")
    assert len(notes) == 2


@pytest.mark.usefixtures("no_pictures")
def test_old_classes_among_the_unlabelled_are_told(tmp_path, capsys):
    """Of well separated classes; new ones alone lie by themselves."""
    X, Y, _ = blob_problem(n=300)
    assert looks_mixed(among_old(X, Y)) == []
    some = np.where(np.random.default_rng(0).uniform(size=300) < 0.5, -1, Y)
    np.savez(tmp_path / "d.npz", X=X, y=some)
    command = ["discover", str(tmp_path / "d.npz"), "--out", str(tmp_path / "run"), "--new-classes", "2"]
    assert main([*command, *QUICK, "--unlabelled", "new", "--json"]) == 0
    assert "samples cannot be told from labelled ones" in json.loads(capsys.readouterr().out)["notes"][0]
    assert among_old(np.zeros((20, 4, 4)), np.where(np.arange(20) < 10, 0, -1)) == 0, "pictures are not asked"
    assert main(["show", str(tmp_path / "run")]) == 0  # not only when it was made
    assert "those of old ones will be wrong" in " ".join(capsys.readouterr().out.split())
    bare = {"network": "none", "method": "sscd", "expansion": "none", "unlabelled": "new"}
    with pytest.warns(DoubtfulData, match="cannot be told from labelled ones"):  # in Python, too
        model = ClassDiscovery(n_new_classes=2, **bare).fit(X, some)
    assert model.calibration_["among_old"] > 0.3
    kept = {"overall": 0.95, "calibration": {"calibrated": True, "accuracy": 1.0, "among_old": 0.37}}
    assert "if all are of new classes, but 37 of 100 look like labelled ones" in confidence_sentence(kept)


def test_categories_that_say_nothing_hide_no_classes():
    """Of 8 blobs in 5 numbers; a colour of 4 and a flag, at random, weigh no more than two numbers."""
    rng = np.random.default_rng(3)
    blobs = rng.integers(0, 8, 400)
    numbers = 4 * rng.normal(size=(8, 5))[blobs] + 0.5 * rng.normal(size=(400, 5))
    chance = np.eye(4)[rng.integers(0, 4, 400)], np.eye(2)[rng.integers(0, 2, 400)]
    X, y = np.concatenate([numbers, *chance], axis=1), np.where(blobs < 5, blobs, -1)
    mean, deviation = input_statistics(Inputs(X))
    np.testing.assert_allclose(mean[:5], numbers.mean(axis=0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(deviation[:5], numbers.std(axis=0), rtol=1e-4)
    np.testing.assert_allclose(deviation[5:], [1] * 4 + [0.5**0.5] * 2)
    assert among_old(X, y) < 0.1
    assert is_categorical(torch.from_numpy(X)).tolist() == [False] * 5 + [True] * 6


def test_classes_are_not_cut_by_a_category_that_says_nothing():
    """Of 8 blobs in 7 numbers; one of three places at random. It was all that was found: .65."""
    rng = np.random.default_rng(1)
    centres, truth = 2.2 * rng.normal(size=(8, 7)), np.repeat(np.arange(8), 80)
    numbers = centres[truth] + rng.normal(size=(640, 7))
    X = np.hstack([(numbers - numbers.mean(0)) / numbers.std(0), np.eye(3)[rng.integers(0, 3, 640)]])
    few = {"view_steps": 25, "head_steps": 50, "expansion": "none", "calibrate": False}
    model = ClassDiscovery(n_new_classes=3, random_state=0, **few).fit(X, np.where(truth < 5, truth, -1))
    assert clustering_accuracy(truth[truth >= 5], model.pseudo_labels_) > 0.95


def test_columns_of_two_values_are_notes_only_beside_more_that_varies():
    answers = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (200, 30)).astype(float))
    assert not is_categorical(answers).any(), "there is nothing else"
    assert not is_categorical(torch.cat([answers, torch.randn(200, 3)], dim=1)).any(), "they are most of it"
    beside = is_categorical(torch.cat([answers[:, :4] - 0.3, torch.randn(200, 3)], dim=1))
    assert beside.tolist() == [True] * 4 + [False] * 3, "1 apart, wherever they lie"
    coded = is_categorical(torch.cat([7 * answers[:, :4], torch.randn(200, 3)], dim=1))
    assert coded.tolist() == beside.tolist(), "whatever stands for yes and no"


@pytest.mark.parametrize("noise", [0, 50])
def test_columns_that_say_nothing_do_not_make_new_samples_look_old(noise):
    rng = np.random.default_rng(11)
    truth = np.repeat(np.arange(8), 80)
    X = np.hstack(
        [2 * rng.normal(size=(8, 8))[truth] + rng.normal(size=(640, 8)), rng.normal(size=(640, noise))]
    )
    assert among_old(X, np.where(truth < 5, truth, -1)) < 0.15
    half = np.where((truth < 5) & (rng.uniform(size=640) < 0.5), truth, -1)  # 45 of 100 unlabelled are old
    assert 0.3 < among_old(X, half) < 0.6


def test_flags_say_again_what_was_asked_for():
    given = {"label_column": "kind of", "fill": True, "drop": None, "label_weight": 3.0, "lead": "auto"}
    assert as_flags(given) == ["--label-column 'kind of'", "--fill", "--label-weight 3.0"]
    assert as_flags({"standardize": False, "calibrate": False}) == ["--no-standardize", "--no-calibrate"]


def test_a_class_that_looks_like_two_is_told(tmp_path, capsys):
    """Of well separated classes: two new ones asked for as one, and as they are."""
    X, Y, _ = blob_problem(n=300)

    def hints(k):
        run = str(ClassDiscovery(n_new_classes=k, **NOTHING).fit(X, Y).save(tmp_path / f"{k}"))
        assert main(["show", run, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["hints"]
        assert main(["show", run]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert ("hints" in shown) == bool(told)
        return told

    assert hints(1) == ["3 may be 2 classes"]
    assert hints(2) == []


def test_a_run_that_thinks_little_of_itself_says_so_when_it_predicts(tmp_path, capsys):
    model = ClassDiscovery(n_new_classes=2, network="none", method="sscd", expansion="none", random_state=0)
    X, Y, _ = blob_problem(n=300)
    np.save(tmp_path / "more.npy", X[:20])
    model.fit(X, Y)
    for sure, told in ((0.9, 0), (0.4, 1)):
        facts, run = {"calibrated": True, "accuracy": sure}, tmp_path / f"run{told}"
        confidence = np.where(model.given_, 1, sure).astype(np.float32)
        model.result_ = replace(model.result_, calibration=facts, confidence=confidence)
        model.save(run)
        command = ["predict", str(run), str(tmp_path / "more.npy"), "--out", str(tmp_path / f"{told}.csv")]
        assert main([*command, "--json"]) == 0
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert sum("expects only 40 of 100" in note for note in notes) == told
    assert main(["predict", str(run), str(tmp_path / "more.npy"), "--out", str(tmp_path / "p.json")]) == 2
    assert "is a CSV. Got p.json" in capsys.readouterr().err


@pytest.mark.usefixtures("no_pictures")
def test_a_category_of_a_run_stays_one_where_a_file_has_true_and_false_only(tmp_path):
    frame = pandas.DataFrame(X, columns=list("abcdef")).assign(flag="True", label=Y)
    frame.loc[::3, "flag"], frame.loc[1::3, "flag"] = "False", "maybe"
    frame.to_csv(tmp_path / "t.csv", index=False)
    run, out = str(tmp_path / "run"), str(tmp_path / "p.csv")
    assert main(["discover", str(tmp_path / "t.csv"), "--out", run, "--new-classes", "2", *QUICK]) == 0
    frame[frame["flag"] != "maybe"].to_csv(tmp_path / "more.csv", index=False)
    assert main(["predict", run, str(tmp_path / "more.csv"), "--out", out]) == 0
