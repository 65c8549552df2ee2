"""What a reader hands back: samples, their labels where known, and who each one is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Samples:
    """A user's data, ready for `ClassDiscovery.fit(samples.X, samples.y)`.

    `ids` names each sample (file, row, time offset) so that it can be found again; it returns in every
    output. `groups` says which samples belong together (slices of one transmission), where that applies.
    """

    X: NDArray[Any]  # (n, d), (n, h, w), (n, c, h, w) or (n, 2, length) for I/Q
    y: NDArray[Any] | None  # (n,) int or str; -1 or "-1" where unlabelled; None if the file has no labels
    ids: NDArray[np.str_]  # (n,)
    source: str  # the path or name it came from
    notes: tuple[str, ...] = field(default=())  # what the reader decided: resize rule, encoded columns, ...
    groups: NDArray[np.str_] | None = None  # (n,)

    def __len__(self) -> int:
        return len(self.X)

    def __post_init__(self) -> None:
        for name in ("y", "ids", "groups"):
            value = getattr(self, name)
            if value is not None and len(value) != len(self.X):
                raise ValueError(
                    f"{self.source}: {name} must have one entry a sample ({len(self.X)}). Got {len(value)}."
                )
