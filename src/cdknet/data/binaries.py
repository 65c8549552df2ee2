"""The two binary formats of public image data sets: IDX (MNIST) and CIFAR records.

IDX: 0 0 TYPE NDIM, then NDIM big-endian 32-bit sizes, then the values, big-endian.
CIFAR-10 record: 1 label byte, 3072 pixel bytes. CIFAR-100 record: coarse label, fine label, 3072 pixel bytes;
the pixels are red, green and blue planes of 32 x 32.

Plain files are memory-mapped, so they take no memory until they are used; the pixels of a CIFAR file are a
strided view of the file itself. Gzip files are unpacked into memory after their size has been checked.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .checks import AnyArray, check_file, check_finite, check_memory, reason, row_ids
from .samples import Samples

IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
GZIP_MAGIC = b"\x1f\x8b"
CIFAR_PIXELS = 3 * 32 * 32


class CifarRecords(NamedTuple):
    """Pixels and labels of a CIFAR file, as read-only views of the file."""

    X: NDArray[np.uint8]  # (n, 3, 32, 32)
    labels: NDArray[np.uint8]  # (n,), CIFAR-10's or CIFAR-100's fine labels
    coarse: NDArray[np.uint8] | None  # (n,), CIFAR-100's twenty superclasses


def read_idx(path: Path) -> Samples:
    """Read an IDX file of samples (n, ...), with labels from the `...labels-idx1...` file beside it."""
    X = load_idx(path)
    if X.ndim < 2:
        raise ValueError(
            f"{path}: must hold samples, so at least two dimensions. Got shape {X.shape}, which is that of "
            "labels. Open the images file; the labels beside it are found automatically."
        )
    check_finite(path, X)
    beside = _labels_beside(path)
    if beside is None:
        return Samples(X, None, row_ids(len(X)), str(path))
    y = load_idx(beside)
    if y.shape != (len(X),) or y.dtype.kind not in "iu":
        raise ValueError(
            f"{beside}: must hold one whole-number label for each of the {len(X)} samples of {path.name}. "
            f"Got shape {y.shape} of {y.dtype}. Move it elsewhere if it belongs to other samples."
        )
    note = f"labels from {beside.name}, found in the same folder"
    return Samples(X, y.astype(np.int64), row_ids(len(X)), str(path), (note,))


def _labels_beside(path: Path) -> Path | None:
    """train-images-idx3-ubyte[.gz] -> train-labels-idx1-ubyte[.gz], compressed or not, if it exists."""
    if "images" not in path.name:
        return None
    stem = path.name.removesuffix(".gz").replace("images", "labels")
    for ndim in "23456789":
        stem = stem.replace(f"idx{ndim}", "idx1")
    same = [".gz", ""] if path.suffix == ".gz" else ["", ".gz"]
    found = (path.with_name(stem + suffix) for suffix in same)
    return next((file for file in found if file.is_file()), None)


def load_idx(path: Path) -> AnyArray:
    """The array of an IDX file, in native byte order; a plain file of bytes is memory-mapped."""
    size = check_file(path, min_size=8)
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
    return _load_gzip_idx(path, size) if packed else _load_plain_idx(path, size)


def _load_plain_idx(path: Path, size: int) -> AnyArray:
    with path.open("rb") as file:
        dtype, shape = _idx_header(path, file.read(4), file.read)
    offset, declared = 4 + 4 * len(shape), math.prod(shape) * dtype.itemsize
    if size - offset != declared:
        raise ValueError(
            f"{path}: header declares {declared:,} bytes of values {shape}, file has {size - offset:,}; "
            "it may be truncated."
        )
    mapped = np.memmap(path, dtype, "r", offset, shape)
    return np.asarray(mapped) if dtype.isnative else mapped.astype(dtype.newbyteorder("="))


def _load_gzip_idx(path: Path, size: int) -> AnyArray:
    try:
        with gzip.open(path, "rb") as file:
            dtype, shape = _idx_header(path, file.read(4), file.read)
            declared = math.prod(shape) * dtype.itemsize
            check_memory(path, declared, size, f"values of shape {shape}")
            flat = np.empty(declared, np.uint8)
            done = 0
            while done < declared:
                got = file.readinto(flat.data[done : done + 2**20])
                if not got:
                    raise ValueError(
                        f"{path}: header declares {declared:,} bytes of values {shape}, file unpacks to "
                        f"{done:,}; it may be truncated."
                    )
                done += got
            if file.read(1):
                raise ValueError(
                    f"{path}: unpacks to more than the {declared:,} bytes that its header declares."
                )
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: not a valid gzip file ({reason(error)}). It may be truncated.") from None
    values = flat.view(dtype).reshape(shape)
    return values if dtype.isnative else values.astype(dtype.newbyteorder("="))


def _idx_header(path: Path, magic: bytes, read: object) -> tuple[np.dtype, tuple[int, ...]]:
    """Type and shape from the first bytes; every dimension has at least size 1."""
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in IDX_TYPES or not 1 <= magic[3] <= 8:
        raise ValueError(
            f"{path}: not an IDX file (magic 0x{magic.hex()}, expected 0x0000TTDD: a type of "
            f"{', '.join(f'{t:02x}' for t in IDX_TYPES)} and 1 to 8 dimensions). "
            "Unpack a .gz file of any other kind first."
        )
    sizes = read(4 * magic[3])  # type: ignore[operator]
    if len(sizes) < 4 * magic[3]:
        raise ValueError(f"{path}: too short for a header of {magic[3]} dimensions; it may be truncated.")
    shape = struct.unpack(f">{magic[3]}I", sizes)
    if 0 in shape:
        raise ValueError(f"{path}: must hold at least one value. Got shape {shape}.")
    return np.dtype(IDX_TYPES[magic[2]]), shape


def read_cifar(path: Path) -> Samples:
    """Read a CIFAR-10 or CIFAR-100 binary file; its size and label bytes say which of the two it is."""
    records = load_cifar(path)
    name = "CIFAR-10" if records.coarse is None else "CIFAR-100, fine labels"
    y = records.labels.astype(np.int64)
    return Samples(records.X, y, row_ids(len(y)), str(path), (f"read as {name}",))


def load_cifar(path: Path) -> CifarRecords:
    """The records of a CIFAR binary file, memory-mapped."""
    size = check_file(path)
    wrong = ""
    for label_bytes, name, most in ((2, "CIFAR-100", (19, 99)), (1, "CIFAR-10", (9,))):
        length = label_bytes + CIFAR_PIXELS
        if size % length:
            continue
        rows = np.asarray(np.memmap(path, np.uint8, "r", shape=(size // length, length)))
        over = [int(rows[:, i].max()) for i in range(label_bytes) if rows[:, i].max() > most[i]]
        if over:
            wrong = f"; as {name} it would have a label {over[0]}"
            continue
        X = rows[:, label_bytes:].reshape(-1, 3, 32, 32)  # splitting an axis keeps it a view
        return CifarRecords(X, rows[:, label_bytes - 1], rows[:, 0] if label_bytes == 2 else None)
    raise ValueError(
        f"{path}: not a CIFAR binary file. Its size must be a multiple of 3074 bytes (CIFAR-100) or 3073 "
        f"(CIFAR-10), with labels in range. Got {size:,} bytes{wrong}. It may be truncated."
    )
