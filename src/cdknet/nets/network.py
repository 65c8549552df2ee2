"""The network f_theta with its softmax head. No training here.

    input -> intake (float, standardised) -> trunk -> penultimate layer, ReLU: the features f(x) -> head

The trunk is one of ours (`architectures`) or a user's own `nn.Module`.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cdknet.core.hsic import unit_length
from cdknet.inputs.arrays import CHUNK, Inputs
from cdknet.inputs.kind import SampleKind, kind_of
from cdknet.nets.layers import Dropout

PORTION = 128  # samples per pass through a trunk on a CPU: their activations fit its cache


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
        self.in_bfloat16 = False  # in training, the trunk computes in bfloat16
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
        """The batch in parts that fit a processor's cache; whole if samples interact, or on a GPU."""
        if x.device.type != "cpu" or (self.training and self.samples_meet):
            return (x,)
        portions: tuple[Tensor, ...] = x.split(PORTION)
        return portions

    def forward(self, x: Tensor) -> Tensor:  # (n, classes)
        return self.classify(self.features(x))

    def classify(self, features: Tensor) -> Tensor:
        """Logits from features."""
        logits: Tensor = self.head(self.dropout(features))
        return logits

    def train(self, mode: bool = True) -> Network:
        """As usual, but a trunk with all weights frozen does not update its running statistics either."""
        super().train(mode)
        weights = list(self.trunk.parameters())
        if weights and not any(weight.requires_grad for weight in weights):
            self.trunk.eval()
        return self

    def train_without_dropout(self) -> Network:
        """Training mode without dropout: every step sees the same features of a sample."""
        self.train()
        for layer in self.modules():
            if isinstance(layer, nn.Dropout):
                layer.eval()
        return self

    def trainable(self) -> list[nn.Parameter]:
        """All weights but the frozen ones."""
        return [weight for weight in self.parameters() if weight.requires_grad]

    @property
    def device(self) -> torch.device:
        return self.head.weight.device


class Projection(Network):
    """No network to train: features are the outputs of the trunk, or their leading principal components.

    With an empty trunk, they are the samples themselves: for baselines, and for embeddings that are already
    good.
    """

    def frozen(self) -> Projection:
        for weight in self.parameters():
            weight.requires_grad_(False)
        return self

    def fit(self, inputs: Inputs, seed: int) -> Projection:
        """Compute the principal axes, if any, from at most 20,000 of the samples."""
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


def has_bfloat16(device: torch.device) -> bool:
    """Whether the processor multiplies in bfloat16 natively. Without that it is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    ask = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return device.type == "cpu" and ask is not None and bool(ask()) and bfloat16_works()


TRY_BFLOAT16 = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); assert (a @ a == 64).all()"


@functools.cache
def bfloat16_works() -> bool:
    """Whether a product in bfloat16 succeeds.

    Some virtual machines list AMX, the instructions for it, and do not have them: the product then raises
    an error or kills the process. So a process of its own tries it, once.
    """
    if not getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)():
        return True
    tried = subprocess.run([sys.executable, "-c", TRY_BFLOAT16], capture_output=True, check=False)
    return tried.returncode == 0


class Embedded(NamedTuple):
    """The outputs of a network for samples, in evaluation mode."""

    features: Tensor  # (n, d), of unit length if asked
    logits: Tensor  # (n, classes)


def embed(
    network: Network, inputs: Inputs, rows: Tensor | None = None, *, normalize: bool, batch_size: int = 1024
) -> Embedded:
    """Features and logits of these rows (by default, of all), on the CPU, without gradients."""
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


def as_vectors(network: Network, inputs: Inputs, rows: Tensor) -> Tensor | None:
    """The standardised inputs of the network if samples are vectors; else None: pixels are not features."""
    if kind_of(inputs.sample_shape) is not SampleKind.VECTOR:
        return None
    return flat_inputs(network, inputs, rows)


def flat_inputs(network: Network, inputs: Inputs, rows: Tensor) -> Tensor:
    """(n, d) samples as the network sees them, each as one row of numbers."""
    with torch.no_grad():
        parts = [
            network.intake(inputs.take(part, network.device)).flatten(1).cpu() for part in rows.split(CHUNK)
        ]
    return torch.cat(parts)
