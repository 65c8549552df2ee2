"""How well stage 1 alone learns the old classes of each set, on held-out samples of these classes.

    python benchmarks/supervised.py [SET ...] [--seeds 1] [--network small]

Shows that sets, readers and networks fit together and, with the network of CD-KNet+ (`small`), what a plain
classifier of the old classes alone reaches with it. A finished cell is a line in results/supervised.jsonl;
running again goes on where it stopped. Radio is scored by transmission (vote of its slices) and by slice.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cdknet import data
from cdknet.core.seeds import seeded
from cdknet.fit.pipeline import keep_freed_memory
from cdknet.fit.pretrain import pretrain
from cdknet.inputs.arrays import Inputs, input_statistics
from cdknet.nets.architectures import build_network
from cdknet.nets.network import embed
from cdknet.options import PretrainOptions
from cdknet.radio import vote
from cdknet.training.history import History
from cdknet.training.problem import Problem

# Epochs at most; training stops when held-out old samples of the training part stop getting better.
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
    options = PretrainOptions(**{"enough": 1.0, "patience": 3, **SETTINGS[name]})
    start = time.perf_counter()
    history = History([lambda row: print(f"  {row['epoch']:3} {row['validation_accuracy']:.4f}", flush=True)])
    trained = pretrain(network, problem, options, seed=seed, history=history)
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
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(SETTINGS)}")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--network", choices=["auto", "small"], default="auto", help="auto: the paper's")
    parser.add_argument("--results", type=Path, default=Path("results/supervised.jsonl"))
    arguments = parser.parse_args()
    names = arguments.sets or list(SETTINGS)
    unknown = [name for name in names if name not in SETTINGS]
    if unknown:
        parser.error(f"SET must be one of {', '.join(SETTINGS)}. Got {unknown[0]}.")
    keep_freed_memory()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.results.read_text().splitlines() if arguments.results.exists() else []
    cells = [json.loads(line) for line in lines]
    for seed in range(arguments.seeds):
        for name in names:
            key = {"set": name, "seed": seed, "setting": SETTINGS[name], "network": arguments.network}
            cell = next((c for c in cells if all(c[k] == v for k, v in key.items())), None)
            if cell is None:
                print(f"{name}, seed {seed}", flush=True)
                cell = {**key, "cores": os.cpu_count(), **run_cell(name, seed, arguments.network)}
                with arguments.results.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
            slices = f" by transmission, {cell['by_slice']:.4f} by slice" if "by_slice" in cell else ""
            wanted = f" (wanted {WANTED[name]})" if name in WANTED else ""
            time_taken = f"{cell['epochs']} epochs, {cell['seconds']} s"
            print(f"{name}, seed {seed}: {cell['accuracy']:.4f}{slices}{wanted}, {time_taken}", flush=True)


if __name__ == "__main__":
    main()
