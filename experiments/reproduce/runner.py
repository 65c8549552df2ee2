"""Run cells: fit, score, write one JSON line each. Finished cells are skipped: a kill costs one cell."""

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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import cdknet
from cdknet.data import OpenWorldProblem, load
from cdknet.runs.files import append_jsonl, plain, read_jsonl, replace_file
from experiments.reproduce.open_plan import OpenCell
from experiments.reproduce.plan import TABLES, Cell

ROOT = Path(__file__).parents[2]
Lines = Mapping[str, Mapping[str, Any]]  # finished cells by key
Watcher = Callable[[dict[str, Any]], Any]  # sees each epoch; see ClassDiscovery
# The paper takes all unlabelled samples to be new, and its tables do not compare confidences.
PAPERS_PROTOCOL = {"calibrate": False, "unlabelled": "new"}


def results_file(results: Path, dataset: str) -> Path:
    """The file that has the finished cells of a data set."""
    return results / "reproduce" / f"{dataset}.jsonl"


def read_results(results: Path) -> dict[str, dict[str, Any]]:
    """Finished cells by key; the later of two lines with one key wins. `stale`: with other options."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((results / "reproduce").glob("*.jsonl")):
        for line in read_jsonl(path):
            found[line["key"]] = line | {"stale": is_stale(line)}
    return found


def is_stale(line: Mapping[str, Any]) -> bool:
    """Whether the cell is due to be run again.

    The plan has changed its options, or the clustering has a later version. Or it has no stage 3, but its
    labels differ from those of stage 2, which an early version allowed.
    """
    cell = Cell.of(line["cell"])
    now = {name: plain(value) for name, value in cell.options.items()}
    others = any(line["options"].get(name) != value for name, value in now.items())
    relabelled = cell.options.get("expansion") == "none" and line["train"] != line["train_before"]
    return others or relabelled or cell.clustering_version > line.get("cuts", 1)


def seeds_of(lines: Lines, cell: Cell | OpenCell) -> list[Mapping[str, Any]]:
    """The lines of a cell over all seeds, by seed; stale ones only if they are the majority."""
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
    """Run the cells that are not in `results` yet and write each when done; calls `begin` before each."""
    done = read_results(results)
    for cell in cells:
        if done.get(cell.key, {"stale": True})["stale"]:
            begin(cell.key)
            line, model = run_cell(cell, cache, watchers)
            if cell in TABLES["fig3"].cells(budget=cell.budget):
                _save_map(cell, model, map_file(results, cell))
            append_jsonl(results_file(results, cell.dataset), line)
            done[cell.key] = line | {"stale": False}
        yield cell, done[cell.key]


def run_cell(cell: Cell, cache: Path, watchers: Sequence[Watcher] = ()) -> tuple[dict[str, Any], Any]:
    """Fit one cell and score it on the new classes: unlabelled samples of the fit, and held-out ones.

    Returns the line to save, and the fitted model.
    """
    from cdknet.core.metrics import new_class_scores, old_class_accuracy, open_world_report
    from cdknet.estimators import ClassDiscovery

    problem = open_problem(cell.dataset, cell.seed, cell.split)
    forget_peak()
    start = time.perf_counter()
    model = ClassDiscovery(
        **{**PAPERS_PROTOCOL, **cell.options},
        n_new_classes=problem.n_new_classes,
        random_state=cell.seed,
        stage_cache=cache / cell.dataset,
        watchers=watchers,
    ).fit(problem.train.X, problem.train.y)
    seconds = time.perf_counter() - start

    predicted = predict(model, problem.X_test)
    stage_2 = np.full(len(problem.train.X), -1)
    stage_2[~model.given_] = model.pseudo_labels_
    world = open_world_report(problem.test_truth, predicted.among_all)
    by_stage = stage_seconds(model)
    line = {
        "key": cell.key,
        "new_classes": [str(c) for c in problem.test_truth.new_classes],
        "cell": cell._asdict() | {"changes": {k: plain(v) for k, v in cell.changes}},
        "options": {k: plain(v) for k, v in cell.options.items()},
        "cuts": cell.clustering_version,
        "precision": model.chosen_["precision"],
        "train": _rounded(new_class_scores(problem.train_truth, model.labels_)._asdict()),
        "test": _rounded(new_class_scores(problem.test_truth, predicted.among_new)._asdict()),
        "train_before": _rounded(new_class_scores(problem.train_truth, stage_2)._asdict()),
        "old_before": _stage_1_accuracy(model, problem),
        "old_after": old_class_accuracy(problem.test_truth, predicted.among_all),
        "old_among_old": old_class_accuracy(problem.test_truth, predicted.among_old),
        "open_world": {"all": world.all, "old": world.old, "new": world.new},
        "epochs": {stage: sum(r["stage"] == stage for r in model.history_) for stage in by_stage},
        "seconds": round(seconds, 3),  # stages from the cache cost nothing here
        "stage_seconds": by_stage,  # when they were trained
        **circumstances(),
    }
    return line, model


def stage_seconds(model: Any) -> dict[str, float]:
    """Seconds that each stage of a fit took to train."""
    by_stage: dict[str, float] = {}
    for row in model.history_:
        by_stage[row["stage"]] = by_stage.get(row["stage"], 0.0) + row["seconds"]
    return {stage: round(seconds, 1) for stage, seconds in by_stage.items()}


def circumstances() -> dict[str, Any]:
    """What every line records: memory, revision, versions, machine, time."""
    import torch

    return {
        "peak_memory_mb": _peak_memory(),
        "revision": revision(),
        "versions": {"cdknet": cdknet.__version__, "torch": torch.__version__},
        "machine": f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, {platform.machine()}",
        "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


class Predictions(NamedTuple):
    """Predicted classes: the best of all, of the new ones, and of the old ones."""

    among_all: NDArray[Any]
    among_new: NDArray[Any]
    among_old: NDArray[Any]


def predict(model: Any, X: Any) -> Predictions:
    """Predict with a fitted ClassDiscovery, also among new and among old classes only."""
    n_old = len(model.classes_) - model.n_new_classes_
    probabilities = model.predict_proba(X)
    return Predictions(
        model.classes_[probabilities.argmax(axis=1)],
        model.classes_[n_old + probabilities[:, n_old:].argmax(axis=1)],
        model.classes_[probabilities[:, :n_old].argmax(axis=1)],
    )


def map_file(results: Path, cell: Cell) -> Path:
    """The file that has the 2-D map of a cell of Fig. 3."""
    return results / "reproduce" / "maps" / f"{cell.dataset}-{cell.method}-{cell.budget}.npz"


def _save_map(cell: Cell, model: Any, path: Path) -> None:
    """Save the 2-D map of 3,000 held-out samples, with their true classes."""
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
    """The paper's split, or a random one. `seed` draws the classes where the paper does so at random."""
    if split is None:
        return load(dataset).problem("paper", seed=seed)
    return load(dataset).problem("random", seed=split)


def _stage_1_accuracy(model: Any, problem: OpenWorldProblem) -> float | None:
    """Held-out accuracy on old classes after stage 1; None if nothing was trained."""
    from cdknet.core.metrics import old_class_accuracy
    from cdknet.inputs.arrays import Inputs
    from cdknet.nets.network import Projection, embed

    network = model.stage_networks_.get("pretrain")
    if network is None or isinstance(network, Projection):
        return None
    logits = embed(network, Inputs(problem.X_test), normalize=False).logits
    return old_class_accuracy(problem.test_truth, model.classes_[logits.argmax(dim=1).numpy()])


def forget_peak() -> None:
    """Reset the peak memory of this process, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory() -> int:
    """Peak memory of this process in megabytes, since `forget_peak` where the system can reset it."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def revision() -> str | None:
    """The commit of this checkout, with + if the package or the experiments were changed since."""
    try:
        git = ["git", "-C", str(ROOT)]
        name = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            [*git, "status", "--porcelain", "-uno", "--", "src/cdknet", "experiments"], capture_output=True
        )
        return name.stdout.strip() + ("+" if changed.stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return None
