"""A method is one file and one line: here is one more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from cdknet import ClassDiscovery
from cdknet.cli import main
from cdknet.core.classifiers import class_means
from cdknet.fit.plan import resolve
from cdknet.methods.base import Discovery, Method
from cdknet.nets.network import embed
from cdknet.options import METHODS, MethodOptions, Registered, option, options_of
from cdknet.training.context import FitContext

from contracts import FEW, blob_problem

X, Y, _ = blob_problem(n=120)


# The file.


@dataclass(frozen=True)
class ToyOptions(MethodOptions):
    """Quantiles of one feature."""

    toy_feature: int = option(0, "toy: which feature is looked at", least=0)
    toy_passes: int = option(1, "toy: how often", least=1, counts=True)


def discover(network, problem, options, context):
    z = embed(network, problem.inputs, problem.new_rows, normalize=True).features
    rank = z[:, options.toy_feature].argsort().argsort()
    labels = rank * options.n_new_classes // len(z)
    return Discovery(network.eval(), labels, class_means(z, labels, options.n_new_classes))


METHOD = Method("toy", "toy", ToyOptions, discover, pretrains=False)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(METHODS, "toy", Registered(__name__))  # the line


def test_a_toy_method_fits_predicts_saves_and_loads(tmp_path):
    model = ClassDiscovery(**{**FEW, "calibrate": True}, method="toy", toy_feature=2).fit(X, Y)
    assert set(model.labels_[Y < 0]) == {3, 4}
    assert next(row["stage"] for row in model.history_) == "expand"
    again = ClassDiscovery.load(model.save(tmp_path / "run"))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.get_params()["toy_feature"] == 2
    with pytest.raises(ValueError, match="toy_feature must be at least 0"):
        ClassDiscovery(**FEW, method="toy", toy_feature=-1).fit(X, Y)


def test_its_options_are_shown_and_shortened_in_a_rehearsal_like_those_of_the_others():
    toy = options_of("toy")["toy_passes"]
    assert toy.heading.startswith("Stage 2")
    plan = resolve({"method": "toy", "n_new_classes": 2, "toy_passes": 8}, (6,), 3, FitContext())
    assert plan.rehearsal(2, 2, 0.25, 256).options.toy_passes == 2


def test_a_misspelt_method_gets_the_nearest_one():
    with pytest.raises(ValueError, match=r"Did you mean 'cd-knet'\?"):
        ClassDiscovery(**FEW, method="cdknet").fit(X, Y)


def test_what_a_discovery_leaves_is_for_the_next_stage():
    found = discover_once()
    assert found.pseudo_labels.shape == (48,)
    assert found.centers.shape[0] == 2
    assert isinstance(found.pseudo_labels, torch.Tensor)


def discover_once():
    from cdknet.nets.architectures import build_network
    from cdknet.training.problem import Problem

    problem = Problem.from_arrays(X, Y)
    return discover(build_network((6,), 3), problem, ToyOptions(n_new_classes=2), FitContext())


def test_the_help_of_the_command_line_follows_the_method(capsys):
    assert main(["discover", "--method", "dec", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--discover-epoch" in shown
    assert "--view-steps" not in shown
