"""Does what finds hidden old classes best also find new ones best? `tune` against the outcome.

For random splits of the classes of a set, every candidate of `cdknet.tune` is scored on hidden old classes as
`tune="old-classes"` does, and then fitted to the whole problem and scored on held-out samples of the really
new classes. Those scores are for this report alone: nothing is chosen by them. A finished fit is a line in
the results file, which `cdknet reproduce page` reads; running again goes on where it stopped.

    python benchmarks/tune_study.py [SET ...] [--tables FOLDER] [--splits 4] [--results FILE]

With --tables, also the real tables in FOLDER (`benchmarks/tables.py` says which, and where they are had).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cdknet import ClassDiscovery, data
from cdknet.core.metrics import new_class_scores
from cdknet.data import OpenWorldProblem, hide_classes
from cdknet.fit.pipeline import Parts
from cdknet.inputs.labels import encode_labels
from cdknet.options import DiscoverOptions
from cdknet.reproduce.plan import VECTOR_CUTS
from cdknet.reproduce.runner import revision
from cdknet.reproduce.studies import tuning_table
from cdknet.runs.files import append_jsonl, read_jsonl
from cdknet.training.history import History
from cdknet.trust.rehearsal import plan_folds, rehearse, reread
from cdknet.trust.tune import CANDIDATES, distinct, only_cuts

from tables import SETS as ALL_TABLES
from tables import draw_table

SETS = ("digits", "wifi-csi-30", "mnist", "fashion-mnist")
FEW = ("satimage",)  # three old classes: none can be hidden
TABLES = tuple(name for name in ALL_TABLES if name not in FEW)
PER_CLASS = 1000  # training samples of a class of the larger sets
Line = dict[str, Any]
Params = Mapping[str, Any]


def draw_problem(name: str, split: int, tables: Path | None) -> OpenWorldProblem:
    """Classes hidden at random; of large sets a part, drawn of each old class, and of all new ones as one."""
    if name in TABLES:
        assert tables is not None
        return draw_table(tables / f"{name}.dat", split)
    dataset = data.load(name)
    new = dataset.new_classes("random", seed=split)
    rng = np.random.default_rng(split)
    hidden = np.isin(dataset.y_train, new)
    parts = [rng.permutation(np.flatnonzero(hidden))[: PER_CLASS * len(new)]]
    for c in np.unique(dataset.y_train[~hidden]):
        parts.append(rng.permutation(np.flatnonzero(dataset.y_train == c))[:PER_CLASS])
    rows = np.sort(np.concatenate(parts))
    train, truth = hide_classes(np.asarray(dataset.X_train[rows]), dataset.y_train[rows], new)
    _, test_truth = hide_classes(dataset.X_test, dataset.y_test, new)
    return OpenWorldProblem(train, truth, dataset.X_test, test_truth)


def groups(candidates: Mapping[str, Mapping[str, Any]], params: Mapping[str, Any]) -> list[list[str]]:
    """Candidates that learn the same features and only cut them otherwise, the first of each group first."""
    out: list[list[str]] = []
    for name, options in candidates.items():
        mine = {**params, **options}
        same = [group for group in out if only_cuts({**params, **candidates[group[0]]}, mine)]
        if same:
            same[0].append(name)
        else:
            out.append([name])
    return out


def rehearsed(problem: OpenWorldProblem, split: int, group: Mapping[str, Params]) -> dict[str, list[float]]:
    """Accuracies on hidden old classes, a number a fold, as `tune` finds them."""
    targets = encode_labels(problem.train.y, len(problem.train.y)).targets
    accuracies: dict[str, list[float]] = {name: [] for name in group}
    for fold in plan_folds(targets, problem.n_new_classes, folds=3, seed=split):
        first = None
        for name, params in group.items():
            if first is None:
                first = rehearse(
                    problem.train.X, targets, fold, params, Parts(), seed=split, history=History()
                )
                accuracies[name].append(first.accuracy)
            else:
                options = DiscoverOptions.pick(params)
                accuracies[name].append(reread(first, fold, options, seed=split).accuracy)
    return accuracies


def found(problem: OpenWorldProblem, split: int, params: Params, cache: Path) -> float:
    """Held-out accuracy on the really new classes."""
    model = ClassDiscovery(**{**params, "random_state": split, "calibrate": False, "stage_cache": cache})
    model.fit(problem.train.X, problem.train.y)
    n_old = len(model.classes_) - model.n_new_classes_
    among_new = model.classes_[n_old + model.predict_proba(problem.X_test)[:, n_old:].argmax(axis=1)]
    return float(new_class_scores(problem.test_truth, among_new).acc)


def lines_of(problem: OpenWorldProblem, name: str, split: int, done: set[str]) -> Iterator[Line]:
    """A line for each candidate that is not `done`, as they come."""
    defaults = ClassDiscovery(n_new_classes=problem.n_new_classes).get_params()
    old = len(np.unique(problem.train.y)) - 1
    candidates = distinct(CANDIDATES, defaults, problem.train.X.shape[1:], old)
    for names in groups(candidates, defaults):
        if done >= set(names):
            continue
        start = time.perf_counter()
        group = {candidate: {**defaults, **candidates[candidate]} for candidate in names}
        folds = rehearsed(problem, split, group)
        with tempfile.TemporaryDirectory() as cache:  # fits of a group share what they learn
            for candidate, params in group.items():
                yield {
                    "set": name,
                    "split": split,
                    "candidate": candidate,
                    "of": len(candidates),
                    "cuts": VECTOR_CUTS,
                    "rehearsed": [round(a, 4) for a in folds[candidate]],
                    "acc": round(found(problem, split, params, Path(cache)), 4),
                    "seconds": round(time.perf_counter() - start),
                    "revision": revision(),
                }
                start = time.perf_counter()


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(SETS + TABLES)}")
    parser.add_argument("--tables", type=Path, metavar="FOLDER")
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("results/tune_study.jsonl"))
    arguments = parser.parse_args()
    there = SETS if arguments.tables is None else SETS + TABLES
    unknown = [name for name in arguments.sets if name not in there]
    if unknown:
        parser.error(f"SET must be any of {', '.join(there)}. Got {unknown[0]}. For tables: --tables FOLDER.")
    torch.set_num_threads(arguments.threads)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    lines: list[Line] = []
    if arguments.results.exists():
        lines = [line for line in read_jsonl(arguments.results) if line.get("cuts") == VECTOR_CUTS]
    done = {(line["set"], line["split"], line["candidate"]) for line in lines}
    for split in range(arguments.splits):
        for name in arguments.sets or there:
            known = {candidate for one, number, candidate in done if (one, number) == (name, split)}
            problem = draw_problem(name, split, arguments.tables)
            for line in lines_of(problem, name, split, known):
                lines.append(line)
                append_jsonl(arguments.results, line)
                print(*line.values(), flush=True)
    print(tuning_table(lines))


if __name__ == "__main__":
    main()
