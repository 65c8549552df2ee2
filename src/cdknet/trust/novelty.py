"""How unlike all known classes a sample is: P(none of the classes known by now), for any sample.

What samples of an unknown class look like is learned from the known ones. Each class is left out in turn:
its samples are then samples of an unknown class. Their distance to the nearest samples of other classes,
against the distance of every sample to the nearest samples of its own, gives P(none | distance) at even odds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from cdknet.core.neighbors import nearest_neighbors

NEIGHBORS = 5
MOST_POINTS = 10_000  # samples among which neighbours are searched
TINY = 1e-6


class Unlike(NamedTuple):
    """P(none of the known classes) as a rising function of the distance to the nearest known samples."""

    points: Tensor  # (m, d) features of samples of known classes
    slope: float
    offset: float

    def apply(self, z: Tensor) -> NDArray[np.float64]:
        """(n,) the probability for features z."""
        probability: NDArray[np.float64] = expit(self.slope * _log_distance(z, self.points) + self.offset)
        return probability


def learn_unlike(z: Tensor, labels: NDArray[np.int64]) -> Unlike:
    """Learn it from the features and classes of the samples of a fit; noise (-1) takes no part."""
    from sklearn.linear_model import LogisticRegression

    draw = np.random.default_rng(0)
    rows = np.sort(draw.permutation(np.flatnonzero(labels >= 0))[:MOST_POINTS])
    points, classes = z[torch.from_numpy(rows)], labels[rows]
    known, unknown = [], []
    for c in np.unique(classes):
        own, others = (points[torch.from_numpy(part)] for part in (classes == c, classes != c))
        if len(own) > 1 and len(others):
            known.append(_log_distance(own))
            unknown.append(_log_distance(own, others))
    if not known:
        raise ValueError("novelty needs two classes of at least 2 samples. Got fewer.")
    x, n = np.concatenate(known + unknown), sum(map(len, known))
    center, scale = float(x.mean()), max(float(x.std()), TINY)
    fitted = LogisticRegression().fit(((x - center) / scale)[:, None], np.arange(len(x)) >= n)
    slope = max(float(fitted.coef_[0, 0]), 0.0) / scale
    return Unlike(points, slope, float(fitted.intercept_[0]) - slope * center)


def _log_distance(z: Tensor, among: Tensor | None = None) -> NDArray[np.float64]:
    """Logarithm of the mean distance to the nearest rows of `among`; without it, of the other rows of z."""
    k = min(NEIGHBORS, len(z) - 1 if among is None else len(among))
    near, _ = nearest_neighbors(z, k, among=among)
    return np.log(near.mean(dim=1).double().numpy() + TINY)
