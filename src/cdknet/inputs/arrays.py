"""Samples as inputs of a network: checked once, read batch by batch, never copied as a whole.

A sample is a vector (d,), a grey image (h, w), an image with channels (c, h, w), or I/Q (2, length).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cdknet.core.columns import one_hot
from cdknet.inputs.kind import SampleKind, kind_of

CHUNK = 4096  # rows per chunk when all of them are read


class Inputs:
    """Samples as the caller holds them (array, memory map or tensor); `take` returns some as a tensor."""

    def __init__(self, X: NDArray[Any] | Tensor) -> None:
        self.X = X.detach().cpu().numpy() if isinstance(X, Tensor) else X

    def __len__(self) -> int:
        return len(self.X)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return tuple(self.X.shape[1:])

    def take(self, rows: Tensor, device: torch.device | None = None) -> Tensor:
        """These rows as float32; uint8 is scaled to [0, 1]."""
        batch = torch.from_numpy(np.ascontiguousarray(self.X[rows.numpy()])).to(device)
        return to_float(batch)


def to_float(batch: Tensor) -> Tensor:
    """float32; uint8, the usual coding of pixels, is divided by 255."""
    if batch.dtype == torch.uint8:
        return batch.to(torch.float32).div_(255)
    return batch.to(torch.float32)


def check_X(X: Any, *, sample_shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """X as an array that `Inputs` can read, or a clear error. Reads every value once, in chunks."""
    if hasattr(X, "toarray"):
        raise TypeError("X must be a dense array. Got a sparse one. Use X.toarray() if it fits memory.")
    if isinstance(X, Tensor):
        X = X.detach().cpu()
        X = (X.float() if X.dtype == torch.bfloat16 else X).numpy()  # numpy has no bfloat16
    if np.ma.is_masked(X):
        raise ValueError("X must hold every value. Got masked ones. Fill them, or drop their rows.")
    names = getattr(X, "columns", None)  # of a data frame
    try:
        array: NDArray[Any] = np.asanyarray(X)
    except ValueError as error:  # ragged lists
        raise ValueError(f"X must be an array with samples of one shape. Got {error}.") from None
    if array.dtype.kind == "O":
        array = _from_objects(array, names)
    if array.dtype.kind == "c":
        raise ValueError(
            "Complex data not supported: X must be real. Got complex numbers. "
            "Stack real and imaginary parts as (n, 2, length)."
        )
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"X must hold numbers. Got dtype {array.dtype}. Encode texts first, by cdknet.encoders.encode, "
            "and categories, by pandas.get_dummies."
        )
    if not array.dtype.isnative or array.dtype.itemsize > 8:  # FITS files; long doubles
        array = array.astype(np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("="))
    if array.ndim < 2:
        raise ValueError(
            f"Expected 2D array, got {array.ndim}D array instead: X must be (n, d), (n, h, w), (n, c, h, w) "
            "or (n, 2, length). Reshape your data, either with X.reshape(-1, 1) if it has a single feature "
            "or with X.reshape(1, -1) if it is a single sample."
        )
    if array.ndim > 4:
        raise ValueError(f"Found array with dim {array.ndim}: X must have 2 to 4 dimensions.")
    if len(array) == 0 or 0 in array.shape[1:]:
        raise ValueError(
            f"X must not be empty. Found array with {len(array)} sample(s) and {array.shape[-1]} feature(s) "
            f"(shape={array.shape}) while a minimum of 1 is required."
        )
    if array.ndim == 4 and array.shape[-1] in (1, 3, 4) and array.shape[1] not in (1, 2, 3, 4):
        raise ValueError(
            f"Images must be (n, channels, height, width). Got {array.shape}, which looks like channels "
            "last. Use X.transpose(0, 3, 1, 2)."
        )
    if sample_shape is not None and tuple(array.shape[1:]) != sample_shape:
        raise ValueError(
            f"X must have samples of shape {sample_shape}, as in fit. Got {tuple(array.shape[1:])}."
            if len(sample_shape) > 1 or array.ndim > 2
            else f"X has {array.shape[1]} features, but ClassDiscovery is expecting {sample_shape[0]} "
            "features as input, as in fit."
        )
    if array.dtype.kind == "f":
        _check_finite(array, names)
    return array


def check_pixels(X: NDArray[Any], pixels: bool | None) -> None:
    """Raise unless X is scaled as the samples of the fit. `pixels`: these were uint8 (None: unknown).

    Only uint8 is divided by 255, so the same values in another type would be different samples.
    """
    if pixels is None or pixels == (X.dtype == np.uint8):
        return
    if not pixels:
        raise ValueError(
            f"X must not be uint8, which is divided by 255: fit was given another type. Got {X.dtype}. Use "
            "the type of fit, such as X.astype(np.float32), or X / 255 if the samples of fit were in [0, 1]."
        )
    inside = X.dtype.kind == "b" or (X.dtype.kind == "f" and X.min() >= 0 and X.max() <= 1)
    if inside and np.isin(X, (0, 1)).all():
        raise ValueError(
            "X must be uint8 as in fit: values 0 and 1 do not show whether they were divided by 255. "
            f"Got {X.dtype}. Use X.astype(np.uint8), or 255 * X.astype(np.uint8) if 1 stands for 255."
        )
    if inside:  # already divided
        return
    raise ValueError(
        f"X must be uint8 as in fit, or in [0, 1]. Got {X.dtype}. Use X.astype(np.uint8), or X / 255."
    )


def refuse_copies(X: NDArray[Any]) -> None:
    """Raise if all samples are the same."""
    for start in range(0, len(X), CHUNK):
        if (X[start : start + CHUNK] != X[:1]).any():
            return
    raise ValueError(
        f"X must hold samples that differ. Got {len(X)} times the same one. Was the right array read?"
    )


def _from_objects(array: NDArray[Any], names: Any = None) -> NDArray[Any]:
    """Objects that are numbers, as a numeric array; anything else raises an error that names its column."""
    try:
        numbers: NDArray[Any] = array.astype(np.float64)
        return numbers
    except (ValueError, TypeError) as error:
        columns = () if names is None else tuple(array.T)
        bad = next((j for j, column in enumerate(columns) if not _are_numbers(column)), 0)
        raise type(error)(
            f"X must hold numbers. Got an object array whose entries are not{_column(names, bad)}: {error}. "
            "argument must be a string or a number. Encode texts first, by cdknet.encoders.encode, and "
            "categories, by pandas.get_dummies."
        ) from None


def _are_numbers(column: NDArray[Any]) -> bool:
    try:
        column.astype(np.float64)
    except (ValueError, TypeError):
        return False
    return True


def _column(names: Any, j: int) -> str:
    """The column of an entry for a message, if it has a name."""
    return "" if names is None else f", in column {names[j]!r}"


def _check_finite(array: NDArray[Any], names: Any = None) -> None:
    most = np.finfo(np.float32).max
    for start in range(0, len(array), CHUNK):
        part = array[start : start + CHUNK]
        good = np.isfinite(part) & (np.abs(part) <= most)
        if not good.all():
            first = np.argwhere(~good)[0]
            row, where = start + int(first[0]), _column(names, first[1])
            what = "NaN" if np.isnan(part[~good][0]) else "infinity or a value too large for float32"
            raise ValueError(
                f"X must be finite. Got {what} in row {row}{where} (Input X contains {what}). "
                "Drop or fill such rows first."
            )


def input_statistics(inputs: Inputs, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation to standardise by: per feature of a vector, otherwise per channel.

    Over at most 20,000 rows, evenly spaced. A feature that is constant, up to rounding of its own values or
    of the largest feature's, gets deviation 1. Columns of a table may have very different units. For columns
    of two values and for categorical columns, see `_scale_of_marks`.
    """
    rows = torch.arange(len(inputs)) if rows is None else rows
    if len(rows) > 20_000:
        rows = rows[torch.linspace(0, len(rows) - 1, 20_000).long()]
    shape = inputs.sample_shape
    channels = shape[0] if len(shape) in (1, 3) or kind_of(shape) is SampleKind.IQ else 1
    count, total, squares = 0, torch.zeros(channels).double(), torch.zeros(channels).double()
    shift: Tensor | None = None
    for part in rows.split(CHUNK):
        x = inputs.take(part).double().reshape(len(part), channels, -1)
        shift = x.mean(dim=(0, 2)) if shift is None else shift  # so that only small numbers are squared
        x = x - shift[:, None]
        count += x.shape[0] * x.shape[2]
        total += x.sum(dim=(0, 2))
        squares += x.square().sum(dim=(0, 2))
    assert shift is not None
    mean = total / count
    deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
    rounding = torch.maximum(2e-7 * (mean + shift).abs(), 1e-12 * deviation.max())
    constant = deviation <= rounding
    if len(shape) == 1:
        marks = _scale_of_marks(inputs, rows)
        deviation = torch.where(marks > 0, marks, deviation)
    deviation[constant] = 1.0
    return (mean + shift).float(), deviation.float()


def _scale_of_marks(inputs: Inputs, rows: Tensor) -> Tensor:
    """(d,) the divisor of columns of two values; 0 for other columns.

    With it, a category (one-hot columns, at most a single 1 per row) or a column of any two values weighs
    about as much as a numeric column, and a rare value not more than a frequent one.
    """
    low, high = inputs.take(rows[:1])[0], inputs.take(rows[:1])[0]
    for part in rows.split(CHUNK):
        x = inputs.take(part)
        low, high = torch.minimum(low, x.amin(dim=0)), torch.maximum(high, x.amax(dim=0))
    two = high > low
    for part in rows.split(CHUNK):
        x = inputs.take(part)
        two &= ((x == low) | (x == high)).all(dim=0)
    scale = torch.where(two, high.double() / 2 - low.double() / 2, 0.0)
    flags = (two & (low == 0) & (high == 1)).nonzero()[:, 0]
    values = one_hot(torch.cat([inputs.take(part)[:, flags] == 1 for part in rows.split(CHUNK)]))
    scale[flags[values == 2]] = math.sqrt(0.5)
    scale[flags[values > 2]] = 1.0
    return scale
