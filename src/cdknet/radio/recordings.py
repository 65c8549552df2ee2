"""Radio recordings: read SigMF and raw I/Q files as slices for a network, and write SigMF.

No file is trusted: metadata is checked against the size of the data file before memory is allocated, and may
only name a file in its own folder. Every error is a `ValueError` that begins with the name of the file.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cdknet.core.openworld import UNLABELED
from cdknet.data.checks import UNLABELLED_FOLDERS, labels_from_text
from cdknet.data.samples import Samples

RAW_SUFFIXES = {".cf32": "cf32_le", ".cs16": "ci16_le", ".cu8": "cu8"}
META, DATA = ".sigmf-meta", ".sigmf-data"
MOST_METADATA = 16 * 2**20  # bytes, enough for about 100,000 annotations
MOST_COVERAGE = 4  # total length of all annotations, in lengths of the recording
_CHUNK = 4096  # slices converted at once


class Segment(NamedTuple):
    """A part of a recording that is one transmission: an annotation, or the whole file."""

    group: str
    label: str | None
    start: int  # samples
    size: int


class Recording(NamedTuple):
    """A checked recording: interleaved components on disk, and their metadata."""

    name: str  # relative to the folder that was opened
    components: NDArray[Any]  # (samples, 2), memory-mapped
    sample_rate: float
    segments: list[Segment]


def open_recording(
    path: str | Path,
    *,
    sample_rate: float | None = None,
    slice_length: int = 198,
    overlap: int = 0,
    energy_gate: float | None = None,
    unit_power: bool = False,
) -> Samples:
    """Read a SigMF recording, a raw I/Q file or a folder of either as slices (n, 2, slice_length).

    Parameters
    ----------
    path
        `x.sigmf-meta` or `x.sigmf-data`, a raw `.cf32`, `.cs16` or `.cu8` file, or a folder that is searched
        for these. In a folder, the first sub-folder's name is the label where no annotation has one.
    sample_rate
        In Hz. Required for raw files. A SigMF file has its own, with which this one must agree.
    slice_length, overlap
        Samples per slice, and how many of them it shares with the next slice. A remainder is dropped.
    energy_gate
        In dB: leave out slices whose mean power is more than this below the recording's loudest slice.
    unit_power
        Scale every transmission (annotation, or file without annotations) to mean power 1.

    Returns
    -------
    Samples
        `X` float32, integers scaled to -1 .. 1 as (v - zero) / 2^(bits - 1); `y` the device labels, "-1"
        where unlabelled, None if nothing is labelled; `ids` file, transmission and time offset in seconds;
        `groups` the transmission, for `vote`.
    """
    _check_options(sample_rate, slice_length, overlap, energy_gate)
    path = Path(path)
    X, ids, groups, labels, notes = [], [], [], [], []
    for recording in _recordings(path, sample_rate):
        sliced, skipped = _slice(recording, slice_length, slice_length - overlap, energy_gate, unit_power)
        digits = max(6, math.ceil(math.log10(recording.sample_rate)) + 1)
        for segment, at, slices in sliced:
            X.append(slices)
            ids += [f"{segment.group}@{a / recording.sample_rate:.{digits}f}s" for a in at.tolist()]
            groups += [segment.group] * len(at)
            labels += [segment.label or ""] * len(at)
        if skipped:
            notes.append(
                f"{recording.name}: {skipped} transmissions shorter than {slice_length} samples left out"
            )
    if not X:
        raise ValueError(
            f"{path}: at least one transmission must have {slice_length} samples above the energy gate. Got "
            "none. Use a smaller slice_length or a larger energy_gate."
        )
    notes.append(f"slices of {slice_length} samples, overlap {overlap}, energy gate {energy_gate}")
    samples = np.concatenate(X)
    y = labels_from_text(path, labels, samples.nbytes)
    hidden = y == (UNLABELED if y.dtype.kind == "i" else str(UNLABELED))
    return Samples(
        samples,
        None if hidden.all() else y,
        np.array(ids, dtype=np.str_),
        str(path),
        tuple(notes),
        np.array(groups, dtype=np.str_),
    )


def write_sigmf(
    path: str | Path,
    transmissions: Sequence[ArrayLike],
    *,
    sample_rate: float,
    labels: Sequence[str | None] | None = None,
    carrier_hz: float | None = None,
    description: str = "",
) -> Path:
    """Write transmissions one after another to `path.sigmf-data` and `.sigmf-meta`; return the latter path.

    Each transmission becomes an annotation, with its label from `labels` (None: unlabelled). Samples are
    stored as cf32_le. Existing files are not overwritten.
    """
    sigmf = _import_sigmf()
    path = Path(path)
    stem = path.with_suffix("") if path.suffix in (META, DATA) else path
    meta_path, data_path = stem.with_name(stem.name + META), stem.with_name(stem.name + DATA)
    for target in (meta_path, data_path):
        if target.exists():
            raise ValueError(f"{target}: must not exist yet. Choose another name, or remove it.")
    parts = [np.asarray(t) for t in transmissions]
    if not parts or any(p.ndim != 1 or p.size == 0 for p in parts):
        raise ValueError(f"{path}: transmissions must be one-dimensional and hold samples. Got {len(parts)}.")
    if labels is not None and len(labels) != len(parts):
        raise ValueError(
            f"{path}: labels must have one entry per transmission ({len(parts)}). Got {len(labels)}."
        )

    meta = sigmf.SigMFFile(
        global_info={
            "core:datatype": "cf32_le",
            "core:sample_rate": float(sample_rate),
            "core:description": description,
            "core:version": sigmf.__specification__,
        }
    )
    meta.add_capture(0, {} if carrier_hz is None else {"core:frequency": float(carrier_hz)})
    start = 0
    for i, part in enumerate(parts):
        label = None if labels is None else labels[i]
        meta.add_annotation(start, len(part), {} if label is None else {"core:label": str(label)})
        start += len(part)
    meta.validate()
    meta_path.parent.mkdir(parents=True, exist_ok=True)
    for target, content in (
        (data_path, np.concatenate(parts).astype("<c8").tobytes()),
        (meta_path, meta.dumps().encode()),
    ):
        part_path = target.with_name(f".{target.name}.part")
        part_path.write_bytes(content)
        part_path.replace(target)
    return meta_path


# --- finding the files -------------------------------------------------------------------------------------


def _recordings(path: Path, sample_rate: float | None) -> Iterator[Recording]:
    if path.is_dir():
        root, found = path.resolve(), sorted(_walk(path))
        if not found:
            kinds = ", ".join([META, *RAW_SUFFIXES])
            raise ValueError(f"{path}: the folder must hold recordings ({kinds}). Got none.")
        for file in found:
            if not file.resolve().is_relative_to(root):
                _refuse(file, "must be inside the folder that was opened", "a link to a file outside")
        described = {_raw_file(file) for file in found if file.suffix.lower() == META}
        for file in found:
            if file in described:  # a raw file, read with its metadata
                continue
            inside = file.relative_to(path)
            folder = inside.parts[0] if len(inside.parts) > 1 else None
            if folder is not None and folder.lower() in UNLABELLED_FOLDERS:
                folder = None
            yield _open(file, inside.as_posix(), root, sample_rate, folder)
        return
    if path.suffix == DATA:
        path = path.with_suffix(META)
    if path.suffix.lower() not in (META, *RAW_SUFFIXES):
        raise ValueError(
            f"{path}: a recording must be {META}, {', '.join(RAW_SUFFIXES)} or a folder of these. Got "
            f"{path.suffix or 'no suffix'!r}. Unpack archives; name raw files after their sample format."
        )
    yield _open(path, path.name, path.parent.resolve(), sample_rate, None)


def _walk(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):  # does not follow links to folders
        yield from (
            Path(place) / name
            for name in names
            if Path(name).suffix.lower() in (META, *RAW_SUFFIXES) and not name.startswith(".")
        )


def _raw_file(file: Path) -> Path | None:
    """The raw file that a metadata file names, if any: it must not be read twice."""
    name = _read_metadata(file)["global"].get("core:dataset")
    return file.with_name(name) if isinstance(name, str) else None


def _open(file: Path, name: str, root: Path, sample_rate: float | None, folder: str | None) -> Recording:
    if not file.is_file():
        raise ValueError(f"{file}: must be an existing file. Got none. Check the path.")
    if file.suffix.lower() == META:
        return _open_sigmf(file, name, root, sample_rate, folder)
    if sample_rate is None:
        _refuse(file, "a raw file needs a sample rate", "none", "Give sample_rate in Hz.")
    components = _map(file, _component_type(file, RAW_SUFFIXES[file.suffix.lower()]))
    return Recording(name, components, sample_rate, [Segment(name, folder, 0, len(components))])


def _open_sigmf(
    file: Path, name: str, root: Path, sample_rate: float | None, folder: str | None
) -> Recording:
    metadata = _read_metadata(file)
    info = metadata["global"]
    if info.get("core:metadata_only") or info.get("core:num_channels", 1) != 1:
        _refuse(
            file, "must describe one channel of samples", "several, or metadata only", "Split the channels."
        )
    if info.get("core:trailing_bytes") or any(c.get("core:header_bytes") for c in metadata["captures"]):
        _refuse(file, "must hold samples only", "header or trailing bytes", "Convert it to plain SigMF.")
    rate = info.get("core:sample_rate", sample_rate)
    if rate is None or not 0 < rate < math.inf:
        _refuse(file, "core:sample_rate must be a positive number of Hz", repr(rate), "Give sample_rate.")
    if sample_rate is not None and rate != sample_rate:
        _refuse(file, f"sample_rate must be that of the file, {rate} Hz", f"{sample_rate}", "Leave it out.")

    dtype = _component_type(file, info["core:datatype"])
    data = file.with_name(info.get("core:dataset", file.with_suffix(DATA).name))
    if not data.is_file():
        _refuse(file, f"its samples must be in {data.name} in the same folder", "no such file")
    if not data.resolve().is_relative_to(root):
        _refuse(data, "must be in the folder of its metadata", "a link to a file outside", "Copy it there.")
    if "core:sha512" in info and _sha512(data) != info["core:sha512"].lower():
        _refuse(
            data, "must match core:sha512 in its metadata", "another hash", "It was changed or truncated."
        )
    components = _map(data, dtype)
    segments = _segments(file, name, metadata, len(components), folder)
    return Recording(name, components, float(rate), segments)


def _segments(
    file: Path, name: str, metadata: dict[str, Any], total: int, folder: str | None
) -> list[Segment]:
    """The annotations, or the whole file if there are none. Samples are counted from core:offset."""
    annotations, offset = metadata["annotations"], metadata["global"].get("core:offset", 0)
    if not annotations:
        return [Segment(name, folder, 0, total)]
    ends = [*sorted(c["core:sample_start"] - offset for c in metadata["captures"]), total]
    out, covered = [], 0
    width = len(str(len(annotations) - 1))
    for i, annotation in enumerate(annotations):
        start = annotation["core:sample_start"] - offset
        end = next((end for end in ends if end > start), total)  # end of its capture
        count = annotation.get("core:sample_count", max(end - start, 0))
        if start < 0 or start + count > total:
            _refuse(
                file,
                f"annotation {i} must lie within the {total} samples from core:offset {offset}",
                f"start {annotation['core:sample_start']}, count {count}"[:80],
                "The data file may be truncated.",
            )
        covered += count
        out.append(Segment(f"{name}#{i:0{width}d}", annotation.get("core:label", folder), start, count))
    if covered > MOST_COVERAGE * total:
        _refuse(
            file,
            f"annotations may cover the recording at most {MOST_COVERAGE} times in total",
            f"{covered} annotated samples of {total}",
            "Remove annotations that overlap.",
        )
    return out


# --- checking metadata -------------------------------------------------------------------------------------


def _read_metadata(file: Path) -> dict[str, Any]:
    """The metadata, valid by the SigMF schema; a `ValueError` for anything else."""
    sigmf = _import_sigmf()
    size = file.stat().st_size
    if size > MOST_METADATA:
        _refuse(file, f"metadata must have at most {MOST_METADATA} bytes", f"{size}", "Split the recording.")
    try:
        metadata = json.loads(file.read_bytes().decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        _refuse(file, "must be JSON in UTF-8", f"{type(error).__name__}: {error}"[:160])
    if not isinstance(metadata, dict) or not isinstance(metadata.get("global"), dict):
        _refuse(file, "must be a JSON object with a `global` object", "something else")
    for part in ("captures", "annotations"):
        items = metadata.setdefault(part, [])
        if not isinstance(items, list) or not all(isinstance(i, dict) for i in items):
            _refuse(file, f"`{part}` must be a list of objects", "something else")
        for item in items:
            for key in ("core:sample_start", "core:sample_count", "core:header_bytes"):
                if key in item and (type(item[key]) is not int or not 0 <= item[key] < 2**63):
                    _refuse(file, f"{key} must be a whole number, 0 or more", repr(item[key])[:80])
    other = metadata["global"].get("core:dataset")
    if isinstance(other, str) and (
        Path(other).name != other or "\\" in other or "\0" in other or other in ("", ".", "..")
    ):
        _refuse(file, "core:dataset must be the name of a file in the same folder", repr(other)[:80])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # undeclared extensions do not matter here
        try:
            sigmf.SigMFFile(metadata=metadata).validate()
        except MemoryError:
            raise
        except Exception as error:  # jsonschema's own errors, and any that sigmf raises on odd types
            reason = getattr(error, "message", str(error))
            where = "/".join(map(str, getattr(error, "absolute_path", ())))
            _refuse(file, "must follow the SigMF schema", f"{where} {type(error).__name__}: {reason}"[:200])
    return metadata


def _sha512(file: Path) -> str:
    digest = hashlib.sha512()
    with file.open("rb") as content:
        while chunk := content.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _component_type(file: Path, datatype: str) -> np.dtype[Any]:
    """The numpy type of I and of Q: cf32_le is <f4."""
    kind, _, order = datatype.partition("_")
    bits = kind[2:]
    if kind[:1] != "c" or kind[1:2] not in ("f", "i", "u") or bits not in ("8", "16", "32", "64"):
        _refuse(file, "core:datatype must be complex (cf32_le, ci16_le, cu8, ...)", repr(datatype)[:80])
    return np.dtype(f"{'>' if order == 'be' else '<'}{kind[1]}{int(bits) // 8}")


def _map(file: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The file's components, (samples, 2), memory-mapped in their own type."""
    size = file.stat().st_size
    if size == 0 or size % (2 * dtype.itemsize):
        _refuse(
            file,
            f"must hold whole samples of {2 * dtype.itemsize} bytes",
            f"{size} bytes",
            "It may be truncated, or have another sample format.",
        )
    return np.memmap(file, dtype=dtype, mode="r").reshape(-1, 2)


def _check_options(rate: float | None, slice_length: int, overlap: int, energy_gate: float | None) -> None:
    if rate is not None and not 0 < rate < math.inf:
        raise ValueError(f"sample_rate must be a positive number of Hz. Got {rate!r}.")
    if slice_length < 1 or not 0 <= overlap < slice_length:
        raise ValueError(
            f"slice_length must be positive and overlap 0 .. slice_length - 1. Got {slice_length} and "
            f"{overlap}."
        )
    if energy_gate is not None and not 0 <= energy_gate < math.inf:
        raise ValueError(f"energy_gate must be a number of dB, 0 or more, or None. Got {energy_gate!r}.")


def _refuse(file: Path, must: str, got: str, remedy: str = "") -> NoReturn:
    raise ValueError(f"{file}: {must}. Got {got}. {remedy}".rstrip())


def _import_sigmf() -> Any:
    try:
        return importlib.import_module("sigmf")
    except ImportError as error:
        raise ImportError("SigMF recordings need the sigmf package: pip install cdknet[rf]") from error


# --- slicing -----------------------------------------------------------------------------------------------


def _slice(
    recording: Recording, length: int, hop: int, gate: float | None, unit_power: bool
) -> tuple[list[tuple[Segment, NDArray[np.int64], NDArray[np.float32]]], int]:
    """Each segment with the starts of its slices and the slices, and how many segments were too short."""
    out, loudest = [], 0.0
    for segment in recording.segments:
        at = np.arange(segment.start, segment.start + segment.size - length + 1, hop)
        if not len(at):
            continue
        power = np.concatenate([_power(s) for s in _convert(recording, at, length)])
        loudest = max(loudest, float(power.max()))
        out.append((segment, at, power))
    skipped = len(recording.segments) - len(out)
    floor = loudest * 10 ** (-gate / 10) if gate is not None else 0.0
    result = []
    for segment, at, power in out:
        loud = power >= floor
        if loud.any():
            slices = np.concatenate(list(_convert(recording, at[loud], length)))
            if unit_power and power.max() > 0:
                slices /= np.float32(np.sqrt(power[loud].mean()))
            result.append((segment, at[loud], slices))
    return result, skipped


def _power(slices: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.asarray(np.square(slices, dtype=np.float64).sum(axis=1).mean(axis=1))


def _convert(recording: Recording, at: NDArray[np.int64], length: int) -> Iterator[NDArray[np.float32]]:
    """Slices that start at `at`, (n, 2, length) float32, one chunk at a time."""
    dtype = recording.components.dtype
    for some in np.split(at, range(_CHUNK, len(at), _CHUNK)):
        raw = recording.components[some[:, None] + np.arange(length)]  # (n, length, 2)
        if dtype.kind == "f":
            with np.errstate(over="ignore", invalid="ignore"):
                slices = raw.astype(np.float32)
            if not np.isfinite(slices).all():
                first = int(some[np.argmax(~np.isfinite(slices).all(axis=(1, 2)))])
                raise ValueError(
                    f"{recording.name}: samples must be finite float32 numbers. Got NaN or infinity in the "
                    f"slice at {first / recording.sample_rate:.9f} s. Check the sample format and byte order."
                )
        else:
            half = 2.0 ** (8 * dtype.itemsize - 1)
            slices = ((raw - (half if dtype.kind == "u" else 0.0)) / half).astype(np.float32)
        yield np.ascontiguousarray(slices.transpose(0, 2, 1))
