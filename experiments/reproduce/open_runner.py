"""Run cells on mixed unlabelled data: fit, score, write one JSON line each. A kill costs one cell.

Rivals that read the default's features are run right after its fit, each with a line of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdknet.core.openworld import UNLABELED, HiddenTruth, OpenWorldProblem, mix
from cdknet.data import load
from cdknet.runs.files import append_jsonl, plain, read_jsonl
from experiments.reproduce.open_plan import (
    DEFAULT,
    LABELLED,
    NEW_CLASSES,
    ON_FEATURES,
    ON_SAMPLES,
    OPEN_VERSION,
    SHARES,
    OpenCell,
)
from experiments.reproduce.runner import Watcher, circumstances, forget_peak, stage_seconds

Line = dict[str, Any]


def open_results_file(results: Path, dataset: str) -> Path:
    """The file that has the finished cells of a data set."""
    return results / "open" / f"{dataset}.jsonl"


def read_open_results(results: Path) -> dict[str, Line]:
    """Finished cells by key; the later of two lines with one key wins. `stale`: due to be run again."""
    found: dict[str, Line] = {}
    for path in sorted((results / "open").glob("*.jsonl")):
        for line in read_jsonl(path):
            found[line["key"]] = line | {"stale": is_stale(line)}
    return found


def is_stale(line: Mapping[str, Any]) -> bool:
    """Whether the plan has changed the options of a cell, or what no option records."""
    now = {name: plain(value) for name, value in OpenCell.of(line["cell"]).options.items()}
    return bool(line["options"] != now or line["version"] < OPEN_VERSION)


def run_open_cells(
    cells: Sequence[OpenCell],
    results: Path,
    cache: Path,
    watchers: Sequence[Watcher] = (),
    begin: Callable[[str], None] = lambda key: None,
) -> Iterator[tuple[OpenCell, Line]]:
    """Run the cells that are not in `results` yet and write each when done; calls `begin` before each."""
    done = read_open_results(results)
    for cell in cells:
        if done.get(cell.key, {"stale": True})["stale"]:
            begin(cell.key)
            for line in run_open_cell(cell, cache, watchers):
                append_jsonl(open_results_file(results, cell.dataset), line)
                done[line["key"]] = line | {"stale": False}
        yield cell, done[cell.key]


def run_open_cell(cell: OpenCell, cache: Path, watchers: Sequence[Watcher] = ()) -> Iterator[Line]:
    """The line of a cell; for the default, and for rivals on its features, also those of these rivals."""
    problem = mixed_problem(cell.dataset, cell.seed, cell.share)
    if cell.method in ON_SAMPLES:
        yield rival_line(cell, problem, problem.train.X)
        return
    forget_peak()
    start = time.perf_counter()
    features_only = cell.method in ON_FEATURES
    model = fit_cell(cell, problem, cache, watchers, features_only=features_only)
    seconds = time.perf_counter() - start
    if not features_only:
        yield fit_line(cell, problem, model, seconds)
    if cell.method == DEFAULT or features_only:
        z = model.transform(problem.train.X, stage="discover")
        for method in ON_FEATURES:
            yield rival_line(cell._replace(method=method), problem, z)


def fit_cell(
    cell: OpenCell,
    problem: OpenWorldProblem,
    cache: Path,
    watchers: Sequence[Watcher] = (),
    *,
    features_only: bool = False,
) -> Any:
    """The fitted model of a cell. `features_only` leaves out what comes after stage 2."""
    from cdknet.estimators import ClassDiscovery

    fewer = {"calibrate": False, "expansion": "none"} if features_only else {}
    return ClassDiscovery(
        **{**cell.options, **fewer},
        n_new_classes=problem.n_new_classes,
        random_state=cell.seed,
        stage_cache=cache / cell.dataset,
        watchers=watchers,
    ).fit(problem.train.X, problem.train.y)


@lru_cache(maxsize=1)
def mixed_problem(dataset: str, seed: int, share: str) -> OpenWorldProblem:
    """The mixed problem of a cell. Slices of one transmission keep or lose their labels together."""
    data = load(dataset)
    problem = data.problem(NEW_CLASSES.get(dataset, "paper"), seed=seed)
    return mix(problem, labelled=LABELLED, share=SHARES[share], seed=seed, groups=data.groups_train)


def fit_line(cell: OpenCell, problem: OpenWorldProblem, model: Any, seconds: float) -> Line:
    """Scores of a fit: on its unlabelled samples, and on held-out ones."""
    unlabelled, truth = _unlabelled(problem)
    old = model.classes_[: len(model.classes_) - model.n_new_classes_]
    labels = model.labels_[unlabelled]
    mixed = cell.options["unlabelled"] == "mixed"
    probabilities = model.predict_proba(problem.X_test)
    predicted = model.classes_[probabilities.argmax(axis=1)]
    line = _line(cell, problem) | {
        "unlabelled": scores(truth, labels, old, model.novelty_[unlabelled] if mixed else None),
        "held_out": scores(problem.test_truth, predicted, old, probabilities[:, len(old) :].sum(axis=1)),
    }
    if mixed:
        line["share"] = _share(truth, model)
        line["noise"] = int(model.noise_.sum())
    if cell.options["calibrate"]:
        line["confidence"] = confidence(truth, labels, old, model)
    return line | {
        "seconds": round(seconds, 3),  # stages from the cache cost nothing here
        "stage_seconds": stage_seconds(model),  # when they were trained
        **circumstances(),
    }


def rival_line(cell: OpenCell, problem: OpenWorldProblem, z: NDArray[Any]) -> Line:
    """Scores of a rival that labels the unlabelled samples by fixed features."""
    from experiments.reproduce.open_rivals import pim, ss_k_means, ss_k_means_on_samples

    rivals = {"ss-k-means-z": ss_k_means, "pim-z": pim, "ss-k-means": ss_k_means_on_samples}
    y = problem.train.y
    old = np.unique(y[y != UNLABELED])
    codes = np.where(y == UNLABELED, UNLABELED, np.searchsorted(old, y))
    forget_peak()
    start = time.perf_counter()
    found = rivals[cell.method](z, codes, len(old), problem.n_new_classes, cell.seed)
    seconds = time.perf_counter() - start
    names = np.concatenate([old, old.max() + 1 + np.arange(problem.n_new_classes)])
    unlabelled, truth = _unlabelled(problem)
    return _line(cell, problem) | {
        "unlabelled": scores(truth, names[found[unlabelled]], old, None),
        "held_out": None,
        "seconds": round(seconds, 3),  # without the fit whose features it reads
        **circumstances(),
    }


def scores(
    truth: HiddenTruth, labels: NDArray[Any], old: NDArray[Any], novelty: NDArray[np.floating] | None
) -> dict[str, Any]:
    """The scores of some labels: named accuracies, old against new, and GCD's under one match ("v2")."""
    from cdknet.core.metrics import mixed_report, open_world_report

    matched = open_world_report(truth, labels)
    return _rounded(mixed_report(truth, labels, novelty, old=old)._asdict()) | {
        "v2": _rounded({"all": matched.all, "old": matched.old, "new": matched.new})
    }


def confidence(
    truth: HiddenTruth, labels: NDArray[Any], old: NDArray[Any], model: Any
) -> dict[str, float | int | None]:
    """What the fit expects of itself against the truth, over all samples and over new classes.

    A new class is right if at least half of its samples are. `ranking` is the share of pairs of a right and a
    wrong class in which the right one is surer; None without such a pair.
    """
    from cdknet.core.metrics import confidence_scores, named_right

    right = named_right(truth.y, labels, old)
    new = model.classes_[len(old) :]
    found = np.isin(new, labels)
    right_classes = np.array([right[labels == c].mean() >= 0.5 for c in new[found]], dtype=bool)
    sure = model.class_confidence_[found]
    ranking = confidence_scores(right_classes, sure).ranking if len(sure) else None
    return {
        **_rounded({"expected": model.overall_confidence_, "right": float(right.mean()), "ranking": ranking}),
        "right_classes": int(right_classes.sum()),
        "wrong_classes": int((~right_classes).sum()),
    }


def _share(truth: HiddenTruth, model: Any) -> dict[str, float | bool | None]:
    """The true share of old samples among the unlabelled ones, and the one found with its 90 % interval."""
    true, (low, high) = float((~truth.is_new).mean()), model.old_share_interval_
    found = _rounded({"true": true, "found": model.old_share_, "low": low, "high": high})
    return found | {"holds": bool(low <= true <= high)}


def _unlabelled(problem: OpenWorldProblem) -> tuple[NDArray[np.bool_], HiddenTruth]:
    """(n,) which samples of the fit are unlabelled, and their truth."""
    rows = problem.train.y == UNLABELED
    return rows, HiddenTruth(problem.train_truth.y[rows], problem.train_truth.new_classes)


def _line(cell: OpenCell, problem: OpenWorldProblem) -> Line:
    """What every line begins with."""
    unlabelled = int((problem.train.y == UNLABELED).sum())
    return {
        "key": cell.key,
        "cell": cell._asdict(),
        "options": {name: plain(value) for name, value in cell.options.items()},
        "version": OPEN_VERSION,
        "new_classes": [str(c) for c in problem.train_truth.new_classes],
        "samples": {"labelled": len(problem.train.y) - unlabelled, "unlabelled": unlabelled},
    }


def _rounded(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(float(value), 5) for name, value in values.items()}
