"""Epochs that are seeded one by one, recorded, and can be resumed after an interruption.

The randomness of an epoch depends only on (seed, stage, epoch). So a snapshot of the weights at the end of an
epoch is all that is needed to resume with bit-identical results.

    loop = Loop("discover", context, optimizer, network=network)
    state = loop.remember(State, lambda: State(...))    # restored if the stage was interrupted
    while loop.goes_on(limit):
        with loop.epoch() as epoch:                     # seeded; recorded and saved at its end
            for batch in epoch.ticking(batches(n, size, epoch.generator)):
                ...
                epoch.note(loss=...)
    loop.finish()
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from cdknet.core.seeds import derive_seed, seeded
from cdknet.runs.checkpoints import Checkpoint, Snapshot
from cdknet.training.context import FitContext

S = TypeVar("S")  # the state of a stage: a dataclass or NamedTuple of tensors and JSON values


class Loop:
    """The epochs of one stage. `modules` are all modules that are trained, saved and restored by name."""

    def __init__(
        self, stage: str, context: FitContext, optimizer: torch.optim.Optimizer, **modules: nn.Module
    ) -> None:
        self.stage, self.optimizer, self.modules = stage, optimizer, modules
        self.seed, self.history, self.checkpoint = context.seed, context.history, context.checkpoint
        self.done_epochs, self.limit = 0, 0
        self.stopped, self.done = False, False
        self.cut_short = False  # it was stopped before its last epoch
        self.rows: list[dict[str, Any]] = []
        self._state: Any = None
        self._snapshot = self.checkpoint.load(stage)
        if self._snapshot is not None:
            self._restore(self._snapshot)
        # A resumed stage continues with the time it had left.
        self._spent, budget = sum(row["seconds"] for row in self.rows), self.history.budget
        self._clock = budget.clock if budget else time.monotonic
        self._began = self._clock()
        self._time = self._spent + budget.left(stage) if budget else math.inf

    @property
    def is_new(self) -> bool:
        """Whether no epoch is done yet."""
        return self.done_epochs == 0 and not self.done

    def remember(self, kind: type[S], make: Callable[[], S]) -> S:
        """The state of the stage between epochs: as it was saved, or made now."""
        saved = self._snapshot
        self._state = make() if saved is None else unpack(kind, saved.tensors, saved.facts["state"])
        return self._state  # type: ignore[no-any-return]

    def goes_on(self, limit: int) -> bool:
        """Whether there is another epoch: not past `limit`, nor after a stop."""
        if self.done:
            return False
        if not self.limit:
            self.limit = limit
            self.history.progress(self.stage, self.done_epochs, limit)
        if self.done_epochs < limit and not self.stopped:
            return True
        self.history.progress(self.stage, limit, limit)
        return False

    @contextmanager
    def epoch(self) -> Iterator[Epoch]:
        """One epoch. At the end of the block it is recorded, passed to the watchers and saved."""
        start = time.perf_counter()
        with seeded(derive_seed(self.seed, self.stage, self.done_epochs)) as generator:
            epoch = Epoch(self, generator)
            yield epoch
        row = epoch.row | {name: float(np.mean(values)) for name, values in epoch.noted.items()}
        self._check_finite(row)
        self.stopped = epoch.stop
        self.done_epochs += 1
        row = {"stage": self.stage, "epoch": self.done_epochs, **row, "seconds": time.perf_counter() - start}
        self.rows.append(row)
        asked = self.history.add(**row) or self._time_share() >= 1
        self.cut_short |= asked and not self.stopped and self.done_epochs < self.limit
        self.stopped |= asked
        self.history.progress(self.stage, self.done_epochs, self.limit)
        self._save()

    def finish(self) -> None:
        """Mark the stage as done; the state of its optimiser is no longer needed."""
        if not self.done:
            self.done = True
            self._save()

    def share(self, part: float = 0.0) -> float:
        """Share of the stage that is done, counting `part` of an epoch: by epochs or by time, if more."""
        return min(max((self.done_epochs + part) / self.limit, self._time_share()), 1.0)

    def _time_share(self) -> float:
        used = self._spent + self._clock() - self._began
        return used / self._time if self._time > 0 else 1.0

    def _restore(self, snapshot: Snapshot) -> None:
        self.done_epochs, self.done = snapshot.epoch, snapshot.done
        self.rows, self.stopped = snapshot.facts["history"], snapshot.facts["stopped"]
        self.cut_short = bool(snapshot.facts.get("cut", False))
        self.history.resume(self.rows)
        for module_name, module in self.modules.items():
            weights = {name: snapshot.tensors[f"{module_name}.{name}"] for name in module.state_dict()}
            module.load_state_dict(weights)
        state: dict[int, dict[str, Tensor]] = {}
        for name in [name for name in snapshot.tensors if name.startswith("optimizer.")]:
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = snapshot.tensors[name]
        if state:
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _save(self) -> None:
        tensors: dict[str, Tensor] = {}
        for module_name, module in self.modules.items():
            tensors |= {f"{module_name}.{name}": weight for name, weight in module.state_dict().items()}
        if not self.done:
            for index, state in self.optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{index}.{key}": torch.as_tensor(v) for key, v in state.items()}
        remembered, values = pack(self._state)
        copies = {n: t.detach().to("cpu", copy=True).contiguous() for n, t in (tensors | remembered).items()}
        facts = {"history": list(self.rows), "stopped": self.stopped, "state": values}
        facts |= {"cut": True} if self.cut_short else {}
        self.checkpoint.save(self.stage, Snapshot(self.done_epochs, self.done, copies, facts))

    def _check_finite(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise FloatingPointError(
                    f"Stage {self.stage}, epoch {self.done_epochs + 1}: {name} must be finite. Got {value}. "
                    "Lower learning_rate, or look for extreme values in X."
                )


class Epoch:
    """One running epoch: its randomness, its progress, and the values to record."""

    def __init__(self, loop: Loop, generator: torch.Generator) -> None:
        self.loop, self.generator = loop, generator
        self.number = loop.done_epochs  # from 0
        self.row: dict[str, Any] = {}
        self.noted: dict[str, list[float]] = {}
        self.stop = False  # set to end the stage after this epoch

    def ticking(self, parts: list[Tensor]) -> Iterator[Tensor]:
        """The batches of the epoch, reporting progress to the watchers."""
        for index, part in enumerate(parts):
            yield part
            done = self.number + (index + 1) / len(parts)
            self.loop.history.progress(self.loop.stage, done, self.loop.limit)

    def note(self, **values: float | Tensor) -> None:
        """Values of one step. Their means over the epoch go into the history."""
        for name, value in values.items():
            value = float(value.detach()) if isinstance(value, Tensor) else value
            self.noted.setdefault(name, []).append(value)

    def record(self, **values: Any) -> None:
        """Values of the whole epoch, for the history."""
        self.row |= values


def once(checkpoint: Checkpoint, stage: str, kind: type[S], make: Callable[[], S]) -> S:
    """The result of `make`, a stage without epochs: as it was saved, or made now and saved."""
    found = recall(checkpoint, stage, kind)
    if found is None:
        found = make()
        save(checkpoint, stage, found)
    return found


def recall(checkpoint: Checkpoint, stage: str, kind: type[S]) -> S | None:
    """What was saved for a stage without epochs; None if nothing was."""
    saved = checkpoint.load(stage)
    return None if saved is None else unpack(kind, saved.tensors, saved.facts["state"])


def save(checkpoint: Checkpoint, stage: str, made: object) -> None:
    """Save the result of a stage without epochs."""
    tensors, values = pack(made)
    checkpoint.save(stage, Snapshot(1, True, tensors, {"state": values}))


# A dataclass or NamedTuple as tensors and JSON values, and back.


def pack(state: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Fields that are tensors (or dicts of them) as `state.name`, the others as JSON values by name."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    held = {} if state is None else state._asdict() if isinstance(state, tuple) else vars(state)  # type: ignore[attr-defined]
    for name, value in held.items():
        if isinstance(value, Tensor):
            tensors[f"state.{name}"] = value
        elif isinstance(value, dict) and value and all(isinstance(v, Tensor) for v in value.values()):
            tensors |= {f"state.{name}.{key}": v for key, v in value.items()}
        else:
            values[name] = value
    return tensors, values


def unpack(kind: type[S], tensors: dict[str, Tensor], values: dict[str, Any]) -> S:
    """What `pack` was given."""
    held: dict[str, Any] = dict(values)
    for name in getattr(kind, "_fields", None) or kind.__dataclass_fields__:  # type: ignore[attr-defined]
        whole, prefix = f"state.{name}", f"state.{name}."
        if whole in tensors:
            held[name] = tensors[whole]
        elif name not in held:
            held[name] = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    return kind(**held)


class Term(NamedTuple):
    """A summand of an objective: `weight` x `value`."""

    value: Tensor  # of one batch
    weight: float = 1.0


def ascend(optimizer: torch.optim.Optimizer, terms: dict[str, Term], epoch: Epoch) -> None:
    """One ascent step on the sum of the terms; their values are noted. The optimiser has maximize=True."""
    optimizer.zero_grad()
    torch.stack([term.weight * term.value for term in terms.values()]).sum().backward()
    optimizer.step()
    epoch.note(**{name: term.value for name, term in terms.items()})


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    """One descent step on a loss; returns its value."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def set_rates(optimizer: torch.optim.Optimizer, *rates: float) -> None:
    """Set the learning rate of each group of weights; a single rate is for all of them."""
    groups = optimizer.param_groups
    for group, rate in zip(groups, rates if len(rates) > 1 else rates * len(groups), strict=True):
        group["lr"] = rate
