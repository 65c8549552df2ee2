"""Choosing options without peeking: hide old classes, discover them with each candidate, keep the best.

No label of a new class is looked at. A finished fit is a line of a file: a search can be taken up again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdknet.core.clustering import CUTTING
from cdknet.fit.identity import learning_code
from cdknet.fit.pipeline import Parts, network_name
from cdknet.methods.cdknet_plus import suited
from cdknet.nets.augment import view_name
from cdknet.options import DiscoverOptions
from cdknet.runs.files import append_jsonl, read_jsonl
from cdknet.runs.fingerprints import fingerprint
from cdknet.training.budget import Budget
from cdknet.training.history import History
from cdknet.trust.rehearsal import (
    Fold,
    NoRehearsal,
    check_rehearsable,
    history_of_one,
    plan_folds,
    rehearse,
    reread,
)

GIVEN, ALONE, PLAIN = "as given", "no old labels", "k-means on samples"
# What is tried: options that differ from those given. The first is what is kept where none is better.
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
# Which options of candidates that name no method a method reads; CD-KNet+ reads all of them, rivals none.
READ: dict[str, set[str]] = {"cd-knet": {"label_weight", "readout"}}
SPREAD = 0.1  # deviation of gains over the folds, where there is only one
LEAST_GAIN = 0.005  # score from which on options are changed
ROOM = 10  # a time budget worth so many rehearsals leaves room to try other options
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
    if_room: bool = False,
) -> Report:
    """Try the candidates on folds of hidden old classes, the better half of them on each further fold.

    The report of `choose`. `params` holds every option by name; `targets` are old classes 0, 1, ..., -1 for
    unlabelled samples, which take no part. With `kept`, finished fits are appended there and not done again.
    Under a time budget fits are made, none of them shortened, while there is time for `tune`; with `if_room`
    only if the budget is worth `ROOM` of the first.
    """
    check_rehearsable(parts.clusterer)
    plans = plan_folds(targets, params["n_new_classes"], folds=folds, seed=seed)
    own_parts = {"network": parts.encoder, "views": parts.views, "readout": parts.clusterer}
    taken = [option for option, own in own_parts.items() if own is not None]
    candidates = distinct(candidates, params, X.shape[1:], int(targets.max()) + 1, taken)
    job = {k: v if isinstance(v, (bool, int, float, str)) else None for k, v in params.items()}
    told = [job, seed, fingerprint(X, targets), parts.identity(), learning_code()]
    about = fingerprint(np.frombuffer(json.dumps(told).encode(), np.uint8))
    fits = _Fits(kept, about)

    def one(name: str, running: Sequence[str], fold: Fold, own: History) -> dict[str, float]:
        """Of a candidate, and of those still running that only cut its features another way."""
        options = {**params, **candidates[name]}
        try:
            rehearsal = rehearse(X, targets, fold, options, parts, seed=seed, history=own)
        except (ValueError, FloatingPointError) as error:
            if name != GIVEN:
                return {name: 0.0}  # a candidate that cannot be fitted finds nothing
            raise NoRehearsal(f"with them hidden old classes could not be discovered: {error}") from None
        out = {name: rehearsal.accuracy}
        for other in running:
            theirs = {**params, **candidates[other]}
            if other != name and only_cuts(options, theirs):
                out[other] = reread(rehearsal, fold, DiscoverOptions.pick(theirs), seed=seed).accuracy
        return out

    found: dict[str, list[float]] = {name: [] for name in candidates}
    hidden: list[list[int]] = []
    running, tried = list(candidates), 0
    for left, plan in zip(range(len(plans), 0, -1), plans, strict=True):
        total = tried + sum(_halved(len(running), times) for times in range(left))
        for name in running:
            history.progress("tune", tried, total)
            if (name, plan.number) not in fits.done:
                most = _time_for_one(history.budget, if_room and tried == 0)
                own = history_of_one(history, "tune", tried, total, {**params, **candidates[name]}, most)
                if own is None:
                    break
                accuracies = one(name, running, plan, own)
                if own.budget is not None and own.budget.rest <= 0:  # it was cut short: it says nothing
                    break
                fits.keep(plan.number, accuracies)
            tried += 1
        finished = [name for name in running if (name, plan.number) in fits.done]
        if len(finished) < (len(running) if hidden else 2):
            break
        for name in finished:
            found[name].append(fits.done[name, plan.number])
        hidden.append(list(plan.hidden))
        if len(finished) < len(running):
            break
        running = better_half({name: found[name] for name in running})
    history.progress("tune", 1, 1)
    if not hidden:
        return untuned("the time budget leaves no room to try others")
    seen = {name: accuracies for name, accuracies in found.items() if accuracies}
    return choose(seen, candidates) | {"hidden": hidden}


def _time_for_one(budget: Budget | None, if_room: bool) -> float | None:
    """Most seconds for the next fit: what is left to `tune`; to see whether there is room, less than that."""
    if budget is None:
        return None
    return min(budget.left("tune"), budget.rest / ROOM) if if_room else budget.left("tune")


class _Fits:
    """Accuracies by candidate and fold; with a file, kept there as they come and found there again."""

    def __init__(self, path: Path | None, about: str) -> None:
        self.path, self.about = path, about
        lines = read_jsonl(path) if path is not None and path.exists() else []
        self.done: dict[tuple[str, int], float] = {
            (line["candidate"], line["fold"]): line["accuracy"] for line in lines if line["about"] == about
        }

    def keep(self, fold: int, accuracies: Mapping[str, float]) -> None:
        self.done |= {(name, fold): accuracy for name, accuracy in accuracies.items()}
        if self.path is None:
            return
        line = {"about": self.about, "fold": fold}
        append_jsonl(self.path, *(line | {"candidate": n, "accuracy": a} for n, a in accuracies.items()))


def _halved(n: int, times: int) -> int:
    """How many of n candidates there are after so many halvings by `better_half`."""
    for _ in range(times):
        n = max(math.ceil(n / 2), 1)
    return n


def better_half(found: Mapping[str, list[float]]) -> list[str]:
    """The candidates to go on with: the better half by score, the options as given always among them."""
    first = sorted(found, key=lambda name: (name != GIVEN, -score(found[name], found[GIVEN])))
    kept = first[: _halved(len(found), 1)]
    return [name for name in found if name in kept]


def score(accuracies: Sequence[float], given: Sequence[float]) -> float:
    """How much more is found than with the options as given, and how steadily, over the folds of both.

    The mean of the differences less half their standard deviation. Differences, because folds are not
    equally hard: what is as bad on an easy one as on a hard one is not steady. One fold has no deviation to
    show: `SPREAD` stands for it.
    """
    gains = np.subtract(accuracies, given[: len(accuracies)])
    return float(np.mean(gains) - (np.std(gains) if len(gains) > 1 else SPREAD) / 2)


def only_cuts(mine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the features learned with one set of options serve another, which only cuts them otherwise."""
    cuts = other["method"] in CUTTING and other["readout"] != "heads"  # heads are gone after stage 2
    return cuts and {**mine, "readout": ""} == {**other, "readout": ""}


def distinct(
    candidates: Mapping[str, Mapping[str, Any]],
    params: Mapping[str, Any],
    shape: tuple[int, ...],
    n_old_classes: int,
    taken: Collection[str] = (),
) -> dict[str, Mapping[str, Any]]:
    """The candidates without those that cannot be, or come to the same as one before them on this problem.

    An option that the method does not read makes no candidate, nor one that is `taken` by a user's own part.
    """
    kept: dict[str, Mapping[str, Any]] = {}
    seen: list[tuple[str, DiscoverOptions]] = []
    for name, options in candidates.items():
        if any(value is not None and option in taken for option, value in options.items()):
            continue
        if name == PLAIN and (params["novelty"] or "readout" in taken):  # has no stage 1, and its own cut
            continue
        meant = DiscoverOptions.pick({**params, **options})
        read = options.keys() if "method" in options else READ.get(meant.method, set())
        if meant.method != "cd-knet+" and not options.keys() <= read:
            continue
        meant = replace(meant, readout=meant.cut)
        if meant.method == "cd-knet+":
            if name != GIVEN and meant.lead == "labels" and meant.label_weight == 0:
                continue
            meant = replace(suited(meant, shape, n_old_classes), views=view_name(meant, shape))
        network = network_name({**params, **options}["network"], meant.method, shape)
        if (network, meant) not in seen:
            seen.append((network, meant))
            kept[name] = options
    return kept


def tunes(params: Mapping[str, Any]) -> bool:
    """Whether a fit first looks for options: when asked to, or within a time budget."""
    return params["tune"] == "old-classes" or (params["tune"] == "auto" and params["time_budget"] is not None)


def untuned(reason: str) -> Report:
    """The report where nothing could be tried: the options stay as given."""
    why = f"The options stay as given: {reason}."
    return {"tried": [], "chosen": GIVEN, "options": {}, "why": why, "hidden": []}


def choose(found: Mapping[str, list[float]], candidates: Mapping[str, Mapping[str, Any]]) -> Report:
    """Keep what recovers hidden classes best and most steadily (`score`), of what was tried on all folds.

    The options as given stand unless something scores better by at least `LEAST_GAIN`: a sample or two more
    is no reason to change them.
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
        both = len(found[ALONE])  # folds; there may be more of the options as given
        labels, images = float(np.mean(found[GIVEN][:both])), by_name[ALONE]["mean"]
        report["alike"] = {"with_labels": labels, "without_labels": images, "gain": labels - images}
    return report
