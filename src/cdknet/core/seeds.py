"""Randomness: one seed per fit, from which each purpose derives its own."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_of(random_state: int | np.random.RandomState | None) -> int:
    """A seed from a scikit-learn random state. The global random state is not touched."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, (int, np.integer)) and random_state >= 0:
        return int(random_state)
    raise ValueError(
        f"random_state must be None, a whole number >= 0 or a RandomState. Got {random_state!r}."
    )


def derive_seed(seed: int, *what: str | int) -> int:
    """A separate seed for each purpose, derived from one seed."""
    words = [zlib.crc32(w.encode()) if isinstance(w, str) else w for w in what]
    return int(np.random.SeedSequence([seed, *words]).generate_state(1, np.uint64)[0] >> 1)


@contextmanager
def seeded(seed: int) -> Iterator[torch.Generator]:
    """Run a block under one seed, and restore torch's global generators afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # dropout and layer initialisation take no generator
        yield torch.Generator().manual_seed(seed)
