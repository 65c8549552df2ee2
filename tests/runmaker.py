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
    mixture: bool = False,
    texts: list[str] | None = None,
    seed: int = 0,
) -> Path:
    """A run of well-separated classes, the first `n_old` labelled; confidences are in labels.csv alone.

    With `mixture`, a third of the samples of old classes came without a label and were recognised, a few
    samples were set aside as noise, and those of a new class resemble all old classes in turn.
    """
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
    turn = np.arange(n) // m
    given = (labels < n_old) & ~(mixture & (turn % 3 == 2))
    noise = mixture & ~given & (turn % 20 == 11)
    confidence = np.where(given, 1.0, generator.uniform(0.3, 1, n))
    blueprint = {"architecture": "mlp", "sample_shape": shape, "n_old_classes": n_old, "n_new_classes": n_new}
    rows = [
        {
            "id": ids[i] if ids else f"row {i}",
            "label": "noise" if noise[i] else names[c],
            "given": str(int(given[i])),
            "new": str(int(c >= n_old and not noise[i])),
            "confidence": f"{confidence[i]:.4f}",
        }
        for i, c in enumerate(labels)
    ]
    embedding = {"features": features, "map": features[:, :2]}
    found = None
    if mixture:
        novelty = np.where(labels < n_old, generator.uniform(0, 0.4, n), generator.uniform(0.6, 1, n))
        embedding["novelty"] = np.where(given, 0, novelty).astype(np.float32)
        embedding["best_old"] = np.where(labels < n_old, labels, turn % n_old)
        old, new = (int((~given & ~noise & (labels < n_old)).sum()), int((~noise & (labels >= n_old)).sum()))
        found = {"share": 0.3, "interval": [0.2, 0.4], "spies": 20, "old": old, "new": new}
        found["noise"] = int(noise.sum())
    run = Run(
        config={
            "options": options or {"expansion": "last", "label_weight": 1.0},
            "blueprint": blueprint,
            "classes": names,
            "seed": seed,
            "source": "nowhere/made-up.npz",
            "versions": {"cdknet": "0"},
            "mixture": found,
            "columns": [f"column {j}" for j in range(shape[0])] if kind == "vector" and not texts else None,
        },
        history=[{"stage": "pretrain", "epoch": 1, "loss": 0.5, "seconds": 0.1}],
        weights={"nothing": np.zeros(1, dtype=np.float32)},
        embedding=embedding,
        labels=rows,
        samples=X if samples else None,
        texts=texts,
    )
    return write_run(folder, run)
