"""Options: who reads them, and what is said of those that nobody reads."""

import json
import sys
from dataclasses import fields

import numpy as np
import pytest

from cdknet import ClassDiscovery
from cdknet.cli import main
from cdknet.fit.pipeline import STAGE_2
from cdknet.options import METHODS, DiscoverOptions, unread

from contracts import FEW, blob_problem

X, Y, _ = blob_problem(n=120)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_reads_is_declared_as_read(method, monkeypatch):
    """So that nobody is told of an option that it changes nothing while it does."""
    names, seen = {f.name for f in fields(DiscoverOptions)}, set()

    class Watched(DiscoverOptions):
        def __getattribute__(self, name):
            reader = sys._getframe(1).f_globals["__name__"]
            if name in names and reader.startswith(("cdknet.methods", "cdknet.core", "cdknet.nets")):
                seen.add(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(
        "cdknet.fit.pipeline.DiscoverOptions.pick", lambda params: Watched(**{n: params[n] for n in names})
    )
    spectral = {"spectral_weight": 1.0} if method == "cd-knet+" else {}
    ClassDiscovery(**FEW, method=method, **spectral).fit(X, Y)
    readers = {f.name: f.metadata["of"] or METHODS for f in fields(DiscoverOptions)}
    assert "n_new_classes" in seen
    assert {name for name in seen if method not in readers[name]} == set()


def test_every_method_has_a_stage_2():
    assert set(METHODS) == STAGE_2.keys()


def test_options_without_effect_are_named_with_those_that_read_them():
    given = {"method": "sscd", "expansion": "none", "view_weight": 3.0, "replay": 0.5, "learning_rate": 0.1}
    assert unread(given) == {"view_weight": ("cd-knet+",), "replay": ()}
    assert unread({"method": "cd-knet+", "expansion": "last", "view_weight": 3.0, "replay": 0.5}) == {}
    assert list(unread({"method": "cd-knet+", "expansion": "last", "pretrain_epochs": 3})) == [
        "pretrain_epochs"
    ]


def test_options_without_effect_are_told(tmp_path, capsys):
    np.savez(tmp_path / "d.npz", X=X, y=Y)
    command = ["discover", str(tmp_path / "d.npz"), "--out", str(tmp_path / "run"), "--new-classes", "2"]
    command += ["--network", "none", "--method", "sscd", "--expansion", "none", "--no-calibrate"]
    assert main([*command, "--heads", "3", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert notes == ["--heads changes nothing: method sscd does not read it (cd-knet+: yes)."]
