"""Augmented views: slightly changed versions of a sample that should not change its class.

Each function takes a float batch (n, ...) and a generator and returns a batch of the same shape. The kind of
a sample determines which one suits it (`SampleKind`). Users may pass a function of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from cdknet.core.columns import is_categorical
from cdknet.inputs.kind import SampleKind, kind_of

Views = Callable[[Tensor, torch.Generator], Tensor]


def _spread(n: int, most: float, generator: torch.Generator) -> Tensor:
    """n random numbers, uniform in [-most, most]."""
    return (2 * torch.rand(n, generator=generator) - 1) * most


def warp(
    x: Tensor,
    generator: torch.Generator,
    *,
    turn: float,
    seen: tuple[float, float],
    shear: float,
    shift: float,
    aspect: float = 0.0,
) -> Tensor:
    """A random affine map per image: `turn` in degrees, the others as shares. (n, c, h, w).

    `seen` is the range of the share of the image's width that the view shows: below 1, the view is enlarged.
    """
    n = len(x)
    angle = _spread(n, math.radians(turn), generator)
    width = seen[0] + (seen[1] - seen[0]) * torch.rand(n, generator=generator)
    stretch = torch.exp(_spread(n, aspect, generator))
    cosine, sine = torch.cos(angle) * width, torch.sin(angle) * width
    across, down = _spread(n, shift, generator), _spread(n, shift, generator)
    rows = [cosine * stretch, _spread(n, shear, generator) - sine, across, sine, cosine / stretch, down]
    matrix = torch.stack(rows, dim=1).reshape(n, 2, 3).to(x)
    grid = nn.functional.affine_grid(matrix, list(x.shape), align_corners=False)
    low = _darkest(x)  # the value outside the image
    return nn.functional.grid_sample(x - low, grid, align_corners=False) + low


def _darkest(pictures: Tensor) -> Tensor:
    """The darkest pixel of each image, (n, 1, 1, 1). Per image, so that none affects another's views."""
    return pictures.amin(dim=(1, 2, 3), keepdim=True)


def grey_views(x: Tensor, generator: torch.Generator) -> Tensor:
    """Rotated, zoomed, stretched and shifted; brightness and contrast changed; half of them blurred.

    (n, h, w) or (n, c, h, w). Not mirrored: that would change a digit or letter.
    """
    n, pictures = len(x), x if x.ndim == 4 else x.unsqueeze(1)
    low = _darkest(pictures)
    pictures = warp(pictures, generator, turn=10, seen=(0.6, 1.05), shear=0.1, shift=0.15, aspect=0.1) - low
    gamma, gain = (torch.exp(_spread(n, 0.5, generator)).to(x).view(-1, 1, 1, 1) for _ in range(2))
    peak = pictures.amax(dim=(1, 2, 3), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    pictures = (pictures / peak).clamp_min(0).pow(gamma) * peak * gain
    blurred = (torch.rand(n, generator=generator) < 0.5).to(x.device).view(-1, 1, 1, 1)
    if min(pictures.shape[-2:]) >= 16:  # smaller images would lose too much
        pictures = torch.where(blurred, nn.functional.avg_pool2d(pictures, 3, 1, 1), pictures)
    pictures = pictures + low
    return pictures if x.ndim == 4 else pictures.squeeze(1)


def colour_views(x: Tensor, generator: torch.Generator) -> Tensor:
    """Zoomed and shifted, mirrored or not, colours and contrast changed. (n, c, h, w)."""
    n, channels = x.shape[:2]
    x = warp(x, generator, turn=5, seen=(0.75, 1.3), shear=0.05, shift=0.2)
    mirrored = (torch.rand(n, generator=generator) < 0.5).to(x.device).view(-1, 1, 1, 1)
    x = torch.where(mirrored, x.flip(-1), x)
    gain = torch.exp(_spread(n, 0.4, generator)).view(-1, 1) * torch.exp(
        _spread(n * channels, 0.2, generator).view(n, channels)
    )
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    return mean + (x - mean) * gain.to(x).view(n, channels, 1, 1)


def radio_views(x: Tensor, generator: torch.Generator) -> Tensor:
    """Another channel: small phase and frequency offsets, a weak echo, another gain, and noise.

    I/Q, (n, 2, length). The phase offset is small because a receiver has removed most of it, and the
    remaining phase distinguishes transmitters: rotated by any angle, they look the same.
    """
    n, _, length = x.shape
    degrees = (
        _spread(n, 10, generator) + _spread(n, 20, generator) * torch.linspace(-0.5, 0.5, length)[:, None]
    )
    echo = 0.1 * torch.rand(n, generator=generator).to(x).view(-1, 1, 1)
    late = _turned(x.roll(1, dims=2), _spread(n, 180, generator)[:, None])
    x = _turned(x, degrees.T) + echo * late
    noise = torch.randn(x.shape, generator=generator).to(x) * x.std(dim=(1, 2), keepdim=True)
    return x * torch.exp(_spread(n, 0.1, generator)).to(x).view(-1, 1, 1) + 0.05 * noise


def _turned(x: Tensor, degrees: Tensor) -> Tensor:
    """x times e^{j angle}, with I and Q as rows: (n, 2, length) by (n, length) or (n, 1)."""
    angle = torch.deg2rad(degrees).to(x)
    i, q = x[:, 0], x[:, 1]
    return torch.stack([angle.cos() * i - angle.sin() * q, angle.sin() * i + angle.cos() * q], dim=1)


def vector_views(x: Tensor, generator: torch.Generator) -> Tensor:
    """A fifth of the features replaced by another sample's, plus noise of a tenth of each feature's spread.

    Half of the categorical columns (`is_categorical`) are replaced: otherwise their few values would identify
    a sample, and the network would learn nothing else.
    """
    other = x[torch.randperm(len(x), generator=generator).to(x.device)]
    replaced = torch.where(is_categorical(x), 0.5, 0.2) if x.ndim == 2 else 0.2
    unchanged = torch.rand(x.shape, generator=generator).to(x.device) > replaced
    noise = torch.randn(x.shape, generator=generator).to(x) * x.std(dim=0, correction=0)
    return torch.where(unchanged, x, other) + 0.1 * noise


VIEWS: dict[str, Views] = {
    "grey": grey_views,
    "colour": colour_views,
    "radio": radio_views,
    "vectors": vector_views,
}


def check_views(name: str, shape: tuple[int, ...]) -> None:
    """Raise if these views do not suit samples of this shape."""
    kind = kind_of(shape)
    fits = {
        "grey": len(shape) in (2, 3),
        "colour": len(shape) == 3,
        "radio": kind is SampleKind.IQ,
        "vectors": True,
    }
    if not fits[name]:
        raise ValueError(
            f"views={name!r} must suit samples of shape {shape}. They do not. Use 'auto' ({kind.value})."
        )


def view_function(name: str, own: Views | None) -> Views:
    """The views of that name, or the user's own."""
    return VIEWS[name] if own is None else _checked(own)


def _checked(own: Views) -> Views:
    """A user's views, called on a copy, since they may work in place. The result must have the same shape."""

    def view(x: Tensor, generator: torch.Generator) -> Tensor:
        seen = own(x.clone(), generator)
        if not isinstance(seen, Tensor) or seen.shape != x.shape:
            got = f"shape {tuple(seen.shape)}" if isinstance(seen, Tensor) else type(seen).__name__
            raise ValueError(
                f"views must return a tensor of the shape it is given, {tuple(x.shape)}. Got {got}."
            )
        return seen.to(x)

    return view
