"""Where the progress of a fit is saved, and which finished stages it may share with other fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import cdknet
from cdknet.fit.identity import learning_code, own_parts
from cdknet.fit.plan import FitPlan
from cdknet.options import ExpandOptions, NetworkOptions, PretrainOptions, TrustOptions
from cdknet.runs.checkpoints import Checkpoint, FolderCheckpoint, NoCheckpoint, StageCache
from cdknet.runs.files import plain
from cdknet.runs.fingerprints import fingerprint
from cdknet.training.context import FitContext


class Places(NamedTuple):
    """Folders of a fit."""

    checkpoint_dir: Path | None = None  # its progress
    stage_cache: Path | None = None  # finished stages, for other fits

    def check(self) -> None:
        """Raise unless each is a folder or does not exist yet."""
        for name, place in self._asdict().items():
            if place is not None and place.exists() and not place.is_dir():
                raise ValueError(f"{name} must be a folder, or not be there yet. Got the file {place}.")


def checkpoint_of(
    X: NDArray[Any],
    targets: NDArray[np.int64],
    params: Mapping[str, Any],
    plan: FitPlan,
    context: FitContext,
    places: Places,
) -> Checkpoint:
    """The checkpoint of a fit, valid only for its data, its parameters and the user's own parts."""
    if places == Places():
        return NoCheckpoint()
    data, parts = fingerprint(X, targets), own_parts(context)
    job = {"method": plan.method.name, **{name: plain(value) for name, value in params.items()}}
    job |= {"own parts": parts, "seed": context.seed, "cdknet": cdknet.__version__, "data": data}
    inner = None if places.checkpoint_dir is None else FolderCheckpoint(places.checkpoint_dir, job)
    if places.stage_cache is None or plan.options.time_budget is not None or plan.tunes:
        return inner or NoCheckpoint()  # stages that end early, or with options not known yet, are not shared
    return StageCache(places.stage_cache, _stage_keys(plan, context, data, parts), inner)


def _stage_keys(plan: FitPlan, context: FitContext, data: str, parts: list[Any]) -> dict[str, list[Any]]:
    """What determines the outcome of each stage that may be shared. Functions cannot be compared."""

    def values(names: list[str]) -> list[Any]:
        return [[name, plain(getattr(plan.options, name))] for name in names]

    every = [f.name for f in fields(plan.options)]
    first_groups = {f.name for group in (NetworkOptions, PretrainOptions) for f in fields(group)}
    later = {f.name for group in (ExpandOptions, TrustOptions) for f in fields(group)}
    clustering = {"readout", "kmeans_restarts"} if plan.method.clusterings else set()
    first = [context.seed, data, learning_code(), context.device.type, parts[0]]
    first += values([name for name in every if name in first_groups])
    keys = {"pretrain": first}
    if context.clusterer is None and context.views is None:
        second = [name for name in every if name not in first_groups | later | clustering]
        keys["discover"] = [*first, plan.method.name, *values(second)]
        keys["sort"] = keys["discover"]
        keys["cluster"] = [*keys["discover"], *values(sorted(clustering))]
    return keys
