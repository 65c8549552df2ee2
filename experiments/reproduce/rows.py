"""Rows of the tables: all seeds of a cell, and how sets and numbers are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

SETS = {
    "mnist": "MNIST, 0-4 known, 5-9 new",
    "fashion-mnist": "Fashion-MNIST, 0-4 known, 5-9 new",
    "cifar-100": "CIFAR-100, 70 known, 30 new",
    "rf-50-sim": "rf-50-sim, 35 devices known, 15 new, drawn by the seed (a stand-in for RF-50)",
    "wifi-csi-30": "wifi-csi-30, 20 devices known, the last 10 new (real radio)",
    "digits": "scikit-learn's digits, 0-4 known, 5-9 new",
}
STALE = "†"


class Row(NamedTuple):
    """All seeds of one cell."""

    title: str
    lines: Sequence[Mapping[str, Any]]
    paper: tuple[float, ...] | None = None  # the numbers of the paper, where it has any

    @property
    def name(self) -> str:
        return marked(self.title, self.lines)

    def values(self, part: str, measure: str) -> list[float]:
        """A score of each seed, such as ("test", "acc")."""
        return [line[part][measure] for line in self.lines]

    def old(self, when: str) -> list[float]:
        """Accuracy on old classes of each seed that has it."""
        return [line[when] for line in self.lines if line.get(when) is not None]


def marked(title: str, lines: Sequence[Mapping[str, Any]]) -> str:
    """The title, with a mark if any line was made with options that the plan has since changed."""
    return f"{title} {STALE}" if any(line.get("stale") for line in lines) else title


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation: .912 ± .010"""
    mean = f"{np.mean(values):.3f}".removeprefix("0")
    if len(values) == 1:
        return mean
    return f"{mean} ± {np.std(values, ddof=1):.3f}".replace("± 0", "± ")


def best_in_bold(values: Sequence[float]) -> list[str]:
    """Numbers of a row as text, the largest in bold."""
    return [f"**{value:.3f}**" if value == max(values) else f"{value:.3f}" for value in values]
