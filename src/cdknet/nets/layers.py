"""Layers that torch lacks, or that are slower in torch on a CPU. Weights have torch's names and shapes."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn


def channels_last(*layers: nn.Module) -> nn.Sequential:
    """The layers in sequence, with weights in the memory layout that is fastest for convolutions on a CPU."""
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


class ChannelsLast(nn.Module):
    """Puts images into that layout, too."""

    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)


class Crop(ChannelsLast):
    """Also crops images to three quarters of height and width, which saves nearly half of the work.

    In training, at a random position per batch; otherwise, at the centre.
    """

    def forward(self, x: Tensor) -> Tensor:
        height, width = (3 * side // 4 for side in x.shape[-2:])
        top, left = (x.shape[-2] - height) // 2, (x.shape[-1] - width) // 2
        if self.training:
            top = int(torch.randint(x.shape[-2] - height + 1, ()))
            left = int(torch.randint(x.shape[-1] - width + 1, ()))
        return super().forward(x[..., top : top + height, left : left + width])


class Residual(nn.Module):
    """x + two 3x3 convolutions of it, each with batch normalisation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        first, second = normalised(channels, channels, 3), normalised(channels, channels, 3)
        self.change = nn.Sequential(*first, *second[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.change(x))


def normalised(
    channels: int, filters: int, width: int, *, stride: int = 1, flat: bool = False
) -> list[nn.Module]:
    """A convolution (over time if `flat`), batch normalisation and ReLU."""
    if flat:
        return [
            OverTime(channels, filters, width, stride, width // 2, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
        ]
    padding = (width - 1) // 2
    return [
        nn.Conv2d(channels, filters, width, stride, padding, bias=False),
        nn.BatchNorm2d(filters),
        nn.ReLU(),
    ]


class OverTime(nn.Conv1d):
    """A convolution over time, of recordings as images one pixel high: faster than torch's own.

    From (n, channels, length), or the output of another such layer, to (n, filters, 1, length).
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3:
            x = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        padding = cast(tuple[int, ...], self.padding)
        return nn.functional.conv2d(
            x,
            self.weight.unsqueeze(2),
            self.bias,
            (1, *self.stride),
            (0, *padding),
            (1, *self.dilation),
            self.groups,
        )


class Quarters(nn.Module):
    """The mean of each quarter of an image: to the bit `nn.AdaptiveAvgPool2d(2)`, whose gradient is slow."""

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if height == width == 2:
            return x
        if height == width == 4:  # of larger images, torch's two ways round differently
            return nn.functional.avg_pool2d(x, 2)
        return nn.functional.adaptive_avg_pool2d(x, 2)


class Dropout(nn.Dropout):
    """Dropout as in torch. If p is a multiple of 1/256, it draws bytes, which takes a third of the time."""

    def forward(self, x: Tensor) -> Tensor:
        limit = 256 * self.p
        if not self.training or x.device.type != "cpu" or limit not in range(1, 256):
            return super().forward(x)
        if x.ndim != 4 or not x.is_contiguous(memory_format=torch.channels_last):
            x = x.contiguous()
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        drawn = words.view(torch.uint8).as_strided(x.shape, x.stride())  # the memory layout of x
        return x * (drawn >= int(limit)).to(x.dtype).mul_(1 / (1 - self.p))
