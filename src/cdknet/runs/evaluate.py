"""Scoring a run against a file of true classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cdknet.core.metrics import (
    ConfidenceScores,
    MixedReport,
    OpenWorldReport,
    Scores,
    confidence_scores,
    contingency,
    match_clusters,
    mixed_report,
    named_right,
    open_world_report,
    scores,
)
from cdknet.core.openworld import HiddenTruth
from cdknet.data import read_labels
from cdknet.runs.format import read_run


class Evaluation(NamedTuple):
    """Scores of the samples that were unlabelled in the run and have a true class in the file."""

    n_scored: int
    n_unlabelled: int
    n_strange: int  # ids in the truth that the run does not have
    n_contradicted: int  # given labels for which the truth has another old class
    scores: Scores
    confidence: ConfidenceScores
    calibrated: bool  # else confidences only rank samples and are not probabilities
    mixed: MixedReport | None  # if the truth has old classes: by name, the new ones matched one to one
    open_world: OpenWorldReport | None  # if the truth has both: one assignment over all classes
    matching: dict[str, str]  # label -> true class
    counts: list[list[int]]  # true class x label
    classes: list[str]
    labels: list[str]

    def as_json(self) -> dict[str, Any]:
        out = self._asdict() | {"scores": self.scores._asdict(), "confidence": self.confidence._asdict()}
        if self.open_world is not None:
            report = self.open_world
            out["open_world"] = {k: getattr(report, k) for k in ("all", "old", "new")}
        if self.mixed is not None:
            out["mixed"] = self.mixed._asdict()
        return out


def evaluate_run(folder: Path, truth_file: Path) -> Evaluation:
    """Compare the labels of the run's unlabelled samples with the truth, matched by id."""
    truth, run = read_labels(truth_file), read_run(folder)
    true_names = [truth.get(name) for name in run.ids]  # None where the truth does not have the sample
    known = np.array([name is not None for name in true_names])
    unlabelled = np.flatnonzero(~run.given)
    scored = np.flatnonzero(known & ~run.given)
    if not len(scored) and known.any():
        example = f"such as {run.ids[unlabelled[0]]!r}" if len(unlabelled) else "and the run has none"
        raise ValueError(
            f"{truth_file}: must have the class of a sample that was unlabelled, {example}. "
            "Got only samples whose class the run was given."
        )
    if not len(scored):
        raise ValueError(
            f"{truth_file}: ids must be those of labels.csv in {folder}, such as {run.ids[0]!r}. "
            f"Got {next(iter(truth))!r} and no match."
        )
    y, labels = np.array([true_names[i] for i in scored]), run.label_names[scored]
    old = set(run.class_names[: run.n_old])
    new = tuple(sorted(set(y.tolist()) - old))
    some_old = any(c in old for c in y.tolist())
    old_names = np.array(sorted(old))
    right = named_right(y, labels, old_names, noise=run.noise_name)
    report = None
    if some_old:
        novelty = run.novelty[scored]
        report = mixed_report(HiddenTruth(y, new), labels, novelty, old=old_names, noise=run.noise_name)
    table = contingency(y, labels)
    classes, clusters = by_name(table.classes.tolist()), by_name(table.clusters.tolist())
    given = np.flatnonzero(run.given)
    return Evaluation(
        n_scored=len(scored),
        n_unlabelled=len(unlabelled),
        n_strange=len(truth.keys() - set(run.ids)),
        n_contradicted=sum(true_names[i] in old - {run.label_names[i]} for i in given),
        scores=scores(y, labels),
        confidence=confidence_scores(right, run.confidence[scored]),
        calibrated=bool(run.calibration["calibrated"]),
        mixed=report,
        open_world=open_world_report(HiddenTruth(y, new), labels) if some_old and new else None,
        matching=match_clusters(y, labels),
        counts=table.counts[np.ix_(classes, clusters)].tolist(),
        classes=table.classes[classes].tolist(),
        labels=table.clusters[clusters].tolist(),
    )


def by_name(names: list[str]) -> list[int]:
    """Positions in the order of names: numbers by value (9 before 10), then the others."""

    def key(i: int) -> tuple[bool, float, str]:
        number = names[i].removeprefix("-").isdecimal()
        return not number, float(names[i]) if number else 0.0, names[i]

    return sorted(range(len(names)), key=key)
