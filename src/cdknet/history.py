"""Progress as data: one flat dict an epoch, which any number of watchers see."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]
Watcher = Callable[[Row], Any]  # answers True to ask that the stage stop


class History(list[Row]):
    """One dict an epoch. Every watcher sees every row; any of them may ask to stop.

    A watcher with a method `progress(stage, done, total)` is also told how far the stage is, in epochs,
    several times an epoch.
    """

    def __init__(self, watchers: Iterable[Watcher] = ()) -> None:
        super().__init__()
        self.watchers = tuple(watchers)

    def add(self, **row: Any) -> bool:
        """Append `row`, show it, and say whether a watcher answered True."""
        self.append(row)
        answers = [watch(row) for watch in self.watchers]  # all of them first: no one is skipped
        return any(answer is True for answer in answers)

    def progress(self, stage: str, done: float, total: int) -> None:
        for watcher in self.watchers:
            if hasattr(watcher, "progress"):
                watcher.progress(stage, done, total)
