"""NumPy files: `.npy` (one array) and `.npz` (a zip archive of arrays). Nothing is ever unpickled.

An array stored as plain bytes, in a `.npy` or in a `.npz` written by `np.savez`, is memory-mapped: it takes
no memory until it is used. A compressed array is read into memory after its size has been checked.
"""

from __future__ import annotations

import io
import json
import math
import struct
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy_format

from .checks import (
    AnyArray,
    as_value_error,
    check_file,
    check_finite,
    check_memory,
    ids_from_text,
    labels_from_array,
    numeric,
    reason,
    reshaped,
    row_ids,
)
from .samples import Samples
from .texts import check_texts, texts_of_lines

LONGEST_HEADER = 16_384  # bytes of a .npy header; numpy writes about 128
MOST_MEMBERS = 1_000  # arrays in one .npz
READ = ("X", "y", "ids", "texts", "encoder")  # arrays of an .npz that are read


class NpyHeader(NamedTuple):
    """What a `.npy` header declares."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype
    offset: int  # bytes before the data

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize  # Python integers: cannot overflow


def read_npy(path: Path, *, shape: Sequence[int] | None = None) -> Samples:
    """Read a `.npy` file of samples (n, ...), memory-mapped; it has no labels."""
    X = load_npy(path)
    X = reshaped(path, numeric(path, X, "the array"), shape)
    check_finite(path, X)
    return Samples(X, None, row_ids(len(X)), str(path))


def read_npz(path: Path, *, shape: Sequence[int] | None = None) -> Samples:
    """Read a `.npz` file with `X` and optionally `y` (-1, NaN or blank: unlabelled) and `ids`.

    One of `cdknet embed` also has the `texts` of its vectors, and their `encoder`.
    """
    size = check_file(path, min_size=22)
    with as_value_error(path, ".npz file"), zipfile.ZipFile(path) as archive:
        members = _members(path, archive, size)
        X = _member(path, archive, members["X"])
        y = _member(path, archive, members["y"]) if "y" in members else None
        ids = _member(path, archive, members["ids"]) if "ids" in members else None
        X = reshaped(path, numeric(path, X), shape)
        check_finite(path, X)
        notes: tuple[str, ...] = ()
        if y is not None:
            y, notes = labels_from_array(path, y, len(X), size)
        names = _ids(path, ids, len(X), size)
        texts = _member(path, archive, members["texts"]) if "texts" in members else None
        encoder = _member(path, archive, members["encoder"]) if "encoder" in members else None
        described: dict[str, Any] = {"texts": _texts(path, texts, len(X)), "encoder": _encoder(path, encoder)}
    unread = sorted(members.keys() - {*READ})
    if unread:
        notes += (f"arrays not read: {', '.join(unread[:10])}{', ...' if len(unread) > 10 else ''}",)
    return Samples(X, y, names, str(path), notes, **described)


def load_npy(path: Path) -> AnyArray:
    """The array of a `.npy` file, memory-mapped read-only."""
    size = check_file(path, min_size=16)
    with path.open("rb") as file:
        header = npy_header(path, file)
    found = size - header.offset
    if found != header.data_bytes:
        raise ValueError(
            f"{path}: header declares {header.data_bytes:,} bytes of data {header.shape} {header.dtype}, "
            f"file has {found:,}; it may be truncated."
        )
    return _mapped(path, header, header.offset)


def npy_header(name: Path | str, file: BinaryIO) -> NpyHeader:
    """Parse the header at the start of `file` without trusting it."""
    start = file.read(12)
    if start[:6] != b"\x93NUMPY":
        raise ValueError(f"{name}: not a .npy array (it starts with {start[:6]!r}).")
    if start[6:8] not in (b"\x01\x00", b"\x02\x00"):
        raise ValueError(
            f"{name}: must be version 1 or 2 of the .npy format. Got {tuple(start[6:8])}. "
            "Save plain numbers with np.save."
        )
    is_short = start[6] == 1
    length = struct.unpack(
        "<H" if is_short else "<I", start[8:10] if is_short else start[8:12].ljust(4, b"\0")
    )[0]
    if not 10 <= length <= LONGEST_HEADER:
        raise ValueError(f"{name}: header must be 10 to {LONGEST_HEADER} bytes. Got {length:,}.")
    before = 10 if is_short else 12
    body = start[before:] + file.read(length - (12 - before))
    if len(body) < length:
        raise ValueError(
            f"{name}: header declares {length} bytes, file has {len(body)}; it may be truncated."
        )
    header = io.BytesIO(start[8:before] + body)
    read = npy_format.read_array_header_1_0 if is_short else npy_format.read_array_header_2_0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, fortran_order, dtype = read(header, max_header_size=LONGEST_HEADER)
    except Exception as error:  # numpy parses the header as a Python literal: any parser error is possible
        raise ValueError(f"{name}: the .npy header cannot be read ({reason(error)}).") from None
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None or dtype.itemsize == 0:
        raise ValueError(
            f"{name}: must hold plain numbers or text. Got values of type {dtype} "
            "(no pickle is ever opened). Save a plain array."
        )
    if any(isinstance(side, bool) or side < 0 for side in shape) or len(shape) > 32:
        raise ValueError(
            f"{name}: an array must have at most 32 dimensions, each of size 0 or more. Got {shape}."
        )
    return NpyHeader(tuple(int(side) for side in shape), bool(fortran_order), dtype, before + length)


def _mapped(path: Path, header: NpyHeader, offset: int) -> AnyArray:
    order: Literal["F", "C"] = "F" if header.fortran_order else "C"
    if header.data_bytes == 0:
        return np.empty(_without_overflow(path, header), header.dtype)
    mapped = np.memmap(path, header.dtype, "r", offset, header.shape, order)
    return np.asarray(mapped)


def _without_overflow(path: Path, header: NpyHeader) -> tuple[int, ...]:
    """The shape of an empty array; numpy multiplies its nonzero sizes all the same."""
    if math.prod(side for side in header.shape if side) * header.dtype.itemsize >= 2**62:
        raise ValueError(f"{path}: the array must fit in memory. Got shape {header.shape}.")
    return header.shape


def _members(path: Path, archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The arrays of the archive by name; their total size must be plausible for the file's size."""
    infos = archive.infolist()
    if len(infos) > MOST_MEMBERS:
        raise ValueError(f"{path}: must hold at most {MOST_MEMBERS} arrays. Got {len(infos):,}.")
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename.removesuffix(".npy")
        if name in members:
            raise ValueError(f"{path}: array names must be unique. Got {name[:60]!r} twice.")
        members[name] = info
    if "X" not in members:
        found = ", ".join(repr(name[:60]) for name in list(members)[:10]) or "none"
        raise ValueError(
            f"{path}: must hold an array named X (and may hold y and ids). Got {found}. "
            "Save with np.savez(path, X=X, y=y)."
        )
    check_memory(path, sum(members[name].file_size for name in READ if name in members), size, "unpacking")
    return members


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> AnyArray:
    """One array of the archive: memory-mapped if stored uncompressed, else read, which checks its CRC."""
    name = f"{path} [{info.filename[:60]}]"
    with archive.open(info) as file:
        header = npy_header(name, file)  # type: ignore[arg-type]
        found = info.file_size - header.offset
        if found != header.data_bytes:
            raise ValueError(
                f"{name}: header declares {header.data_bytes:,} bytes of data {header.shape} {header.dtype}, "
                f"the archive has {found:,}."
            )
        if info.compress_type == zipfile.ZIP_STORED:
            return _mapped(path, header, _stored_at(path, info) + header.offset)
        _without_overflow(path, header)
        flat = np.empty(header.data_bytes, np.uint8)  # bounded by check_memory
        done = 0
        while done < len(flat):
            got = file.readinto(flat.data[done : done + 2**20])  # type: ignore[attr-defined]
            if not got:
                raise ValueError(f"{name}: ends after {done:,} of {len(flat):,} bytes; it may be truncated.")
            done += got
    array = flat.view(header.dtype) if flat.size else np.empty(0, header.dtype)
    return array.reshape(header.shape, order="F" if header.fortran_order else "C")


def _stored_at(path: Path, info: zipfile.ZipInfo) -> int:
    """Offset of an uncompressed member's bytes: after its local header, whose lengths may differ."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        local = file.read(30)
    name_length, extra_length = struct.unpack("<HH", local[26:30])
    return int(info.header_offset + 30 + name_length + extra_length)


def _ids(path: Path, ids: AnyArray | None, n: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    if ids is None:
        return row_ids(n)
    if ids.shape != (n,):
        raise ValueError(f"{path}: ids must have one entry per sample ({n},). Got shape {ids.shape}.")
    if ids.dtype.kind not in "iuU":
        raise ValueError(f"{path}: ids must be text or whole numbers. Got values of type {ids.dtype}.")
    return ids_from_text(path, [str(value) for value in ids.tolist()], "ids", size)


def _texts(path: Path, texts: AnyArray | None, n: int) -> tuple[str, ...] | None:
    """The texts of the vectors: JSON lines in bytes, as `cdknet embed` writes them, or an array of text."""
    if texts is None:
        return None
    if texts.dtype == np.uint8 and texts.ndim == 1:
        values = texts_of_lines(f"{path} [texts]", texts.tobytes())
    elif texts.dtype.kind == "U" and texts.ndim == 1:
        values = texts.tolist()
    else:
        raise ValueError(f"{path}: texts must be one text per sample. Got {texts.dtype} of {texts.shape}.")
    if len(values) != n:
        raise ValueError(f"{path}: texts must have one entry per sample ({n}). Got {len(values)}.")
    return tuple(check_texts(f"{path} [texts]", values))


def _encoder(path: Path, encoder: AnyArray | None) -> dict[str, str] | None:
    if encoder is None:
        return None
    try:
        known = json.loads(str(encoder)) if encoder.dtype.kind == "U" and encoder.ndim == 0 else None
    except ValueError:
        known = None
    if not isinstance(known, dict) or not all(isinstance(value, str) for value in known.values()):
        raise ValueError(
            f"{path}: encoder must say in JSON what made the vectors. Got something else. Leave it out."
        )
    return known
