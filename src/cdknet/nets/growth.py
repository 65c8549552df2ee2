"""Expansion (stage 3): more outputs, units and filters. The values of old outputs do not change."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import torch
from torch import nn

from cdknet.nets.network import Network


class Growth(NamedTuple):
    """A grown copy of a network, and which of its weights belong to layers that grew."""

    network: Network
    grown: list[nn.Parameter]
    kept: list[nn.Parameter]


def grow(network: Network, strategy: str, n_new_classes: int, extra_units: float = 0.25) -> Growth:
    """A copy of `network` with `n_new_classes` more outputs; its logits of old classes do not change.

    `last`: outputs only. `last-two` (the paper's): also `extra_units` more features. `all`: also every
    layer of the trunk, convolution filters doubled.
    """
    network = copy.deepcopy(network)
    grown_layers: list[nn.Module] = []
    extra_inputs = 0
    if strategy == "all":
        extra_inputs = _grow_trunk(network.trunk, extra_units, network.penultimate.in_features)
        grown_layers += [layer for layer in network.trunk.modules() if isinstance(layer, _GROWABLE)]
    extra_features = 0
    if strategy in ("last-two", "all"):
        extra_features = math.ceil(extra_units * network.penultimate.out_features)
        network.penultimate = _wider(network.penultimate, extra_features, extra_inputs)
        grown_layers.append(network.penultimate)
    network.head = _wider(network.head, n_new_classes, extra_features)
    grown_layers.append(network.head)
    fast = {id(weight) for layer in grown_layers for weight in layer.parameters()}
    return Growth(
        network,
        [weight for weight in network.trainable() if id(weight) in fast],
        [weight for weight in network.trainable() if id(weight) not in fast],
    )


_GROWABLE = (nn.Linear, nn.Conv1d, nn.Conv2d)

_SHAPELESS = (nn.ReLU, nn.Dropout, nn.MaxPool1d, nn.MaxPool2d, nn.Flatten)


def check_growable(trunk: nn.Module) -> nn.Sequential:
    """Return the trunk if it is a plain sequence of layers that can all grow, else raise."""
    if isinstance(trunk, nn.Sequential):
        kinds = _GROWABLE + _SHAPELESS
        odd = [part for part in trunk if not isinstance(part, kinds) or getattr(part, "groups", 1) != 1]
        if not odd:
            return trunk
        trunk = odd[0]
    raise ValueError(
        "expansion='all' needs a network that is an nn.Sequential of Linear, Conv1d, Conv2d, ReLU, pooling, "
        f"Dropout and Flatten. Got {type(trunk).__name__} in it. Use network='paper' or expansion='last-two'."
    )


def _grow_trunk(trunk: nn.Module, extra_units: float, width_below: int) -> int:
    """Widen every layer of a plain sequential trunk in place; return how many outputs it gained."""
    trunk = check_growable(trunk)
    extra, last_width = 0, 0  # channels that the layer below gained, channels it had
    for index, layer in enumerate(trunk):
        if isinstance(layer, nn.Linear):
            extra = extra * (layer.in_features // last_width) if last_width else 0  # flattened maps
            more = math.ceil(extra_units * layer.out_features)
            trunk[index] = _wider(layer, more, extra)
            extra, last_width = more, layer.out_features
        elif isinstance(layer, (nn.Conv1d, nn.Conv2d)):
            trunk[index] = _more_filters(layer, layer.out_channels, extra)
            extra, last_width = layer.out_channels, layer.out_channels
    return extra * (width_below // last_width) if last_width else 0


def _wider(layer: nn.Linear, more_out: int, more_in: int) -> nn.Linear:
    """A copy of `layer` with more outputs and inputs after the old ones; see `_keep_old`."""
    wide = nn.Linear(layer.in_features + more_in, layer.out_features + more_out, bias=layer.bias is not None)
    _keep_old(layer, wide)
    return wide


def _more_filters(layer: nn.Conv1d | nn.Conv2d, more_out: int, more_in: int) -> nn.Conv1d | nn.Conv2d:
    """The same for a convolution."""
    wide = type(layer)(
        layer.in_channels + more_in,
        layer.out_channels + more_out,
        layer.kernel_size,  # type: ignore[arg-type]
        stride=layer.stride,  # type: ignore[arg-type]
        padding=layer.padding,  # type: ignore[arg-type]
        dilation=layer.dilation,  # type: ignore[arg-type]
        bias=layer.bias is not None,
    )
    _keep_old(layer, wide)
    return wide


def _keep_old(layer: nn.Module, wide: nn.Module) -> None:
    """Copy old weights. Old outputs give new inputs weight 0; new outputs start as in a new layer."""
    old = layer.get_parameter("weight")
    wide.to(old.device, old.dtype)
    n_out, n_in = old.shape[:2]
    with torch.no_grad():
        weight = wide.get_parameter("weight")
        weight[:n_out, :n_in] = old
        weight[:n_out, n_in:] = 0
        if layer.bias is not None:
            wide.get_parameter("bias")[:n_out] = layer.get_parameter("bias")
    for name, parameter in layer.named_parameters():
        wide.get_parameter(name).requires_grad_(parameter.requires_grad)
