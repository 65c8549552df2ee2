"""Convert a fit's result to the contents of a run folder, and back."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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
from cdknet.runs.schema import filled
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
        config=filled(
            {
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
            }
        ),
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
    config, weights = run.config, dict(run.weights)
    params = options_of_run(config)
    shape = run.sample_shape
    try:
        blueprint = Blueprint(**{**config["blueprint"], "sample_shape": shape})
        classes, scale, pseudo_labels = (
            np.asarray(config["classes"]),
            config["scale"],
            weights["pseudo_labels"],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"The run must hold a whole model. Got one without {error}.") from None
    used = {name: from_plain(value) for name, value in used_options(config).items()}
    used = {**params, **{name: value for name, value in used.items() if name in params}}
    blueprint.check(sum(weight.size for weight in weights.values()))
    used = {**used, "n_new_classes": blueprint.n_new_classes}  # as given or found
    try:
        plan = resolve(used, shape, blueprint.n_old_classes, context)
    except ValueError as error:
        raise ValueError(f"The run's options must be those of a fit. Got: {error}") from None
    _check_points(weights, len(classes), run.features.shape[1], int((~run.given).sum()))
    try:
        network = blueprint.build(encoder)
        model = Model.from_arrays(
            weights,
            network.to(context.device),
            n_classes=len(classes),
            normalize=bool(config.get("on_sphere", plan.on_sphere)),
            scale=scale,
            neighbors=getattr(plan.options, "neighbors", DEFAULT_NEIGHBORS),
        )
    except (RuntimeError, LookupError, TypeError, ArithmeticError) as error:
        raise ValueError(f"The run's weights must fit its network. Got {error}.") from None
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
        embedding=run.embedding["features"],
        pseudo_labels=pseudo_labels,
        spectral_embedding=weights.get("spectral_embedding"),
        spectral_rows=weights.get("spectral_rows"),
        validation_accuracy=config["validation_accuracy"],
        given_accuracy=config["given_accuracy"],
        chosen=config["chosen"],
        history=run.history,
        spent=config["spent"],
        calibration=run.calibration,
        tuning=config["tuning"],
        n_classes=config["n_classes"],
    )


def _check_points(weights: Mapping[str, NDArray[Any]], n_classes: int, d: int, n_unlabelled: int) -> None:
    """Raise unless the arrays besides the network's are of the shapes that a model has."""
    wanted: dict[str, tuple[int | None, ...]] = {
        "centers": (n_classes, d),
        "voters": (None, d),
        "votes": (None,),
        "pseudo_labels": (n_unlabelled,),
        "spectral_embedding": (None, None),
        "spectral_rows": (None,),
    }
    for name, shape in wanted.items():
        array = weights.get(name)
        if array is None:
            continue
        fits = array.ndim == len(shape) and all(
            b in (None, a) for a, b in zip(array.shape, shape, strict=True)
        )
        kinds = "iu" if len(shape) == 1 else "f"
        finite = np.isfinite(array)
        if name == "centers" and fits:
            finite |= np.isnan(array).all(axis=1, keepdims=True)  # a class without samples has no centre
        if not fits or array.dtype.kind not in kinds or not finite.all():
            got = f"{name} of {array.dtype} in the shape {array.shape}"
            raise ValueError(f"The run's weights must fit together. Got {got}.")


def options_of_run(config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a fit as given: every option by name, and the method."""
    given = {name: from_plain(value) for name, value in config["options"].items()}
    every = {name: one.default for name, one in all_options().items()}
    known = {name: value for name, value in given.items() if name in every and value is not None}
    return {"method": given.get("method", DEFAULT_METHOD), **every, **known}
