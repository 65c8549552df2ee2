"""Files written whole or not at all, and read within bounds: JSON, JSON lines, .npz, CSV."""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
LARGEST_JSON = 256 * 2**20


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


def read_json(path: Path) -> dict[str, Any]:
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


def npz_bytes(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def read_npz(content: bytes) -> Arrays:
    """The arrays that `npz_bytes` wrote. Stored as they are, so none is larger than what holds it."""
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


def write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it: readers see the old one or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_through(temporary, content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
