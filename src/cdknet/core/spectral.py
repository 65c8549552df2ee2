"""The U step: leading eigenvectors of the centred, degree-normalised kernel, Eqs. (12)-(14).

`spectral_embedding` is the entry point: the whole kernel if it fits `memory_limit`, else landmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

from cdknet.core.hsic import center, gaussian_kernel
from cdknet.core.neighbors import neighbor_graph

DENSE_ORDER = 1000  # up to this order a full eigh is as fast as ARPACK and has no tolerance

MOST_LANDMARKS = 2000


class Eigenpairs(NamedTuple):
    """Leading eigenpairs of a symmetric matrix, largest eigenvalue first."""

    values: Tensor  # (r,)
    vectors: Tensor  # (n, r), orthonormal columns, each with its largest entry positive

    def to(self, like: Tensor) -> Eigenpairs:
        """The same, with the dtype and on the device of `like`."""
        return Eigenpairs(self.values.to(like), self.vectors.to(like))


def median_distance(z: Tensor, *, sample: int = 2000, seed: int = 0) -> float:
    """Median of ‖zᵢ - zⱼ‖ over i ≠ j; over `sample` rows drawn by `seed` if n is larger."""
    n = len(z)
    if n < 2:
        raise ValueError(f"A median distance needs at least 2 samples. Got {n}.")
    if n > sample:
        rows = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:sample]
        z = z[rows.to(z.device)]
    distances = torch.pdist(z.detach())
    median = float(distances.median())
    if median > 0:
        return median
    positive = distances[distances > 0]  # more than half of the pairs coincide: use the others
    if not len(positive):
        raise ValueError(
            "Distances between features must not all be 0. Got the same features for every sample."
        )
    return float(positive.median())


def leading_eigenpairs(
    M: Tensor, r: int, *, centered: bool = False, dense_order: int = DENSE_ORDER
) -> Eigenpairs:
    """argmax of tr(UᵀMU) over UᵀU = I for a symmetric M: the U step, Eqs. (12)-(14).

    With `centered`, for H M H; centring costs O(n) per product instead of a second matrix. Full `eigh` up to
    `dense_order`, ARPACK above it.
    """
    n = len(M)
    if M.ndim != 2 or M.shape[1] != n:
        raise ValueError(f"M must be a square matrix. Got shape {tuple(M.shape)}.")
    if not 1 <= r < max(n, 2):
        raise ValueError(f"r must lie in [1, {n - 1}], below the order of the matrix. Got {r}.")
    if n <= dense_order:
        values, vectors = torch.linalg.eigh(center(M) if centered else M)  # ascending
        return Eigenpairs(values[-r:].flip(0), _fix_signs(vectors[:, -r:].flip(1)))
    values, vectors = _arpack(M, r, centered)
    return Eigenpairs(values.flip(0), _fix_signs(vectors.flip(1)))


def _arpack(M: Tensor, r: int, centered: bool) -> tuple[Tensor, Tensor]:
    """Leading eigenpairs, ascending, by products with M alone."""

    def product(x: np.ndarray) -> np.ndarray:
        v = torch.as_tensor(x, dtype=M.dtype, device=M.device)
        if not centered:
            return (M @ v).cpu().numpy()
        out = M @ (v - v.mean())
        return (out - out.mean()).cpu().numpy()

    single = M.dtype == torch.float32
    try:
        values, vectors = _leading(product, len(M), r, 1e-4 if single else 1e-10, single)
    except ArpackError:  # did not converge: fall back to the exact, slower solver
        full = torch.linalg.eigh(center(M) if centered else M)
        return full.eigenvalues[-r:], full.eigenvectors[:, -r:]
    return torch.from_numpy(values).to(M), torch.from_numpy(vectors).to(M)


def _leading(
    product: Callable[[np.ndarray], np.ndarray], n: int, r: int, tolerance: float, single: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The r largest eigenpairs, ascending, of a symmetric operator: ARPACK, with a second try."""

    def matvec(x: np.ndarray) -> np.ndarray:
        return product(np.ascontiguousarray(x).reshape(n))

    operator = LinearOperator((n, n), matvec=matvec, dtype=np.dtype(np.float32 if single else np.float64))
    start = np.random.default_rng(0).standard_normal(n)  # fixed: the same matrix gives the same bits
    ncv = min(n, max(2 * r + 1, 20))
    try:
        values, vectors = eigsh(operator, k=r, which="LA", v0=start, ncv=ncv, tol=tolerance)
    except ArpackError:
        values, vectors = eigsh(operator, k=r, which="LA", v0=start, ncv=min(n, 4 * ncv), tol=tolerance)
    order = np.argsort(values)
    return values[order], vectors[:, order].copy()


def spectral_embedding(
    z: Tensor,  # (n, d)
    r: int,
    sigma: float,
    *,
    memory_limit: float = 2e9,
    seed: int = 0,
) -> Eigenpairs:
    """The top r eigenvectors of H D^-½ K D^-½ H, K the Gaussian kernel of z. Eqs. (5)-(6), (12)-(14).

    A kernel of more than `memory_limit` bytes is not built, but approximated by landmarks drawn by `seed`: as
    many as the limit allows, and at most `MOST_LANDMARKS`.
    """
    n = len(z)
    with torch.no_grad():
        if n * n * z.element_size() <= memory_limit:
            K = gaussian_kernel(z, sigma)
            inverse_root = K.sum(dim=1).rsqrt()
            K.mul_(inverse_root[:, None]).mul_(inverse_root)  # normalize_by_degree(K), in place
            return leading_eigenpairs(K, r, centered=True)
        affordable = int(memory_limit / (3 * n * z.element_size()))
        return nystrom_embedding(z, r, sigma, landmarks=min(affordable, MOST_LANDMARKS), seed=seed)


def nystrom_embedding(z: Tensor, r: int, sigma: float, *, landmarks: int, seed: int = 0) -> Eigenpairs:
    """`spectral_embedding` with K ≈ C W⁺ Cᵀ: C is the kernel to m landmarks, W that among them.

    O(n m²) time and 3 n m numbers of memory. Exact when every sample is a landmark.
    """
    n = len(z)
    m = min(landmarks, n)
    if m <= r:
        raise ValueError(
            f"The memory limit must allow more landmarks than the {r} eigenvectors asked for. "
            f"Got {m} for {n} samples. Raise memory_limit or lower subsample."
        )
    with torch.no_grad():
        chosen = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:m].to(z.device)
        origin = z.mean(dim=0)
        rows, marks = z - origin, z[chosen] - origin
        C = rows @ marks.T  # (n, m)
        C.mul_(-2).add_(rows.square().sum(1)[:, None]).add_(marks.square().sum(1)).clamp_(min=0)
        C.mul_(-0.5 / sigma**2).exp_()
        values, vectors = torch.linalg.eigh(C[chosen])
        large = values > values[-1] * m * torch.finfo(z.dtype).eps
        F = C @ (vectors[:, large] * values[large].rsqrt())  # K ≈ F Fᵀ
        degree = (F @ F.sum(dim=0)).clamp_(min=torch.finfo(z.dtype).tiny ** 0.5)
        F.mul_(degree.rsqrt()[:, None])
        F.sub_(F.mean(dim=0))  # H D^-½ F
        values, vectors = torch.linalg.eigh(F.T @ F)
        if len(values) < r or values[-r] <= 0:
            raise ValueError(
                f"The kernel must have rank at least {r}. Got {int((values > 0).sum())} at {m} landmarks. "
                "Lower sigma_scale or raise memory_limit."
            )
        values, vectors = values[-r:].flip(0), vectors[:, -r:].flip(1)
        return Eigenpairs(values, _fix_signs(F @ (vectors * values.rsqrt())))


def neighbor_embedding(z: Tensor, r: int, *, neighbors: int = 15) -> Eigenpairs:
    """The top r eigenvectors of H D^-½ W D^-½ H, W a graph of nearest neighbours.

    The same U step as `spectral_embedding`, for a sparse kernel of neighbours.
    """
    return graph_embedding(neighbor_graph(z, neighbors), r).to(z)


def graph_embedding(W: csr_array, r: int, *, centered: bool = True) -> Eigenpairs:
    """The top r eigenvectors of H D^-½ W D^-½ H, W a `neighbor_graph`. Unless `centered`, without H.

    Leave out H for r clusters (Ng, Jordan and Weiss 2001): H removes one direction, so the last of r centred
    vectors already splits the largest of r clusters.
    """
    n = W.shape[0]
    if not 1 <= r < n:
        raise ValueError(f"r must lie in [1, {n - 1}], below the number of samples. Got {r}.")
    inverse_root = diags_array(1 / np.sqrt(np.maximum(W.sum(axis=1), 1e-300)))
    K = (inverse_root @ W @ inverse_root).tocsr()
    found = None
    if n > DENSE_ORDER:
        product = (lambda x: _center(K @ _center(x))) if centered else (lambda x: K @ x)
        with suppress(ArpackError):  # many identical samples: use the exact solver instead
            found = every_leading(product, n, r, 1e-7)
    if found is None:
        dense = torch.from_numpy(K.toarray())
        whole = np.linalg.eigh((center(dense) if centered else dense).numpy())
        found = whole.eigenvalues[-r:], np.ascontiguousarray(whole.eigenvectors[:, -r:])
    values, vectors = torch.from_numpy(found[0]), torch.from_numpy(found[1])
    return Eigenpairs(values.flip(0), _fix_signs(vectors.flip(1)))


def every_leading(
    product: Callable[[np.ndarray], np.ndarray], n: int, r: int, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    """`_leading` for eigenvalues of high multiplicity, of which ARPACK finds some vectors and misses others.

    It searches the orthogonal complement of the vectors found, until that has no eigenvalue above the least
    one found.
    """
    values, vectors = _leading(product, n, r, tolerance)
    for _ in range(r):
        found = vectors
        beside = min(r, n - r - 1)
        if beside < 1:
            break

        def rest(x: np.ndarray, found: np.ndarray = found) -> np.ndarray:
            y = product(x - found @ (found.T @ x))
            left: np.ndarray = y - found @ (found.T @ y)
            return left

        more, others = _leading(rest, n, beside, tolerance)
        if more[-1] <= values[0] + tolerance:
            break
        values, vectors = np.concatenate([values, more]), np.concatenate([vectors, others], axis=1)
        best = np.argsort(values, kind="stable")[-r:]
        values, vectors = values[best], np.ascontiguousarray(vectors[:, best])
    return values, vectors


def _center(x: np.ndarray) -> np.ndarray:
    centred: np.ndarray = x - x.mean()
    return centred


def subspace_turn(U: Tensor, V: Tensor) -> float:
    """1 - ‖UᵀV‖²/r: the share of span(U) that lies outside span(V); 0 if equal, 1 if orthogonal."""
    return max(0.0, 1 - float((U.T @ V).square().sum()) / U.shape[1])


def _fix_signs(U: Tensor) -> Tensor:
    """Make each column's largest entry positive: eigenvectors have no sign of their own."""
    peak = U.abs().argmax(dim=0)
    signs = U[peak, torch.arange(U.shape[1], device=U.device)].sign()
    # Always the same memory layout: products with a matrix and its transposed copy differ in the last bits.
    return (U * torch.where(signs == 0, torch.ones_like(signs), signs)).contiguous()
