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
import time
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
    samples: NDArray[Any] | None = None  # (n, ...); a memory map where it was read from a folder


# Of a job, what is told apart by digests, which say nothing to a reader.
DIGESTS = {"data": "other data", "own parts": "another encoder, clusterer or views"}
LABEL_COLUMNS = ("id", "label", "given", "new", "confidence")
SAMPLES = "samples.npy"
LARGEST_SAMPLES = 4 * 2**30  # bytes of samples that are kept in a run without being asked


def storable(X: NDArray[Any], *, largest: int = LARGEST_SAMPLES) -> NDArray[Any] | None:
    """`X` if a run may hold it: as float32 (uint8 and float16 stay) it has at most `largest` bytes."""
    return X if X.size * _stored_type(X.dtype).itemsize <= largest else None


def _stored_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What a network sees is float32: nothing is lost by it. Pixels stay uint8."""
    return np.dtype(dtype if dtype in (np.uint8, np.float16) else np.float32)


def samples_digest(X: NDArray[Any]) -> str:
    """A digest of samples as a run would hold them (of 64 MB of evenly spaced ones, where there are more)."""
    dtype = _stored_type(X.dtype)
    step = max(1, -(-X.size * dtype.itemsize // 2**26))
    digest = hashlib.sha256(repr((X.shape, dtype.str)).encode())
    digest.update(np.ascontiguousarray(X[::step], dtype=dtype).tobytes())
    return digest.hexdigest()


def shown(path: str | Path) -> str:
    """A path as text that every file and page can hold: what is no UTF-8 in it becomes a question mark."""
    return str(path).encode("utf-8", "replace").decode()


def plain(value: Any) -> Any:
    """An option's value as JSON can hold it."""
    if isinstance(value, float) and value == float("inf"):
        return "inf"
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return type(value).__name__


def from_plain(value: Any) -> Any:
    """An option's value from what `plain` made of it."""
    return float("inf") if value == "inf" else value


def check_writable(path: Path) -> None:
    """Raise unless a file or folder of that name could be made: before the work, not after it."""
    above = path.absolute().parent
    while not above.exists() and above != above.parent:
        above = above.parent
    if not path.name:
        raise ValueError(f"{path} must have a name, such as run or out.csv. Got a place only.")
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        what = "which you may not write to" if above.is_dir() else "which is a file"
        raise PermissionError(f"{path} must lie in a folder you may write to. Got {above}, {what}.")


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
        "embedding.npz": _npz(run.embedding),
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


def used_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run as its fit used them: with what `tune` chose in the place of what was given."""
    return {**config.get("options", {}), **((config.get("tuning") or {}).get("options") or {})}


def summary(run: Run) -> dict[str, Any]:
    """What a person would ask of a run first. Plain JSON values."""
    config, options = run.config, used_options(run.config)
    n_old = config["blueprint"]["n_old_classes"]
    classes = []
    by_class: dict[str, list[dict[str, str]]] = {}
    for row in run.labels:
        by_class.setdefault(row["label"], []).append(row)
    for index, name in enumerate(config["classes"]):
        members = by_class.get(str(name), [])
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
        "source": shown(config.get("source", "arrays")),
        "classes": classes,
        "network": config.get("chosen", {}).get("network", config["blueprint"]["architecture"]),
        "method": options["method"],
        "chosen": config.get("chosen", {"network": config["blueprint"]["architecture"]}),
        "expansion": options["expansion"],
        "label_weight": options["label_weight"],
        "seed": config["seed"],
        "confidence": config.get("confidence"),
        "given_accuracy": config.get("given_accuracy"),
        "tuning": config.get("tuning"),
        "time_budget": options.get("time_budget"),
        "spent": config.get("spent", {}),
        "epochs": epochs,
        "notes": config.get("notes", []),
        "pictures": sorted(run.pictures),
    }


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


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that is appended to. A torn last line, of a write cut short, is left out."""
    lines = path.read_text().splitlines()
    out = []
    for index, line in enumerate(lines):
        try:
            out.append(json.loads(line))
        except ValueError:
            if index == len(lines) - 1:
                break
            raise ValueError(f"{path}, line {index + 1} must be JSON. Got {line[:60]!r}.") from None
    return out


def append_jsonl(path: Path, *lines: Mapping[str, Any]) -> None:
    """Add lines to a file, and see them on the disk. A torn last line, of a write cut short, goes first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        content = path.read_bytes()
        if not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
        file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())


def _npz(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def read_npz(content: bytes) -> Arrays:
    """The arrays that `_npz` wrote. They are stored as they are, so none is larger than what holds it."""
    from cdknet.data.arrays import npy_header

    arrays = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist():
                if info.compress_type != zipfile.ZIP_STORED or info.file_size > len(content):
                    raise ValueError(f"{info.filename} must be stored as it is. Got it compressed.")
                data = archive.read(info)
                header = npy_header(info.filename, io.BytesIO(data))
                if len(data) - header.offset != header.data_bytes:
                    raise ValueError(f"{info.filename} must hold what it promises, {header.shape}.")
                flat = np.frombuffer(data, header.dtype, offset=header.offset) if header.data_bytes else None
                array = np.empty(header.shape, header.dtype) if flat is None else flat.copy()
                order: Literal["F", "C"] = "F" if header.fortran_order else "C"
                arrays[info.filename.removesuffix(".npy")] = array.reshape(header.shape, order=order)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"Arrays must be an .npz archive. Got {error}.") from None
    return arrays


def labels_digest(run: Run) -> str:
    """SHA-256 of labels.csv as it will be written."""
    return hashlib.sha256(_csv(run.labels)).hexdigest()


def _csv(rows: list[dict[str, str]]) -> bytes:
    return csv_bytes(LABEL_COLUMNS, [[row[name] for name in LABEL_COLUMNS] for row in rows])


def csv_bytes(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> bytes:
    """A table as CSV. All of a row is quoted where it holds a carriage return, which csv itself would not."""
    text = io.StringIO()
    plainly = csv.writer(text, lineterminator="\n")
    quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    plainly.writerow(head)
    for row in map(tuple, rows):
        odd = any(isinstance(value, str) and "\r" in value for value in row)
        (quoted if odd else plainly).writerow(row)
    return text.getvalue().encode()


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
    """A digest of arrays' shapes, types and values, read part by part."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr((array.shape, array.dtype.str)).encode())
        rows = np.atleast_1d(array)
        step = max(1, 2**24 * len(rows) // max(1, rows.nbytes))
        for start in range(0, len(rows), step):
            digest.update(rows[start : start + step].tobytes())
    return digest.hexdigest()


def seed_of_job(folder: str | Path) -> int | None:
    """The seed of the unfinished job in a checkpoint folder; None where there is none."""
    path = Path(folder) / "job.json"
    seed = _read_json(path).get("seed") if path.exists() else None
    return seed if isinstance(seed, int) else None


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
                what = ", ".join(
                    DIGESTS[k] if k in DIGESTS else f"{k} was {kept.get(k)!r}, is {job.get(k)!r}"
                    for k in changed
                )
                raise ValueError(
                    f"{self.folder} must hold an unfinished run of the same data and options. Got {what}. "
                    "Use the same again, or start afresh: remove it (on the command line --force), or take "
                    "another folder."
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
        """Write what the job is. With the first snapshot, or before other files of it; not before that."""
        if not (self.folder / "job.json").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.folder / "job.json", self._job)

    def flush(self) -> None:
        """Write what is held in memory only."""
        if self._pending is None:
            return
        self.begin()
        stage, snapshot = self._pending
        _write_snapshot(self._path(stage), snapshot)
        self._pending, self._written = None, time.monotonic()


class StageCache:
    """Keeps finished stages for other fits: one file for each stage and what decided its outcome.

    `keys` says, for each stage that may be shared, what decided it. `inner` keeps what is not finished.
    A stage that a watcher cut short is not shared, nor are those after it, which start from it.
    """

    def __init__(
        self, folder: str | Path, keys: Mapping[str, Any], inner: FolderCheckpoint | None = None
    ) -> None:
        self.folder, self.inner = Path(folder), inner
        self._cut = False
        self._names = {
            stage: f"{stage}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]}.safetensors"
            for stage, key in keys.items()
        }

    def load(self, stage: str) -> Snapshot | None:
        begun = None if self.inner is None else self.inner.load(stage)
        self._cut |= begun is not None and bool(begun.facts.get("cut"))
        if begun is not None or stage not in self._names:
            return begun
        return None if self._cut else _read_snapshot(self.folder / self._names[stage])

    def save(self, stage: str, snapshot: Snapshot) -> None:
        if self.inner is not None:
            self.inner.save(stage, snapshot)
        self._cut |= bool(snapshot.facts.get("cut"))
        if snapshot.done and stage in self._names and not self._cut:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_snapshot(self.folder / self._names[stage], snapshot)

    def flush(self) -> None:
        if self.inner is not None:
            self.inner.flush()


def _write_snapshot(path: Path, snapshot: Snapshot) -> None:
    from safetensors.torch import save

    facts = {**snapshot.facts, "epoch": snapshot.epoch, "done": snapshot.done}
    replace_file(path, save(snapshot.tensors, metadata={"facts": json.dumps(facts)}))


def _read_snapshot(path: Path) -> Snapshot | None:
    from safetensors import SafetensorError, safe_open

    from cdknet.stages.loop import Snapshot

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
