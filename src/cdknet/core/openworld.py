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
