"""The command line, as a user meets it: real processes, real files, real signals."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cdknet.cli import main

from contracts import blob_problem

X, Y, TRUTH = blob_problem(n=150)
FEW = ["--view-steps", "5", "--head-steps", "20", "--expand-epochs", "1", "--expand-steps", "9"]


@pytest.fixture
def npz(tmp_path):
    np.savez(tmp_path / "data.npz", X=X, y=Y)
    return tmp_path / "data.npz"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    np.savez(folder / "data.npz", X=X, y=Y)
    out = folder / "run"
    assert main(["discover", str(folder / "data.npz"), "--new-classes", "2", "--out", str(out), *FEW]) == 0
    return out


def complaint(capsys) -> str:
    err = capsys.readouterr().err
    assert err.count("\n") == 1, "one line and no traceback"
    assert err.startswith("cdknet: ")
    return err


def labels_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_has_its_labels_and_its_pictures(run):
    rows = labels_of(run / "labels.csv")
    assert len(rows) == 150
    assert {row["label"] for row in rows if row["given"] == "0"} == {"3", "4"}
    for name in ("map", "gallery", "history"):
        with Image.open(run / "pictures" / f"{name}.png") as picture:
            assert min(picture.size) > 200
    assert not run.with_name("run.partial").exists()


def test_prediction_goes_to_a_csv_with_the_samples_names(run, npz, tmp_path):
    out = tmp_path / "labels.csv"
    assert main(["predict", str(run), str(npz), "--out", str(out)]) == 0
    rows = labels_of(out)
    assert len(rows) == 150
    assert len({row["id"] for row in rows}) == 150
    assert np.mean([int(row["label"]) == y for row, y in zip(rows, Y, strict=True) if y >= 0]) > 0.9
    assert main(["predict", str(run), str(npz), "--out", str(out)]) == 2
    assert main(["predict", str(run), str(npz), "--out", str(out), "--force"]) == 0


def test_evaluation_matches_the_truth_by_name(run, tmp_path, capsys):
    truth = tmp_path / "truth.csv"
    rows = labels_of(run / "labels.csv")
    names = [("id", "label")] + [(row["id"], f"class {t}") for row, t in zip(rows, TRUTH, strict=True)]
    truth.write_text("".join(f"{a},{b}\n" for a, b in names))
    assert main(["evaluate", str(run), "--truth", str(truth), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["n_scored"] == result["n_unlabelled"] == 60
    assert result["scores"]["acc"] > 0.9
    assert main(["evaluate", str(run), "--truth", str(truth)]) == 0
    said = capsys.readouterr().out
    assert "purity" in said
    assert not result["calibrated"]  # there are three old classes
    assert "it only ranks" in said
    assert "calibration error" not in said
    assert result["n_contradicted"] == 0  # other names are no other classes
    assert result["classes"] == ["class 3", "class 4"]


def test_a_truth_of_other_samples_is_told(run, tmp_path, capsys):
    truth = tmp_path / "truth.csv"
    rows = labels_of(run / "labels.csv")
    truth.write_text("id,label\n" + "".join(f"{row['id']},{i % 12}\n" for i, row in enumerate(rows)))
    assert main(["evaluate", str(run), "--truth", str(truth), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["n_contradicted"] > 10
    assert result["classes"] == sorted(result["classes"], key=int), "9 before 10"
    assert main(["evaluate", str(run), "--truth", str(truth)]) == 0
    assert "is it of these samples?" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [("a,b\n1,2\n", "columns id and label"), ("id,label\n", "at least one"), ("id,label\nx,1\n", "no match")],
)
def test_a_useless_truth_is_named(run, tmp_path, capsys, content, message):
    (tmp_path / "truth.csv").write_text(content)
    assert main(["evaluate", str(run), "--truth", str(tmp_path / "truth.csv")]) == 2
    assert message in complaint(capsys)


@pytest.mark.slow
def test_the_demo_leaves_a_truth_that_fits_its_run_and_says_how_to_look_at_it(tmp_path, capsys, monkeypatch):
    from cdknet.cli import demo

    quick = {"method": "cd-knet", "pretrain_epochs": 1, "discover_epochs": 1, "expand_steps": 1}
    fit = demo.fit_digits
    monkeypatch.setattr(
        demo,
        "fit_digits",
        lambda problem, seed, watchers=(), **_: fit(problem, seed, watchers, **quick, calibrate=False),
    )
    monkeypatch.setattr("cdknet.runs.figures.map_2d", lambda z, seed=0: np.asarray(z[:, :2], np.float32))
    out = tmp_path / "demo-run"
    assert main(["demo", "--out", str(out)]) == 0
    assert f"cdknet explore {out} --truth {out}/truth.csv" in capsys.readouterr().out
    assert main(["evaluate", str(out), "--truth", str(out / "truth.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_show_says_what_is_there(run, capsys):
    assert main(["show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "of the others" in shown
    assert main(["show", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 150


@pytest.mark.usefixtures("no_pictures")
def test_csv_and_folders_of_images_go_in(tmp_path, capsys):
    table = [["id", *(f"x{i}" for i in range(6)), "label"]]
    table += [[f"s{i}", *x, "" if y < 0 else f"kind-{y}"] for i, (x, y) in enumerate(zip(X, Y, strict=True))]
    with (tmp_path / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows(table)
    generator = np.random.default_rng(0)
    for i in range(60):
        folder = tmp_path / "images" / ("unlabelled" if i % 4 > 1 else f"kind-{i % 4}")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = 60 * (i % 4) + generator.integers(0, 40, (12, 12))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    for name in ("table.csv", "images"):
        out = tmp_path / f"run-{name}"
        command = ["discover", str(tmp_path / name), "--new-classes", "2", "--out", str(out), *FEW]
        assert main(command) == 0, capsys.readouterr().err
        rows = labels_of(out / "labels.csv")
        assert {row["label"] for row in rows if row["given"] == "0"} <= {"new-1", "new-2"}
    assert labels_of(tmp_path / "run-table.csv" / "labels.csv")[7]["id"] == "s7"


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("colour", [False, True])
def test_other_photos_are_made_what_those_of_the_run_were(colour, tmp_path, capsys):
    generator = np.random.default_rng(0)

    def photos(folder, channels, side):
        folder.mkdir(parents=True)
        for i in range(20):
            pixels = 60 * (i % 4) + generator.integers(0, 40, (side, side, channels))
            Image.fromarray(pixels.astype(np.uint8).squeeze()).save(folder / f"{i}.png")
        return folder

    for name in ("a", "b", "unlabelled"):
        photos(tmp_path / "photos" / name, 3 if colour else 1, 12)
    others = photos(tmp_path / "others", 1 if colour else 3, 20)
    run, out = str(tmp_path / "run"), str(tmp_path / "labels.csv")
    few = [*FEW, "--image-size", "16", "--network", "mlp", "--no-calibrate", "--no-samples"]
    assert main(["discover", str(tmp_path / "photos"), "--new-classes", "2", "--out", run, *few]) == 0
    assert main(["predict", run, str(others), "--out", out]) == 0, capsys.readouterr().err
    assert len(labels_of(Path(out))) == 20
    again = ["report", run, "--data", str(tmp_path / "photos"), "--out", str(tmp_path / "report.html")]
    assert main(again) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["discover", "nothing.npz", "--out", "r", "--new-classes", "2"], "no such file"),
        (["tune", "{npz}", "--out", "r.json"], "--new-classes must say"),
        (["discover", "{npz}", "--out", "r", "--new-classes", "0"], "n_new_classes must be at least 1"),
        (["discover", "{npz}", "--out", "{npz}", "--new-classes", "2"], "must not exist yet"),
        (["discover", "{npz}", "--out", "r", "--new-classes", "2", "--resume"], "unfinished run to resume"),
        (["discover", "{npz}", "--out", "r", "--new-classes", "x"], "Invalid value for '--new-classes'"),
        (["discover", "{npz}", "--out", "r", "--new-classes", "2", "--expansion", "most"], "must be one of"),
        (["show", "nowhere"], "must be a cdknet run folder"),
        (["predict", "nowhere", "{npz}", "--out", "l.csv"], "must be a cdknet run folder"),
        (["surprise"], "No such command"),
        (["discovr"], "Did you mean 'discover'? Try:"),
        (["discover", "{npz}", "--out", "{run}", "--new-classes", "2", "--resume"], "nothing to resume"),
        (["discover", "mnits", "--out", "r"], "Did you mean the set 'mnist'"),
        (["discover", "{npz}", "--out", "r", "--new-classes", "2", "--device", "cuda:99"], "and be there"),
        (["evaluate", "{npz}", "--truth", "nowhere.csv"], "no such file"),
        (["show"], "Missing argument"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(arguments, message, run, npz, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main([a.format(npz=npz, run=run) for a in arguments]) == 2
    assert message in complaint(capsys)
    assert not Path("r.partial").exists(), "nothing to resume, nothing in the way"


def test_the_version_can_be_asked(capsys):
    from cdknet import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"cdknet {__version__}\n"


def test_every_option_has_a_flag(capsys):
    from cdknet.options import METHODS, all_options, options_of

    for method in METHODS:
        asked = [] if method == "cd-knet+" else ["--method", method]
        assert main(["discover", *asked, "--help"]) == 0
        # Long names are truncated in narrow terminals: the first letters are enough to find them.
        shown = [part[:12] for part in capsys.readouterr().out.split() if part.startswith("--")]
        flags = {name: f"--{name.replace('_', '-')}"[:12] for name in all_options()}
        flags["n_new_classes"] = "--new-classe"
        read = {flags[name] for name in options_of(method)}
        assert read <= set(shown)
        assert not (set(flags.values()) - read) & set(shown), "only what the method reads"


def test_help_imports_nothing_heavy():
    code = "import sys; from cdknet.cli import main; main(['--help']); print(sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = out.splitlines()[-1]
    for heavy in ("torch", "sklearn", "scipy", "matplotlib", "PIL", "pandas"):
        assert f"'{heavy}'" not in loaded


# Kills


def arguments(npz: Path, out: Path, method: str) -> list[str]:
    epochs = ["--pretrain-epochs", "40", "--discover-epochs", "25", "--expand-epochs", "40"]
    steps = ["--view-steps", "20", "--head-steps", "20", "--expand-steps", "0"]
    on = ["--method", method, "--no-early-stopping", "--turn-tolerance", "0"]
    return ["discover", str(npz), "--new-classes", "2", "--out", str(out), *epochs, *steps, *on]


def start(npz: Path, out: Path, method: str) -> "subprocess.Popen[str]":
    """A process that saves a checkpoint after every epoch."""
    return subprocess.Popen(
        [sys.executable, "-m", "cdknet.cli", *arguments(npz, out, method)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "CDKNET_CHECKPOINT_SECONDS": "0"},
    )


def result(out: Path) -> dict[str, bytes]:
    return {
        name: (out / name).read_bytes() for name in ("weights.safetensors", "labels.csv", "embedding.npz")
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    np.savez(folder / "data.npz", X=X, y=Y)
    runs = {}
    for method in ("cd-knet", "cd-knet+"):
        assert main(arguments(folder / "data.npz", folder / method, method)) == 0
        runs[method] = result(folder / method)
    return folder / "data.npz", runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "stage", "how"),
    [
        ("cd-knet", "pretrain", signal.SIGKILL),
        ("cd-knet", "discover", signal.SIGKILL),
        ("cd-knet+", "discover", signal.SIGKILL),
        ("cd-knet+", "expand", signal.SIGKILL),
        ("cd-knet+", "discover", signal.SIGINT),
    ],
)
def test_a_run_killed_in_any_stage_resumes_to_the_same_result(
    method, stage, how, tmp_path, uninterrupted, capsys
):
    npz, whole = uninterrupted[0], uninterrupted[1][method]
    out = tmp_path / "run"
    process = start(npz, out, method)
    checkpoint = tmp_path / "run.partial" / f"{stage}.safetensors"
    deadline = time.monotonic() + 120
    while not checkpoint.exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(how)
    stderr = process.communicate()[1]
    assert not out.exists(), "the kill came before the end"
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "Add --resume to continue" in stderr
        assert "Traceback" not in stderr
    assert main(arguments(npz, out, method)) == 2
    assert "Use --resume to continue" in complaint(capsys)
    assert main([*arguments(npz, out, method), "--resume"]) == 0, capsys.readouterr().err
    for name, (ours, theirs) in {name: (result(out)[name], whole[name]) for name in whole}.items():
        assert ours == theirs, name
    assert not checkpoint.parent.exists()


def test_class_names_and_notes_are_text_and_nothing_else(tmp_path, capsys):
    """No formula to matplotlib, no markup to the terminal."""
    from cdknet.cli.base import say
    from cdknet.runs.figures import draw_gallery, draw_map

    names = np.array(["20% off $10 or $5", "$5_$10", "_hidden", "[red]"])
    labels, points = np.repeat(names, 5), np.random.default_rng(0).normal(size=(20, 2))
    for picture in (
        draw_map(points, labels, names, 2),
        draw_gallery(np.zeros((20, 4, 4)), labels, np.ones(20), names),
    ):
        assert picture.startswith(b"\x89PNG")
    say("left out: b[/x].txt [red]", quiet=False)
    assert "left out: b[/x].txt [red]" in capsys.readouterr().err


def test_the_picture_of_a_training_shows_every_term(monkeypatch):
    """Those below 0, and those that end before the last epoch."""
    from matplotlib.axes import Axes

    from cdknet.runs.figures import draw_history

    drawn = {}

    def plot(axes, x, y, *, label, **rest):
        drawn[label] = np.asarray(y)
        return plainly(axes, x, y, label=label, **rest)

    plainly = Axes.plot
    monkeypatch.setattr(Axes, "plot", plot)
    rows = [{"stage": "discover", "epoch": 1, "seconds": 1.0, "labels": -4.0, "views": 0.5}]
    rows += [
        {"stage": "discover", "epoch": e, "seconds": 1.0, "views": 0.5, "heads": -3.0 / e} for e in (2, 3)
    ]
    assert draw_history([*rows, {"stage": "calibrate", "epoch": 1, "seconds": 1.0, "accuracy": 1.0}])
    assert list(drawn) == ["labels, -4 to -4", "views, 0.5 to 0.5", "heads, -1.5 to -1"]
    np.testing.assert_allclose(drawn["heads, -1.5 to -1"][1:], [-1, -2 / 3])


@pytest.mark.parametrize(
    ("asked", "threads"), [("3", 3), ("2,1", 2), ("", None), ("many", None), ("0", None)]
)
def test_a_map_is_drawn_with_the_threads_that_were_asked_for(asked, threads, monkeypatch):
    from cdknet.runs.figures import _threads

    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert _threads() == threads or (threads is None and _threads() in (1, 2))


def test_every_embedding_has_a_map():
    from cdknet.runs.figures import map_2d

    some = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    line, alike = some[:, :1], np.ones_like(some)
    for features in (some, line, alike, alike + 1e-30 * some, np.repeat(line, 3, axis=1)):
        places = map_2d(features)
        assert places.shape == (40, 2)
        assert np.isfinite(places).all()


def test_a_download_that_fails_gives_the_cursor_back(monkeypatch):
    from rich.progress import Progress

    from cdknet.cli.base import download_bar

    stopped = []
    monkeypatch.setattr(Progress, "stop", lambda bars: (stopped.append(bars), bars.live.stop()))

    def download(done, total):
        with download_bar() as progress:
            progress("file", done, total)
            raise OSError("cut off")

    for done, total in ((1, 9), (1, None), (9, 9)):
        with pytest.raises(OSError, match="cut off"):
            download(done, total)
    assert len(stopped) == 3
    with download_bar():
        pass
    assert len(stopped) == 3, "nothing was downloaded"


def test_flags_about_files_do_not_go_with_a_set_by_name(tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main(["discover", "digits", "--labels", "x.csv", "--out", out]) == 2
    assert "--labels is about files. Got it with the set 'digits'" in capsys.readouterr().err


def test_forcing_a_run_costs_nothing_before_its_data_are_read(tmp_path, capsys):
    (tmp_path / "run.partial").mkdir()
    (tmp_path / "run.partial" / "job.json").write_text("{}")
    args = ["discover", str(tmp_path / "mistyped.npz"), "--new-classes", "2", "--out", str(tmp_path / "run")]
    assert main([*args, "--force"]) == 2
    assert (tmp_path / "run.partial" / "job.json").exists()


def test_forcing_a_run_removes_unfinished_runs_alone(npz, tmp_path, capsys):
    unfinished = tmp_path / "run.partial"
    args = ["discover", str(npz), "--new-classes", "2", "--out", str(tmp_path / "run"), "--force"]
    unfinished.mkdir()
    (unfinished / "job.json").write_text("{}")
    assert main([*args, "--label-weight", "-3"]) == 2
    assert "label_weight" in complaint(capsys)
    assert (unfinished / "job.json").exists(), "the options were wrong"
    (unfinished / "job.json").rename(unfinished / "thesis.tex")
    assert main([*args, *FEW]) == 2
    assert "must be an unfinished run to be replaced" in complaint(capsys)
    assert (unfinished / "thesis.tex").exists()
