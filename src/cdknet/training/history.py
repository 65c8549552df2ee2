"""Progress as data: one flat dict per epoch, passed to any number of watchers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cdknet.training.budget import Budget

Row = dict[str, Any]
Watcher = Callable[[Row], Any]  # returns True to stop the stage


class History(list[Row]):
    """One dict per epoch. Every watcher gets every row, and any of them may stop the stage.

    A watcher with a method `progress(stage, done, total)` also gets the progress of the stage, in epochs,
    several times per epoch. `budget` determines when a stage must end, `spent` holds the seconds that each
    took.
    """

    def __init__(self, watchers: Iterable[Watcher] = (), budget: Budget | None = None) -> None:
        super().__init__()
        self.watchers, self.budget = tuple(watchers), budget
        self.spent: dict[str, float] = {}  # seconds

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of a block to the time spent on `stage`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spent[stage] = self.spent.get(stage, 0.0) + time.perf_counter() - start

    def resume(self, rows: list[Row]) -> None:
        """Continue with the rows of an interrupted fit. Their time counts as well."""
        self.extend(rows)
        for row in rows:
            self.spent[row["stage"]] = self.spent.get(row["stage"], 0.0) + row["seconds"]
        if self.budget is not None:
            self.budget.charge(sum(row["seconds"] for row in rows))

    def add(self, **row: Any) -> bool:
        """Append `row`, pass it to the watchers, and return whether one of them returned True."""
        self.append(row)
        answers = [watch(row) for watch in self.watchers]  # call all of them, even after a True
        return any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)

    def progress(self, stage: str, done: float, total: int) -> None:
        for watcher in self.watchers:
            if hasattr(watcher, "progress"):
                watcher.progress(stage, done, total)
