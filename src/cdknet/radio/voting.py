"""Combine the predictions of slices into predictions of transmissions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def vote(log_proba: ArrayLike, groups: ArrayLike) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """log p(c | transmission) ∝ mean over its slices of log p(c | slice), normalised over c.

    Returns the sorted names of the groups, and one row of log-probabilities for each.
    """
    scores, names = np.asarray(log_proba, np.float64), np.asarray(groups)
    if scores.ndim != 2 or names.shape != scores.shape[:1]:
        raise ValueError(
            f"log_proba must be (n, classes) and groups (n,). Got {scores.shape} and {names.shape}. "
            "Give one row of log-probabilities and one group name per slice."
        )
    if np.isnan(scores).any() or (scores == np.inf).any():
        raise ValueError("log_proba must hold no NaN and no +inf. Got some. Check the network's output.")
    found, index = np.unique(names, return_inverse=True)
    total = np.zeros((len(found), scores.shape[1]))
    np.add.at(total, index, scores)
    mean = total / np.bincount(index, minlength=len(found))[:, None]
    top = mean.max(axis=1, keepdims=True)
    if np.isneginf(top).any():
        name = found[np.argmax(np.isneginf(top))]
        raise ValueError(
            f"Group {name!r}: at least one class must have a finite log-probability. Got -inf for all. "
            "Check the network's output."
        )
    return found, mean - top - np.log(np.exp(mean - top).sum(axis=1, keepdims=True))
