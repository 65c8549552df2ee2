"""The entry point for a user's own files: `open(path)` finds out what the file is and picks a reader."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import arrays, binaries, embeddings, images, parquet, tables
from .samples import Samples


class Kind(NamedTuple):
    """One kind of file: its suffixes, its reader, and the options that the reader takes."""

    name: str
    suffixes: tuple[str, ...]
    options: tuple[str, ...]
    read: Callable[..., Samples]


def _read_radio(path: Path, **options: Any) -> Samples:
    from cdknet.radio import open_recording  # imported late: only recordings need it

    samples: Samples = open_recording(path, **options)
    return samples


RADIO_OPTIONS = ("sample_rate", "slice_length", "overlap", "energy_gate", "unit_power")
IDX = Kind("IDX file, plain or .gz", (".idx", ".gz"), (), binaries.read_idx)
FOLDER = Kind(
    "folder of images, one sub-folder per class", (), ("image_size", "shape", "progress"), images.read_images
)
RADIO = Kind(
    "radio recording, or a folder of them",
    (".sigmf-meta", ".sigmf-data", ".cf32", ".cs16", ".cu8"),
    RADIO_OPTIONS,
    _read_radio,
)
NPZ = Kind("numpy arrays X, y, ids", (".npz",), ("shape",), arrays.read_npz)
NPY = Kind("numpy array", (".npy",), ("shape",), arrays.read_npy)
TABLE_OPTIONS = (*tables.TableOptions._fields, "shape")
PARQUET = Kind("Parquet table", (".parquet", ".pq"), TABLE_OPTIONS, parquet.read_parquet)
KINDS = (
    NPZ,
    NPY,
    Kind("CSV table", (".csv", ".tsv"), TABLE_OPTIONS, tables.read_csv),
    PARQUET,
    Kind("text file of embeddings", (".txt", ".vec"), ("shape",), embeddings.read_text),
    IDX,
    Kind("CIFAR binary", (".bin",), (), binaries.read_cifar),
    FOLDER,
    RADIO,
)
MAGIC = ((b"\x93NUMPY", NPY), (b"PK\x03\x04", NPZ), (b"PAR1", PARQUET), (b"\0\0", IDX), (b"\x1f\x8b", IDX))


def open(
    path: str | os.PathLike[str],
    *,
    label_column: str | None = None,
    id_column: str | None = None,
    drop: Sequence[str] | None = None,
    drop_if_there: Sequence[str] | None = None,
    label_if_there: str | None = None,
    id_if_there: str | None = None,
    text_if_there: Sequence[str] | None = None,
    fill: bool | Mapping[str, float] | None = None,
    text: Sequence[str] | None = None,
    image_size: int | None = None,
    shape: Sequence[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **radio: Any,
) -> Samples:
    """Read a user's file or folder of any supported kind.

    Parameters
    ----------
    path
        The file, or a folder of images or of radio recordings. Its kind is known from its suffix, or from its
        first bytes if the suffix does not help (the official MNIST files have none).
    label_column, id_column
        Tables: the columns that hold labels and ids. Default: a column named label, labels, class or target,
        and one named id or ids, if they exist.
    label_if_there, id_if_there
        Tables: the same, for columns that may be missing.
    drop, drop_if_there
        Tables: columns to leave out; those in `drop` must exist.
    text_if_there
        Tables: columns that hold categories, even if all cells are True or False.
    fill
        Tables: what to put in place of missing numbers (blank, NA, NaN, null, ?): True for the median of the
        column, or one number per column, such as the `fills` of the samples that a model was fitted on.
        Default or False: missing numbers are an error.
    text
        Tables: columns of free text. The samples are then these texts, and X has no columns until
        `cdknet.encoders.encoded` makes vectors of them. Several columns are joined; others are not used.
    image_size
        Folders of images: resize every image to a square of this side. Default: images stay as they are if
        they all have one size of at most 64 pixels, and become 32 x 32 otherwise.
    shape
        Arrays, tables and text: the shape of one sample, e.g. (28, 28) for images stored as rows.
        Folders of images: resize every image to this shape, (h, w) for grey or (3, h, w) for colour.
    progress
        Folders of images: called as progress(images read, total images).
    **radio
        Options of `cdknet.radio.open_recording`, for radio recordings only.

    Returns
    -------
    Samples
        Its `notes` say what the reader decided. Arrays may be read-only views of the file.

    Raises
    ------
    ValueError
        If the kind of file is unknown, the file is corrupted, or an option does not apply to it.
    OSError
        If the path does not exist or cannot be read.
    """
    if not os.fspath(path):
        raise ValueError("The path must name a file or a folder. Got no name. Write . for this folder.")
    where = Path(path)
    given = {
        "label_column": label_column,
        "id_column": id_column,
        "drop": drop,
        "drop_if_there": drop_if_there,
        "label_if_there": label_if_there,
        "id_if_there": id_if_there,
        "text_if_there": text_if_there,
        "fill": fill,
        "text": text,
        "image_size": image_size,
        "shape": shape,
        "progress": progress,
        **radio,
    }
    options = {name: value for name, value in given.items() if value is not None}
    kind = _kind(where)
    unknown = sorted(options.keys() - set(kind.options))
    if unknown:
        listed = [name for name in kind.options if not name.endswith("_if_there") and name != "progress"]
        takes = f"It takes {', '.join(listed)}." if listed else "It takes no options."
        raise ValueError(f"{where}: {unknown[0]} does not apply to this kind of file ({kind.name}). {takes}")
    return kind.read(where, **options)


def kinds() -> tuple[tuple[str, str], ...]:
    """The kinds of file that `open` reads, as (suffixes, description)."""
    return tuple((", ".join(kind.suffixes) or "a folder", kind.name) for kind in KINDS)


def is_image_folder(path: str | os.PathLike[str]) -> bool:
    return _kind(Path(path)) is FOLDER


def is_recording(path: str | os.PathLike[str]) -> bool:
    return _kind(Path(path)) is RADIO


def is_table(path: str | os.PathLike[str]) -> bool:
    return _kind(Path(path)).options == TABLE_OPTIONS


def _kind(path: Path) -> Kind:
    try:
        exists, is_folder = path.exists(), path.is_dir()
    except (OSError, ValueError):  # a name too long, or with a NUL
        exists = is_folder = False
    if not exists:
        raise FileNotFoundError(f"{str(path)[:300]}: no such file or folder. Check the path.")
    suffix = path.suffix.lower()
    if is_folder and _is_run(path):
        raise ValueError(
            f"{path}: must hold samples. Got a run folder, whose pictures show what was found. Name the file "
            f"of samples: those of the run, if it stores them, are in {path / 'samples.npy'}."
        )
    if is_folder:
        return _folder_kind(path)
    for kind in KINDS:
        if suffix in kind.suffixes:
            return kind
    if suffix in images.IMAGE_SUFFIXES:
        raise ValueError(
            f"{path}: must be a folder of images. Got one image. Put all images into a folder and open that."
        )
    if path.is_file() and os.access(path, os.R_OK):
        with path.open("rb") as file:
            start = file.read(8)
        for magic, kind in MAGIC:
            if start.startswith(magic):
                return kind
    listed = "; ".join(f"{suffixes}: {name}" for suffixes, name in kinds())
    raise ValueError(
        f"{path}: must be a supported kind of file. Supported are {listed}. Convert it to one of these."
    )


def _is_run(folder: Path) -> bool:
    """Whether the folder is a run of ours, by the first bytes of its config.json."""
    config = folder / "config.json"
    if not config.is_file() or not os.access(config, os.R_OK):
        return False
    with config.open("rb") as file:
        return b'"cdknet-run"' in file.read(200)


def _folder_kind(folder: Path) -> Kind:
    """Images or recordings, whichever is found first in the folder or below."""
    try:
        below = sorted(entry for entry in folder.iterdir() if entry.is_dir())
        for place in (folder, *below):
            for entry in place.iterdir():
                if entry.suffix.lower() in images.IMAGE_SUFFIXES:
                    return FOLDER
                if entry.suffix.lower() in RADIO.suffixes:
                    return RADIO
        if any(
            Path(name).suffix.lower() in RADIO.suffixes for _, _, names in os.walk(folder) for name in names
        ):
            return RADIO
    except PermissionError as error:
        raise PermissionError(
            f"{error.filename}: must be readable. Got no read permission. Change its permissions."
        ) from None
    return FOLDER
