"""Stage 2 as in the paper: features in which old and new classes fall apart, then clusters."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from cdknet.core.clustering import Clusterer, wanted_classes
from cdknet.core.hsic import Factor, gaussian_kernel, hsic, hsic_normalized, unit_length
from cdknet.core.seeds import derive_seed
from cdknet.core.spectral import median_distance, neighbor_embedding, spectral_embedding, subspace_turn
from cdknet.methods.objective import Discovery, Objective, Term, climb, endless_batches, subsample
from cdknet.nets.augment import Views
from cdknet.nets.network import Network, embed
from cdknet.options import DiscoverOptions
from cdknet.runs.checkpoints import Checkpoint
from cdknet.training.history import History
from cdknet.training.loop import Loop
from cdknet.training.problem import Problem, batches


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

    `learning_rate` holds where the options set none of their own; `views` have no part in the paper's method.
    """
    rate = options.discover_learning_rate or learning_rate
    objective = Turns(copy.deepcopy(network), problem, options, rate, seed)
    return climb(objective, clusterer=clusterer, history=history, checkpoint=checkpoint)


class Turns(Objective):
    """maximise  HSIC(f(X), U) + λ HSIC(f(X_l), Y)  over the network and UᵀU = I, Eq. (9),

    by turns: one epoch of gradient ascent on the network while U rests, then the U step in closed form
    while the network rests. X is a subsample of old and new rows. The two terms are `cluster_term` and
    `label_term`.
    """

    def __init__(
        self, network: Network, problem: Problem, options: DiscoverOptions, rate: float, seed: int
    ) -> None:
        self.network, self.problem, self.options, self.seed = network, problem, options, seed
        self.optimizer = torch.optim.Adam(network.trainable(), lr=rate, maximize=True)
        self.epochs, self.on_sphere = options.discover_epochs, options.normalize_features
        draw = torch.Generator().manual_seed(derive_seed(seed, "subsample"))
        old = subsample(len(problem.old_rows), options, draw)
        new = subsample(len(problem.new_rows), options, draw)
        self.old_rows = problem.old_rows[old]  # X_l1
        self.U_rows = torch.cat([self.old_rows, problem.new_rows[new]])  # X_1 of section V.E
        self.Y = nn.functional.one_hot(problem.old_targets[old], problem.n_old_classes).float()
        self.r = problem.n_old_classes + wanted_classes(options)
        if len(self.U_rows) <= self.r:
            raise ValueError(
                f"Stage 2 needs more samples than classes, old and new together ({self.r}). "
                f"Got {len(self.U_rows)}. Raise subsample or min_subsample."
            )

    def start(self, loop: Loop) -> None:
        """Alg. 1: initialise U by spectral embedding of f(X)."""
        self.spectral_step(loop)

    def steps(self, loop: Loop, generator: torch.Generator) -> Iterator[dict[str, Term]]:
        """Alg. 1: one epoch of ascent on theta, Eqs. (10) and (11) alternately."""
        U, sigma, lam = loop.tensors["U"], self.sigma(loop), self.options.label_weight
        size, device = self.options.discover_batch_size, self.network.device
        labelled = endless_batches(len(self.old_rows), size, generator)
        for batch in loop.ticking(batches(len(self.U_rows), size, generator), limit=self.epochs):
            if lam < math.inf:  # Eq. (10)
                z = self._features(self.U_rows[batch])
                yield {"hsic_U": Term(cluster_term(z, U[batch].to(device), sigma, n_rows=len(self.U_rows)))}
            if lam > 0:  # Eq. (11)
                chosen = next(labelled)
                z = self._features(self.old_rows[chosen])
                value = label_term(z, self.Y[chosen].to(device), sigma, n_classes=self.r)
                yield {"hsic_Y": Term(value, lam if lam < math.inf else 1.0)}

    def rest(self, loop: Loop) -> dict[str, Any]:
        """Alg. 1: update U by eigendecomposition, Eq. (14)."""
        former = loop.tensors["U"]
        self.spectral_step(loop)
        turn = subspace_turn(former, loop.tensors["U"])
        return {"sigma": self.sigma(loop), "turn": turn, "stop": turn < self.options.turn_tolerance}

    def spectral_step(self, loop: Loop) -> None:
        """U and the kernel's width for the features as they are now."""
        options = self.options
        z = embed(self.network, self.problem.inputs, self.U_rows, normalize=self.on_sphere).features
        try:
            sigma = options.sigma_scale * median_distance(z)
        except ValueError as collapsed:
            raise FloatingPointError(
                f"Stage discover, epoch {loop.epoch + 1}: {collapsed} "
                + ("Lower discover_learning_rate." if loop.epoch else "Are the samples of X all alike?")
            ) from None
        if options.kernel == "neighbors":
            found = neighbor_embedding(z, self.r, neighbors=options.neighbors)
        else:
            limit = options.memory_limit * 1e9
            found = spectral_embedding(z, self.r, sigma, memory_limit=limit, seed=self.seed)
        loop.tensors["U"], loop.facts["sigma"] = found.vectors, sigma

    def _features(self, rows: Tensor) -> Tensor:
        z = self.network.features(self.problem.inputs.take(rows, self.network.device))
        return unit_length(z) if self.on_sphere else z


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
