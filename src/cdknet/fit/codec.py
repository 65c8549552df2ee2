"""A fitted estimator as the contents of a run folder, and back."""

from __future__ import annotations

import numbers
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

import cdknet
from cdknet.data.checks import row_ids
from cdknet.nets.model import Blueprint, Model, device_of
from cdknet.runs.files import from_plain, plain
from cdknet.runs.format import Run

if TYPE_CHECKING:
    from cdknet.estimators import ClassDiscovery

# Parameters that are not kept: a user's own parts, and what says nothing about the model.
UNSAVED = ("encoder", "clusterer", "checkpoint_dir", "stage_cache", "watchers", "device")


def _kept(model: ClassDiscovery) -> dict[str, Any]:
    """The parameters of the fit. A seed is kept; of a generator, `seed_` says what it gave."""
    params = {k: v for k, v in model._fit_params.items() if k not in UNSAVED}
    seed = params["random_state"]
    return params | {"random_state": seed if isinstance(seed, numbers.Integral) else None}


def run_of(model: ClassDiscovery, ids: Sequence[str] | None, config: Mapping[str, Any]) -> Run:
    """A fitted estimator as a run; `ids` name its samples, `config` is added to config.json."""
    names = [str(name) for name in (row_ids(len(model.labels_)) if ids is None else ids)]
    if len(names) != len(model.labels_):
        raise ValueError(f"ids must name every sample ({len(model.labels_)}). Got {len(names)}.")
    new = np.isin(model.labels_, model.classes_[-model.n_new_classes_ :])
    columns = zip(names, model.labels_, model.given_, new, model.confidence_, strict=True)
    weights = model.model_.arrays()
    if model.spectral_embedding_ is not None and model.spectral_rows_ is not None:
        weights["spectral_embedding"] = model.spectral_embedding_
        weights["spectral_rows"] = model.spectral_rows_
    weights["pseudo_labels"] = model.pseudo_labels_
    return Run(
        config={
            "options": {k: plain(v) for k, v in _kept(model).items()},
            "blueprint": model.blueprint_._asdict(),
            "feature_names": list(getattr(model, "feature_names_in_", [])) or None,
            "classes": model.classes_.tolist(),
            "n_features_in": model.n_features_in_,
            "seed": model.seed_,
            "scale": model.model_.scale,
            "on_sphere": model.model_.normalize,
            "validation_accuracy": model.validation_accuracy_,
            "given_accuracy": model.given_accuracy_,
            "chosen": model.chosen_,
            "spent": model.spent_,
            "tuning": model.tuning_,
            "samples_digest": getattr(model, "_samples_digest", None),
            "confidence": {
                "overall": model.overall_confidence_,
                "classes": model.class_confidence_.tolist(),
                "calibration": model.calibration_,
            },
            "versions": {
                "cdknet": cdknet.__version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            **config,
        },
        history=model.history_,
        weights=weights,
        embedding={"features": model.embedding_, "confidence": model.confidence_},
        labels=[
            {
                "id": name,
                "label": str(label),
                "given": str(int(given)),
                "new": str(int(is_new)),
                "confidence": f"{confidence:.4f}",
            }
            for name, label, given, is_new, confidence in columns
        ],
    )


def restored(kind: type[ClassDiscovery], run: Run, encoder: nn.Module | None, device: str) -> ClassDiscovery:
    """The fitted estimator that a run was made of."""
    try:
        config = run.config
        known = {f for f in kind().get_params() if f not in UNSAVED}
        options = {k: from_plain(v) for k, v in config["options"].items() if k in known}
        new = kind(**options, encoder=encoder, device=device)
        new._fit_params = new.get_params(deep=False)
        blueprint = Blueprint(
            **{**config["blueprint"], "sample_shape": tuple(config["blueprint"]["sample_shape"])}
        )
        classes, scale = np.asarray(config["classes"]), float(config["scale"])
        if config.get("feature_names"):
            new.feature_names_in_ = np.asarray(config["feature_names"], dtype=object)
        new.n_features_in_, new.seed_ = int(config["n_features_in"]), int(config["seed"])
        new.validation_accuracy_ = config["validation_accuracy"]
        new.given_accuracy_ = config.get("given_accuracy")  # older runs do not say
        weights = dict(run.weights)
        new.spectral_embedding_ = weights.get("spectral_embedding")
        new.spectral_rows_ = weights.get("spectral_rows")
        new.pseudo_labels_ = weights["pseudo_labels"]
        labels = np.array([row["label"] for row in run.labels])
        new.labels_ = labels.astype(classes.dtype)
        new.given_ = np.array([row["given"] == "1" for row in run.labels])
        told = [row["confidence"] for row in run.labels]  # to four digits
        new.confidence_ = np.asarray(run.embedding.get("confidence", told), dtype=np.float32)
        new.chosen_ = config.get("chosen", {})
        new.spent_, new.tuning_ = config.get("spent", {}), config.get("tuning")
        new.calibration_ = config.get("confidence", {}).get("calibration", {"calibrated": False})
        new.embedding_, new.history_ = run.embedding["features"], run.history
        new._samples, new._samples_digest = run.samples, config.get("samples_digest")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"The run's config.json must be whole. Got {type(error).__name__}: {error}."
        ) from None
    blueprint.check(sum(weight.size for weight in weights.values()))
    network = blueprint.build(encoder)
    if len(classes) != blueprint.n_old_classes + blueprint.n_new_classes:
        raise ValueError(f"The run must name each of its classes. Got {len(classes)} names.")
    new.blueprint_ = blueprint
    new.model_ = Model.from_arrays(
        weights,
        network.to(device_of(device)),
        n_classes=len(classes),
        normalize=bool(config.get("on_sphere", new.normalize_features)),
        scale=scale,
        neighbors=new.neighbors,
    )
    new.classes_, new.n_new_classes_ = classes, blueprint.n_new_classes
    return new
