"""A run is a folder. Writing and reading it, and the checkpoints of one that is not finished.

    config.json          what was asked, what came out, and the size and SHA-256 of every other file
    history.jsonl        one line an epoch
    weights.safetensors  the model
    embedding.npz        features (n, d), confidence (n,), and map (n, 2) where one was made
    labels.csv           a line a sample: its id, label, whether the label was given, is new, confidence
    samples.npy          the samples themselves, where they were kept
    pictures/*.png
    review.jsonl         what a person changed (`cdknet.explorer.journal`); written later, no part of the sums

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
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cdknet.runs.files import Arrays, check_writable, csv_bytes, npz_bytes, read_json, read_npz, write_through
from cdknet.runs.fingerprints import _stored_type

if TYPE_CHECKING:
    pass


FORMAT, VERSION = "cdknet-run", 1


@dataclass(frozen=True)
class Run:
    """The contents of a run folder."""

    config: dict[str, Any]
    history: list[dict[str, Any]]
    weights: Arrays
    embedding: Arrays
    labels: list[dict[str, str]]  # the lines of labels.csv
    pictures: dict[str, bytes] = field(default_factory=dict)  # name without folder -> PNG
    samples: NDArray[Any] | None = None  # (n, ...); a memory map where it was read from a folder


LABEL_COLUMNS = ("id", "label", "given", "new", "confidence")

SAMPLES = "samples.npy"

LARGEST_SAMPLES = 4 * 2**30  # bytes of samples that are kept in a run without being asked


def storable(X: NDArray[Any], *, largest: int = LARGEST_SAMPLES) -> NDArray[Any] | None:
    """`X` if a run may hold it: as float32 (uint8 and float16 stay) it has at most `largest` bytes."""
    return X if X.size * _stored_type(X.dtype).itemsize <= largest else None


def check_target(folder: Path, force: bool) -> None:
    """Raise if `folder` may not be written: something is there, and `force` was not said."""
    check_writable(folder)
    if folder.exists() and not force:
        raise FileExistsError(
            f"{folder} must not exist yet. Got a {'folder' if folder.is_dir() else 'file'} of that name. "
            f"Choose another name{', or say --force (force=True) to replace it' * folder.is_dir()}."
        )
    if folder.exists() and not (folder / "config.json").is_file():
        raise FileExistsError(
            f"{folder} must be a run folder to be replaced. Got something else. Choose another name."
        )


def write_run(folder: str | Path, run: Run, *, force: bool = False, review: bytes | None = None) -> Path:
    """Write a run folder: whole or not at all. An older one is replaced only with `force`.

    `review` is a journal to begin with. It will grow, so config.json does not state its sum.
    """
    from safetensors.numpy import save

    folder = Path(folder)
    check_target(folder, force)
    files = {
        "history.jsonl": "".join(json.dumps(row) + "\n" for row in run.history).encode(),
        "weights.safetensors": save({k: np.asarray(v, order="C") for k, v in run.weights.items()}),
        "embedding.npz": npz_bytes(run.embedding),
        "labels.csv": _csv(run.labels),
        **{f"pictures/{name}": png for name, png in run.pictures.items()},
    }
    sums = {name: {"bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()} for name, b in files.items()}
    head = {"format": FORMAT, "version": VERSION}

    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        if run.samples is not None:
            sums[SAMPLES] = _write_samples(temporary / SAMPLES, run.samples)
        files["config.json"] = json.dumps({**head, **run.config, "files": sums}, indent=1).encode()
        if review is not None:
            files["review.jsonl"] = review
        for name, content in files.items():
            path = temporary / name
            path.parent.mkdir(exist_ok=True)
            write_through(path, content)
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
    """Read a run folder, checking format, version, and every file's size and SHA-256.

    The samples are mapped, not read: `verify_samples` checks their SHA-256.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    folder = Path(folder)
    config = read_config(folder)
    listed = {name: entry for name, entry in config["files"].items() if name != SAMPLES}
    contents = {name: checked_file(folder, name, entry) for name, entry in listed.items()}
    try:
        return Run(
            config=config,
            history=[json.loads(line) for line in contents["history.jsonl"].decode().splitlines()],
            weights=load(contents["weights.safetensors"]),
            embedding=read_npz(contents["embedding.npz"]),
            labels=list(csv.DictReader(io.StringIO(contents["labels.csv"].decode(), newline=""))),
            pictures={
                name.removeprefix("pictures/"): content
                for name, content in contents.items()
                if name.startswith("pictures/")
            },
            samples=open_samples(folder, config),
        )
    except (SafetensorError, ValueError, csv.Error, zipfile.BadZipFile) as error:
        raise ValueError(f"{folder}: a file of the run must be readable. Got {error}. Run again.") from None


def read_config(folder: str | Path) -> dict[str, Any]:
    """The configuration of a run folder, once it is known to be one."""
    folder = Path(folder)
    path = folder / "config.json"
    if not folder.is_dir() or not path.is_file():
        what = "no such folder" if not folder.exists() else "no config.json in it"
        what = "a file" if folder.is_file() else what
        raise ValueError(f"{folder} must be a cdknet run folder. Got {what}. Make one with cdknet discover.")
    config = read_json(path)
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
    if missing := {"options", "blueprint", "classes", "seed"} - config.keys():
        raise ValueError(f"{path} must be whole. Got nothing on {min(missing)}: the run is damaged.")
    return config


def open_samples(folder: str | Path, config: Mapping[str, Any]) -> NDArray[Any] | None:
    """The samples of a run as a read-only memory map, or None where they were not kept."""
    if SAMPLES not in config["files"]:
        return None
    path = _listed_file(Path(folder), SAMPLES, config["files"][SAMPLES])
    samples: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    if samples.dtype not in (np.uint8, np.float16, np.float32) or samples.ndim < 2:
        raise ValueError(
            f"{path} must hold samples as uint8 or float. Got {samples.dtype} of shape {samples.shape}. "
            "The run is damaged."
        )
    return samples


def verify_samples(folder: str | Path, config: Mapping[str, Any]) -> None:
    """Raise unless the kept samples have the SHA-256 that config.json states. Reads them once, in parts."""
    if SAMPLES in config["files"]:
        path = _listed_file(Path(folder), SAMPLES, config["files"][SAMPLES])
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while part := file.read(2**20):
                digest.update(part)
        _check_sum(path, digest.hexdigest(), config["files"][SAMPLES])


def checked_file(folder: Path, name: str, entry: Any) -> bytes:
    """The bytes of one listed file, if its name stays inside and its size and sum are as stated."""
    path = _listed_file(folder, name, entry)
    content = path.read_bytes()
    _check_sum(path, hashlib.sha256(content).hexdigest(), entry)
    return content


def _listed_file(folder: Path, name: str, entry: Any) -> Path:
    """The path of one listed file, if its name stays inside and its size is as stated."""
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
    return path


def _check_sum(path: Path, found: str, entry: Mapping[str, Any]) -> None:
    if found != entry.get("sha256"):
        raise ValueError(f"{path} must have the SHA-256 in config.json. Got another. The run is damaged.")


def labels_digest(run: Run) -> str:
    """SHA-256 of labels.csv as it will be written."""
    return hashlib.sha256(_csv(run.labels)).hexdigest()


def _csv(rows: list[dict[str, str]]) -> bytes:
    return csv_bytes(LABEL_COLUMNS, [[row[name] for name in LABEL_COLUMNS] for row in rows])


def _write_samples(path: Path, X: NDArray[Any]) -> dict[str, Any]:
    """Write samples part by part, so that a memory map stays one; the entry of the file in config.json."""
    dtype, digest, size = _stored_type(X.dtype), hashlib.sha256(), 0
    header = io.BytesIO()
    layout = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": X.shape}
    np.lib.format.write_array_header_1_0(header, layout)
    rows = max(1, 2**24 // max(1, X[:1].size * dtype.itemsize))
    with path.open("wb") as file:
        for start in range(-rows, len(X), rows):
            part = header.getvalue() if start < 0 else X[start : start + rows].astype(dtype).tobytes()
            file.write(part)
            digest.update(part)
            size += len(part)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}
