"""Files that are written completely or not at all, and read within bounds: JSON, JSON lines, .npz, CSV."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from cdknet.data.checks import is_number

Arrays = dict[str, NDArray[Any]]
LARGEST_JSON = 256 * 2**20


def shown(path: str | Path) -> str:
    """A path as text that any file or page can hold: bytes that are not UTF-8 become question marks."""
    return str(path).encode("utf-8", "replace").decode()


def plain(value: Any) -> Any:
    """The value of an option as JSON; an object becomes the name of its class."""
    if isinstance(value, float) and value == float("inf"):
        return "inf"
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return type(value).__name__


def from_plain(value: Any) -> Any:
    """The value of an option from what `plain` wrote."""
    return float("inf") if value == "inf" else value


def check_writable(path: Path) -> None:
    """Raise unless a file or folder of that name could be created. Called before the work, not after it.

    A file is created there and removed again: /proc, a full disk and some network drives pass any other test.
    """
    above = _existing(path.absolute().parent)
    if not path.name:
        raise ValueError(f"{path} must have a name, such as run or out.csv. Got no name.")
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        what = "which you may not write to" if above.is_dir() else "which is a file"
        raise PermissionError(f"{path} must lie in a folder you may write to. Got {above}, {what}.")
    try:
        with tempfile.TemporaryFile(dir=above) as file:
            file.write(b"-")
    except OSError as error:
        raise PermissionError(
            f"{path} must lie in a folder you may write to. Got {above}: {error.strerror}."
        ) from None


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Hold `out` while it is being made: a second process that wants to make it is refused at once.

    The claim is the lock of a file beside it, which the system releases if the process is killed.
    """
    made = _existing(out.absolute().parent)
    above = [out.absolute().parent, *out.absolute().parents[1:]]
    missing = above[: above.index(made)]
    out.parent.mkdir(parents=True, exist_ok=True)
    path = out.with_name(f".{out.name}.lock")
    with naming(path):
        while True:
            file = path.open("wb")
            if not _try_lock(file):
                file.close()
                raise FileExistsError(
                    f"{out} must not be in the making. Got a run that another process is making right now. "
                    "Wait for it, or choose another name."
                )
            with suppress(FileNotFoundError):
                if _is_at(path, file):
                    break
            file.close()  # the other process removed the file between our two steps
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        file.close()
        with suppress(OSError):
            for folder in missing:
                folder.rmdir()  # only if it is empty


def _is_at(path: Path, file: IO[bytes]) -> bool:
    """Whether the open file is still the one of that name."""
    there, here = path.stat(), os.fstat(file.fileno())
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _try_lock(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an error that does not: a full disk is reported without one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise type(error)(error.errno, os.strerror(error.errno), str(path)) from None
        raise


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of bounded size."""
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
    """The rows of a file that is appended to. An incomplete last line (interrupted write) is skipped."""
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
    """Add rows to a file and sync it. An incomplete last line (interrupted write) is removed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path), path.open("a+b") as file:
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
    """The arrays that `npz_bytes` wrote. Nothing is compressed, so no array is larger than the file."""
    from cdknet.data.arrays import npy_header

    arrays = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist():
                if info.compress_type != zipfile.ZIP_STORED or info.file_size > len(content):
                    raise ValueError(f"{info.filename} must be stored, not compressed. Got a compressed one.")
                data = archive.read(info)
                header = npy_header(info.filename, io.BytesIO(data))
                if len(data) - header.offset != header.data_bytes:
                    raise ValueError(f"{info.filename} must hold the array of its header, {header.shape}.")
                flat = np.frombuffer(data, header.dtype, offset=header.offset) if header.data_bytes else None
                array = np.empty(header.shape, header.dtype) if flat is None else flat.copy()
                order: Literal["F", "C"] = "F" if header.fortran_order else "C"
                arrays[info.filename.removesuffix(".npy")] = array.reshape(header.shape, order=order)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"Arrays must be an .npz archive. Got {error}.") from None
    return arrays


def csv_bytes(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> bytes:
    """A table as CSV. A row with a carriage return is quoted in full, which the csv module would not do."""
    text = io.StringIO()
    plain_rows = csv.writer(text, lineterminator="\n")
    quoted_rows = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    plain_rows.writerow(head)
    for row in map(tuple, rows):
        has_return = any(isinstance(value, str) and "\r" in value for value in row)
        (quoted_rows if has_return else plain_rows).writerow(row)
    return text.getvalue().encode()


def spreadsheet_bytes(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> bytes:
    """A table as CSV for people: text that a spreadsheet would read as a formula gets a leading '.

    Numbers are unchanged. True and False are 1 and 0, None is blank.
    """
    return csv_bytes(head, ([_cell(value) for value in row] for row in rows))


# What may start a formula, also in full width, and what may come before: a spreadsheet skips blanks, and one
# that expects semicolons or tabs also splits a cell there.
_FORMULA = re.compile(
    r"(^|[;\t\r\n])(?=[\s\x00-\x1f\"\ufeff\u200b]*[=+@\-\uff1d\uff0b\uff20\uff0d\ufe66\ufe62\ufe6b\ufe63])"
)


def _cell(value: Any) -> Any:
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if not isinstance(value, str):
        return "" if value is None else value
    if is_number(value) and value.isprintable():
        return value
    guarded = _FORMULA.sub(r"\1'", value)
    return f"'{guarded}" if guarded.startswith(("\t", "\r", "\n")) else guarded


def write_through(path: Path, content: bytes) -> None:
    """Write a file and sync it to disk."""
    with naming(path), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it: readers see the old or the new file, no part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_through(temporary, content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
