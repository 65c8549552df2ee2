"""New classes of unequal size: are they found? On hidden *old* classes of scikit-learn's digits, 0-4.

Three of them are hidden and reduced to different sizes, the other two are known. New digits are never used.
ACC is over the hidden samples of the fit.

    python benchmarks/unequal_classes.py [--seeds 2] [--results FILE]

Each finished fit is a line in the results file; run again to resume.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import finished, print_table, start, study_parser
from cdknet import ClassDiscovery, data
from cdknet.core.metrics import clustering_accuracy
from cdknet.runs.files import append_jsonl
from experiments.reproduce.plan import METHODS
from experiments.reproduce.runner import PAPERS_PROTOCOL

# The hidden classes, and the number of samples of each.
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
    """Samples, labels with -1 for hidden ones, and the true classes, which are old classes of the set."""
    known = data.load("digits").problem().train
    rng = np.random.default_rng(seed)
    sizes = dict(zip(hidden, CASES[hidden], strict=True))
    parts = [rng.permutation(np.flatnonzero(known.y == c))[: sizes.get(c)] for c in range(5)]  # None: all
    rows = np.sort(np.concatenate(parts))
    y = known.y[rows]
    return np.asarray(known.X[rows]), np.where(np.isin(y, hidden), -1, y), y


def main() -> None:
    arguments = start(study_parser(__doc__, "unequal_classes.jsonl", seeds=2))
    accs = {(c["method"], tuple(c["hidden"]), c["seed"]): c["acc"] for c in finished(arguments.results)}
    for seed in range(arguments.seeds):
        for hidden, sizes in CASES.items():
            X, y, truth = draw(hidden, seed)
            for name, options in SHOWN.items():
                if (name, hidden, seed) in accs:
                    continue
                model = ClassDiscovery(n_new_classes=3, random_state=seed, **PAPERS_PROTOCOL, **options)
                labels = model.fit(X, y).labels_[y < 0]
                acc = round(clustering_accuracy(truth[y < 0], labels), 4)
                accs[name, hidden, seed] = acc
                line = {"method": name, "hidden": hidden, "sizes": sizes, "seed": seed, "acc": acc}
                append_jsonl(arguments.results, line)
    rows = []
    for hidden, sizes in CASES.items():
        means = [np.mean([accs[name, hidden, seed] for seed in range(arguments.seeds)]) for name in SHOWN]
        case = ", ".join(f"{n} of {c}" for c, n in zip(hidden, sizes, strict=True))
        rows.append([case, *(f"{mean:.3f}" for mean in means)])
    print_table(["hidden", *SHOWN], rows)


if __name__ == "__main__":
    main()
