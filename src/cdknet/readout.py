"""How classes are read off features where the network has no outputs for them: nearest centre, or a vote."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cdknet.spectral import nearest_neighbors

MOST_VOTERS = 20_000  # samples kept to vote; a run folder holds their features


class Centers(NamedTuple):
    """The nearest mean of a class, as in the paper without expansion."""

    points: Tensor  # (classes, d), old then new
    scale: float  # mean squared distance to the own centre, in which distances to centres count

    def logits(self, z: Tensor) -> Tensor:
        return -torch.cdist(z, self.points).square() / (2 * self.scale)


class Neighbors(NamedTuple):
    """A vote of the nearest samples: follows classes of any shape, where a centre takes them for balls."""

    points: Tensor  # (m, d)
    labels: Tensor  # (m,) their classes, old then new
    n_classes: int
    k: int

    def logits(self, z: Tensor) -> Tensor:
        """Logarithm of the share of votes, each class given a small share of its own."""
        _, rows = nearest_neighbors(z, min(self.k, len(self.points)), among=self.points)
        votes = torch.nn.functional.one_hot(self.labels[rows], self.n_classes).sum(dim=1)
        return ((votes + 0.01) / (self.k + 0.01 * self.n_classes)).log()


Readout = Centers | Neighbors
