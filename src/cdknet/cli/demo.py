"""The demonstration: digits 0-4 are known, 5-9 are not. It shows what each step of the method finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cdknet import data
from cdknet.core.classifiers import class_means
from cdknet.core.clustering import cluster
from cdknet.core.metrics import (
    OpenWorldReport,
    Scores,
    new_class_scores,
    old_class_accuracy,
    open_world_report,
)
from cdknet.data import HiddenTruth, OpenWorldProblem
from cdknet.estimators import ClassDiscovery
from cdknet.inputs.arrays import Inputs
from cdknet.nets.network import embed
from cdknet.runs.files import csv_bytes
from cdknet.training.history import Watcher


class Line(NamedTuple):
    """One method: its scores on the new classes, among unlabelled training samples and held-out ones."""

    method: str
    train: Scores
    held_out: Scores


class Comparison(NamedTuple):
    """What the demonstration shows of one fit."""

    lines: list[Line]
    old_before: float | None  # accuracy on held-out samples of old classes, after stage 1 if there is one
    old_after: float  # and after stage 3, with new classes competing
    open_world: OpenWorldReport  # held-out samples, old and new mixed


def digits_problem() -> OpenWorldProblem:
    """scikit-learn's digits, 0-4 known and 5-9 hidden, a fifth of both held out.

    Classes are called "digit 0", ..., so that a discovered class, "new-1", is not mistaken for a digit.
    """
    digits = data.load("digits")
    names = np.array([f"digit {name}" for name in digits.class_names])
    new = names[list(digits.new_classes())].tolist()
    train, train_truth = data.hide_classes(digits.X_train, names[digits.y_train], new)
    _, test_truth = data.hide_classes(digits.X_test, names[digits.y_test], new)
    return OpenWorldProblem(train, train_truth, digits.X_test, test_truth)


def compare(model: ClassDiscovery, problem: OpenWorldProblem) -> Comparison:
    """Score a fitted model and its steps. All but the open-world report know which samples are new."""
    X, X_test, k = problem.train.X, problem.X_test, model.n_new_classes_
    hidden = torch.from_numpy(~model.given_)

    def line(method: str, features: Sequence[NDArray[Any]], found: NDArray[Any] | None = None) -> Line:
        """Score clusters of the unlabelled samples (default: k-means); held-out ones join the nearest one."""
        z, z_test = (torch.from_numpy(np.ascontiguousarray(part, dtype=np.float32)) for part in features)
        clusters = cluster(z[hidden], k, seed=model.seed_) if found is None else torch.from_numpy(found)
        labels = np.full(len(X), -1)
        labels[~model.given_] = clusters.numpy()
        nearest = torch.cdist(z_test, class_means(z[hidden], clusters, k)).argmin(dim=1).numpy()
        return Line(
            method,
            new_class_scores(problem.train_truth, labels),
            new_class_scores(problem.test_truth, nearest),
        )

    name = model.result_.plan.method.title
    pixels = [part.reshape(len(part), -1) for part in (X, X_test)]
    stage_2 = [model.transform(part, stage="discover") for part in (X, X_test)]
    probabilities = model.predict_proba(X_test)
    n_old = len(model.classes_) - k
    expanded = Line(
        f"{name}-Exp",
        new_class_scores(problem.train_truth, model.labels_),
        new_class_scores(problem.test_truth, probabilities[:, n_old:].argmax(axis=1)),
    )
    stage_1, old_before = [], None
    if "pretrain" in model.stage_networks_:
        network = model.stage_networks_["pretrain"]
        predicted = embed(network, Inputs(X_test), normalize=False).logits.argmax(dim=1).numpy()
        old_before = old_class_accuracy(problem.test_truth, model.classes_[predicted])
        features = [model.transform(part, stage="pretrain") for part in (X, X_test)]
        stage_1 = [line("k-means on stage 1", features)]
    predicted = model.classes_[probabilities.argmax(axis=1)]
    return Comparison(
        [
            line("k-means on pixels", pixels),
            *stage_1,
            line(name, stage_2, model.pseudo_labels_),
            expanded,
        ],
        old_before=old_before,
        old_after=old_class_accuracy(problem.test_truth, predicted),
        open_world=open_world_report(problem.test_truth, predicted),
    )


def with_paper(ours: Comparison, paper: Comparison) -> Comparison:
    """Ours, below the lines of the paper's own objective, including its stage 1, which ours does not have."""
    return ours._replace(lines=[*paper.lines, *ours.lines[1:]], old_before=paper.old_before)


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
