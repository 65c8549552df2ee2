"""Watchers of `History` for the terminal: a bar a stage with a time estimate, and Ctrl-C at a safe moment."""

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

STAGES = {"pretrain": "1 pretrain", "views": "2 views", "discover": "2 discover", "expand": "3 expand"}


class Bars:
    """Use as a context and as a watcher."""

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
        return self  # the bars come with the first sign of progress: an error before that stays alone

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
        shown = ("loss", "validation_accuracy", "hsic_U", "hsic_Y", "views", "turn", "agreement")
        parts = [f"{key.replace('validation_', '')} {row[key]:.3f}" for key in shown if key in row]
        note = f"{row['epoch']}: {', '.join(parts)}"
        self.bars.update(self._task(row["stage"]), note=note)


class CtrlC:
    """Use as a context and as a watcher: the first Ctrl-C ends the fit at its next batch, a second at once.

    An interrupt that is raised wherever the program happens to be can be lost, in a library's callback for
    instance. This one waits for the moment when watchers are told of progress.
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
