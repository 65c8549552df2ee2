"""The Hilbert-Schmidt independence criterion and its kernels, as plain differentiable functions.

Letters are the paper's: K and L are kernel matrices of the same n samples, H = I - 11ᵀ/n centres them. H is
never built, and neither is a kernel F Fᵀ that is given as a `Factor`.

The diagonal of a kernel is not removed. K_ii = 1 by Eq. (1), and it counts towards the degree of Eq. (6).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Factor(NamedTuple):
    """Stands for the linear kernel L = F Fᵀ of U or of one-hot Y, Eq. (2), without building it."""

    columns: Tensor  # (n, m)


def squared_distances(z: Tensor) -> Tensor:
    """‖zᵢ - zⱼ‖² for all pairs of rows, (n, n), never below 0 and exactly 0 on the diagonal."""
    z = z - z.mean(dim=0)  # the expansion below cancels badly far from the origin
    norms = z.square().sum(dim=1)
    # In place throughout: one n x n buffer.
    return torch.mm(z, z.T).mul_(-2).add_(norms[:, None]).add_(norms).clamp_(min=0).fill_diagonal_(0)


class _GaussianKernel(torch.autograd.Function):
    """Eq. (1) with one n x n matrix stored for the backward pass, where plain autograd stores four."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, sigma: float) -> Tensor:
        K = squared_distances(z).mul_(-0.5 / sigma**2).exp_()
        ctx.save_for_backward(z, K)
        ctx.sigma = sigma
        return K

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        # dK_ij/dz_i = -K_ij (z_i - z_j)/σ², so with S = (G + Gᵀ) ∘ K: dz = (S z - diag(S1) z)/σ².
        z, K = ctx.saved_tensors
        S = (grad + grad.T).mul_(K)
        return (S @ z - S.sum(dim=1, keepdim=True) * z) / ctx.sigma**2, None


def gaussian_kernel(z: Tensor, sigma: float) -> Tensor:
    """K_ij = exp(-‖zᵢ - zⱼ‖² / 2σ²). Eq. (1). `sigma` is a length in feature units, not a variance."""
    if not sigma > 0:
        raise ValueError(f"sigma must be above 0. Got {sigma!r}. Use median_distance(z) to start with.")
    if z.ndim != 2:
        raise ValueError(f"z must be (n, d), one row per sample. Got shape {tuple(z.shape)}.")
    kernel: Tensor = _GaussianKernel.apply(z, float(sigma))  # type: ignore[no-untyped-call]
    return kernel


def linear_kernel(q: Tensor) -> Tensor:
    """K_ij = qᵢᵀ qⱼ. Eq. (2). For HSIC, `Factor(q)` is the same without the n x n matrix."""
    return q @ q.T


def normalize_by_degree(K: Tensor) -> Tensor:
    """D^-½ K D^-½ with D = diag(K1). Eqs. (5)-(6). The diagonal of K counts towards the degree."""
    inverse_root = K.sum(dim=1).rsqrt()
    return inverse_root[:, None] * K * inverse_root


def center(K: Tensor) -> Tensor:
    """H K H with H = I - 11ᵀ/n, in O(n²) and without ever building H."""
    return K - K.mean(dim=1, keepdim=True) - K.mean(dim=0, keepdim=True) + K.mean()


def hsic(K: Tensor, L: Tensor | Factor) -> Tensor:
    """tr(K H L H) / (n - 1)², the biased empirical HSIC. Eq. (3).

    A measure, not a loss: the caller maximises it. O(n²) for two kernels, O(n² m) for a factor.
    """
    n = _check_pair(K, L, least=2)
    return _centered_inner(K, L) / (n - 1) ** 2


def hsic_normalized(K: Tensor, F: Factor) -> Tensor:
    """hsic(normalize_by_degree(K), F) without a second n x n matrix: the first term of Eq. (9).

    tr(D^-½ K D^-½ H F Fᵀ H) = tr(K G Gᵀ) with G = D^-½ H F.
    """
    n = _check_pair(K, F, least=2)
    G = K.sum(dim=1).rsqrt()[:, None] * (F.columns - F.columns.mean(dim=0))
    return (K @ G * G).sum() / (n - 1) ** 2


def identity_dependence(K: Tensor) -> Tensor:
    """mean K(two views of one sample) - mean K: HSIC of features with the sample's identity (SSL-HSIC).

    K is (2n, 2n), the first n rows one view of n samples, the last n another. Up to a factor, Eq. (3) with
    one-hot identities as labels, without the pairs of a view with itself (Li et al. 2021).
    """
    n = len(K) // 2
    if K.ndim != 2 or K.shape != (2 * n, 2 * n) or n < 1:
        raise ValueError(f"K must be (2n, 2n), two views of n samples. Got shape {tuple(K.shape)}.")
    return K[:n, n:].diagonal().mean() - K.mean()


def hsic_unbiased(K: Tensor, L: Tensor | Factor) -> Tensor:
    """The unbiased estimator of HSIC by Song et al. (2012). It may be negative: never take its root.

    [tr(K̃L̃) + 1ᵀK̃1 · 1ᵀL̃1 / ((n-1)(n-2)) - 2/(n-2) · 1ᵀK̃L̃1] / (n(n-3)), K̃ and L̃ without diagonals.
    """
    n = _check_pair(K, L, least=4)
    k = K.sum(dim=1) - K.diagonal()
    if isinstance(L, Factor):
        F = L.columns
        diagonal = F.square().sum(dim=1)
        pairs = (K @ F * F).sum() - (K.diagonal() * diagonal).sum()
        l = F @ F.sum(dim=0) - diagonal  # noqa: E741
    else:
        pairs = (K * L).sum() - (K.diagonal() * L.diagonal()).sum()
        l = L.sum(dim=1) - L.diagonal()  # noqa: E741
    total = pairs + k.sum() * l.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * (k * l).sum()
    return total / (n * (n - 3))


def cka(K: Tensor, L: Tensor | Factor) -> Tensor:
    """HSIC(K, L) / √(HSIC(K, K) HSIC(L, L)): HSIC normalised to be free of scale, in [0, 1]."""
    _check_pair(K, L, least=2)
    if isinstance(L, Factor):
        F = L.columns - L.columns.mean(dim=0)
        self_L = (F.T @ F).square().sum()  # tr(F Fᵀ F Fᵀ), m x m instead of n x n
    else:
        self_L = _centered_inner(L, L)
    return _centered_inner(K, L) / (_centered_inner(K, K) * self_L).sqrt()


def _centered_inner(K: Tensor, L: Tensor | Factor) -> Tensor:
    """tr(K H L H)."""
    if isinstance(L, Factor):
        F = L.columns - L.columns.mean(dim=0)  # H F
        return (K @ F * F).sum()
    return (center(K) * L).sum()


def _check_pair(K: Tensor, L: Tensor | Factor, least: int) -> int:
    n = len(K)
    if K.ndim != 2 or K.shape[1] != n:
        raise ValueError(f"K must be a square kernel matrix. Got shape {tuple(K.shape)}.")
    other = L.columns if isinstance(L, Factor) else L
    wanted = f"({n}, m)" if isinstance(L, Factor) else f"({n}, {n})"
    if other.ndim != 2 or len(other) != n or (not isinstance(L, Factor) and other.shape[1] != n):
        raise ValueError(
            f"L must be {wanted}, over the same samples as K. Got shape {tuple(other.shape)}. "
            "Wrap a matrix of columns as Factor(columns)."
        )
    if n < least:
        raise ValueError(f"HSIC needs at least {least} samples. Got {n}.")
    return n


def unit_length(z: Tensor) -> Tensor:
    """Rows on the unit sphere; a row of zeros stays zero."""
    return torch.nn.functional.normalize(z, dim=1)
