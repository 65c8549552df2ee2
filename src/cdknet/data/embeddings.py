"""Text files of embeddings: one sample per line, optionally a name, then numbers between blanks or commas.

    0.1 0.2 0.3          king 0.1 0.2 0.3          2 3               <- word2vec's first line: count, length
    0.4 0.5 0.6          queen 0.4 0.5 0.6         king 0.1 0.2 0.3
                                                   queen 0.4 0.5 0.6

Blank lines and lines that start with # are skipped. There are no labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import (
    DECIMAL_COMMA,
    check_file,
    check_finite,
    check_text,
    ids_from_text,
    is_number,
    reshaped,
    row_ids,
)
from .samples import Samples

LONGEST_LINE = 4 * 2**20  # characters


def read_text(path: Path, *, shape: Sequence[int] | None = None) -> Samples:
    """Read a text file of embeddings as (n, d) float32."""
    size = check_file(path)
    try:
        with path.open(encoding="utf-8-sig") as file:
            X, names, notes = _parse(path, _lines(path, file))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: must be UTF-8 text. Got an invalid byte near position {error.start}. Save it as UTF-8."
        ) from None
    check_finite(path, X)
    ids = ids_from_text(path, names, "names", size) if names else row_ids(len(X))
    return Samples(reshaped(path, X, shape), None, ids, str(path), notes)


def _lines(path: Path, file: Any) -> Iterator[list[str]]:
    """The cells of each data line, split at blanks, or at commas if the first line has them.

    A line that starts with # is a comment, unless numbers follow as after a name: a name may be any text.
    """
    by_commas = None
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise ValueError(f"{path}: a line must be at most {LONGEST_LINE:,} characters. Got a longer one.")
        check_text(path, line)
        cells = _cells(line)
        if not cells or (
            cells[0].startswith("#") and not (len(cells) > 2 and all(map(is_number, cells[1:])))
        ):
            continue
        if by_commas is None:
            by_commas = "," in line and not (len(cells) > 1 and all(map(is_number, cells[1:])))
            if by_commas:
                _refuse_decimal_commas(path, cells)
        yield _cells(line.replace(",", " ")) if by_commas else cells


def _refuse_decimal_commas(path: Path, cells: list[str]) -> None:
    """Raise if the line has several numbers separated by blanks, some with a decimal comma: s1 0,12 1,50."""
    decimal = [DECIMAL_COMMA.fullmatch(cell) is not None for cell in cells]
    number = [comma or is_number(cell) for cell, comma in zip(cells, decimal, strict=True)]
    if any(decimal) and all(number[1:]) and sum(number) > 1:
        raise ValueError(
            f"{path}: numbers must have a decimal point. Got {cells[decimal.index(True)][:40]!r}. "
            "Write 1.5, not 1,5; or separate numbers by commas alone."
        )


def _cells(line: str) -> list[str]:
    """The line split at blanks and tabs; other kinds of space are part of a name."""
    return [cell for cell in re.split(r"[ \t\r\n]+", line) if cell]


def _parse(path: Path, lines: Iterator[list[str]]) -> tuple[NDArray[np.float32], list[str], tuple[str, ...]]:
    first, second = next(lines, None), next(lines, None)
    if first is None:
        raise ValueError(f"{path}: must hold one line of numbers per sample. Got none.")
    rows = [cells for cells in (first, second) if cells is not None]
    notes: tuple[str, ...] = ()
    declared = None
    if second is not None and _is_word2vec_header(first, second):
        declared, rows = int(first[0]), [second]
        notes = ("first line read as word2vec's count and length",)
    named = declared is not None or not is_number(rows[0][0])
    width = len(rows[0]) - named
    if width < 1:
        raise ValueError(
            f"{path}: a line must hold at least one number. Got only {rows[0][0][:40]!r} in row 0."
        )
    names: list[str] = []
    vectors: list[NDArray[np.float32]] = []
    for i, cells in enumerate(_chain(rows, lines)):
        if len(cells) != width + named:
            raise ValueError(
                f"{path}: every line must hold {width + named} cells, as row 0 does. "
                f"Got {len(cells)} in row {i}."
            )
        if named:
            names.append(cells[0])
        try:
            with np.errstate(over="ignore"):
                vectors.append(np.array(cells[int(named) :], dtype=np.float64).astype(np.float32))
        except ValueError:
            bad = next(cell for cell in cells[int(named) :] if not is_number(cell))
            raise ValueError(f"{path}: must hold numbers. Got {bad[:40]!r} in row {i}.") from None
    if declared is not None and declared != len(vectors):
        raise ValueError(f"{path}: first line declares {declared:,} rows, file has {len(vectors):,}.")
    return np.stack(vectors), names, notes


def _chain(rows: list[list[str]], lines: Iterator[list[str]]) -> Iterator[list[str]]:
    yield from rows
    yield from lines


def _is_word2vec_header(first: list[str], second: list[str]) -> bool:
    """Whether `first` is two whole numbers, the second being the length of a *named* next line.

    The name may itself be a number.
    """
    whole = len(first) == 2 and all(cell.isascii() and cell.isdigit() and len(cell) < 12 for cell in first)
    return whole and len(second) == int(first[1]) + 1 and not (len(second) == 2 and is_number(second[0]))
