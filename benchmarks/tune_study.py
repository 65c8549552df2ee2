"""Does what finds hidden old classes best also find new ones best? `tune` against the outcome.

For random splits of the classes of a set, every candidate of `cdknet.tune` is scored on hidden old classes as
`tune="old-classes"` does, and then fitted to the whole problem and scored on held-out samples of the really
new classes. Those scores are for this report alone: nothing is chosen by them. A finished fit is a line in
the results file, which `cdknet reproduce page` reads; running again goes on where it stopped.

    python benchmarks/tune_study.py [SET ...] [--splits 4] [--results FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cdknet import ClassDiscovery, data
from cdknet.data import OpenWorldProblem, hide_classes
from cdknet.history import History
from cdknet.labels import encode_labels
from cdknet.metrics import new_class_scores
from cdknet.pipeline import Parts
from cdknet.reproduce.studies import tuning_table
from cdknet.tune import CANDIDATES, GIVEN, distinct, tune

SETS = ("digits", "wifi-csi-30", "mnist", "fashion-mnist")
PER_CLASS = 1000  # training samples of a class of the larger sets
Line = dict[str, Any]


def draw_problem(name: str, split: int) -> OpenWorldProblem:
    """Classes hidden at random; of large sets a part, drawn of each old class, and of all new ones as one."""
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


def rehearsed(problem: OpenWorldProblem, split: int, options: dict[str, Any]) -> list[float]:
    """Accuracies of one candidate on hidden old classes, a number a fold, as `tune` finds them."""
    report = tune(
        problem.train.X,
        encode_labels(problem.train.y, len(problem.train.y)).targets,
        ClassDiscovery(n_new_classes=problem.n_new_classes).get_params(),
        Parts(),
        seed=split,
        history=History(),
        candidates={GIVEN: options},
    )
    return list(report["tried"][0]["accuracies"])


def found(problem: OpenWorldProblem, split: int, options: dict[str, Any]) -> float:
    """Held-out accuracy on the really new classes."""
    model = ClassDiscovery(
        n_new_classes=problem.n_new_classes, random_state=split, calibrate=False, **options
    ).fit(problem.train.X, problem.train.y)
    n_old = len(model.classes_) - model.n_new_classes_
    among_new = model.classes_[n_old + model.predict_proba(problem.X_test)[:, n_old:].argmax(axis=1)]
    return float(new_class_scores(problem.test_truth, among_new).acc)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(SETS)}")
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("results/tune_study.jsonl"))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.sets if name not in SETS]
    if unknown:
        parser.error(f"SET must be any of {', '.join(SETS)}. Got {unknown[0]}.")
    torch.set_num_threads(arguments.threads)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    lines: list[Line] = []
    if arguments.results.exists():
        lines = [json.loads(line) for line in arguments.results.read_text().splitlines()]
    done = {(line["set"], line["split"], line["candidate"]) for line in lines}
    for split in range(arguments.splits):
        for name in arguments.sets or SETS:
            problem = draw_problem(name, split)
            old = len(np.unique(problem.train.y)) - 1
            candidates = distinct(CANDIDATES, ClassDiscovery().get_params(), problem.train.X.shape[1:], old)
            for candidate, options in candidates.items():
                if (name, split, candidate) in done:
                    continue
                start = time.perf_counter()
                line: Line = {"set": name, "split": split, "candidate": candidate, "of": len(candidates)}
                line["rehearsed"] = [round(a, 4) for a in rehearsed(problem, split, dict(options))]
                line["acc"] = round(found(problem, split, dict(options)), 4)
                line["seconds"] = round(time.perf_counter() - start)
                lines.append(line)
                with arguments.results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(name, split, candidate, line["rehearsed"], line["acc"], line["seconds"], flush=True)
    print(tuning_table(lines))


if __name__ == "__main__":
    main()
