"""EfficientNet-Lite0, trained on ImageNet: the mean of its last feature maps, at unit length."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from .registry import Apply, Encoder

SIDE = 224  # pixels
STAGES = (  # kernel, stride, channels, blocks; every stage but the first widens its inputs six times
    (3, 1, 16, 1),
    (3, 2, 24, 2),
    (5, 2, 40, 2),
    (3, 2, 80, 3),
    (5, 1, 112, 3),
    (5, 2, 192, 4),
    (3, 1, 320, 1),
)
STEM, HEAD, WIDEN = 32, 1280, 6


class Convolution(nn.Conv2d):
    """A convolution without bias that pads as TensorFlow does: more at the end than at the start."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        sides = x.shape[-1], x.shape[-2]
        missing = [max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in sides]
        padding = [part for m in missing for part in (m // 2, m - m // 2)]
        return super().forward(F.pad(x, padding))


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class Block(nn.Module):
    """Widen, convolve each channel, narrow; added to its input where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, widen: int) -> None:
        super().__init__()
        wide = inputs * widen
        if widen > 1:
            self._expand_conv, self._bn0 = Convolution(inputs, wide), norm(wide)
        self._depthwise_conv, self._bn1 = Convolution(wide, wide, kernel, stride, wide), norm(wide)
        self._project_conv, self._bn2 = Convolution(wide, outputs), norm(outputs)
        self.widens, self.adds = widen > 1, stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self._bn0(self._expand_conv(x))) if self.widens else x
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.adds else torch.as_tensor(y)


class EfficientNetLite0(nn.Module):
    """Photos (n, 3, 224, 224) in [-1, 1] to features (n, 1280). Its parts are named as in the file."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = Convolution(3, STEM, 3, 2), norm(STEM)
        blocks, inputs = [], STEM
        for index, (kernel, stride, channels, count) in enumerate(STAGES):
            for turn in range(count):
                blocks.append(
                    Block(inputs, channels, kernel, stride if turn == 0 else 1, WIDEN if index else 1)
                )
                inputs = channels
        self._blocks = nn.Sequential(*blocks)
        self._conv_head, self._bn1 = Convolution(inputs, HEAD), norm(HEAD)
        self._fc = nn.Linear(HEAD, 1000)  # ImageNet's classes: not used

    def forward(self, x: Tensor) -> Tensor:
        x = self._blocks(F.relu6(self._bn0(self._conv_stem(x))))
        return F.relu6(self._bn1(self._conv_head(x))).mean(dim=(2, 3))


def load(encoder: Encoder) -> Apply:
    """The function that encodes a batch of photos, uint8 (n, 3, h, w) or (n, h, w)."""
    model = network(encoder)

    @torch.inference_mode()
    def apply(photos: Any) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = F.normalize(model(prepared(photos)), dim=1).numpy()
        return vectors

    return apply


def network(encoder: Encoder) -> EfficientNetLite0:
    """The network with its weights."""
    content = io.BytesIO(encoder.read(encoder.weights))
    weights = torch.load(content, map_location="cpu", weights_only=True)  # tensors alone, no code
    with torch.device("meta"):  # without values: all of them come from the file
        model = EfficientNetLite0()
    model.load_state_dict(weights, assign=True)
    return model.eval()


def prepared(photos: NDArray[Any]) -> Tensor:
    """Photos as the network takes them: colour, 224 pixels per side, in [-1, 1]."""
    x = torch.from_numpy(np.array(photos)).float()
    if x.ndim == 3:
        x = x[:, None].expand(-1, 3, -1, -1)
    if x.shape[-2:] != (SIDE, SIDE):
        x = F.interpolate(x, (SIDE, SIDE), mode="bicubic", antialias=True).clamp(0, 255)
    return (x - 127) / 128
