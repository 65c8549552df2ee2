"""Selecting options without peeking: hide old classes, discover them with each candidate, select the best.

No label of a new class is used. Each finished fit is a line in a file, so that a search can be resumed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cdknet.fit.identity import learning_code, own_parts
from cdknet.fit.plan import FitPlan, resolve
from cdknet.methods import method_of
from cdknet.runs.files import append_jsonl, read_jsonl
from cdknet.runs.fingerprints import fingerprint
from cdknet.training.budget import Budget
from cdknet.training.context import FitContext
from cdknet.training.history import History
from cdknet.trust.rehearsal import (
    Fold,
    NoRehearsal,
    check_rehearsable,
    history_of_one,
    plan_folds,
    recluster,
    rehearse,
)

GIVEN, ALONE, PLAIN = "as given", "no old labels", "k-means on samples"
# The candidates: options that differ from those given. The first is selected if none is better.
CANDIDATES: dict[str, dict[str, Any]] = {
    "as given": {},
    "no old labels": {"label_weight": 0.0},
    "old labels low": {"label_weight": 3.0},
    "old labels lead": {"lead": "labels"},
    "views lead": {"lead": "views"},
    "views high": {"view_weight": 10.0},
    "views low": {"view_weight": 1.0},
    "no views": {"view_weight": 0.0},
    "views of vectors": {"views": "vectors"},
    "no heads": {"heads": 0},
    "one spectral cut": {"readout": "spectral"},
    "k-means": {"readout": "k-means"},
    "paper's network": {"network": "paper"},
    "paper": {"method": "cd-knet", "readout": None},
    PLAIN: {
        **{"method": "sscd", "network": "none", "normalize_features": False},
        **{"expansion": "none", "readout": None},
    },
}
SPREAD = 0.1  # assumed standard deviation of gains over folds, if there is only one fold
LEAST_GAIN = 0.005  # least score at which the options are changed
ROOM = 10  # with time for this many rehearsals, a time budget leaves room to try other options
Report = dict[str, Any]


class Trial(NamedTuple):
    """A candidate for this problem: what it changes, and the plan that results."""

    changes: Mapping[str, Any]
    plan: FitPlan


def tune(
    X: NDArray[Any],
    targets: NDArray[np.int64],
    params: Mapping[str, Any],
    context: FitContext,
    *,
    folds: int = 3,
    finished: Path | None = None,
    if_room: bool = False,
) -> Report:
    """Try the candidates on folds of hidden old classes. Only the better half goes on to the next fold.

    Returns the report of `choose`. `params` holds the options by name, and the method. `targets` are old
    classes 0, 1, ..., or -1 for unlabelled samples, which are not used. If a file `finished` is given,
    finished fits are appended there and not repeated. Under a time budget, full-length fits are made while
    there is time for `tune`; with `if_room`, only if the budget allows `ROOM` fits as long as the first.
    """
    history = context.history
    check_rehearsable(context.clusterer)
    plans = plan_folds(targets, params["n_new_classes"], folds=folds, seed=context.seed)
    trials = distinct(CANDIDATES, params, X.shape[1:], int(targets.max()) + 1, context)
    job = {k: v if isinstance(v, (bool, int, float, str)) else None for k, v in params.items()}
    known = [job, context.seed, fingerprint(X, targets), own_parts(context), learning_code()]
    fits = _Fits(finished, fingerprint(np.frombuffer(json.dumps(known).encode(), np.uint8)))

    def one(name: str, running: Sequence[str], fold: Fold, own: History) -> dict[str, float]:
        """Accuracies of a candidate, and of running ones that only cluster its features in another way."""
        plan = trials[name].plan
        try:
            rehearsal = rehearse(X, targets, fold, plan, context.changed(history=own))
        except (ValueError, FloatingPointError) as error:
            if name != GIVEN:
                return {name: 0.0}  # a candidate that cannot be fitted finds nothing
            raise NoRehearsal(f"with them hidden old classes could not be discovered: {error}") from None
        out = {name: rehearsal.accuracy}
        for other in running:
            if other != name and only_clusters(plan, trials[other].plan):
                out[other] = recluster(rehearsal, fold, trials[other].plan, context.seed).accuracy
        return out

    found: dict[str, list[float]] = {name: [] for name in trials}
    hidden: list[list[int]] = []
    running, tried = list(trials), 0
    for left, fold in zip(range(len(plans), 0, -1), plans, strict=True):
        total = tried + sum(_halved(len(running), times) for times in range(left))
        for name in running:
            history.progress("tune", tried, total)
            if (name, fold.number) not in fits.done:
                most = _time_for_one(history.budget, if_room and tried == 0)
                own = history_of_one(history, "tune", tried, total, trials[name].plan, most)
                if own is None:
                    break
                accuracies = one(name, running, fold, own)
                if own.budget is not None and own.budget.rest <= 0:  # stopped early: it does not count
                    break
                fits.save(fold.number, accuracies)
            tried += 1
        done = [name for name in running if (name, fold.number) in fits.done]
        if len(done) < (len(running) if hidden else 2):
            break
        for name in done:
            found[name].append(fits.done[name, fold.number])
        hidden.append(list(fold.hidden))
        if len(done) < len(running):
            break
        running = better_half({name: found[name] for name in running})
    history.progress("tune", 1, 1)
    if not hidden:
        return untuned("the time budget leaves no room to try others")
    seen = {name: accuracies for name, accuracies in found.items() if accuracies}
    return choose(seen, {name: trial.changes for name, trial in trials.items()}) | {"hidden": hidden}


def _time_for_one(budget: Budget | None, if_room: bool) -> float | None:
    """Most seconds for the next fit: the time left for `tune`, or less, to see whether there is room."""
    if budget is None:
        return None
    return min(budget.left("tune"), budget.rest / ROOM) if if_room else budget.left("tune")


class _Fits:
    """Accuracies by candidate and fold. With a file, they are saved there at once, and read from there."""

    def __init__(self, path: Path | None, about: str) -> None:
        self.path, self.about = path, about
        lines = read_jsonl(path) if path is not None and path.exists() else []
        self.done: dict[tuple[str, int], float] = {
            (line["candidate"], line["fold"]): line["accuracy"] for line in lines if line["about"] == about
        }

    def save(self, fold: int, accuracies: Mapping[str, float]) -> None:
        self.done |= {(name, fold): accuracy for name, accuracy in accuracies.items()}
        if self.path is None:
            return
        line = {"about": self.about, "fold": fold}
        append_jsonl(self.path, *(line | {"candidate": n, "accuracy": a} for n, a in accuracies.items()))


def _halved(n: int, times: int) -> int:
    """How many of n candidates are left after `better_half` was applied `times` times."""
    for _ in range(times):
        n = max(math.ceil(n / 2), 1)
    return n


def better_half(found: Mapping[str, list[float]]) -> list[str]:
    """The candidates for the next fold: the better half by score, and always the options as given."""
    first = sorted(found, key=lambda name: (name != GIVEN, -score(found[name], found[GIVEN])))
    selected = first[: _halved(len(found), 1)]
    return [name for name in found if name in selected]


def score(accuracies: Sequence[float], given: Sequence[float]) -> float:
    """How much more is found than with the options as given, and how steadily, over their common folds.

    The mean of the differences less half their standard deviation. Differences are used because folds are not
    equally hard: the same accuracy on an easy fold and on a hard one is not steady. For a single fold,
    `SPREAD` takes the place of the deviation.
    """
    gains = np.subtract(accuracies, given[: len(accuracies)])
    return float(np.mean(gains) - (np.std(gains) if len(gains) > 1 else SPREAD) / 2)


def only_clusters(mine: FitPlan, other: FitPlan) -> bool:
    """Whether two plans learn the same features, and only cluster them differently."""
    readout = getattr(other.options, "readout", None)
    if mine.method is not other.method or readout not in other.method.clusterings:
        return False
    return replace(mine.options, readout=readout) == other.options  # type: ignore[call-arg]


def distinct(
    candidates: Mapping[str, Mapping[str, Any]],
    params: Mapping[str, Any],
    shape: tuple[int, ...],
    n_old_classes: int,
    context: FitContext,
) -> dict[str, Trial]:
    """The candidates, without invalid ones and those that lead to the same plan as an earlier one.

    A candidate may only change options that are tunable for the method, and none that is replaced by one of
    the user's own parts.
    """
    own = {"network": context.encoder, "views": context.views, "readout": context.clusterer}
    taken = [option for option, part in own.items() if part is not None]
    found: dict[str, Trial] = {}
    for name, changes in candidates.items():
        meant = {**params, **changes}
        if any(value is not None and option in taken for option, value in changes.items()):
            continue
        if name == PLAIN and (params.get("detector") == "softmax" or "readout" in taken):  # it has no stage 1
            continue
        if "method" not in changes and not changes.keys() <= set(method_of(meant["method"]).tunable):
            continue
        try:
            plan = resolve(meant, shape, n_old_classes, context)
        except ValueError:
            if name == GIVEN:
                raise
            continue
        if all(plan != trial.plan for trial in found.values()):
            found[name] = Trial(changes, plan)
    return found


def untuned(reason: str) -> Report:
    """The report if nothing could be tried: the options stay as given."""
    why = f"The options stay as given: {reason}."
    return {"tried": [], "chosen": GIVEN, "options": {}, "why": why, "hidden": []}


def choose(found: Mapping[str, list[float]], candidates: Mapping[str, Mapping[str, Any]]) -> Report:
    """Select the candidate that recovers hidden classes best and most steadily (`score`), over all folds.

    The options stay as given unless a candidate scores better by at least `LEAST_GAIN`: one or two more
    samples right are no reason to change them.
    """
    folds = max(len(accuracies) for accuracies in found.values())
    tried: list[dict[str, Any]] = [
        {
            "candidate": name,
            "options": dict(candidates[name]),
            "accuracies": list(accuracies),
            "mean": float(np.mean(accuracies)),
            "gain": float(np.mean(np.subtract(accuracies, found[GIVEN][: len(accuracies)]))),
            "score": score(accuracies, found[GIVEN]) if name != GIVEN else 0.0,
        }
        for name, accuracies in found.items()
    ]
    by_name = {line["candidate"]: line for line in tried}
    last = [line for line in tried if len(line["accuracies"]) == folds and line["score"] >= LEAST_GAIN]
    best = max(last, key=lambda line: round(line["score"], 6), default=by_name[GIVEN])
    report: Report = {"tried": tried, "chosen": best["candidate"], "options": best["options"]}
    if best["candidate"] == GIVEN:
        report["why"] = "On hidden old classes nothing is steadily better than the options as given."
    else:
        report["why"] = (
            f"On hidden old classes {best['candidate']!r} finds {best['mean']:.3f}, the options as given "
            f"{by_name[GIVEN]['mean']:.3f}: "
            + (
                f"steadily more over {folds} folds"
                if folds > 1
                else "far more, on the one fold that was tried"
            )
            + f" (score {best['score']:.3f})."
        )
    if ALONE in by_name:
        both = len(found[ALONE])  # number of folds; the options as given may have more
        labels, images = float(np.mean(found[GIVEN][:both])), by_name[ALONE]["mean"]
        report["alike"] = {"with_labels": labels, "without_labels": images, "gain": labels - images}
    return report
