"""Columns of a table that hold categories or yes and no."""

from __future__ import annotations

import torch
from torch import Tensor


def one_hot(x: Tensor) -> Tensor:
    """(d,) how many values the category has that a column of x, (n, d) True or False, is of; 0 for none.

    The columns of a category stand side by side, and no row has two True among them. Rows that have none, at
    most half, count as a value if there are three others: gaps, or the one that was left out.
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
    """(d,) which columns of x, (n, d), have two values, where these vary less than the numbers beside them.

    Such are the columns of a category. One of two values counts as much as it varies when these are 0 and 1,
    a number as 1. Where columns of two values are most of what there is, as in a list of answers or a black
    and white picture, they are the samples and no note on them.
    """
    low, high = x.amin(dim=0), x.amax(dim=0)
    two = has_two_values(x)
    varies = ((x - low) / (high - low).clamp_min(torch.finfo(x.dtype).tiny)).var(dim=0, correction=0)
    return two & (varies[two].sum() < (high > low)[~two].sum())
