"""How sure a label is: a signal that every method has, and a map from it to "right in so many of 100".

The map is learned where the truth is known: on old classes that are hidden and discovered (`rehearsal`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit
from scipy.stats import rankdata
from torch import Tensor

from cdknet.core.classifiers import Centers, class_means
from cdknet.core.clustering import GRAPHS, cluster, spectral_labels
from cdknet.core.metrics import clustering_accuracy, expected_calibration_error, right_under_match
from cdknet.core.neighbors import nearest_neighbors
from cdknet.fit.pipeline import Parts
from cdknet.runs.checkpoints import Checkpoint, NoCheckpoint, Snapshot
from cdknet.training.history import History
from cdknet.trust.rehearsal import (
    Fold,
    NoRehearsal,
    Rehearsal,
    check_rehearsable,
    history_of_one,
    plan_folds,
    rehearse,
)

FOLDS = 2
PACE = 0.25  # share of the steps that a rehearsal takes: all of them take about a quarter of the fit
NEIGHBORS = 15
MOST_CUT = 5000  # samples that are cut once more, to see whether labels agree
NEAREST = 5  # of them that speak for a sample which is not among them
RESTARTS = 2  # of k-means, for each cut
MOST_VOTERS = 10_000  # samples among which neighbours are looked for
MOST_HALVED = 1000  # samples of a class that are cut in two
QUANTILES = 51  # of the raw confidences of the rehearsals that are kept
FLAWLESS = 0.002  # share of mistakes below which rehearsals do not say which ranks are wrong
HALVES = 0.1  # weight of classes cut in two, beside what the rehearsals found
LEAST_SLOPE = 0.25  # a label that suits its sample better is surer, whatever rehearsals say
EDGE = 1e-3  # raw confidences are kept this far from 0 and 1, where the logit has no value


def raw_confidence(z: Tensor, labels: NDArray[np.int64], n_classes: int) -> NDArray[np.float64]:
    """(n,) in [0, 1]: how well each label suits its sample, from features z of stage 2 and nothing else.

    The softmax of the nearness to the means of the labels, times the share of the 15 nearest neighbours
    that carry the same label, times (1 + a) / 2 where a is the share of other cuts of z that agree.
    Comparable from fit to fit, whatever the method.
    """
    own = torch.from_numpy(np.ascontiguousarray(labels, dtype=np.int64))
    means = class_means(z, own, n_classes)
    scale = max(float((z - means[own]).square().sum(dim=1).mean()), 1e-12)
    nearness = Centers(means, scale).logits(z).softmax(dim=1)
    softmax = nearness[torch.arange(len(z)), own].double().numpy()
    agreed = (1 + agreement(z, labels, n_classes)) / 2
    raw: NDArray[np.float64] = softmax * _neighbor_share(z, own).double().numpy() * agreed
    return raw


def agreement(z: Tensor, labels: NDArray[np.int64], n_classes: int) -> NDArray[np.float64]:
    """(n,) share of other cuts of z that say the same: by k-means, by a finer and a coarser graph.

    Where two classes are taken for one and a third is cut in two, every sample is near its mean and among its
    like; another cut is not likely to go wrong in the same way. Cut is a part of the samples; one that is not
    in it takes the value of those nearest to it.
    """
    if len(z) <= 2 * n_classes:  # too few to be cut
        return np.ones(len(z))
    rows = _some_rows(len(z), max(MOST_CUT, 4 * n_classes))
    part = z[rows]
    cuts = [cluster(part, n_classes, restarts=RESTARTS)]
    cuts += [spectral_labels(part, n_classes, neighbors=graph, restarts=RESTARTS) for graph in GRAPHS]
    same = [torch.from_numpy(right_under_match(labels[rows], cut.numpy())).double() for cut in cuts]
    share = torch.stack(same).mean(dim=0)
    if len(rows) < len(z):
        _, found = nearest_neighbors(z, NEAREST, among=part)
        share = share[found].mean(dim=1)
    return share.numpy()


def _some_rows(n: int, most: int) -> Tensor:
    """At most `most` of n rows, drawn at random: samples may come class by class in turn."""
    if n <= most:
        return torch.arange(n)
    draw = torch.Generator().manual_seed(0)
    return torch.randperm(n, generator=draw)[:most].sort().values


def _neighbor_share(z: Tensor, labels: Tensor) -> Tensor:
    """(n,) share of a sample's nearest neighbours, other than itself, that carry its label."""
    if len(z) < 2:
        return torch.ones(len(z))
    voters = _some_rows(len(z), MOST_VOTERS)
    k = min(NEIGHBORS, len(voters) - 1)
    _, found = nearest_neighbors(z, k + 1, among=z[voters])
    rows = voters[found]
    other = rows != torch.arange(len(z))[:, None]
    other[other.all(dim=1), -1] = False  # the sample is none of the voters: the farthest goes
    same = (labels[rows] == labels[:, None]) & other
    return same.sum(dim=1) / other.sum(dim=1).clamp_min(1)


class Map(NamedTuple):
    """P(right | raw), rising: a logistic function of the logit of the raw confidence.

    Half by its value, half by its rank among the samples of its fit: raw confidences fall with the length of
    a training, and a fit is longer than the rehearsals that the map was learned on; but where new classes lie
    closer together than the hidden ones did, they fall as well, and that is to be heard.
    """

    slope: float = 1.0
    offset: float = 0.0
    quantiles: tuple[float, ...] = ()  # of the raw confidences that it was learned on; none: by value alone

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
    """The most likely map. Targets are drawn in from 0 and 1 as Platt (1999) does, so it stays finite.

    `halves` are raw confidences of classes that were cut in two (`raw_of_halves`), where half of the labels
    are right. Rehearsals without a mistake do not show what one looks like; these do.
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
    flawless = halves is not None and n_wrong < FLAWLESS * len(raw)  # by rank all would be as sure
    quantiles = [] if flawless else np.quantile(raw, np.linspace(0, 1, QUANTILES)).round(4).tolist()
    return Map(float(found.x[0]), float(found.x[1]), tuple(quantiles))


def raw_of_halves(z: Tensor, truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """Raw confidences of the samples of each class when it is cut in two, as no class should be."""
    out = [np.zeros(0)]
    for c in np.unique(truth):
        members = torch.from_numpy(np.flatnonzero(truth == c))
        part = z[members[_some_rows(len(members), MOST_HALVED)]]
        if len(part) > 2 * NEIGHBORS:
            labels = cluster(part, 2, restarts=RESTARTS).numpy()
            out.append(raw_confidence(part, labels, 2))
    return np.concatenate(out)


def _logit(raw: NDArray[np.float64]) -> NDArray[np.float64]:
    value: NDArray[np.float64] = logit(np.clip(raw, EDGE, 1 - EDGE))
    return value


class Calibration(NamedTuple):
    """The map, and what is known of it. Plain JSON values in `facts`."""

    map: Map | None  # None: not calibrated
    facts: dict[str, Any]


def not_calibrated(reason: str) -> Calibration:
    return Calibration(None, {"calibrated": False, "reason": reason})


def calibrate(
    X: NDArray[Any],
    targets: NDArray[np.int64],
    classes: NDArray[Any],
    params: Mapping[str, Any],
    parts: Parts,
    *,
    seed: int,
    history: History,
    checkpoint: Checkpoint | None = None,
) -> Calibration:
    """Learn P(right | raw) on hidden old classes. `targets` index `classes`, -1 for unlabelled samples."""
    checkpoint = checkpoint or NoCheckpoint()
    try:
        check_rehearsable(parts.clusterer)
        folds = plan_folds(targets, params["n_new_classes"], folds=FOLDS, seed=seed)
    except NoRehearsal as reason:
        return not_calibrated(str(reason))
    start, accuracies = time.perf_counter(), []
    plain: list[float] = []  # of k-means, where samples are vectors
    pairs: list[tuple[NDArray[Any], ...]] = []  # raw confidences, whether right, and those of halves
    for number, fold in enumerate(folds):
        history.progress("calibrate", number, len(folds))
        kept = checkpoint.load(f"calibrate-{number}")
        if kept is not None and "halves" in kept.tensors:  # an older version kept none
            history.take_up([kept.facts["row"]])
        else:
            own = history_of_one(history, "calibrate", number, len(folds), params)
            if own is None and pairs:  # what was tried in time counts
                break
            if own is None:
                return not_calibrated("the time budget was used up before hidden classes could be tried")
            began = time.perf_counter()
            try:
                found = rehearse(
                    X,
                    targets,
                    fold,
                    params,
                    parts,
                    seed=seed,
                    history=own,
                    pace=PACE,
                )
            except (ValueError, FloatingPointError) as error:
                return not_calibrated(f"hidden old classes could not be discovered: {error}")
            kept = _fold_outcome(found, fold, number, time.perf_counter() - began)
            history.add(**kept.facts["row"])
            checkpoint.save(f"calibrate-{number}", kept)
        pairs.append(tuple(kept.tensors[name].numpy() for name in ("raw", "right", "halves")))
        accuracies.append(kept.facts["row"]["accuracy"])
        if kept.facts.get("plain") is not None:
            plain.append(kept.facts["plain"])
    history.progress("calibrate", len(folds), len(folds))
    raw, right, halves = (np.concatenate(part) for part in zip(*pairs, strict=True))
    fitted = fit_map(raw, right, halves)
    before, after = _errors(pairs)
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
        },
    )


def _fold_outcome(found: Rehearsal, fold: Fold, number: int, seconds: float) -> Snapshot:
    right = right_under_match(found.truth, found.labels)
    arrays = {
        "raw": raw_confidence(found.features, found.labels, len(fold.hidden)),
        "right": right,
        "halves": raw_of_halves(found.features, found.truth),
    }
    row = {"stage": "calibrate", "epoch": number + 1, "accuracy": float(right.mean()), "seconds": seconds}
    facts = {"row": row, "plain": _plain_accuracy(found, len(fold.hidden))}
    return Snapshot(1, True, {name: torch.from_numpy(a) for name, a in arrays.items()}, facts)


def _plain_accuracy(found: Rehearsal, n_classes: int) -> float | None:
    """What k-means finds on the samples themselves, where they are vectors: is the network worth it?"""
    if found.samples is None:
        return None
    return clustering_accuracy(found.truth, cluster(found.samples, n_classes, restarts=RESTARTS).numpy())


def _errors(pairs: list[tuple[NDArray[Any], ...]]) -> tuple[float, float | None]:
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
