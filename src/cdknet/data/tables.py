"""Tables, one row per sample: what CSV and Parquet have in common, and the CSV reader.

A column of numbers is a feature. A column of text is categorical and becomes one 0/1 feature per value. One
column may hold the labels and one the ids. Columns of free text make the samples texts instead: then
the other columns are not used. A column never mixes numbers and text: if its first cell is
a number, every cell must be one, so that a typo is reported and not encoded. Missing numbers (gaps) are an
error or, on request, filled with the median of the column.
"""

from __future__ import annotations

import csv
import itertools
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cdknet.core.openworld import UNLABELED

from .checks import (
    DECIMAL_COMMA,
    AnyArray,
    check_file,
    check_finite,
    check_memory,
    check_text,
    ids_from_text,
    is_number,
    labels_from_text,
    lost_in_float32,
    reason,
    reshaped,
    row_ids,
)
from .samples import Samples
from .texts import JOINED_BY, LONGEST_TEXT, check_texts

LABEL_NAMES = ("label", "labels", "class", "target")  # the label column, unless the user names one
ID_NAMES = ("id", "ids")
MOST_CATEGORIES = 64  # values of one text column; more are probably names, not categories
LONGEST_ROW = 4 * 2**20  # characters in one CSV row
BLOCK_CHARACTERS = 2**20  # CSV text converted to numbers at once
GAPS = {"", "na", "n/a", "nan", "null", "none", "?"}  # how a cell says that its number is missing
BOOLEANS = {"true": "1", "false": "0"}
FIX_GAP = "Fix it, remove the row, drop the column, or fill gaps with the column's median: fill=True, --fill."
FIX_OTHER = "Fix it, remove the row or drop the column. It is not a gap, so --fill does not change it."


class TableOptions(NamedTuple):
    """What the caller says about the columns of a table; those `_if_there` may be missing."""

    label_column: str | None = None
    id_column: str | None = None
    drop: Sequence[str] = ()  # columns to leave out
    drop_if_there: Sequence[str] = ()
    label_if_there: str | None = None
    id_if_there: str | None = None
    text_if_there: Sequence[str] = ()  # categorical, even if all cells are True or False
    fill: bool | Mapping[str, float] = False  # fill gaps: with the column's median, or these
    text: Sequence[str] = ()  # columns of free text: the samples are their texts, and nothing else


class Roles(NamedTuple):
    """The role of each column, by position."""

    label: int | None
    id: int | None
    features: list[int]
    texts: list[int]  # if there are any, there are no features


INDEX = re.compile(r"|Unnamed: 0|__index_level_\d+__")  # the names that pandas gives an index without a name


class Feature:
    """One feature column while it is read. Columns of text have codes, those of numbers are in `Numbers`."""

    def __init__(self, name: str, is_text: bool) -> None:
        self.name, self.is_text = name, is_text
        self.blocks: list[AnyArray] = []  # codes of categories, in order of appearance
        self.codes: dict[str, int] = {}
        self.is_boolean = False  # its numbers are written True and False
        self.lost = False  # its numbers differ by less than the precision of float32

    def encode(self, path: Path, cells: Sequence[str]) -> None:
        codes = self.codes
        coded = np.fromiter((codes.setdefault(cell, len(codes)) for cell in cells), np.int32, len(cells))
        if len(codes) > MOST_CATEGORIES:
            self.refuse_decimal_commas(path)
            raise ValueError(
                f"{path}: a text column must have at most {MOST_CATEGORIES} different values. "
                f"Got more in column {self.name!r}. If it names the samples or their classes, say so "
                "(id_column, --id-column; label_column, --label-column). If it is text to be read, such as "
                f"messages or titles, say --text {shlex.quote(self.name)} (text=[{self.name!r}]). Else leave "
                "it out (drop, --drop). Write times and dates as numbers."
            )
        self.blocks.append(coded)

    def refuse_decimal_commas(self, path: Path) -> None:
        values = [value for value in self.codes if value]
        if values and all(map(DECIMAL_COMMA.fullmatch, values)):
            raise ValueError(
                f"{path}: numbers must have a decimal point. Got {values[0]!r} in column {self.name!r}. "
                "Write 1.5 instead of 1,5, and 1000 instead of 1,000 if a thousand is meant."
            )


# Blocks of rows, (rows, columns of numbers) float32. One array per block, not one per column: a table of
# genes has 50,000 columns.
Numbers = list[NDArray[np.float32]]


def read_csv(path: Path, *, shape: Sequence[int] | None = None, **options: Any) -> Samples:
    """Read a CSV table separated by commas, semicolons or tabs.

    The first line names the columns, unless it is all numbers.
    """
    size = check_file(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _read_csv(path, file, size, TableOptions(**options), shape)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: must be UTF-8 text. Got an invalid byte near position {error.start}. Save it as UTF-8."
        ) from None
    except csv.Error as error:
        if "field limit" in str(error):
            raise ValueError(
                f"{path}: a cell must be at most {LONGEST_TEXT:,} characters. Got a longer one. Shorten it; "
                "or is a quotation mark missing?"
            ) from None
        raise ValueError(f"{path}: not a valid CSV table ({reason(error)}).") from None


def _read_csv(
    path: Path,
    file: Any,
    size: int,
    options: TableOptions,
    shape: Sequence[int] | None,
) -> Samples:
    rows = csv_rows(path, file)
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{path}: must hold a row of column names and rows of values. Got blank lines only.")
    if all(is_number(cell) for cell in first):  # no column names: the first row is a sample
        names, rows = [f"column {i}" for i in range(len(first))], itertools.chain([first], rows)
    else:
        names = [name.strip() for name in first]
    roles = roles_of(path, names, options)
    features: list[Feature] = []
    numbers: Numbers = []
    labels: list[str] = []
    ids: list[str] = []
    texts: list[str] = []
    n = 0
    for block in _blocks(rows):
        _check_widths(path, block, names, n)
        if n == 0:
            as_text = set(options.text_if_there)
            features = [_new_feature(names[j], block, j, as_text, options.fill) for j in roles.features]
        if roles.label is not None:
            labels.extend(row[roles.label] for row in block)
        if roles.id is not None:
            ids.extend(row[roles.id].strip() for row in block)
        if roles.texts:
            texts.extend(joined([row[j] for j in roles.texts]) for row in block)
        _append(path, block, roles, features, numbers, n, bool(options.fill))
        n += len(block)
    if n == 0:
        raise ValueError(f"{path}: must hold at least one row of values. Got column names only.")
    return assemble(
        TableParts(path, size, n, names, roles, features, numbers, labels, ids, texts), shape, options
    )


def joined(cells: Sequence[str]) -> str:
    """The text of a sample, from its cells in the columns of text; blank ones are left out."""
    return JOINED_BY.join(part for cell in cells if (part := cell.strip()))


def csv_rows(path: Path, file: Any) -> Iterator[list[str]]:
    """The rows of a CSV file that are not blank, none longer than LONGEST_ROW characters."""
    pending = 0

    def lines() -> Iterator[str]:
        nonlocal pending
        while line := file.readline(LONGEST_ROW + 1):
            pending += len(line)
            if pending > LONGEST_ROW:
                raise ValueError(
                    f"{path}: a row must be at most {LONGEST_ROW:,} characters. Got a longer one. "
                    "Is a quotation mark missing?"
                )
            check_text(path, line)
            yield line

    source = lines()
    header = next((line for line in source if line.strip()), "")
    separator = max(",;\t", key=header.count)  # a comma if none occurs
    if ";" in header and all(DECIMAL_COMMA.fullmatch(cell.strip()) for cell in header.split(";")):
        separator = ";"
    for row in csv.reader(itertools.chain([header], source), delimiter=separator, strict=True):
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


def roles_of(path: Path, names: list[str], options: TableOptions) -> Roles:
    """The role of each column; dropped columns have none."""
    if (twice := repeated(names)) is not None:
        raise ValueError(f"{path}: column names must be unique. Got {twice[:60]!r} more than once.")
    known = [
        name or (optional if optional in names else None)
        for name, optional in (
            (options.label_column, options.label_if_there),
            (options.id_column, options.id_if_there),
        )
    ]
    label = _column(path, names, known[0], LABEL_NAMES, "label_column")
    id = _column(path, names, known[1], ID_NAMES, "id_column")
    if label is not None and label == id:
        raise ValueError(f"{path}: label_column and id_column must differ. Got {names[label]!r} for both.")
    at = {name: j for j, name in enumerate(names)}
    left_out = {at[name] if name in at else _column(path, names, name, (), "drop") for name in options.drop}
    left_out |= {at[name] for name in options.drop_if_there if name in at} - {label, id}
    if left_out & {label, id} - {None}:
        raise ValueError(f"{path}: drop must name feature columns. Got the column of labels or ids.")
    texts = [
        j for name in dict.fromkeys(options.text) if (j := _column(path, names, name, (), "text")) is not None
    ]
    if set(texts) & {label, id, *left_out}:
        raise ValueError(
            f"{path}: text must name columns that are neither labels nor ids nor dropped. Got "
            f"{', '.join(options.text)}."
        )
    if texts:
        return Roles(label, id, [], texts)
    other = left_out | {label, id}
    features = [j for j, name in enumerate(names) if j not in other and not INDEX.fullmatch(name)]
    if not features:
        raise ValueError(f"{path}: must have a feature column besides labels and ids. Got {_listed(names)}.")
    return Roles(label, id, features, [])


def _column(
    path: Path, names: list[str], wanted: str | None, usual: tuple[str, ...], option: str
) -> int | None:
    """The column that the user named, or the one with a usual name, or None."""
    if wanted is not None:
        if wanted not in names:
            raise ValueError(
                f"{path}: {option} must name a column. Got {wanted!r}; there are {_listed(names)}."
            )
        return names.index(wanted)
    found = [j for j, name in enumerate(names) if name.lower() in usual]
    if len(found) > 1:
        listed = " and ".join(repr(names[j]) for j in found)
        raise ValueError(
            f"{path}: only one column may look like its {option}. Got {listed}. Name the one to use."
        )
    return found[0] if found else None


def repeated(names: Sequence[str]) -> str | None:
    """The first name that occurs again, or None. One pass: a file may have a million columns."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name[:60] for name in names[:20]) + (", ..." if len(names) > 20 else "")


def _check_widths(path: Path, block: list[list[str]], names: list[str], start: int) -> None:
    for i, row in enumerate(block):
        if len(row) != len(names):
            raise ValueError(
                f"{path}: every row must have {len(names)} cells, as in the first line. "
                f"Got {len(row)} in row {start + i}."
            )


def _is_gap(cell: str) -> bool:
    return cell.strip().lower() in GAPS


def _new_feature(
    name: str, block: list[list[str]], column: int, as_text: Collection[str], fill: object
) -> Feature:
    """The feature for a column: its first cell that is not a gap decides whether it is text.

    True and False alone become 1 and 0, as in Parquet. A column of gaps is text, unless they are filled.
    """
    cells = (row[column].strip().lower() for row in block if not _is_gap(row[column]))
    first = next(cells, "0" if fill else "")
    is_boolean = name not in as_text and first in BOOLEANS and all(cell in BOOLEANS for cell in cells)
    feature = Feature(name, is_text=not is_boolean and not is_number(first))
    feature.is_boolean = is_boolean
    return feature


def _is_number_or_filled(cell: str, fill: bool) -> bool:
    return is_number(cell) or (fill and _is_gap(cell))


def _as_numbers(cells: list[list[str]], fill: bool) -> NDArray[np.float64]:
    """Cells as numbers, in one call; gaps become NaN if they are to be filled."""
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        if not fill:
            raise
        return np.array([["nan" if _is_gap(c) else c for c in row] for row in cells], dtype=np.float64)


def _picked(block: list[list[str]], columns: list[int]) -> list[list[str]]:
    """These columns of the rows. A table may have 50,000 of them, so no Python code runs per cell."""
    if len(columns) == len(block[0]):
        return block
    if len(columns) == 1:
        return [[row[columns[0]]] for row in block]
    pick = itemgetter(*columns)
    return [list(pick(row)) for row in block]


def _append(
    path: Path,
    block: list[list[str]],
    roles: Roles,
    features: list[Feature],
    numbers: Numbers,
    start: int,
    fill: bool,
) -> None:
    """Append a block of rows to the columns; numbers are converted in one numpy call."""
    numeric = [feature for feature in features if not feature.is_text]
    if numeric:
        cells = _picked(
            block, [j for j, one in zip(roles.features, features, strict=True) if not one.is_text]
        )
        booleans = [k for k, feature in enumerate(numeric) if feature.is_boolean]
        for row in cells if booleans else ():
            for k in booleans:
                row[k] = BOOLEANS.get(row[k].strip().lower(), row[k])
        try:
            wide = _as_numbers(cells, fill)
        except ValueError:
            i, k = next(
                (i, k)
                for i, row in enumerate(cells)
                for k, c in enumerate(row)
                if not _is_number_or_filled(c, fill)
            )
            name = numeric[k].name
            got = repr(cells[i][k][:40]) if cells[i][k].strip() else "a blank cell"
            raise ValueError(
                f"{path}: column {name!r} holds numbers, so every row must have one. "
                f"Got {got} in row {start + i}. {FIX_GAP if _is_gap(cells[i][k]) else FIX_OTHER}"
            ) from None
        for at in lost_in_float32(wide):
            numeric[at].lost = True
        with np.errstate(over="ignore"):
            # too large for float32 becomes infinite, which assemble reports
            numbers.append(wide.astype(np.float32))
    if len(numeric) == len(features):
        return
    for j, feature in zip(roles.features, features, strict=True):
        if feature.is_text:
            cells_of = [row[j].strip() for row in block]
            number = next(
                (i for i, cell in enumerate(cells_of) if is_number(cell) and not _is_gap(cell)), None
            )
            if number is not None:
                raise ValueError(
                    f"{path}: column {feature.name!r} starts with text, so every row must have text. "
                    f"Got the number {cells_of[number][:40]} in row {start + number}. "
                    "Fix it or drop the column."
                )
            feature.encode(path, cells_of)


class TableParts(NamedTuple):
    """What was read of a table, column by column."""

    path: Path
    size: int  # bytes of the file
    n: int  # rows
    names: list[str]  # of all columns
    roles: Roles
    features: list[Feature]
    numbers: Numbers
    labels: list[str]
    ids: list[str]
    texts: list[str]


def assemble(parts: TableParts, shape: Sequence[int] | None, options: TableOptions) -> Samples:
    """Put the columns side by side, categories as 0/1 columns, and report in the notes what was done."""
    path, size, n, names, roles, features, blocks, labels, ids, texts = parts
    if roles.texts and all(map(_is_number, texts)):
        named = ", ".join(repr(names[j]) for j in roles.texts)
        raise ValueError(f"{path}: text must name columns of text. Got numbers in {named}.")
    widths = [len(feature.codes) if feature.is_text else 1 for feature in features]
    check_memory(path, 4 * n * sum(widths), size, "the table")
    X = np.zeros((n, sum(widths)), np.float32)
    notes = []
    heads: list[str] = []
    numbers: dict[str, int] = {}  # position of each column of numbers
    for feature, width in zip(features, widths, strict=True):
        at, row = len(heads), 0
        if feature.is_text:
            for codes in feature.blocks:
                X[np.arange(row, row + len(codes)), at + codes] = 1
                row += len(codes)
            feature.blocks.clear()
            feature.refuse_decimal_commas(path)
            values = [value or "(blank)" for value in feature.codes]
            heads += [f"{feature.name}={value}" for value in values]
            shown = ", ".join(values[:8]) + (", ..." if width > 8 else "")
            notes.append(f"column {feature.name!r}: text, encoded as {width} columns of 0 or 1 ({shown})")
        else:
            numbers[feature.name] = at
            heads.append(feature.name)
            if feature.lost:
                what = "varies by less than float32 can represent: subtract its mean, or drop it"
                notes.append(f"column {feature.name!r} {what}")
    where, row = np.array(list(numbers.values()), dtype=np.intp), 0
    for block in blocks:
        X[row : row + len(block), where] = block
        row += len(block)
    blocks.clear()
    fills = _fill(path, X, numbers, options.fill, notes)
    if (twice := repeated(heads)) is not None:
        raise ValueError(
            f"{path}: feature names must be unique. Got two called {twice!r}, a column and a value "
            "of another column. Rename the column."
        )
    fix = FIX_GAP if np.isnan(X).any() else FIX_OTHER
    check_finite(path, X, where=lambda at: f"row {at[0]}, column {heads[at[1]]!r}", fix=fix)
    y = None
    if roles.label is not None:
        y = labels_from_text(path, labels, size)
        hidden = np.count_nonzero(y == (UNLABELED if y.dtype.kind == "i" else str(UNLABELED)))
        notes.insert(0, f"labels from column {names[roles.label]!r}; {hidden:,} of {n:,} samples unlabelled")
    wanted = {*options.drop, *options.drop_if_there}
    used = {roles.label, roles.id, *roles.features, *roles.texts}
    unused = [j for j in range(len(names)) if j not in used]
    if roles.texts:
        notes += _notes_of_texts(names, roles, unused)
        unused = []
    for j in unused:
        dropped = names[j] in wanted
        why = "" if dropped else " is the index of a data frame and"
        notes.append(f"column {j} ({names[j]!r}){why} was left out")
    rows = row_ids(n)
    if roles.id is not None:
        rows = ids_from_text(path, ids, "ids", size)
        notes.insert(0, f"ids from column {names[roles.id]!r}")
    text = tuple(feature.name for feature in features if feature.is_text)
    X = reshaped(path, X, shape)
    return Samples(
        X,
        y,
        rows,
        str(path),
        tuple(notes),
        columns=None if roles.texts else tuple(heads),
        categories=text,
        dropped=tuple(options.drop),
        label_column=None if roles.label is None else names[roles.label],
        id_column=None if roles.id is None else names[roles.id],
        fills=fills,
        texts=tuple(check_texts(str(path), texts)) if roles.texts else None,
        text_columns=tuple(names[j] for j in roles.texts),
    )


def _is_number(text: str) -> bool:
    """Whether a text is a number, or blank."""
    try:
        float(text or "0")
    except ValueError:
        return False
    return True


def _notes_of_texts(names: list[str], roles: Roles, unused: list[int]) -> list[str]:
    notes = [f"texts from {', '.join(repr(names[j]) for j in roles.texts)}"]
    if unused:
        listed = ", ".join(repr(names[j]) for j in unused[:8]) + (", ..." if len(unused) > 8 else "")
        notes.append(f"with text, other columns are not used: {listed}")
    return notes


def _fill(
    path: Path,
    X: NDArray[np.float32],
    numbers: Mapping[str, int],
    fill: bool | Mapping[str, float],
    notes: list[str],
) -> dict[str, float]:
    """Fill the gaps in columns of numbers (name -> position); return the number used for each column."""
    if fill is False:
        return {}
    given = fill if isinstance(fill, Mapping) else {}
    fills, filled = {}, []
    for name, at in numbers.items():
        gaps = np.isnan(X[:, at])
        if name not in given and gaps.all():
            raise ValueError(
                f"{path}: column {name!r} must hold at least one number. Got gaps only. Drop the column."
            )
        fills[name] = given[name] if name in given else float(np.median(X[~gaps, at]))
        X[gaps, at] = fills[name]
        if gaps.any():
            filled.append(f"{name!r} {gaps.sum():,} with {fills[name]:.4g}")
    if filled:
        whose = "the medians of the run's data" if given else "the median of the column"
        shown = ", ".join(filled[:8]) + (", ..." if len(filled) > 8 else "")
        notes.append(f"gaps filled with {whose}: {shown}")
    return fills
