"""Epochs that are seeded one by one, recorded, and survive an interruption.

The randomness of an epoch is a function of (seed, stage, epoch) and of nothing else. So a snapshot of the
weights at the end of an epoch is all that is needed to go on as if nothing had happened, to the bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from cdknet.core.seeds import derive_seed, seeded
from cdknet.nets.network import Network
from cdknet.runs.checkpoints import Checkpoint, NoCheckpoint, Snapshot
from cdknet.training.history import History


def once(checkpoint: Checkpoint | None, stage: str, step: Callable[[], Snapshot]) -> Snapshot:
    """What `step`, which has no epochs, makes: as it was kept, or made now and kept."""
    checkpoint = checkpoint or NoCheckpoint()
    made = checkpoint.load(stage)
    if made is None:
        made = step()
        checkpoint.save(stage, made)
    return made


def set_rates(optimizer: torch.optim.Optimizer, *rates: float) -> None:
    """Give each group of weights its learning rate, or all of them the one that there is."""
    groups = optimizer.param_groups
    for group, rate in zip(groups, rates if len(rates) > 1 else rates * len(groups), strict=True):
        group["lr"] = rate


class Loop:
    """The epochs of one stage: seeded one by one, recorded, and kept so that they can be taken up again."""

    def __init__(
        self,
        stage: str,
        network: Network,
        optimizer: torch.optim.Optimizer,
        *,
        seed: int,
        history: History | None,
        checkpoint: Checkpoint | None,
    ) -> None:
        self.stage, self.network, self.optimizer, self.seed = stage, network, optimizer, seed
        self.history = History() if history is None else history
        self.checkpoint: Checkpoint = NoCheckpoint() if checkpoint is None else checkpoint
        self.epoch, self.stopped, self.done = 0, False, False
        self.rows: list[dict[str, Any]] = []
        self.tensors: dict[str, Tensor] = {}  # what else the stage needs to go on
        self.facts: dict[str, Any] = {}
        self._restore()
        # A stage that is taken up again goes on in its time, too.
        self._spent, budget = sum(row["seconds"] for row in self.rows), self.history.budget
        self._clock = budget.clock if budget else time.monotonic
        self._began = self._clock()
        self._time = self._spent + budget.left(stage) if budget else math.inf

    def _restore(self) -> None:
        snapshot = self.checkpoint.load(self.stage)
        if snapshot is None:
            return
        self.epoch, self.done = snapshot.epoch, snapshot.done
        tensors, facts = dict(snapshot.tensors), dict(snapshot.facts)
        self.rows, self.stopped = facts.pop("history"), facts.pop("stopped")
        self.history.take_up(self.rows)
        self.facts = facts
        weights = {name: tensors.pop(f"network.{name}") for name in self.network.state_dict()}
        self.network.load_state_dict(weights)
        state: dict[int, dict[str, Tensor]] = {}
        for name in [name for name in tensors if name.startswith("optimizer.")]:
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = tensors.pop(name)
        if state:
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.tensors = tensors

    def run(self, limit: int, step: Callable[[torch.Generator], dict[str, Any]]) -> None:
        """Call `step` once an epoch until `limit`, a watcher's True, or a row with stop=True."""
        if self.done:
            return
        self.history.progress(self.stage, self.epoch, limit)
        while self.epoch < limit and not self.stopped:
            start = time.perf_counter()
            with seeded(derive_seed(self.seed, self.stage, self.epoch)) as generator:
                row = step(generator)
            self.stopped = bool(row.pop("stop", False))
            self._check_finite(row)
            self.epoch += 1
            row = {"stage": self.stage, "epoch": self.epoch, **row, "seconds": time.perf_counter() - start}
            self.rows.append(row)
            asked = self.history.add(**row) or self._time_share() >= 1
            if asked and not self.stopped and self.epoch < limit:
                self.facts["cut"] = True  # it would have gone on
            self.stopped |= asked
            self.history.progress(self.stage, self.epoch, limit)
            self._save()
        self.history.progress(self.stage, limit, limit)

    def share(self, limit: int, part: float = 0.0) -> float:
        """How much of the stage is done, with `part` of an epoch: of its epochs, or its time if more."""
        return min(max((self.epoch + part) / limit, self._time_share()), 1.0)

    def _time_share(self) -> float:
        used = self._spent + self._clock() - self._began
        return used / self._time if self._time > 0 else 1.0

    def ticking(self, parts: list[Tensor], limit: int) -> Iterator[Tensor]:
        """The batches of an epoch, telling watchers how far it is."""
        for index, part in enumerate(parts):
            yield part
            self.history.progress(self.stage, self.epoch + (index + 1) / len(parts), limit)

    def finish(self) -> None:
        """Mark the stage as over; its optimiser and aids are no longer needed."""
        if not self.done:
            self.done = True
            self._save()

    def _save(self) -> None:
        tensors = {f"network.{name}": weight for name, weight in self.network.state_dict().items()}
        if not self.done:
            for index, state in self.optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{index}.{key}": torch.as_tensor(v) for key, v in state.items()}
        tensors |= self.tensors
        kept = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
        facts = {**self.facts, "history": list(self.rows), "stopped": self.stopped}
        self.checkpoint.save(self.stage, Snapshot(self.epoch, self.done, kept, facts))

    def _check_finite(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise FloatingPointError(
                    f"Stage {self.stage}, epoch {self.epoch + 1}: {name} must be finite. Got {value}. "
                    "Lower learning_rate, or look for extreme values in X."
                )
