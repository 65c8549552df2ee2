"""Watchers of `History` for the terminal: one progress bar per stage, and Ctrl-C at a safe moment."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

STAGES = {"pretrain": "1 pretrain", "discover": "2 discover", "expand": "3 expand"}


class Bars:
    """One bar per stage, with a time estimate. Use as a context manager and as a watcher."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.bars = Progress(
            TextColumn("{task.description:<10}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=10),
            TaskProgressColumn(table_column=Column(no_wrap=True, min_width=4)),
            TimeRemainingColumn(
                compact=True, elapsed_when_finished=True, table_column=Column(no_wrap=True, min_width=5)
            ),
            TextColumn("{task.fields[note]}", style="dim", table_column=Column(no_wrap=True, ratio=1)),
            expand=True,
            console=Console(stderr=True),
            disable=quiet,
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        return self  # bars start with the first progress, so that an earlier error is printed alone

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.tasks:
            self.bars.stop()

    def _task(self, stage: str) -> TaskID:
        if stage not in self.tasks:
            self.bars.start()
            self.tasks[stage] = self.bars.add_task(STAGES.get(stage, stage), total=None, note="")
        return self.tasks[stage]

    def progress(self, stage: str, done: float, total: int) -> None:
        self.bars.update(self._task(stage), completed=done, total=total)

    def __call__(self, row: dict[str, Any]) -> None:
        shown = (
            "loss",
            "validation_accuracy",
            "hsic_U",
            "hsic_Y",
            "views",
            "heads",
            "turn",
            "agreement",
            "accuracy",
        )
        parts = [f"{key.replace('validation_', '')} {row[key]:.3f}" for key in shown if key in row]
        note = f"{row['epoch']}: {', '.join(parts)}"
        self.bars.update(self._task(row["stage"]), note=note)


class CtrlC:
    """The first Ctrl-C ends the fit at its next batch, a second one at once.

    Use as a context manager and as a watcher. An interrupt raised at an arbitrary point of the program can be
    lost, for instance in a library's callback. This one waits until watchers are next called.
    """

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> CtrlC:
        self.on_main_thread = threading.current_thread() is threading.main_thread()
        if self.on_main_thread:
            self.before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.on_main_thread:
            signal.signal(signal.SIGINT, self.before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def progress(self, stage: str, done: float, total: int) -> None:
        if self.asked:
            raise KeyboardInterrupt

    def __call__(self, row: dict[str, Any]) -> None:
        return None
