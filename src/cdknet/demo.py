"""The demonstration: digits 0-4 are known, 5-9 are not. What each step of the method finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cdknet import data
from cdknet.data import OpenWorldProblem
from cdknet.estimator import ClassDiscovery
from cdknet.history import Watcher
from cdknet.inputs import Inputs
from cdknet.metrics import (
    OpenWorldReport,
    Scores,
    new_class_scores,
    old_class_accuracy,
    open_world_report,
)
from cdknet.networks import embed
from cdknet.stages.discover import class_means, cluster


class Line(NamedTuple):
    """One method: its scores on the new classes, among unlabelled training samples and held-out ones."""

    method: str
    train: Scores
    held_out: Scores


class Comparison(NamedTuple):
    """What the demonstration shows of one fit."""

    lines: list[Line]
    old_before: float  # accuracy on held-out samples of old classes, after stage 1
    old_after: float  # and after stage 3, with new classes competing
    open_world: OpenWorldReport  # held-out samples, old and new mixed


def digits_problem() -> OpenWorldProblem:
    """scikit-learn's digits, 0-4 known and 5-9 hidden, a fifth of both held out."""
    return data.load("digits").problem()


def compare(model: ClassDiscovery, problem: OpenWorldProblem) -> Comparison:
    """Score a fitted model and the steps it is made of. All but the last know which samples are new."""
    X, X_test, k = problem.train.X, problem.X_test, model.n_new_classes_
    hidden = ~model.given_
    seed = model.seed_

    def clustered(method: str, train: NDArray[Any], test: NDArray[Any]) -> Line:
        """k-means on the unlabelled samples; held-out ones go to the nearest centre."""
        z = torch.from_numpy(np.ascontiguousarray(train, dtype=np.float32))
        labels = cluster(z[torch.from_numpy(hidden)], k, seed=seed)
        return _line(method, labels.numpy(), z, torch.from_numpy(np.asarray(test, dtype=np.float32)))

    def _line(method: str, found: NDArray[Any], z: torch.Tensor, z_test: torch.Tensor) -> Line:
        centers = class_means(z[torch.from_numpy(hidden)], torch.from_numpy(found), k)
        labels = np.full(len(X), -1)
        labels[hidden] = found
        nearest = torch.cdist(z_test, centers).argmin(dim=1).numpy()
        return Line(
            method,
            new_class_scores(problem.train_truth, labels),
            new_class_scores(problem.test_truth, nearest),
        )

    probabilities = model.predict_proba(X_test)
    n_old = len(model.classes_) - k
    stage_2 = [torch.from_numpy(model.transform(part, stage="discover")) for part in (X, X_test)]
    lines = [
        clustered("k-means on pixels", X.reshape(len(X), -1), X_test.reshape(len(X_test), -1)),
        clustered("k-means on stage 1", *(model.transform(part, stage="pretrain") for part in (X, X_test))),
        _line("CD-KNet", model.pseudo_labels_, *stage_2),
        Line(
            "CD-KNet-Exp",
            new_class_scores(problem.train_truth, model.labels_),
            new_class_scores(problem.test_truth, probabilities[:, n_old:].argmax(axis=1)),
        ),
    ]
    before = embed(model.stage_networks_["pretrain"], Inputs(X_test), normalize=False).logits.argmax(dim=1)
    predicted = model.classes_[probabilities.argmax(axis=1)]
    return Comparison(
        lines,
        old_before=old_class_accuracy(problem.test_truth, model.classes_[before.numpy()]),
        old_after=old_class_accuracy(problem.test_truth, predicted),
        open_world=open_world_report(problem.test_truth, predicted),
    )


def fit_digits(
    problem: OpenWorldProblem, seed: int, watchers: Sequence[Watcher] = (), **options: Any
) -> ClassDiscovery:
    model = ClassDiscovery(
        n_new_classes=problem.n_new_classes, random_state=seed, watchers=watchers, **options
    )
    return model.fit(problem.train.X, problem.train.y)
