"""Run folders of every released version can be read, and answer as they did."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cdknet import ClassDiscovery
from cdknet.cli import main
from cdknet.explorer.folder import open_run
from cdknet.explorer.session import Session
from cdknet.fit.refine import refine

RUNS = sorted(path for path in (Path(__file__).parent / "runs").glob("*/*") if path.is_dir())
every_run = pytest.mark.parametrize("run", RUNS, ids=lambda path: f"{path.parent.name}-{path.name}")


@every_run
def test_a_run_of_an_older_version_answers_as_it_did(run):
    """Its answers at the time lie beside it; X are the samples that it holds."""
    then = np.load(run.with_suffix(".npz"))
    model = ClassDiscovery.load(run)
    X = np.load(run / "samples.npy")
    np.testing.assert_allclose(model.predict_proba(X), then["proba"], atol=1e-5)
    np.testing.assert_allclose(model.transform(X), then["embedding"], atol=1e-5)
    np.testing.assert_array_equal(model.labels_, then["labels"])
    np.testing.assert_array_equal(model.confidence_, then["confidence"])
    assert model.labels_.dtype.kind == then["labels"].dtype.kind


@every_run
def test_it_keeps_the_parameters_that_it_was_given(run):
    model = ClassDiscovery.load(run)
    assert model.method == ("cd-knet" if run.name in ("paper", "centers") else "cd-knet+")
    assert model.label_weight == (float("inf") if run.name == "paper" else 10)
    assert model.neighbors == (7 if run.name == "voters" else 15)
    assert (model.view_steps, model.feature_size, model.random_state) == (6, 8, 3)
    assert (model.tuning_ is not None) == (run.name == "tuned")


@every_run
def test_it_can_be_shown_explored_and_refined(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("cdknet.fit.refine.illustrated", lambda run, X: run)
    run = shutil.copytree(run, tmp_path / "run")  # the explorer saves a map in it
    model = ClassDiscovery.load(run)
    assert main(["show", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == model.used_params()["method"]
    session = Session(open_run(run), read_only=True)
    assert session.about()["options"]["method"] == model.used_params()["method"]
    assert len(session.state()["classes"]) == len(model.classes_)
    again = ClassDiscovery.load(refine(run, tmp_path / "refined"))
    assert again.classes_.tolist() == [c for c in model.classes_.tolist() if (model.labels_ == c).any()]
