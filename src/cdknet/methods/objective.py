"""Stage 2 as one objective: terms, each a target that the features shall depend on, climbed by turns with U.

The paper's method (`discover`) and CD-KNet+ (`plus`) are two objectives. They differ in their terms, in the
batches of which these are taken and in the steps. How they are climbed, recorded, interrupted and taken up
again, and how the samples are then clustered, is here and is the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cdknet.core.clustering import Clusterer, cut_features
from cdknet.nets.network import Network, embed
from cdknet.options import DiscoverOptions
from cdknet.runs.checkpoints import Checkpoint, Snapshot
from cdknet.training.history import History
from cdknet.training.loop import Loop, once
from cdknet.training.problem import Problem, batches


class Discovery(NamedTuple):
    """What stage 2 found."""

    network: Network
    pseudo_labels: Tensor  # (n',) cluster of each unlabelled row, 0 ... n_new_classes - 1
    centers: Tensor  # (n_new_classes, d) mean features of the clusters
    votes: bool = False  # a sample's class is voted by its neighbours, not given by the nearest centre
    U: Tensor | None = None  # (n1 + n1', r) the last spectral embedding, where the method has one
    U_rows: Tensor | None = None  # (n1 + n1',) the rows of X that U is about
    sigma: float | None = None


class Term(NamedTuple):
    """A summand of the objective: `weight` x `value`."""

    value: Tensor  # of one batch
    weight: float = 1.0


class Objective(ABC):
    """What stage 2 maximises over the weights of a network. U, where there is one, is `loop.tensors["U"]`."""

    network: Network  # its own: it is changed
    problem: Problem
    options: DiscoverOptions
    seed: int
    optimizer: torch.optim.Optimizer  # that goes up
    epochs: int  # most of them
    on_sphere: bool  # features are of unit length
    U_rows: Tensor  # the rows of X that U is about

    def start(self, loop: Loop) -> None:
        """What is needed before the first epoch."""
        return None

    @abstractmethod
    def steps(self, loop: Loop, generator: torch.Generator) -> Iterator[dict[str, Term]]:
        """The terms of each step of an epoch, by name. When the next are asked for, the step is taken."""

    def rest(self, loop: Loop) -> dict[str, Any]:
        """What is done after an epoch, while the network rests; what there is to tell of it."""
        return {}

    def end(self) -> None:
        """What is done after the last epoch."""
        return None

    def own_labels(self, loop: Loop, z: Tensor) -> Tensor | None:
        """Classes of the new samples, features z, where the objective itself has a say in them."""
        return None

    def samples(self) -> Tensor | None:
        """The new samples themselves, where they can be clustered too."""
        return None

    def sigma(self, loop: Loop) -> float:
        """The width of the kernel."""
        return float(loop.facts["sigma"])


def climb(
    objective: Objective,
    *,
    clusterer: Clusterer | None,
    history: History | None,
    checkpoint: Checkpoint | None,
) -> Discovery:
    """Climb the objective, epoch by epoch; then cluster the new samples' features."""
    network, problem, optimizer = objective.network, objective.problem, objective.optimizer
    loop = Loop("discover", network, optimizer, seed=objective.seed, history=history, checkpoint=checkpoint)

    def epoch(generator: torch.Generator) -> dict[str, Any]:
        network.train()
        values: dict[str, list[float]] = {}
        for terms in objective.steps(loop, generator):
            if not terms:
                continue
            optimizer.zero_grad()
            torch.stack([term.weight * term.value for term in terms.values()]).sum().backward()
            optimizer.step()
            for name, term in terms.items():
                values.setdefault(name, []).append(float(term.value.detach()))
        return objective.rest(loop) | {name: float(np.mean(v)) for name, v in values.items()}

    if loop.epoch == 0:
        objective.start(loop)
    loop.run(objective.epochs, epoch)
    if not loop.done:
        objective.end()
    loop.finish()

    def clusters() -> Snapshot:
        z = embed(network, problem.inputs, problem.new_rows, normalize=objective.on_sphere).features
        said = objective.own_labels(loop, z) if clusterer is None else None
        agreed = clusterer is None and objective.options.cut == "agreed"
        samples = objective.samples() if agreed else None
        return cut_features(z, objective.options, clusterer, objective.seed, said, samples)

    found = once(checkpoint, "cluster", clusters)
    U = loop.tensors.get("U")
    return Discovery(
        network.eval(),
        found.tensors["pseudo_labels"],
        found.tensors["centers"],
        votes=found.facts["votes"],
        U=U,
        U_rows=None if U is None else objective.U_rows,
        sigma=objective.sigma(loop),
    )


def subsample(available: int, options: DiscoverOptions, generator: torch.Generator) -> Tensor:
    """n_1 of n positions, section V.E: a share of them, but not too few."""
    wanted = max(round(options.subsample * available), options.min_subsample, 2)
    return torch.randperm(available, generator=generator)[:wanted].sort().values


def endless_batches(rows: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of one pass after another."""
    while True:
        yield from batches(rows, size, generator)
