"""How well labels fit their samples, from features alone: a signal that is available for every method."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cdknet.core.classifiers import Centers, class_means
from cdknet.core.clustering import GRAPHS, cluster, spectral_labels
from cdknet.core.metrics import right_under_match
from cdknet.core.neighbors import nearest_neighbors

NEIGHBORS = 15
MOST_CLUSTERED = 5000  # most samples that are clustered again, to see whether labels agree
NEAREST = 5  # of them whose mean agreement is used for a sample that is not among them
RESTARTS = 2  # of k-means, per clustering
MOST_VOTERS = 10_000  # most samples among which neighbours are searched
MOST_HALVED = 1000  # most samples of a class that is split in two


def raw_confidence(z: Tensor, labels: NDArray[np.int64], n_classes: int) -> NDArray[np.float64]:
    """(n,) in [0, 1]: how well each label fits its sample, from the features z of stage 2 alone.

    The softmax of the nearness to the means of the labels, times the share of the 15 nearest neighbours that
    carry the same label, times (1 + a) / 2 where a is the share of other clusterings of z that agree. It is
    comparable across fits and methods.
    """
    own = torch.from_numpy(np.ascontiguousarray(labels, dtype=np.int64))
    means = class_means(z, own, n_classes)
    scale = max(float((z - means[own]).square().sum(dim=1).mean()), 1e-12)
    nearness = Centers(means, scale).logits(z).softmax(dim=1)
    softmax = nearness[torch.arange(len(z)), own].double().numpy()
    agreed = (1 + agreement(z, labels, n_classes)) / 2
    raw: NDArray[np.float64] = softmax * _neighbor_share(z, own).double().numpy() * agreed
    return raw


class RawConfidence(NamedTuple):
    """Raw confidences of the unlabelled samples."""

    new: NDArray[np.float64]  # of those with a new class, in order
    old: NDArray[np.float64]  # of those with an old class, in order


def raw_of_mixture(
    z: Tensor,
    labels: NDArray[np.int64],
    given: NDArray[np.bool_],
    novelty: NDArray[np.floating[Any]],
    n_old: int,
    n_new: int,
) -> RawConfidence:
    """How well labels fit that may be old or new. `labels` are old classes, then new ones, -1 for noise.

    For a new class it is `raw_confidence` among the new samples, times P(new). For an old class it is the
    share of the nearest labelled samples that carry the same label, times P(old).
    """
    new, old = ~given & (labels >= n_old), ~given & (labels >= 0) & (labels < n_old)
    raw_new = raw_confidence(z[torch.from_numpy(new)], labels[new] - n_old, n_new) * novelty[new]
    raw_old = np.zeros(0)
    if old.any():
        voters = torch.from_numpy(np.flatnonzero(given))
        voters = voters[_some_rows(len(voters), MOST_VOTERS)]
        _, rows = nearest_neighbors(z[torch.from_numpy(old)], min(NEIGHBORS, len(voters)), among=z[voters])
        same = labels[voters[rows].numpy()] == labels[old][:, None]
        raw_old = same.mean(axis=1) * (1 - novelty[old].astype(np.float64))
    return RawConfidence(raw_new, raw_old)


def agreement(z: Tensor, labels: NDArray[np.int64], n_classes: int) -> NDArray[np.float64]:
    """(n,) share of other clusterings of z that agree: k-means, and two spectral ones, finer and coarser.

    If two classes were merged and a third was split, every sample is still near its cluster mean, with
    neighbours of the same label. But another clustering is unlikely to make the same mistake. At most
    `MOST_CLUSTERED` samples are clustered. Any other sample gets the mean value of those nearest to it.
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
    """At most `most` of n rows, drawn at random, since samples may be sorted by class."""
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
    other[other.all(dim=1), -1] = False  # the sample is not a voter itself: drop the farthest
    same = (labels[rows] == labels[:, None]) & other
    return same.sum(dim=1) / other.sum(dim=1).clamp_min(1)


def raw_of_halves(z: Tensor, truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """Raw confidences of the samples of each class after it was split in two, which is always a mistake."""
    out = [np.zeros(0)]
    for c in np.unique(truth):
        members = torch.from_numpy(np.flatnonzero(truth == c))
        part = z[members[_some_rows(len(members), MOST_HALVED)]]
        if len(part) > 2 * NEIGHBORS:
            labels = cluster(part, 2, restarts=RESTARTS).numpy()
            out.append(raw_confidence(part, labels, 2))
    return np.concatenate(out)
