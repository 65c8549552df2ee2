"""What a reader returns: samples, their labels where known, and an id for each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What a run saves about its samples in config.json.
KEPT = (
    "notes",
    "columns",
    "categories",
    "dropped",
    "fills",
    "label_column",
    "id_column",
    "text_columns",
    "encoder",
)


@dataclass(frozen=True)
class Samples:
    """A user's data, ready for `ClassDiscovery.fit(samples.X, samples.y)`.

    `ids` names each sample (file, row, time offset) so that it can be found again; every output has
    it. `groups` says which samples belong together (slices of one transmission), if any do.
    """

    X: NDArray[Any]  # (n, d), (n, h, w), (n, c, h, w) or (n, 2, length) for I/Q
    y: NDArray[Any] | None  # (n,) int or str; -1 or "-1" where unlabelled; None if the file has no labels
    ids: NDArray[np.str_]  # (n,)
    source: str  # the path or name it came from
    notes: tuple[str, ...] = field(default=())  # what the reader decided: resize rule, encoded columns, ...
    groups: NDArray[np.str_] | None = None  # (n,)
    columns: tuple[str, ...] | None = None  # tables: the name of each feature, "colour=red" for a category
    categories: tuple[str, ...] = ()  # tables: the columns of text, "colour"
    dropped: tuple[str, ...] = ()  # tables: columns that the user left out
    label_column: str | None = None  # tables: the names of these columns
    id_column: str | None = None
    fills: Mapping[str, float] = field(default_factory=dict)  # tables: what fills the gaps of a column
    texts: tuple[str, ...] | None = None  # (n,) samples that are texts; X has their vectors once encoded
    text_columns: tuple[str, ...] = ()  # tables: the columns of the texts
    encoder: Mapping[str, Any] | None = None  # name and weights of what made X of the texts

    def __len__(self) -> int:
        return len(self.X)

    @property
    def to_encode(self) -> bool:
        """Whether the samples are texts that nothing has made vectors of yet."""
        return self.texts is not None and self.X.shape[1:] == (0,)

    def about(self) -> dict[str, Any]:
        """What a run saves about the samples in config.json, to read others in the same way."""
        values = {name: getattr(self, name) for name in KEPT}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    def __post_init__(self) -> None:
        for name in ("y", "ids", "groups", "texts"):
            value = getattr(self, name)
            if value is not None and len(value) != len(self.X):
                raise ValueError(
                    f"{self.source}: {name} must have one entry per sample ({len(self.X)}). Got {len(value)}."
                )

    def aligned(self, columns: tuple[str, ...], categories: Iterable[str] | None = None) -> Samples:
        """The same samples with the features of another table, in its order, matched by name.

        A category that does not occur here is 0 for all samples; one that did not occur there is left out.
        `categories` are the other table's columns of text; None if unknown: then guessed from the names.
        """
        if self.columns is None or self.columns == columns:
            return self
        here, there = set(self.columns), set(columns)
        heads = set(self.categories if categories is None else categories) & set(self.categories)
        if categories is None:
            heads = {head for head in heads if any(c.startswith(f"{head}=") for c in columns)}
        missing = [c for c in columns if c not in here and not _is_value_of(c, heads)]
        unknown = [c for c in self.columns if c not in there and not _is_value_of(c, heads)]
        if missing or unknown:
            what = f"no column {missing[0]!r}" if missing else f"a column {unknown[0]!r} that was not there"
            if missing and missing[0] in self.categories:
                what = f"text in column {missing[0]!r}, which held numbers"
            elif missing and (head := missing[0].partition("=")[0]) in here and head in (categories or ()):
                what = f"numbers in column {head!r}, which held text"
            elif not missing:
                what += f" (leave it out: --drop {unknown[0].partition('=')[0]})"
            raise ValueError(
                f"{self.source}: the table must have the columns that the run was fitted on. Got {what}. "
                f"They were {', '.join(columns[:20])}{', ...' if len(columns) > 20 else ''}."
            )
        flat = self.X.reshape(len(self.X), -1)
        notes, at = list(self.notes), {name: j for j, name in enumerate(self.columns)}
        for name in (c for c in self.columns if c not in there):
            head, _, value = name.partition("=")
            rows = int((flat[:, at[name]] != 0).sum())
            notes.append(f"column {head!r}: {value!r} was not there before, in {rows} row(s) taken for none")
        X = np.zeros((len(flat), len(columns)), flat.dtype)
        for j, name in enumerate(columns):
            if name in here:
                X[:, j] = flat[:, at[name]]
        X = X.reshape(len(X), *self.X.shape[1:]) if self.X.ndim > 2 else X
        return replace(self, X=X, columns=columns, notes=tuple(notes))


def _is_value_of(column: str, heads: Collection[str]) -> bool:
    """Whether the column is a value of one of these categories: "colour=red" of "colour"."""
    return any(column[:at] in heads for at, letter in enumerate(column) if letter == "=")
