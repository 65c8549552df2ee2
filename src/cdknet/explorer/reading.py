"""What can be read of a class: the words that set its texts apart, or the columns that set its rows apart.

Words, by class-based TF-IDF: for a word w and a class c,

    score   tf(w, c) log(1 + A / f(w)), with tf the share of w among the words of c, f its count over all
            classes, A the mean number of words per class

A word that is not clearly more frequent here than elsewhere is left out, so no list of stop words is needed.

Columns, by rank: the effect of a column is 2 P(a value here > a value elsewhere) - 1, with ties counted half.
It is 1 if all values here are larger, -1 if all are smaller, and no unit or outlier changes it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cdknet.runs.format import Run

MOST_WORDS, MOST_COLUMNS = 8, 5  # shown of a class
MORE_OFTEN = 3  # a word of a class occurs this many times as often here as elsewhere
FEWEST = 2  # samples with a word that sets a class apart
READ = 2000  # characters of a text in which words are counted
CLEAR = 0.4  # effect from which a column is worth naming a class after
MOST_VALUES = 20_000_000  # of a table that are ranked; of larger ones, evenly spaced rows
WORD = re.compile(r"[^\W\d_][\w'’+#-]*")
LONGEST_NAME = 60
TELLING = 4  # letters of a word in a suggested name, if there are such: shorter ones are rarely names

Rows = NDArray[np.int64]


class Word(NamedTuple):
    """A word that sets a class apart, and the share of samples that have it."""

    word: str
    here: float
    elsewhere: float


class Words:
    """The words of all texts, counted once."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    @cached_property
    def _counted(self) -> tuple[list[str], NDArray[np.int32], NDArray[np.int32], Rows]:
        """The vocabulary; per text its words as numbers and how often each; where each text starts."""
        numbers: dict[str, int] = {}
        words: list[list[int]] = []
        counts: list[list[int]] = []
        for text in self.texts:
            found = Counter(WORD.findall(text[:READ].casefold()))
            words.append([numbers.setdefault(word, len(numbers)) for word in found if len(word) > 1])
            counts.append([n for word, n in found.items() if len(word) > 1])
        starts = np.cumsum([0, *map(len, words)], dtype=np.int64)
        flat = np.fromiter(chain.from_iterable(words), np.int32, int(starts[-1]))
        return list(numbers), flat, np.fromiter(chain.from_iterable(counts), np.int32, len(flat)), starts

    def of(self, rows: Rows, n_classes: int) -> list[Word]:
        """The words that set these texts apart, the most telling first."""
        vocabulary, words, counts, starts = self._counted
        if not len(rows) or not vocabulary:
            return []
        size = len(vocabulary)
        parts = [np.arange(starts[row], starts[row + 1]) for row in rows.tolist()]
        at = np.concatenate(parts)
        here = np.bincount(words[at], minlength=size)  # texts here with the word
        tf = np.bincount(words[at], weights=counts[at], minlength=size)
        f = np.bincount(words, weights=counts, minlength=size)
        elsewhere = np.bincount(words, minlength=size) - here
        share = here / len(rows)
        others = elsewhere / max(len(self.texts) - len(rows), 1)
        score = tf / max(tf.sum(), 1) * np.log(1 + f.sum() / max(n_classes, 1) / np.maximum(f, 1))
        score[(here < min(FEWEST, len(rows))) | (share < MORE_OFTEN * others)] = 0
        best = np.argsort(-score, kind="stable")[:MOST_WORDS]
        return [
            Word(vocabulary[i], round(float(share[i]), 4), round(float(others[i]), 4))
            for i in best.tolist()
            if score[i] > 0
        ]


class Column(NamedTuple):
    """A column that sets a class apart: quartiles for numbers, shares for a category."""

    name: str
    effect: float
    here: list[float]  # lower quartile, median, upper quartile; or the share that has the category
    elsewhere: list[float]
    low: float  # the range of most values, to draw them in
    high: float


class Columns:
    """The ranks of all values of a table, computed once."""

    def __init__(self, X: NDArray[Any], names: Sequence[str], categories: Collection[str] = ()) -> None:
        """`categories` are the columns of text: "colour", of the names "colour=red" and "colour=blue"."""
        self.X, self.names, self.categories = X, list(names), categories

    @cached_property
    def _ranked(self) -> tuple[Rows, NDArray[np.float32], NDArray[np.float32]]:
        """The rows that are used, their values, and the rank of each value in its column; ties share one."""
        step = max(1, -(-self.X.size // MOST_VALUES))
        used = np.arange(0, len(self.X), step)
        values = np.asarray(self.X[used], dtype=np.float32).reshape(len(used), -1)
        ranks = np.empty_like(values)
        for j in range(values.shape[1]):
            _, which, counts = np.unique(values[:, j], return_inverse=True, return_counts=True)
            ranks[:, j] = (np.cumsum(counts) - (counts - 1) / 2)[which.ravel()]
        return used, values, ranks

    def of(self, rows: Rows) -> list[Column]:
        """The columns that set these rows apart, the most telling first."""
        used, values, ranks = self._ranked
        inside = np.isin(used, rows)
        m, n = int(inside.sum()), len(used)
        if not m or m == n:
            return []
        above = (ranks[inside].mean(axis=0, dtype=np.float64) - (m + 1) / 2) / (n - m)
        effects = 2 * above - 1
        found = []
        for j in np.argsort(-np.abs(effects), kind="stable")[:MOST_COLUMNS].tolist():
            if abs(effects[j]) < 0.05:
                break
            here, rest = values[inside, j], values[~inside, j]
            low, high = np.quantile(values[:, j], (0.01, 0.99))
            if self.names[j].partition("=")[0] in self.categories:
                spread = [[float((part == 1).mean())] for part in (here, rest)]
                low, high = 0.0, 1.0
            else:
                spread = [np.quantile(part, (0.25, 0.5, 0.75)).tolist() for part in (here, rest)]
            own, other = ([_short(value) for value in part] for part in spread)
            found.append(
                Column(self.names[j], round(float(effects[j]), 3), own, other, _short(low), _short(high))
            )
        return found


class Reading:
    """What can be read of the classes of a run: words if it has texts, columns if it has a table."""

    def __init__(self, run: Run, samples: NDArray[Any] | None = None) -> None:
        X = run.samples if samples is None else samples
        names = run.config.get("columns") or run.config.get("feature_names") or ()
        categories = run.config.get("categories") or ()
        self.words = Words(run.texts) if run.texts is not None else None
        is_table = X is not None and run.texts is None and X.ndim == 2 and X.shape[1] == len(names)
        self.columns = Columns(X, names, categories) if X is not None and is_table else None

    def of(self, rows: Rows, n_classes: int, taken: Collection[str] = ()) -> dict[str, Any]:
        """Words, columns and a name to suggest for a class, as JSON values."""
        words = self.words.of(rows, n_classes) if self.words else []
        columns = self.columns.of(rows) if self.columns else []
        return {
            "words": [word._asdict() for word in words],
            "columns": [column._asdict() for column in columns],
            "suggestion": _suggestion(words, columns, taken),
        }


def _suggestion(words: Sequence[Word], columns: Sequence[Column], taken: Collection[str]) -> str | None:
    """A name of two words, or of two columns; of more if that name is taken."""
    long = [word.word for word in words if len(word.word) >= TELLING]
    parts = long or [word.word for word in words]
    parts = parts or [_described(column) for column in columns if abs(column.effect) >= CLEAR]
    for k in range(min(2, len(parts)), len(parts) + 1):
        name = ", ".join(parts[:k])
        if name and name not in taken and len(name) <= LONGEST_NAME:
            return name
    return None


def _described(column: Column) -> str:
    name, _, value = column.name.partition("=")
    if len(column.here) == 1:  # the share of a category
        return f"{name} {value}" if column.effect > 0 else f"not {name} {value}"
    return f"{'high' if column.effect > 0 else 'low'} {name}"


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def traits_of(run: Run) -> list[dict[str, Any]]:
    """For each new class of a run: what sets it apart and, of texts, the one nearest to its centre."""
    reading = Reading(run)
    if reading.words is None and reading.columns is None:
        return []
    found = []
    for index in range(run.n_old, len(run.class_names)):
        rows = np.flatnonzero(run.class_index == index)
        if not len(rows):
            continue
        features = run.features[rows]
        central = int(rows[np.square(features - features.mean(axis=0)).sum(axis=1).argmin()])
        apart = reading.of(rows, len(run.class_names), run.class_names)
        text = run.texts[central] if run.texts is not None else None
        found.append({"name": run.class_names[index], **apart, "central": run.ids[central], "text": text})
    return found
