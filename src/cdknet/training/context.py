"""What every stage of a fit gets in addition to its network, problem and options."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from cdknet.core.clustering import Clusterer
from cdknet.nets.augment import Views
from cdknet.runs.checkpoints import Checkpoint, NoCheckpoint
from cdknet.training.history import History


@dataclass(frozen=True)
class FitContext:
    """Seed, device, history (with the time budget), checkpoint, and the user's own parts."""

    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    history: History = field(default_factory=History)
    checkpoint: Checkpoint = field(default_factory=NoCheckpoint)
    encoder: nn.Module | None = None
    clusterer: Clusterer | None = None
    views: Views | None = None

    def changed(self, **changes: Any) -> FitContext:
        """A copy with another seed, history, ..."""
        return replace(self, **changes)
