"""Options: who reads them, and what is said of those that nobody reads."""

import json
import sys
from dataclasses import fields

import numpy as np
import pytest

from cdknet import ClassDiscovery
from cdknet.cli import main
from cdknet.fit.plan import resolve
from cdknet.methods import method_of
from cdknet.options import METHODS, all_options, options_of, unread
from cdknet.training.context import FitContext

from contracts import FEW, blob_problem

X, Y, _ = blob_problem(n=120)


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_declares_it_reads(name, monkeypatch):
    """So that nobody sets an option of a method that changes nothing."""
    method, seen = method_of(name), set()
    stage_2 = [
        f.name for f in fields(method.options) if options_of(name)[f.name].heading.startswith("Stage 2")
    ]

    class Watched(method.options):
        def __getattribute__(self, option):
            reader = sys._getframe(1).f_globals["__name__"]
            if option in stage_2 and reader.startswith(("cdknet.methods", "cdknet.fit.pipeline")):
                seen.add(option)
            return super().__getattribute__(option)

    Watched.__name__ = method.options.__name__
    monkeypatch.setattr(sys.modules[METHODS[name].module], "METHOD", _of(method, Watched))
    for changes in ({}, {"spectral_weight": 1.0, "lead": "labels"}, {"kernel": "neighbors"}):
        ClassDiscovery(**FEW, method=name, **changes).fit(X, Y)
    assert {*stage_2} - seen - {"detector", "noise", "normalize_features"} == set()


def _of(method, options):
    from dataclasses import replace

    return replace(method, options=options)


def test_every_method_is_what_its_line_says():
    for name, registered in METHODS.items():
        assert method_of(name).name == name
        assert method_of(name).options is registered.options


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("shape", [(6,), (12, 12), (3, 16, 16), (2, 64)])
def test_behind_resolve_nothing_is_auto_or_unset(name, shape):
    options = resolve({"method": name, "n_new_classes": 3}, shape, 5, FitContext()).options
    left = {f.name: getattr(options, f.name) for f in fields(options)}
    assert left.pop("time_budget") is None  # that is: unbounded
    assert not [option for option, value in left.items() if value is None or value in ("auto", "fastest")]


def test_a_plan_is_plain_json_and_says_all_of_it():
    plan = resolve({"method": "cd-knet+", "n_new_classes": 3}, (6,), 5, FitContext())
    said = json.loads(json.dumps(plan.as_json()))
    assert said["method"] == "cd-knet+"
    assert said["kind"] == "vector"
    assert (said["lead"], said["view_weight"], said["readout"]) == ("views", 1.0, "agreed")
    assert said.keys() >= options_of("cd-knet+").keys()


def test_where_methods_differ_in_a_default_it_is_left_to_them():
    assert all_options()["expand_epochs"].default is None
    assert options_of("cd-knet")["expand_epochs"].default == 30
    assert options_of("cd-knet+")["expand_epochs"].default == 4
    plans = [
        resolve({"method": m, "n_new_classes": 2}, (6,), 5, FitContext()) for m in ("cd-knet", "cd-knet+")
    ]
    assert [plan.options.expand_epochs for plan in plans] == [30, 4]


def test_options_without_effect_are_named_with_those_that_read_them():
    given = {"expansion": "none", "view_weight": 3.0, "replay": 0.5, "learning_rate": 0.1}
    assert unread("sscd", given) == {"view_weight": ("cd-knet+",), "replay": ()}
    assert unread("cd-knet+", {"expansion": "last", "view_weight": 3.0, "replay": 0.5}) == {}
    assert list(unread("cd-knet+", {"expansion": "last", "pretrain_epochs": 3})) == ["pretrain_epochs"]


def test_options_without_effect_are_reported(tmp_path, capsys):
    np.savez(tmp_path / "d.npz", X=X, y=Y)
    command = ["discover", str(tmp_path / "d.npz"), "--out", str(tmp_path / "run"), "--new-classes", "2"]
    command += ["--network", "none", "--method", "sscd", "--expansion", "none", "--no-calibrate"]
    assert main([*command, "--heads", "3", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert notes == ["--heads changes nothing: method sscd does not read it (cd-knet+: yes)."]
