"""A run opened for review: the run itself, a map, its samples and its journal. No torch, no scikit-learn."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdknet.data.arrays import load_npy
from cdknet.explorer.journal import JOURNAL, Journal
from cdknet.explorer.review import REJECTED, Review, ids_of
from cdknet.runs import figures
from cdknet.runs.files import replace_file
from cdknet.runs.fingerprints import samples_digest
from cdknet.runs.format import LABELS, Run, read_run

_DIGITS = re.compile(r"([0-9]+)")
FARTHEST = 1e30  # of a place on a map; NaN is not below it
SAVED_MAP = "map.npy"  # a map that the explorer computed for a run without one


@dataclass(frozen=True)
class OpenedRun:
    """A run under review. Arrays have one row per sample, in the order of labels.csv."""

    folder: Path
    contents: Run  # without its weights and pictures
    places: NDArray[np.float32]  # (n, 2) the map
    samples: NDArray[Any] | None  # those of the run, or those that were passed in their place

    def __len__(self) -> int:
        return len(self.contents)

    @property
    def config(self) -> dict[str, Any]:
        return self.contents.config

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The history with None for numbers that JSON cannot represent."""
        return [_finite(row) for row in self.contents.history]

    @property
    def ids(self) -> list[str]:
        return self.contents.ids

    @cached_property
    def assignment(self) -> NDArray[np.uint16]:
        """(n,) class ids as the fit left them; `REJECTED` for samples that it set aside as noise."""
        return ids_of(self.contents.class_index, self.class_ids)

    @cached_property
    def best_old(self) -> NDArray[np.uint16] | None:
        """(n,) the id of the old class that each sample resembles most; its own where the label was given.

        None if the run does not say.
        """
        best, index = self.contents.best_old, self.contents.class_index
        if best is None or not self.n_old:
            return None
        return ids_of(np.where(self.given & (index >= 0) & (index < self.n_old), index, best), self.class_ids)

    @property
    def given(self) -> NDArray[np.bool_]:
        return self.contents.given

    @property
    def confidence(self) -> NDArray[np.float32]:
        return self.contents.confidence

    @property
    def novelty(self) -> NDArray[np.float32]:
        return self.contents.novelty

    @property
    def features(self) -> NDArray[np.float32]:
        return self.contents.features

    @property
    def digest(self) -> str:
        """SHA-256 of labels.csv: it identifies the run that a review belongs to."""
        return str(self.config["files"][LABELS]["sha256"])

    @property
    def names(self) -> list[str]:
        return self.contents.class_names

    @property
    def n_old(self) -> int:
        return self.contents.n_old

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return self.contents.sample_shape

    @property
    def class_ids(self) -> list[int]:
        """Ids of `names`. A refined run keeps those of the run it came from."""
        return self.contents.class_ids

    def by_name(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows sorted by sample id, with "row 9" before "row 10"."""
        names = [self.ids[i] for i in rows.tolist()]
        keys = [[int(p[:18]) if k % 2 else p for k, p in enumerate(_DIGITS.split(name))] for name in names]
        return rows[sorted(range(len(keys)), key=keys.__getitem__)]

    def review(self) -> Review:
        """The state before any change."""
        return Review.start(
            self.assignment,
            self.names,
            self.n_old,
            ids=self.class_ids,
            next_id=self.contents.next_class_id,
        )

    def journal(self) -> Journal:
        """The present state of the review."""
        return Journal(self.folder / JOURNAL, self.review(), self.digest)

    @property
    def writable(self) -> bool:
        journal = self.folder / JOURNAL
        return os.access(journal if journal.exists() else self.folder, os.W_OK)


def open_run(
    folder: str | Path,
    *,
    samples: NDArray[Any] | None = None,
    sample_ids: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
    note: Callable[[str], None] | None = None,
) -> OpenedRun:
    """Read a run for review. `samples`, `sample_ids` and `texts` replace what the run does not store.

    `note` is called with a message before work that takes long.
    """
    folder = Path(folder)
    run = read_run(folder, weights=False)
    if run.texts is None and texts is not None:
        run = replace(run, texts=texts)
    opened = OpenedRun(folder, run, _map(folder, run, note), run.samples if samples is None else samples)
    _check_samples(opened, sample_ids)
    if samples is not None:
        _check_values(opened, samples)
    return opened


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def _check_samples(opened: OpenedRun, sample_ids: Sequence[str] | None) -> None:
    if opened.samples is None:
        return
    expected, found = (len(opened), *opened.sample_shape), tuple(opened.samples.shape)
    if expected != found:
        raise ValueError(f"The samples must have the shape {expected} for {opened.folder}. Got {found}.")
    numbered = [f"row {name}" for name in opened.ids]  # older versions wrote 0 for row 0
    if sample_ids is not None and list(sample_ids) not in (opened.ids, numbered):
        first = next(i for i, (a, b) in enumerate(zip(sample_ids, opened.ids, strict=True)) if a != b)
        raise ValueError(
            f"--data must hold the samples that {opened.folder} was made from, in the same order. Got "
            f"{sample_ids[first]!r} in place of {opened.ids[first]!r}."
        )


def _check_values(opened: OpenedRun, samples: NDArray[Any]) -> None:
    """Raise if the passed samples are not those of the run, as far as the run can tell."""
    expected, stored = opened.config["samples_digest"], opened.contents.samples
    if expected is None and stored is not None:
        expected = samples_digest(stored)
    if expected is not None and samples_digest(samples) != expected:
        raise ValueError(
            f"--data must hold the samples that {opened.folder} was made from, in the same order. Got as "
            "many of the same shape, but with other values. Pass the file that the run was made from."
        )


def _map(folder: Path, run: Run, note: Callable[[str], None] | None) -> NDArray[np.float32]:
    """The map in the run, or the one saved beside it, or a new one, scaled to fill -1 ... 1."""
    points = run.embedding.get("map")
    saved = folder / SAVED_MAP
    if points is None and saved.is_file() and not saved.is_symlink():
        try:
            points = np.array(load_npy(saved))
        except (ValueError, OSError):
            points = None
    usable = points is not None and points.shape == (len(run), 2) and points.dtype.kind in "fiu"
    if points is None or not usable or not (np.abs(points.astype(np.float64)) < FARTHEST).all():
        if note is not None:
            note("This run has no map yet: computing one. It is saved for the next time.")
        points = figures.map_2d(run.features, seed=run.seed % 2**32)
        buffer = io.BytesIO()
        np.save(buffer, points, allow_pickle=False)
        if os.access(folder, os.W_OK):
            replace_file(saved, buffer.getvalue())
    low, high = points.min(axis=0), points.max(axis=0)
    reach = max(float((high - low).max()) / 2, 1e-12)
    return np.ascontiguousarray((points - (low + high) / 2) / reach, dtype=np.float32)


__all__ = ["REJECTED", "OpenedRun", "open_run"]
