"""Watchers of `History` for the terminal: a bar a stage with a time estimate, and Ctrl-C at a safe moment."""

from __future__ import annotations

import signal
import threading
import time
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


class CellBars:
    """Use as a context and as a watcher of many fits: one bar over all of them, one for the fit at work.

    The time left is the mean time of the cells that were really run, times those to come.
    """

    def __init__(self, total: int, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True)
        self.bars = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True, ratio=1)),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[note]}", style="dim", table_column=Column(no_wrap=True)),
            expand=True,
            console=self.console,
            disable=quiet,
        )
        self.quiet, self.total, self.done = quiet, total, 0
        self.times: list[float] = []

    def __enter__(self) -> CellBars:
        self.bars.start()
        self.all = self.bars.add_task("cells", total=self.total, note=f"0 of {self.total}")
        self.one = self.bars.add_task("", total=1.0, note="", visible=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def begin(self, name: str) -> None:
        """A cell that has to be run."""
        self.name, self.start = name, time.monotonic()
        self.bars.reset(self.one, total=1.0, description=name, note="", visible=True)

    def finish(self, name: str, line: dict[str, Any]) -> None:
        """A cell is there: just run, or found."""
        self.done += 1
        if getattr(self, "name", None) == name:
            self.times.append(time.monotonic() - self.start)
            if not self.quiet:
                acc = f"ACC {line['test']['acc']:.3f}, purity {line['test']['purity']:.3f}"
                self.console.print(f"{name}: {acc}, {self.times[-1]:.0f} s", highlight=False)
        left = (self.total - self.done) * (sum(self.times) / len(self.times)) if self.times else None
        note = f"{self.done} of {self.total}" + (f", at most {_minutes(left)} left" if left else "")
        self.bars.update(self.all, completed=self.done, note=note)

    def progress(self, stage: str, done: float, total: int) -> None:
        note = f"{STAGES.get(stage, stage)} {100 * done / max(total, 1):.0f} %"
        self.bars.update(self.one, completed=done / max(total, 1), note=note)

    def __call__(self, row: dict[str, Any]) -> None:
        return None


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


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
