"""What a person changed in a run: classes, assignments, and the actions on them.

A `Review` is the state: the class of every sample, and the name of every class. `resolve` turns a request
into a complete action (ids, names and parts chosen), `change_of` computes what that action does to a state,
and a `Change` can be applied and reverted. All of this is plain data; `cdknet.explorer.journal` saves it.
"""

from __future__ import annotations

import base64
import re
import unicodedata
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from cdknet.data.checks import unseen
from cdknet.runs.format import NOISE
from cdknet.runs.schema import MOST_CLASSES

REJECTED = 65535  # the class id of samples that are noise
LONGEST_NAME, LONGEST_NOTE, MOST_PARTS = 100, 4000, 20
MOST_NAMED = 3  # classes that a summary names

Rows = NDArray[np.int64]
Ids = NDArray[np.uint16]
Action = dict[str, Any]
Unsigned = TypeVar("Unsigned", np.uint8, np.uint16)
# Rows of a class, number of parts k -> part 0 ... k - 1 of each row, largest part first.
Splitter = Callable[[Rows, int], NDArray[np.integer[Any]]]


NO_BEST_OLD = (
    "The run must say which known class each sample resembles most. It does not: an older version made it. "
    "Move the samples to a known class yourself, or run it again."
)


class ReviewError(ValueError):
    """An action that is not possible. The state is unchanged."""


def ids_of(class_index: NDArray[np.integer[Any]], class_ids: Sequence[int]) -> Ids:
    """(n,) ids of classes that are given by position; `REJECTED` where a sample was set aside as noise."""
    ids = np.asarray(class_ids, dtype=np.uint16)
    return np.where(class_index == NOISE, np.uint16(REJECTED), ids[class_index])


@dataclass(frozen=True)
class ClassRecord:
    """What is known about a class apart from its samples."""

    name: str
    kind: str  # "old" or "new"
    note: str = ""
    dismissed: frozenset[int] = frozenset()  # hidden hints: to split (its own id), to merge with (id)


@dataclass
class Review:
    """The class of every sample (`REJECTED` for noise), and the classes by id. `next_id` never decreases."""

    assignment: Ids  # (n,)
    classes: dict[int, ClassRecord]
    next_id: int
    names: set[str] = field(default_factory=set)  # every name that a class ever had

    def __post_init__(self) -> None:
        self.names |= {record.name for record in self.classes.values()}

    @classmethod
    def start(
        cls,
        assignment: NDArray[np.integer[Any]],
        names: Sequence[str],
        n_old: int,
        *,
        ids: Sequence[int] | None = None,
        next_id: int | None = None,
    ) -> Review:
        """The state before any review. `ids` are given if the classes keep those of an earlier run."""
        numbers = list(range(len(names))) if ids is None else list(ids)
        records = {
            number: ClassRecord(str(name), "old" if index < n_old else "new")
            for index, (number, name) in enumerate(zip(numbers, names, strict=True))
        }
        return cls(np.asarray(assignment, dtype=np.uint16).copy(), records, next_id or max(numbers) + 1)

    def copy(self) -> Review:
        return Review(self.assignment.copy(), dict(self.classes), self.next_id, set(self.names))

    def members(self, class_id: int) -> Rows:
        """Rows of the samples of a class, in order."""
        return np.flatnonzero(self.assignment == class_id)

    def dismissed(self, class_id: int, hint: str, other: int | None) -> bool:
        """Whether a person dismissed this hint and neither class has changed since."""
        pair = [(class_id, class_id)] if hint == "split" else [(class_id, other), (other, class_id)]
        return all(b in self.classes[a].dismissed for a, b in pair)  # type: ignore[index]

    def same_as(self, other: Review) -> bool:
        """Whether samples and classes are the same. Ids that were used in between do not count."""
        return self.classes == other.classes and np.array_equal(self.assignment, other.assignment)


class Change(NamedTuple):
    """What an action does to a state, forwards and backwards."""

    rows: Rows
    before: Ids
    after: Ids
    classes: dict[int, tuple[ClassRecord | None, ClassRecord | None]]  # id -> before, after
    next_id: int  # the smallest unused id afterwards
    summary: str

    def apply(self, review: Review) -> None:
        self._move(review, self.after, 1)

    def revert(self, review: Review) -> None:
        self._move(review, self.before, 0)

    def _move(self, review: Review, target: Ids, side: int) -> None:
        review.assignment[self.rows] = target
        for class_id, records in self.classes.items():
            record = records[side]
            if record is None:
                review.classes.pop(class_id, None)
            else:
                review.classes[class_id] = record
                review.names.add(record.name)
        review.classes = dict(sorted(review.classes.items()))
        review.next_id = max(review.next_id, self.next_id)

    @property
    def regrouped(self) -> set[int]:
        """Classes that gain or lose samples."""
        return set(np.unique(self.before).tolist()) | set(np.unique(self.after).tolist())

    @property
    def touched(self) -> list[int]:
        """Classes whose samples, name or note change."""
        return sorted((self.regrouped | self.classes.keys()) - {REJECTED})


# From a request to a change


KINDS = ("rename", "merge", "split", "move", "mark_old", "old", "reject", "note", "dismiss")


def resolve(
    review: Review, asked: Mapping[str, Any], splitter: Splitter, best_old: Ids | None = None
) -> Action:
    """The request with every choice made that a replay must not make again: new ids, names, parts.

    `best_old` (n,) is the old class that each sample resembles most, by id; None if the run does not say.
    """
    kind = asked.get("kind")
    if kind in ("old", "reject") and None not in (asked.get("samples"), asked.get("class")):
        raise ReviewError(f"{kind} must name samples or a class. Got both.")
    if kind == "split":
        class_id, k = _class_id(review, asked.get("class")), _part_count(asked.get("k"))
        members = review.members(class_id)
        if len(members) < 2:
            raise ReviewError(f"A class must have at least 2 samples to be split. Got {len(members)}.")
        most = min(MOST_PARTS, len(members))
        if not 2 <= k <= most:
            raise ReviewError(
                f"k must be from 2 to {most}: at most {MOST_PARTS}, and one sample per part. Got {k}."
            )
        parts = np.asarray(splitter(members, k))
        found = len(np.unique(parts))
        if found < k:
            raise ReviewError(
                f"k must be at most the number of groups that can be separated. Got {k}, but found {found}."
            )
        ids = _unused_ids(review, k - 1)
        stem = review.classes[class_id].name
        names = _unused_names(review, [f"{_shortened(stem)} ({j + 2})" for j in range(k - 1)], stem)
        packed = _packed(parts.astype(np.uint8))
        return {"kind": "split", "class": class_id, "k": k, "ids": ids, "names": names, "parts": packed}
    if kind == "old":
        if best_old is None:
            raise ReviewError(NO_BEST_OLD)
        if asked.get("samples") is None:
            class_id = _class_id(review, asked.get("class"))
            return {"kind": "old", "class": class_id, "to": _packed(best_old[review.members(class_id)])}
        rows = _not_old(review, _rows(review, asked["samples"]))
        return {"kind": "old", "samples": rows.tolist(), "to": _packed(best_old[rows])}
    if kind == "move" and asked.get("to") is None:
        rows = _rows(review, asked.get("samples"))
        name = asked.get("name")
        name = _unused_names(review, [], "")[0] if name is None else _name(review, _seen_name(name))
        return {"kind": "move", "samples": rows.tolist(), "to": _unused_ids(review, 1)[0], "name": name}
    if kind == "move":
        if asked.get("name") is not None:
            raise ReviewError("name must be left out when samples move to an existing class.")
        rows = _rows(review, asked.get("samples"))
        return {"kind": "move", "samples": rows.tolist(), "to": _class_id(review, asked["to"])}
    if kind == "rename":
        return {"kind": kind, "class": asked.get("class"), "name": _seen_name(asked.get("name"))}
    if kind not in KINDS:
        raise ReviewError(f"kind must be one of {', '.join(KINDS)}. Got {str(kind)[:40]!r}.")
    wanted = {
        "merge": ("classes", "into"),
        "mark_old": ("class", "old"),
        "note": ("class", "text"),
        "dismiss": ("class", "hint", "with"),
        "reject": ("samples",) if asked.get("samples") is not None else ("class",),
    }[kind]
    return {"kind": kind, **{name: asked.get(name) for name in wanted}}


def change_of(review: Review, action: Mapping[str, Any]) -> Change:
    """What a resolved action does to `review`. It depends on these two and nothing else."""
    kind = action.get("kind")
    if kind not in KINDS:
        raise ReviewError(f"kind must be one of {', '.join(KINDS)}. Got {str(kind)[:40]!r}.")
    return _CHANGES[kind](review, action)


def _rename(review: Review, action: Mapping[str, Any]) -> Change:
    class_id = _class_id(review, action["class"])
    record = review.classes[class_id]
    name = _name(review, action["name"], except_for=class_id)
    if name == record.name:
        raise ReviewError(f"name must differ from the present name. Got {name!r} again.")
    return _change(
        review, {class_id: (record, replace(record, name=name))}, summary=f"{record.name} is now {name}"
    )


def _merge(review: Review, action: Mapping[str, Any]) -> Change:
    into, listed = _class_id(review, action["into"]), action["classes"]
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise ReviewError(f"classes must be a list of class ids. Got {type(listed).__name__}.")
    others = sorted({_class_id(review, c) for c in listed} - {into})
    if not others:
        raise ReviewError("classes must name at least one class besides into. Got none.")
    for class_id in others:
        _check_kind(review, class_id, "new", "be merged into another")
    rows = np.flatnonzero(np.isin(review.assignment, np.array(others, dtype=np.uint16)))
    names = ", ".join(review.classes[c].name for c in others)
    return _change(
        review,
        {c: (review.classes[c], None) for c in others},
        rows,
        into,
        f"{names} merged into {review.classes[into].name}: {_n_samples(rows)}",
    )


def _split(review: Review, action: Mapping[str, Any]) -> Change:
    class_id = _class_id(review, action["class"])
    ids, names = [_new_id(review, i) for i in action["ids"]], action["names"]
    rows = review.members(class_id)
    parts = _unpacked(action["parts"], np.uint8, len(rows))
    if len(names) != len(ids) or (len(parts) and parts.max() > len(ids)):
        raise ReviewError("parts must assign every sample of the class to a part. Got something else.")
    if not all(
        isinstance(name, str) and 1 <= len(name) <= LONGEST_NAME and _encodable(name) for name in names
    ):
        raise ReviewError(f"names must be texts of 1 to {LONGEST_NAME} characters. Got something else.")
    moved = parts > 0
    after = np.array([class_id, *ids], dtype=np.uint16)[parts[moved]]
    record = review.classes[class_id]
    sizes = np.bincount(parts, minlength=len(ids) + 1).tolist()
    return _change(
        review,
        {i: (None, ClassRecord(name, "new")) for i, name in zip(ids, names, strict=True)},
        rows[moved],
        after,
        f"{record.name} split into {len(ids) + 1}: {', '.join(map(str, sizes))} samples",
    )


def _move(review: Review, action: Mapping[str, Any]) -> Change:
    rows, to, name = _rows(review, action["samples"]), action["to"], action.get("name")
    records: dict[int, tuple[ClassRecord | None, ClassRecord | None]] = {}
    if name is not None:
        to, name = _new_id(review, to), _name(review, name)
        records[to] = (None, ClassRecord(name, "new"))
    else:
        to = _class_id(review, to)
        name = review.classes[to].name
        rows = rows[review.assignment[rows] != to]
        if not len(rows):
            raise ReviewError(f"samples must be of other classes to be moved. Got only samples of {name}.")
    return _change(review, records, rows, to, f"{_n_samples(rows)} moved to {name}")


def _mark_old(review: Review, action: Mapping[str, Any]) -> Change:
    class_id, old = _class_id(review, action["class"]), _class_id(review, action["old"])
    _check_kind(review, class_id, "new", "be marked as an old one")
    _check_kind(review, old, "old", "be chosen as the old class")
    rows = review.members(class_id)
    record = review.classes[class_id]
    return _change(
        review,
        {class_id: (record, None)},
        rows,
        old,
        f"{record.name} is the old class {review.classes[old].name}: {_n_samples(rows)}",
    )


def _old(review: Review, action: Mapping[str, Any]) -> Change:
    """Every sample joins the old class in `to`. A whole class is removed; one that lost all samples stays."""
    records: dict[int, tuple[ClassRecord | None, ClassRecord | None]] = {}
    if action.get("samples") is not None:
        rows = _not_old(review, _rows(review, action["samples"]))
        what = f"{_n_samples(rows)} moved to known classes"
    else:
        class_id = _class_id(review, action.get("class"))
        _check_kind(review, class_id, "new", "be moved to old ones")
        record, rows = review.classes[class_id], review.members(class_id)
        records[class_id] = (record, None)
        what = f"{record.name} moved to known classes"
    after = _unpacked(action["to"], np.uint16, len(rows))
    found, sizes = np.unique(after, return_counts=True)
    for old in found.tolist():
        _check_kind(review, _class_id(review, old), "old", "be chosen as the old class")
    largest = np.argsort(-sizes, kind="stable")
    shares = [f"{sizes[i]} to {review.classes[int(found[i])].name}" for i in largest[:MOST_NAMED]]
    if len(largest) > MOST_NAMED:
        shares.append(f"{sizes[largest[MOST_NAMED:]].sum()} to others")
    return _change(review, records, rows, after, ": ".join([what, ", ".join(shares)] if shares else [what]))


def _reject(review: Review, action: Mapping[str, Any]) -> Change:
    records: dict[int, tuple[ClassRecord | None, ClassRecord | None]] = {}
    if action.get("samples") is not None:
        rows = _rows(review, action["samples"])
        rows = rows[review.assignment[rows] != REJECTED]
        if not len(rows):
            raise ReviewError("samples must not be rejected yet. Got only rejected ones.")
        return _change(review, records, rows, REJECTED, f"{_n_samples(rows)} rejected as noise")
    class_id = _class_id(review, action.get("class"))
    record, rows = review.classes[class_id], review.members(class_id)
    if record.kind == "new":
        records[class_id] = (record, None)
    elif not len(rows):
        raise ReviewError(f"class must have samples to be rejected. Got {record.name}, which has none.")
    summary = f"{record.name} rejected as noise, with {_n_samples(rows)}"
    return _change(review, records, rows, REJECTED, summary)


def _note(review: Review, action: Mapping[str, Any]) -> Change:
    class_id, text = _class_id(review, action["class"]), action["text"]
    if not isinstance(text, str) or len(text) > LONGEST_NOTE or not _encodable(text):
        raise ReviewError(f"text must be a string of at most {LONGEST_NOTE} characters. Got something else.")
    record = review.classes[class_id]
    if text == record.note:
        raise ReviewError("text must differ from the present note. Got the same.")
    return _change(
        review,
        {class_id: (record, replace(record, note=text))},
        summary=f"note on {record.name}" if text else f"note on {record.name} removed",
    )


def _dismiss(review: Review, action: Mapping[str, Any]) -> Change:
    class_id, hint = _class_id(review, action["class"]), action["hint"]
    if hint not in ("split", "merge"):
        raise ReviewError(f"hint must be split or merge. Got {str(hint)[:40]!r}.")
    other = _class_id(review, action.get("with")) if hint == "merge" else class_id
    if hint == "merge" and other == class_id:
        raise ReviewError("with must be another class. Got the same as class.")
    if review.dismissed(class_id, hint, other):
        raise ReviewError("hint must be one that is shown. Got one that was dismissed already.")
    records = {a: review.classes[a] for a in (class_id, other)}
    pairs = {class_id: other, other: class_id}
    a, b = (records[i].name for i in (class_id, other))
    return _change(
        review,
        {i: (r, replace(r, dismissed=r.dismissed | {pairs[i]})) for i, r in records.items()},
        summary=f"hint to split {a} dismissed" if hint == "split" else f"hint to merge {a} and {b} dismissed",
    )


_CHANGES: dict[str, Callable[[Review, Mapping[str, Any]], Change]] = {
    "rename": _rename,
    "merge": _merge,
    "split": _split,
    "move": _move,
    "mark_old": _mark_old,
    "old": _old,
    "reject": _reject,
    "note": _note,
    "dismiss": _dismiss,
}


def _change(
    review: Review,
    classes: dict[int, tuple[ClassRecord | None, ClassRecord | None]],
    rows: Rows | None = None,
    after: int | Ids = REJECTED,
    summary: str = "",
) -> Change:
    rows = np.zeros(0, dtype=np.int64) if rows is None else rows
    target = np.broadcast_to(np.asarray(after, dtype=np.uint16), rows.shape)
    next_id = max([review.next_id, *(i + 1 for i in classes)])
    before = review.assignment[rows]
    for class_id in {*before.tolist(), *target.tolist()} & review.classes.keys():  # its hints change
        old, new = classes.get(class_id, (review.classes[class_id], review.classes[class_id]))
        if new is not None and new.dismissed:
            classes[class_id] = (old, replace(new, dismissed=frozenset()))
    return Change(rows, before, target, classes, next_id, summary)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _part_count(value: Any) -> int:
    if not _is_whole(value):
        raise ReviewError(f"k must be a whole number. Got {str(value)[:40]!r}.")
    return int(value)


def _class_id(review: Review, class_id: Any) -> int:
    if not _is_whole(class_id) or class_id not in review.classes:
        raise ReviewError(f"class must be the id of an existing class. Got {str(class_id)[:40]}.")
    return int(class_id)


def _check_kind(review: Review, class_id: int, kind: str, what: str) -> None:
    record = review.classes[class_id]
    if record.kind != kind:
        raise ReviewError(f"A class must be {kind} to {what}. Got {record.name!r}, which is {record.kind}.")


def _new_id(review: Review, class_id: Any) -> int:
    if not _is_whole(class_id) or class_id in review.classes or not 0 <= class_id < MOST_CLASSES:
        raise ReviewError(f"A new class must have an unused id. Got {str(class_id)[:40]}.")
    return int(class_id)


def _unused_ids(review: Review, count: int) -> list[int]:
    if review.next_id + count > MOST_CLASSES:
        raise ReviewError(f"There can be at most {MOST_CLASSES} classes. Refine the run and continue there.")
    return list(range(review.next_id, review.next_id + count))


def _rows(review: Review, samples: Any) -> Rows:
    n = len(review.assignment)
    if not isinstance(samples, Sequence) or isinstance(samples, str) or not len(samples):
        raise ReviewError("samples must be a list of at least one row number.")
    if not all(_is_whole(i) and 0 <= i < n for i in samples):
        raise ReviewError(f"samples must be whole numbers from 0 to {n - 1}. Got other values.")
    return np.unique(np.asarray(samples, dtype=np.int64))


def _not_old(review: Review, rows: Rows) -> Rows:
    """Those of the rows that are in no old class: the others are where they belong."""
    old = [class_id for class_id, record in review.classes.items() if record.kind == "old"]
    rows = rows[~np.isin(review.assignment[rows], np.array(old, dtype=np.uint16))]
    if not len(rows):
        raise ReviewError("samples must be of new classes or noise. Got only samples of known classes.")
    return rows


def _packed(values: NDArray[np.unsignedinteger[Any]]) -> str:
    """Small numbers as text, for a line of the journal."""
    little = values.astype(values.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(little.tobytes(), 6)).decode()


def _unpacked(text: str, dtype: type[Unsigned], n: int) -> NDArray[Unsigned]:
    """What `_packed` packed: exactly `n` numbers, so that no more memory is used than for them."""
    size = n * np.dtype(dtype).itemsize
    unpacker = zlib.decompressobj()
    raw = unpacker.decompress(base64.b64decode(text, validate=True), size + 1)
    if not unpacker.eof or unpacker.unused_data or len(raw) != size:
        plural = "" if n == 1 else "s"
        raise ReviewError(
            f"There must be a class for each of {n} sample{plural}. Got another number of them."
        )
    return np.frombuffer(raw, dtype=np.dtype(dtype).newbyteorder("<")).astype(dtype)


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _name(review: Review, asked: Any, except_for: int | None = None) -> str:
    name = asked.strip() if isinstance(asked, str) else ""
    if not 1 <= len(name) <= LONGEST_NAME or _CONTROL.search(name) or not _encodable(name):
        raise ReviewError(
            f"name must be one line of 1 to {LONGEST_NAME} characters. Got "
            + (f"{len(name)}." if not name or len(name) > LONGEST_NAME else "control characters in it.")
        )
    if name == "-1":
        raise ReviewError("name must not be -1, which stands for unlabelled. Choose another.")
    for class_id, record in review.classes.items():
        if record.name == name and class_id != except_for:
            raise ReviewError(
                f"name must be unique. Got {name!r}, the name of class {class_id}. "
                "Choose another name, or merge the two classes."
            )
    return name


def _seen_name(asked: Any) -> Any:
    """A new name in the one form of its letters (NFC), if everything in it can be seen.

    Only a request is checked for this: a journal of an older version may have such names.
    """
    if isinstance(asked, str) and _encodable(asked) and unseen(asked.strip()):
        raise ReviewError("name must have only characters that can be seen. Got some that cannot.")
    return unicodedata.normalize("NFC", asked) if isinstance(asked, str) else asked


def _encodable(text: str) -> bool:
    """Whether a file can hold the text: half of a surrogate pair cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shortened(stem: str) -> str:
    return stem[: LONGEST_NAME - 8]


def _unused_names(review: Review, wanted: Sequence[str], stem: str) -> list[str]:
    """The wanted names, or similar ones if a class ever had that name. None wanted: one like new-7."""
    used, out = set(review.names), []
    k = len(wanted) + 1 if stem else 0
    for name in wanted or [""]:
        while not name or name in used:
            k += 1
            name = f"{_shortened(stem)} ({k})" if stem else f"new-{k}"
        used.add(name)
        out.append(name)
    return out


def _n_samples(rows: Rows) -> str:
    return f"{len(rows)} sample{'' if len(rows) == 1 else 's'}"
