"""Scoring a run against a file of true classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cdknet.core.metrics import (
    ConfidenceScores,
    OpenWorldReport,
    Scores,
    confidence_scores,
    contingency,
    match_clusters,
    open_world_report,
    scores,
)
from cdknet.data import HiddenTruth, read_labels
from cdknet.runs.format import read_run


class Evaluation(NamedTuple):
    """Scores of the samples that were unlabelled in the run and have a true class in the file."""

    n_scored: int
    n_unlabelled: int
    n_strange: int  # ids of the truth that the run does not know
    n_contradicted: int  # given labels in whose place the truth has another old class
    scores: Scores
    confidence: ConfidenceScores
    calibrated: bool  # else the confidence ranks samples, and is no share that is right
    open_world: OpenWorldReport | None  # where the truth says that some of them are of old classes
    matching: dict[str, str]  # label -> true class
    counts: list[list[int]]  # true class x label
    classes: list[str]
    labels: list[str]

    def as_json(self) -> dict[str, Any]:
        out = self._asdict() | {"scores": self.scores._asdict(), "confidence": self.confidence._asdict()}
        if self.open_world is not None:
            report = self.open_world
            out["open_world"] = {k: getattr(report, k) for k in ("all", "old", "new")}
        return out


def evaluate_run(folder: Path, truth_file: Path) -> Evaluation:
    """Compare what the run calls its unlabelled samples with the truth, matched by id."""
    truth, run = read_labels(truth_file), read_run(folder)
    unlabelled = [row for row in run.labels if row["given"] == "0"]
    given = [row for row in run.labels if row["given"] == "1"]
    scored = [row for row in unlabelled if row["id"] in truth]
    if not scored and any(row["id"] in truth for row in run.labels):
        raise ValueError(
            f"{truth_file}: must have the class of a sample that was unlabelled, such as "
            f"{unlabelled[0]['id']!r}. Got only samples whose class the run was given."
        )
    if not scored:
        raise ValueError(
            f"{truth_file}: ids must be those of labels.csv in {folder}, such as {run.labels[0]['id']!r}. "
            f"Got {next(iter(truth))!r} and no match."
        )
    y = np.array([truth[row["id"]] for row in scored])
    labels = np.array([row["label"] for row in scored])
    sure = np.array([float(row["confidence"]) for row in scored])
    old = {str(c) for c in run.config["classes"][: run.config["blueprint"]["n_old_classes"]]}
    new = tuple(sorted(set(y.tolist()) - old))
    mixed = bool(new) and any(c in old for c in y.tolist())
    table = contingency(y, labels)
    classes, clusters = by_name(table.classes.tolist()), by_name(table.clusters.tolist())
    return Evaluation(
        n_scored=len(scored),
        n_unlabelled=len(unlabelled),
        n_strange=len(truth.keys() - {row["id"] for row in run.labels}),
        n_contradicted=sum(truth.get(row["id"]) in old - {row["label"]} for row in given),
        scores=scores(y, labels),
        confidence=confidence_scores(y, labels, sure),
        calibrated=bool(run.config.get("confidence", {}).get("calibration", {}).get("calibrated")),
        open_world=open_world_report(HiddenTruth(y, new), labels) if mixed else None,
        matching=match_clusters(y, labels),
        counts=table.counts[np.ix_(classes, clusters)].tolist(),
        classes=table.classes[classes].tolist(),
        labels=table.clusters[clusters].tolist(),
    )


def by_name(names: list[str]) -> list[int]:
    """The order of names: numbers by their value, 9 before 10, then the others."""

    def key(i: int) -> tuple[bool, float, str]:
        number = names[i].removeprefix("-").isdecimal()
        return not number, float(names[i]) if number else 0.0, names[i]

    return sorted(range(len(names)), key=key)
