"""Hostile inputs for every reader, for run folders and for journals: a result, or one error that says where.

The inputs here are valid files that were damaged at random. `tests/data/fuzz_readers.py` damages them guided
by coverage (atheris), where that is installed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.reliability import ROOT, RUNS, Figures, tries

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "data")]  # the specimens of the tests

SLOW = 20.0  # seconds of an input, from which it counts as hanging
# Values that are seldom thought of.
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, float("inf")),
    *(
        float("nan"),
        "",
        "x",
        "-1",
        "inf",
        "\x00",
        "\x1b[2J",
        "\u202e",
        "=1+1",
        "../x",
        "a" * 70_000,
        "9" * 5000,
    ),
    *([], [[]], [None], {}, {"": None}, {"x": {}}, [0] * 5000, {"calibrated": True}, "\ud800"),
]


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The content with a few random changes: bytes flipped, cut out, doubled, or of extreme numbers."""
    data = bytearray(content)
    for _ in range(1 + int(draw.expovariate(0.5))):
        if not data:
            break
        at, length = draw.randrange(len(data)), 1 + int(draw.expovariate(0.1))
        how = draw.randrange(6)
        if how == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            del data[at : at + length]
        elif how == 2:
            data[at:at] = data[at : at + length] * draw.choice((1, 2, 50))
        elif how == 3:
            data[at : at + length] = draw.randbytes(length)
        elif how == 4:
            data[at : at + 8] = draw.choice(
                (b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7, b"\x80" + b"\0" * 7)
            )
        else:
            data[at:] = b""
    return bytes(data)


class Trial:
    """Counts what happens to inputs: accepted, refused as they should be, or broken."""

    def __init__(self) -> None:
        self.accepted = self.refused = 0
        self.slowest = 0.0
        self.broken: list[str] = []

    def one(self, what: str, read: Callable[[], object], named: str) -> None:
        """`read` must return, or raise one ValueError or OSError that names the file or its folder."""
        start = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                read()
            self.accepted += 1
        except (ValueError, OSError) as error:
            self.refused += 1
            if named not in str(error):
                self.broken.append(f"{what}: {type(error).__name__}: {str(error)[:200]}")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self.broken.append(f"{what}: {type(error).__name__}: {str(error)[:200]}")
        seconds = time.monotonic() - start
        self.slowest = max(self.slowest, seconds)
        if seconds > SLOW:
            self.broken.append(f"{what}: {seconds:.0f} seconds")

    def figures(self, **more: Any) -> Figures:
        return {
            "inputs": self.accepted + self.refused,
            "accepted": self.accepted,
            "refused": self.refused,
            "slowest_seconds": round(self.slowest, 2),
            **more,
            "broken": len(self.broken),
            "examples": self.broken[:5],
        }


def readers(count: int, seed: int, folder: Path) -> Figures:
    """Every reader, on damaged files of its kind."""
    from specimens import SPECIMENS, check_valid, some_samples

    draw, trial = random.Random(seed), Trial()
    kinds = list(SPECIMENS)
    originals = {}
    for kind, specimen in SPECIMENS.items():
        for n, side in ((1, 2), (7, 4), (20, 8)):
            path = folder / f"{kind}-{n}{specimen.suffix}"
            specimen.make(path, *some_samples(n, side))
            originals.setdefault(kind, []).append(path.read_bytes())
            path.unlink()
    for number in tries(count):
        kind = kinds[number % len(kinds)]
        specimen = SPECIMENS[kind]
        content = damaged(draw.choice(originals[kind]), draw)
        place = folder / kind
        place.mkdir(exist_ok=True)
        path = place / f"some-images{specimen.suffix}"
        path.write_bytes(content)

        def read(path: Path = path, size: int = len(content), specimen: Any = specimen) -> None:
            check_valid(specimen.read(path), size)

        trial.one(f"{kind}, input {number}", read, path.name)
    return trial.figures(kinds=len(kinds))


def folders(count: int, seed: int, folder: Path) -> Figures:
    """Run folders with a few values of config.json replaced, or a file damaged and its sum made right."""
    from cdknet.explorer.cards import hints_of
    from cdknet.explorer.folder import open_run
    from cdknet.explorer.session import Session
    from cdknet.fit.codec import from_run
    from cdknet.runs.format import read_run
    from cdknet.runs.summary import confidence_sentence, mixture_sentence, summary

    draw, trial = random.Random(seed), Trial()
    runs = sorted(path for path in RUNS.iterdir() if path.is_dir())

    for number in tries(count):
        source = draw.choice(runs)
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        for path in source.iterdir():
            os.link(path, run / path.name)
        config = json.loads((source / "config.json").read_text())
        for _ in range(1 + int(draw.expovariate(1))):
            _change_value(config, draw)
        listed = config.get("files")
        if draw.random() < 0.5 and isinstance(listed, dict) and listed:
            config = json.loads((source / "config.json").read_text())
            name = draw.choice(sorted(config["files"]))
            content = _damaged_file(name, (source / name).read_bytes(), draw)
            (run / name).unlink()
            (run / name).write_bytes(content)
            entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            config["files"][name] = entry
        (run / "config.json").unlink()
        (run / "config.json").write_text(json.dumps(config))

        def read(run: Path = run) -> None:
            opened = read_run(run)
            facts = summary(opened)
            mixture_sentence(facts)
            if facts["confidence"] is not None:
                confidence_sentence(facts["confidence"], opened.n_new)
            hints_of(opened)
            session = Session(open_run(run), read_only=True)
            json.dumps([session.about(), session.state()], allow_nan=False)
            session.export("csv")
            try:
                from_run(opened)
            except ValueError as error:
                raise ValueError(f"{run}: {error}") from None  # it does not know the folder

        trial.one(f"{source.name}, input {number}", read, str(run))
    return trial.figures(runs=len(runs))


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        found.append((value, key))
        if isinstance(item, (dict, list)):
            _places(item, found)
    return found


def _change_value(config: dict[str, Any], draw: random.Random) -> None:
    places = _places(config, [])
    if not places:
        return
    inside, key = draw.choice(places)
    how = draw.randrange(4)
    if how == 0 and isinstance(inside, dict):
        del inside[key]
    elif how == 1:
        other, at = draw.choice(places)
        inside[key] = copy.deepcopy(other[at])
    else:
        inside[key] = copy.deepcopy(draw.choice(ODD))


def _damaged_file(name: str, content: bytes, draw: random.Random) -> bytes:
    """A file of a run, damaged: line by line if it is text, so that something of it is still read."""
    if name == "history.jsonl" and draw.random() < 0.7:
        lines = [json.loads(line) for line in content.splitlines()]
        _change_value({"rows": lines}, draw)
        return "".join(json.dumps(line) + "\n" for line in lines).encode()
    if name == "labels.csv" and draw.random() < 0.7:
        lines = content.decode().splitlines()
        at = draw.randrange(len(lines))
        cells = lines[at].split(",")
        odd = draw.choice(ODD)
        cells[draw.randrange(len(cells))] = str(odd)[:2000].encode("utf-8", "replace").decode()
        lines[at] = ",".join(cells)
        return "\n".join(lines).encode()
    return damaged(content, draw)


def journals(count: int, seed: int, folder: Path) -> Figures:
    """Journals of real actions, with values replaced, lines swapped, doubled or cut."""
    from cdknet.explorer.folder import open_run
    from cdknet.explorer.session import Session

    draw, trial = random.Random(seed), Trial()
    run = shutil.copytree(RUNS / "plus", folder / "run")
    opened = open_run(run)
    session = Session(opened)
    for action in (
        {"kind": "rename", "class": 4, "name": "tabby"},
        {"kind": "split", "class": 5, "k": 3},
        {"kind": "merge", "classes": [7], "into": 4},
        {"kind": "note", "class": 4, "text": "a note"},
        {"kind": "move", "samples": [0, 1, 2], "to": 5},
        {"kind": "move", "samples": [3, 4], "to": None, "name": "mine"},
        {"kind": "reject", "samples": [5, 6]},
        {"kind": "reject", "class": 8},
    ):
        session.act(session.revision, action)
    session.undo(session.revision)
    session.redo(session.revision)
    path = run / "review.jsonl"
    original = path.read_bytes()
    for number in tries(count):
        lines = [json.loads(line) for line in original.splitlines()]
        if draw.random() < 0.2:
            content = damaged(original, draw)
        else:
            for _ in range(1 + int(draw.expovariate(1))):
                _change_value({"lines": lines}, draw)
            if draw.random() < 0.3:
                a, b = draw.randrange(len(lines)), draw.randrange(len(lines))
                lines[a], lines[b] = lines[b], lines[a]
            content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        path.write_bytes(content)

        def read() -> None:
            again = Session(opened, read_only=True)
            json.dumps([again.about(), again.state(), again.past(0, 100)], allow_nan=False)
            again.export("json")

        trial.one(f"input {number}", read, path.name)
    return trial.figures()


MEASURE = """
import resource, sys
from pathlib import Path
from cdknet.data import open
import numpy, csv, cdknet.data.tables, cdknet.data.parquet, pyarrow.parquet
def mb(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = mb()
samples = open(sys.argv[1])
samples.X.sum()
print(mb() - before)
"""


def memory(count: int, seed: int, folder: Path) -> Figures:
    """Memory that a reader takes beyond its imports, for a large valid file of each kind that is not packed.

    Mapped files count in full, once they were read. `broken`: more than 3 x the file + 200 MB.
    """
    from specimens import SPECIMENS

    rng = np.random.default_rng(seed)
    most: dict[str, float] = {}
    broken: list[str] = []
    for kind in ("csv", "npy", "npz", "parquet", "idx", "text")[:count]:
        specimen = SPECIMENS[kind]
        X = rng.integers(0, 256, (20_000, 20, 20), dtype=np.uint8)
        path = folder / f"some-images{specimen.suffix}"
        specimen.make(path, X, np.zeros(len(X), np.int64))
        size = path.stat().st_size / 2**20
        done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True)
        taken = float(done.stdout) if done.returncode == 0 else float("inf")
        most[kind] = round((taken - 200) / size, 2) if taken > 200 else 0.0
        most[f"{kind}_mb"], most[f"{kind}_file_mb"] = round(taken), round(size)
        if taken > 3 * size + 200:
            broken.append(f"{kind}: {taken:.0f} MB for a file of {size:.0f} MB: {done.stderr[-200:]}")
        path.unlink()
    return {"kinds": min(count, 6), "beyond_200_mb": most, "broken": len(broken), "examples": broken}
