"""How well labels suit their samples, from features and nothing else: a signal that every method has."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cdknet.core.classifiers import Centers, class_means
from cdknet.core.clustering import GRAPHS, cluster, spectral_labels
from cdknet.core.metrics import right_under_match
from cdknet.core.neighbors import nearest_neighbors

NEIGHBORS = 15
MOST_CLUSTERED = 5000  # samples that are clustered once more, to see whether labels agree
NEAREST = 5  # of them that speak for a sample which is not among them
RESTARTS = 2  # of k-means, for each clustering
MOST_VOTERS = 10_000  # samples among which neighbours are looked for
MOST_HALVED = 1000  # samples of a class that is split in two


def raw_confidence(z: Tensor, labels: NDArray[np.int64], n_classes: int) -> NDArray[np.float64]:
    """(n,) in [0, 1]: how well each label suits its sample, from features z of stage 2 and nothing else.

    The softmax of the nearness to the means of the labels, times the share of the 15 nearest neighbours
    that carry the same label, times (1 + a) / 2 where a is the share of other clusterings of z that agree.
    Comparable from fit to fit, whatever the method.
    """
    own = torch.from_numpy(np.ascontiguousarray(labels, dtype=np.int64))
    means = class_means(z, own, n_classes)
    scale = max(float((z - means[own]).square().sum(dim=1).mean()), 1e-12)
    nearness = Centers(means, scale).logits(z).softmax(dim=1)
    softmax = nearness[torch.arange(len(z)), own].double().numpy()
    agreed = (1 + agreement(z, labels, n_classes)) / 2
    raw: NDArray[np.float64] = softmax * _neighbor_share(z, own).double().numpy() * agreed
    return raw


def agreement(z: Tensor, labels: NDArray[np.int64], n_classes: int) -> NDArray[np.float64]:
    """(n,) share of other clusterings of z that say the same: k-means, and two graphs, finer and coarser.

    Where two classes are taken for one and a third is split, every sample is near its mean and among its
    like; another clustering is not likely to go wrong in the same way. At most `MOST_CLUSTERED` samples are
    clustered; another one takes the value of those nearest to it.
    """
    if len(z) <= 2 * n_classes:  # too few to be clustered
        return np.ones(len(z))
    rows = _some_rows(len(z), max(MOST_CLUSTERED, 4 * n_classes))
    part = z[rows]
    others = [cluster(part, n_classes, restarts=RESTARTS)]
    others += [spectral_labels(part, n_classes, neighbors=graph, restarts=RESTARTS) for graph in GRAPHS]
    same = [torch.from_numpy(right_under_match(labels[rows], other.numpy())).double() for other in others]
    share = torch.stack(same).mean(dim=0)
    if len(rows) < len(z):
        _, found = nearest_neighbors(z, NEAREST, among=part)
        share = share[found].mean(dim=1)
    return share.numpy()


def _some_rows(n: int, most: int) -> Tensor:
    """At most `most` of n rows, drawn at random: samples may come class by class in turn."""
    if n <= most:
        return torch.arange(n)
    draw = torch.Generator().manual_seed(0)
    return torch.randperm(n, generator=draw)[:most].sort().values


def _neighbor_share(z: Tensor, labels: Tensor) -> Tensor:
    """(n,) share of a sample's nearest neighbours, other than itself, that carry its label."""
    if len(z) < 2:
        return torch.ones(len(z))
    voters = _some_rows(len(z), MOST_VOTERS)
    k = min(NEIGHBORS, len(voters) - 1)
    _, found = nearest_neighbors(z, k + 1, among=z[voters])
    rows = voters[found]
    other = rows != torch.arange(len(z))[:, None]
    other[other.all(dim=1), -1] = False  # the sample is none of the voters: the farthest goes
    same = (labels[rows] == labels[:, None]) & other
    return same.sum(dim=1) / other.sum(dim=1).clamp_min(1)


def raw_of_halves(z: Tensor, truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """Raw confidences of the samples of each class when it is split in two, as no class should be."""
    out = [np.zeros(0)]
    for c in np.unique(truth):
        members = torch.from_numpy(np.flatnonzero(truth == c))
        part = z[members[_some_rows(len(members), MOST_HALVED)]]
        if len(part) > 2 * NEIGHBORS:
            labels = cluster(part, 2, restarts=RESTARTS).numpy()
            out.append(raw_confidence(part, labels, 2))
    return np.concatenate(out)
