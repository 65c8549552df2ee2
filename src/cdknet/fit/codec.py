"""Convert a fit's result to the contents of a run folder, and back."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import cdknet
from cdknet.data.checks import row_ids
from cdknet.fit.pipeline import DEFAULT_NEIGHBORS
from cdknet.fit.plan import device_of, resolve
from cdknet.fit.result import FitResult
from cdknet.nets.model import Blueprint, Model
from cdknet.options import DEFAULT_METHOD, all_options
from cdknet.runs.files import from_plain, plain
from cdknet.runs.format import Run, free_name
from cdknet.runs.summary import used_options
from cdknet.training.context import FitContext


def to_run(result: FitResult, ids: Sequence[str] | None, config: Mapping[str, Any]) -> Run:
    """The result as a run. `ids` are the names of its samples, `config` is added to config.json."""
    n, n_old = len(result.labels), len(result.classes) - result.n_new_classes
    names = [str(name) for name in (row_ids(n) if ids is None else ids)]
    if len(names) != n:
        raise ValueError(f"ids must name every sample ({n}). Got {len(names)}.")
    weights = result.model.arrays()
    if result.spectral_embedding is not None and result.spectral_rows is not None:
        weights["spectral_embedding"] = result.spectral_embedding
        weights["spectral_rows"] = result.spectral_rows
    weights["pseudo_labels"] = result.pseudo_labels
    columns = zip(names, result.labels, result.given, result.confidence, result.novelty, strict=True)
    classes = [str(name) for name in result.classes]
    named = [*classes, free_name("noise", classes)]  # the last one is that of NOISE
    embedding = {"features": result.embedding, "confidence": result.confidence, "novelty": result.novelty}
    if result.best_old is not None:
        embedding["best_old"] = result.best_old.astype(np.int32)
    return Run(
        config={
            "options": {k: plain(v) for k, v in result.params.items()},
            "plan": result.plan.as_json(),
            "blueprint": result.blueprint._asdict(),
            "classes": result.classes.tolist(),
            "seed": result.seed,
            "scale": result.model.scale,
            "on_sphere": result.model.normalize,
            "validation_accuracy": result.validation_accuracy,
            "given_accuracy": result.given_accuracy,
            "chosen": result.chosen,
            "mixture": result.mixture,
            "spent": result.spent,
            "tuning": result.tuning,
            "n_classes": result.n_classes,
            "confidence": {
                "overall": result.overall_confidence,
                "classes": result.class_confidence.tolist(),
                "calibration": result.calibration,
            },
            "versions": {
                "cdknet": cdknet.__version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            **config,
        },
        history=result.history,
        weights=weights,
        embedding=embedding,
        labels=[
            {
                "id": name,
                "label": named[label],
                "given": str(int(given)),
                "new": str(int(label >= n_old)),
                "confidence": f"{confidence:.4f}",
                "novelty": f"{novelty:.4f}",
            }
            for name, label, given, confidence, novelty in columns
        ],
    )


def from_run(run: Run, encoder: nn.Module | None = None, device: str = "auto") -> FitResult:
    """The result that a run was made from."""
    context = FitContext(encoder=encoder, device=device_of(device))
    try:
        config, weights = run.config, dict(run.weights)
        params = options_of_run(config)
        shape = tuple(config["blueprint"]["sample_shape"])
        blueprint = Blueprint(**{**config["blueprint"], "sample_shape": shape})
        classes, scale = np.asarray(config["classes"]), float(config["scale"])
        pseudo_labels = weights["pseudo_labels"]
        used = {name: from_plain(value) for name, value in used_options(config).items()}
        used = {**params, **{name: value for name, value in used.items() if name in params}}
        validation_accuracy, embedding = config["validation_accuracy"], run.embedding["features"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"The run's config.json must be whole. Got {type(error).__name__}: {error}."
        ) from None
    blueprint.check(sum(weight.size for weight in weights.values()))
    if len(classes) != blueprint.n_old_classes + blueprint.n_new_classes:
        raise ValueError(f"The run must name each of its classes. Got {len(classes)} names.")
    network = blueprint.build(encoder)
    used = {**used, "n_new_classes": blueprint.n_new_classes}  # as given or found
    plan = resolve(used, shape, blueprint.n_old_classes, context)
    model = Model.from_arrays(
        weights,
        network.to(context.device),
        n_classes=len(classes),
        normalize=bool(config.get("on_sphere", plan.on_sphere)),
        scale=scale,
        neighbors=getattr(plan.options, "neighbors", DEFAULT_NEIGHBORS),
    )
    return FitResult(
        plan=plan,
        params=params,
        seed=run.seed,
        classes=classes,
        model=model,
        blueprint=blueprint,
        labels=run.class_index,
        given=run.given,
        confidence=run.confidence,
        novelty=run.novelty,
        best_old=run.best_old,
        mixture=run.mixture,
        embedding=embedding,
        pseudo_labels=pseudo_labels,
        spectral_embedding=weights.get("spectral_embedding"),
        spectral_rows=weights.get("spectral_rows"),
        validation_accuracy=validation_accuracy,
        given_accuracy=config.get("given_accuracy"),  # older runs do not have it
        chosen=config.get("chosen", {}),
        history=run.history,
        spent=config.get("spent", {}),
        calibration=config.get("confidence", {}).get("calibration", {"calibrated": False}),
        tuning=config.get("tuning"),
        n_classes=config.get("n_classes"),
    )


def options_of_run(config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a fit as given: every option by name, and the method."""
    given = {name: from_plain(value) for name, value in config["options"].items()}
    every = {name: one.default for name, one in all_options().items()}
    known = {name: value for name, value in given.items() if name in every and value is not None}
    if "unlabelled" not in given:  # older versions: all were taken to be new, unless `novelty` was on
        known |= (
            {"unlabelled": "mixed", "detector": "softmax"} if given.get("novelty") else {"unlabelled": "new"}
        )
    return {"method": given.get("method", DEFAULT_METHOD), **every, **known}
