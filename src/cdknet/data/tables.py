"""Tables, one row a sample: what CSV and Parquet have in common, and the CSV reader.

A column of numbers is a feature. A column of text is a category and becomes one 0/1 feature for each of its
values. One column may hold the labels and one the ids. Columns are never mixed: where the first row has
a number, every row must, so that a slip of the keyboard is found and not encoded. Gaps among numbers are
refused or, if asked, filled with the median of their column.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cdknet.core.openworld import UNLABELED

from .checks import (
    DECIMAL_COMMA,
    AnyArray,
    finite,
    is_number,
    justified,
    labels_from_text,
    lost_in_float32,
    readable_file,
    reason,
    reshaped,
    row_ids,
    text_array,
    unique_ids,
)
from .samples import Samples

LABEL_NAMES = ("label", "labels", "class", "target")  # taken as the label column if none is named
ID_NAMES = ("id", "ids")
MOST_CATEGORIES = 64  # values of one text column; more look like names, not categories
LONGEST_ROW = 4 * 2**20  # characters of one CSV row
BLOCK_CHARACTERS = 2**20  # CSV text turned into numbers in one go
GAPS = {"", "na", "n/a", "nan", "null", "none", "?"}  # how a cell says that its number is not known
TRUTHS = {"true": "1", "false": "0"}
MEND = (
    "Mend it, leave the row out, drop the column, or fill gaps with the column's median: fill=True, --fill."
)
MEND_NO_GAP = "Mend it, leave the row out or drop the column. It is no gap: --fill leaves it."


class Asked(NamedTuple):
    """What the caller says of the columns of a table."""

    label_column: str | None = None
    id_column: str | None = None
    drop: Sequence[str] = ()  # columns to leave out
    drop_if_there: Sequence[str] = ()
    label_if_there: str | None = None
    id_if_there: str | None = None
    text_if_there: Sequence[str] = ()  # categories, also where they are True and False alone
    fill: bool | Mapping[str, float] = False  # put medians into gaps among numbers: its own, or those given


class Roles(NamedTuple):
    """Which column does what, by position."""

    label: int | None
    id: int | None
    features: list[int]


INDEX = re.compile(r"|Unnamed: 0|__index_level_\d+__")  # what pandas calls an index that has no name


class Feature:
    """One feature column as it grows: numbers, or the codes of categories in order of appearance."""

    def __init__(self, name: str, is_text: bool) -> None:
        self.name, self.is_text = name, is_text
        self.blocks: list[AnyArray] = []
        self.codes: dict[str, int] = {}
        self.truths = False  # its numbers are written True and False
        self.lost = False  # its numbers differ by less than float32 tells

    def encode(self, path: Path, cells: Sequence[str]) -> None:
        codes = self.codes
        coded = np.fromiter((codes.setdefault(cell, len(codes)) for cell in cells), np.int32, len(cells))
        if len(codes) > MOST_CATEGORIES:
            self.refuse_decimal_commas(path)
            raise ValueError(
                f"{path}: a text column must have at most {MOST_CATEGORIES} different values. "
                f"Got more in column {self.name!r}. If it names the samples or their classes, say so "
                "(id_column, --id-column; label_column, --label-column); else leave it out (drop, --drop). "
                "Times and dates: write them as numbers."
            )
        self.blocks.append(coded)

    def refuse_decimal_commas(self, path: Path) -> None:
        values = [value for value in self.codes if value]
        if values and all(map(DECIMAL_COMMA.fullmatch, values)):
            raise ValueError(
                f"{path}: numbers must have a decimal point. Got {values[0]!r} in column {self.name!r}. "
                "Write 1.5 for 1,5, and a thousand as 1000 if that is what 1,000 means."
            )


def read_csv(path: Path, *, shape: Sequence[int] | None = None, **asked: Any) -> Samples:
    """A CSV table by commas, semicolons or tabs; its first line names the columns, unless it is numbers."""
    size = readable_file(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _read_csv(path, file, size, Asked(**asked), shape)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: must be UTF-8 text. Got other bytes near byte {error.start}. Save it as UTF-8."
        ) from None
    except csv.Error as error:
        raise ValueError(f"{path}: not a sound CSV table ({reason(error)}).") from None


def _read_csv(
    path: Path,
    file: Any,
    size: int,
    asked: Asked,
    shape: Sequence[int] | None,
) -> Samples:
    rows = csv_rows(path, file)
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{path}: must hold a row of column names and rows of values. Got blank lines only.")
    if all(is_number(cell) for cell in first):  # no names: the first row is a sample
        names, rows = [f"column {i}" for i in range(len(first))], itertools.chain([first], rows)
    else:
        names = [name.strip() for name in first]
    roles = roles_of(path, names, asked)
    features: list[Feature] = []
    labels: list[str] = []
    ids: list[str] = []
    n = 0
    for block in _blocks(rows):
        _check_widths(path, block, names, n)
        if n == 0:
            features = [_begun(names[j], block, j, asked) for j in roles.features]
        if roles.label is not None:
            labels.extend(row[roles.label] for row in block)
        if roles.id is not None:
            ids.extend(row[roles.id].strip() for row in block)
        _take(path, block, roles, features, n, bool(asked.fill))
        n += len(block)
    if n == 0:
        raise ValueError(f"{path}: must hold at least one row of values. Got column names only.")
    return assemble(path, features, n, size, roles, names, labels, ids, shape, asked)


def csv_rows(path: Path, file: Any) -> Iterator[list[str]]:
    """Rows of the CSV file that are not blank, none longer than LONGEST_ROW characters."""
    pending = 0

    def lines() -> Iterator[str]:
        nonlocal pending
        while line := file.readline(LONGEST_ROW + 1):
            pending += len(line)
            if pending > LONGEST_ROW:
                raise ValueError(
                    f"{path}: a row must be at most {LONGEST_ROW:,} characters. Got a longer one. "
                    "Is a quotation mark left open?"
                )
            yield line

    source = lines()
    head = next((line for line in source if line.strip()), "")
    separator = max(",;\t", key=head.count)  # a comma if none occurs
    if ";" in head and all(DECIMAL_COMMA.fullmatch(cell.strip()) for cell in head.split(";")):
        separator = ";"
    for row in csv.reader(itertools.chain([head], source), delimiter=separator, strict=True):
        pending = 0
        if any(cell.strip() for cell in row):
            yield row


def _blocks(rows: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    """Rows in blocks of about BLOCK_CHARACTERS."""
    block: list[list[str]] = []
    held = 0
    for row in rows:
        block.append(row)
        held += sum(map(len, row)) + len(row)
        if held > BLOCK_CHARACTERS:
            yield block
            block, held = [], 0
    if block:
        yield block


def roles_of(path: Path, names: list[str], asked: Asked) -> Roles:
    """What each column does; those that are dropped do nothing."""
    doubles = (
        sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    )
    if doubles:
        raise ValueError(f"{path}: column names must differ. Got {doubles[0]!r} more than once.")
    known = [
        name or (perhaps if perhaps in names else None)
        for name, perhaps in (
            (asked.label_column, asked.label_if_there),
            (asked.id_column, asked.id_if_there),
        )
    ]
    label = _column(path, names, known[0], LABEL_NAMES, "label_column")
    id = _column(path, names, known[1], ID_NAMES, "id_column")
    if label is not None and label == id:
        raise ValueError(f"{path}: label_column and id_column must differ. Got {names[label]!r} for both.")
    left_out = {_column(path, names, name, (), "drop") for name in asked.drop}
    left_out |= {names.index(name) for name in asked.drop_if_there if name in names} - {label, id}
    if left_out & {label, id} - {None}:
        raise ValueError(f"{path}: drop must name features. Got the column of labels or ids.")
    features = [
        j for j, name in enumerate(names) if j not in (label, id, *left_out) and not INDEX.fullmatch(name)
    ]
    if not features:
        raise ValueError(f"{path}: must have a feature column beside labels and ids. Got {names}.")
    return Roles(label, id, features)


def _column(
    path: Path, names: list[str], wanted: str | None, usual: tuple[str, ...], option: str
) -> int | None:
    """The column the user named, or the one whose name says what it is, or none."""
    if wanted is not None:
        if wanted not in names:
            listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            raise ValueError(f"{path}: {option} must name a column. Got {wanted!r}; there are {listed}.")
        return names.index(wanted)
    found = [j for j, name in enumerate(names) if name.lower() in usual]
    if len(found) > 1:
        listed = " and ".join(repr(names[j]) for j in found)
        raise ValueError(f"{path}: only one column may look like its {option}. Got {listed}. Say which one.")
    return found[0] if found else None


def _check_widths(path: Path, block: list[list[str]], names: list[str], start: int) -> None:
    for i, row in enumerate(block):
        if len(row) != len(names):
            raise ValueError(
                f"{path}: every row must have {len(names)} cells, as the first line has. "
                f"Got {len(row)} in row {start + i}."
            )


def _is_gap(cell: str) -> bool:
    return cell.strip().lower() in GAPS


def _begun(name: str, block: list[list[str]], column: int, asked: Asked) -> Feature:
    """The feature that a column begins: its first cell that is no gap says whether it is text.

    True and False alone are 1 and 0, as in Parquet. Gaps alone: text, unless filled.
    """
    cells = (row[column].strip().lower() for row in block if not _is_gap(row[column]))
    first = next(cells, "0" if asked.fill else "")
    truths = name not in asked.text_if_there and first in TRUTHS and all(cell in TRUTHS for cell in cells)
    feature = Feature(name, is_text=not truths and not is_number(first))
    feature.truths = truths
    return feature


def _is_known(cell: str, fill: bool) -> bool:
    return is_number(cell) or (fill and _is_gap(cell))


def _as_numbers(cells: list[list[str]], fill: bool) -> NDArray[np.float64]:
    """Cells as numbers, in one call; where gaps are to be filled they are NaN."""
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        if not fill:
            raise
        return np.array([["nan" if _is_gap(c) else c for c in row] for row in cells], dtype=np.float64)


def _take(
    path: Path, block: list[list[str]], roles: Roles, features: list[Feature], start: int, fill: bool
) -> None:
    """Append a block of rows to the columns; numbers go through numpy in one call."""
    numbers = [j for j, feature in zip(roles.features, features, strict=True) if not feature.is_text]
    values: NDArray[np.float32] | None = None
    if numbers:
        whole = len(numbers) == len(block[0])
        cells = block if whole else [[row[j] for j in numbers] for row in block]
        truths = [k for k, j in enumerate(numbers) if features[roles.features.index(j)].truths]
        for row in cells if truths else ():
            for k in truths:
                row[k] = TRUTHS.get(row[k].strip().lower(), row[k])
        try:
            wide = _as_numbers(cells, fill)
        except ValueError:
            i, k = next(
                (i, k) for i, row in enumerate(cells) for k, c in enumerate(row) if not _is_known(c, fill)
            )
            name = features[roles.features.index(numbers[k])].name
            got = repr(cells[i][k][:40]) if cells[i][k].strip() else "a blank cell"
            raise ValueError(
                f"{path}: column {name!r} holds numbers, so every row must have one. "
                f"Got {got} in row {start + i}. {MEND if _is_gap(cells[i][k]) else MEND_NO_GAP}"
            ) from None
        for at in lost_in_float32(wide):
            features[roles.features.index(numbers[at])].lost = True
        with np.errstate(over="ignore"):
            values = wide.astype(np.float32)  # beyond float32 becomes infinite and is reported as such
    at = 0
    for j, feature in zip(roles.features, features, strict=True):
        if feature.is_text:
            cells_of = [row[j].strip() for row in block]
            number = next(
                (i for i, cell in enumerate(cells_of) if is_number(cell) and not _is_gap(cell)), None
            )
            if number is not None:
                raise ValueError(
                    f"{path}: column {feature.name!r} starts with text, so every row must have text. "
                    f"Got the number {cells_of[number][:40]} in row {start + number}."
                )
            feature.encode(path, cells_of)
        else:
            assert values is not None
            feature.blocks.append(values[:, at])
            at += 1


def assemble(
    path: Path,
    features: list[Feature],
    n: int,
    size: int,
    roles: Roles,
    names: list[str],
    labels: list[str],
    ids: list[str],
    shape: Sequence[int] | None,
    asked: Asked,
) -> Samples:
    """Put the columns side by side, categories as 0/1 columns, and say in the notes what was done."""
    widths = [len(feature.codes) if feature.is_text else 1 for feature in features]
    justified(path, 4 * n * sum(widths), size, "the table")
    X = np.zeros((n, sum(widths)), np.float32)
    notes = []
    heads: list[str] = []
    numbers: dict[str, int] = {}  # where each column of numbers is
    for feature, width in zip(features, widths, strict=True):
        at, row = len(heads), 0
        for block in feature.blocks:
            if feature.is_text:
                X[np.arange(row, row + len(block)), at + block] = 1
            else:
                X[row : row + len(block), at] = block
            row += len(block)
        feature.blocks.clear()
        if feature.is_text:
            feature.refuse_decimal_commas(path)
            values = [value or "(blank)" for value in feature.codes]
            heads += [f"{feature.name}={value}" for value in values]
            shown = ", ".join(values[:8]) + (", ..." if width > 8 else "")
            notes.append(f"column {feature.name!r}: text, encoded as {width} columns of 0 or 1 ({shown})")
        else:
            numbers[feature.name] = at
            heads.append(feature.name)
            if feature.lost:
                what = "varies by less than float32 can tell: subtract its mean, or drop it"
                notes.append(f"column {feature.name!r} {what}")
    fills = _fill(path, X, numbers, asked.fill, notes)
    if len(set(heads)) < len(heads):
        twice = next(head for head in heads if heads.count(head) > 1)
        raise ValueError(
            f"{path}: features must have names of their own. Got two called {twice!r}, a column and a value "
            "of another one. Rename it."
        )
    mend = MEND if np.isnan(X).any() else MEND_NO_GAP
    finite(path, X, where=lambda at: f"row {at[0]}, column {heads[at[1]]!r}", mend=mend)
    y = None
    if roles.label is not None:
        y = labels_from_text(path, labels, size)
        hidden = np.count_nonzero(y == (UNLABELED if y.dtype.kind == "i" else str(UNLABELED)))
        notes.insert(0, f"labels from column {names[roles.label]!r}; {hidden:,} of {n:,} samples unlabelled")
    for j in (j for j in range(len(names)) if j not in (roles.label, roles.id, *roles.features)):
        dropped = names[j] in (*asked.drop, *asked.drop_if_there)
        why = "" if dropped else " is the index of a data frame and"
        notes.append(f"column {j} ({names[j]!r}){why} was left out")
    rows = row_ids(n)
    if roles.id is not None:
        rows = unique_ids(path, text_array(path, ids, "ids", size))
        notes.insert(0, f"ids from column {names[roles.id]!r}")
    text = tuple(feature.name for feature in features if feature.is_text)
    X = reshaped(path, X, shape)
    return Samples(
        X,
        y,
        rows,
        str(path),
        tuple(notes),
        columns=tuple(heads),
        categories=text,
        dropped=tuple(asked.drop),
        label_column=None if roles.label is None else names[roles.label],
        id_column=None if roles.id is None else names[roles.id],
        fills=fills,
    )


def _fill(
    path: Path,
    X: NDArray[np.float32],
    numbers: Mapping[str, int],
    fill: bool | Mapping[str, float],
    notes: list[str],
) -> dict[str, float]:
    """Fill the gaps of columns of numbers, by name where each stands; what a gap of each is filled with."""
    if fill is False:
        return {}
    given = fill if isinstance(fill, Mapping) else {}
    fills, filled = {}, []
    for name, at in numbers.items():
        gaps = np.isnan(X[:, at])
        if name not in given and gaps.all():
            raise ValueError(f"{path}: column {name!r} must hold a number. Got gaps only. Drop it.")
        fills[name] = given[name] if name in given else float(np.median(X[~gaps, at]))
        X[gaps, at] = fills[name]
        if gaps.any():
            filled.append(f"{name!r} {gaps.sum():,} with {fills[name]:.4g}")
    if filled:
        whose = "the medians of the run's data" if given else "the median of the column"
        shown = ", ".join(filled[:8]) + (", ..." if len(filled) > 8 else "")
        notes.append(f"gaps filled with {whose}: {shown}")
    return fills
