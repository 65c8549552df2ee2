"""A run as the explorer needs it: arrays, and nothing that needs torch or scikit-learn."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdknet.explorer.journal import JOURNAL, Journal
from cdknet.explorer.review import MOST_CLASSES, REJECTED, Review
from cdknet.runs.files import read_npz, replace_file
from cdknet.runs.fingerprints import samples_digest
from cdknet.runs.format import checked_file, open_samples, read_config

_DIGITS = re.compile(r"([0-9]+)")
KEPT_MAP = "map.npy"  # a map that was made after the run, by the explorer


@dataclass(frozen=True)
class OpenedRun:
    """What a run says of its samples. Arrays have a row a sample, in the order of labels.csv."""

    folder: Path
    config: dict[str, Any]
    history: list[dict[str, Any]]
    ids: list[str]
    assignment: NDArray[np.uint16]  # class id
    given: NDArray[np.bool_]
    confidence: NDArray[np.float32]
    features: NDArray[np.float32]
    places: NDArray[np.float32]  # (n, 2) the map
    samples: NDArray[Any] | None
    digest: str  # of labels.csv: what a review is about

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def names(self) -> list[str]:
        return [str(name) for name in self.config["classes"]]

    @property
    def n_old(self) -> int:
        return int(self.config["blueprint"]["n_old_classes"])

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return tuple(self.config["blueprint"]["sample_shape"])

    @property
    def class_ids(self) -> list[int]:
        """Ids of `names`. A refined run keeps those of the run it came from."""
        return [int(i) for i in self.config.get("class_ids") or range(len(self.names))]

    def by_name(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those samples in the order of names, in which "row 9" comes before "row 10"."""
        names = [self.ids[i] for i in rows.tolist()]
        keys = [[int(p[:18]) if k % 2 else p for k, p in enumerate(_DIGITS.split(name))] for name in names]
        return rows[sorted(range(len(keys)), key=keys.__getitem__)]

    def review(self) -> Review:
        """The state before anybody changed it."""
        return Review.start(
            self.assignment,
            self.names,
            self.n_old,
            ids=self.class_ids,
            next_id=self.config.get("next_class_id"),
        )

    def journal(self) -> Journal:
        """The review as it stands."""
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
    note: Callable[[str], None] | None = None,
) -> OpenedRun:
    """Read a run for review. `samples` (and the names they go by) stand in for those a run does not hold.

    `note` is told what takes time.
    """
    folder = Path(folder)
    config = read_config(folder)
    contents = {
        name: checked_file(folder, name, config["files"][name])
        for name in ("history.jsonl", "embedding.npz", "labels.csv")
    }
    try:
        embedding = read_npz(contents["embedding.npz"])
        history = [json.loads(line) for line in contents["history.jsonl"].decode().splitlines()]
        rows = list(csv.reader(io.StringIO(contents["labels.csv"].decode(), newline="")))
        head, rows = rows[0], rows[1:]
        column = {name: [row[j] for row in rows] for j, name in enumerate(head)}
        features = np.ascontiguousarray(embedding["features"], dtype=np.float32)
        names = [str(name) for name in config["classes"]]
        ids = [int(i) for i in config.get("class_ids") or range(len(names))]
        number = dict(zip(names, ids, strict=True))
        assignment = np.array([number[label] for label in column["label"]], dtype=np.uint16)
        if len(number) != len(names) or len(set(ids)) != len(ids) or not 0 <= max(ids) < MOST_CLASSES:
            raise ValueError("classes that share a name or an id")
        if len(features) != len(rows) or features.ndim != 2 or not len(rows):
            raise ValueError(f"{len(features)} rows of features for {len(rows)} samples")
        confidence = np.array(column["confidence"], dtype=np.float32)
        if not np.isfinite(features).all() or not np.isfinite(confidence).all():
            raise ValueError("features or confidences that are not finite")
        opened = OpenedRun(
            folder=folder,
            config=config,
            history=[_finite(row) for row in history],
            ids=column["id"],
            assignment=assignment,
            given=np.array(column["given"]) == "1",
            confidence=confidence,
            features=features,
            places=_map(folder, config, embedding, features, note),
            samples=open_samples(folder, config) if samples is None else samples,
            digest=hashlib.sha256(contents["labels.csv"]).hexdigest(),
        )
    except (KeyError, IndexError, ValueError, csv.Error, zipfile.BadZipFile) as error:
        what = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise ValueError(f"{folder}: the files of the run must fit together. Got {what}.") from None
    _check_samples(opened, sample_ids)
    if samples is not None:
        _check_values(opened, samples)
    return opened


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """A line of the history as JSON can hold it."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def _check_samples(run: OpenedRun, sample_ids: Sequence[str] | None) -> None:
    if run.samples is None:
        return
    wanted, found = (len(run), *run.sample_shape), tuple(run.samples.shape)
    if wanted != found:
        raise ValueError(f"The samples must have the shape {wanted} for {run.folder}. Got {found}.")
    numbered = [f"row {name}" for name in run.ids]  # runs of older versions say 0 for row 0
    if sample_ids is not None and list(sample_ids) not in (run.ids, numbered):
        first = next(i for i, (a, b) in enumerate(zip(sample_ids, run.ids, strict=True)) if a != b)
        raise ValueError(
            f"--data must hold the samples that {run.folder} was made from, in the same order. Got "
            f"{sample_ids[first]!r} in place of {run.ids[first]!r}."
        )


def _check_values(run: OpenedRun, samples: NDArray[Any]) -> None:
    """Raise if samples that were named again are not those of the run, as far as the run can tell."""
    wanted, held = run.config.get("samples_digest"), open_samples(run.folder, run.config)
    if wanted is None and held is not None:
        wanted = samples_digest(held)
    if wanted is not None and samples_digest(samples) != wanted:
        raise ValueError(
            f"--data must hold the samples that {run.folder} was made from, in the same order. Got as many "
            "of the same shape, but with other values. Name the file of the run."
        )


def _map(
    folder: Path,
    config: dict[str, Any],
    embedding: dict[str, NDArray[Any]],
    features: NDArray[np.float32],
    note: Callable[[str], None] | None,
) -> NDArray[np.float32]:
    """The map in the run, or the one kept beside it, or a new one, scaled to fill -1 ... 1."""
    places = embedding.get("map")
    kept = folder / KEPT_MAP
    if places is None and kept.is_file() and not kept.is_symlink():
        try:
            places = np.load(kept, allow_pickle=False)
        except (ValueError, EOFError):
            places = None
    if places is None or places.shape != (len(features), 2) or not np.isfinite(places).all():
        from cdknet.runs.figures import map_2d

        if note is not None:
            note("This run has no map yet: making one. It is kept for the next time.")
        places = map_2d(features, seed=int(config.get("seed", 0)))
        buffer = io.BytesIO()
        np.save(buffer, places, allow_pickle=False)
        if os.access(folder, os.W_OK):
            replace_file(kept, buffer.getvalue())
    low, high = places.min(axis=0), places.max(axis=0)
    reach = max(float((high - low).max()) / 2, 1e-12)
    return np.ascontiguousarray((places - (low + high) / 2) / reach, dtype=np.float32)


__all__ = ["REJECTED", "OpenedRun", "open_run"]
