"""Columns of a table that hold categories, or yes and no."""

from __future__ import annotations

import torch
from torch import Tensor


def one_hot(x: Tensor) -> Tensor:
    """(d,) number of values of the category that each column of x, (n, d) bool, belongs to; 0 for none.

    The columns of a category are adjacent, and no row has two True among them. At most half of the rows may
    have none. These count as one more value if there are three others: a missing value, or the value that was
    left out.
    """
    found = torch.zeros(x.shape[1], dtype=torch.int64)
    start = 0
    while start < x.shape[1]:
        seen, end = x[:, start].clone(), start + 1
        while end < x.shape[1] and not (seen & x[:, end]).any():
            seen |= x[:, end]
            end += 1
        if (end - start > 1 and seen.all()) or (end - start > 2 and 2 * seen.sum() >= len(x)):
            found[start:end] = end - start + int(not seen.all())
        start = end
    return found


def has_two_values(x: Tensor) -> Tensor:
    """(d,) which columns of x, (n, d), have two values."""
    low, high = x.amin(dim=0), x.amax(dim=0)
    return (high > low) & ((x == low) | (x == high)).all(dim=0)


def is_categorical(x: Tensor) -> Tensor:
    """(d,) which columns of x, (n, d), have two values, if these vary less than the numeric columns.

    Such are the columns of a category. A column of two values counts with its variance when these are coded 0
    and 1, a numeric column counts 1. If columns of two values make up most of the data, as in a questionnaire
    or a black and white image, they are not categorical columns but the data themselves.
    """
    low, high = x.amin(dim=0), x.amax(dim=0)
    two = has_two_values(x)
    varies = ((x - low) / (high - low).clamp_min(torch.finfo(x.dtype).tiny)).var(dim=0, correction=0)
    return two & (varies[two].sum() < (high > low)[~two].sum())
