"""CD-KNet, the paper's method. `discover` is Algorithm 1."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cdknet.core.clustering import Clusters, cluster_features
from cdknet.core.hsic import Factor, gaussian_kernel, hsic, hsic_normalized, unit_length
from cdknet.core.seeds import derive_seed
from cdknet.core.spectral import median_distance, neighbor_embedding, spectral_embedding, subspace_turn
from cdknet.methods.base import Discovery, Method, discovered, with_rate
from cdknet.nets.network import Network, embed
from cdknet.options import CDKNetOptions
from cdknet.training.context import FitContext
from cdknet.training.loop import Loop, Term, ascend, once
from cdknet.training.problem import Problem, batches, endless_batches, subsample


@dataclass
class Turn:
    """The state of the alternation between network and U."""

    U: Tensor  # (n1 + n1', r)
    sigma: float  # width of the kernel


def discover(network: Network, problem: Problem, options: CDKNetOptions, context: FitContext) -> Discovery:
    """Stage 2, section V.C: Algorithm 1, then clusters of f(X_u), by k-means unless `readout` is set.

    maximise  HSIC(f(X), U) + λ HSIC(f(X_l), Y)  over the network and UᵀU = I, Eq. (9),

    alternately: one epoch of gradient ascent on the network with U fixed, then the U step in closed form with
    the network fixed. X is a subsample of old and new rows.
    """
    network = copy.deepcopy(network)  # f_theta
    X = kernel_rows(problem, options, context.seed)
    optimizer = torch.optim.Adam(network.trainable(), lr=options.discover_learning_rate, maximize=True)
    loop = Loop("discover", context, optimizer, network=network)

    def features(rows: Tensor) -> Tensor:
        z = network.features(problem.inputs.take(rows, network.device))
        return unit_length(z) if options.normalize_features else z

    # Alg. 1: initialise U by spectral embedding of f(X).
    turn = loop.remember(Turn, lambda: spectral_step(network, problem, X, options, loop))
    while loop.goes_on(options.discover_epochs):
        with loop.epoch() as epoch:
            network.train()
            lam, size = options.label_weight, options.discover_batch_size
            labelled = endless_batches(len(X.old), size, epoch.generator)

            # Alg. 1: one epoch of ascent on theta, Eqs. (10) and (11) alternately.
            for batch in epoch.ticking(batches(len(X.rows), size, epoch.generator)):
                if lam < math.inf:  # Eq. (10)
                    z, U = features(X.rows[batch]), turn.U[batch].to(network.device)
                    value = cluster_term(z, U, turn.sigma, n_rows=len(X.rows))
                    ascend(optimizer, {"hsic_U": Term(value)}, epoch)
                if lam > 0:  # Eq. (11)
                    chosen = next(labelled)
                    z, Y = features(X.old[chosen]), X.Y[chosen].to(network.device)
                    value = label_term(z, Y, turn.sigma, n_classes=X.r)
                    ascend(optimizer, {"hsic_Y": Term(value, lam if lam < math.inf else 1.0)}, epoch)

            # Alg. 1: update U by eigendecomposition, Eq. (14).
            before, after = turn.U, spectral_step(network, problem, X, options, loop)
            turn.U, turn.sigma = after.U, after.sigma
            moved = subspace_turn(before, turn.U)
            epoch.record(sigma=turn.sigma, turn=moved)
            epoch.stop = moved < options.turn_tolerance
    loop.finish()

    def clusters() -> Clusters:
        z = embed(network, problem.inputs, problem.new_rows, normalize=options.normalize_features).features
        how = (options.n_new_classes, options.readout, context.clusterer)
        return cluster_features(z, *how, restarts=options.kmeans_restarts, seed=context.seed)

    found = once(context.checkpoint, "cluster", Clusters, clusters)
    return discovered(network, found, U=turn.U, U_rows=X.rows, sigma=turn.sigma)


class KernelRows(NamedTuple):
    """The samples that the kernel is built on, section V.E."""

    old: Tensor  # (n1,) rows with a label, X_l1
    rows: Tensor  # (n1 + n1',) all of them, X_1: the old ones first
    Y: Tensor  # (n1, m_l) one-hot labels of `old`
    r: int  # m_l + m_u, columns of U


def kernel_rows(problem: Problem, options: CDKNetOptions, seed: int) -> KernelRows:
    """A subsample of the old and of the new rows."""
    draw = torch.Generator().manual_seed(derive_seed(seed, "subsample"))
    old = subsample(len(problem.old_rows), options.subsample, options.min_subsample, draw)
    new = subsample(len(problem.new_rows), options.subsample, options.min_subsample, draw)
    Y = nn.functional.one_hot(problem.old_targets[old], problem.n_old_classes).float()
    rows = torch.cat([problem.old_rows[old], problem.new_rows[new]])
    r = problem.n_old_classes + options.n_new_classes
    if len(rows) <= r:
        raise ValueError(
            f"Stage 2 needs more samples than classes, old and new together ({r}). "
            f"Got {len(rows)}. Raise subsample or min_subsample."
        )
    return KernelRows(problem.old_rows[old], rows, Y, r)


def spectral_step(
    network: Network, problem: Problem, X: KernelRows, options: CDKNetOptions, loop: Loop
) -> Turn:
    """U and the kernel's width, for the current features."""
    z = embed(network, problem.inputs, X.rows, normalize=options.normalize_features).features
    try:
        sigma = options.sigma_scale * median_distance(z)
    except ValueError as collapsed:
        raise FloatingPointError(
            f"Stage discover, epoch {loop.done_epochs + 1}: {collapsed} "
            + ("Lower discover_learning_rate." if loop.limit else "Are all samples of X the same?")
        ) from None
    if options.kernel == "neighbors":
        return Turn(neighbor_embedding(z, X.r, neighbors=options.neighbors).vectors, sigma)
    limit = options.memory_limit * 1e9
    return Turn(spectral_embedding(z, X.r, sigma, memory_limit=limit, seed=loop.seed).vectors, sigma)


def cluster_term(z: Tensor, U: Tensor, sigma: float, *, n_rows: int) -> Tensor:
    """HSIC(f(X), U) of a batch, the first term of Eq. (9): n HSIC(K̃, N U Uᵀ), U a batch of N rows.

    K̃ is degree-normalised, Eqs. (5)-(6). With UᵀU = I taken literally, the term would shrink as 1/n².
    Multiplied by the batch size and the number of rows of U, it is the sum of the r top eigenvalues of the
    centred K̃: r - 1 when every class is one point.
    """
    return len(z) * hsic_normalized(gaussian_kernel(z, sigma), Factor(math.sqrt(n_rows) * U))


def label_term(z: Tensor, Y: Tensor, sigma: float, *, n_classes: int) -> Tensor:
    """HSIC(f(X_l), Y) of a batch, the second term of Eq. (9): r HSIC(K, Y Yᵀ), K unnormalised (sec. IV.A).

    The factor r is there because the rows of √N U have a mean squared length of r, and those of Y have 1. So
    λ weighs rows of equal length, however many classes there are.
    """
    return n_classes * hsic(gaussian_kernel(z, sigma), Factor(Y))


METHOD = Method(
    "cd-knet",
    "CD-KNet",
    CDKNetOptions,
    discover,
    with_rate,
    clusterings=("agreed", "spectral", "k-means"),
    tunable=("label_weight", "readout"),
)
