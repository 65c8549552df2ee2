"""Small problems with known answers that every stage and estimator is tried on."""

from __future__ import annotations

import numpy as np

from cdknet.training.problem import Problem


def blob_problem(n: int = 240, n_old: int = 3, n_new: int = 2, d: int = 6, seed: int = 0):
    """X, y (-1 for the new classes) and the true class of well-separated groups."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(0, 4, (n_old + n_new, d))
    truth = np.arange(n) % (n_old + n_new)
    X = (centres[truth] + generator.normal(0, 0.4, (n, d))).astype(np.float32)
    return X, np.where(truth < n_old, truth, -1), truth


# Fits that are over in a moment.
FEW = {
    "n_new_classes": 2,
    "unlabelled": "new",
    "calibrate": False,
    "random_state": 0,
    "pretrain_epochs": 2,
    "discover_epochs": 2,
    "view_steps": 2,
    "head_steps": 2,
    "expand_epochs": 1,
    "expand_steps": 2,
    "kmeans_restarts": 2,
}


def blobs_for_stages(**kwargs) -> tuple[Problem, np.ndarray]:
    X, y, truth = blob_problem(**kwargs)
    return Problem.from_arrays(X, y), truth


class MemoryCheckpoint:
    """Keeps snapshots in memory; may raise at a chosen save, as a kill would."""

    def __init__(self, die_at: int | None = None) -> None:
        self.kept, self.saves, self.die_at = {}, 0, die_at

    def load(self, stage):
        return self.kept.get(stage)

    def save(self, stage, snapshot):
        self.kept[stage] = snapshot
        self.saves += 1
        if self.saves == self.die_at:
            raise KeyboardInterrupt
