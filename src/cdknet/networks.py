"""The network f_theta with its softmax head, and the paper's three architectures. No training here.

    input -> intake (float, standardised) -> trunk -> penultimate layer, ReLU: the features f(x) -> head

The trunk is one of ours or a user's own `nn.Module`. Expansion (stage 3) grows the last two layers,
or all of them: see `grow`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cdknet.inputs import Inputs
from cdknet.layers import ChannelsLast, Crop, Dropout, OverTime, Residual, channels_last, normalised

LARGEST_FLATTENED = 200_000
PORTION = 128  # samples that go through a trunk at a time on a CPU: its cache holds what they make


class Intake(nn.Module):
    """(x - mean) / scale, and the channel axis that a grey image lacks."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor, add_channel: bool) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.add_channel = add_channel

    def forward(self, x: Tensor) -> Tensor:
        if self.add_channel:
            x = x.unsqueeze(1)
        tail = (1,) * (x.ndim - 2)
        return (x - self.mean.view(-1, *tail)) / self.scale.view(-1, *tail)


class Network(nn.Module):
    """f_theta and its head. `features(x)` is f(x), `forward(x)` the logits of the classes known so far."""

    def __init__(
        self,
        intake: Intake,
        trunk: nn.Module,
        penultimate: nn.Linear,
        dropout: float,
        head: nn.Linear,
        *,
        rectified: bool = True,
    ) -> None:
        super().__init__()
        self.rectified = rectified  # ReLU after the penultimate layer
        self.in_bfloat16 = False  # while training, the trunk counts in bfloat16
        self.samples_meet = any(isinstance(layer, _BatchNorm) for layer in trunk.modules())  # in training
        self.intake = intake
        self.trunk = trunk
        self.penultimate: nn.Linear = penultimate
        self.dropout = Dropout(dropout)
        self.head = head

    def features(self, x: Tensor) -> Tensor:  # (n, d)
        short = self.in_bfloat16 and self.training
        with torch.autocast(x.device.type, torch.bfloat16) if short else nullcontext():
            values = torch.cat([self.trunk(part).flatten(1) for part in self._portions(self.intake(x))])
        z: Tensor = self.penultimate(values.float() if short else values)
        return torch.relu(z) if self.rectified else z

    def _portions(self, x: Tensor) -> tuple[Tensor, ...]:
        """The batch in parts that a processor's cache can hold; whole where samples meet, or on a GPU."""
        if x.device.type != "cpu" or (self.training and self.samples_meet):
            return (x,)
        portions: tuple[Tensor, ...] = x.split(PORTION)
        return portions

    def forward(self, x: Tensor) -> Tensor:  # (n, classes)
        return self.classify(self.features(x))

    def classify(self, features: Tensor) -> Tensor:
        """Logits from features that are at hand already."""
        logits: Tensor = self.head(self.dropout(features))
        return logits

    def train(self, mode: bool = True) -> Network:
        """As usual, but a trunk whose every weight is frozen keeps its running statistics too."""
        super().train(mode)
        weights = list(self.trunk.parameters())
        if weights and not any(weight.requires_grad for weight in weights):
            self.trunk.eval()
        return self

    def train_without_dropout(self) -> Network:
        """Training mode for methods that know no dropout: of a sample all steps see the same features."""
        self.train()
        for layer in self.modules():
            if isinstance(layer, nn.Dropout):
                layer.eval()
        return self

    def trainable(self) -> list[nn.Parameter]:
        """The weights that may change: all but those that were frozen."""
        return [weight for weight in self.parameters() if weight.requires_grad]

    @property
    def device(self) -> torch.device:
        return self.head.weight.device


class Projection(Network):
    """No network to train: features are what the trunk gives, as it is or on its leading principal axes.

    With an empty trunk, the samples themselves: for baselines, and for embeddings that are good already.
    """

    def frozen(self) -> Projection:
        for weight in self.parameters():
            weight.requires_grad_(False)
        return self

    def fit(self, inputs: Inputs, seed: int) -> Projection:
        """Set the principal axes from (at most 20,000 of) the samples, where there are axes to set."""
        if isinstance(self.penultimate, nn.Identity):
            return self
        from sklearn.decomposition import PCA

        draw = torch.Generator().manual_seed(seed)
        rows = torch.randperm(len(inputs), generator=draw)[:20_000].sort().values
        with torch.inference_mode():
            parts = [self.trunk(self.intake(inputs.take(part, self.device))) for part in rows.split(1024)]
        points = torch.cat([part.flatten(1).cpu() for part in parts]).numpy()
        size = min(self.penultimate.out_features, len(points))
        pca = PCA(size, svd_solver="randomized", random_state=seed % 2**32).fit(points)
        axes = torch.zeros_like(self.penultimate.weight)
        axes[:size] = torch.from_numpy(pca.components_)
        with torch.no_grad():
            self.penultimate.weight.copy_(axes)
            self.penultimate.bias.copy_(-axes @ torch.from_numpy(pca.mean_).to(axes))
        return self


class Architecture(NamedTuple):
    """How to build a trunk for samples of a shape, and what goes on top of it."""

    trunk: Callable[[tuple[int, ...]], nn.Sequential]
    feature_size: int
    dropout: float
    rectified: bool = True


def _pooled_relu(pool: nn.Module) -> tuple[nn.Module, nn.Module]:
    """ReLU, then the maximum of neighbours: the same the other way round, on a fraction of the values."""
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
    for layer in trunk:  # He's start: under torch's own, eleven layers pass on too little to learn from
        if isinstance(layer, (nn.Conv1d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.get_parameter("bias"))
    return trunk


def small(shape: tuple[int, ...]) -> nn.Sequential:
    """Made for two CPU cores: strided, normalised over the batch, a projection of two layers at the end.

    Grey pictures: three strided convolutions. Colour: residual blocks, trained on parts of the pictures.
    I/Q: over time. Else: dense layers.
    """
    if is_iq(shape):
        layers = normalised(shape[0], 64, 7, stride=2, flat=True) + normalised(
            64, 128, 5, stride=2, flat=True
        )
        layers += normalised(128, 128, 5, stride=2, flat=True) + normalised(128, 128, 3, flat=True)
        layers += [nn.AdaptiveAvgPool2d((1, 4)), nn.Flatten()]
        width = 512
    elif len(shape) == 3 and shape[0] >= 3 and min(shape[1:]) >= 16:
        layers = [Crop(), *normalised(shape[0], 64, 4, stride=2), *normalised(64, 128, 3, stride=2)]
        layers += [Residual(128), *normalised(128, 256, 3, stride=2), Residual(256)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        width = 256
    elif len(shape) in (2, 3) and min(shape[-2:]) >= 6:
        first = 2 if min(shape[-2:]) >= 16 else 1
        channels = shape[0] if len(shape) == 3 else 1
        layers = [
            ChannelsLast(),
            *normalised(channels, 32, 3, stride=first),
            *normalised(32, 64, 3, stride=2),
        ]
        layers += [*normalised(64, 128, 3, stride=2), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
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


ARCHITECTURES = {
    "paper-mnist": Architecture(paper_mnist, feature_size=128, dropout=0.5),
    "paper-cifar": Architecture(paper_cifar, feature_size=512, dropout=0.5),
    "paper-rf": Architecture(paper_rf, feature_size=128, dropout=0.0),
    "mlp": Architecture(mlp, feature_size=128, dropout=0.5),
    "small": Architecture(small, feature_size=128, dropout=0.0, rectified=False),
    "none": Architecture(bare, feature_size=0, dropout=0.0),
    "pca": Architecture(bare, feature_size=50, dropout=0.0),
}


def is_iq(shape: tuple[int, ...]) -> bool:
    """I/Q samples are (2, length); a picture two pixels high is not worth the doubt."""
    return len(shape) == 2 and shape[0] == 2 and shape[1] >= 32


def choose_architecture(shape: tuple[int, ...]) -> str:
    """The paper's network for samples of this shape."""
    if is_iq(shape):
        return "paper-rf"
    if len(shape) == 3 and shape[0] >= 3 and min(shape[1:]) >= 10:
        return "paper-cifar"
    if len(shape) in (2, 3) and min(shape[-2:]) >= 6:
        return "paper-mnist"
    return "mlp"


def build_network(
    shape: tuple[int, ...],
    n_classes: int,
    *,
    architecture: str = "auto",
    encoder: nn.Module | None = None,
    feature_size: int | None = None,
    statistics: tuple[Tensor, Tensor] | None = None,
) -> Network:
    """An untrained network for samples of `shape`; a copy of `encoder` is its trunk if one is given.

    `statistics` are the (mean, deviation) the input is standardised by; without them it passes as it is.
    """
    if torch.get_default_dtype() != torch.float32:
        raise ValueError(
            "torch's default type must be float32, in which networks count. Got "
            f"{torch.get_default_dtype()}. Call torch.set_default_dtype(torch.float32) first."
        )
    name = choose_architecture(shape) if architecture == "auto" else architecture
    design = ARCHITECTURES[name]
    if encoder is not None:
        trunk: nn.Module = copy.deepcopy(encoder).cpu()  # wherever it lives: the network is moved as a whole
        add_channel, dropout, default_size = False, 0.0, 128
    else:
        _check_fits(name, shape)
        trunk, dropout, default_size = design.trunk(shape), design.dropout, design.feature_size
        pictures = name in ("paper-mnist", "paper-cifar") or (
            name == "small" and choose_architecture(shape) != "mlp"
        )
        add_channel = len(shape) == 2 and not is_iq(shape) and pictures
    mean, scale = statistics if statistics is not None else (torch.zeros(1), torch.ones(1))
    intake = Intake(mean.clone(), scale.clone(), add_channel)
    width = _output_width(intake, trunk, shape)
    if name in ("none", "pca"):
        size = min(feature_size or design.feature_size, width) if name == "pca" else width
        axes = nn.Linear(width, size) if name == "pca" else cast(nn.Linear, nn.Identity())
        return Projection(intake, trunk, axes, 0.0, nn.Linear(size, n_classes), rectified=False).frozen()
    size = feature_size or default_size
    rectified = encoder is not None or design.rectified
    penultimate, head = nn.Linear(width, size), nn.Linear(size, n_classes)
    network = Network(intake, trunk, penultimate, dropout, head, rectified=rectified)
    network.samples_meet |= encoder is not None  # what a user's own layers do with a batch cannot be told
    return network


def _check_fits(name: str, shape: tuple[int, ...]) -> None:
    image, least = name in ("paper-mnist", "paper-cifar"), {"paper-mnist": 6, "paper-cifar": 10}.get(name, 0)
    if image and (len(shape) not in (2, 3) or min(shape[-2:]) < least):
        raise ValueError(
            f"network={name!r} needs images of at least {least} x {least} pixels. Got samples of shape "
            f"{shape}. Use network='mlp' or 'auto'."
        )
    if name == "paper-rf" and (len(shape) != 2 or shape[1] < 32):
        raise ValueError(
            f"network='paper-rf' needs samples of shape (channels, length >= 32). Got {shape}. Use 'auto'."
        )


def _output_width(intake: Intake, trunk: nn.Module, shape: tuple[int, ...]) -> int:
    """Number of values the trunk gives for one sample."""
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
        raise ValueError(f"The encoder must return one row a sample, (n, ...). Got {got} for two samples.")
    width = out[0].numel()
    if width > LARGEST_FLATTENED:
        raise ValueError(
            f"The layer below the features must have at most {LARGEST_FLATTENED:,} outputs. Got {width:,} "
            f"for samples of shape {shape}. Make the samples smaller, or pass an encoder that pools."
        )
    return width


def has_bfloat16(device: torch.device) -> bool:
    """Does the processor multiply in bfloat16 itself? Elsewhere that is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    ask = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return device.type == "cpu" and ask is not None and bool(ask())


def unit_length(z: Tensor) -> Tensor:
    """Rows on the unit sphere; a row of zeros stays zero."""
    return nn.functional.normalize(z, dim=1)


class Embedded(NamedTuple):
    """What a network says of samples, in evaluation mode."""

    features: Tensor  # (n, d), of unit length if asked
    logits: Tensor  # (n, classes)


def embed(
    network: Network, inputs: Inputs, rows: Tensor | None = None, *, normalize: bool, batch_size: int = 1024
) -> Embedded:
    """Features and logits of those rows (all by default), on the CPU, without gradients."""
    rows = torch.arange(len(inputs)) if rows is None else rows
    was_training = network.training
    network.eval()
    features, logits = [], []
    try:
        with torch.inference_mode():
            for part in rows.split(batch_size):
                z = network.features(inputs.take(part, network.device))
                logits.append(network.classify(z).cpu())
                features.append((unit_length(z) if normalize else z).cpu())
    finally:
        network.train(was_training)
    return Embedded(torch.cat(features).clone(), torch.cat(logits).clone())


# Growing: old weights are kept exactly, and old outputs do not see new units until they are trained to.


class Growth(NamedTuple):
    """A grown copy of a network, and which of its weights belong to layers that grew."""

    network: Network
    grown: list[nn.Parameter]
    kept: list[nn.Parameter]


def grow(network: Network, strategy: str, n_new_classes: int, extra_units: float = 0.25) -> Growth:
    """A copy of `network` with `n_new_classes` more outputs; its logits of old classes are the same.

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
    """The trunk, if it is a plain sequence of layers each of which can grow."""
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
    """Widen every layer of a plain sequential trunk in place; how many more values it gives."""
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
    """Old weights are kept; old outputs give new inputs weight 0; new outputs start as a fresh layer's."""
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
