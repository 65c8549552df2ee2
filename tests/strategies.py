"""Generated problems with known answers."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from cdknet.core.hsic import gaussian_kernel


def points(n: int, d: int, seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, d, generator=generator, dtype=torch.float64)


seeds = st.integers(0, 10_000)


@st.composite
def clouds(draw: st.DrawFn, least: int = 5, most: int = 24) -> Tensor:
    n, d = draw(st.integers(least, most)), draw(st.integers(1, 6))
    return points(n, d, draw(seeds), scale=draw(st.sampled_from([0.1, 1.0, 10.0])))


@st.composite
def kernels(draw: st.DrawFn, least: int = 5) -> Tensor:
    return gaussian_kernel(draw(clouds(least=least)), draw(st.floats(0.3, 3.0)))


@st.composite
def kernel_pairs(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    K = draw(kernels())
    return K, gaussian_kernel(points(len(K), 3, draw(seeds)), draw(st.floats(0.3, 3.0)))


def frame(n: int, r: int, seed: int) -> Tensor:
    """A random matrix with orthonormal columns."""
    return torch.linalg.qr(points(n, r, seed)).Q


def blobs(n: int, k: int, seed: int, spread: float = 0.1, d: int = 8) -> tuple[Tensor, Tensor]:
    """k tight groups of n points in all, and the group of each."""
    centres = points(k, d, seed, scale=2.0)
    which = torch.arange(n) % k
    return centres[which] + spread * points(n, d, seed + 1), which
