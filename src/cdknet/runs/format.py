"""A run is a folder: how it is written, and the only parser of it.

    config.json          what was asked, what came out, and the size and SHA-256 of every other file
    history.jsonl        one row per epoch
    weights.safetensors  the model
    embedding.npz        features (n, d), confidence (n,), novelty (n,), best_old (n,), and map (n, 2) if one
                         was computed
    labels.csv           one row per sample: id, label, whether the label was given, whether its class is new,
                         confidence, novelty (the probability that it is not of an old class)
    samples.npy          the samples themselves, if they were stored
    texts.jsonl          the texts that the samples are vectors of, if they are: one JSON string per line
    pictures/*.png
    review.jsonl         what a person changed (`cdknet.explorer.journal`); it grows after the run is written,
                         so config.json does not list it

Confidence is written twice. The float32 array in embedding.npz is the source; the column of labels.csv has
four digits and is for people. `Run.confidence` falls back to that column where the array is missing, in older
and hand-made runs.

Nothing in a run is ever executed: no pickle, plain JSON, safetensors. A folder is written under a temporary
name and renamed when complete. Reading needs neither torch nor scikit-learn.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdknet.data.arrays import load_npy
from cdknet.data.texts import texts_as_lines, texts_of_lines
from cdknet.runs.files import (
    Arrays,
    check_writable,
    csv_bytes,
    naming,
    npz_bytes,
    read_json,
    read_npz,
    write_through,
)
from cdknet.runs.fingerprints import stored_type
from cdknet.runs.schema import MOST_CLASSES, checked_config, checked_row, filled

HISTORY, WEIGHTS, EMBEDDING = "history.jsonl", "weights.safetensors", "embedding.npz"
LABELS, SAMPLES, TEXTS, PICTURES = "labels.csv", "samples.npy", "texts.jsonl", "pictures/"

LABEL_COLUMNS = ("id", "label", "given", "new", "confidence", "novelty")
NOISE = -1  # the position of a sample's class if it was set aside as noise

LARGEST_SAMPLES = 4 * 2**30  # bytes of samples that a run stores unless asked otherwise


@dataclass(frozen=True)
class Run:
    """The contents of a run folder. Columns have one entry per sample, in the order of labels.csv."""

    config: dict[str, Any]
    history: list[dict[str, Any]]
    weights: Arrays
    embedding: Arrays
    labels: list[dict[str, str]]  # rows of labels.csv, for writers; readers use the columns below
    pictures: dict[str, bytes] = field(default_factory=dict)  # file name -> PNG
    samples: NDArray[Any] | None = None  # (n, ...); a memory map if it was read from a folder
    texts: Sequence[str] | None = None  # (n,) what the samples are vectors of

    def __len__(self) -> int:
        return len(self.labels)

    # Classes

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, old ones first."""
        return [str(name) for name in self.config["classes"]]

    @property
    def class_ids(self) -> list[int]:
        """Ids of the classes. A refined run keeps those of the run it came from."""
        return [int(i) for i in self.config["class_ids"] or range(len(self.class_names))]

    @property
    def next_class_id(self) -> int:
        """The smallest id that no class ever had."""
        return max(int(self.config["next_class_id"] or 0), max(self.class_ids) + 1)

    @property
    def n_old(self) -> int:
        return int(self.config["blueprint"]["n_old_classes"])

    @property
    def n_new(self) -> int:
        return int(self.config["blueprint"]["n_new_classes"])

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return tuple(self.config["blueprint"]["sample_shape"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    # Columns

    @cached_property
    def ids(self) -> list[str]:
        return [row["id"] for row in self.labels]

    @cached_property
    def label_names(self) -> NDArray[np.str_]:
        """(n,) the name of each sample's class."""
        return np.array([row["label"] for row in self.labels], dtype=np.str_)

    @property
    def noise_name(self) -> str:
        """The label of samples that were set aside as noise. No class has this name."""
        return free_name("noise", self.class_names)

    @cached_property
    def class_index(self) -> NDArray[np.int64]:
        """(n,) the position of each sample's class in `class_names`; `NOISE` if it was set aside."""
        position = {name: index for index, name in enumerate(self.class_names)} | {self.noise_name: NOISE}
        return np.array([position[row["label"]] for row in self.labels], dtype=np.int64)

    @cached_property
    def given(self) -> NDArray[np.bool_]:
        """(n,) whether the label was given, not found."""
        return np.array([row["given"] == "1" for row in self.labels], dtype=np.bool_)

    @property
    def new(self) -> NDArray[np.bool_]:
        """(n,) whether the sample's class is a new one."""
        return self.class_index >= self.n_old

    @cached_property
    def confidence(self) -> NDArray[np.float32]:
        """(n,) from embedding.npz; from labels.csv, to four digits, in runs that have it only there."""
        stored = self.embedding.get("confidence")
        if stored is None:
            stored = np.array([row["confidence"] for row in self.labels], dtype=np.float32)
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(stored, dtype=np.float32)

    @property
    def mixture(self) -> dict[str, Any] | None:
        """What is known of old and new among the unlabelled samples; None if all were taken to be new."""
        found: dict[str, Any] | None = self.config["mixture"]
        return found

    @property
    def calibration(self) -> dict[str, Any]:
        """What rehearsals taught about the confidences."""
        confidence = self.config["confidence"]
        found: dict[str, Any] = {"calibrated": False} if confidence is None else confidence["calibration"]
        return found

    @cached_property
    def novelty(self) -> NDArray[np.float32]:
        """(n,) P(the sample is not of an old class): 0 where the label was given; 1 where new was assumed."""
        stored = self.embedding.get("novelty")
        if stored is None:
            stored = (~self.given).astype(np.float32)
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(stored, dtype=np.float32)

    @cached_property
    def best_old(self) -> NDArray[np.int64] | None:
        """(n,) the old class that each sample resembles most, as a position; None in runs without it."""
        stored = self.embedding.get("best_old")
        return None if stored is None else np.ascontiguousarray(stored, dtype=np.int64)

    @property
    def recognized(self) -> NDArray[np.bool_]:
        """(n,) unlabelled samples that were recognised as samples of an old class."""
        return ~self.given & (self.class_index >= 0) & (self.class_index < self.n_old)

    @cached_property
    def features(self) -> NDArray[np.float32]:
        """(n, d)"""
        with np.errstate(over="ignore"):  # what becomes infinite is refused by `check`
            return np.ascontiguousarray(self.embedding["features"], dtype=np.float32)

    def check(self) -> None:
        """Raise ValueError unless the parts of the run fit together. The config alone was checked before."""
        names, ids, n = self.class_names, self.class_ids, len(self)
        if not names:
            raise ValueError("no classes")
        if len({*names}) != len(names) or len({*ids}) != len(ids):
            raise ValueError("classes that share a name or an id")
        if len(ids) != len(names) or self.next_class_id > MOST_CLASSES:
            raise ValueError(f"{len(ids)} ids for {len(names)} classes, from {min(ids)} to {max(ids)}")
        if self.n_old + self.n_new != len(names):
            raise ValueError(f"{len(names)} names for {self.n_old} old and {self.n_new} new classes")
        if self.labels and (missing := {"id", "label", "given"} - self.labels[0].keys()):
            raise ValueError(f"no column {min(missing)} in {LABELS}")
        if unknown := {row["label"] for row in self.labels} - {*names, self.noise_name}:
            raise ValueError(f"the label {min(unknown)[:60]!r}, which is not one of the classes")
        columns = {
            "features": (2, "fiu"),
            "confidence": (1, "fiu"),
            "novelty": (1, "fiu"),
            "best_old": (1, "iu"),
        }
        for name, (dimensions, kinds) in columns.items():
            array = self.embedding.get(name)
            if array is not None and (array.ndim != dimensions or array.dtype.kind not in kinds):
                raise ValueError(f"{name} of {array.dtype} in the shape {array.shape}")
        if "features" not in self.embedding:
            raise ValueError(f"no features in {EMBEDDING}")
        if self.embedding.get("confidence") is None and "confidence" not in (self.labels or [{}])[0]:
            raise ValueError(f"no confidence, neither in {EMBEDDING} nor in {LABELS}")
        if self.texts is not None and len(self.texts) != n:
            raise ValueError(f"{len(self.texts)} texts for {n} samples")
        features, confidence = self.features, self.confidence
        if len(features) != n or not n or not features.shape[1]:
            raise ValueError(f"{len(features)} rows of {features.shape[1]} features for {n} samples")
        if confidence.shape != (n,):
            raise ValueError(f"confidences of shape {confidence.shape} for {n} samples")
        if not np.isfinite(features).all() or not np.isfinite(confidence).all():
            raise ValueError("features or confidences that are not finite")
        farthest = np.sqrt(np.finfo(np.float32).max / (4 * features.shape[1]))
        if np.abs(features).max() > farthest:  # no distance between two samples may overflow
            raise ValueError(f"features beyond {farthest:.1e}, between which distances cannot be computed")
        if self.novelty.shape != (n,) or not ((self.novelty >= 0) & (self.novelty <= 1)).all():
            raise ValueError("novelties that are not one probability per sample")
        best = self.best_old
        if best is not None and (best.shape != (n,) or min(best) < 0 or max(best) >= max(self.n_old, 1)):
            raise ValueError("best old classes that are not one old class per sample")


def free_name(name: str, taken: Collection[str]) -> str:
    """`name`, or name-2, name-3, ... if it is taken."""
    k, free = 2, name
    while free in taken:
        free, k = f"{name}-{k}", k + 1
    return free


# Writing


def storable(X: NDArray[Any], *, largest: int = LARGEST_SAMPLES) -> NDArray[Any] | None:
    """`X` if a run may store it: as float32 (uint8 and float16 stay) it has at most `largest` bytes."""
    return X if X.size * stored_type(X.dtype).itemsize <= largest else None


def check_target(folder: Path, force: bool) -> None:
    """Raise unless `folder` may be written: it does not exist, or it is a run and `force` is set."""
    check_writable(folder)
    if folder.exists() and not force:
        raise FileExistsError(
            f"{folder} must not exist yet. Got a {'folder' if folder.is_dir() else 'file'} of that name. "
            f"Choose another name{', or use --force (force=True) to replace it' * folder.is_dir()}."
        )
    if folder.exists() and not (folder / "config.json").is_file():
        raise FileExistsError(
            f"{folder} must be a run folder to be replaced. Got something else. Choose another name."
        )


def write_run(folder: str | Path, run: Run, *, force: bool = False, review: bytes | None = None) -> Path:
    """Write a run folder: all of it or nothing. An existing run is replaced only with `force`.

    `review` is the content of a first review.jsonl. It will grow, so config.json does not list it.
    """
    from safetensors.numpy import save

    folder = Path(folder)
    check_target(folder, force)
    files = {
        HISTORY: "".join(json.dumps(row) + "\n" for row in run.history).encode(),
        WEIGHTS: save({k: np.asarray(v, order="C") for k, v in run.weights.items()}),
        EMBEDDING: npz_bytes(run.embedding),
        LABELS: _labels_csv(run.labels),
        **{f"{PICTURES}{name}": png for name, png in run.pictures.items()},
    }
    if run.texts is not None:
        files[TEXTS] = texts_as_lines(run.texts)
    sums = {name: {"bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()} for name, b in files.items()}

    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        if run.samples is not None:
            sums[SAMPLES] = _write_samples(temporary / SAMPLES, run.samples)
        files["config.json"] = json.dumps(filled({**run.config, "files": sums}), indent=1).encode()
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


def labels_digest(run: Run) -> str:
    """SHA-256 of labels.csv as it will be written."""
    return hashlib.sha256(_labels_csv(run.labels)).hexdigest()


def _labels_csv(rows: list[dict[str, str]]) -> bytes:
    return csv_bytes(LABEL_COLUMNS, [[row.get(name, "") for name in LABEL_COLUMNS] for row in rows])


def _write_samples(path: Path, X: NDArray[Any]) -> dict[str, Any]:
    """Write samples in parts, so that a memory map is never loaded whole; the file's entry in config.json."""
    dtype, digest, size = stored_type(X.dtype), hashlib.sha256(), 0
    header = io.BytesIO()
    layout = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": X.shape}
    np.lib.format.write_array_header_1_0(header, layout)
    rows = max(1, 2**24 // max(1, X[:1].size * dtype.itemsize))
    with naming(path), path.open("wb") as file:
        for start in range(-rows, len(X), rows):
            part = header.getvalue() if start < 0 else X[start : start + rows].astype(dtype).tobytes()
            file.write(part)
            digest.update(part)
            size += len(part)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


# Reading


def read_run(folder: str | Path, *, weights: bool = True) -> Run:
    """Read a run folder and check it: format, version, size and SHA-256 of every file, and that they agree.

    The samples are mapped, not read: `verify_samples` checks their SHA-256. With `weights=False` the weights
    and pictures are neither read nor checked, for readers who only look at samples and classes.
    """
    folder = Path(folder)
    config = read_config(folder)
    listed = {name: entry for name, entry in config["files"].items() if name != SAMPLES}
    if not weights:
        listed = {name: listed[name] for name in (HISTORY, EMBEDDING, LABELS, TEXTS) if name in listed}
    contents = {name: _checked_file(folder, name, entry) for name, entry in listed.items()}
    samples = open_samples(folder, config)
    try:
        run = Run(
            config=config,
            history=_read_history(contents[HISTORY]),
            weights=_read_weights(contents[WEIGHTS]) if weights else {},
            embedding=read_npz(contents[EMBEDDING]),
            labels=_read_labels(contents[LABELS]),
            pictures={
                name.removeprefix(PICTURES): content
                for name, content in contents.items()
                if name.startswith(PICTURES)
            },
            samples=samples,
            texts=texts_of_lines(TEXTS, contents[TEXTS]) if TEXTS in contents else None,
        )
    except (ValueError, RecursionError, csv.Error) as error:
        raise ValueError(f"{folder}: a file of the run must be readable. Got {error}. Run again.") from None
    try:
        run.check()
    except ValueError as error:
        raise ValueError(f"{folder}: the files of the run must fit together. Got {error}.") from None
    return run


def _read_history(content: bytes) -> list[dict[str, Any]]:
    lines = content.decode().split("\n")
    return [checked_row(json.loads(line), at) for at, line in enumerate(lines, start=1) if line.strip()]


def _read_weights(content: bytes) -> Arrays:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        weights = load(content)
    except (SafetensorError, LookupError, TypeError) as error:  # also a type of number that numpy has not
        raise ValueError(f"weights that cannot be read: {error}") from None
    odd = next((name for name, array in weights.items() if array.dtype.kind not in "fiub"), None)
    if odd is not None:
        raise ValueError(f"{odd[:60]} of {weights[odd].dtype} among the weights")
    return weights


def _read_labels(content: bytes) -> list[dict[str, str]]:
    """The rows of labels.csv. Older and hand-made files may have fewer columns than we write."""
    rows = [row for row in csv.reader(io.StringIO(content.decode(), newline="")) if row]
    columns, rows = (rows[0], rows[1:]) if rows else ([], [])
    short = next((i for i, row in enumerate(rows) if len(row) < len(columns)), None)
    if short is not None:
        raise ValueError(
            f"{len(rows[short])} values for {len(columns)} columns in row {short + 1} of {LABELS}"
        )
    return [dict(zip(columns, row, strict=False)) for row in rows]


def read_config(folder: str | Path) -> dict[str, Any]:
    """The configuration of a run folder, once it is known to be one."""
    folder = Path(folder)
    path = folder / "config.json"
    if not folder.is_dir() or not path.is_file():
        what = "no such folder" if not folder.exists() else "no config.json in it"
        what = "a file" if folder.is_file() else what
        raise ValueError(f"{folder} must be a cdknet run folder. Got {what}. Make one with cdknet discover.")
    config = checked_config(read_json(path), path)
    if missing := {HISTORY, WEIGHTS, EMBEDDING, LABELS} - config["files"].keys():
        raise ValueError(f"{path} must list the run's files. Got nothing on {min(missing)}.")
    return config


def open_samples(folder: str | Path, config: Mapping[str, Any]) -> NDArray[Any] | None:
    """The samples of a run as a read-only memory map, or None if they were not stored."""
    if SAMPLES not in config["files"]:
        return None
    path = _listed_file(Path(folder), SAMPLES, config["files"][SAMPLES])
    try:
        samples = load_npy(path)
    except ValueError as error:
        raise ValueError(f"{path} must be an array of NumPy. Got {error} The run is damaged.") from None
    if samples.dtype not in (np.uint8, np.float16, np.float32) or samples.ndim < 2:
        raise ValueError(
            f"{path} must hold samples as uint8 or float. Got {samples.dtype} of shape {samples.shape}. "
            "The run is damaged."
        )
    return samples


def verify_samples(folder: str | Path, config: Mapping[str, Any]) -> None:
    """Raise unless the stored samples have the SHA-256 that config.json states. Reads them once, in parts."""
    if SAMPLES in config["files"]:
        path = _listed_file(Path(folder), SAMPLES, config["files"][SAMPLES])
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while part := file.read(2**20):
                digest.update(part)
        _check_sum(path, digest.hexdigest(), config["files"][SAMPLES])


def _checked_file(folder: Path, name: str, entry: Any) -> bytes:
    """The bytes of one listed file, if its name stays inside the folder and its size and sum are right."""
    path = _listed_file(folder, name, entry)
    content = path.read_bytes()
    _check_sum(path, hashlib.sha256(content).hexdigest(), entry)
    return content


def _listed_file(folder: Path, name: str, entry: Any) -> Path:
    """The path of one listed file, if its name stays inside the folder and its size is right."""
    parts = Path(name).parts
    if not parts or len(parts) > 2 or ".." in parts or Path(name).is_absolute() or "\\" in name:
        raise ValueError(f"{folder}: config.json must name files of its own folder. Got {name!r}.")
    path = folder / name
    if not isinstance(entry, dict) or not isinstance(entry.get("bytes"), int):
        raise ValueError(f"{folder}: config.json must state the size of {name}. Got {entry!r}.")
    if not path.is_file() or path.is_symlink():
        raise ValueError(f"{path} must be a file of the run. It is missing or a link. The run is damaged.")
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise ValueError(f"{path} must have {entry['bytes']} bytes. Got {size}. The run is damaged.")
    return path


def _check_sum(path: Path, found: str, entry: Mapping[str, Any]) -> None:
    if found != entry.get("sha256"):
        raise ValueError(f"{path} must have the SHA-256 in config.json. Got another. The run is damaged.")
