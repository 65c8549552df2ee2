"""Digests of arrays: they identify the data of a run or a checkpoint."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def stored_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which a run stores samples. Networks compute in float32, so nothing is lost."""
    return np.dtype(dtype if dtype in (np.uint8, np.float16) else np.float32)


def samples_digest(X: NDArray[Any]) -> str:
    """A digest of samples as a run would store them; beyond 64 MB, of evenly spaced ones."""
    dtype = stored_type(X.dtype)
    step = max(1, -(-X.size * dtype.itemsize // 2**26))
    digest = hashlib.sha256(repr((X.shape, dtype.str)).encode())
    digest.update(np.ascontiguousarray(X[::step], dtype=dtype).tobytes())
    return digest.hexdigest()


def fingerprint(*arrays: NDArray[Any]) -> str:
    """A digest of the shapes, types and values of arrays, read in parts."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr((array.shape, array.dtype.str)).encode())
        rows = np.atleast_1d(array)
        step = max(1, 2**24 * len(rows) // max(1, rows.nbytes))
        for start in range(0, len(rows), step):
            digest.update(rows[start : start + step].tobytes())
    return digest.hexdigest()
