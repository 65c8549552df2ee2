"""Checkpoints: the progress of an unfinished fit, and finished stages that several fits share.

This module does not import torch. `safetensors` reads and writes the tensors, so their type is Any here.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cdknet.runs.files import read_json, replace_file


class Snapshot(NamedTuple):
    """The state of a stage at the end of an epoch."""

    epoch: int  # epochs completed
    done: bool  # whether the stage is finished
    tensors: dict[str, Any]  # torch tensors
    facts: dict[str, Any]  # JSON values


class Checkpoint(Protocol):
    """Stores the latest snapshot of each stage."""

    def load(self, stage: str) -> Snapshot | None: ...

    def save(self, stage: str, snapshot: Snapshot) -> None: ...

    def begin(self) -> None:
        """Write what the job is, before other files of it."""

    def flush(self) -> None:
        """Write what is only in memory."""


class NoCheckpoint:
    """Stores nothing."""

    def load(self, stage: str) -> Snapshot | None:
        return None

    def save(self, stage: str, snapshot: Snapshot) -> None:
        return None

    def begin(self) -> None:
        return None

    def flush(self) -> None:
        return None


# Parts of a job that are stored as digests, and how a message names them: a digest means nothing to a reader.
DIGESTS = {"data": "other data", "own parts": "another encoder, clusterer or views"}


def seed_of_job(folder: str | Path) -> int | None:
    """The seed of the unfinished job in a checkpoint folder, or None."""
    path = Path(folder) / "job.json"
    seed = read_json(path).get("seed") if path.exists() else None
    return seed if isinstance(seed, int) else None


class FolderCheckpoint:
    """Saves the latest snapshot of each stage in a folder that belongs to one job.

    The newest snapshot is held in memory. It is written when the stage ends, when `flush` is called, and
    otherwise at most every `seconds` (5, or CDKNET_CHECKPOINT_SECONDS), so that short epochs do not wait for
    the disk.
    """

    def __init__(self, folder: str | Path, job: Mapping[str, Any], *, seconds: float | None = None) -> None:
        self.folder = Path(folder)
        self.seconds = float(os.environ.get("CDKNET_CHECKPOINT_SECONDS", 5)) if seconds is None else seconds
        self._pending: tuple[str, Snapshot] | None = None
        self._written = time.monotonic()
        path = self.folder / "job.json"
        job = json.loads(json.dumps(job))
        if path.exists():
            saved = read_json(path)
            changed = sorted(k for k in saved.keys() | job.keys() if saved.get(k) != job.get(k))
            if changed:
                what = ", ".join(
                    DIGESTS[k] if k in DIGESTS else f"{k} was {saved.get(k)!r}, is {job.get(k)!r}"
                    for k in changed
                )
                raise ValueError(
                    f"{self.folder} must hold an unfinished run of the same data and options. Got {what}. "
                    "Use the same data and options, or start again: delete the folder (on the command line "
                    "--force), or choose another one."
                )
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise ValueError(
                f"{self.folder} must be an unfinished run or empty. Got other files. Use another folder."
            )
        self._job = json.dumps(job, indent=1).encode()

    def _path(self, stage: str) -> Path:
        return self.folder / f"{stage}.safetensors"

    def load(self, stage: str) -> Snapshot | None:
        return _read_snapshot(self._path(stage))

    def save(self, stage: str, snapshot: Snapshot) -> None:
        self._pending = (stage, snapshot)
        if snapshot.done or time.monotonic() - self._written >= self.seconds:
            self.flush()

    def begin(self) -> None:
        """Write job.json: with the first snapshot, or before other files of the job, but no earlier."""
        if not (self.folder / "job.json").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.folder / "job.json", self._job)

    def flush(self) -> None:
        """Write the snapshot that so far is only in memory."""
        if self._pending is None:
            return
        self.begin()
        stage, snapshot = self._pending
        _write_snapshot(self._path(stage), snapshot)
        self._pending, self._written = None, time.monotonic()


class StageCache:
    """Saves finished stages for other fits: one file per stage and per everything that determines its result.

    `keys` has, for each stage that may be shared, all that determines its result. `inner` saves unfinished
    stages. A stage that a watcher stopped early is not shared, nor are the stages after it.
    """

    def __init__(
        self, folder: str | Path, keys: Mapping[str, Any], inner: FolderCheckpoint | None = None
    ) -> None:
        self.folder, self.inner = Path(folder), inner
        self._stopped_early = False
        self._names = {
            stage: f"{stage}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]}.safetensors"
            for stage, key in keys.items()
        }

    def load(self, stage: str) -> Snapshot | None:
        own = None if self.inner is None else self.inner.load(stage)
        self._stopped_early |= own is not None and bool(own.facts.get("cut"))
        if own is not None or stage not in self._names:
            return own
        return None if self._stopped_early else _read_snapshot(self.folder / self._names[stage])

    def save(self, stage: str, snapshot: Snapshot) -> None:
        if self.inner is not None:
            self.inner.save(stage, snapshot)
        self._stopped_early |= bool(snapshot.facts.get("cut"))
        if snapshot.done and stage in self._names and not self._stopped_early:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_snapshot(self.folder / self._names[stage], snapshot)

    def begin(self) -> None:
        if self.inner is not None:
            self.inner.begin()

    def flush(self) -> None:
        if self.inner is not None:
            self.inner.flush()


def _write_snapshot(path: Path, snapshot: Snapshot) -> None:
    from safetensors.torch import save

    facts = {**snapshot.facts, "epoch": snapshot.epoch, "done": snapshot.done}
    replace_file(path, save(snapshot.tensors, metadata={"facts": json.dumps(facts)}))


def _read_snapshot(path: Path) -> Snapshot | None:
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["facts"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return Snapshot(facts.pop("epoch"), facts.pop("done"), tensors, facts)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must be a checkpoint. Got {error}. Delete it to start that stage again."
        ) from None
