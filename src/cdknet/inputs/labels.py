"""Labels as users write them, and names for new classes."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import DataConversionWarning

from cdknet.core.openworld import UNLABELED

MOST = 2**63 - 1  # the largest class number


class Labels(NamedTuple):
    """y, understood."""

    old_classes: NDArray[Any]  # sorted
    targets: NDArray[np.int64]  # (n,) index into old_classes, or UNLABELED


def encode_labels(y: ArrayLike | None, n: int) -> Labels:
    """y as class numbers. Whole numbers or names; -1, "-1", "", None, NaN or pandas' NA where unknown."""
    if y is None:
        raise ValueError(
            "ClassDiscovery requires y to be passed, but the target y is None. Mark unknowns with -1."
        )
    try:
        listed = y
        y = y.detach().cpu().numpy() if isinstance(y, torch.Tensor) else np.asarray(y)
        if isinstance(listed, (list, tuple)) and y.dtype.kind in "SU":
            y = np.asarray(listed, dtype=object)  # else numpy would turn None or NaN into a name
    except ValueError as error:
        raise ValueError(f"y must be a list of labels. Got {error}.") from None
    if y.ndim == 2 and y.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected. Use y.ravel().",
            DataConversionWarning,
            stacklevel=3,
        )
        y = y.ravel()
    if y.ndim != 1:
        raise ValueError(f"y must be one-dimensional, one label per sample. Got shape {y.shape}.")
    if len(y) != n:
        raise ValueError(
            f"y must have one label per sample ({n}). Got {len(y)}: inconsistent numbers of samples."
        )
    if y.dtype.kind in "OT":  # T: numpy's variable-length strings
        y = _labels_from_objects(y)
    if y.dtype.kind == "f":
        y = np.where(np.isnan(y), UNLABELED, y)  # as pandas writes whole numbers with gaps
        if not np.isfinite(y).all():
            raise ValueError("y must be finite. Input y contains infinity. Mark unknowns with -1.")
        if (y != np.round(y)).any():
            raise ValueError(
                "Unknown label type: continuous. y must hold whole numbers or names. Got fractions."
            )
        if y.max(initial=0) >= 2.0**63:
            raise ValueError(f"y must hold classes below 2**63. Got {y.max():.0f}.")
        y = y.astype(np.int64)
    if y.dtype.kind == "S":
        try:
            y = np.char.decode(y, "utf-8")
        except UnicodeDecodeError:
            raise ValueError("y must be text or numbers. Got bytes that are not UTF-8.") from None
    if y.dtype.kind == "U":
        unknown = (y == str(UNLABELED)) | (np.char.strip(y) == "")
    elif y.dtype.kind in "iub":
        if y.dtype.kind == "u" and y.max(initial=0) > np.iinfo(np.int64).max:
            raise ValueError(f"y must hold classes below 2**63. Got {y.max()}.")
        y = y.astype(np.int64)
        unknown = y == UNLABELED
        if (y < UNLABELED).any():
            raise ValueError(f"y must hold classes >= 0, or {UNLABELED} for unknown. Got {y.min()}.")
    else:
        raise ValueError(f"Unknown label type: {y.dtype}. y must hold whole numbers or names.")
    classes, inverse = np.unique(y[~unknown], return_inverse=True)
    targets = np.full(n, UNLABELED, dtype=np.int64)
    targets[~unknown] = inverse
    return Labels(classes, targets)


def _labels_from_objects(y: NDArray[Any]) -> NDArray[Any]:
    values = [UNLABELED if _is_missing(v) else v for v in y.tolist()]
    if all(isinstance(v, (int, np.integer)) for v in values):
        if max(values, default=0) > MOST:
            raise ValueError(f"y must hold classes below 2**63. Got {_short(max(values))}.")
        if min(values, default=0) < -MOST:
            raise ValueError(
                f"y must hold classes >= 0, or {UNLABELED} for unknown. Got {_short(min(values))}."
            )
        return np.array(values, dtype=np.int64)
    if all(isinstance(v, str) or (isinstance(v, (int, float, np.number)) and v == UNLABELED) for v in values):
        return np.array([v if isinstance(v, str) else str(UNLABELED) for v in values])
    if all(isinstance(v, (int, float, np.number)) for v in values):
        try:
            return np.array(values, dtype=np.float64)
        except OverflowError:
            raise ValueError("y must hold classes below 2**63. Got a number beyond any float.") from None
    odd = next(v for v in values if not isinstance(v, str) and v != UNLABELED)
    name = next((v for v in values if isinstance(v, str)), None)
    if name is not None and isinstance(odd, (int, float, np.number)):
        raise ValueError(
            f"Unknown label type: y must hold whole numbers or names, not both. Got {odd} and {name!r}."
        )
    raise ValueError(f"Unknown label type: y must hold whole numbers or names. Got {odd!r} among them.")


def _short(number: int) -> str:
    """A number for a message; Python refuses to print one of thousands of digits."""
    return str(number) if abs(number) < 10**30 else f"one of {number.bit_length()} bits"


def _is_missing(value: Any) -> bool:
    """None, NaN or pandas' NA, without importing pandas."""
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)


def check_problem(labels: Labels, n_new_classes: int) -> None:
    """Raise unless there are enough old classes and enough unlabelled samples."""
    n_unlabelled = int((labels.targets == UNLABELED).sum())
    n_old, n_labelled = len(labels.old_classes), len(labels.targets) - n_unlabelled
    if n_old < 2:
        got = f"one class, {labels.old_classes[0].item()!r}" if n_old else "no labelled sample"
        raise ValueError(
            f"y must name at least 2 old classes. Got {got}. Label samples of two classes or more; "
            "with no labels at all, use a clustering method."
        )
    if n_unlabelled == 0:
        raise ValueError(
            f"y must mark unlabelled samples with {UNLABELED} (in a table: a blank label; in a folder of "
            f"images: a sub-folder unlabelled). Got none among {n_labelled}: nothing to discover."
        )
    if labels.old_classes.dtype.kind == "i" and labels.old_classes.max() > MOST - n_new_classes:
        raise ValueError(
            f"y must leave numbers for {n_new_classes} new classes below 2**63. Got class "
            f"{labels.old_classes.max()}. Use smaller numbers, or names."
        )
    if n_unlabelled < n_new_classes:
        raise ValueError(
            f"n_new_classes must be at most the number of unlabelled samples, {n_unlabelled}. "
            f"Got {n_new_classes}."
        )
    if n_labelled + n_unlabelled <= n_old + n_new_classes:
        raise ValueError(
            f"There must be more samples than classes, old and new ({n_old + n_new_classes}). "
            f"Got {n_labelled + n_unlabelled}."
        )


def new_names(old_classes: NDArray[Any], n: int) -> NDArray[Any]:
    """Names for n new classes that no old class has: the next whole numbers, or new-1, new-2, ..."""
    if old_classes.dtype.kind == "i":
        return np.arange(n) + int(old_classes.max()) + 1
    taken, k = set(old_classes.tolist()), 1
    names: list[str] = []
    while len(names) < n:
        if f"new-{k}" not in taken:
            names.append(f"new-{k}")
        k += 1
    return np.array(names)
