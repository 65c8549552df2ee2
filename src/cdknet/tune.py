"""Choosing options without peeking: hide old classes, discover them with each candidate, keep the best.

No label of a new class is looked at. A finished fit is a line of a file: a search can be taken up again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdknet.history import History
from cdknet.options import DiscoverOptions
from cdknet.pipeline import Parts
from cdknet.rehearsal import NoRehearsal, check_clusterer, history_of_one, plan_folds, rehearse
from cdknet.runs import fingerprint, read_jsonl
from cdknet.stages.plus import suited

# What is tried: options that differ from those given. The first is what is kept where none is better.
CANDIDATES: dict[str, dict[str, Any]] = {
    "as given": {},
    "images alone": {"label_weight": 0.0},
    "old labels low": {"label_weight": 3.0},
    "old labels lead": {"lead": "labels"},
    "views lead": {"lead": "views"},
    "views high": {"view_weight": 10.0},
    "no heads": {"heads": 0},
    "paper": {"method": "cd-knet"},
}
# Which options of the candidates a method reads beside `method`; CD-KNet+ reads all of them, rivals none.
READ: dict[str, set[str]] = {"cd-knet": {"label_weight"}}
GIVEN, ALONE = "as given", "images alone"
Report = dict[str, Any]


def tune(
    X: NDArray[Any],
    targets: NDArray[np.int64],
    params: Mapping[str, Any],
    parts: Parts,
    *,
    folds: int = 3,
    seed: int = 0,
    history: History,
    kept: Path | None = None,
    candidates: Mapping[str, Mapping[str, Any]] = CANDIDATES,
) -> Report:
    """Try each candidate on each fold of hidden old classes; the report of `choose`.

    `params` holds every option by name; `targets` are old classes 0, 1, ..., -1 for unlabelled samples, which
    take no part. With `kept`, finished fits are appended there and not done again. A time budget is shared
    out over the fits; folds that it leaves no time for are left out, for every candidate.
    """
    check_clusterer(parts.clusterer)
    plans = plan_folds(targets, params["n_new_classes"], folds=folds, seed=seed)
    candidates = distinct(candidates, params, X.shape[1:], int(targets.max()) + 1)
    job = {k: v if isinstance(v, (bool, int, float, str)) else None for k, v in params.items()}
    about = fingerprint(np.frombuffer(json.dumps([job, seed, fingerprint(X, targets)]).encode(), np.uint8))
    done = {}
    if kept is not None and kept.exists():
        lines = [line for line in read_jsonl(kept) if line["about"] == about]
        done = {(line["candidate"], line["fold"]): line["accuracy"] for line in lines}
    cells = [(name, plan) for plan in plans for name in candidates]
    for number, (name, plan) in enumerate(cells):
        history.progress("tune", number, len(cells))
        if (name, plan.number) in done:
            continue
        options = {**params, **candidates[name]}
        own = history_of_one(history, "tune", number, len(cells), options)
        if own is None:
            break
        try:
            accuracy = rehearse(
                X,
                targets,
                plan,
                options,
                parts,
                seed=seed,
                history=own,
            ).accuracy
        except (ValueError, FloatingPointError) as error:
            if name == GIVEN:
                raise NoRehearsal(f"with them hidden old classes could not be discovered: {error}") from None
            accuracy = 0.0  # a candidate that cannot be fitted finds nothing
        done[name, plan.number] = accuracy
        if kept is not None:
            line = {"about": about, "candidate": name, "fold": plan.number, "accuracy": accuracy}
            kept.parent.mkdir(parents=True, exist_ok=True)
            with kept.open("a") as file:
                file.write(json.dumps(line) + "\n")
    history.progress("tune", len(cells), len(cells))
    whole = [plan for plan in plans if all((name, plan.number) in done for name in candidates)]
    if not whole:
        return untuned("the time budget was used up before every candidate could be tried once")
    found_by = {name: [done[name, plan.number] for plan in whole] for name in candidates}
    return choose(found_by, candidates) | {"hidden": [list(plan.hidden) for plan in whole]}


def distinct(
    candidates: Mapping[str, Mapping[str, Any]],
    params: Mapping[str, Any],
    shape: tuple[int, ...],
    n_old_classes: int,
) -> dict[str, Mapping[str, Any]]:
    """The candidates without those that cannot be, or come to the same as one before them on this problem.

    An option that the method does not read makes no candidate.
    """
    kept: dict[str, Mapping[str, Any]] = {}
    seen: list[DiscoverOptions] = []
    for name, options in candidates.items():
        meant = DiscoverOptions.pick({**params, **options})
        if meant.method != "cd-knet+" and not options.keys() <= {"method"} | READ.get(meant.method, set()):
            continue
        if meant.method == "cd-knet+":
            if name != GIVEN and meant.lead == "labels" and meant.label_weight == 0:
                continue
            meant = suited(meant, shape, n_old_classes)
        if meant not in seen:
            seen.append(meant)
            kept[name] = options
    return kept


def untuned(reason: str) -> Report:
    """The report where nothing could be tried: the options stay as given."""
    why = f"The options stay as given: {reason}."
    return {"tried": [], "chosen": GIVEN, "options": {}, "why": why, "hidden": []}


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
