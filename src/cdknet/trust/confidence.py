"""Calibration: from how well a label fits its sample to the probability that it is right.

The map is learned where the truth is known: on old classes that are hidden and discovered (`rehearsal`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit
from scipy.stats import rankdata
from torch import Tensor

from cdknet.core.clustering import cluster
from cdknet.core.confidence import RESTARTS, RawConfidence, raw_confidence, raw_of_halves
from cdknet.core.metrics import clustering_accuracy, expected_calibration_error
from cdknet.fit.plan import FitPlan
from cdknet.training.context import FitContext
from cdknet.training.loop import recall, save
from cdknet.trust.rehearsal import (
    MixedOutcome,
    NoRehearsal,
    Rehearsal,
    check_rehearsable,
    history_of_one,
    plan_folds,
    rehearse,
)

FOLDS = 2
PACE = 0.25  # steps of a rehearsal, as a share of the fit's: all together take about a quarter of its time
QUANTILES = 51  # number of saved quantiles of the raw confidences of the rehearsals
FLAWLESS = 0.002  # with a smaller share of mistakes, rehearsals do not show which ranks are wrong
HALVES = 0.1  # weight of classes that were split in two, relative to the rehearsals
LEAST_SLOPE = 0.25  # a better fitting label is always surer, whatever the rehearsals show
EDGE = 1e-3  # raw confidences stay this far from 0 and 1, where the logit is infinite


class Map(NamedTuple):
    """P(right | raw), rising: a logistic function of the logit of the raw confidence.

    Half of it depends on the value, half on its rank among the samples of the fit. Raw confidences fall with
    the length of training, and a fit is longer than the rehearsals that the map was learned on, so ranks are
    needed. But raw confidences also fall where new classes are closer together than the hidden ones were, and
    that must count, so values are needed.
    """

    slope: float = 1.0
    offset: float = 0.0
    quantiles: tuple[float, ...] = ()  # of the raw confidences it was learned on; empty: by value alone

    def apply(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """P(right) of all unlabelled samples of a fit."""
        value = _logit(raw)
        if self.quantiles:
            rank = (rankdata(raw) - 0.5) / len(raw)
            grid = np.linspace(0, 1, len(self.quantiles))
            value = (value + _logit(np.interp(rank, grid, self.quantiles))) / 2
        mapped: NDArray[np.float64] = expit(self.slope * value + self.offset)
        return mapped


def fit_map(
    raw: NDArray[np.float64], right: NDArray[np.bool_], halves: NDArray[np.float64] | None = None
) -> Map:
    """The maximum-likelihood map. Targets are moved away from 0 and 1 as in Platt (1999), so it stays finite.

    `halves` are raw confidences of classes that were split in two (`raw_of_halves`), where half of the labels
    are right. Rehearsals without a mistake do not show what a mistake looks like; these do.
    """
    n_right, n_wrong = int(right.sum()), int((~right).sum())
    target = np.where(right, (n_right + 1) / (n_right + 2), 1 / (n_wrong + 2))
    x, weight = _logit(raw), np.ones(len(raw))
    if halves is not None and len(halves):
        x, target = np.append(x, _logit(halves)), np.append(target, np.full(len(halves), 0.5))
        weight = np.append(weight, np.full(len(halves), HALVES * len(raw) / len(halves)))
    weight = weight / weight.sum()

    def cost(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        t = weights[0] * x + weights[1]
        error = weight * (expit(t) - target)
        value = float(weight @ (np.logaddexp(0, t) - target * t) + 1e-4 * (weights[0] - 1) ** 2)
        slope = float(error @ x) + 2e-4 * (weights[0] - 1)
        return value, np.array([slope, float(error.sum())])

    found = minimize(
        cost, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(LEAST_SLOPE, 20), (-20, 20)]
    )
    flawless = halves is not None and n_wrong < FLAWLESS * len(raw)  # by rank, all would be equally sure
    quantiles = [] if flawless else np.quantile(raw, np.linspace(0, 1, QUANTILES)).round(4).tolist()
    return Map(float(found.x[0]), float(found.x[1]), tuple(quantiles))


def _logit(raw: NDArray[np.float64]) -> NDArray[np.float64]:
    value: NDArray[np.float64] = logit(np.clip(raw, EDGE, 1 - EDGE))
    return value


class Calibration(NamedTuple):
    """The maps, and facts about them as plain JSON values."""

    map: Map | None  # of labels that are new classes; None: not calibrated
    facts: dict[str, Any]
    old_map: Map | None = None  # of labels that are old classes; None: nothing was learned about these

    def apply(
        self, new: NDArray[np.float64], old: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """P(right) of labels that are new classes, and of those that are old ones, from raw confidences."""
        assert self.map is not None
        return self.map.apply(new), old if self.old_map is None else self.old_map.apply(old)


def not_calibrated(reason: str) -> Calibration:
    return Calibration(None, {"calibrated": False, "reason": reason})


class FoldOutcome(NamedTuple):
    """The result of one rehearsal for calibration."""

    raw: Tensor  # raw confidences
    right: Tensor  # whether the label is right
    raw_old: Tensor  # the same for labels that are old classes
    right_old: Tensor
    halves: Tensor  # raw confidences of classes that were split in two
    row: dict[str, Any]  # for the history
    mixture: dict[str, float]  # the share of old samples, as it was and as it was found; empty: none
    plain: float | None  # accuracy of k-means on the samples, if they are vectors


def calibrate(
    X: NDArray[Any],
    targets: NDArray[np.int64],
    classes: NDArray[Any],
    plan: FitPlan,
    context: FitContext,
    share: float | None = None,
) -> Calibration:
    """Learn P(right | raw) on hidden old classes. `targets` index `classes`, -1 for unlabelled samples.

    `share` is that of old samples among the unlabelled ones: rehearsals mix them in the same way. None: all
    unlabelled samples are new.
    """
    history, checkpoint = context.history, context.checkpoint
    try:
        check_rehearsable(context.clusterer)
        folds = plan_folds(targets, plan.options.n_new_classes, folds=FOLDS, seed=context.seed)
    except NoRehearsal as reason:
        return not_calibrated(str(reason))
    start = time.perf_counter()
    found: list[FoldOutcome] = []
    for number, fold in enumerate(folds):
        history.progress("calibrate", number, len(folds))
        outcome = recall(checkpoint, f"calibrate-{number}", FoldOutcome)
        if outcome is not None:
            history.resume([outcome.row])
        else:
            own = history_of_one(history, "calibrate", number, len(folds), plan)
            if own is None and found:  # use the rehearsals that were finished in time
                break
            if own is None:
                return not_calibrated("the time budget was used up before hidden classes could be tried")
            began = time.perf_counter()
            try:
                rehearsal = rehearse(X, targets, fold, plan, context.changed(history=own), PACE, share)
            except (ValueError, FloatingPointError) as error:
                return not_calibrated(f"hidden old classes could not be discovered: {error}")
            outcome = _outcome(rehearsal, len(fold.hidden), number, began)
            history.add(**outcome.row)
            save(checkpoint, f"calibrate-{number}", outcome)
        found.append(outcome)
    history.progress("calibrate", len(folds), len(folds))
    pairs = [(one.raw.numpy(), one.right.numpy(), one.halves.numpy()) for one in found]
    raw, right, halves = (np.concatenate(part) for part in zip(*pairs, strict=True))
    fitted = fit_map(raw, right, halves)
    of_old = [
        torch.cat(part).numpy() for part in zip(*((o.raw_old, o.right_old) for o in found), strict=True)
    ]
    old_map = fit_map(*of_old) if len(of_old[0]) else None
    before, after = _errors(pairs)
    accuracies = [one.row["accuracy"] for one in found]
    plain = [one.plain for one in found if one.plain is not None]
    return Calibration(
        fitted,
        {
            "calibrated": True,
            "folds": len(pairs),
            "hidden": [[str(classes[c]) for c in fold.hidden] for fold in folds[: len(pairs)]],
            "samples": len(raw),
            "accuracy": float(np.mean(accuracies)),
            "accuracies": accuracies,
            "plain": float(np.mean(plain)) if len(plain) == len(pairs) else None,
            "error_before": before,
            "error_after": after,
            "slope": fitted.slope,
            "offset": fitted.offset,
            "quantiles": list(fitted.quantiles),
            "seconds": round(time.perf_counter() - start, 2),
        }
        | ({} if share is None else {"mixtures": [one.mixture for one in found]}),
        old_map,
    )


def _outcome(found: Rehearsal, n_hidden: int, number: int, began: float) -> FoldOutcome:
    row = {"stage": "calibrate", "epoch": number + 1, "accuracy": found.accuracy}
    mixed = found.mixed
    if mixed is None:
        raw, right = raw_confidence(found.features, found.labels, n_hidden), found.right
        mixed = MixedOutcome(RawConfidence(raw, np.zeros(0)), (right, np.zeros(0, dtype=bool)), 0.0, 0.0)
    return FoldOutcome(
        raw=torch.from_numpy(mixed.raw.new),
        right=torch.from_numpy(mixed.right[0]),
        raw_old=torch.from_numpy(mixed.raw.old),
        right_old=torch.from_numpy(mixed.right[1]),
        mixture={} if found.mixed is None else {"share": mixed.share, "found": mixed.found},
        halves=torch.from_numpy(raw_of_halves(found.features, found.truth)),
        row=row | {"seconds": time.perf_counter() - began},
        plain=_plain_accuracy(found, n_hidden),
    )


def _plain_accuracy(found: Rehearsal, n_classes: int) -> float | None:
    """Accuracy of k-means on the samples themselves, if they are vectors: a baseline for the network."""
    if found.samples is None:
        return None
    return clustering_accuracy(found.truth, cluster(found.samples, n_classes, restarts=RESTARTS).numpy())


def _errors(pairs: Sequence[tuple[NDArray[Any], ...]]) -> tuple[float, float | None]:
    """Expected calibration error of the raw signal, and of a map that was learned on the other folds."""
    before = float(np.mean([expected_calibration_error(raw, right) for raw, right, _ in pairs]))
    if len(pairs) < 2:
        return before, None
    after = []
    for held, (raw, right, _) in enumerate(pairs):
        others = [pair for i, pair in enumerate(pairs) if i != held]
        learned = fit_map(*(np.concatenate(part) for part in zip(*others, strict=True)))
        after.append(expected_calibration_error(learned.apply(raw), right))
    return before, float(np.mean(after))
