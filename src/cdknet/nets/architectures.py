"""The paper's three architectures, our own ones, and how to build a network for samples of a given shape."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from cdknet.inputs.kind import LEAST_LENGTH, SampleKind, kind_of
from cdknet.nets.layers import (
    ChannelsLast,
    Crop,
    Dropout,
    OverTime,
    Quarters,
    Residual,
    channels_last,
    normalised,
)
from cdknet.nets.network import Intake, Network, Projection

LARGEST_FLATTENED = 200_000
LEAST_SIDE = {"paper-mnist": 6, "paper-cifar": 10}  # pixels


class Architecture(NamedTuple):
    """How to build a trunk for samples of a given shape, and what goes on top of it."""

    trunk: Callable[[tuple[int, ...]], nn.Sequential]
    feature_size: int
    dropout: float
    rectified: bool = True


def _pooled_relu(pool: nn.Module) -> tuple[nn.Module, nn.Module]:
    """ReLU after max pooling: the same result as before it, on a fraction of the values."""
    return pool, nn.ReLU()


def paper_mnist(shape: tuple[int, ...]) -> nn.Sequential:
    """The paper's network for MNIST and Fashion-MNIST: two 3x3 convolutions, one pooling."""
    channels = shape[0] if len(shape) == 3 else 1
    return channels_last(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        *_pooled_relu(nn.MaxPool2d(2)),
        Dropout(0.25),
        nn.Flatten(),
    )


def paper_cifar(shape: tuple[int, ...]) -> nn.Sequential:
    """The paper's network for CIFAR-100: two blocks of two 3x3 convolutions, each pooled."""
    channels = shape[0] if len(shape) == 3 else 1
    layers: list[nn.Module] = []
    for width in (32, 64):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3)]
        layers += [*_pooled_relu(nn.MaxPool2d(2)), Dropout(0.25)]
        channels = width
    return channels_last(*layers, nn.Flatten())


def paper_rf(shape: tuple[int, ...]) -> nn.Sequential:
    """The paper's network for RF-50: five stacks of two 1-D convolutions on I/Q slices."""
    channels = shape[0]
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [OverTime(channels, 128, 7, padding=3), nn.ReLU()]
        layers += [OverTime(128, 128, 5, padding=2), *_pooled_relu(nn.MaxPool2d((1, 2)))]
        channels = 128
    flattened = 128 * (shape[1] // 32)
    trunk = nn.Sequential(*layers, nn.Flatten(), nn.Linear(flattened, 256), nn.ReLU())
    for layer in trunk:  # He initialisation: with torch's default, the signal vanishes over eleven layers
        if isinstance(layer, (nn.Conv1d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.get_parameter("bias"))
    return trunk


def small(shape: tuple[int, ...]) -> nn.Sequential:
    """Made for two CPU cores: strided convolutions, batch normalisation, a final projection of two layers.

    Grey images: three strided convolutions. Colour images: residual blocks, trained on crops. I/Q:
    convolutions over time. Otherwise: dense layers.
    """
    kind = kind_of(shape)
    if kind is SampleKind.IQ:
        layers = normalised(shape[0], 64, 7, stride=2, flat=True) + normalised(
            64, 128, 5, stride=2, flat=True
        )
        layers += normalised(128, 128, 5, stride=2, flat=True) + normalised(128, 128, 3, flat=True)
        layers += [nn.AdaptiveAvgPool2d((1, 4)), nn.Flatten()]
        width = 512
    elif kind is SampleKind.COLOUR and min(shape[1:]) >= 16:
        layers = [Crop(), *normalised(shape[0], 64, 4, stride=2), *normalised(64, 128, 3, stride=2)]
        layers += [Residual(128), *normalised(128, 256, 3, stride=2), Residual(256)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        width = 256
    elif kind.is_image:
        first = 2 if min(shape[-2:]) >= 16 else 1
        channels = shape[0] if len(shape) == 3 else 1
        layers = [
            ChannelsLast(),
            *normalised(channels, 32, 3, stride=first),
            *normalised(32, 64, 3, stride=2),
        ]
        layers += [*normalised(64, 128, 3, stride=2), Quarters(), nn.Flatten()]
        width = 512
    else:
        layers = [nn.Flatten(), nn.Linear(math.prod(shape), 512, bias=False), nn.BatchNorm1d(512), nn.ReLU()]
        width = 512
    layers += [nn.Linear(width, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU()]
    return channels_last(*layers)


def bare(shape: tuple[int, ...]) -> nn.Sequential:
    """No layers: the sample, flattened."""
    return nn.Sequential(nn.Flatten())


def mlp(shape: tuple[int, ...]) -> nn.Sequential:
    """One hidden layer below the features: for vectors and precomputed embeddings."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 256), nn.ReLU(), Dropout(0.25))


ENCODER_FEATURES = 128  # size of the features on top of a user's own encoder
UNTRAINED = ("none", "pca")  # the samples themselves
ARCHITECTURES = {
    "paper-mnist": Architecture(paper_mnist, feature_size=128, dropout=0.5),
    "paper-cifar": Architecture(paper_cifar, feature_size=512, dropout=0.5),
    "paper-rf": Architecture(paper_rf, feature_size=128, dropout=0.0),
    "mlp": Architecture(mlp, feature_size=128, dropout=0.5),
    "small": Architecture(small, feature_size=128, dropout=0.0, rectified=False),
    "none": Architecture(bare, feature_size=0, dropout=0.0),
    "pca": Architecture(bare, feature_size=50, dropout=0.0),
}


def choose_architecture(shape: tuple[int, ...]) -> str:
    """The name of the paper's network for samples of this shape."""
    kind = kind_of(shape)
    if kind is SampleKind.COLOUR and min(shape[1:]) >= LEAST_SIDE["paper-cifar"]:
        return "paper-cifar"
    return "paper-mnist" if kind.is_image else "paper-rf" if kind is SampleKind.IQ else "mlp"


def build_network(
    shape: tuple[int, ...],
    n_classes: int,
    *,
    architecture: str = "paper",
    encoder: nn.Module | None = None,
    feature_size: int | None = None,
    statistics: tuple[Tensor, Tensor] | None = None,
) -> Network:
    """An untrained network for samples of `shape`; a copy of `encoder` is its trunk if one is given.

    `statistics` are the (mean, deviation) by which the input is standardised; without them it is unchanged.
    """
    if torch.get_default_dtype() != torch.float32:
        raise ValueError(
            "torch's default type must be float32, the type of our networks. Got "
            f"{torch.get_default_dtype()}. Call torch.set_default_dtype(torch.float32) first."
        )
    name = choose_architecture(shape) if architecture == "paper" else architecture
    design = ARCHITECTURES[name]
    if encoder is not None:
        trunk: nn.Module = copy.deepcopy(encoder).cpu()  # on any device: the network is moved as a whole
        add_channel, dropout, default_size = False, 0.0, ENCODER_FEATURES
    else:
        _check_fits(name, shape)
        trunk, dropout, default_size = design.trunk(shape), design.dropout, design.feature_size
        convolves = name in LEAST_SIDE or name == "small"
        add_channel = len(shape) == 2 and convolves and kind_of(shape) is SampleKind.GREY
    mean, scale = statistics if statistics is not None else (torch.zeros(1), torch.ones(1))
    intake = Intake(mean.clone(), scale.clone(), add_channel)
    width = _output_width(intake, trunk, shape)
    if name in UNTRAINED:
        size = min(feature_size or design.feature_size, width) if name == "pca" else width
        axes = nn.Linear(width, size) if name == "pca" else cast(nn.Linear, nn.Identity())
        return Projection(intake, trunk, axes, 0.0, nn.Linear(size, n_classes), rectified=False).frozen()
    size = feature_size or default_size
    rectified = encoder is not None or design.rectified
    penultimate, head = nn.Linear(width, size), nn.Linear(size, n_classes)
    network = Network(intake, trunk, penultimate, dropout, head, rectified=rectified)
    network.samples_meet |= encoder is not None  # a user's own layers may mix the samples of a batch
    return network


def _check_fits(name: str, shape: tuple[int, ...]) -> None:
    least = LEAST_SIDE.get(name, 0)
    if least and (len(shape) not in (2, 3) or min(shape[-2:]) < least):
        raise ValueError(
            f"network={name!r} needs images of at least {least} x {least} pixels. Got samples of shape "
            f"{shape}. Use network='mlp' or 'auto'."
        )
    if name == "paper-rf" and (len(shape) != 2 or shape[1] < LEAST_LENGTH):
        raise ValueError(
            f"network='paper-rf' needs samples of shape (channels, length >= {LEAST_LENGTH}). Got "
            f"{shape}. Use 'auto'."
        )


def _output_width(intake: Intake, trunk: nn.Module, shape: tuple[int, ...]) -> int:
    """Number of values that the trunk outputs for one sample."""
    was_training = trunk.training
    trunk.eval()
    try:
        with torch.no_grad():
            out = trunk(intake(torch.zeros(2, *shape)))
    except Exception as error:  # a user's own encoder may raise anything
        raise ValueError(
            f"The encoder must take float32 batches of shape (n, {', '.join(map(str, shape))}). "
            f"Got {type(error).__name__}: {error}."
        ) from error
    finally:
        trunk.train(was_training)
    if not isinstance(out, Tensor) or out.ndim < 2 or len(out) != 2:
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"The encoder must return one row per sample, (n, ...). Got {got} for two samples.")
    width = out[0].numel()
    if width > LARGEST_FLATTENED:
        raise ValueError(
            f"The layer below the features must have at most {LARGEST_FLATTENED:,} outputs. Got {width:,} "
            f"for samples of shape {shape}. Make the samples smaller, or pass an encoder that pools."
        )
    return width
