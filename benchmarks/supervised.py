"""Stage 1 alone: its accuracy on held-out samples of the old classes of each set.

    python benchmarks/supervised.py [SET ...] [--seeds 1] [--network small]

Shows that sets, readers and networks fit together. With the network of CD-KNet+ (`small`), it shows what a
plain classifier of the old classes reaches. Radio is scored per transmission (a vote of its slices) and per
slice. Each finished cell is a line in results/supervised.jsonl; run again to resume.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import torch

from bench import check_names, finished, start, study_parser
from cdknet import data
from cdknet.core.seeds import seeded
from cdknet.fit.pretrain import pretrain
from cdknet.inputs.arrays import Inputs, input_statistics
from cdknet.nets.architectures import build_network
from cdknet.nets.network import embed
from cdknet.options import SSCDOptions
from cdknet.radio import vote
from cdknet.runs.files import append_jsonl
from cdknet.training.context import FitContext
from cdknet.training.history import History
from cdknet.training.memory import keep_freed_memory
from cdknet.training.problem import Problem

# The maximum number of epochs; training stops when the validation samples no longer improve.
SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"pretrain_epochs": 60},
    "wifi-csi-30": {"pretrain_epochs": 40},
    "mnist": {"pretrain_epochs": 4},
    "fashion-mnist": {"pretrain_epochs": 8},
    "rf-50-sim": {"pretrain_epochs": 12, "learning_rate": 0.0004},
    "cifar-100": {"pretrain_epochs": 16},
}
WANTED = {"mnist": 0.99, "fashion-mnist": 0.93, "cifar-100": 0.40, "rf-50-sim": 0.85, "wifi-csi-30": 0.80}


def run_cell(name: str, seed: int, architecture: str) -> dict[str, Any]:
    """Train on the old classes of one set and score held-out samples of them."""
    dataset = data.load(name)
    new = dataset.new_classes(seed=seed)
    old = [c for c in range(len(dataset.class_names)) if c not in new]
    number = np.full(len(dataset.class_names), -1)
    number[old] = np.arange(len(old))
    problem = Problem.from_arrays(dataset.X_train, number[dataset.y_train])
    with seeded(seed):
        shape = problem.inputs.sample_shape
        statistics = input_statistics(problem.inputs)
        network = build_network(shape, len(old), architecture=architecture, statistics=statistics)
    options = SSCDOptions(**{"enough": 1.0, "patience": 3, **SETTINGS[name]})
    start = time.perf_counter()
    history = History([lambda row: print(f"  {row['epoch']:3} {row['validation_accuracy']:.4f}", flush=True)])
    trained = pretrain(network, problem, options, FitContext(seed=seed, history=history))
    seconds = time.perf_counter() - start

    rows = np.flatnonzero(np.isin(dataset.y_test, old))
    truth = number[dataset.y_test[rows]]
    logits = embed(trained.network, Inputs(dataset.X_test), torch.from_numpy(rows), normalize=False).logits
    cell = {"accuracy": float((logits.argmax(1).numpy() == truth).mean())}
    if dataset.groups_test is not None:
        groups = dataset.groups_test[rows]
        names, votes = vote(torch.log_softmax(logits.double(), dim=1).numpy(), groups)
        of_group = dict(zip(groups.tolist(), truth.tolist(), strict=True))
        right = votes.argmax(axis=1) == np.array([of_group[g] for g in names.tolist()])
        cell = {"accuracy": float(right.mean()), "by_slice": cell["accuracy"]}
    return {**cell, "epochs": len(history), "seconds": round(seconds)}


def main() -> None:
    parser = study_parser(__doc__, "supervised.jsonl", seeds=1, threads=None)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(SETTINGS)}")
    parser.add_argument("--network", choices=["auto", "small"], default="auto", help="auto: the paper's")
    arguments = start(parser)
    names = arguments.sets or list(SETTINGS)
    check_names(parser, "SET", names, SETTINGS)
    keep_freed_memory()
    cells = finished(arguments.results)
    for seed in range(arguments.seeds):
        for name in names:
            key = {"set": name, "seed": seed, "setting": SETTINGS[name], "network": arguments.network}
            cell = next((c for c in cells if all(c[k] == v for k, v in key.items())), None)
            if cell is None:
                print(f"{name}, seed {seed}", flush=True)
                cell = {**key, "cores": os.cpu_count(), **run_cell(name, seed, arguments.network)}
                append_jsonl(arguments.results, cell)
            slices = f" per transmission, {cell['by_slice']:.4f} per slice" if "by_slice" in cell else ""
            wanted = f" (wanted {WANTED[name]})" if name in WANTED else ""
            time_taken = f"{cell['epochs']} epochs, {cell['seconds']} s"
            print(f"{name}, seed {seed}: {cell['accuracy']:.4f}{slices}{wanted}, {time_taken}", flush=True)


if __name__ == "__main__":
    main()
