"""Checks that all readers share: the file exists, its declared sizes are plausible, its values are valid.

There are two kinds of error. A path that does not exist or cannot be read raises an `OSError`, as usual in
Python. A file whose content is not valid for its format raises a `ValueError`. Both name the file.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdknet.core.openworld import UNLABELED

MAX_EXPANSION = 200  # bytes of memory allowed per byte of a file; real data need fewer than 50
FREE_BYTES = 16 * 2**20  # memory that any file may use, however small it is
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")  # 1,5 for 1.5
ID_NAME = re.compile(r"(?:^|[^A-Za-z])(?i:id|uid|key|number|nr|no)$|[a-z]I[dD]$")  # not: acid
LONGEST_NAME = 512  # characters in an id, a label or a category
FAR = 100  # times the range of the central 98 % of the values: no measurement lies that far out
BLOCK_BYTES = 2**24  # an array is checked in blocks of this size

AnyArray = NDArray[Any]


def check_file(path: Path, *, min_size: int = 1) -> int:
    """The size of `path` in bytes; raise unless it is a readable, regular file of at least `min_size`."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file. Check the path.") from None
    except (ValueError, OSError) as error:  # a NUL in the name, a name too long, a folder without permission
        raise ValueError(f"{path!s}: cannot be accessed ({reason(error)}). Check the path.") from None
    if stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{path}: must be a file. Got a folder. Name the file inside it.")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(
            f"{path}: must be a regular file. Got a pipe or a device. Copy its content to a file."
        )
    if not os.access(path, os.R_OK):
        raise PermissionError(f"{path}: must be readable. Got no read permission. Change its permissions.")
    if status.st_size == 0:
        raise ValueError(f"{path}: must hold data. Got an empty file. It may be a failed download.")
    if status.st_size < min_size:
        raise ValueError(
            f"{path}: must have at least {min_size} bytes for its format. Got {status.st_size}. "
            "It may be truncated."
        )
    return status.st_size


def reason(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has no message."""
    text = str(error).strip().splitlines()
    return (text[0][:200] if text else type(error).__name__).rstrip(".")


def check_text(path: Path, line: str) -> None:
    """Raise if a line of a text file holds NUL: UTF-16 without a mark is valid UTF-8, but full of them."""
    if "\0" in line:
        raise ValueError(f"{path}: must be UTF-8 text. Got NUL characters, as in UTF-16. Save it as UTF-8.")


@contextlib.contextmanager
def as_value_error(path: Path, kind: str) -> Iterator[None]:
    """Turn any error that a decoder raises in this block into one ValueError that names the file.

    zipfile, Pillow and pyarrow raise OSError, KeyError, struct.error, SyntaxError and more on damaged files.
    """
    try:
        yield
    except Exception as error:
        ours = type(error) is ValueError and str(path) in str(error)
        if ours or isinstance(error, PermissionError | ImportError):
            raise
        raise ValueError(
            f"{path}: not a valid {kind} ({reason(error)}). It may be truncated or corrupted."
        ) from None


def check_memory(path: Path, needed: int, size: int, what: str) -> None:
    """Raise unless `needed` bytes of memory <= MAX_EXPANSION x `size` bytes of file + FREE_BYTES."""
    allowed = MAX_EXPANSION * size + FREE_BYTES
    if needed > allowed:
        raise ValueError(
            f"{path}: {what} would take {needed:,} bytes of memory. At most {allowed:,} are allowed for "
            f"a file of {size:,} bytes. The file may be corrupted or malicious; if not, unpack it first."
        )


def check_finite(
    path: Path,
    X: AnyArray,
    *,
    where: Callable[[tuple[int, ...]], str] | None = None,
    fix: str = "Fix or remove those samples.",
) -> None:
    """Raise if a floating-point `X` holds NaN or infinity; report how many and where the first one is."""
    if X.dtype.kind != "f" or X.size == 0:
        return
    step = max(1, BLOCK_BYTES // max(1, X[:1].nbytes))  # in blocks: a mapped file is never loaded whole
    count, first = 0, None
    for start in range(0, len(X), step):
        bad = ~np.isfinite(X[start : start + step])
        here = int(np.count_nonzero(bad))
        if here and first is None:
            at = np.unravel_index(int(np.argmax(bad)), bad.shape)
            first = (start + int(at[0]), *(int(i) for i in at[1:]))
        count += here
    if first is not None:
        place = where(first) if where else f"row {first[0]}" + (f", index {first[1:]}" if first[1:] else "")
        raise ValueError(
            f"{path}: values must be finite. Got {count:,} that are NaN or infinite, the first at {place} "
            f"({X[first]}). {fix}"
        )


def lost_in_float32(X: AnyArray) -> NDArray[np.intp]:
    """Columns of float64 X, (n, d), whose differences float32 cannot represent: timestamps, frequencies.

    Columns that vary only by float64 rounding are not reported. Uses the finite values of at most 20,000
    evenly spaced rows; with fewer than 16 rows nothing is reported.
    """
    if len(X) < 16:
        return np.zeros(0, np.intp)
    rows = X[np.linspace(0, len(X) - 1, min(len(X), 20_000)).astype(int)].astype(np.float64)
    known = np.isfinite(rows)
    count = np.maximum(known.sum(axis=0), 1)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.where(known, rows, 0).sum(axis=0) / count
        spread = np.sqrt(np.square(np.where(known, rows, mean) - mean).sum(axis=0) / count)
    step, fine = np.abs(mean) * np.finfo(np.float32).eps, np.abs(mean) * np.finfo(np.float64).eps
    return np.flatnonzero((spread < 8 * step) & (spread > 1000 * fine))


class DoubtfulData(UserWarning):
    """Samples or labels that can be used, but probably do not mean what the user intended."""


def doubts(X: AnyArray, columns: Sequence[str] | None = None) -> list[str]:
    """One sentence per problem with vectors X, (n, d): float32 precision, outliers, row numbers, ids."""
    if X.ndim != 2 or X.dtype.kind not in "fi":
        return []
    named = [repr(name) for name in columns] if columns is not None else range(X.shape[1])
    found = []
    if X.dtype.itemsize == 8 and len(lost := lost_in_float32(X)):
        found.append(
            f"{len(lost)} column(s) of X vary by less than the precision of float32, which networks use: "
            f"the first is column {named[lost[0]]}. Subtract the mean first, e.g. with StandardScaler."
        )
    if len(far := outlier_columns(X)):
        worst = X[np.abs(X[:, far[0]]).argmax(), far[0]]
        found.append(
            f"{len(far)} column(s) of X have values far beyond the others: the first is column "
            f"{named[far[0]]}, with {worst:g}. If it stands for a missing value, fill it or drop its row."
        )
    found += [
        f"Column {named[at]} numbers the samples one by one. If it is no measurement, leave it out (--drop)."
        for at in row_number_columns(X)
    ]
    found += [
        f"Column {name!r} looks like the name of a sample: almost all values differ. If it is no "
        "measurement, leave it out (--drop)."
        for name in id_columns(X, columns if columns is not None else ())
    ]
    return found


def row_number_columns(X: AnyArray) -> list[int]:
    """Columns of X, (n, d), that hold n consecutive whole numbers, in any order: 0, 1, 2, ..."""
    if len(X) < 16:
        return []
    low, high = X.min(axis=0).astype(np.float64), X.max(axis=0).astype(np.float64)
    whole = np.arange(len(X))
    candidates = np.flatnonzero((high - low == len(X) - 1) & (low == np.floor(low))).tolist()
    return [at for at in candidates if np.array_equal(np.sort(X[:, at]), low[at] + whole)]


def id_columns(X: AnyArray, columns: Sequence[str]) -> list[str]:
    """Columns of X, (n, d), that are named like an id and hold whole numbers, almost all different."""
    if len(X) < 16:
        return []
    numbered = set(row_number_columns(X))  # already reported
    named = (at for at, name in enumerate(columns) if ID_NAME.search(name) and at not in numbered)
    return [
        columns[at]
        for at in named
        if (X[:, at] == np.floor(X[:, at])).all() and len(np.unique(X[:, at])) > 0.9 * len(X)
    ]


def outlier_columns(X: AnyArray) -> NDArray[np.intp]:
    """Columns of X, (n, d), with values further out than `FAR` times the central range, such as 9999."""
    if len(X) < 16:
        return np.zeros(0, np.intp)
    rows = X[np.linspace(0, len(X) - 1, min(len(X), 20_000)).astype(int)].astype(np.float64)
    low, high = (
        np.quantile(rows, 0.01, axis=0, method="higher"),
        np.quantile(rows, 0.99, axis=0, method="lower"),
    )
    most = np.maximum(X.max(axis=0) - high, low - X.min(axis=0))
    return np.flatnonzero((most > FAR * (high - low)) & (high > low))


def numeric(path: Path, X: AnyArray, what: str = "X") -> AnyArray:
    """`X` as numbers in native byte order, with at least one sample of at least one value."""
    if X.dtype.kind == "c":
        raise ValueError(
            f"{path}: {what} must hold real numbers. Got complex ones. Store I/Q as (n, 2, length): "
            "np.stack([X.real, X.imag], axis=1)."
        )
    if X.dtype.kind not in "buif":
        raise ValueError(f"{path}: {what} must hold numbers. Got values of type {X.dtype}.")
    if X.ndim < 2:
        raise ValueError(
            f"{path}: {what} must have one row per sample, (n, ...). Got shape {X.shape}. "
            "Use X[:, None] if each sample is one number."
        )
    if X.shape[0] == 0 or X.size == 0:
        raise ValueError(f"{path}: {what} must hold at least one sample of one value. Got shape {X.shape}.")
    if X.dtype.itemsize > 8:
        X = X.astype(np.float64)  # long double differs between platforms
    if not X.dtype.isnative:
        X = X.astype(X.dtype.newbyteorder("="))
    return X.astype(np.uint8) if X.dtype.kind == "b" else X


def reshaped(path: Path, X: AnyArray, shape: Sequence[int] | None) -> AnyArray:
    """Each sample of `X` in the shape the user gave, or unchanged if there is none."""
    if shape is None:
        return X
    wanted = tuple(int(side) for side in shape)
    size = int(np.prod(X.shape[1:]))
    if any(side < 1 for side in wanted) or int(np.prod(wanted)) != size:
        raise ValueError(
            f"{path}: the sizes in shape must multiply to the {size} values of a sample. Got {wanted}. "
            "Give the shape of one sample, without the number of samples."
        )
    return X.reshape(len(X), *wanted)


def text_array(path: Path, values: Sequence[str], what: str, size: int) -> NDArray[np.str_]:
    """`values` as a numpy array of text. It is as wide as its longest entry, so that length is bounded."""
    longest = max(map(len, values), default=0)
    if longest > LONGEST_NAME:
        at = next(i for i, value in enumerate(values) if len(value) == longest)
        raise ValueError(
            f"{path}: {what} must be at most {LONGEST_NAME} characters. Got {longest} at row {at} "
            f"({values[at][:30]!r}...). Is it the right column?"
        )
    odd = next((value for value in values if not value.isascii() and not _is_unicode(value)), None)
    if odd is not None:
        raise ValueError(
            f"{path}: {what} must be valid Unicode. Got {odd[:40]!a}. Rename it: files cannot hold it."
        )
    check_memory(path, 4 * longest * len(values), size, what)
    return np.array(values, dtype=f"<U{max(1, longest)}")


def _is_unicode(text: str) -> bool:
    """Whether `text` can be written as UTF-8; the surrogates in undecodable file names cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def row_ids(n: int) -> NDArray[np.str_]:
    """'row 0', 'row 1', ...: the position in the file, counted from 0 as in numpy and pandas."""
    return np.array([f"row {i}" for i in range(n)])


def ids_from_text(path: Path, texts: Sequence[str], what: str, size: int) -> NDArray[np.str_]:
    """`texts` as ids; raise if two samples share one or one is blank."""
    ids = text_array(path, texts, what, size)
    names, counts = np.unique(ids, return_counts=True)
    if len(names) < len(ids):
        twice = str(names[np.argmax(counts > 1)])
        rows = np.flatnonzero(ids == twice)[:2].tolist()
        raise ValueError(
            f"{path}: ids must be unique. Got {twice!r} at rows {rows[0]} and {rows[1]}. "
            "Name another id column, or leave ids out to number the rows."
        )
    if "" in names[:1]:
        raise ValueError(
            f"{path}: every sample must have an id. Got a blank one at row {int(np.argmin(ids != ''))}."
        )
    return ids


UNLABELLED_FOLDERS = ("unlabelled", "unlabeled")  # folders of samples without a known class


def labels_from_text(path: Path, texts: Sequence[str], size: int) -> AnyArray:
    """Labels as whole numbers if all of them are, else as text; blank, NaN or -1 means unlabelled.

    Tables and folders share this rule, so that the same samples get the same labels from both.
    """
    stripped = ["" if text.strip() in ("NaN", "nan") else text.strip() for text in texts]
    names = {text for text in stripped if text}
    if all(is_whole(name) for name in names):
        numbers = (int(text.partition(".")[0]) if text else UNLABELED for text in stripped)
        return np.fromiter(numbers, np.int64, len(stripped))
    return text_array(path, [text or str(UNLABELED) for text in stripped], "labels", size)


# Unlikely to be the name of a class.
UNKNOWN = frozenset(["na", "n/a", "?", "-", "none", "null", "tbd", "unknown", "unlabelled", "unlabeled"])


def odd_labels(y: AnyArray) -> tuple[str, ...]:
    """One note per class whose name means "unknown", and per set of names that differ only in case."""
    if y.dtype.kind != "U":
        return ()
    names, counts = np.unique(y, return_counts=True)
    alike: dict[str, list[str]] = {}
    for name in names.tolist():
        alike.setdefault(name.casefold(), []).append(name)
    same_but_case = [
        f"labels {' and '.join(map(repr, n))} are taken for classes of their own"
        for n in alike.values()
        if n[1:]
    ]
    hidden = (name for name in names.tolist() if unseen(name))
    return (
        *same_but_case,
        *(f"label {printable(name)!r} has characters that nobody can see" for name in hidden),
        *(
            f"label {name!r} ({count:,} samples) is taken for the name of a class; blank is unlabelled"
            for name, count in zip(names.tolist(), counts.tolist(), strict=True)
            if name.lower() in UNKNOWN
        ),
    )


def is_whole(text: str) -> bool:
    """Whether `text` is a plain whole number: 7, -1, or 7.0 as pandas writes it next to missing values.

    07, +7, 7.5 and numbers of more than 18 digits stay text, so that 07 and 7 are two classes.
    """
    whole, _, fraction = text.partition(".")
    digits = whole.removeprefix("-")
    plain = digits.isascii() and digits.isdigit() and len(digits) <= 18 and not fraction.strip("0")
    return plain and str(int(whole)) == whole


def labels_from_array(path: Path, y: AnyArray, n: int, size: int) -> tuple[AnyArray, tuple[str, ...]]:
    """The labels of an array file, and a note if some are NaN.

    Whole numbers and text are labels; NaN and blank text mean unlabelled; anything else is an error.
    """
    if y.shape != (n,):
        raise ValueError(f"{path}: y must have one entry per sample ({n},). Got shape {y.shape}.")
    if y.dtype.kind == "S":
        try:
            texts = [bytes(value).decode("utf-8") for value in y.tolist()]
        except UnicodeDecodeError:
            raise ValueError(
                f"{path}: y must be UTF-8 text. Got bytes that are not UTF-8. Store it as text."
            ) from None
        return labels_from_text(path, texts, size), ()
    if y.dtype.kind == "U":
        return labels_from_text(path, y.tolist(), size), ()
    if y.dtype.kind == "f":
        hidden = np.isnan(y)
        whole = np.where(hidden, UNLABELED, y)
        if not (
            np.isfinite(whole).all() and (whole == np.round(whole)).all() and (np.abs(whole) < 2**53).all()
        ):
            at = int(np.argmin(np.isfinite(whole) & (whole == np.round(whole)) & (np.abs(whole) < 2**53)))
            raise ValueError(
                f"{path}: y must hold whole numbers or text. Got {y[at]} at row {at}. "
                "Classes are names, not measurements."
            )
        note = f"y: NaN means unlabelled ({int(hidden.sum()):,} samples)" if hidden.any() else ""
        return whole.astype(np.int64), (note,) if note else ()
    if y.dtype.kind in "iub":
        if y.dtype.kind == "u" and y.size and int(y.max()) > np.iinfo(np.int64).max:
            raise ValueError(f"{path}: y must fit 64-bit whole numbers. Got {int(y.max())}.")
        return y.astype(np.int64), ()
    raise ValueError(f"{path}: y must hold whole numbers or text. Got values of type {y.dtype}.")


def unseen(text: str) -> str:
    """The characters of `text` that nobody can see: control characters, marks of direction, fillers.

    Joiners and non-joiners between letters that are not ASCII change how these look, so they are not unseen.
    """
    return "".join(_UNSEEN.findall(text))


_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff\ud800-\udfff]"
    "|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
)


def printable(text: str) -> str:
    """`text` for a terminal: characters that nobody can see, which may also move its cursor, are escaped."""
    return _UNSEEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def is_number(text: str) -> bool:
    """Whether a cell of a table or text file is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
