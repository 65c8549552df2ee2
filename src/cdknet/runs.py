"""A run is a folder. Writing and reading it, and the checkpoints of one that is not finished.

    config.json          what was asked, what came out, and the size and SHA-256 of every other file
    history.jsonl        one line an epoch
    weights.safetensors  the model
    embedding.npz        features (n, d), and map (n, 2) where one was made
    labels.csv           a line a sample: its id, label, whether the label was given, is new, confidence
    pictures/*.png

Nothing here is ever executed: no pickle, plain JSON, safetensors. A folder is written under a temporary
name and renamed when whole. Reading needs neither torch nor scikit-learn.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from cdknet.stages.loop import Snapshot

FORMAT, VERSION = "cdknet-run", 1
LARGEST_JSON = 256 * 2**20
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Run:
    """The contents of a run folder."""

    config: dict[str, Any]
    history: list[dict[str, Any]]
    weights: Arrays
    embedding: Arrays
    labels: list[dict[str, str]]  # the lines of labels.csv
    pictures: dict[str, bytes] = field(default_factory=dict)  # name without folder -> PNG


LABEL_COLUMNS = ("id", "label", "given", "new", "confidence")


def check_target(folder: Path, force: bool) -> None:
    """Raise if `folder` may not be written: something is there, and `force` was not said."""
    if folder.exists() and not force:
        raise FileExistsError(
            f"{folder} must not exist yet. Got a {'folder' if folder.is_dir() else 'file'} of that name. "
            "Choose another name, or say --force (force=True) to replace it."
        )
    if folder.exists() and not (folder / "config.json").is_file():
        raise FileExistsError(
            f"{folder} must be a run folder to be replaced. Got something else. Choose another name."
        )


def write_run(folder: str | Path, run: Run, *, force: bool = False) -> Path:
    """Write a run folder: whole or not at all. An older one is replaced only with `force`."""
    from safetensors.numpy import save

    folder = Path(folder)
    check_target(folder, force)
    files = {
        "history.jsonl": "".join(json.dumps(row) + "\n" for row in run.history).encode(),
        "weights.safetensors": save({k: np.ascontiguousarray(v) for k, v in run.weights.items()}),
        "embedding.npz": _npz(run.embedding),
        "labels.csv": _csv(run.labels),
        **{f"pictures/{name}": png for name, png in run.pictures.items()},
    }
    sums = {name: {"bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()} for name, b in files.items()}
    head = {"format": FORMAT, "version": VERSION}
    files["config.json"] = json.dumps({**head, **run.config, "files": sums}, indent=1).encode()

    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name, content in files.items():
            path = temporary / name
            path.parent.mkdir(exist_ok=True)
            _write_through(path, content)
        temporary.chmod(0o755)
        if folder.exists():
            retired = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
            folder.rename(retired / folder.name)
            temporary.rename(folder)
            shutil.rmtree(retired)
        else:
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def read_run(folder: str | Path) -> Run:
    """Read a run folder, checking format, version, and every file's size and SHA-256."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    folder = Path(folder)
    config = read_config(folder)
    contents = {name: _checked(folder, name, entry) for name, entry in config["files"].items()}
    try:
        return Run(
            config=config,
            history=[json.loads(line) for line in contents["history.jsonl"].decode().splitlines()],
            weights=load(contents["weights.safetensors"]),
            embedding=_read_npz(contents["embedding.npz"]),
            labels=list(csv.DictReader(io.StringIO(contents["labels.csv"].decode()))),
            pictures={
                name.removeprefix("pictures/"): content
                for name, content in contents.items()
                if name.startswith("pictures/")
            },
        )
    except (SafetensorError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{folder}: a file of the run must be readable. Got {error}. Run again.") from None


def read_config(folder: str | Path) -> dict[str, Any]:
    """The configuration of a run folder, once it is known to be one."""
    folder = Path(folder)
    path = folder / "config.json"
    if not folder.is_dir() or not path.is_file():
        what = "no such folder" if not folder.exists() else "no config.json in it"
        raise ValueError(f"{folder} must be a cdknet run folder. Got {what}. Make one with cdknet discover.")
    config = _read_json(path)
    if config.get("format") != FORMAT:
        raise ValueError(f"{path} must be of format {FORMAT!r}. Got {config.get('format')!r}.")
    if config.get("version") != VERSION:
        raise ValueError(
            f"{path} must be of version {VERSION}. Got {config.get('version')!r}. "
            "Read it with the cdknet that wrote it."
        )
    files = config.get("files")
    wanted = {"history.jsonl", "weights.safetensors", "embedding.npz", "labels.csv"}
    if not isinstance(files, dict) or not wanted <= files.keys():
        raise ValueError(
            f"{path} must list the run's files. Got {files if files is None else sorted(files)}."
        )
    return config


def summary(run: Run) -> dict[str, Any]:
    """What a person would ask of a run first. Plain JSON values."""
    config = run.config
    n_old = config["blueprint"]["n_old_classes"]
    classes = []
    for index, name in enumerate(config["classes"]):
        members = [row for row in run.labels if row["label"] == str(name)]
        confidence = [float(row["confidence"]) for row in members]
        classes.append(
            {
                "name": str(name),
                "kind": "old" if index < n_old else "new",
                "samples": len(members),
                "given": sum(row["given"] == "1" for row in members),
                "confidence": float(np.mean(confidence)) if confidence else 0.0,
            }
        )
    stages = list(dict.fromkeys(row["stage"] for row in run.history))
    epochs = {stage: sum(row["stage"] == stage for row in run.history) for stage in stages}
    return {
        "samples": len(run.labels),
        "source": config.get("source", "arrays"),
        "classes": classes,
        "network": config["blueprint"]["architecture"],
        "expansion": config["options"]["expansion"],
        "label_weight": config["options"]["label_weight"],
        "seed": config["seed"],
        "epochs": epochs,
        "seconds": round(sum(row["seconds"] for row in run.history), 1),
        "pictures": sorted(run.pictures),
    }


def _checked(folder: Path, name: str, entry: Any) -> bytes:
    """The bytes of one listed file, if its name stays inside and its size and sum are as stated."""
    parts = Path(name).parts
    if not parts or len(parts) > 2 or ".." in parts or Path(name).is_absolute() or "\\" in name:
        raise ValueError(f"{folder}: config.json must name files of its own folder. Got {name!r}.")
    path = folder / name
    if not isinstance(entry, dict) or not isinstance(entry.get("bytes"), int):
        raise ValueError(f"{folder}: config.json must state the size of {name}. Got {entry!r}.")
    if not path.is_file() or path.is_symlink():
        raise ValueError(f"{path} must be there, a file of the run. Got none. The run is damaged.")
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise ValueError(f"{path} must have {entry['bytes']} bytes. Got {size}. The run is damaged.")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != entry.get("sha256"):
        raise ValueError(f"{path} must have the SHA-256 in config.json. Got another. The run is damaged.")
    return content


def _read_json(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > LARGEST_JSON:
        raise ValueError(f"{path} must have at most {LARGEST_JSON} bytes. Got {size}.")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must hold JSON. Got {error}.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object. Got {type(content).__name__}.")
    return content


def _npz(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _read_npz(content: bytes) -> Arrays:
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _csv(rows: list[dict[str, str]]) -> bytes:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, LABEL_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode()


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it: readers see the old one or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write_through(temporary, content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


# Checkpoints


def fingerprint(*arrays: NDArray[Any]) -> str:
    """A digest of arrays' shapes, types and values (of 64 MB of evenly spaced rows, where there are more)."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr((array.shape, array.dtype.str)).encode())
        step = max(1, array.nbytes // 2**26)
        digest.update(np.ascontiguousarray(array[::step]).tobytes())
    return digest.hexdigest()


class FolderCheckpoint:
    """Keeps the latest snapshot of each stage in a folder, for one job and no other.

    The newest snapshot is always held in memory; it goes to disk when the stage ends, when `flush` is
    called, and at most every `seconds` (5, or what CDKNET_CHECKPOINT_SECONDS says), so that quick epochs
    do not wait for the disk.
    """

    def __init__(self, folder: str | Path, job: Mapping[str, Any], *, seconds: float | None = None) -> None:
        self.folder = Path(folder)
        self.seconds = float(os.environ.get("CDKNET_CHECKPOINT_SECONDS", 5)) if seconds is None else seconds
        self._pending: tuple[str, Snapshot] | None = None
        self._written = time.monotonic()
        path = self.folder / "job.json"
        job = json.loads(json.dumps(job))
        if path.exists():
            kept = _read_json(path)
            changed = sorted(k for k in kept.keys() | job.keys() if kept.get(k) != job.get(k))
            if changed:
                what = ", ".join(f"{k} was {kept.get(k)!r}, is {job.get(k)!r}" for k in changed)
                raise ValueError(
                    f"{self.folder} must hold an unfinished run of the same data and options. Got another: "
                    f"{what}. Use them again, or start afresh with --force or another folder."
                )
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise ValueError(
                f"{self.folder} must be an unfinished run or empty. Got other files. Use another folder."
            )
        self._job = json.dumps(job, indent=1).encode()  # written with the first snapshot, not before

    def _path(self, stage: str) -> Path:
        return self.folder / f"{stage}.safetensors"

    def load(self, stage: str) -> Snapshot | None:
        from safetensors import SafetensorError, safe_open

        from cdknet.stages.loop import Snapshot

        path = self._path(stage)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                facts = json.loads(file.metadata()["facts"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return Snapshot(facts.pop("epoch"), facts.pop("done"), tensors, facts)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} must be a checkpoint. Got {error}. Delete it to begin that stage again."
            ) from None

    def save(self, stage: str, snapshot: Snapshot) -> None:
        self._pending = (stage, snapshot)
        if snapshot.done or time.monotonic() - self._written >= self.seconds:
            self.flush()

    def flush(self) -> None:
        """Write what is held in memory only."""
        from safetensors.torch import save

        if self._pending is None:
            return
        if not (self.folder / "job.json").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.folder / "job.json", self._job)
        stage, snapshot = self._pending
        facts = {**snapshot.facts, "epoch": snapshot.epoch, "done": snapshot.done}
        replace_file(self._path(stage), save(snapshot.tensors, metadata={"facts": json.dumps(facts)}))
        self._pending, self._written = None, time.monotonic()
