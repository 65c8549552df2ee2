"""What each step of a fit finds, where all unlabelled samples are of new classes, as in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cdknet.core.classifiers import class_means
from cdknet.core.clustering import cluster
from cdknet.core.metrics import (
    Scores,
    new_class_scores,
    old_class_accuracy,
)
from cdknet.data import OpenWorldProblem
from cdknet.estimators import ClassDiscovery
from cdknet.inputs.arrays import Inputs
from cdknet.nets.network import embed


class Line(NamedTuple):
    """One method: its scores on the new classes, among unlabelled training samples and held-out ones."""

    method: str
    train: Scores
    held_out: Scores


class Comparison(NamedTuple):
    """The steps of one fit."""

    lines: list[Line]
    old_before: float | None  # accuracy on held-out samples of old classes, after stage 1 if there is one
    old_after: float  # and after stage 3, with new classes competing


def compare(model: ClassDiscovery, problem: OpenWorldProblem) -> Comparison:
    """Score a fitted model and its steps, with the knowledge which samples are new."""
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
    )
