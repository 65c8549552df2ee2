"""A run under review, as JSON values and bytes: what the server, the report and the export show."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdknet.explorer.cards import SHOWN, Cards, divide
from cdknet.explorer.folder import OpenedRun
from cdknet.explorer.journal import Done
from cdknet.explorer.reading import Reading
from cdknet.explorer.review import NO_BEST_OLD, REJECTED, Review
from cdknet.explorer.samples import Drawer
from cdknet.inputs.kind import SampleKind, kind_of
from cdknet.options import METHODS, Option, all_options, options_of
from cdknet.runs.files import shown, spreadsheet_bytes
from cdknet.runs.summary import confidence_sentence, count_sentence, mixture_sentence, used_options

FORMATS = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "json": "application/json",
}
MOST_VALUES = 1000  # of a vector that are listed by name
SHORT = 280  # characters of a text in a list
BEFORE = 60  # characters before a word that was searched for
METHOD_HELP = "stage 2: how new classes are found; cd-knet is the method of the paper"


class NotFound(LookupError):
    """A request for something that the run does not have."""


@dataclass(frozen=True)
class Truth:
    """True classes, as a file names them."""

    names: list[str]
    index: NDArray[np.uint16]  # (n,) into names; REJECTED if unknown


def read_truth(run: OpenedRun, path: str | Path) -> Truth:
    """The true classes in a CSV file with the columns id and label."""
    from cdknet.data.labelfile import read_labels

    given = read_labels(path)
    names = sorted(set(given.values()))
    number = {name: i for i, name in enumerate(names)}
    index = np.full(len(run), REJECTED, dtype=np.uint16)
    for i, name in enumerate(run.ids):
        if name in given:
            index[i] = number[given[name]]
    if (index == REJECTED).all():
        raise ValueError(
            f"{path}: ids must be those of labels.csv in {run.folder}, such as {run.ids[0]!r}. "
            f"Got {next(iter(given))!r} and no match."
        )
    if len(names) >= REJECTED:
        raise ValueError(f"{path}: there must be fewer than {REJECTED} true classes. Got {len(names)}.")
    return Truth(names, index)


class Session:
    """One run, its review, its cards. Safe to use from several threads."""

    def __init__(self, run: OpenedRun, *, truth: Truth | None = None, read_only: bool = False) -> None:
        self.run, self.truth = run, truth
        self.journal = run.journal()
        self.left_out = self.journal.left_out()
        self.read_only = read_only or not run.writable
        self.cards = Cards(run.features, run.confidence)
        self.cards.update(self.journal.review)
        self.journal.changed.clear()
        self._scored: tuple[int, dict[str, Any]] | None = None
        self._readings: dict[int, dict[str, Any]] = {}  # of the classes, at one revision
        self._read_at = -1

    # Actions

    def act(self, revision: int, action: Mapping[str, Any]) -> Done:
        return self.journal.do(revision, action, self._split, self.run.best_old)

    def undo(self, revision: int) -> Done:
        return self.journal.undo(revision)

    def redo(self, revision: int) -> Done:
        return self.journal.redo(revision)

    def _split(self, rows: NDArray[np.int64], k: int) -> NDArray[np.int64]:
        return divide(self.run.features[rows], k, seed=self.run.contents.seed % 2**32)

    @contextmanager
    def _up_to_date(self) -> Iterator[Review]:
        """The review, with changes of other processes and fresh cards, while no other thread changes it."""
        with self.journal.at_rest() as journal:
            if journal.changed:
                self.cards.update(journal.review, journal.changed)
                journal.changed.clear()
            yield journal.review

    @property
    def revision(self) -> int:
        return self.latest()[0]

    def latest(self) -> tuple[int, str | None]:
        """The revision and its summary."""
        with self.journal.at_rest() as journal:
            return journal.revision, journal.summary

    # Answers

    @cached_property
    def drawer(self) -> Drawer | None:
        """Draws the samples; None if there are none, or if they are texts."""
        return None if self.run.samples is None or self.has_texts else Drawer(self.run.samples)

    @property
    def has_texts(self) -> bool:
        return self.run.contents.texts is not None

    @cached_property
    def reading(self) -> Reading:
        return Reading(self.run.contents, self.run.samples)

    @property
    def cannot_refine(self) -> str | None:
        """Why the run cannot be refined from here, or None."""
        if self.run.samples is None:
            return (
                "The run must store its samples to be refined. It does not: start the explorer with --data."
            )
        return None

    @property
    def cannot_return(self) -> str | None:
        """Why samples cannot be moved to the old classes that they resemble most, or None."""
        return NO_BEST_OLD if self.run.best_old is None else None

    @property
    def has_mixture(self) -> bool:
        """Whether the fit took unlabelled samples to be a mixture of old and new classes."""
        return self.run.contents.mixture is not None

    def about(self) -> dict[str, Any]:
        """GET /api/run."""
        run, config = self.run, self.run.config
        columns, confidence = config["columns"], config["confidence"]
        options = used_options(config)
        read = options_read(options)
        return {
            "name": shown(run.folder.resolve().name),
            "kind": "text" if self.has_texts else kind_of(run.sample_shape).shown_as,
            "n_samples": len(run),
            "sample_shape": list(run.sample_shape),
            "columns": list(columns) if columns else None,
            "n_old": run.n_old,
            "has_truth": self.truth is not None,
            "truth_names": self.truth.names if self.truth else None,
            "has_samples": run.samples is not None or self.has_texts,
            "samples_note": None
            if run.samples is not None or self.has_texts
            else "This run does not store its samples: start the explorer with --data to see them.",
            "cannot_refine": self.cannot_refine,
            "cannot_return": self.cannot_return,
            "has_mixture": self.has_mixture,
            "rejected_id": REJECTED,
            "read_only": self.read_only,
            "options": {name: options[name] for name in read},
            "option_help": read,
            "formats": {format: _cannot_write(format) for format in FORMATS},
            "seed": run.contents.seed,
            "count": count_sentence(config) or None,
            "mixture": mixture_sentence(config) or None,
            "confidence": confidence_sentence(confidence, run.contents.n_new) if confidence else None,
            "notes": [shown(note) for note in [*config["notes"], *filter(None, [self.left_out])]],
            "source": Path(shown(config["source"])).name,
            "versions": config["versions"],
            "history": run.history,
            "seconds": round(sum(float(row.get("seconds", 0)) for row in run.history), 1),
            **self.scored(),
        }

    def scored(self) -> dict[str, Any]:
        """Scores and confusion of the present labels, over samples whose label was not given."""
        if self.truth is None:
            return {"scores": None, "confusion": None}
        with self._up_to_date() as review:
            if self._scored is None or self._scored[0] != self.journal.revision:
                self._scored = (self.journal.revision, _scores(self.run, review, self.truth))
            return self._scored[1]

    def map_bytes(self) -> bytes:
        return self.run.places.astype("<f4").tobytes()

    def assignment_bytes(self) -> tuple[bytes, int]:
        with self._up_to_date() as review:
            return review.assignment.astype("<u2").tobytes(), self.journal.revision

    def confidence_bytes(self) -> bytes:
        return _share_bytes(self.run.confidence)

    def novelty_bytes(self) -> bytes:
        return _share_bytes(self.run.novelty)

    def given_bytes(self) -> bytes:
        return self.run.given.astype(np.uint8).tobytes()

    def truth_bytes(self) -> bytes:
        if self.truth is None:
            raise NotFound("There are no true classes. Start the explorer with --truth FILE.")
        return self.truth.index.astype("<u2").tobytes()

    def state(self) -> dict[str, Any]:
        """GET /api/state."""
        with self._up_to_date() as review:
            return {
                "revision": self.journal.revision,
                "undo": self.journal.undo_summary,
                "redo": self.journal.redo_summary,
                "rejected": int((review.assignment == REJECTED).sum()),
                "classes": [self._summary(review, class_id) for class_id in review.classes],
            }

    def class_card(self, class_id: int) -> dict[str, Any]:
        """GET /api/classes/{id}."""
        with self._up_to_date() as review:
            if class_id not in review.classes:
                raise NotFound(f"There is no class {class_id}.")
            return {
                **self._summary(review, class_id),
                "central": self.cards.ordered(class_id, "central")[:SHOWN].tolist(),
                "unsure": self.cards.ordered(class_id, "unsure")[:SHOWN].tolist(),
                "outliers": self.cards.outliers(class_id)[:SHOWN].tolist(),
                **self._read(review, class_id),
            }

    def _read(self, review: Review, class_id: int) -> dict[str, Any]:
        """What sets a class apart, and a name to suggest if it is a new one."""
        if self._read_at != self.journal.revision:
            self._read_at = self.journal.revision
            self._readings.clear()
        if class_id not in self._readings:
            names = [record.name for record in review.classes.values()]
            read = self.reading.of(self.cards.rows(class_id), len(names), names)
            if review.classes[class_id].kind == "old":
                read["suggestion"] = None
            self._readings[class_id] = read
        return self._readings[class_id]

    def _marked(self, row: int) -> list[list[Any]] | None:
        """The values of a sample in the columns that set its class apart."""
        if self.reading.columns is None or self.run.samples is None:
            return None
        with self._up_to_date() as review:
            class_id = int(review.assignment[row])
            read = self._read(review, class_id) if class_id in review.classes else {"columns": []}
        names = self.reading.columns.names
        values = self.run.samples[row]
        return [
            [column["name"], float(f"{float(values[names.index(column['name'])]):.6g}")]
            for column in read["columns"]
        ]

    def _summary(self, review: Review, class_id: int) -> dict[str, Any]:
        record, card = review.classes[class_id], self.cards.card(class_id)
        old = [c for c, r in review.classes.items() if r.kind == "old"]
        nearest = self.cards.nearest_old(class_id, old)
        size = len(card.rows)
        return {
            "id": class_id,
            "name": record.name,
            "kind": record.kind,
            "size": size,
            "given": int(self.run.given[card.rows].sum()),
            "confidence": round(float(self.run.confidence[card.rows].mean()), 4) if size else None,
            "cohesion": None if card.cohesion is None else round(card.cohesion, 4),
            "nearest_old": None if nearest is None else {"id": nearest[0], "distance": round(nearest[1], 3)},
            "confusable": [{"id": c, "share": round(s, 4)} for c, s in list(card.shares.items())[:3]],
            "hints": [
                {"kind": h.kind, "with": h.other, "into": h.into, "reason": h.reason}
                for h in self.cards.hints(class_id, review)
                if not review.dismissed(class_id, h.kind, h.other)
            ],
            "note": record.note,
        }

    def class_samples(self, class_id: int, offset: int, limit: int, order: str) -> dict[str, Any]:
        """GET /api/classes/{id}/samples."""
        with self._up_to_date() as review:
            if class_id not in review.classes and class_id != REJECTED:
                raise NotFound(f"There is no class {class_id}.")
            if class_id == REJECTED and order == "central":
                order = "name"
            rows = self.cards.rows(class_id)
            rows = self.run.by_name(rows) if order == "name" else self.cards.ordered(class_id, order)
            return {"total": len(rows), "samples": rows[offset : offset + limit].tolist()}

    def sample(self, row: int) -> dict[str, Any]:
        """GET /api/samples/{i}."""
        self._check_row(row)
        with self._up_to_date() as review:
            class_id = int(review.assignment[row])
        true = REJECTED if self.truth is None else int(self.truth.index[row])
        return {
            "index": row,
            "id": self.run.ids[row],
            "class": class_id,
            "given": bool(self.run.given[row]),
            "confidence": round(float(self.run.confidence[row]), 4),
            "novelty": round(float(self.run.novelty[row]), 4) if self.has_mixture else None,
            "truth": None if self.truth is None or true == REJECTED else self.truth.names[true],
            "values": self._values(row),
            "marked": self._marked(row),
            "text": self.run.contents.texts[row] if self.run.contents.texts is not None else None,
        }

    def texts(self, rows: Sequence[int], longest: int = SHORT) -> list[str]:
        """GET /api/texts: the beginnings of some texts."""
        if self.run.contents.texts is None:
            raise NotFound("The samples of this run have no texts.")
        for row in rows:
            self._check_row(row)
        return [shortened(self.run.contents.texts[row], longest) for row in rows]

    def _values(self, row: int) -> list[list[Any]] | None:
        if self.run.samples is None or kind_of(self.run.sample_shape) is not SampleKind.VECTOR:
            return None
        if self.has_texts:  # the values of an encoder say nothing to a person
            return None
        values = np.asarray(self.run.samples[row], dtype=np.float64).ravel()[:MOST_VALUES]
        columns = self.run.config["columns"] or []
        names = [str(columns[j]) if j < len(columns) else f"feature {j}" for j in range(len(values))]
        return [[name, float(f"{value:.6g}")] for name, value in zip(names, values.tolist(), strict=True)]

    def picture(self, row: int) -> bytes:
        self._check_row(row)
        return self._drawer().picture(row)

    def sheet(self, rows: Sequence[int], size: int) -> bytes:
        from cdknet.explorer.samples import png

        for row in rows:
            self._check_row(row)
        return png(self._drawer().sheet(rows, size))

    def _drawer(self) -> Drawer:
        if self.has_texts:
            raise NotFound("The samples of this run are texts: there are no pictures of them.")
        if self.drawer is None:
            raise NotFound("This run does not store its samples. Start the explorer with --data to see them.")
        return self.drawer

    def _check_row(self, row: int) -> None:
        if not 0 <= row < len(self.run):
            raise NotFound(f"There is no sample {row}: the last one is {len(self.run) - 1}.")

    def search(self, text: str, limit: int = 50) -> dict[str, Any]:
        """GET /api/search: samples whose id or text contains the text, ignoring case."""
        wanted, texts = text.casefold(), self.run.contents.texts
        if not wanted:
            return {"samples": [], "total": 0}
        rows = [i for i, name in enumerate(self._lowercase_ids) if wanted in name]
        if texts is not None:
            also = (i for i, lowered in enumerate(self._lowercase_texts) if wanted in lowered)
            rows = list(dict.fromkeys([*rows, *also]))
        shown = rows[:limit]
        return {
            "samples": [
                {
                    "index": i,
                    "id": self.run.ids[i],
                    "text": None if texts is None else excerpt(texts[i], wanted),
                }
                for i in shown
            ],
            "total": len(rows),
        }

    @cached_property
    def _lowercase_texts(self) -> list[str]:
        return [text.casefold() for text in self.run.contents.texts or ()]

    @cached_property
    def _lowercase_ids(self) -> list[str]:
        return [name.casefold() for name in self.run.ids]

    def past(self, offset: int, limit: int) -> dict[str, Any]:
        """GET /api/journal, newest first."""
        with self._up_to_date():
            entries = self.journal.entries[::-1]
            shown = entries[offset : offset + limit]
            return {
                "entries": [
                    {"revision": e.revision, "when": e.when, "summary": e.summary, "undone": e.undone}
                    for e in shown
                ],
                "total": len(entries),
            }

    # Export

    def labels(self) -> dict[str, list[Any]]:
        """The reviewed labels, one list per column. A rejected sample has no label and no class."""
        with self._up_to_date() as review:
            ids = review.assignment.tolist()
            records = review.classes
            return {
                "id": self.run.ids,
                "label": [None if c == REJECTED else records[c].name for c in ids],
                "class": [None if c == REJECTED else c for c in ids],
                "kind": [None if c == REJECTED else records[c].kind for c in ids],
                "given": self.run.given.tolist(),
                "confidence": [round(c, 4) for c in self.run.confidence.tolist()],
                "novelty": [round(c, 4) for c in self.run.novelty.tolist()],
                "rejected": [c == REJECTED for c in ids],
            }

    def export(self, format: str) -> bytes:
        return export(self.labels(), format)


def shortened(text: str, longest: int) -> str:
    """A text on one line, cut after `longest` characters."""
    line = " ".join(text[: 4 * longest].split())
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def excerpt(text: str, wanted: str) -> str:
    """The part of a text around a word."""
    line = " ".join(text.split())
    at = line.casefold().find(wanted)
    start = 0 if at <= BEFORE else at - BEFORE
    return ("…" if start else "") + shortened(line[start:], SHORT)


def _share_bytes(shares: NDArray[np.float32]) -> bytes:
    """Shares from 0 to 1 as bytes from 0 to 255."""
    return (np.clip(shares, 0, 1) * 255).round().astype(np.uint8).tobytes()


def options_read(options: Mapping[str, Any]) -> dict[str, str]:
    """Options that the run's method reads, with their help; all that are declared if it is unknown."""
    method = str(options.get("method"))
    read: dict[str, Option] = options_of(method) if method in METHODS else all_options()
    texts = {"method": METHOD_HELP, **{name: option.help for name, option in read.items()}}
    return {name: texts[name] for name in options if name in texts}


NO_PARQUET = "Parquet needs pyarrow. Install it with: pip install 'cdknet[tables]'"


def _cannot_write(format: str) -> str | None:
    """Why this format cannot be written here, or None."""
    try:
        available = format != "parquet" or find_spec("pyarrow") is not None
    except ValueError:  # sys.modules has None for it
        available = False
    return None if available else NO_PARQUET


def export(labels: dict[str, list[Any]], format: str) -> bytes:
    """The columns as a file in one of `FORMATS`."""
    if format == "json":
        rows = (dict(zip(labels, values, strict=True)) for values in zip(*labels.values(), strict=True))
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        return f"[\n{lines}\n]\n".encode()
    if format == "csv":
        return spreadsheet_bytes(labels, zip(*labels.values(), strict=True))
    if format != "parquet":
        raise ValueError(f"format must be one of {', '.join(FORMATS)}. Got {format!r}.")
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError(NO_PARQUET) from None
    kinds = {"class": pyarrow.int32(), "given": pyarrow.bool_(), "rejected": pyarrow.bool_()}
    kinds |= {"confidence": pyarrow.float32(), "novelty": pyarrow.float32()}
    arrays = [pyarrow.array(v, kinds.get(name, pyarrow.string())) for name, v in labels.items()]
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(arrays, list(labels)), out)
    return out.getvalue()


def _scores(run: OpenedRun, review: Review, truth: Truth) -> dict[str, Any]:
    from cdknet.core.metrics import contingency, scores

    unlabelled = ~run.given
    scored = np.flatnonzero(unlabelled & (truth.index != REJECTED) & (review.assignment != REJECTED))
    if not len(scored):
        return {"scores": None, "confusion": None}
    y, labels = truth.index[scored], review.assignment[scored]
    table = contingency(y, labels)
    found = {name: round(value, 4) for name, value in scores(y, labels)._asdict().items()}
    return {
        "scores": {**found, "n_scored": len(scored), "n_unlabelled": int(unlabelled.sum())},
        "confusion": {
            "rows": [truth.names[i] for i in table.classes.tolist()],
            "columns": [review.classes[i].name for i in table.clusters.tolist()],
            "column_ids": table.clusters.tolist(),
            "counts": table.counts.tolist(),
        },
    }
