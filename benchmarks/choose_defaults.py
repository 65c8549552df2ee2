"""Choose defaults without any label of a new class: hide some of the *old* classes and discover them.

    python benchmarks/choose_defaults.py [SET] [--results FILE] [--only NAME ...]

- digits: three of the old classes 0-4 are hidden in turn (10 folds).
- MNIST and Fashion-MNIST: two of the five (4 of the 10 folds).
- The radio sets and CIFAR-100: two fifths of the old classes, drawn at random (2 folds).

A fifth of every class is held out, and each candidate is fitted. New classes and the test part are not used.
Each finished cell is a line in the results file; run again to resume.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np

from bench import finished, start, study_parser
from cdknet import ClassDiscovery, data
from cdknet.core.openworld import OpenWorldData
from cdknet.data import OpenWorldProblem, hide_classes
from cdknet.options import DEFAULT_METHOD, options_of
from cdknet.options import all_options as declared_options
from cdknet.runs.files import append_jsonl
from experiments.reproduce.plan import DATASETS
from experiments.reproduce.runner import PAPERS_PROTOCOL
from steps import compare

CANDIDATES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no heads": {"heads": 0},
    "no views": {"view_weight": 0.0},
    "no labels": {"label_weight": 0.0},
    "labels alone": {"view_weight": 0.0, "heads": 0},
    "views lead": {"lead": "views", "heads": 4},
    "labels lead": {"lead": "labels"},
    "lambda 1": {"label_weight": 1.0},
    "mu 1": {"view_weight": 1.0},
    "mu 10": {"view_weight": 10.0},
    "paper's terms": {"method": "cd-knet", "enough": 0.8},
}
# What the paper leaves open about its own method: stage 2 alone, with the epochs of the quick budget.
PAPER = {
    "method": "cd-knet",
    "expansion": "none",
    "pretrain_epochs": 8,
    "enough": 0.8,
    "patience": 2,
    "min_subsample": 0,
    "precision": "fastest",
}
PAPER_CANDIDATES: dict[str, dict[str, Any]] = {
    "paper": {},
    "paper, batch 256": {"discover_batch_size": 256},
    "paper, batch 64": {"discover_batch_size": 64},
    "paper, stage 1 to .97": {"enough": 0.97},
    "paper, stage 1 to the end": {"enough": 1.0},
    "paper, lambda 1, stage 1 to the end": {"label_weight": 1.0, "enough": 1.0},
    "paper, lambda 3, stage 1 to the end": {"label_weight": 3.0, "enough": 1.0},
    "paper, agreed cuts, stage 1 to the end": {"readout": "agreed", "enough": 1.0},
    "paper, free features": {"normalize_features": False},
    "paper, free, stage 1 to the end": {"normalize_features": False, "enough": 1.0},
    "paper, free, sigma 1": {"normalize_features": False, "sigma_scale": 1.0},
    "paper, free, batch 256": {"normalize_features": False, "discover_batch_size": 256},
    "paper, sigma .3": {"sigma_scale": 0.3},
    "paper, sigma 1": {"sigma_scale": 1.0},
    "paper, lambda 0": {"label_weight": 0.0},
    "paper, lambda 1": {"label_weight": 1.0},
    "paper, stage 2 at .0001": {"discover_learning_rate": 0.0001},
    "paper, stage 2 at .01": {"discover_learning_rate": 0.01},
}
CANDIDATES |= {name: PAPER | options for name, options in PAPER_CANDIDATES.items()}
PER_CLASS = 2000  # samples per class of the larger sets
SUBSAMPLE = {"mnist": 0.03, "fashion-mnist": 0.05}  # the paper's, of 6,000 per class
STEPS = ("pixels", "stage 1", "stage 2", "stage 3")  # held-out accuracy on hidden classes after each


def old_classes(dataset: str) -> tuple[OpenWorldData, np.ndarray]:
    """The training part of a set, and its old classes."""
    known = data.load(dataset).problem().train
    return known, np.unique(known.y[known.y >= 0])


def folds(dataset: str = "digits") -> list[tuple[Any, ...]]:
    """The classes hidden in each fold."""
    _, old = old_classes(dataset)
    if dataset == "digits":
        return list(itertools.combinations(old.tolist(), 3))
    if len(old) == 5:  # three remain: two are too few for a method that relies on old labels
        return [(3, 4), (0, 1), (1, 3), (0, 2)]
    orders = [np.random.default_rng(fold).permutation(old) for fold in range(2)]
    return [tuple(sorted(order[: round(0.4 * len(old))].tolist())) for order in orders]


def fold_problem(dataset: str, hidden: tuple[Any, ...], seed: int) -> OpenWorldProblem:
    """The problem of one fold, made of old classes only."""
    known, old = old_classes(dataset)
    rng = np.random.default_rng(seed)
    if dataset == "digits":
        rows = rng.permutation(np.flatnonzero(known.y >= 0))
    else:
        parts = [rng.permutation(np.flatnonzero(known.y == c))[:PER_CLASS] for c in old]
        rows = rng.permutation(np.concatenate(parts))
    X, y = np.asarray(known.X[rows]), known.y[rows]
    test, train = np.split(np.arange(len(X)), [len(X) // 5])
    seen, truth = hide_classes(X[train], y[train], hidden)
    return OpenWorldProblem(seen, truth, X[test], hide_classes(X[test], y[test], hidden)[1])


def chosen_options(dataset: str, name: str) -> dict[str, Any]:
    """The options of a candidate on a set."""
    options = CANDIDATES[name]
    if name.startswith("paper,") or name == "paper":
        share = SUBSAMPLE.get(dataset, 0.05) * (6000 / (0.8 * PER_CLASS) if dataset in SUBSAMPLE else 1)
        options = {"subsample": round(share, 4), **options}
    return options


def run_cell(dataset: str, options: dict[str, Any], hidden: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Fit one fold and score every stage on its held-out samples."""
    problem = fold_problem(dataset, hidden, seed)
    start = time.perf_counter()
    model = ClassDiscovery(n_new_classes=len(hidden), random_state=seed, **PAPERS_PROTOCOL, **options)
    result = compare(model.fit(problem.train.X, problem.train.y), problem)
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "old_before": result.old_before,
        "old_after": result.old_after,
        **{name: line.held_out.acc for name, line in zip(STEPS, result.lines, strict=True)},
    }


def report(cells: list[dict[str, Any]]) -> None:
    """Print the means over the folds, one row per candidate."""
    columns = [*STEPS, "old_before", "old_after"]
    print(f"{'candidate':26}" + "".join(f"{c:>12}" for c in columns) + "    worst fold")
    for name in CANDIDATES:
        mine = [cell for cell in cells if cell["candidate"] == name]
        if mine:
            means = "".join(f"{np.mean([cell[c] for cell in mine]):12.3f}" for c in columns)
            print(f"{name:26}{means}{min(cell['stage 3'] for cell in mine):14.3f}  ({len(mine)} folds)")


def all_options(given: dict[str, Any]) -> dict[str, Any]:
    """All options of a fit: the ones given, and defaults for the rest."""
    defaults = {name: one.default for name, one in declared_options().items()}
    params = {"method": DEFAULT_METHOD, "device": "auto", **defaults, "unlabelled": "new", **given}
    usual = options_of(params["method"]).get("readout")
    params["readout"] = params["readout"] or (usual.default if usual else "k-means")
    return {k: v for k, v in params.items() if isinstance(v, (int, float, str, bool))}


ONLY_PLUS = (
    "lead",
    "label_epochs",
    "view",
    "head",
    "collapse",
    "spectral",
    "expand_epochs",
    "replay",
)
ONLY_PAPER = ("sigma", "enough")
UNUSED = ("tune", "novelty")  # without a time budget nothing is tuned; `novelty` was an option once, off here


def relevant(options: dict[str, Any]) -> dict[str, Any]:
    """The options that affect a fit: the paper's method has no views and heads, ours no such kernel."""
    others = ONLY_PAPER if options["method"] == "cd-knet+" else ONLY_PLUS
    return {name: value for name, value in options.items() if not name.startswith((*others, *UNUSED))}


def current_cells(dataset: str, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells of a data set that were run with the present defaults.

    An option that was added later is missing from a cell. By default it has no effect.
    """

    def is_current(cell: dict[str, Any]) -> bool:
        if cell["dataset"] != dataset or cell["candidate"] not in CANDIDATES:
            return False
        now = all_options(chosen_options(dataset, cell["candidate"]))
        return all(now.get(name) == value for name, value in relevant(cell["options"]).items())

    return [cell for cell in cells if is_current(cell)]


def main() -> None:
    parser = study_parser(__doc__, "choose_defaults.jsonl")
    parser.add_argument("dataset", nargs="?", default="digits", choices=["digits", *DATASETS])
    parser.add_argument("--only", nargs="*", choices=list(CANDIDATES), default=list(CANDIDATES))
    arguments = start(parser)
    dataset = arguments.dataset
    cells = current_cells(dataset, finished(arguments.results))
    for name in arguments.only:
        options = chosen_options(dataset, name)
        done = {tuple(cell["hidden"]) for cell in cells if cell["candidate"] == name}
        for seed, hidden in enumerate(folds(dataset)):
            if hidden in done:
                continue
            key = {"dataset": dataset, "candidate": name, "hidden": list(hidden), "seed": seed}
            key["options"] = relevant(all_options(options))
            cells.append({**key, **run_cell(dataset, options, hidden, seed)})
            append_jsonl(arguments.results, cells[-1])
            scores = [f"{cells[-1][step]:.3f}" for step in STEPS]
            print(name, hidden, *scores, cells[-1]["seconds"], flush=True)
    report(cells)


if __name__ == "__main__":
    main()
