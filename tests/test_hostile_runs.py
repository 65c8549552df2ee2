"""Malformed run folders: every command says one line about them and exits with 2."""

import hashlib
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from cdknet.cli import main
from cdknet.explorer.folder import open_run
from cdknet.explorer.session import Session
from cdknet.runs.files import npz_bytes, read_npz
from cdknet.runs.format import read_run, write_run
from cdknet.runs.schema import STEPS, VERSION, filled

from runmaker import make_run

REAL = Path(__file__).parent / "runs" / "0.1.0" / "tuned"


def listed(run, name, content):
    """Replace a file of a run, with the size and the sum that config.json states."""
    (run / name).write_bytes(content)
    config = json.loads((run / "config.json").read_text())
    config["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (run / "config.json").write_text(json.dumps(config))


def config(**changes):
    def change(run):
        held = json.loads((run / "config.json").read_text())
        for path, value in changes.items():
            place, *rest = path.split("__")
            inside = held
            while rest:
                inside, place = inside[int(place) if place.isdigit() else place], rest.pop(0)
            inside[int(place) if place.isdigit() else place] = value
        (run / "config.json").write_text(json.dumps(held))

    return change


def csv(change):
    return lambda run: listed(run, "labels.csv", change((run / "labels.csv").read_text()).encode())


def history(*lines):
    return lambda run: listed(run, "history.jsonl", ("\n".join(lines) + "\n").encode())


def embedding(change):
    def apply(run):
        arrays = read_npz((run / "embedding.npz").read_bytes())
        listed(run, "embedding.npz", npz_bytes(change(arrays)))

    return apply


def weights(change):
    def apply(run):
        listed(run, "weights.safetensors", save(change(load((run / "weights.safetensors").read_bytes()))))

    return apply


def scaled(by):
    return embedding(
        lambda a: {**a, "features": a["features"] / np.abs(a["features"]).max() * np.float32(by)}
    )


BROKEN = {
    "tuning of text": config(tuning="x"),
    "tuning of numbers": config(tuning={"options": 7}),
    "what was tried": config(tuning__tried=[{}]),
    "what was tried, in figures": config(tuning__tried__0__mean="high"),
    "options of a list": config(options=[]),
    "an option of a list": config(options__kernel=[]),
    "an option of NaN": config(options__learning_rate=math.nan),
    "an option without a meaning": config(options__kernel="salt"),
    "confidence of text": config(confidence="high"),
    "confidence beyond 1": config(confidence__overall=7),
    "calibration of nothing": config(confidence__calibration=None),
    "calibrated without a figure": config(confidence__calibration={"calibrated": True}),
    "notes of numbers": config(notes=[1]),
    "notes of text": config(notes="x"),
    "mixture of nothing": config(mixture={}),
    "an interval of one": config(
        mixture={"share": 0.5, "interval": [0], "spies": 1, "old": 1, "new": 1, "noise": 0}
    ),
    "a large class id": config(class_ids=[0, 1, 2, 3, 4, 5, 6, 7, 70000]),
    "a negative class id": config(class_ids=[-1, 1, 2, 3, 4, 5, 6, 7, 8]),
    "a class id of text": config(class_ids=list("012345678")),
    "a next id beyond all": config(next_class_id=70000),
    "a renamed class": config(classes__7=99),
    "a class of a list": config(classes__7=[]),
    "classes of both kinds": config(classes__7="7"),
    "classes of half a character": config(classes=[f"\ud800{i}" for i in range(9)]),
    "an infinite seed": config(seed=math.inf),
    "a seed of a fraction": config(seed=0.5),
    "a seed of true": config(seed=True),
    "a shape of text": config(blueprint__sample_shape="66"),
    "a shape of nothing": config(blueprint__sample_shape=[0]),
    "a vast shape": config(blueprint__sample_shape=[2**62, 2]),
    "another architecture": config(blueprint__architecture="paper"),
    "no features in the network": config(blueprint__feature_size=-1),
    "columns of numbers": config(columns=[1]),
    "a source of a list": config(source=[]),
    "spent in text": config(spent={"discover": "long"}),
    "versions of lists": config(versions={"torch": []}),
    "a vast number": config(scale=10**400),
    "a scale below 0": config(scale=-1.0),
    "files of a list": config(files=[]),
    "no version": config(version=None),
    "a version of true": config(version=True),
    "labels without a header": csv(lambda text: text.partition("\n")[2]),
    "an unknown label": csv(lambda text: text.replace(",7,", ",zebra,", 1)),
    "a short row": csv(lambda text: text.replace("row 3,", "", 1)),
    "no row": csv(lambda text: text.partition("\n")[0] + "\n"),
    "one row less": csv(lambda text: text.rstrip("\n").rpartition("\n")[0] + "\n"),
    "history of null": history("null"),
    "history of nothing": history("{}"),
    "history of a list": history('{"stage": "a", "epoch": 1, "loss": []}'),
    "history of deep lists": history('{"stage": "a", "x": ' + "[" * 900 + "]" * 900 + "}"),
    "history of deeper lists": history('{"stage": "a", "x": ' + "[" * 90_000 + "]" * 90_000 + "}"),
    "history of a stage without a name": history('{"stage": 1}'),
    "history of endless seconds": history('{"stage": "a", "epoch": 1, "seconds": Infinity}'),
    "no features": embedding(lambda a: {k: v for k, v in a.items() if k != "features"}),
    "flat features": embedding(lambda a: {**a, "features": a["features"].ravel()}),
    "short features": embedding(lambda a: {**a, "features": a["features"][:-1]}),
    "features of text": embedding(lambda a: {**a, "features": a["features"].astype(str)}),
    "features of no column": embedding(lambda a: {**a, "features": a["features"][:, :0]}),
    "features near 1e36": scaled(1e36),
    "features near 1e19": scaled(1e19),
    "confidences in a square": embedding(lambda a: {**a, "confidence": np.ones((9, 9), np.float32)}),
    "no novelty": embedding(lambda a: {**a, "novelty": np.full(len(a["features"]), np.nan)}),
    "best old classes of fractions": embedding(lambda a: {**a, "best_old": np.full(len(a["features"]), 0.5)}),
    "no samples": lambda run: listed(run, "samples.npy", b""),
    "samples of text": lambda run: listed(run, "samples.npy", b"\x93NUMPY\x01\x00\x06\x00{'a'}\n"),
    "no weights": weights(lambda w: {}),
    "weights of another size": weights(lambda w: {**w, "pseudo_labels": w["pseudo_labels"][:-1]}),
    "centres of another size": weights(lambda w: {**w, "centers": w["centers"][:, :-1]}),
    "centres at infinity": weights(lambda w: {**w, "centers": w["centers"] * np.float32(np.inf)}),
}
ONLY_WITH_THE_MODEL = (
    "architecture",
    "in the network",
    "without a meaning",
    "weights",
    "centres",
    "vast shape",
)


def one_line(arguments, capsys):
    """What the command says on stderr, if it exits with 2 and says one line."""
    capsys.readouterr()
    code, said = main([str(part) for part in arguments]), capsys.readouterr().err
    assert code == 2, (code, said)
    assert said.startswith("cdknet: ")
    assert said.count("\n") == 1
    assert "Error:" not in said, "no name of an exception"
    return said


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_a_malformed_run_is_one_line_for_every_command(change, request, tmp_path, capsys):
    run = shutil.copytree(REAL, tmp_path / "run")
    change(run)
    name = request.node.callspec.id
    commands = {
        "predict": ["predict", run, REAL / "samples.npy", "--out", tmp_path / "p.csv"],
        "show": ["show", run],
        "export": ["export", run, "--out", tmp_path / "e.csv"],
        "report": ["report", run, "--out", tmp_path / "r.html"],
        "evaluate": ["evaluate", run, "--truth", REAL / "labels.csv"],
    }
    # What only a model needs is looked at when a model is made.
    without = any(part in name for part in ONLY_WITH_THE_MODEL)
    for command in ("predict",) if without else commands:
        said = one_line(commands[command], capsys)
        assert "run" in said
    assert not (tmp_path / "p.csv").exists()


def test_what_is_written_is_strict_json_with_every_key(tmp_path):
    run = read_run(make_run(tmp_path / "run", n=30))
    held = {k: v for k, v in run.config.items() if k not in ("notes", "mixture")}
    odd = {"given_accuracy": math.nan, "mine": [math.inf, {"x": math.nan}]}
    write_run(tmp_path / "again", type(run)({**held, **odd}, run.history, {}, run.embedding, run.labels))

    def refuse(name):
        raise AssertionError(name)

    written = json.loads((tmp_path / "again" / "config.json").read_text(), parse_constant=refuse)
    assert (written["given_accuracy"], written["mine"]) == (None, [None, {"x": None}])
    assert (written["notes"], written["mixture"], written["version"]) == ([], None, VERSION)
    assert read_run(tmp_path / "again").config == written


def test_there_is_a_step_from_every_older_version_and_a_run_of_each_release():
    assert sorted(STEPS) == list(range(1, VERSION))
    kept = {json.loads(p.read_text())["version"] for p in REAL.parent.parent.glob("*/*/config.json")}
    assert kept >= set(range(1, VERSION))


@pytest.mark.parametrize(
    ("novelty", "options"),
    [(True, {"unlabelled": "mixed", "detector": "softmax"}), (False, {"unlabelled": "new"})],
)
def test_an_older_run_is_migrated_when_it_is_read(novelty, options, tmp_path):
    run = shutil.copytree(REAL, tmp_path / "run")
    config(options__novelty=novelty)(run)
    found = read_run(run).config
    assert found["version"] == VERSION
    assert options.items() <= found["options"].items()
    assert "novelty" not in found["options"]
    assert filled({}).keys() <= found.keys()
    assert json.loads((run / "config.json").read_text())["version"] == 1, "the folder itself is not changed"


def test_the_report_of_a_run_is_json_that_browsers_accept(tmp_path):
    run = make_run(tmp_path / "run", n=30)
    history('{"stage": "a", "epoch": 1, "loss": Infinity, "seconds": 1.5}')(run)
    json.dumps(Session(open_run(run)).about(), allow_nan=False)
