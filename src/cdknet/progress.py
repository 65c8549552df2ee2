"""Progress bars: a watcher of `History` that draws one bar a stage, with a time estimate, on stderr."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

STAGES = {"pretrain": "1 pretrain", "views": "2 views", "discover": "2 discover", "expand": "3 expand"}


class Bars:
    """Use as a context and as a watcher."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.bars = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
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
        parts = [f"{key} {row[key]:.3f}" for key in shown if key in row]
        note = f"epoch {row['epoch']}: {', '.join(parts)}"
        self.bars.update(self._task(row["stage"]), note=note)
