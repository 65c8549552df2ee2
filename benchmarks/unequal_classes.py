"""New classes of unequal size: are they found? On hidden *old* classes of scikit-learn's digits, 0-4.

Three of them are hidden and cut down to different sizes, the other two are known; new digits are never looked
at. ACC is of the hidden samples of the fit. A finished fit is a line in the results file; running again goes
on where it stopped.

    python benchmarks/unequal_classes.py [--seeds 2] [--results FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cdknet import ClassDiscovery, data
from cdknet.core.metrics import clustering_accuracy
from cdknet.reproduce.plan import METHODS

# Which are hidden, and how many of each.
CASES = {
    (0, 1, 3): (140, 140, 140),
    (0, 1, 2): (140, 30, 30),
    (1, 3, 4): (140, 40, 40),
    (2, 3, 4): (40, 140, 40),
    (0, 2, 3): (30, 60, 140),
    (1, 2, 4): (60, 140, 90),
}
SHOWN = {
    "k-means": METHODS["k-means"],
    "spectral": METHODS["spectral"],
    "cd-knet": METHODS["cd-knet"],
    "cd-knet+, clusters by k-means": {**METHODS["cd-knet+"], "readout": "k-means"},
    "cd-knet+": METHODS["cd-knet+"],
}


def draw(hidden: tuple[int, ...], seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Samples, labels with -1 for hidden ones, and the truth, which is of old classes of the set."""
    known = data.load("digits").problem().train
    rng = np.random.default_rng(seed)
    sizes = dict(zip(hidden, CASES[hidden], strict=True))
    parts = [rng.permutation(np.flatnonzero(known.y == c))[: sizes.get(c)] for c in range(5)]  # None: all
    rows = np.sort(np.concatenate(parts))
    y = known.y[rows]
    return np.asarray(known.X[rows]), np.where(np.isin(y, hidden), -1, y), y


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("results/unequal_classes.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    kept = arguments.results.read_text().splitlines() if arguments.results.exists() else []
    cells = {(c["method"], tuple(c["hidden"]), c["seed"]): c for c in map(json.loads, kept)}
    for seed in range(arguments.seeds):
        for hidden, sizes in CASES.items():
            X, y, truth = draw(hidden, seed)
            for name, options in SHOWN.items():
                if (name, hidden, seed) in cells:
                    continue
                model = ClassDiscovery(n_new_classes=3, random_state=seed, calibrate=False, **options)
                labels = model.fit(X, y).labels_[y < 0]
                cell = {"method": name, "hidden": hidden, "sizes": sizes, "seed": seed}
                cell["acc"] = round(clustering_accuracy(truth[y < 0], labels), 4)
                cells[name, hidden, seed] = cell
                with arguments.results.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
    print("\n| hidden | " + " | ".join(SHOWN) + " |\n|---|" + "---:|" * len(SHOWN))
    for hidden, sizes in CASES.items():
        means = [np.mean([cells[m, hidden, s]["acc"] for s in range(arguments.seeds)]) for m in SHOWN]
        what = ", ".join(f"{n} of {c}" for c, n in zip(hidden, sizes, strict=True))
        print(f"| {what} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")


if __name__ == "__main__":
    main()
