"""Classifiers of features, for classes without a network output: nearest centre, or a vote of neighbours."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cdknet.core.neighbors import nearest_neighbors

MOST_VOTERS = 20_000  # most samples that may vote; their features are saved in the run folder


class Centers(NamedTuple):
    """Nearest class mean, as in the paper without expansion."""

    points: Tensor  # (classes, d), old then new; NaN: a class without samples, never predicted
    scale: float  # mean squared distance of a sample to its own centre: the unit of distances

    def logits(self, z: Tensor) -> Tensor:
        middle = self.points.nanmean(dim=0)  # float32 distances cancel far from the origin
        logits = -torch.cdist(z - middle, self.points - middle).square() / (2 * self.scale)
        return logits.nan_to_num_(nan=-torch.inf)


class Neighbors(NamedTuple):
    """A vote of the nearest samples. Unlike a centre, it does not assume that classes are balls."""

    points: Tensor  # (m, d)
    labels: Tensor  # (m,) their classes, old then new
    n_classes: int
    k: int

    def logits(self, z: Tensor) -> Tensor:
        """Logarithm of the share of votes, plus a tenth of a vote divided by nearness to the class means.

        The tenth of a vote ranks the classes that none of the neighbours belongs to.
        """
        k = min(self.k, len(self.points))
        _, rows = nearest_neighbors(z, k, among=self.points)
        voted = self.labels[rows]  # (n, k)
        votes = torch.zeros(len(z), self.n_classes).scatter_add_(1, voted, torch.ones(voted.shape))
        means = class_means(self.points, self.labels, self.n_classes)
        scale = float((self.points - means[self.labels]).square().sum(dim=1).mean())
        nearness = Centers(means, max(scale, 1e-12)).logits(z).softmax(dim=1)
        return ((votes + 0.1 * nearness + 1e-6) / (k + 0.1 + 1e-6 * self.n_classes)).log()


def class_means(z: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Mean row of each class; for a class without members, the mean of all rows."""
    counts = torch.bincount(labels, minlength=n_classes)
    means = torch.zeros(n_classes, z.shape[1]).index_add_(0, labels, z) / counts[:, None].clamp_min(1)
    means[counts == 0] = z.mean(dim=0)
    return means


Classifier = Centers | Neighbors
