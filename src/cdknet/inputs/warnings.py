"""All warnings about the data of a fit, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cdknet.core.openworld import UNLABELED
from cdknet.data.checks import doubts, odd_labels
from cdknet.inputs.arrays import Inputs
from cdknet.inputs.labels import Labels

MOST_COMPARED, FEWEST_COMPARED, MOST_VALUES, TREES = 2000, 50, 4_000_000, 60

FEW = 5  # unlabelled samples per new class: with fewer, there is a warning
MIXED = 0.3  # share of unlabelled samples that look old: from here, there is a warning


class DataWarnings(NamedTuple):
    """Warnings about the data of a fit, as sentences."""

    sentences: list[str]
    look_old: float | None  # share of the unlabelled samples that look old, if it is large


def data_warnings(
    X: NDArray[Any], labels: Labels, columns: Sequence[str] | None, n_new_classes: int, *, mixed: bool
) -> DataWarnings:
    """All warnings about samples and labels. If they are `mixed`, unlabelled samples may be old."""
    share = 0.0 if mixed else among_old(X, labels.targets)
    named = labels.old_classes[labels.targets[labels.targets >= 0]]
    sentences = [*doubts(X, columns), *odd_labels(named), *looks_mixed(share)]
    sentences += scarce(labels.targets, n_new_classes)
    return DataWarnings(sentences, round(share, 3) if looks_mixed(share) else None)


def among_old(X: NDArray[Any], targets: NDArray[np.int64]) -> float:
    """Share of the unlabelled rows of X, (n, d), that look like labelled ones.

    A random forest learns which rows are labelled, and then predicts it for rows it has not seen. For an
    unlabelled sample of an old class it predicts "labelled" more often than for the average sample. Unlike
    nearest neighbours, it ignores uninformative columns. At most 2,000 rows are used, fewer if they are very
    long. The share is 0 for samples that are not vectors (pixels look similar anyway), and if there are only
    a few samples.
    """
    if X.ndim != 2:
        return 0.0
    most = min(MOST_COMPARED, max(4 * FEWEST_COMPARED, MOST_VALUES // X.shape[1]))
    rows = np.random.default_rng(0).permutation(len(X))[:most]
    labelled = targets[rows] != UNLABELED
    if (~labelled).sum() < FEWEST_COMPARED or not labelled.any():
        return 0.0
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(TREES, min_samples_leaf=3, oob_score=True, random_state=0)
    chance = forest.fit(Inputs(X).take(torch.from_numpy(rows)).numpy(), labelled).oob_decision_function_[:, 1]
    return float((chance[~labelled] >= labelled.mean()).mean())


def looks_mixed(share: float) -> list[str]:
    """A warning if many of the unlabelled samples look old, though all are assumed to be new."""
    if share < MIXED:
        return []
    return [
        f"About {100 * share:.0f} of 100 unlabelled samples cannot be told from labelled ones. They may be "
        "of old classes, and with unlabelled='new' all are taken to be of new ones: those of old ones will "
        "be wrong, and no confidence sees that. Use unlabelled='mixed', the default."
    ]


def scarce(targets: NDArray[np.int64], n_new_classes: int) -> list[str]:
    """A warning if there are fewer than `FEW` unlabelled samples per new class."""
    n = int((targets == UNLABELED).sum())
    if not n_new_classes <= n < FEW * n_new_classes:
        return []
    return [
        f"Fewer than {FEW} unlabelled samples per new class ({n} for {n_new_classes}): expect little of it. "
        "Ask for fewer classes, or add samples."
    ]
