"""Every choice of a fit, made once: after `resolve` nothing is "auto" and nothing is unset."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from cdknet.core.clustering import check_clusterer
from cdknet.inputs.kind import SampleKind, kind_of
from cdknet.methods import method_of
from cdknet.methods.base import Method, Situation
from cdknet.nets.architectures import ARCHITECTURES, ENCODER_FEATURES, UNTRAINED, choose_architecture
from cdknet.nets.augment import Views, check_views, view_function
from cdknet.nets.network import bfloat16_works, has_bfloat16
from cdknet.options import METHODS, MethodOptions, check_choice, check_values, seconds_of
from cdknet.runs.files import plain
from cdknet.training.budget import Budget
from cdknet.training.context import FitContext


@dataclass(frozen=True)
class FitPlan:
    """Every choice of a fit. Pipeline, rehearsals, tuning, refinement and the run folder read it."""

    method: Method[Any]
    options: MethodOptions  # all of them set
    shape: tuple[int, ...]  # of a sample
    n_old_classes: int
    tunes_if_room: bool = False  # only if the time budget leaves room for it
    own_parts: frozenset[str] = frozenset()  # which of encoder, clusterer and views are the user's

    @property
    def kind(self) -> SampleKind:
        return kind_of(self.shape)

    @property
    def on_sphere(self) -> bool:
        """Whether features are scaled to unit length."""
        return self.method.normalizes(self.options)

    @property
    def tunes(self) -> bool:
        """Whether the fit first selects options, on hidden old classes."""
        return self.options.tune == "old-classes"

    @property
    def trains(self) -> bool:
        """Whether there is a network to train."""
        return self.options.network not in UNTRAINED

    @property
    def chosen(self) -> dict[str, str]:
        """What "auto" stands for, as shown to the user."""
        out = {"network": "encoder" if "encoder" in self.own_parts else self.options.network}
        out["precision"] = self.options.precision
        for name in ("views", "lead") if hasattr(self.options, "lead") else ():
            out[name] = "your own" if name in self.own_parts else getattr(self.options, name)
        return out

    def views_of_stage_3(self, context: FitContext) -> Views | None:
        """The views that stage 3 shows; None for methods without views."""
        name = getattr(self.options, "views", None)
        return None if name is None or not self.method.shows_views else view_function(name, context.views)

    def budget(self, *, counts: bool = False) -> Budget | None:
        """The time budget of the fit, divided over its stages; None without a budget.

        `counts`: the fit also has to find the number of new classes.
        """
        seconds = seconds_of(self.options.time_budget)
        return None if seconds is None else self.budget_of(seconds, tunes=self.tunes, counts=counts)

    def budget_of(self, seconds: float, *, tunes: bool, counts: bool = False) -> Budget:
        stages = (
            ["count"] * counts
            + ["tune"] * tunes
            + [*self.method.stages]
            + ["expand"] * (self.options.expansion != "none")
        )
        return Budget(seconds, stages + ["calibrate"] * self.options.calibrate)

    def rehearsal(
        self, n_hidden: int, n_old_classes: int, pace: float, most_new: int, *, mixed: bool = False
    ) -> FitPlan:
        """The same for a rehearsal: a share `pace` of the epochs and steps, and no expansion."""
        counted = [f.name for f in fields(self.options) if f.metadata["counts"]]
        short: dict[str, Any] = {name: math.ceil(pace * getattr(self.options, name)) for name in counted}
        if (size := getattr(self.options, "view_batch_size", None)) is not None:
            short["view_batch_size"] = min(size, most_new)
        short |= {"unlabelled": "mixed" if mixed else "new", "noise": False}
        options = replace(self.options, n_new_classes=n_hidden, expansion="none", **short)
        return replace(self, options=options, n_old_classes=n_old_classes)

    def as_json(self) -> dict[str, Any]:
        """Every choice as plain values."""
        options = {f.name: plain(getattr(self.options, f.name)) for f in fields(self.options)}
        return {"method": self.method.name, "kind": self.kind.name.lower(), **options}


def check_options(params: Mapping[str, Any], encoder: Any = None, clusterer: Any = None) -> MethodOptions:
    """The options of the method that `params` name, checked for consistency before any data are read."""
    params = {k: v.item() if isinstance(v, np.generic) else v for k, v in params.items()}
    check_choice("method", params["method"], METHODS)
    method = method_of(params["method"])
    if callable(params.get("views")):
        params["views"] = "auto"  # the option's value; the function itself is one of the user's own parts
    check_values(params)
    options: MethodOptions = method.options.named(params)
    if encoder is not None and not isinstance(encoder, nn.Module):
        raise TypeError(f"encoder must be a torch.nn.Module. Got {type(encoder).__name__}.")
    if params["n_new_classes"] is None and clusterer is not None:
        raise ValueError(
            "n_new_classes must be set with a clusterer of your own. Got None. Say how many new classes to "
            "look for."
        )
    check_clusterer(clusterer, options.n_new_classes, counts_vary=method.counts_vary)
    untrained = options.network in UNTRAINED
    if untrained and (not method.untrained or options.expansion != "none"):
        raise ValueError(
            f"network={options.network!r} has nothing to train: it needs method 'sscd' (k-means) or "
            f"'spectral', and expansion 'none'. Got {method.name!r} and {options.expansion!r}. For "
            "embeddings of your own, leave network as 'auto': a small network is trained on them."
        )
    if getattr(options, "detector", "spies") == "softmax" and options.unlabelled == "mixed" and untrained:
        raise ValueError(
            f"detector 'softmax' needs a stage 1 on the old classes. Got network={options.network!r}, which "
            "has none. Use another network, or detector 'spies'."
        )
    return options


def resolve(
    params: Mapping[str, Any], shape: tuple[int, ...], n_old_classes: int, context: FitContext
) -> FitPlan:
    """The plan of a fit, from its parameters, the shape of a sample and the number of old classes."""
    options = check_options(params, context.encoder, context.clusterer)
    if params["n_new_classes"] is None:
        raise ValueError("n_new_classes must be set in a plan. Got None. Give it, or find it first.")
    method, kind = method_of(params["method"]), kind_of(shape)
    options = method.resolve(options, Situation(kind, n_old_classes, context.clusterer is not None))
    set_now: dict[str, Any] = {"network": _network(options, method, shape)}
    set_now["feature_size"] = options.feature_size or _feature_size(set_now["network"], shape, context)
    own = context.encoder is not None
    set_now["standardize"] = not own if options.standardize is None else options.standardize
    set_now["precision"] = _precision(options, method, context)
    if (views := getattr(options, "views", None)) is not None:
        set_now["views"] = kind.value if views == "auto" else views
        check_views(set_now["views"], shape)
    timed = options.time_budget is not None
    tunes = options.tune == "old-classes" or (options.tune == "auto" and timed)
    set_now["tune"] = "old-classes" if tunes else "off"
    parts = {"encoder": context.encoder, "clusterer": context.clusterer, "views": context.views}
    return FitPlan(
        method,
        replace(options, **set_now),
        shape,
        n_old_classes,
        tunes_if_room=options.tune == "auto" and timed,
        own_parts=frozenset(name for name, part in parts.items() if part is not None),
    )


def _network(options: MethodOptions, method: Method[Any], shape: tuple[int, ...]) -> str:
    name = method.network if options.network == "auto" else options.network
    return choose_architecture(shape) if name == "paper" else name


def _feature_size(network: str, shape: tuple[int, ...], context: FitContext) -> int:
    """The network's own size of features."""
    if network in UNTRAINED and context.encoder is None:  # at most what a sample has
        return min(ARCHITECTURES[network].feature_size or math.prod(shape), math.prod(shape))
    return ENCODER_FEATURES if context.encoder is not None else ARCHITECTURES[network].feature_size


def _precision(options: MethodOptions, method: Method[Any], context: FitContext) -> str:
    """float32 or bfloat16, on the processor at hand."""
    precision = options.precision
    if precision == "auto":
        precision = "fastest" if method.is_fast and context.encoder is None else "float32"
    if precision == "fastest":
        precision = "bfloat16" if has_bfloat16(context.device) else "float32"
    elif precision == "bfloat16" and context.device.type == "cpu" and not bfloat16_works():
        raise ValueError(
            "precision 'bfloat16' needs a processor whose instructions for it work. Got one that lists AMX, "
            "where they fail. Use 'float32', or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before Python starts."
        )
    return precision


def device_of(device: str) -> torch.device:
    """The device of that name, if it exists; auto: a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)  # does it exist?
    except (RuntimeError, TypeError, AssertionError, NotImplementedError):
        raise ValueError(
            f"device must be auto, cpu, cuda or cuda:N, and be there. Got {device!r}. Use auto or cpu."
        ) from None
    return chosen
