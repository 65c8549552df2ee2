"""Rivals on fixed features of mixed unlabelled data: GCD's semi-supervised k-means, and PIM.

Each takes features z (n, d) and labels y (n,): 0 .. n_old - 1, or UNLABELED. It returns one label per sample,
old ones as given, new ones as n_old .. n_old + n_new - 1. The true classes of unlabelled samples are unknown
here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cdknet.core.metrics import clustering_accuracy
from cdknet.core.openworld import UNLABELED

Features = NDArray[np.floating]
Labels = NDArray[np.int64]
Rival = Callable[[Features, Labels, int, int, int], Labels]  # z, y, n_old, n_new, seed

RESTARTS, ROUNDS = 10, 100  # of k-means
LONGEST, AXES = 100, 50  # samples with more values than LONGEST are reduced to AXES principal axes
LAMBDAS = tuple(0.1 * step for step in range(1, 11))  # PIM's paper: .05, .10, ... 1
TEMPERATURE, RATE, DECAY = 25.0, 1e-3, 1e-2  # as in PIM's code
STEPS, SEARCH_STEPS = 300, 100
MOST_SEARCHED = 10_000  # samples on which lambda is chosen


class Clusters(NamedTuple):
    labels: Tensor  # (n,)
    centers: Tensor  # (k, d)
    inertia: float  # sum of squared distances to the centres


def ss_k_means(z: Features, y: Labels, n_old: int, n_new: int, seed: int) -> Labels:
    """Semi-supervised k-means (Vaze et al., Generalized Category Discovery, CVPR 2022).

    A labelled sample always belongs to the centre of its class. The other centres start by k-means++.
    """
    best = _best_clusters(torch.as_tensor(z).float(), torch.as_tensor(y), n_old, n_new, seed)
    return best.labels.numpy()


def ss_k_means_on_samples(X: NDArray[np.generic], y: Labels, n_old: int, n_new: int, seed: int) -> Labels:
    """The same on flattened samples, on principal axes where these are long."""
    flat = np.asarray(X).reshape(len(X), -1).astype(np.float32)
    if flat.shape[1] > LONGEST:
        from sklearn.decomposition import PCA

        axes = min(AXES, *flat.shape)
        flat = PCA(axes, svd_solver="randomized", random_state=seed).fit_transform(flat)
    return ss_k_means(flat, y, n_old, n_new, seed)


def pim(z: Features, y: Labels, n_old: int, n_new: int, seed: int) -> Labels:
    """Parametric information maximisation (Chiaroni et al., ICCV 2023): one linear layer on fixed features.

    Minimises CE(labelled) + lambda H(Y | z) - H(Y), the conditional entropy over unlabelled samples and the
    marginal over all. It starts from the centres of semi-supervised k-means. As in its paper, lambda is the
    one with which the layer, trained without labels, finds the labelled classes best.
    """
    features, targets = torch.nn.functional.normalize(torch.as_tensor(z).float(), dim=1), torch.as_tensor(y)
    weight = _best_clusters(features, targets, n_old, n_new, seed).centers
    best = _choose_lambda(features, targets, n_old + n_new, seed)
    layer = _train_layer(features, targets, weight, best, steps=STEPS, supervised=True)
    labels = torch.where(targets == UNLABELED, (features @ layer.T).argmax(dim=1), targets)
    return labels.numpy()


def _best_clusters(z: Tensor, y: Tensor, n_old: int, n_new: int, seed: int) -> Clusters:
    """The restart with the least sum of squares."""
    generator = torch.Generator().manual_seed(seed)
    runs = (_clusters(z, y, n_old, n_new, generator) for _ in range(RESTARTS))
    return min(runs, key=lambda found: found.inertia)


def _clusters(z: Tensor, y: Tensor, n_old: int, n_new: int, generator: torch.Generator) -> Clusters:
    fixed = y != UNLABELED
    centers = _first_centers(z, y, n_old, n_new, generator)
    labels = torch.full_like(y, UNLABELED)
    for _ in range(ROUNDS):
        distance = _squared_distances(z, centers)
        moved = torch.where(fixed, y, distance.argmin(dim=1))
        done = torch.equal(moved, labels)
        labels = moved
        if done:
            break
        centers = _means(z, labels, centers)
    inertia = float(_squared_distances(z, centers).gather(1, labels[:, None]).double().sum())
    return Clusters(labels, centers, inertia)


def _first_centers(z: Tensor, y: Tensor, n_old: int, n_new: int, generator: torch.Generator) -> Tensor:
    """The means of the labelled classes; then unlabelled samples, drawn by squared distance (k-means++)."""
    fixed = y != UNLABELED
    centers = _means(z[fixed], y[fixed], torch.zeros(n_old, z.shape[1]))
    free = z[~fixed]
    away = _squared_distances(free, centers).amin(dim=1) if n_old else torch.ones(len(free))
    for _ in range(n_new):
        reach = away.double().cumsum(dim=0)
        drawn = torch.rand(1, generator=generator, dtype=torch.float64) * reach[-1]
        center = free[int(torch.searchsorted(reach, drawn).clamp(max=len(free) - 1))][None]
        away = torch.minimum(away, _squared_distances(free, center)[:, 0])
        centers = torch.cat([centers, center])
    return centers


def _means(z: Tensor, labels: Tensor, former: Tensor) -> Tensor:
    """(k, d) the mean of each cluster; an empty one stays where it was."""
    counts = torch.bincount(labels, minlength=len(former))[:, None]
    sums = torch.zeros_like(former).index_add_(0, labels, z)
    return torch.where(counts > 0, sums / counts.clamp(min=1), former)


def _squared_distances(z: Tensor, centers: Tensor) -> Tensor:
    lengths = z.square().sum(dim=1)[:, None] + centers.square().sum(dim=1)
    return torch.addmm(lengths, z, centers.T, alpha=-2).clamp_(min=0)


def _choose_lambda(z: Tensor, y: Tensor, n_classes: int, seed: int) -> float:
    """The lambda whose clusters, found without labels, match the labelled classes best."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(z), generator=generator)[:MOST_SEARCHED]
    z, y = z[rows], y[rows]
    fixed = y != UNLABELED
    start = _best_clusters(z, torch.full_like(y, UNLABELED), 0, n_classes, seed).centers
    accuracies = {}
    for weight in LAMBDAS:
        layer = _train_layer(z, y, start, weight, steps=SEARCH_STEPS, supervised=False)
        found = (z[fixed] @ layer.T).argmax(dim=1)
        accuracies[weight] = clustering_accuracy(y[fixed].numpy(), found.numpy())
    return max(accuracies, key=lambda weight: accuracies[weight])


def _train_layer(
    z: Tensor, y: Tensor, start: Tensor, weight: float, *, steps: int, supervised: bool
) -> Tensor:
    """(k, d) the weights of the layer after `steps` steps on all samples."""
    fixed = y != UNLABELED
    layer = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([layer], lr=RATE, weight_decay=DECAY)
    for _ in range(steps):
        log_p = torch.log_softmax(TEMPERATURE * z @ layer.T, dim=1)
        p = log_p.exp()
        marginal = p.mean(dim=0)
        conditional = -(p[~fixed] * log_p[~fixed]).sum(dim=1).mean()
        loss = weight * conditional + (marginal * marginal.clamp(min=1e-12).log()).sum()
        if supervised:
            loss = loss + torch.nn.functional.nll_loss(log_p[fixed], y[fixed])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return layer.detach()
