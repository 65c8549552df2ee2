"""What the stages work on: all samples, and the classes of those that have a label."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cdknet.inputs.arrays import Inputs, check_X


class Problem(NamedTuple):
    """What the stages may see: all samples, and the classes of those that have a label."""

    inputs: Inputs
    old_rows: Tensor  # (n,) rows of X that have a label
    old_targets: Tensor  # (n,) their classes as 0 ... n_old_classes - 1
    new_rows: Tensor  # (n',) rows of X without a label; the spies, if there are any, come last
    n_old_classes: int
    n_spies: int = 0  # labelled samples whose labels are hidden (`cdknet.core.mixture`)

    @classmethod
    def from_arrays(cls, X: NDArray[Any], y: NDArray[np.integer[Any]]) -> Problem:
        """From samples and class numbers 0, 1, ... with -1 where the class is not known."""
        return cls.from_checked(check_X(X), y)

    @classmethod
    def from_checked(cls, X: NDArray[Any], y: NDArray[np.integer[Any]]) -> Problem:
        """The same for samples that `check_X` has already checked: they are not read again."""
        inputs, labels = Inputs(X), torch.as_tensor(np.asarray(y, dtype=np.int64))
        known = labels >= 0
        targets = labels[known]
        n_old = int(targets.max()) + 1 if len(targets) else 0
        return cls(inputs, known.nonzero()[:, 0], targets, (~known).nonzero()[:, 0], n_old)

    @property
    def unlabelled_rows(self) -> Tensor:
        """`new_rows` without the spies."""
        return self.new_rows[: len(self.new_rows) - self.n_spies]

    def with_spies(self, share: float, generator: torch.Generator) -> Problem:
        """The same with the labels of a `share` of each old class hidden; at least one label of it stays."""
        drawn = stratified(self.old_targets, share, generator, leave=1)
        stays = torch.ones(len(self.old_rows), dtype=torch.bool)
        stays[drawn] = False
        return self._replace(
            old_rows=self.old_rows[stays],
            old_targets=self.old_targets[stays],
            new_rows=torch.cat([self.new_rows, self.old_rows[drawn]]),
            n_spies=len(drawn),
        )


def batches(rows: int, size: int, generator: torch.Generator) -> list[Tensor]:
    """Positions 0 ... rows - 1, shuffled, in batches of about `size`, never of a single one."""
    parts = list(torch.randperm(rows, generator=generator).split(size))
    if len(parts) > 1 and len(parts[-1]) < max(2, size // 4):  # a small last batch joins the one before it
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def stratified(targets: Tensor, share: float, generator: torch.Generator, *, leave: int = 0) -> Tensor:
    """Positions of a `share` of each class, drawn at random, leaving at least `leave` of it undrawn."""
    drawn = []
    for c in targets.unique():
        members = (targets == c).nonzero()[:, 0]
        size = min(max(round(share * len(members)), 1), len(members) - leave)
        drawn.append(members[torch.randperm(len(members), generator=generator)[: max(size, 0)]])
    return torch.cat(drawn).sort().values


def endless_batches(rows: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches, one pass after another, without end."""
    while True:
        yield from batches(rows, size, generator)


def passes(rows: int, size: int, generator: torch.Generator, *, least_steps: int) -> list[Tensor]:
    """Batches of as many passes as needed for `least_steps`: an epoch of a small set is several passes."""
    n = math.ceil(least_steps / math.ceil(rows / size))
    return [batch for _ in range(n) for batch in batches(rows, size, generator)]


def subsample(available: int, share: float, least: int, generator: torch.Generator) -> Tensor:
    """n_1 of n positions, section V.E: a share of them, but not too few."""
    wanted = max(round(share * available), least, 2)
    return torch.randperm(available, generator=generator)[:wanted].sort().values
