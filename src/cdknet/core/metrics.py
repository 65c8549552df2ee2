"""How good a discovery is. The only module that sees `HiddenTruth`.

Accuracy matches clusters and classes one to one (Hungarian). Purity, which the paper's code calls accuracy,
lets several clusters claim one class. It is never below accuracy, and here it is always printed beside it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, roc_auc_score

from cdknet.core.openworld import UNLABELED, HiddenTruth


class Contingency(NamedTuple):
    """How many samples each class and cluster have in common."""

    counts: NDArray[np.int64]  # (classes, clusters)
    classes: NDArray[Any]
    clusters: NDArray[Any]


def contingency(truth: ArrayLike, labels: ArrayLike) -> Contingency:
    truth, labels = np.asarray(truth), np.asarray(labels)
    if truth.ndim != 1 or truth.shape != labels.shape:
        raise ValueError(
            f"truth and labels must be two lists of one length. Got shapes {truth.shape} and {labels.shape}."
        )
    if not len(truth):
        raise ValueError("truth and labels must not be empty. Got no samples.")
    classes, rows = np.unique(truth, return_inverse=True)
    clusters, columns = np.unique(labels, return_inverse=True)
    counts = np.zeros((len(classes), len(clusters)), dtype=np.int64)
    np.add.at(counts, (rows, columns), 1)
    return Contingency(counts, classes, clusters)


def match_clusters(truth: ArrayLike, labels: ArrayLike) -> dict[Any, Any]:
    """Cluster -> class, by the one-to-one match with most samples right. Unmatched clusters are absent."""
    table = contingency(truth, labels)
    rows, columns = linear_sum_assignment(table.counts, maximize=True)
    return dict(zip(table.clusters[columns].tolist(), table.classes[rows].tolist(), strict=True))


def right_under_match(truth: ArrayLike, labels: ArrayLike) -> NDArray[np.bool_]:
    """(n,) which samples are right under the best one-to-one match of clusters and classes."""
    table = contingency(truth, labels)
    rows, columns = linear_sum_assignment(table.counts, maximize=True)
    match = np.full(len(table.clusters), -1)
    match[columns] = rows
    right: NDArray[np.bool_] = match[np.searchsorted(table.clusters, labels)] == np.searchsorted(
        table.classes, truth
    )
    return right


def clustering_accuracy(truth: ArrayLike, labels: ArrayLike) -> float:
    """Share of samples right under the best one-to-one match of clusters and classes (Hungarian)."""
    counts = contingency(truth, labels).counts
    rows, columns = linear_sum_assignment(counts, maximize=True)
    return float(counts[rows, columns].sum() / counts.sum())


def purity(truth: ArrayLike, labels: ArrayLike) -> float:
    """Share of samples that belong to the commonest class of their cluster."""
    counts = contingency(truth, labels).counts
    return float(counts.max(axis=0).sum() / counts.sum())


def nmi(truth: ArrayLike, labels: ArrayLike) -> float:
    """I(truth, labels) / sqrt(H(truth) H(labels)), section VI.D."""
    contingency(truth, labels)  # checks its arguments
    return float(normalized_mutual_info_score(truth, labels, average_method="geometric"))


def ari(truth: ArrayLike, labels: ArrayLike) -> float:
    """Adjusted Rand index, section VI.D."""
    contingency(truth, labels)
    return float(adjusted_rand_score(truth, labels))


class Scores(NamedTuple):
    """The four measures of one clustering."""

    acc: float
    purity: float
    nmi: float
    ari: float


def scores(truth: ArrayLike, labels: ArrayLike) -> Scores:
    """All four measures of `labels` against `truth`."""
    return Scores(
        clustering_accuracy(truth, labels), purity(truth, labels), nmi(truth, labels), ari(truth, labels)
    )


def new_class_scores(truth: HiddenTruth, labels: ArrayLike) -> Scores:
    """The four measures over the samples of new classes; `labels` has an entry for every sample."""
    labels = _one_label_each(truth, labels)
    _check_some_new(truth)
    return scores(truth.y[truth.is_new], labels[truth.is_new])


def expected_calibration_error(
    confidence: NDArray[np.floating[Any]], right: NDArray[np.bool_], bins: int = 10
) -> float:
    """Expected calibration error: mean gap between confidence and share right, over `bins` equal ranges."""
    which = np.minimum((np.asarray(confidence) * bins).astype(int), bins - 1)
    gaps = [abs(float((confidence - right)[which == b].sum())) for b in range(bins)]
    return sum(gaps) / len(confidence)


class ConfidenceScores(NamedTuple):
    """How good the confidences of some labels are."""

    expected: float  # mean confidence: the share that was expected to be right
    right: float  # the share that is right
    error: float  # expected calibration error
    ranking: float | None  # share of (right, wrong) pairs with the right one surer; None: all right, or none


def confidence_scores(right: NDArray[np.bool_], confidence: NDArray[np.floating[Any]]) -> ConfidenceScores:
    """Score the confidences of labels that are `right` or not, one entry per sample."""
    sure = np.asarray(confidence, dtype=np.float64)
    both = right.any() and not right.all()
    return ConfidenceScores(
        expected=float(sure.mean()),
        right=float(right.mean()),
        error=expected_calibration_error(sure, right),
        ranking=float(roc_auc_score(right, sure)) if both else None,
    )


def new_class_confidence(
    truth: HiddenTruth, labels: ArrayLike, confidence: NDArray[np.floating[Any]]
) -> ConfidenceScores:
    """The same over the samples of new classes; `labels` and `confidence` have an entry for every sample."""
    labels, sure = _one_label_each(truth, labels), _one_label_each(truth, confidence)
    _check_some_new(truth)
    new = truth.is_new
    return confidence_scores(right_under_match(truth.y[new], labels[new]), sure[new])


class OpenWorldReport(NamedTuple):
    """Accuracies under one assignment over all classes, reported for old and new classes separately."""

    all: float
    old: float | None  # None where there are no samples of old classes
    new: float
    new_scores: Scores  # over the samples of new classes alone
    matching: dict[Any, Any]  # label -> true class


def open_world_report(truth: HiddenTruth, labels: ArrayLike) -> OpenWorldReport:
    """Score labels of old and new samples together, under one assignment over all classes.

    Matching old and new classes separately would not punish a new class that got the name of an old one.
    """
    labels = _one_label_each(truth, labels)
    _check_some_new(truth)
    right = right_under_match(truth.y, labels)
    old = ~truth.is_new
    return OpenWorldReport(
        all=float(right.mean()),
        old=float(right[old].mean()) if old.any() else None,
        new=float(right[~old].mean()),
        new_scores=new_class_scores(truth, labels),
        matching=match_clusters(truth.y, labels),
    )


def named_right(
    truth: ArrayLike, labels: ArrayLike, old: ArrayLike, *, noise: Any = UNLABELED
) -> NDArray[np.bool_]:
    """(n,) which labels are right: of an old class by its name, of a new one under the best one-to-one match.

    `old` are the names of the old classes. Labels that are not among them are clusters. These are matched to
    the other true classes alone, so that an old class is never right under another name. The label `noise` is
    no cluster: it is right only where the truth has it, too.
    """
    truth, labels, old = np.asarray(truth), np.asarray(labels), np.asarray(old)
    contingency(truth, labels)  # checks its arguments
    right: NDArray[np.bool_] = truth == labels
    both = ~np.isin(truth, old) & ~np.isin(labels, old) & (labels.astype(str) != str(noise))
    right &= ~both
    if both.any():
        right[both] = right_under_match(truth[both], labels[both])
    return right


class MixedReport(NamedTuple):
    """Scores of unlabelled samples of which some are of old classes, by `named_right`."""

    all: float
    old: float | None  # over the samples of old classes; None if there are none
    new: float | None
    balanced: float  # mean over the true classes
    old_against_new: float | None  # balanced accuracy of the one decision, old or new
    auroc: float | None  # of the novelty, for the same decision


def mixed_report(
    truth: HiddenTruth,
    labels: ArrayLike,
    novelty: NDArray[np.floating[Any]] | None = None,
    *,
    old: ArrayLike | None = None,
    noise: Any = UNLABELED,
) -> MixedReport:
    """Score labels (and novelties) of mixed samples; the label `noise` counts as new.

    `old` are the names of the old classes, if the truth does not have samples of all of them.
    """
    labels = _one_label_each(truth, labels)
    new = truth.is_new
    old_names = np.setdiff1d(truth.y, np.asarray(truth.new_classes)) if old is None else np.asarray(old)
    right = named_right(truth.y, labels, old_names, noise=noise)
    both = bool(new.any() and not new.all())
    said_new = ~np.isin(labels, old_names)
    return MixedReport(
        all=float(right.mean()),
        old=float(right[~new].mean()) if not new.all() else None,
        new=float(right[new].mean()) if new.any() else None,
        balanced=float(np.mean([right[truth.y == c].mean() for c in np.unique(truth.y)])),
        old_against_new=float((said_new[new].mean() + (~said_new[~new]).mean()) / 2) if both else None,
        auroc=None if novelty is None or not both else float(roc_auc_score(new, novelty)),
    )


def old_class_accuracy(truth: HiddenTruth, labels: ArrayLike) -> float:
    """Share of the samples of old classes that got their true label. No matching."""
    labels = _one_label_each(truth, labels)
    old = ~truth.is_new
    if not old.any():
        raise ValueError("old_class_accuracy needs samples of old classes. Got none.")
    return float((labels[old] == truth.y[old]).mean())


def _one_label_each(truth: HiddenTruth, labels: ArrayLike) -> NDArray[Any]:
    if not isinstance(truth, HiddenTruth):
        raise TypeError(f"truth must be a HiddenTruth. Got {type(truth).__name__}. hide_classes makes one.")
    labels = np.asarray(labels)
    if labels.shape != (len(truth),):
        raise ValueError(f"labels must have one entry per sample ({len(truth)}). Got shape {labels.shape}.")
    return labels


def _check_some_new(truth: HiddenTruth) -> None:
    if not truth.is_new.any():
        raise ValueError(f"truth must hold samples of new classes {truth.new_classes}. Got none.")
