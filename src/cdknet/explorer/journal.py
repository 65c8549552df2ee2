"""The journal of a review: `review.jsonl`, one line per action.

The file alone defines the state. A line is written and synced before the state in memory changes. A
damaged last line, left by a killed process or a power cut, is reported when the run is opened, and the next
writer moves it to review.jsonl.removed. Several processes may share one
journal: to write, each takes the lock of the file and first reads what the others have written.
"""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdknet.explorer.review import Change, Ids, Review, ReviewError, Splitter, change_of, resolve

JOURNAL = "review.jsonl"
FORMAT, VERSION = "cdknet-review", 1
REMOVED = ".removed"  # what a damaged end of the journal is moved to


class Stale(Exception):
    """An action on an older state than the present one."""

    def __init__(self, revision: int) -> None:
        super().__init__(
            f"The review must not have changed since you looked. It has: it is at revision {revision} now. "
            "Look at the change, then repeat the action if you still want it."
        )
        self.revision = revision


@dataclass
class Entry:
    """One action, and whether it was undone."""

    revision: int
    when: str
    summary: str
    change: Change
    undone: bool = False


@dataclass(frozen=True)
class Done:
    """The answer to an action, an undo or a redo."""

    revision: int
    summary: str
    samples: int
    classes: list[int]


@dataclass
class Journal:
    """A review with its history. Every change goes through here; safe to share among threads.

    `run` is the digest of the run under review: the journal of another run is refused.
    """

    path: Path
    review: Review
    run: str
    revision: int = 0
    summary: str | None = None  # what the last line did, in words
    entries: list[Entry] = field(default_factory=list)  # every action, also undone ones
    _done: list[Entry] = field(default_factory=list)  # what undo would revert, the last one first
    _undone: list[Entry] = field(default_factory=list)  # what redo would apply again, the last one first
    _offset: int = 0  # bytes of the file that the state includes
    _mutex: threading.RLock = field(default_factory=threading.RLock)
    changed: set[int] = field(default_factory=set)  # classes that gained or lost samples; readers clear it

    def __post_init__(self) -> None:
        self._folder = _folder_identity(self.path.parent)
        self.catch_up()

    # Reading

    def left_out(self) -> str | None:
        """A sentence if the file ends in something that is no line of a review, and nobody is writing."""
        try:
            with self._mutex, _open_plain(self.path, os.O_RDONLY) as file, _locked(file):
                self.catch_up()
                rest = file.seek(0, os.SEEK_END) - self._offset
        except OSError:  # there is no journal, or it cannot be locked
            return None
        if not rest:
            return None
        return (
            f"{self.path.name} ends in a damaged line of {rest} bytes, which is left out: the review is at "
            f"revision {self.revision}. The next change moves that line to {self.path.name}{REMOVED}."
        )

    @property
    def undo_summary(self) -> str | None:
        return self._done[-1].summary if self._done else None

    @property
    def redo_summary(self) -> str | None:
        return self._undone[-1].summary if self._undone else None

    @contextmanager
    def at_rest(self) -> Iterator[Journal]:
        """The journal, up to date, while no other thread can change it."""
        with self._mutex:
            self.catch_up()
            yield self

    def catch_up(self) -> None:
        """Read complete lines that are not yet in the state. A damaged last line is not: see `left_out`."""
        with self._mutex:
            try:
                size = self.path.stat().st_size
            except FileNotFoundError:
                size = 0
            if size == self._offset:
                return
            if size < self._offset:
                raise ReviewError(
                    f"{self.path} must only grow. It is shorter than before. Start the explorer again."
                )
            with _open_plain(self.path, os.O_RDONLY) as file:
                file.seek(self._offset)
                content = file.read()
            self._read(content)

    def _read(self, content: bytes) -> None:
        lines = content.split(b"\n")
        for index, line in enumerate(lines[:-1]):  # what follows the last newline is incomplete
            try:
                entry = json.loads(line)
                if not isinstance(entry, dict):
                    raise ValueError("not an object")
            except (ValueError, RecursionError):
                if index == len(lines) - 2 and not lines[-1]:
                    return  # garbage at the end, as after a power cut: the next writer removes it
                raise self._damaged("a line that is not JSON") from None
            self._replay(entry)
            self._offset += len(line) + 1

    def _replay(self, entry: dict[str, Any]) -> None:
        if self._offset == 0:
            if entry.get("format") != FORMAT or entry.get("version") != VERSION:
                raise self._damaged(f"{json.dumps(entry)[:80]} in its first line")
            if entry.get("run") != self.run:
                raise ReviewError(
                    f"{self.path} must be the review of this run. Got that of another run. "
                    "Move it away to start a new review."
                )
            return
        try:
            if type(entry["revision"]) is not int or entry["revision"] != self.revision + 1:
                raise ValueError(f"revision {str(entry['revision'])[:40]} after {self.revision}")
            if "do" in entry:
                if not isinstance(entry["do"], dict):
                    raise ValueError("an action that is not an object")
                change = change_of(self.review, entry["do"])
                self._advance(Entry(entry["revision"], str(entry["when"]), change.summary, change))
            elif "undo" in entry and self._done and self._done[-1].revision == entry["undo"]:
                self._undo()
            elif "redo" in entry and self._undone and self._undone[-1].revision == entry["redo"]:
                self._redo()
            else:
                raise ValueError("a line that does not follow from the one before")
        except (LookupError, TypeError, ValueError, ArithmeticError, zlib.error) as error:
            raise self._damaged(f"at revision {self.revision + 1}: {str(error)[:200]}") from None
        self.revision += 1

    def _damaged(self, what: str) -> ReviewError:
        return ReviewError(
            f"{self.path} must be a complete review. Got {what}. Move it away, or delete that line and all "
            "after it."
        )

    def _advance(self, entry: Entry) -> None:
        self.summary = entry.summary
        entry.change.apply(self.review)
        self.entries.append(entry)
        self._done.append(entry)
        self._undone.clear()
        self.changed.update(entry.change.regrouped)

    def _undo(self) -> Entry:
        entry = self._done.pop()
        self.summary = f"Undone: {entry.summary}"
        entry.change.revert(self.review)
        entry.undone = True
        self._undone.append(entry)
        self.changed.update(entry.change.regrouped)
        return entry

    def _redo(self) -> Entry:
        entry = self._undone.pop()
        self.summary = f"Redone: {entry.summary}"
        entry.change.apply(self.review)
        entry.undone = False
        self._done.append(entry)
        self.changed.update(entry.change.regrouped)
        return entry

    # Writing

    def do(
        self, revision: int, asked: Mapping[str, Any], splitter: Splitter, best_old: Ids | None = None
    ) -> Done:
        """Carry out a request made at `revision`, or raise `Stale` if the state has changed since.

        `splitter` and `best_old` are what `resolve` needs to complete it.
        """
        with self._writing(revision) as file:
            action = resolve(self.review, asked, splitter, best_old)
            change = change_of(self.review, action)
            when = _now()
            self._append(file, {"revision": revision + 1, "when": when, "do": action})
            self._advance(Entry(revision + 1, when, change.summary, change))
            return self._answer(change)

    def undo(self, revision: int) -> Done:
        with self._writing(revision) as file:
            if not self._done:
                raise ReviewError("There must be an action to undo. There is none.")
            self._append(file, {"revision": revision + 1, "when": _now(), "undo": self._done[-1].revision})
            return self._answer(self._undo().change)

    def redo(self, revision: int) -> Done:
        with self._writing(revision) as file:
            if not self._undone:
                raise ReviewError("There must be an undone action to redo. There is none.")
            self._append(file, {"revision": revision + 1, "when": _now(), "redo": self._undone[-1].revision})
            return self._answer(self._redo().change)

    def _answer(self, change: Change) -> Done:
        self.revision += 1
        return Done(self.revision, self.summary or "", len(change.rows), change.touched)

    @contextmanager
    def _writing(self, revision: int) -> Iterator[Any]:
        """The file, locked against other processes, read to its end, and without an incomplete last line."""
        if _folder_identity(self.path.parent) != self._folder:
            raise ReviewError(
                f"{self.path.parent} must be the run that was opened. It was replaced by another one. "
                "Start the explorer again."
            )
        with (
            self._mutex,
            _open_plain(self.path, os.O_RDWR | os.O_CREAT) as file,
            _locked(file),
        ):
            self.catch_up()
            if file.seek(0, os.SEEK_END) != self._offset:
                self._set_aside(file)
                file.truncate(self._offset)
            if revision != self.revision:
                raise Stale(self.revision)
            if self._offset == 0:
                self._append(file, {"format": FORMAT, "version": VERSION, "run": self.run})
            yield file

    def _set_aside(self, file: Any) -> None:
        """Keep what follows the last readable line beside the journal: it may have been an action."""
        file.seek(self._offset)
        with self.path.with_name(self.path.name + REMOVED).open("ab") as aside:
            aside.write(file.read().rstrip(b"\n") + b"\n")
            aside.flush()
            os.fsync(aside.fileno())

    def _append(self, file: Any, entry: dict[str, Any]) -> None:
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        try:
            file.seek(self._offset)
            rest = memoryview(line)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(self._offset)
            raise
        self._offset += len(line)


def _folder_identity(folder: Path) -> tuple[int, int]:
    """Device and inode: they tell a folder from another one of the same name."""
    found = folder.stat()
    return found.st_dev, found.st_ino


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _open_plain(path: Path, flags: int) -> Any:
    """Open a file of the run, never through a link. Unbuffered, so that a line is written immediately."""
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0), 0o644)
    return os.fdopen(descriptor, "r+b" if flags & os.O_RDWR else "rb", buffering=0)


@contextmanager
def _locked(file: Any) -> Iterator[None]:
    """Hold the lock of the file. The system releases it if the process is killed."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        file.seek(2**62)  # any byte, as long as all processes use the same one
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined, unused-ignore]
        try:
            yield
        finally:
            file.seek(2**62)
            msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
