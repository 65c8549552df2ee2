"""Find the files of a public data set in the user's folders or the cache; else download and check them.

Search order: the folders of CDKNET_DATA, the cache, the official URLs. A download gets its final name only
when it is complete and its SHA-256 is correct. Until then it is called `....part`; an interrupted download is
resumed from that file.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from .checks import check_file, check_memory, reason
from .registry import PublicArchive, PublicFile, PublicSet

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, total bytes if known
CHUNK = 2**20
ATTEMPTS = 3  # connections to one URL before the next is tried
TIMEOUT = 30.0  # seconds without a byte


class Verified(NamedTuple):
    """The result of `verify` for one file."""

    file: str
    ok: bool
    detail: str


def cache_dir() -> Path:
    """The user's cache: CDKNET_CACHE, or `cdknet` in the system's usual folder for caches."""
    if own := os.environ.get("CDKNET_CACHE"):
        return Path(own).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cdknet"


def folders() -> list[Path]:
    """The folders to search, in order: those of CDKNET_DATA, then the cache."""
    own = os.environ.get("CDKNET_DATA", "").split(os.pathsep)
    return [Path(folder).expanduser() for folder in own if folder] + [cache_dir()]


def find(public: PublicSet, file: PublicFile) -> Path | None:
    """The first path that has the file, compressed or not."""
    for folder in folders():
        for name in dict.fromkeys((file.name, file.name.removesuffix(".gz"))):
            path = folder / public.folder / name
            if path.is_file():
                return path
    return None


def obtain(public: PublicSet, file: PublicFile, *, progress: Progress | None = None) -> Path:
    """Find the file or download it into the cache, and check its content."""
    path = locate(public, file, progress=progress)
    check_official(path, file)
    return path


def locate(public: PublicSet, file: PublicFile, *, progress: Progress | None = None) -> Path:
    """Find the file or download it; the content of a file that was found is not checked."""
    path = find(public, file)
    if path is None:
        download(public, progress=progress)
        path = find(public, file)
    if path is None:
        raise missing(public, file, "The download did not include it.")
    return path


def check_official(path: Path, file: PublicFile) -> None:
    """Raise unless `path` has the published content."""
    if (fault := wrong_content(path, file)) is not None:
        raise ValueError(
            f"{path}: must be the official file. {fault} Remove it to download it again. To read your own "
            "files, use cdknet.data.open."
        )


def missing(public: PublicSet, file: PublicFile, why: str) -> FileNotFoundError:
    """The error for a file that was not found: the folders searched, the reason, where to put it by hand."""
    searched = ", ".join(str(folder / public.folder) for folder in folders())
    urls = file.urls or (public.archive.urls if public.archive else ())
    source = f"Get it from {urls[0]}" if urls else public.by_hand or f"Get it from {public.source}"
    return FileNotFoundError(
        f"{public.name}: {file.name} is missing. Looked in {searched}. {why}{' ' if why else ''}"
        f"{source.rstrip('.')}. Put it into {cache_dir() / public.folder}, or into {public.folder}/ in a "
        "folder listed in CDKNET_DATA."
    )


def content_sha256(path: Path, limit: int, *, unpack: bool) -> tuple[str, int]:
    """SHA-256 and length of up to `limit` + 1 bytes of a file, of its decompressed content if `unpack`."""
    check_file(path)
    digest, length = hashlib.sha256(), 0
    with path.open("rb") as plain:
        packed = unpack and plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        file: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=plain) if packed else plain
        try:
            while length <= limit and (block := file.read(min(CHUNK, limit + 1 - length))):
                digest.update(block)
                length += len(block)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(
                f"{path}: not a valid gzip file ({reason(error)}). It may be truncated."
            ) from None
    return digest.hexdigest(), length


def wrong_content(path: Path, file: PublicFile) -> str | None:
    """What is wrong with the content of `path`, or None if it is the official one."""
    try:
        sha256, length = content_sha256(path, file.size, unpack=file.name.endswith(".gz"))
    except ValueError as error:
        return f"Got a corrupted one: {error}"
    if length != file.size:
        more = "more than " if length > file.size else ""
        return f"Got {more}{min(length, file.size):,} bytes of content instead of {file.size:,}."
    if sha256 != file.sha256:
        return f"Got SHA-256 {sha256[:16]}... of its content instead of {file.sha256[:16]}...."
    return None


def verify(public: PublicSet) -> list[Verified]:
    """Check every file of the data set against its published SHA-256, wherever it was found."""
    report = []
    for file in public.files:
        path = find(public, file)
        if path is None:
            searched = ", ".join(str(folder / public.folder) for folder in folders())
            report.append(Verified(file.name, False, f"not found in {searched}"))
            continue
        fault = wrong_content(path, file)
        report.append(Verified(str(path), fault is None, fault or f"SHA-256 {file.sha256}"))
    return report


def download(public: PublicSet, *, progress: Progress | None = None) -> None:
    """Download the files of the data set that are not found into the cache."""
    absent = [file for file in public.files if find(public, file) is None]
    if not absent:
        return
    target = cache_dir() / public.folder
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise missing(public, absent[0], f"The cache cannot be written ({reason(error)}).") from None
    if public.archive is not None:
        packed = target.with_name(f"{public.folder}.tar.gz")
        _fetch(public, absent[0], public.archive, packed, progress)
        extract(packed, target, {f"{public.folder}/{file.name}": file for file in absent})
        packed.unlink()
        return
    for file in absent:
        if not file.urls:
            raise missing(public, file, "")
        _fetch(public, file, file, target / file.name, progress)


def _fetch(
    public: PublicSet,
    file: PublicFile,
    what: PublicFile | PublicArchive,
    target: Path,
    progress: Progress | None,
) -> None:
    """Download `what` to `target` from the first URL that serves the official content."""

    def fault(path: Path) -> str | None:
        if isinstance(what, PublicFile):
            return wrong_content(path, what)
        sha256, _ = content_sha256(path, what.most, unpack=False)
        return None if sha256 == what.sha256 else f"Got SHA-256 {sha256[:16]}... of it."

    most = what.size + CHUNK if isinstance(what, PublicFile) else what.most
    failures = []
    for url in what.urls:
        try:
            fetch_url(url, target, fault=fault, most=most, progress=progress)
            return
        except (OSError, ValueError, http.client.HTTPException) as error:
            failures.append(f"{url}: {reason(error)}")
    raise missing(public, file, f"Downloads failed ({'; '.join(failures)}).")


def fetch_url(
    url: str,
    target: Path,
    *,
    fault: Callable[[Path], str | None],
    most: int,
    progress: Progress | None = None,
) -> None:
    """Download `url` to `target`: resumed if interrupted, checked by `fault`, then renamed."""
    part = target.with_name(target.name + ".part")
    with _sole_writer(part) as file:
        resumed = file.seek(0, os.SEEK_END) > 0
        attempt = 0
        while True:
            attempt += 1
            try:
                _transfer(url, file, target.name, most, progress)
            except (OSError, http.client.HTTPException) as error:
                refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                if refused or attempt == ATTEMPTS:
                    raise  # the bytes received so far stay in the .part file
                continue
            wrong = fault(part)
            if wrong is None:
                part.replace(target)
                return
            file.truncate(0)  # never resume from wrong content
            if not resumed:
                raise ValueError(f"the server sent a file that is not the official file. {wrong}")
            resumed = False  # the .part file may be of another version: start again


@contextlib.contextmanager
def _sole_writer(part: Path) -> Iterator[IO[bytes]]:
    """The .part file, open for appending and locked against a second download if the system has locks."""
    with part.open("ab") as file:
        with contextlib.suppress(ImportError):  # Windows: a clash gives a wrong checksum and a restart
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise OSError(f"{part} is being written by another download. Wait until it ends") from None
        try:
            yield file
        finally:
            if file.seek(0, os.SEEK_END) == 0:  # nothing to resume
                with contextlib.suppress(OSError):
                    part.unlink()


def _transfer(url: str, file: IO[bytes], name: str, most: int, progress: Progress | None) -> None:
    """One connection: append to `file` the bytes of `url` that it does not have yet."""
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"URLs must start with https:// or http://. Got {url}")
    have = file.seek(0, os.SEEK_END)
    request = urllib.request.Request(url, headers={"User-Agent": "cdknet", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        return  # there are no more bytes: the checksum decides
    with answer:
        resumes = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(
            f"bytes {have}-"
        )
        if not resumes:
            file.truncate(0)
            have = 0
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if length.isdigit() else None
        if total is not None and total > most:
            raise ValueError(f"the server would send {total:,} bytes, but at most {most:,} are expected")
        while block := answer.read(CHUNK):
            have += len(block)
            if have > most:
                raise ValueError(f"the server sends more than the {most:,} bytes expected")
            file.write(block)
            if progress is not None:
                progress(name, have, total)
        file.flush()
        if total is not None and have < total:
            raise http.client.IncompleteRead(b"", total - have)


def extract(archive: Path, folder: Path, wanted: dict[str, PublicFile]) -> None:
    """Extract the `wanted` members (path in the archive -> file) of a tar.gz into `folder`, and check them.

    Raise, and extract nothing, if any member is a link, a device, an absolute path or contains `..`.
    """
    size = check_file(archive)
    folder.mkdir(parents=True, exist_ok=True)
    left = dict(wanted)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as scratch:
        ready: list[tuple[Path, Path]] = []
        unpacked = 0
        try:
            with tarfile.open(archive, "r:gz") as tar:
                for member in tar:
                    _check_member(archive, member)
                    unpacked += member.size
                    check_memory(archive, unpacked, size, "unpacking")
                    file = left.pop(member.name.removeprefix("./"), None)
                    if file is not None:
                        ready.append(
                            (_extract_one(archive, tar, member, file, Path(scratch)), folder / file.name)
                        )
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError) as error:
            raise ValueError(
                f"{archive}: not a valid tar.gz ({reason(error)}). It may be truncated."
            ) from None
        if left:
            raise ValueError(f"{archive}: must hold {', '.join(left)}. Got an archive without it.")
        for scratch_file, final in ready:
            scratch_file.replace(final)


def _check_member(archive: Path, member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or ":" in member.name:
        raise ValueError(
            f"{archive}: members must stay inside the folder. Got {member.name[:100]!r}. It was not unpacked."
        )
    if not (member.isfile() or member.isdir()):
        raise ValueError(
            f"{archive}: members must be files or folders. Got {member.name[:100]!r}, a link or a device. "
            "The archive was not unpacked."
        )
    if member.size < 0:
        raise ValueError(f"{archive}: members must have a size. Got {member.size} for {member.name[:100]!r}.")


def _extract_one(
    archive: Path, tar: tarfile.TarFile, member: tarfile.TarInfo, file: PublicFile, scratch: Path
) -> Path:
    if member.size != file.size:
        raise ValueError(
            f"{archive}: {member.name} must be {file.size:,} bytes. Got {member.size:,}. It was not unpacked."
        )
    source: Any = tar.extractfile(member)
    target = scratch / file.name
    with target.open("wb") as out:
        shutil.copyfileobj(source, out, CHUNK)
    if (fault := wrong_content(target, file)) is not None:
        raise ValueError(f"{archive}: {member.name} must be the official file. {fault}")
    return target
