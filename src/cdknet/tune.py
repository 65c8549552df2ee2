"""Choosing options without peeking: hide old classes, discover them with each candidate, keep the best.

No label of a new class is looked at. A finished fit is a line of a file: a search can be taken up again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cdknet.history import History
from cdknet.rehearsal import plan_folds, rehearse
from cdknet.runs import fingerprint, read_jsonl

# What is tried: options that differ from those given. The first is what is kept where none is better.
CANDIDATES: dict[str, dict[str, Any]] = {
    "as given": {},
    "images alone": {"label_weight": 0.0},
    "old labels low": {"label_weight": 3.0},
    "old labels high": {"label_weight": 30.0},
    "views low": {"view_weight": 1.0},
    "views high": {"view_weight": 10.0},
    "k-means": {"heads": 0},
    "paper": {"method": "cd-knet"},
}
GIVEN, ALONE = "as given", "images alone"
Report = dict[str, Any]


def tune(
    X: NDArray[Any],
    targets: NDArray[np.int64],
    params: Mapping[str, Any],
    *,
    folds: int = 3,
    seed: int = 0,
    device: torch.device,
    history: History,
    kept: Path | None = None,
    candidates: Mapping[str, Mapping[str, Any]] = CANDIDATES,
    progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> Report:
    """Try each candidate on each fold of hidden old classes; the report of `choose`.

    `params` holds every option by name; `targets` are old classes 0, 1, ..., -1 for unlabelled samples, which
    take no part. With `kept`, finished fits are appended there and not done again.
    """
    plans = plan_folds(targets, params["n_new_classes"], folds=folds, seed=seed)
    job = {k: v if isinstance(v, (bool, int, float, str)) else None for k, v in params.items()}
    about = fingerprint(np.frombuffer(json.dumps([job, seed, fingerprint(X, targets)]).encode(), np.uint8))
    done = {}
    if kept is not None and kept.exists():
        lines = [line for line in read_jsonl(kept) if line["about"] == about]
        done = {(line["candidate"], line["fold"]): line["accuracy"] for line in lines}
    cells = [(name, plan) for name in candidates for plan in plans]
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for number, (name, plan) in enumerate(cells):
        progress(number, len(cells), f"{name}, fold {plan.number + 1}")
        if (name, plan.number) not in done:
            options = {**params, **candidates[name]}
            accuracy = rehearse(
                X, targets, plan, options, device=device, seed=seed, history=History(history.watchers)
            ).accuracy
            done[name, plan.number] = accuracy
            if kept is not None:
                line = {"about": about, "candidate": name, "fold": plan.number, "accuracy": accuracy}
                with kept.open("a") as file:
                    file.write(json.dumps(line) + "\n")
        found[name].append(done[name, plan.number])
    progress(len(cells), len(cells), "")
    return choose(found, candidates) | {"hidden": [list(plan.hidden) for plan in plans]}


def choose(found: Mapping[str, list[float]], candidates: Mapping[str, Mapping[str, Any]]) -> Report:
    """Keep what recovers hidden classes best and most steadily: mean less half a standard deviation.

    Ties go to the options as given.
    """
    tried: list[dict[str, Any]] = [
        {
            "candidate": name,
            "options": dict(candidates[name]),
            "accuracies": list(accuracies),
            "mean": float(np.mean(accuracies)),
            "deviation": float(np.std(accuracies)),
            "score": float(np.mean(accuracies) - np.std(accuracies) / 2),
        }
        for name, accuracies in found.items()
    ]
    by_name = {line["candidate"]: line for line in tried}
    best = max(tried, key=lambda line: (round(line["score"], 6), line["candidate"] == GIVEN))
    report: Report = {"tried": tried, "chosen": best["candidate"], "options": best["options"]}
    if best["candidate"] == GIVEN:
        report["why"] = (
            f"No other candidate has a better score than the options as given, {best['score']:.3f}."
        )
    else:
        report["why"] = (
            f"On hidden old classes {best['candidate']!r} has a score of {best['score']:.3f}, the options as "
            f"given {by_name[GIVEN]['score']:.3f} (mean accuracy less half a standard deviation)."
        )
    if ALONE in by_name:
        labels, images = by_name[GIVEN]["mean"], by_name[ALONE]["mean"]
        report["alike"] = {"with_labels": labels, "images_alone": images, "gain": labels - images}
    return report
