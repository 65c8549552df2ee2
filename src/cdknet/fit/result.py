"""Everything a fit learned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdknet.fit.plan import FitPlan
from cdknet.nets.model import Blueprint, Model
from cdknet.nets.network import Network
from cdknet.runs.format import NOISE, free_name


@dataclass(frozen=True)
class FitResult:
    """The source of the estimator's attributes and of a run folder (`cdknet.fit.codec`)."""

    plan: FitPlan
    params: dict[str, Any]  # as given; `tuning` has what was selected instead
    seed: int
    classes: NDArray[Any]  # names: old ones, then new ones
    model: Model
    blueprint: Blueprint
    labels: NDArray[np.int64]  # (n,) positions in `classes`; NOISE: set aside
    given: NDArray[np.bool_]  # (n,) the label was given
    confidence: NDArray[np.float32]  # (n,)
    novelty: NDArray[np.float32]  # (n,) P(not of an old class)
    best_old: NDArray[np.int64] | None  # (n,) the old class that a sample resembles most; older runs: None
    mixture: (
        dict[str, Any] | None
    )  # share of old samples among the unlabelled; None: all were taken to be new
    embedding: NDArray[np.float32]  # (n, d) features
    pseudo_labels: NDArray[np.int64]  # of the unlabelled rows, after stage 2; -1: classified as old
    spectral_embedding: NDArray[Any] | None  # U
    spectral_rows: NDArray[np.int64] | None  # the rows of X that the rows of U belong to
    validation_accuracy: float | None  # of stage 1
    given_accuracy: float | None  # share of the given labels that `predict` reproduces
    chosen: dict[str, str]  # what "auto" stood for
    history: list[dict[str, Any]]
    spent: dict[str, float]  # seconds of each stage
    calibration: dict[str, Any]
    tuning: dict[str, Any] | None
    n_classes: dict[str, Any] | None = None  # how the number of new classes was found; None: it was given
    stage_networks: dict[str, Network] = field(default_factory=dict)  # empty in a loaded result

    @property
    def n_new_classes(self) -> int:
        return self.blueprint.n_new_classes

    @property
    def names(self) -> NDArray[Any]:
        """(n,) the class name of each sample; for noise -1, or "noise" where classes have names."""
        if not (self.labels == NOISE).any():
            named: NDArray[Any] = self.classes[self.labels]
            return named
        noise: Any = NOISE
        if self.classes.dtype.kind not in "iu":
            noise = free_name("noise", self.classes.tolist())
        return np.append(self.classes, np.array([noise]))[self.labels]

    @property
    def class_confidence(self) -> NDArray[np.float64]:
        """For each new class, the mean confidence of its unlabelled samples; 0 where it has none."""
        n_old = len(self.classes) - self.n_new_classes
        of = [~self.given & (self.labels == c) for c in range(n_old, len(self.classes))]
        return np.array([float(self.confidence[rows].mean()) if rows.any() else 0.0 for rows in of])

    @property
    def overall_confidence(self) -> float:
        """The expected share of unlabelled samples whose label is right."""
        return float(self.confidence[~self.given].mean(dtype=np.float64))
