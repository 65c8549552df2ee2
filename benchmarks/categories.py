"""Tables with categories: are the classes found, or the categories? On blobs in seven numbers.

Eight blobs, five of them known, beside categories that say nothing of the blob, or much. ACC is of the
unlabelled samples of the fit, without stage 3; k-means has the numbers standardised and the categories as 0
and 1, which is what the network has. A finished case is a line in the results file; running again goes on
where it stopped.

    python benchmarks/categories.py [--seeds 3] [--results FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cdknet import ClassDiscovery
from cdknet.core.metrics import clustering_accuracy
from cdknet.reproduce.plan import METHODS

EQUAL, UNEQUAL = (80, 80, 80), (160, 60, 30)  # samples of the new classes
# Sizes of the new classes, values of each category, and how often a category follows the class.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], float]] = {
    "numbers alone": (EQUAL, (), 0.0),
    "a flag at random": (EQUAL, (2,), 0.0),
    "one of three at random": (EQUAL, (3,), 0.0),
    "the same, new classes of 160, 60, 30": (UNEQUAL, (3,), 0.0),
    "twice one of five at random": (EQUAL, (5, 5), 0.0),
    "one of four, by the class 17 times in 20": (EQUAL, (4,), 0.85),
}


def draw(case: str, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Samples, and the class of each: 0-4 are known."""
    sizes, categories, told = CASES[case]
    rng = np.random.default_rng(seed)
    centres, truth = 2.2 * rng.normal(size=(8, 7)), np.repeat(np.arange(8), [80] * 5 + list(sizes))
    numbers = centres[truth] + rng.normal(size=(len(truth), 7))
    columns = [(numbers - numbers.mean(axis=0)) / numbers.std(axis=0)]
    for values in categories:
        follows = rng.uniform(size=len(truth)) < told
        columns.append(np.eye(values)[np.where(follows, truth % values, rng.integers(0, values, len(truth)))])
    return np.hstack(columns), truth


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("results/categories.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    kept = arguments.results.read_text().splitlines() if arguments.results.exists() else []
    cells = {(c["method"], c["case"], c["seed"]): c["acc"] for c in map(json.loads, kept)}
    shown = ("k-means", "cd-knet+")
    for seed in range(arguments.seeds):
        for case in CASES:
            X, truth = draw(case, seed)
            y = np.where(truth < 5, truth, -1)
            for method in shown:
                if (method, case, seed) in cells:
                    continue
                model = ClassDiscovery(
                    n_new_classes=3, random_state=seed, calibrate=False, **METHODS[method]
                ).fit(X, y)
                acc = round(clustering_accuracy(truth[y < 0], model.labels_[y < 0]), 4)
                cells[method, case, seed] = acc
                with arguments.results.open("a") as file:
                    file.write(json.dumps({"method": method, "case": case, "seed": seed, "acc": acc}) + "\n")
    print("| beside the numbers | " + " | ".join(shown) + " |\n|---|" + "---:|" * len(shown))
    for case in CASES:
        each = [[cells[method, case, seed] for seed in range(arguments.seeds)] for method in shown]
        print(f"| {case} | " + " | ".join(f"{np.mean(of):.3f} ({min(of):.3f})" for of in each) + " |")


if __name__ == "__main__":
    main()
