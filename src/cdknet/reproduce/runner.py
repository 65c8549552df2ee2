"""Filling cells: fit, score, one JSON line each. Finished cells are skipped, so a kill costs one cell."""

from __future__ import annotations

import io
import os
import platform
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import cdknet
from cdknet.data import OpenWorldProblem, load
from cdknet.reproduce.plan import TABLES, Cell
from cdknet.runs.files import append_jsonl, plain, read_jsonl, replace_file
from cdknet.training.history import Watcher

Lines = Mapping[str, Mapping[str, Any]]  # finished cells by key


def results_file(results: Path, dataset: str) -> Path:
    """Where the cells of a data set are kept."""
    return results / "reproduce" / f"{dataset}.jsonl"


def read_results(results: Path) -> dict[str, dict[str, Any]]:
    """Finished cells by key; of two lines with one key the later holds. `stale`: made with other options."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((results / "reproduce").glob("*.jsonl")):
        for line in read_jsonl(path):
            found[line["key"]] = line | {"stale": is_stale(line)}
    return found


def is_stale(line: Mapping[str, Any]) -> bool:
    """Whether it is to be run again: the plan has set other options since, it is cut otherwise (`CUTS`), or
    it has no stage 3 and its labels are not those of stage 2, as they once were not.
    """
    cell = Cell.of(line["cell"])
    now = {name: plain(value) for name, value in cell.options.items()}
    others = any(line["options"].get(name) != value for name, value in now.items())
    relabelled = cell.options.get("expansion") == "none" and line["train"] != line["train_before"]
    return others or relabelled or cell.cuts > line.get("cuts", 1)


def seeds_of(lines: Lines, cell: Cell) -> list[Mapping[str, Any]]:
    """The lines of a cell over all seeds, by seed; stale ones only where they are most of them."""
    keys = [cell._replace(seed=seed).key for seed in range(100)]
    found = [lines[key] for key in keys if key in lines]
    fresh = [line for line in found if not line.get("stale")]
    return fresh if 2 * len(fresh) >= len(found) else found


def run_cells(
    cells: Sequence[Cell],
    results: Path,
    cache: Path,
    watchers: Sequence[Watcher] = (),
    begin: Callable[[str], None] = lambda key: None,
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Run the cells that are not in `results` yet, writing each as it is done. `begin` hears of each."""
    done = read_results(results)
    for cell in cells:
        if done.get(cell.key, {"stale": True})["stale"]:
            begin(cell.key)
            line, model = run_cell(cell, cache, watchers)
            if cell in TABLES["fig3"].cells(budget=cell.budget):
                _keep_map(cell, model, map_file(results, cell))
            append_jsonl(results_file(results, cell.dataset), line)
            done[cell.key] = line | {"stale": False}
        yield cell, done[cell.key]


def run_cell(cell: Cell, cache: Path, watchers: Sequence[Watcher] = ()) -> tuple[dict[str, Any], Any]:
    """Fit one cell and score it on the new classes: unlabelled samples of the fit, and held-out ones.

    The line to keep, and the fitted model.
    """
    import torch

    from cdknet.core.metrics import new_class_scores, old_class_accuracy, open_world_report
    from cdknet.estimators import ClassDiscovery

    problem = open_problem(cell.dataset, cell.seed, cell.split)
    _forget_peak()
    start = time.perf_counter()
    model = ClassDiscovery(
        **{"calibrate": False, **cell.options},  # no part of what the paper's tables compare
        n_new_classes=problem.n_new_classes,
        random_state=cell.seed,
        stage_cache=cache / cell.dataset,
        watchers=watchers,
    ).fit(problem.train.X, problem.train.y)
    seconds = time.perf_counter() - start

    n_old = len(model.classes_) - model.n_new_classes_
    probabilities = model.predict_proba(problem.X_test)
    among_new = model.classes_[n_old + probabilities[:, n_old:].argmax(axis=1)]
    among_old = model.classes_[probabilities[:, :n_old].argmax(axis=1)]
    predicted = model.classes_[probabilities.argmax(axis=1)]
    stage_2 = np.full(len(problem.train.X), -1)
    stage_2[~model.given_] = model.pseudo_labels_
    world = open_world_report(problem.test_truth, predicted)
    by_stage: dict[str, float] = {}
    for row in model.history_:
        by_stage[row["stage"]] = by_stage.get(row["stage"], 0.0) + row["seconds"]
    line = {
        "key": cell.key,
        "new_classes": [str(c) for c in problem.test_truth.new_classes],
        "cell": cell._asdict() | {"changes": {k: plain(v) for k, v in cell.changes}},
        "options": {k: plain(v) for k, v in cell.options.items()},
        "cuts": cell.cuts,
        "precision": model.chosen_["precision"],
        "train": _rounded(new_class_scores(problem.train_truth, model.labels_)._asdict()),
        "test": _rounded(new_class_scores(problem.test_truth, among_new)._asdict()),
        "train_before": _rounded(new_class_scores(problem.train_truth, stage_2)._asdict()),
        "old_before": _stage_1_accuracy(model, problem),
        "old_after": old_class_accuracy(problem.test_truth, predicted),
        "old_among_old": old_class_accuracy(problem.test_truth, among_old),
        "open_world": {"all": world.all, "old": world.old, "new": world.new},
        "epochs": {stage: sum(r["stage"] == stage for r in model.history_) for stage in by_stage},
        "seconds": round(seconds, 3),  # stages taken from the cache cost nothing here
        "stage_seconds": {k: round(v, 1) for k, v in by_stage.items()},  # when they were trained
        "peak_memory_mb": _peak_memory(),
        "revision": revision(),
        "versions": {"cdknet": cdknet.__version__, "torch": torch.__version__},
        "machine": f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, {platform.machine()}",
        "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }
    return line, model


def map_file(results: Path, cell: Cell) -> Path:
    """Where the 2-D map of a cell of Fig. 3 is kept."""
    return results / "reproduce" / "maps" / f"{cell.dataset}-{cell.method}-{cell.budget}.npz"


def _keep_map(cell: Cell, model: Any, path: Path) -> None:
    """The embedding of 3,000 held-out samples in the plane, with their true classes."""
    from cdknet.runs.figures import map_2d

    problem = open_problem(cell.dataset, cell.seed, cell.split)
    draw = np.random.default_rng(0).permutation(len(problem.X_test))[:3000]
    places = map_2d(model.transform(problem.X_test[draw]))
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        map=places.astype(np.float16),
        truth=problem.test_truth.y[draw].astype(np.uint8),
        is_new=problem.test_truth.is_new[draw],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, buffer.getvalue())


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 5) for name, value in values.items()}


@lru_cache(maxsize=1)
def open_problem(dataset: str, seed: int, split: int | None = None) -> OpenWorldProblem:
    """The paper's split; where that drew classes at random (radio), `seed` draws them. Or a random one."""
    if split is None:
        return load(dataset).problem("paper", seed=seed)
    return load(dataset).problem("random", seed=split)


def _stage_1_accuracy(model: Any, problem: OpenWorldProblem) -> float | None:
    """Held-out accuracy on old classes before anything was discovered; None where nothing was trained."""
    from cdknet.core.metrics import old_class_accuracy
    from cdknet.inputs.arrays import Inputs
    from cdknet.nets.network import Projection, embed

    network = model.stage_networks_.get("pretrain")
    if network is None or isinstance(network, Projection):
        return None
    logits = embed(network, Inputs(problem.X_test), normalize=False).logits
    return old_class_accuracy(problem.test_truth, model.classes_[logits.argmax(dim=1).numpy()])


def _forget_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory() -> int:
    """Most megabytes this process held at once, since `_forget_peak` where the system can forget."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def revision() -> str | None:
    """The commit of the source tree that runs, with + where it was changed since."""
    here = Path(__file__).parent
    try:
        git = ["git", "-C", str(here)]
        name = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            [*git, "status", "--porcelain", "-uno", "--", str(here.parent)], capture_output=True
        )
        return name.stdout.strip() + ("+" if changed.stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return None
