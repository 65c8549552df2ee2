"""Stage 2: features in which the new classes fall apart, then clusters."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cdknet.history import History
from cdknet.hsic import Factor, gaussian_kernel, hsic, hsic_normalized
from cdknet.networks import Network, embed, unit_length
from cdknet.options import DiscoverOptions
from cdknet.spectral import median_distance, neighbor_embedding, spectral_embedding, subspace_turn
from cdknet.stages.clusters import Clusterer, cut_features, wanted_classes
from cdknet.stages.loop import Checkpoint, Loop, Problem, Snapshot, batches, derive_seed, once
from cdknet.views import Views


class Discovery(NamedTuple):
    """What stage 2 found."""

    network: Network
    pseudo_labels: Tensor  # (n',) cluster of each unlabelled row, 0 ... n_new_classes - 1
    centers: Tensor  # (n_new_classes, d) mean features of the clusters
    votes: bool = False  # a sample's class is voted by its neighbours, not given by the nearest centre
    U: Tensor | None = None  # (n1 + n1', r) the last spectral embedding, where the method has one
    U_rows: Tensor | None = None  # (n1 + n1',) the rows of X that U is about
    sigma: float | None = None


def discover(
    network: Network,
    problem: Problem,
    options: DiscoverOptions,
    *,
    learning_rate: float = 0.001,
    clusterer: Clusterer | None = None,
    views: Views | None = None,
    seed: int = 0,
    history: History | None = None,
    checkpoint: Checkpoint | None = None,
) -> Discovery:
    """Stage 2, section V.C: Algorithm 1, then clusters of f(X_u), by k-means unless `readout` says otherwise.

    maximise  HSIC(f(X), U) + λ HSIC(f(X_l), Y)  over the network and UᵀU = I, Eq. (9),

    by turns: one epoch of gradient ascent on the network while U rests, then the U step in closed form
    while the network rests. X is a subsample of old and new rows. `learning_rate` holds where the options
    set none of their own; `views` have no part in the paper's method.

    The two terms are `cluster_term` and `label_term`.
    """
    m_u = wanted_classes(options)
    rate = options.discover_learning_rate or learning_rate
    network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.trainable(), lr=rate, maximize=True)
    loop = Loop("discover", network, optimizer, seed=seed, history=history, checkpoint=checkpoint)

    draw = torch.Generator().manual_seed(derive_seed(seed, "subsample"))
    old = subsample(len(problem.old_rows), options, draw)
    new = subsample(len(problem.new_rows), options, draw)
    rows = torch.cat([problem.old_rows[old], problem.new_rows[new]])  # X_1 of section V.E
    old_rows = problem.old_rows[old]  # X_l1
    Y = nn.functional.one_hot(problem.old_targets[old], problem.n_old_classes).float()
    r = problem.n_old_classes + m_u
    if len(rows) <= r:
        raise ValueError(
            f"Stage 2 needs more samples than classes, old and new together ({r}). Got {len(rows)}. "
            "Raise subsample or min_subsample."
        )
    lam = options.label_weight
    device = network.device

    def features(x: Tensor) -> Tensor:
        z = network.features(x)
        return unit_length(z) if options.normalize_features else z

    def spectral_step() -> tuple[Tensor, float]:
        """U and the kernel's width for the features as they are now."""
        z = embed(network, problem.inputs, rows, normalize=options.normalize_features).features
        try:
            sigma = options.sigma_scale * median_distance(z)
        except ValueError as collapsed:
            raise FloatingPointError(
                f"Stage discover, epoch {loop.epoch + 1}: {collapsed} "
                + ("Lower discover_learning_rate." if loop.epoch else "Are the samples of X all alike?")
            ) from None
        if options.kernel == "neighbors":
            return neighbor_embedding(z, r, neighbors=options.neighbors).vectors, sigma
        limit = options.memory_limit * 1e9
        return spectral_embedding(z, r, sigma, memory_limit=limit, seed=seed).vectors, sigma

    def epoch(generator: torch.Generator) -> dict[str, Any]:
        U, sigma = loop.tensors["U"], float(loop.facts["sigma"])
        network.train()
        values: dict[str, list[float]] = {"hsic_U": [], "hsic_Y": []}
        labelled = endless_batches(len(old_rows), options.discover_batch_size, generator)
        # Alg. 1: one epoch of ascent on theta, Eqs. (10) and (11) alternately.
        for batch in loop.ticking(
            batches(len(rows), options.discover_batch_size, generator), limit=options.discover_epochs
        ):
            if lam < math.inf:  # Eq. (10)
                z = features(problem.inputs.take(rows[batch], device))
                value = cluster_term(z, U[batch].to(device), sigma, n_rows=len(rows))
                values["hsic_U"].append(_ascend(optimizer, value))
            if lam > 0:  # Eq. (11)
                chosen = next(labelled)
                z = features(problem.inputs.take(old_rows[chosen], device))
                value = label_term(z, Y[chosen].to(device), sigma, n_classes=r)
                values["hsic_Y"].append(_ascend(optimizer, value, lam if lam < math.inf else 1.0))
        # Alg. 1: update U by eigendecomposition, Eq. (14).
        loop.tensors["U"], loop.facts["sigma"] = spectral_step()
        turn = subspace_turn(U, loop.tensors["U"])
        means = {name: float(np.mean(v)) for name, v in values.items() if v}
        return {"sigma": loop.facts["sigma"], "turn": turn, **means, "stop": turn < options.turn_tolerance}

    if loop.epoch == 0:  # Alg. 1: initialise U by spectral embedding of f(X).
        loop.tensors["U"], loop.facts["sigma"] = spectral_step()
    loop.run(options.discover_epochs, epoch)

    loop.finish()

    def clusters() -> Snapshot:
        """Alg. 1: cluster f(X_u)."""
        z = embed(network, problem.inputs, problem.new_rows, normalize=options.normalize_features).features
        return cut_features(z, options, clusterer, seed)

    found = once(checkpoint, "cluster", clusters)
    return Discovery(
        network.eval(),
        found.tensors["pseudo_labels"],
        found.tensors["centers"],
        votes=found.facts["votes"],
        U=loop.tensors["U"],
        U_rows=rows,
        sigma=float(loop.facts["sigma"]),
    )


def cluster_term(z: Tensor, U: Tensor, sigma: float, *, n_rows: int) -> Tensor:
    """HSIC(f(X), U) of a batch, the first term of Eq. (9): n HSIC(K̃, N U Uᵀ), where U is a part of N rows.

    K̃ is degree-normalised, Eqs. (5)-(6). With UᵀU = I to the letter it would shrink as 1/n²; times the
    batch and the length of U it is the sum of the r top eigenvalues of the centred K̃: r - 1 when every
    class is one point.
    """
    return len(z) * hsic_normalized(gaussian_kernel(z, sigma), Factor(math.sqrt(n_rows) * U))


def label_term(z: Tensor, Y: Tensor, sigma: float, *, n_classes: int) -> Tensor:
    """HSIC(f(X_l), Y) of a batch, the second term of Eq. (9): r HSIC(K, Y Yᵀ), K as it is (section IV.A).

    Times r, as the rows of √N U have a squared length of r in the mean and those of Y have 1: so λ weighs
    rows of equal length, however many classes there are.
    """
    return n_classes * hsic(gaussian_kernel(z, sigma), Factor(Y))


def _ascend(optimizer: torch.optim.Optimizer, value: Tensor, weight: float = 1.0) -> float:
    """One step up `weight` x `value`; the value."""
    optimizer.zero_grad()
    (weight * value).backward()
    optimizer.step()
    return float(value.detach())


def subsample(available: int, options: DiscoverOptions, generator: torch.Generator) -> Tensor:
    """n_1 of n positions, section V.E: a share of them, but not too few."""
    wanted = max(round(options.subsample * available), options.min_subsample, 2)
    return torch.randperm(available, generator=generator)[:wanted].sort().values


def endless_batches(rows: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of one pass after another."""
    while True:
        yield from batches(rows, size, generator)
