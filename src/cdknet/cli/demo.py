"""The demonstration: half of the digits 0-4 have a label. The others, and all of 5-9, have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cdknet import data
from cdknet.core.classifiers import class_means
from cdknet.core.clustering import cluster
from cdknet.core.metrics import MixedReport, match_clusters, mixed_report
from cdknet.core.openworld import UNLABELED, mix
from cdknet.data import HiddenTruth, OpenWorldProblem
from cdknet.estimators import ClassDiscovery
from cdknet.runs.files import csv_bytes
from cdknet.training.history import Watcher

K_MEANS = "k-means on pixels"
LABELLED = 0.5  # share of the digits 0-4 that have a label


class Line(NamedTuple):
    """One method: its scores on the unlabelled samples of the fit, and on held-out ones."""

    method: str
    unlabelled: MixedReport
    held_out: MixedReport


class Comparison(NamedTuple):
    """What the demonstration shows of the fits of one seed."""

    lines: list[Line]
    share: float  # of old digits among the unlabelled ones, as it is
    found: float  # and as it was found, with its interval
    interval: tuple[float, float]
    expected: float  # the share of unlabelled samples that the default expects to be right

    @property
    def right(self) -> float:
        """The share that is right."""
        return self.lines[-1].unlabelled.all


def digits_problem() -> OpenWorldProblem:
    """scikit-learn's digits, 0-4 known and 5-9 not, a fifth of both held out.

    Classes are called "digit 0", ..., so that a discovered class, "new-1", is not mistaken for a digit.
    """
    digits = data.load("digits")
    names = np.array([f"digit {name}" for name in digits.class_names])
    new = names[list(digits.new_classes())].tolist()
    train, train_truth = data.hide_classes(digits.X_train, names[digits.y_train], new)
    _, test_truth = data.hide_classes(digits.X_test, names[digits.y_test], new)
    known = OpenWorldProblem(train, train_truth, digits.X_test, test_truth)
    return mix(known, labelled=LABELLED, seed=0)


def compare(paper: ClassDiscovery, ours: ClassDiscovery, problem: OpenWorldProblem) -> Comparison:
    """Score k-means, the paper's method and ours, by `mixed_report`."""
    unlabelled, truth = _unlabelled(problem)
    low, high = ours.old_share_interval_
    lines = [_k_means(problem, len(ours.classes_), ours.seed_)]
    for model in (paper, ours):
        name = f"{model.result_.plan.method.title}-Exp"
        scored = _scored(model.labels_[unlabelled], model.predict(problem.X_test), problem)
        lines.append(Line(name, *scored))
    share = float((~truth.is_new).mean())
    return Comparison(lines, share, ours.old_share_, (low, high), ours.overall_confidence_)


def _k_means(problem: OpenWorldProblem, n_classes: int, seed: int) -> Line:
    """k-means on all pixels. It knows no names: its clusters get the best ones that the truth allows."""
    X, X_test = (torch.from_numpy(x.reshape(len(x), -1)).float() for x in (problem.train.X, problem.X_test))
    found = cluster(X, n_classes, seed=seed)
    nearest = torch.cdist(X_test, class_means(X, found, n_classes)).argmin(dim=1).numpy()
    unlabelled, truth = _unlabelled(problem)
    clusters = found.numpy()[unlabelled]
    names = match_clusters(truth.y, clusters)
    labels, predicted = (np.array([names.get(c, "") for c in some.tolist()]) for some in (clusters, nearest))
    return Line(K_MEANS, *_scored(labels, predicted, problem))


def _scored(
    labels: NDArray[Any], predicted: NDArray[Any], problem: OpenWorldProblem
) -> tuple[MixedReport, MixedReport]:
    old = np.setdiff1d(problem.train.y, [str(UNLABELED)])
    _, truth = _unlabelled(problem)
    return mixed_report(truth, labels, old=old), mixed_report(problem.test_truth, predicted, old=old)


def _unlabelled(problem: OpenWorldProblem) -> tuple[NDArray[np.bool_], HiddenTruth]:
    """(n,) which samples of the fit are unlabelled, and their truth."""
    rows = problem.train.y == str(UNLABELED)
    return rows, HiddenTruth(problem.train_truth.y[rows], problem.train_truth.new_classes)


def truth_csv(ids: Sequence[str], truth: HiddenTruth) -> bytes:
    """The true class of each digit, for `cdknet explore --truth` and `cdknet evaluate`."""
    return csv_bytes(("id", "label"), zip(ids, truth.y.tolist(), strict=True))


def fit_digits(
    problem: OpenWorldProblem, seed: int, watchers: Sequence[Watcher] = (), **options: Any
) -> ClassDiscovery:
    model = ClassDiscovery(
        n_new_classes=problem.n_new_classes, random_state=seed, watchers=watchers, **options
    )
    return model.fit(problem.train.X, problem.train.y)
