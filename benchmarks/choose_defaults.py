"""Choose defaults without a label of a new class: hide some of the *old* digits and discover them.

Of the digits 0-4 of the demonstration's training part, three are hidden in turn (10 ways), a fifth of
every class is held out, and each candidate is fitted. Digits 5-9 and the demonstration's test part are
never looked at. A finished cell is a line in the results file; running again goes on where it stopped.

    python benchmarks/choose_defaults.py [--results FILE] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cdknet import ClassDiscovery, data
from cdknet.data import OpenWorldProblem, hide_classes
from cdknet.demo import compare

CANDIDATES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no heads": {"heads": 0},
    "no views": {"view_weight": 0.0},
    "no U": {"spectral_weight": 0.0},
    "no labels": {"label_weight": 0.0},
    "paper's terms": {"method": "cd-knet"},
    "paper, stage 1 50 ep": {"method": "cd-knet", "pretrain_epochs": 50, "early_stopping": False},
    "paper, free features": {"method": "cd-knet", "normalize_features": False},
    "lambda 1": {"label_weight": 1.0},
    "mu 1": {"view_weight": 1.0},
    "mu 10": {"view_weight": 10.0},
    "gamma 0.3": {"collapse_weight": 0.3},
    "gamma 3": {"collapse_weight": 3.0},
}


STEPS = ("pixels", "stage 1", "stage 2", "stage 3")  # held-out accuracy on hidden classes after each


def folds() -> list[tuple[int, ...]]:
    """The classes hidden in each fold."""
    return list(itertools.combinations(range(5), 3))


def fold_problem(hidden: tuple[int, ...], seed: int) -> OpenWorldProblem:
    known = data.load("digits").problem().train
    labelled = known.y >= 0
    X, y = known.X[labelled], known.y[labelled]
    order = np.random.default_rng(seed).permutation(len(X))
    test, train = order[: len(X) // 5], order[len(X) // 5 :]
    seen, truth = hide_classes(X[train], y[train], hidden)
    return OpenWorldProblem(seen, truth, X[test], hide_classes(X[test], y[test], hidden)[1])


def run_cell(options: dict[str, Any], hidden: tuple[int, ...], seed: int) -> dict[str, Any]:
    problem = fold_problem(hidden, seed)
    start = time.perf_counter()
    model = ClassDiscovery(n_new_classes=len(hidden), random_state=seed, calibrate=False, **options)
    result = compare(model.fit(problem.train.X, problem.train.y), problem)
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "old_before": result.old_before,
        "old_after": result.old_after,
        **{name: line.held_out.acc for name, line in zip(STEPS, result.lines, strict=True)},
    }


def report(cells: list[dict[str, Any]]) -> None:
    columns = [*STEPS, "old_before", "old_after"]
    print(f"{'candidate':22}" + "".join(f"{c:>14}" for c in columns) + "    worst fold")
    for name in CANDIDATES:
        mine = [cell for cell in cells if cell["candidate"] == name]
        if mine:
            means = "".join(f"{np.mean([cell[c] for cell in mine]):14.3f}" for c in columns)
            print(f"{name:22}{means}{min(cell['stage 3'] for cell in mine):14.3f}  ({len(mine)} folds)")


def default_options() -> dict[str, Any]:
    params = ClassDiscovery().get_params()
    return {k: v for k, v in params.items() if isinstance(v, (int, float, str, bool))}


def current_cells(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells that were run with the defaults as they are now."""
    defaults = default_options()
    return [c for c in cells if c["options"] == {**defaults, **CANDIDATES.get(c["candidate"], {})}]


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--results", type=Path, default=Path("results/choose_defaults.jsonl"))
    parser.add_argument("--only", nargs="*", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.results.read_text().splitlines() if arguments.results.exists() else []
    cells = current_cells([json.loads(line) for line in lines])
    for name in arguments.only:
        options = {**default_options(), **CANDIDATES[name]}
        done = {tuple(cell["hidden"]) for cell in cells if cell["candidate"] == name}
        for seed, hidden in enumerate(folds()):
            if hidden in done:
                continue
            key = {"candidate": name, "hidden": list(hidden), "seed": seed, "options": options}
            cells.append({**key, **run_cell(CANDIDATES[name], hidden, seed)})
            with arguments.results.open("a") as file:
                file.write(json.dumps(cells[-1]) + "\n")
        print(f"{name} done", flush=True)
    report(cells)


if __name__ == "__main__":
    main()
