"""What `cdknet reproduce` shows in the terminal: progress over many cells, and a table of what was run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import rich.box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table

from experiments.reproduce import paper
from experiments.reproduce.open_plan import OpenCell
from experiments.reproduce.plan import TABLES, Cell
from experiments.reproduce.rows import Row, spread

STAGES = {"pretrain": "1 pretrain", "discover": "2 discover", "expand": "3 expand"}


class CellBars:
    """A context and a watcher of many fits: one bar over all cells, one for the cell that is running.

    The time left is the mean time of the cells that were really run, times those to come.
    """

    def __init__(
        self, total: int, *, quiet: bool = False, summary: Callable[[Mapping[str, Any]], str] | None = None
    ) -> None:
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
        self.summary = summary or paper_summary
        self.running: str | None = None
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
        """A cell starts to run."""
        self.running, self.start = name, time.monotonic()
        self.bars.reset(self.one, total=1.0, description=name, note="", visible=True)

    def finish(self, name: str, line: Mapping[str, Any]) -> None:
        """A cell is done: it was run just now, or its result was there already."""
        self.done += 1
        if self.running == name:
            self.times.append(time.monotonic() - self.start)
            if not self.quiet:
                self.console.print(f"{name}: {self.summary(line)}, {self.times[-1]:.0f} s", highlight=False)
        left = (self.total - self.done) * (sum(self.times) / len(self.times)) if self.times else None
        note = f"{self.done} of {self.total}" + (f", at most {_minutes(left)} left" if left else "")
        self.bars.update(self.all, completed=self.done, note=note)

    def progress(self, stage: str, done: float, total: int) -> None:
        note = f"{STAGES.get(stage, stage)} {100 * done / max(total, 1):.0f} %"
        self.bars.update(self.one, completed=done / max(total, 1), note=note)

    def __call__(self, row: dict[str, Any]) -> None:
        return None


def paper_summary(line: Mapping[str, Any]) -> str:
    """The scores of a cell of the paper's tables in a few words."""
    return f"ACC {line['test']['acc']:.3f}, purity {line['test']['purity']:.3f}"


def open_summary(line: Mapping[str, Any]) -> str:
    """The scores of a cell on mixed unlabelled data in a few words."""
    found = line["unlabelled"]
    return ", ".join(f"{part} {found[part]:.3f}" for part in ("all", "old", "new") if found[part] is not None)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def terminal_table(what: str, cells: Sequence[Cell], lines: Sequence[Mapping[str, Any]]) -> Table:
    """Mean and deviation over seeds of what was just run."""
    title = TABLES[what].title if what in TABLES else "All tables and figures"
    shown = Table(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD)
    for name in ("set", "method"):
        shown.add_column(name, no_wrap=True)
    for name in ("seeds", "ACC", "purity", "paper's"):  # what fits into 80 columns; the page has the rest
        shown.add_column(name, justify="right", no_wrap=True)
    groups: dict[Cell, list[Mapping[str, Any]]] = {}
    for cell, line in zip(cells, lines, strict=True):
        groups.setdefault(cell._replace(seed=0), []).append(line)
    for cell, found in groups.items():
        row = Row("", found, paper.PERFORMANCE.get((cell.method, cell.dataset)))
        changes = "".join(f", {k} {v:g}" if isinstance(v, float) else f", {v}" for k, v in cell.changes)
        printed = "" if row.paper is None or cell.changes else f"{row.paper[0]:.3f}"
        numbers = [spread(row.values("test", m)) for m in ("acc", "purity")]
        shown.add_row(cell.dataset, cell.method + changes, str(len(found)), *numbers, printed)
    return shown


def open_terminal_table(cells: Sequence[OpenCell], lines: Sequence[Mapping[str, Any]]) -> Table:
    """Mean and deviation over seeds of the cells on mixed unlabelled data that were just run."""
    shown = Table(
        title="Mixed unlabelled data: named accuracy", title_justify="left", box=rich.box.SIMPLE_HEAD
    )
    for name in ("set", "method", "share"):
        shown.add_column(name, no_wrap=True)
    for name in ("seeds", "all", "old", "new"):
        shown.add_column(name, justify="right", no_wrap=True)
    groups: dict[OpenCell, list[Mapping[str, Any]]] = {}
    for cell, line in zip(cells, lines, strict=True):
        groups.setdefault(cell._replace(seed=0), []).append(line)
    for cell, found in groups.items():
        of = [[one["unlabelled"][part] for one in found] for part in ("all", "old", "new")]
        numbers = ["-" if None in values else spread(values) for values in of]
        shown.add_row(cell.dataset, cell.method, cell.share, str(len(found)), *numbers)
    return shown
