"""Do the options that find hidden old classes best also find new ones best? `tune` against the outcome.

    python benchmarks/tune_study.py [SET ...] [--tables FOLDER] [--splits 4] [--results FILE]

For random splits of the classes of a set, every candidate of `tune` is scored on hidden old classes, as
`tune="old-classes"` does. It is then fitted to the whole problem and scored on held-out samples of the really
new classes. Those scores are for this report alone: nothing is chosen by them.

With --tables, also on the real tables in FOLDER (see `benchmarks/tables.py`). Each finished fit is a line in
the results file, which `cdknet reproduce page` reads; run again to resume.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench import check_names, finished, start, study_parser
from cdknet import ClassDiscovery, data
from cdknet.core.metrics import new_class_scores
from cdknet.data import OpenWorldProblem, hide_classes
from cdknet.inputs.labels import encode_labels
from cdknet.runs.files import append_jsonl
from cdknet.training.context import FitContext
from cdknet.trust.rehearsal import plan_folds, recluster, rehearse
from cdknet.trust.tune import CANDIDATES, Trial, distinct, only_clusters
from experiments.reproduce.plan import VECTOR_VERSION
from experiments.reproduce.runner import PAPERS_PROTOCOL, predict, revision
from experiments.reproduce.studies import tuning_table

from tables import SETS as ALL_TABLES
from tables import draw_table

SETS = ("digits", "wifi-csi-30", "mnist", "fashion-mnist")
FEW = ("satimage",)  # has three old classes: none of them can be hidden
TABLES = tuple(name for name in ALL_TABLES if name not in FEW)
PER_CLASS = 1000  # training samples per class of the larger sets
Line = dict[str, Any]
Params = Mapping[str, Any]


def draw_problem(name: str, split: int, tables: Path | None) -> OpenWorldProblem:
    """Hide classes at random. Large sets are subsampled: each old class, and all new classes together."""
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


def groups(trials: Mapping[str, Trial]) -> list[list[str]]:
    """Candidates that learn the same features and differ only in their clustering."""
    out: list[list[str]] = []
    for name, trial in trials.items():
        same = [group for group in out if only_clusters(trials[group[0]].plan, trial.plan)]
        if same:
            same[0].append(name)
        else:
            out.append([name])
    return out


def rehearsed(problem: OpenWorldProblem, split: int, group: Mapping[str, Trial]) -> dict[str, list[float]]:
    """Accuracies on hidden old classes, one per fold, as `tune` measures them."""
    targets = encode_labels(problem.train.y, len(problem.train.y)).targets
    accuracies: dict[str, list[float]] = {name: [] for name in group}
    for fold in plan_folds(targets, problem.n_new_classes, folds=3, seed=split):
        first = None
        for name, trial in group.items():
            if first is None:
                first = rehearse(problem.train.X, targets, fold, trial.plan, FitContext(seed=split))
                accuracies[name].append(first.accuracy)
            else:
                accuracies[name].append(recluster(first, fold, trial.plan, split).accuracy)
    return accuracies


def held_out_acc(problem: OpenWorldProblem, split: int, params: Params, cache: Path) -> float:
    """Held-out accuracy on the really new classes."""
    model = ClassDiscovery(**{**params, **PAPERS_PROTOCOL, "random_state": split, "stage_cache": cache})
    model.fit(problem.train.X, problem.train.y)
    return float(new_class_scores(problem.test_truth, predict(model, problem.X_test).among_new).acc)


def lines_of(problem: OpenWorldProblem, name: str, split: int, done: set[str]) -> Iterator[Line]:
    """One line for each candidate that is not `done`."""
    defaults = ClassDiscovery(n_new_classes=problem.n_new_classes, unlabelled="new").checked_params()
    old = len(np.unique(problem.train.y)) - 1
    trials = distinct(CANDIDATES, defaults, problem.train.X.shape[1:], old, FitContext())
    for names in groups(trials):
        if done >= set(names):
            continue
        start = time.perf_counter()
        group = {candidate: trials[candidate] for candidate in names}
        folds = rehearsed(problem, split, group)
        with tempfile.TemporaryDirectory() as cache:  # fits of a group share their features
            for candidate, trial in group.items():
                params = {**defaults, **trial.changes}
                yield {
                    "set": name,
                    "split": split,
                    "candidate": candidate,
                    "of": len(trials),
                    "cuts": VECTOR_VERSION,
                    "rehearsed": [round(a, 4) for a in folds[candidate]],
                    "acc": round(held_out_acc(problem, split, params, Path(cache)), 4),
                    "seconds": round(time.perf_counter() - start),
                    "revision": revision(),
                }
                start = time.perf_counter()


def main() -> None:
    parser = study_parser(__doc__, "tune_study.jsonl")
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(SETS + TABLES)}")
    parser.add_argument("--tables", type=Path, metavar="FOLDER")
    parser.add_argument("--splits", type=int, default=4)
    arguments = start(parser)
    there = SETS if arguments.tables is None else SETS + TABLES
    check_names(parser, "SET", arguments.sets, there, " For tables: --tables FOLDER.")
    lines = [line for line in finished(arguments.results) if line.get("cuts") == VECTOR_VERSION]
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
