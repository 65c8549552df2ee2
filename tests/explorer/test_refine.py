"""Refining: a refined run knows the reviewed classes; and the export and report of a review."""

import base64
import csv
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from cdknet import ClassDiscovery
from cdknet.cli import main
from cdknet.explorer import report
from cdknet.explorer.folder import open_run
from cdknet.explorer.session import Session
from cdknet.fit.refine import refine
from cdknet.runs.format import read_config, read_run

from runmaker import make_run

DIGITS = load_digits()
ROWS = np.flatnonzero(DIGITS.target < 5)[:400]
X, TRUTH = DIGITS.images[ROWS].astype(np.float32), DIGITS.target[ROWS]
Y = np.where(TRUTH < 3, TRUTH, -1)
QUICK = {
    "n_new_classes": 2,
    "network": "mlp",
    "method": "cd-knet",
    "pretrain_epochs": 4,
    "discover_epochs": 3,
    "expand_epochs": 5,
    "expand_steps": 40,
    "calibrate": False,
    "random_state": 0,
}


@pytest.fixture(scope="module")
def model():
    return ClassDiscovery(**QUICK).fit(X, Y)


@pytest.fixture(autouse=True)
def quick_map(monkeypatch):
    monkeypatch.setattr("cdknet.runs.figures.map_2d", lambda z, seed=0: np.asarray(z[:, :2], np.float32))


@pytest.fixture
def run(model, tmp_path):
    return model.save(tmp_path / "run")


def review(run, *actions):
    session = Session(open_run(run))
    for action in actions:
        session.act(session.revision, action)
    return session


def npz(folder):
    np.savez(folder / "data.npz", X=X)
    return folder / "data.npz"


def test_a_saved_model_stores_its_samples(model, run, tmp_path):
    np.testing.assert_array_equal(np.load(run / "samples.npy"), X)
    assert read_run(run).samples.dtype == np.float32
    again = ClassDiscovery.load(run).save(tmp_path / "again")
    assert (again / "samples.npy").read_bytes() == (run / "samples.npy").read_bytes()
    bare = model.save(tmp_path / "bare", samples=False)
    assert not (bare / "samples.npy").exists()
    assert open_run(bare).samples is None


@pytest.mark.usefixtures("no_pictures")
def test_samples_can_be_left_out_of_a_run_and_passed_again_later(tmp_path, capsys):
    from cdknet.cli.review import _session

    data, out = tmp_path / "data.npz", tmp_path / "run"
    np.savez(data, X=X.reshape(len(X), -1), y=Y)
    few = ["--method", "cd-knet", "--pretrain-epochs", "1", "--discover-epochs", "1", "--expand-steps", "5"]
    command = ["discover", str(data), "--new-classes", "2", "--out", str(out), *few]
    assert main([*command, "--no-samples"]) == 0, capsys.readouterr().err
    assert not (out / "samples.npy").exists()
    assert not _session(out, None, None, {}).about()["has_samples"]
    session = _session(out, None, str(data), {})
    assert session.sample(3)["values"][20][1] == X[3].ravel()[20]
    assert main(["refine", str(out), "--out", str(tmp_path / "run2"), "--data", str(data)]) == 0
    assert (tmp_path / "run2" / "samples.npy").exists(), "from here on they are stored"


def test_samples_of_another_file_are_refused(run, model, tmp_path, capsys):
    """They have the same shape and ids; only the values differ."""
    other = X[::-1].copy()
    bare = model.save(tmp_path / "bare", samples=False)
    for folder in (run, bare):
        assert open_run(folder, samples=X.astype(np.float64)).samples is not None, (
            "in float32 they are the same"
        )
        with pytest.raises(ValueError, match="other values"):
            open_run(folder, samples=other)
        with pytest.raises(ValueError, match="other values"):
            refine(folder, tmp_path / "x", samples=other)
    again = ClassDiscovery.load(bare).save(tmp_path / "again")
    with pytest.raises(ValueError, match="other values"):
        open_run(again, samples=other)
    older = json.loads((bare / "config.json").read_text())
    del older["samples_digest"]
    (bare / "config.json").write_text(json.dumps(older))
    assert open_run(bare, samples=other).samples is not None, "an older run has no digest to compare"
    data, wrong = tmp_path / "data.npz", tmp_path / "wrong.npz"
    np.savez(data, X=X.reshape(len(X), -1), y=Y)
    np.savez(wrong, X=other.reshape(len(X), -1))
    few = ["--method", "cd-knet", "--pretrain-epochs", "1", "--discover-epochs", "1", "--expand-steps", "5"]
    command = ["discover", str(data), "--new-classes", "2", "--out", str(tmp_path / "cli"), *few]
    assert main([*command, "--no-samples", "--no-calibrate"]) == 0
    capsys.readouterr()
    assert main(["explore", str(tmp_path / "cli"), "--data", str(wrong), "--no-browser"]) == 2
    assert "other values" in capsys.readouterr().err


def test_samples_that_are_too_large_are_left_out(model, tmp_path, monkeypatch):
    monkeypatch.setattr("cdknet.discoverer.storable", lambda X: None)
    assert not (model.save(tmp_path / "run") / "samples.npy").exists()


def test_a_refined_run_predicts_the_reviewed_names(run, tmp_path, capsys):
    """Discover, review, refine, predict: the whole loop, through the command line."""
    found = {t: int(np.bincount(open_run(run).assignment[t == TRUTH]).argmax()) for t in (3, 4)}
    assert set(found.values()) == {3, 4}, "each new digit has its own class"
    review(
        run,
        {"kind": "rename", "class": found[3], "name": "three"},
        {"kind": "rename", "class": found[4], "name": "four"},
        {"kind": "rename", "class": 0, "name": "zero"},
        {"kind": "note", "class": found[3], "text": "looks right"},
        {"kind": "reject", "samples": [1, 2]},
    )
    assert main(["refine", str(run), "--out", str(tmp_path / "run2"), "--json"]) == 0, capsys.readouterr().err
    assert (
        main(["predict", str(tmp_path / "run2"), str(npz(tmp_path)), "--out", str(tmp_path / "l.csv")]) == 0
    )
    with (tmp_path / "l.csv").open(newline="") as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    true = np.array(["zero", "1", "2", "three", "four"])[TRUTH]
    assert np.mean(labels == true) > 0.9
    again = Session(open_run(tmp_path / "run2"))
    state = again.state()
    assert {c["id"]: c["name"] for c in state["classes"]} == {
        0: "zero", 1: "1", 2: "2", found[3]: "three", found[4]: "four",
    }  # fmt: skip
    assert state["rejected"] == 2
    assert state["classes"][found[3]]["note"] == "looks right"
    assert "refine" in {row["stage"] for row in again.run.history}
    assert not (tmp_path / "run2.partial").exists()


def test_classes_keep_their_ids_through_splits_merges_and_a_second_round(run, tmp_path, no_pictures):
    session = review(
        run,
        {"kind": "merge", "classes": [3, 4], "into": 3},
        {"kind": "split", "class": 3, "k": 2},
        {"kind": "move", "samples": np.flatnonzero(Y == 0)[:20].tolist(), "to": None, "name": "odd zeros"},
    )
    assert list(session.journal.review.classes) == [0, 1, 2, 3, 5, 6]
    refine(run, tmp_path / "run2")
    assert read_config(tmp_path / "run2")["class_ids"] == [0, 1, 2, 3, 5, 6]
    before, after = session.labels(), Session(open_run(tmp_path / "run2")).labels()
    for column in ("id", "label", "class", "kind", "given", "rejected"):
        assert before[column] == after[column], column
    session = review(tmp_path / "run2", {"kind": "move", "samples": [0], "to": None})
    assert list(session.journal.review.classes)[-1] == 7, "4 was merged away and its id is not used again"
    loaded = ClassDiscovery.load(tmp_path / "run2")
    assert loaded.classes_.tolist() == ["0", "1", "2", "3", "3 (2)", "odd zeros"]
    assert set(loaded.predict(X)) <= set(loaded.classes_)


def test_class_names_stay_whole_numbers_if_all_are(run, tmp_path, no_pictures):
    review(run, {"kind": "rename", "class": 3, "name": "7"})
    refine(run, tmp_path / "run2")
    assert ClassDiscovery.load(tmp_path / "run2").classes_.tolist() == [0, 1, 2, 7, 4]


def test_a_resumed_refinement_gives_the_same_result(run, tmp_path, no_pictures):
    review(run, {"kind": "rename", "class": 3, "name": "x"})

    def stop(row):
        if row["epoch"] == 3:
            raise KeyboardInterrupt

    refine(run, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        refine(run, tmp_path / "run2", watchers=[stop])
    assert (tmp_path / "run2.partial" / "job.json").exists()
    rows = []
    refine(run, tmp_path / "run2", watchers=[rows.append])
    assert rows[0]["epoch"] == 3, "epochs 1 and 2 were saved"
    for name in ("weights.safetensors", "labels.csv", "samples.npy"):
        assert (tmp_path / "run2" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_refinement_of_an_older_review_is_started_again(run, tmp_path, no_pictures):
    def stop(row):
        if row["epoch"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        refine(run, tmp_path / "run2", watchers=[stop])
    review(run, {"kind": "rename", "class": 3, "name": "x"})
    rows = []
    refine(run, tmp_path / "run2", watchers=[rows.append])
    assert rows[0]["epoch"] == 1


@pytest.mark.parametrize("job", ['{"seed": 0}', '{"kind": "refine", "run": "another"}', "[]", None])
def test_the_unfinished_folder_of_another_job_is_not_touched(job, run, tmp_path, no_pictures):
    left = tmp_path / "big.partial" / ("notes.txt" if job is None else "job.json")
    left.parent.mkdir()
    left.write_text(job or "")
    with pytest.raises(ValueError, match="must be an unfinished refinement of"):
        refine(run, tmp_path / "big", force=True)
    assert left.read_text() == (job or "")


@pytest.mark.parametrize("expansion", ["none", "last", "all"])
def test_every_kind_of_model_can_be_refined(expansion, tmp_path, no_pictures):
    quick = {**QUICK, "expansion": expansion, "discover_epochs": 1}
    run = ClassDiscovery(**quick).fit(X, Y).save(tmp_path / "run")
    review(run, {"kind": "move", "samples": np.flatnonzero(TRUTH == 1).tolist(), "to": None, "name": "ones"})
    refine(run, tmp_path / "run2")
    loaded = ClassDiscovery.load(tmp_path / "run2")
    assert np.mean(loaded.predict(X[TRUTH == 1]) == "ones") > 0.8


def test_runs_that_cannot_be_refined_say_why(run, model, tmp_path, capsys):
    bare = model.save(tmp_path / "bare", samples=False)

    def error_of(*arguments):
        assert main([*map(str, arguments)]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        return err

    assert "--data" in error_of("refine", bare, "--out", tmp_path / "x")
    assert "must not exist yet" in error_of("refine", run, "--out", bare)
    assert "must be a cdknet run folder" in error_of("refine", tmp_path / "no", "--out", tmp_path / "x")
    damaged = bytearray((run / "samples.npy").read_bytes())
    damaged[-3] ^= 1
    (run / "samples.npy").write_bytes(damaged)
    assert "SHA-256" in error_of("refine", run, "--out", tmp_path / "x")
    review(
        bare,
        {"kind": "mark_old", "class": 3, "old": 0},
        {"kind": "mark_old", "class": 4, "old": 1},
    )
    data = ["--data", npz(tmp_path)]
    message = error_of("refine", bare, "--out", tmp_path / "x", *data)
    assert "at least one new class" in message, "ids of a file are like row 0, those of an older run like 0"
    with pytest.raises(ValueError, match="at least one new class"):
        refine(bare, tmp_path / "x", samples=X)
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "x.partial").exists()


@pytest.mark.slow
def test_the_page_can_start_and_follow_a_refinement(run, tmp_path):
    import time

    from servermaker import Serving

    review(run, {"kind": "rename", "class": 3, "name": "three"})
    with Serving(run) as client:
        headers = {"X-Cdknet-Token": client.token, "Content-Type": "application/json"}
        assert client.raw("POST", "/api/refine", '{"out": "run2"}', headers)[0] == 202
        assert client.post("/api/refine", {"out": "run3"}, 422)["error"].startswith("One refinement")
        stages, shares = set(), []
        deadline = time.monotonic() + 120
        while (status := client.json("/api/refine"))["state"] == "running":
            stages.add(status["stage"])
            shares.append(status["share"])
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert status["state"] == "done", status["error"]
        assert "refine" in stages
        assert shares == sorted(shares), "it never decreases"
        assert status["free"] == "run-refined"
    assert "three" in ClassDiscovery.load(tmp_path / "run2").classes_


def test_an_impossible_refinement_is_refused_before_it_starts(model, tmp_path):
    from servermaker import Serving

    with Serving(model.save(tmp_path / "my run", samples=False)) as client:
        assert "--data" in client.post("/api/refine", {"out": "run2"}, 422)["error"]
        assert client.json("/api/refine")["state"] == "idle"
        assert client.json("/api/refine")["free"] == "my-run-refined"
        (tmp_path / "my-run-refined").mkdir()
        (tmp_path / "my-run-refined-2").mkdir()
        assert client.json("/api/refine")["free"] == "my-run-refined-3"
    assert [path.name for path in tmp_path.glob("run2*")] == []


def test_a_refinement_that_fails_to_start_says_so_and_can_be_tried_again(tmp_path, monkeypatch):
    import time

    from cdknet.explorer.refining import Refining

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    refining = Refining(make_run(tmp_path / "run"), X)
    for name in ("a", "b"):
        refining.start(name)
        deadline = time.monotonic() + 20
        while (status := refining.status())["state"] == "running":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert status["state"] == "failed"
        assert "No space left on device" in status["error"]


def test_a_refinement_interrupted_before_writing_leaves_no_run(model, tmp_path):
    """The run is written after the last moment at which it can be interrupted."""
    run = model.save(tmp_path / "run")
    review(run, {"kind": "rename", "class": 3, "name": "x"})

    class AtTheEnd:
        def progress(self, stage, done, total):
            if stage == "map" and done == total:
                raise KeyboardInterrupt

        def __call__(self, row):
            return None

    with pytest.raises(KeyboardInterrupt):
        refine(run, tmp_path / "run2", watchers=[AtTheEnd()])
    assert not (tmp_path / "run2").exists()
    refine(run, tmp_path / "run2")


@pytest.mark.slow
def test_the_page_can_refine_a_run_whose_samples_were_passed_again(model, tmp_path):
    import time

    from cdknet.explorer.refining import Refining

    refining = Refining(model.save(tmp_path / "bare", samples=False), X)
    refining.start("run2")
    deadline = time.monotonic() + 120
    while (status := refining.status())["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert status["state"] == "done", status["error"]
    np.testing.assert_array_equal(np.load(tmp_path / "run2" / "samples.npy"), X)


# Export and report


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_the_export_command_writes_the_reviewed_labels(format, tmp_path, capsys):
    run = make_run(tmp_path / "run")
    review(run, {"kind": "rename", "class": 3, "name": "x"}, {"kind": "reject", "samples": [0]})
    out = tmp_path / f"labels.{format}"
    assert main(["export", str(run), "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "samples": 300, "rejected": 1}
    assert out.stat().st_size > 1000
    assert main(["export", str(run), "-o", str(out)]) == 2
    assert main(["export", str(run), "-o", str(tmp_path / "labels.xlsx")]) == 2
    assert "must be one of csv, parquet, json" in capsys.readouterr().err


def embedded(page: bytes) -> dict:
    text = page.decode()
    found = re.search(r'<script type="application/json" id="cdknet-report">(.*?)</script>', text, re.S)
    return json.loads(found[1])


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """A small page like the one that the front end builds."""
    static = tmp_path / "static"
    static.mkdir()
    (static / "index.html").write_text(
        '<!doctype html><html><head><meta charset="utf-8"><link rel="icon" href="static/x.svg">'
        '<link rel="stylesheet" href="static/app.css"><script defer src="static/app.js"></script></head>'
        "<body><main></main><!--report--></body></html>"
    )
    (static / "app.js").write_text('console.log("</script><!--")')
    (static / "app.css").write_text("main { color: red }")
    monkeypatch.setattr(report, "STATIC", static)


def test_a_report_is_one_page_that_contains_everything(bundle, tmp_path):
    ids = ["</script><script>alert(1)</script>", "\u2028", *(f"row {i}" for i in range(298))]
    run = make_run(tmp_path / "run", ids=ids)
    session = review(run, {"kind": "rename", "class": 3, "name": "<img src=x onerror=alert(1)>"})
    page = report.report_html(session)
    data = embedded(page)
    assert data["ids"] == ids
    assert data["run"]["read_only"] is True
    assert data["state"]["classes"] == session.state()["classes"]
    assert data["classes"]["3"] == session.class_card(3)
    assert base64.b64decode(data["map"]) == session.map_bytes()
    assert base64.b64decode(data["assignment"]) == session.assignment_bytes()[0]
    thumbs = data["thumbs"]
    assert thumbs["samples"] == list(range(300))
    with Image.open(io.BytesIO(base64.b64decode(thumbs["png"]))) as sprite:
        size, columns = thumbs["size"], thumbs["columns"]
        assert sprite.size == (columns * size, -(-300 // columns) * size)
        x, y = 77 % columns * size, 77 // columns * size
        cell = np.asarray(sprite.convert("L").crop((x, y, x + size, y + size)), dtype=float)
    drawn = np.asarray(session.drawer.thumbnail(77, size), dtype=float)
    assert np.abs(cell - drawn).max() <= 255 / 30 + 1, "to the nearest of 16 greys"
    text = page.decode()
    assert text.count("<script") == 2, "data and code, nothing from a name"
    assert "onerror=alert" not in re.sub(r"id=\"cdknet-report\">.*?</script>", "", text, flags=re.S)
    assert "src=" not in re.sub(r"<script.*", "", text, flags=re.S)
    assert "<link" not in text
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "unsafe" not in policy
    assert policy.count("sha256-") == 2


def test_a_report_stays_within_its_size(bundle, tmp_path):
    session = Session(open_run(make_run(tmp_path / "run", n=2000)))
    whole, small = (report.report_html(session, largest=size) for size in (4_700_000, 120_000))
    assert len(small) <= 120_000 < len(whole)
    shown = set(embedded(small)["thumbs"]["samples"])
    assert len(shown) < 2000
    cards = embedded(small)["classes"].values()
    assert {i for card in cards for i in card["central"]} <= shown, "cards keep their pictures"
    bare = Session(open_run(make_run(tmp_path / "bare", samples=False)))
    assert embedded(report.report_html(bare))["thumbs"] is None


def test_the_report_command(bundle, tmp_path, capsys):
    run = make_run(tmp_path / "run", kind="radio", n=60)
    out = tmp_path / "report.html"
    assert main(["report", str(run), "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == out.stat().st_size
    assert main(["report", str(run), "-o", str(out)]) == 2
    assert main(["report", str(run), "-o", str(out), "--force"]) == 0


def test_names_of_folders_need_not_be_utf_8(bundle, tmp_path, capsys):
    odd = os.fsdecode(b"caf\xe9")
    options = {"expansion": "last", "label_weight": 1.0, "method": "cd-knet"}
    run = make_run(tmp_path / odd, n=60, options=options)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "source": f"/data/{odd}.npz"}))
    about = Session(open_run(run)).about()
    assert (about["name"], about["source"]) == ("caf?", "caf?.npz")
    assert main(["show", str(run)]) == 0
    assert "caf?.npz" in capsys.readouterr().out
    assert main(["report", str(run), "-o", str(tmp_path / f"{odd}.html")]) == 0


def test_the_source_of_a_run_is_valid_text(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    np.savez(folder / "x.npz", X=X, y=Y)
    given = ["--new-classes", "2", "--network", "none", "--method", "sscd", "--expansion", "none"]
    given += ["--no-calibrate", "--no-samples"]
    assert main(["discover", str(folder / "x.npz"), "--out", str(tmp_path / "run"), *given]) == 0
    assert read_config(tmp_path / "run")["source"].endswith("caf?/x.npz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explore", "nowhere"], "must be a cdknet run folder"),
        (["explore", "{run}/labels.csv"], "Got a file"),
        (["explore", "{run}", "--truth", "nowhere.csv"], "no such file"),
        (["explore", "{run}", "--host", "203.0.113.7", "--no-browser"], "a free address"),
        (["explore", "{run}", "--port", "70000"], "--port"),
        (["explore", "{run}", "--data", "nowhere.npz"], "no such file"),
        (["report", "{run}", "-o", "no/such/folder/r.html"], "a folder that exists"),
        (["export", "nowhere", "-o", "x.csv"], "must be a cdknet run folder"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "run", n=40)
    assert main([a.format(run=run) for a in arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err


def test_a_missing_extra_is_reported(tmp_path):
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'fastapi' else real(name, *a)\n"
        "from cdknet.cli import main; sys.exit(main(['explore', sys.argv[1]]))"
    )
    run = make_run(tmp_path / "run", n=40)
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "cdknet: The explorer needs fastapi. Install with: pip install 'cdknet[web]'\n"


def test_opening_a_run_needs_neither_torch_nor_scikit_learn(tmp_path):
    code = (
        "import sys; import cdknet.explorer.server; from cdknet.explorer.session import Session\n"
        "from cdknet.explorer.folder import open_run; Session(open_run(sys.argv[1])).state()\n"
        "print([m for m in ('torch', 'sklearn', 'scipy', 'matplotlib') if m in sys.modules])"
    )
    run = make_run(tmp_path / "run", n=40)
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_refined_run_remembers_how_its_table_was_read(run, tmp_path, no_pictures):
    reading = {"dropped": ["note"], "fills": {"a": 1.5}, "label_column": "species", "id_column": "name"}
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | reading))
    review(run, {"kind": "rename", "class": 3, "name": "three"})
    refine(run, tmp_path / "run2")
    assert read_config(tmp_path / "run2").items() >= reading.items()
