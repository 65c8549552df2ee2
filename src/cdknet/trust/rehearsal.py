"""Rehearsals: hide some of the *old* classes, whose truth is known, and discover them.

A rehearsal shows what can be known about a fit before anyone has looked at its new classes: how sure its
labels are (`cdknet.trust.confidence`) and which options suit the data (`cdknet.trust.tune`). Only labelled
samples take part, so the truth of the really new classes cannot leak in.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cdknet.core.clustering import Clusterer, cluster_features
from cdknet.core.confidence import RawConfidence, raw_of_mixture
from cdknet.core.metrics import named_right, right_under_match
from cdknet.core.openworld import UNLABELED
from cdknet.core.seeds import derive_seed
from cdknet.fit.pipeline import Stages, run_stages
from cdknet.fit.plan import FitPlan
from cdknet.nets.network import as_vectors, embed
from cdknet.runs.checkpoints import NoCheckpoint
from cdknet.training.budget import Budget
from cdknet.training.context import FitContext
from cdknet.training.history import History
from cdknet.training.problem import Problem, stratified

MOST_ROWS = 6000  # labelled samples that take part, unless there are many classes
MOST_OF_A_CLASS = 250  # labelled samples of a class that take part where there are many
FEWEST_OF_A_CLASS = 8  # a class with fewer labelled samples takes no part
BATCH = 256  # most new samples per step


class NoRehearsal(ValueError):
    """The labelled samples do not allow a rehearsal. The message gives the reason."""


class Fold(NamedTuple):
    """The plan of one rehearsal."""

    number: int
    rows: NDArray[np.int64]  # the labelled samples that take part
    hidden: tuple[int, ...]  # numbers of the old classes that are hidden


class Rehearsal(NamedTuple):
    """The result of one rehearsal, for the samples of its hidden classes."""

    truth: NDArray[np.int64]  # (n,) the class that was hidden, 0 ... len(hidden) - 1
    labels: NDArray[np.int64]  # (n,) the cluster it was given
    features: Tensor  # (n, d) after stage 2
    samples: Tensor | None = None  # (n, d') network inputs, if the method clusters by them, too
    mixed: MixedOutcome | None = None  # with unlabelled samples of old classes: the same for all of them

    @property
    def right(self) -> NDArray[np.bool_]:
        """Which labels are right under the best match; if samples are mixed, of all unlabelled ones."""
        if self.mixed is not None:
            return np.concatenate(self.mixed.right)
        return right_under_match(self.truth, self.labels)

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())


class MixedOutcome(NamedTuple):
    """The outcome of a rehearsal with unlabelled samples of old classes. Pairs: of new labels, of old."""

    raw: RawConfidence
    right: tuple[NDArray[np.bool_], NDArray[np.bool_]]
    share: float  # of old samples, as it is
    found: float  # and as it was found


def check_rehearsable(clusterer: Clusterer | None) -> None:
    """Raise if the clusterer cannot be asked for as many classes as a rehearsal hides."""
    if hasattr(clusterer, "fit_predict"):
        raise NoRehearsal("a clusterer of your own finds a number of classes of its own")


def plan_folds(targets: NDArray[np.int64], n_new_classes: int, *, folds: int, seed: int) -> list[Fold]:
    """Which old classes to hide, `folds` times: as many as there are new ones, but at most about half.

    At least 2 are hidden and 2 are left. Folds hide different classes as long as there are enough.
    """
    if n_new_classes < 2:
        raise NoRehearsal("with a single new class there is nothing to mix it up with")
    counts = np.bincount(targets[targets != UNLABELED])
    classes = np.flatnonzero(counts >= FEWEST_OF_A_CLASS)
    if len(classes) < 4:
        raise NoRehearsal(
            f"it takes 4 old classes of at least {FEWEST_OF_A_CLASS} labelled samples, 2 to hide and 2 to "
            f"know, and there are {len(classes)}"
        )
    n_hidden = max(2, min(n_new_classes, math.ceil(len(classes) / 2), len(classes) - 2))
    generator = np.random.default_rng(derive_seed(seed, "hide"))
    order = generator.permutation(classes)
    share = min(1.0, max(MOST_ROWS, MOST_OF_A_CLASS * len(classes)) / counts[classes].sum())
    plans: list[Fold] = []
    for number in range(folds):
        hidden = tuple(sorted(int(order[(number * n_hidden + i) % len(order)]) for i in range(n_hidden)))
        if any(hidden == plan.hidden for plan in plans):
            continue
        parts = []
        for c in classes:
            members = np.flatnonzero(targets == c)
            size = max(FEWEST_OF_A_CLASS, int(share * len(members)))
            parts.append(generator.permutation(members)[:size])
        plans.append(Fold(number, np.sort(np.concatenate(parts)), hidden))
    return plans


def rehearse(
    X: NDArray[Any],
    targets: NDArray[np.int64],
    fold: Fold,
    plan: FitPlan,
    context: FitContext,
    pace: float = 0.5,
    share: float | None = None,
) -> Rehearsal:
    """Fit short versions of stages 1 and 2 on the labelled samples of a fold, with its classes hidden.

    With a `share`, samples of the other classes are unlabelled, too: about that share of all unlabelled ones.
    """
    known = targets[fold.rows]
    left = np.setdiff1d(np.unique(known), fold.hidden)
    is_hidden = np.isin(known, fold.hidden)
    seed = derive_seed(context.seed, "rehearsal", fold.number)
    classes = np.where(
        is_hidden, len(left) + np.searchsorted(fold.hidden, known), np.searchsorted(left, known)
    )
    among = is_hidden if share is None else is_hidden | _unlabelled_too(classes, is_hidden, share, seed)
    problem = Problem.from_checked(np.asarray(X[fold.rows]), np.where(among, UNLABELED, classes))
    short = plan.rehearsal(len(fold.hidden), problem.n_old_classes, pace, BATCH, mixed=share is not None)
    stages = run_stages(problem, short, context.changed(seed=seed, checkpoint=NoCheckpoint()))
    if stages.mixture is not None:
        return _mixed_rehearsal(problem, stages, classes, plan)
    found = stages.discovery
    z = embed(found.network, problem.inputs, problem.new_rows, normalize=plan.on_sphere)
    truth = np.searchsorted(fold.hidden, known[is_hidden])
    looks = plan.method.looks_at_samples
    samples = as_vectors(found.network, problem.inputs, problem.new_rows) if looks else None
    return Rehearsal(truth, found.pseudo_labels.numpy(), z.features, samples)


def _unlabelled_too(
    classes: NDArray[np.int64], is_hidden: NDArray[np.bool_], share: float, seed: int
) -> NDArray[np.bool_]:
    """Which samples of classes that are not hidden lose their label, too: at most half of each class."""
    wanted = share / max(1 - share, 1e-6) * is_hidden.sum()
    part = min(0.5, wanted / max((~is_hidden).sum(), 1))
    draw = torch.Generator().manual_seed(derive_seed(seed, "mix"))
    rows = np.flatnonzero(~is_hidden)
    out = np.zeros(len(classes), dtype=bool)
    if part > 0:
        out[rows[stratified(torch.from_numpy(classes[rows]), part, draw, leave=2).numpy()]] = True
    return out


def _mixed_rehearsal(
    problem: Problem, stages: Stages, classes: NDArray[np.int64], plan: FitPlan
) -> Rehearsal:
    """The outcome for all unlabelled samples of a rehearsal, and for those that are truly new."""
    mixture, discovery, n_old = stages.mixture, stages.discovery, problem.n_old_classes
    assert mixture is not None
    rows = problem.new_rows.numpy()
    labels, novelty = np.where(classes < n_old, classes, -1), np.zeros(len(classes), dtype=np.float32)
    given = np.ones(len(classes), dtype=bool)
    given[rows] = False
    labels[rows] = mixture.best_old.numpy()
    labels[rows[mixture.is_new.numpy()]] = n_old + discovery.pseudo_labels.numpy()
    novelty[rows] = 1 - mixture.p_old.numpy()
    n_new = len(discovery.centers)
    z = embed(discovery.network, problem.inputs, normalize=plan.on_sphere).features
    raw = raw_of_mixture(z, labels, given, novelty, n_old, n_new)
    right = np.zeros(len(classes), dtype=bool)
    right[rows] = named_right(classes[rows], labels[rows], np.arange(n_old))
    said_new, said_old = rows[labels[rows] >= n_old], rows[(labels[rows] >= 0) & (labels[rows] < n_old)]
    is_old = classes[rows] < n_old
    outcome = MixedOutcome(raw, (right[said_new], right[said_old]), float(is_old.mean()), mixture.share)
    truly = rows[~is_old]
    samples = None
    if plan.method.looks_at_samples:
        samples = as_vectors(discovery.network, problem.inputs, torch.from_numpy(truly))
    return Rehearsal(classes[truly] - n_old, labels[truly], z[torch.from_numpy(truly)], samples, outcome)


def recluster(rehearsal: Rehearsal, fold: Fold, plan: FitPlan, seed: int) -> Rehearsal:
    """What `rehearse` finds if only `readout` differs: the same features, clustered in another way."""
    options = plan.options
    how: str = getattr(options, "readout", "k-means")
    restarts: int = getattr(options, "kmeans_restarts", 10)
    number = derive_seed(seed, "rehearsal", fold.number)
    samples = rehearsal.samples if how == "agreed" else None
    settings = {"samples": samples, "restarts": restarts, "seed": number}
    found = cluster_features(rehearsal.features, len(fold.hidden), how, **settings)  # type: ignore[arg-type]
    return rehearsal._replace(labels=found.labels.numpy())


class RehearsalProgress:
    """A watcher of a rehearsal. Reports its progress, as a share of all rehearsals, to the fit's watchers."""

    def __init__(
        self, history: History, stage: str, number: int, total: int, stages: tuple[str, ...]
    ) -> None:
        self.history, self.stage, self.number, self.total, self.stages = history, stage, number, total, stages

    def progress(self, stage: str, done: float, total: int) -> None:
        before = self.stages.index(stage) if stage in self.stages else 0
        share = (before + done / max(total, 1)) / len(self.stages)
        self.history.progress(self.stage, self.number + share, self.total)

    def __call__(self, row: dict[str, Any]) -> None:
        return None


def history_of_one(
    history: History, stage: str, number: int, total: int, plan: FitPlan, most: float | None = None
) -> History | None:
    """History of rehearsal `number` of `total`. It reports progress to the fit's watchers.

    Under a time budget it gets an even share of the time left for `stage`, or `most` seconds. None if no time
    is left.
    """
    stages, budget = plan.method.stages, None
    if history.budget is not None:
        seconds = history.budget.left(stage) / (total - number) if most is None else most
        if seconds <= 0:
            return None
        budget = Budget(seconds, stages)
    return History([RehearsalProgress(history, stage, number, total, stages)], budget)
