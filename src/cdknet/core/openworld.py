"""The open-world problem: what a method may see, and the truth it may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

UNLABELED = -1  # scikit-learn's mark for "label not known"


@dataclass(frozen=True)
class OpenWorldData:
    """What a method may see: every sample, and the labels of the old classes only."""

    X: NDArray[Any]  # (n, ...)
    y: NDArray[Any]  # (n,), UNLABELED where the class is hidden


@dataclass(frozen=True, eq=False)
class HiddenTruth:
    """What only `cdknet.metrics` may see. No stage, network or estimator takes this type.

    It cannot be converted to an array, so that passing it on by mistake fails at once.
    """

    y: NDArray[Any]  # (n,), the true class of every sample, old and new
    new_classes: tuple[Any, ...]

    def __array__(self, *args: Any, **kwargs: Any) -> NDArray[Any]:
        raise TypeError(
            "HiddenTruth must only be given to cdknet.metrics. Got an attempt to use it as an array. "
            "Give methods OpenWorldData.y, in which hidden classes are -1."
        )

    def __len__(self) -> int:
        return len(self.y)

    @property
    def is_new(self) -> NDArray[np.bool_]:
        """Which samples belong to a hidden class."""
        return np.isin(self.y, np.asarray(self.new_classes))


@dataclass(frozen=True)
class OpenWorldProblem:
    """A data set as a problem (`train`), held-out samples, and the hidden truth of both."""

    train: OpenWorldData
    train_truth: HiddenTruth
    X_test: NDArray[Any]
    test_truth: HiddenTruth

    @property
    def n_new_classes(self) -> int:
        return len(self.train_truth.new_classes)


def hide_classes(X: ArrayLike, y: ArrayLike, new_classes: Sequence[Any]) -> tuple[OpenWorldData, HiddenTruth]:
    """Turn a labelled set into an open-world problem by hiding some of its classes."""
    X, y = np.asanyarray(X), np.asarray(y)
    if len(X) != len(y):
        raise ValueError(f"X and y must have the same length. Got {len(X)} and {len(y)}.")
    wanted = np.asarray(list(new_classes))
    if wanted.size == 0:
        raise ValueError("new_classes must name at least one class to hide. Got none.")
    known = np.unique(y)
    missing = sorted(set(wanted.tolist()) - set(known.tolist()))
    if missing:
        raise ValueError(
            f"new_classes must occur in y. Got {missing}, which do not; y has {known.tolist()[:20]}."
        )
    hidden = np.isin(y, wanted)
    if hidden.all():
        raise ValueError("new_classes must leave at least one class known. Got every class of y.")
    if y.dtype.kind in "iu" and not np.any(y == UNLABELED):
        seen = np.where(hidden, UNLABELED, y.astype(np.int64))
    else:
        seen = np.where(hidden, str(UNLABELED), y.astype(str))
    return OpenWorldData(X, seen), HiddenTruth(y, tuple(sorted(set(wanted.tolist()))))


def mix(
    problem: OpenWorldProblem,
    *,
    labelled: float = 0.5,
    share: float | None = None,
    seed: int,
    groups: ArrayLike | None = None,
) -> OpenWorldProblem:
    """The problem with samples of old classes among its unlabelled ones.

    Parameters
    ----------
    labelled
        The share of the samples of each old class that keep their label. The others lose it.
    share
        The share of old samples among the unlabelled ones. Samples are dropped at random to reach it: old
        unlabelled ones or, where there are too few of these, new ones. None drops nothing.
    seed
        Draws both. With one seed, labelled samples are the same for every share.
    groups
        (n,) samples of one group, such as slices of one transmission, keep or lose their labels together.
        `labelled` then is the share of groups.
    """
    if not 0 < labelled <= 1:
        raise ValueError(f"labelled must be above 0 and at most 1. Got {labelled}.")
    if share is not None and not 0 <= share < 1:
        raise ValueError(f"share must be at least 0 and below 1. Got {share}.")
    X, y, truth = problem.train.X, problem.train.y, problem.train_truth
    unknown = np.asarray(UNLABELED).astype(y.dtype)
    rng = np.random.default_rng(seed)
    _, group = np.unique(np.arange(len(y)) if groups is None else np.asarray(groups), return_inverse=True)
    order = rng.permutation(group.max() + 1)[group]  # the place of each sample's group in a random order
    seen = y.copy()
    for c in np.unique(y[y != unknown]):
        rows = np.flatnonzero(y == c)
        places = np.unique(order[rows])
        keep = max(1, round(labelled * len(places)))
        seen[rows[np.isin(order[rows], places[keep:])]] = unknown
    old = rng.permutation(np.flatnonzero((seen == unknown) & (y != unknown)))
    new = rng.permutation(np.flatnonzero(y == unknown))
    if share is not None:
        wanted = round(len(new) * share / (1 - share))
        if wanted > len(old):
            new = new[: round(len(old) * (1 - share) / share)]
        old = old[:wanted]
    if not len(new):
        raise ValueError(f"share must leave samples of new classes. Got {share}, with labelled={labelled}.")
    rows = np.sort(np.concatenate([np.flatnonzero(seen != unknown), old, new]))
    if len(rows) < len(y):
        X, seen, truth = X[rows], seen[rows], HiddenTruth(truth.y[rows], truth.new_classes)
    return OpenWorldProblem(OpenWorldData(X, seen), truth, problem.X_test, problem.test_truth)
