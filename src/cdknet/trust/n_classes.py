"""How many new classes are there? Counted at the level of detail at which old classes are whole.

A tree of micro-clusters (`cdknet.core.merging`) has clusters of every number; the question is where to cut
it. Old classes answer it. Some are hidden in plain sight: their labels are removed in a short fit in which
they are as unknown as the new ones. The level at which the tree finds *them* whole and apart is the level at
which new classes are counted, in the same features.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from cdknet.core.merging import MergeTree, merge_tree
from cdknet.core.openworld import UNLABELED
from cdknet.core.seeds import derive_seed
from cdknet.fit.pipeline import build, with_spies
from cdknet.fit.plan import FitPlan, resolve
from cdknet.methods.cdknet_plus import learn, sorted_pool
from cdknet.nets.architectures import UNTRAINED
from cdknet.nets.network import embed
from cdknet.options import DEFAULT_METHOD, CDKNetPlusOptions
from cdknet.runs.checkpoints import NoCheckpoint
from cdknet.training.context import FitContext
from cdknet.training.loop import once
from cdknet.training.problem import Problem
from cdknet.trust.rehearsal import history_of_one

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

FOLDS = 2  # each hides half of the old classes
FEWEST_OLD = 4  # old classes for that: two to hide and two to know
FEW_OLD = 6  # below this, what old classes ask for says little
PACE, BATCH = 0.5, 256  # of the steps of a fit, and most new samples per step
SIZES = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0)  # classes per head, in old classes: whatever the number is, some fit
MOST_ROWS = 6000  # labelled samples that take part, and unlabelled ones
LEVELS = np.geomspace(0.002, 0.5, 60)
USUAL = (0.002, 0.2)  # where levels learned from old classes lie: for those who have too few of them
NEARLY = 0.9  # of the best agreement with old classes counts as the best
MIDDLE = 0.7  # of these levels make the interval
LEAST_SHARE = 0.2  # of the mean size of new classes: less is a splinter


class Count(NamedTuple):
    """The number of new classes, an interval, and how it came about (plain JSON values)."""

    value: int
    low: int
    high: int
    report: dict[str, Any]


class Sighting(NamedTuple):
    """What a fit with hidden old classes shows, one row per sample of its tree."""

    tree: MergeTree
    unlabelled: NDArray[np.bool_]  # (n,) no label in the data: of old classes or of new ones
    p_new: Floats  # (n,) P(of no visible class); 0 for visible labelled samples
    hidden: Ints  # (n,) the hidden class of a labelled sample, else -1
    visible: int  # labelled samples of visible classes


class Sight(NamedTuple):
    """A sighting, and the features it is made of."""

    seen: Sighting
    z: Tensor  # (n, d)


class Curve(NamedTuple):
    """Agreement with the hidden classes, and the number of new ones, at each of `LEVELS`."""

    agreement: Tensor  # adjusted Rand index of the samples of hidden classes; 0 where none are hidden
    numbers: Tensor  # of new classes


def curve_of(seen: Sighting) -> Curve:
    """Cut the tree at each level: are the hidden classes whole and apart, and how many clusters are new?

    Unlabelled samples of hidden classes are unknown here, too. In a cluster with h labelled samples of hidden
    classes there are about ρh of these, where ρ is the number of recognised unlabelled samples per visible
    labelled one. A cluster is a new class if most of its unlabelled samples are new beyond those, and if they
    are not a splinter (`LEAST_SHARE`).
    """
    is_hidden, unlabelled = seen.hidden >= 0, seen.unlabelled
    rho = float((1 - seen.p_new[unlabelled]).sum()) / max(seen.visible, 1)
    agreement, count = np.zeros(len(LEVELS)), np.zeros(len(LEVELS), dtype=np.int64)
    for i, level in enumerate(LEVELS):
        labels = seen.tree.labels_at(float(level))
        k = int(labels.max()) + 1
        if is_hidden.any():
            agreement[i] = adjusted_rand_score(seen.hidden[is_hidden], labels[is_hidden])
        known = rho * np.bincount(labels[is_hidden], minlength=k)
        new = np.bincount(labels[unlabelled], weights=seen.p_new[unlabelled], minlength=k) - known
        count[i] = _sizeable(new[new > 0.5 * np.bincount(labels[unlabelled], minlength=k)])
    return Curve(torch.from_numpy(agreement), torch.from_numpy(count))


def _sizeable(sizes: Floats) -> int:
    """How many of these are at least `LEAST_SHARE` of the mean of those that are."""
    sizes = np.sort(sizes)
    while len(sizes) and sizes[0] < LEAST_SHARE * sizes.mean():
        sizes = sizes[1:]
    return len(sizes)


class Reading(NamedTuple):
    """The number of new classes, its interval, and the level at which it was read."""

    value: int
    low: int
    high: int
    level: float
    used: list[float]  # the lowest and highest level of the interval
    by_fold: list[int]


def read_off(curves: Sequence[Curve], *, few: bool = False) -> Reading:
    """Count at the middle of the levels at which hidden classes are found nearly best, in the mean of folds.

    The interval has the counts of all folds at the middle ones of these levels; at all of them with `few` old
    classes. Where none was hidden, these are the `USUAL` levels.
    """
    agreement = np.stack([curve.agreement.numpy() for curve in curves])
    count = np.stack([curve.numbers.numpy() for curve in curves])
    best = agreement.max(axis=1, keepdims=True)
    if (best > 0).all():
        mean = (agreement / best).mean(axis=0)
        good = np.flatnonzero(mean >= NEARLY * mean.max())
    else:
        first, last = np.searchsorted(LEVELS, USUAL)
        good = np.arange(first, last)
    middle = round(float(good.mean()))
    part = 1.0 if few else MIDDLE
    low, high = np.quantile(good, [(1 - part) / 2, (1 + part) / 2]).astype(int)
    seen, value = count[:, low : high + 1], round(float(count[:, middle].mean()))
    return Reading(
        value,
        min(int(seen.min()), value),
        max(int(seen.max()), value),
        float(LEVELS[middle]),
        [float(LEVELS[low]), float(LEVELS[high])],
        count[:, middle].tolist(),
    )


def summed_up(curves: Sequence[Curve], hidden: Sequence[Sequence[int]], n_old: int) -> Count:
    """The number, with what it rests on. It is uncertain with few old classes, or where folds differ."""
    few = n_old < FEW_OLD
    found = read_off(curves, few=few)
    apart = max(found.by_fold) - min(found.by_fold) > max(1, 0.25 * found.value)
    low, high = found.low, found.high
    if few or apart:  # nothing has checked the level: the interval is at least one class wide either way
        low, high = max(0, min(low, found.value - 1)), max(high, found.value + 1)
    report = {
        "found": found.value,
        "interval": [low, high],
        "uncertain": few or apart,
        "reason": _reason(n_old, few, apart),
        "level": found.level,
        "levels_used": found.used,
        "by_fold": found.by_fold,
        "hidden": [list(map(int, classes)) for classes in hidden],
        "levels": LEVELS.round(5).tolist(),
        "agreement": [curve.agreement.round(decimals=4).tolist() for curve in curves],
        "counts": [curve.numbers.tolist() for curve in curves],
    }
    return Count(found.value, low, high, report)


def _reason(n_old: int, few: bool, apart: bool) -> str:
    """Why the number is what it is, in a sentence."""
    if n_old < FEWEST_OLD:
        return (
            f"With {n_old} old classes none could be hidden to learn how fine classes are here, so the usual "
            "range of levels was taken. Treat the number as a guess."
        )
    reason = "Read at the level of detail at which hidden old classes were found best."
    if few:
        reason += f" With only {n_old} old classes that level is uncertain."
    if apart:
        reason += " The two halves of the old classes ask for different numbers."
    return reason


def count_new_classes(
    X: NDArray[Any], targets: Ints, params: Mapping[str, Any], context: FitContext
) -> Count:
    """How many new classes the unlabelled samples have. `targets` are those of `Labels`, -1 if unlabelled.

    It trains CD-KNet+, whatever the method of the fit: its heads have several sizes, so no number enters.
    """
    history, start = context.history, time.perf_counter()
    rows = _some_rows(targets, context.seed)
    X, targets = np.asarray(X[rows]), targets[rows]
    folds = hidden_folds(targets, context.seed)
    curves = []
    for number, hidden in enumerate(folds):
        history.progress("count", number, len(folds))

        def look(number: int = number, hidden: Ints = hidden) -> Curve:
            plan = counting_plan(params, tuple(X.shape[1:]), int(targets.max()) + 1, len(hidden), context)
            own = history_of_one(history, "count", number, len(folds), plan)
            if own is None:
                raise ValueError(
                    "The time budget must leave time to count the new classes. Got none. Give a larger one, "
                    "or n_new_classes."
                )
            seed = derive_seed(context.seed, "count", number)
            inner = context.changed(seed=seed, history=own, checkpoint=NoCheckpoint())
            return curve_of(sight(X, targets, hidden, plan, inner).seen)

        curves.append(once(context.checkpoint, f"count-{number}", Curve, look))
    history.progress("count", len(folds), len(folds))
    history.spent["count"] = time.perf_counter() - start
    return summed_up(curves, [hidden.tolist() for hidden in folds], int(targets.max()) + 1)


def hidden_folds(targets: Ints, seed: int) -> list[Ints]:
    """The old classes that each fold hides: a half each, or none if there are too few."""
    n_old = int(targets.max()) + 1
    if n_old < FEWEST_OLD:
        return [np.zeros(0, dtype=np.int64)]
    order = np.random.default_rng(derive_seed(seed, "count")).permutation(n_old)
    return [np.sort(half) for half in np.array_split(order, FOLDS)]


def sight(X: NDArray[Any], targets: Ints, hidden: Ints, plan: FitPlan, context: FitContext) -> Sight:
    """Train with these old classes hidden, sort old from new, and build the tree of all samples."""
    left = np.setdiff1d(np.arange(int(targets.max()) + 1), hidden)
    is_visible = np.isin(targets, left)
    classes = np.where(is_visible, np.searchsorted(left, targets), UNLABELED)
    known = Problem.from_checked(X, classes)
    pool = with_spies(known, context.seed)
    network, _ = build(known, plan, context)
    options = cast(CDKNetPlusOptions, plan.options)
    sizes = [max(2, round(size * plan.n_old_classes)) for size in SIZES] if options.heads else []
    learned = learn(network, pool, options, context, sizes)
    mixture = sorted_pool(learned.network, learned.heads, pool, 1)
    z = embed(learned.network, pool.inputs, normalize=True).features
    p_new = np.zeros(len(X))
    p_new[pool.unlabelled_rows.numpy()] = 1 - mixture.p_old.numpy()
    seen = Sighting(
        merge_tree(z, seed=context.seed),
        unlabelled=targets == UNLABELED,
        p_new=p_new,
        hidden=np.where(np.isin(targets, hidden), targets, UNLABELED),
        visible=int(is_visible.sum()),
    )
    return Sight(seen, z)


def counting_plan(
    params: Mapping[str, Any], shape: tuple[int, ...], n_old: int, n_hidden: int, context: FitContext
) -> FitPlan:
    """CD-KNet+ at half its steps, with the options of the fit that it reads."""
    params = {**params, "method": DEFAULT_METHOD, "unlabelled": "mixed", "tune": "off", "readout": "agreed"}
    if params["network"] in UNTRAINED:
        params |= {"network": "auto", "expansion": "all"}
    plan = resolve({**params, "n_new_classes": n_old}, shape, n_old, context.changed(clusterer=None))
    return plan.rehearsal(n_old, n_old - n_hidden, PACE, BATCH, mixed=True)


def _some_rows(targets: Ints, seed: int) -> Ints:
    """At most `MOST_ROWS` labelled samples and as many unlabelled ones, each in proportion, in order."""
    draw = np.random.default_rng(derive_seed(seed, "count rows"))
    parts = (np.flatnonzero(targets >= 0), np.flatnonzero(targets < 0))
    return np.sort(np.concatenate([draw.permutation(part)[:MOST_ROWS] for part in parts]))
