"""Everything a fit learned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdknet.fit.plan import FitPlan
from cdknet.nets.model import Blueprint, Model
from cdknet.nets.network import Network


@dataclass(frozen=True)
class FitResult:
    """What the estimator copies into its attributes, and what a run folder holds (`cdknet.fit.codec`)."""

    plan: FitPlan
    params: dict[str, Any]  # as given; `tuning` says what was chosen in their place
    seed: int
    classes: NDArray[Any]  # names: old ones, then new ones
    model: Model
    blueprint: Blueprint
    labels: NDArray[np.int64]  # (n,) positions in `classes`
    given: NDArray[np.bool_]  # (n,) the label was given
    confidence: NDArray[np.float32]  # (n,)
    embedding: NDArray[np.float32]  # (n, d) features
    pseudo_labels: NDArray[np.int64]  # of the unlabelled rows, after stage 2; -1: taken for an old class
    spectral_embedding: NDArray[Any] | None  # U
    spectral_rows: NDArray[np.int64] | None  # the rows that U is about
    validation_accuracy: float | None  # of stage 1
    given_accuracy: float | None  # share of the given labels that `predict` answers with
    chosen: dict[str, str]  # what "auto" stood for
    history: list[dict[str, Any]]
    spent: dict[str, float]  # seconds of each stage
    calibration: dict[str, Any]
    tuning: dict[str, Any] | None
    stage_networks: dict[str, Network] = field(default_factory=dict)  # not in a loaded one

    @property
    def n_new_classes(self) -> int:
        return self.blueprint.n_new_classes

    @property
    def names(self) -> NDArray[Any]:
        """(n,) the label of each sample by its name."""
        named: NDArray[Any] = self.classes[self.labels]
        return named

    @property
    def class_confidence(self) -> NDArray[np.float64]:
        """For each new class, the mean confidence of its unlabelled samples; 0 where it has none."""
        n_old = len(self.classes) - self.n_new_classes
        of = [~self.given & (self.labels == c) for c in range(n_old, len(self.classes))]
        return np.array([float(self.confidence[rows].mean()) if rows.any() else 0.0 for rows in of])

    @property
    def overall_confidence(self) -> float:
        """The share of the unlabelled samples that are expected to be right."""
        return float(self.confidence[~self.given].mean(dtype=np.float64))
