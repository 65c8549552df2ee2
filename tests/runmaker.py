"""Run folders without training, for tests of code that reads runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cdknet.runs.format import Run, write_run

SHAPES = {"image": (8, 8), "colour": (3, 10, 12), "radio": (2, 64), "vector": (6,)}


def make_run(
    folder: Path,
    *,
    n: int = 300,
    n_old: int = 3,
    n_new: int = 2,
    d: int = 8,
    kind: str = "image",
    samples: bool = True,
    ids: list[str] | None = None,
    names: list[str] | None = None,
    options: dict[str, object] | None = None,
    seed: int = 0,
) -> Path:
    """A run of well-separated classes, the first `n_old` labelled; confidences are in labels.csv alone."""
    generator = np.random.default_rng(seed)
    m = n_old + n_new
    centers = generator.normal(0, 3, (m, d))
    labels = np.arange(n) % m
    features = (centers[labels] + generator.normal(0, 0.5, (n, d))).astype(np.float32)
    shape = SHAPES[kind]
    X = generator.normal(0, 1, (n, *shape)).astype(np.float32)
    if kind in ("image", "colour"):
        X = np.clip(100 + 40 * X + 20 * labels.reshape(-1, *[1] * len(shape)), 0, 255).astype(np.uint8)
    names = names or [f"kind {i}" for i in range(n_old)] + [f"new-{i + 1}" for i in range(n_new)]
    confidence = np.where(labels < n_old, 1.0, generator.uniform(0.3, 1, n))
    blueprint = {"architecture": "mlp", "sample_shape": shape, "n_old_classes": n_old, "n_new_classes": n_new}
    rows = [
        {
            "id": ids[i] if ids else f"row {i}",
            "label": names[c],
            "given": str(int(c < n_old)),
            "new": str(int(c >= n_old)),
            "confidence": f"{confidence[i]:.4f}",
        }
        for i, c in enumerate(labels)
    ]
    run = Run(
        config={
            "options": options or {"expansion": "last", "label_weight": 1.0},
            "blueprint": blueprint,
            "classes": names,
            "seed": seed,
            "source": "nowhere/made-up.npz",
            "versions": {"cdknet": "0"},
            "columns": [f"column {j}" for j in range(shape[0])] if kind == "vector" else None,
        },
        history=[{"stage": "pretrain", "epoch": 1, "loss": 0.5, "seconds": 0.1}],
        weights={"nothing": np.zeros(1, dtype=np.float32)},
        embedding={"features": features, "map": features[:, :2]},
        labels=rows,
        samples=X if samples else None,
    )
    return write_run(folder, run)
