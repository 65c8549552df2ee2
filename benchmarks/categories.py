"""Tables with categorical columns: does the method find the classes, or the categories?

Eight blobs in seven numbers, five of them known. The categorical columns next to the numbers are either
random or mostly follow the class. ACC is over the unlabelled samples of the fit, without stage 3. k-means
gets the same input as the network: standardised numbers, and categories as 0 and 1.

    python benchmarks/categories.py [--seeds 3] [--results FILE]

Each finished case is a line in the results file; run again to resume.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import finished, print_table, start, study_parser
from cdknet import ClassDiscovery
from cdknet.core.metrics import clustering_accuracy
from cdknet.runs.files import append_jsonl
from experiments.reproduce.plan import METHODS
from experiments.reproduce.runner import PAPERS_PROTOCOL

EQUAL, UNEQUAL = (80, 80, 80), (160, 60, 30)  # samples of the new classes
# Sizes of the new classes, number of values of each categorical column, how often it follows the class.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], float]] = {
    "numbers alone": (EQUAL, (), 0.0),
    "a flag at random": (EQUAL, (2,), 0.0),
    "one of three at random": (EQUAL, (3,), 0.0),
    "the same, new classes of 160, 60, 30": (UNEQUAL, (3,), 0.0),
    "twice one of five at random": (EQUAL, (5, 5), 0.0),
    "one of four, by the class 17 times in 20": (EQUAL, (4,), 0.85),
}
SHOWN = ("k-means", "cd-knet+")


def draw(case: str, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Samples, and the class of each: 0-4 are known."""
    sizes, categories, share = CASES[case]
    rng = np.random.default_rng(seed)
    centres, truth = 2.2 * rng.normal(size=(8, 7)), np.repeat(np.arange(8), [80] * 5 + list(sizes))
    numbers = centres[truth] + rng.normal(size=(len(truth), 7))
    columns = [(numbers - numbers.mean(axis=0)) / numbers.std(axis=0)]
    for values in categories:
        follows = rng.uniform(size=len(truth)) < share
        columns.append(np.eye(values)[np.where(follows, truth % values, rng.integers(0, values, len(truth)))])
    return np.hstack(columns), truth


def main() -> None:
    arguments = start(study_parser(__doc__, "categories.jsonl", seeds=3))
    accs = {(c["method"], c["case"], c["seed"]): c["acc"] for c in finished(arguments.results)}
    for seed in range(arguments.seeds):
        for case in CASES:
            X, truth = draw(case, seed)
            y = np.where(truth < 5, truth, -1)
            for method in SHOWN:
                if (method, case, seed) in accs:
                    continue
                model = ClassDiscovery(
                    n_new_classes=3, random_state=seed, **PAPERS_PROTOCOL, **METHODS[method]
                ).fit(X, y)
                acc = round(clustering_accuracy(truth[y < 0], model.labels_[y < 0]), 4)
                accs[method, case, seed] = acc
                append_jsonl(arguments.results, {"method": method, "case": case, "seed": seed, "acc": acc})
    rows = []
    for case in CASES:
        by_seed = [[accs[method, case, seed] for seed in range(arguments.seeds)] for method in SHOWN]
        rows.append([case, *(f"{np.mean(values):.3f} ({min(values):.3f})" for values in by_seed)])
    print_table(["next to the numbers", *SHOWN], rows)


if __name__ == "__main__":
    main()
