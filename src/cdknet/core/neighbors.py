"""Nearest neighbours, and graphs of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

BRIDGE = 0.3  # weight of an edge that joins two components of a graph; an average neighbour has about e^-1


def nearest_neighbors(z: Tensor, k: int, *, among: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Distances and rows, each (n, k), of the k rows of `among` nearest to each row of z.

    Without `among`, of the other rows of z: a row is not its own neighbour. Computed in chunks, in O(n)
    memory.
    """
    others = z if among is None else among
    middle = others.mean(dim=0)  # float32 distances cancel far from the origin
    z, others = z - middle, others - middle
    if not 1 <= k <= len(others) - (among is None):
        raise ValueError(f"k must lie in [1, {len(others) - (among is None)}]. Got {k}.")
    near, rows = [], []
    for start in range(0, len(z), 2048):
        distances = torch.cdist(z[start : start + 2048], others)
        if among is None:
            own = torch.arange(len(distances), device=z.device)
            distances[own, start + own] = torch.inf
        found = distances.topk(k, dim=1, largest=False)
        near.append(found.values)
        rows.append(found.indices)
    return torch.cat(near), torch.cat(rows)


def neighbor_graph(z: Tensor, neighbors: int = 15) -> csr_array:
    """W, a locally scaled graph of nearest neighbours, with its components joined (`bridged`). O(n) memory.

    W_ij = exp(-‖z_i - z_j‖² / σ_i σ_j) where j is among the `neighbors` nearest of i or i of j, else 0; σ_i
    is the distance to the median one of i's neighbours (Zelnik-Manor and Perona 2004).
    """
    return neighbor_graphs(z, [neighbors])[0]


def neighbor_graphs(z: Tensor, neighbors: Sequence[int]) -> list[csr_array]:
    """The same for several numbers of neighbours, with a single search."""
    n = len(z)
    with torch.no_grad():
        near, rows = nearest_neighbors(z.double(), min(max(neighbors), n - 1))
    return [_joined(z, near[:, :k], rows[:, :k]) for k in (min(k, n - 1) for k in neighbors)]


def _joined(z: Tensor, near: Tensor, rows: Tensor) -> csr_array:
    n, k = rows.shape
    scale = near[:, (k - 1) // 2].clamp_min(1e-12)
    weights = torch.exp(-near.square() / (scale[:, None] * scale[rows]))
    i = np.repeat(np.arange(n), k)
    W = coo_array((weights.cpu().numpy().ravel(), (i, rows.cpu().numpy().ravel())), shape=(n, n)).tocsr()
    return bridged(W.maximum(W.T).tocsr(), z)


def split_affinity(W: csr_array, labels: NDArray[Any]) -> float:
    """max of cut(a, b) / √(volume(a) volume(b)) over clusters a ≠ b of the graph W: was a class split?

    The normalised weight of the edges between the two most closely connected clusters: 0 across a gap, large
    where a class was split through its middle.
    """
    members = coo_array((np.ones(len(labels)), (np.arange(len(labels)), labels))).tocsr()
    between = (members.T @ W @ members).toarray()
    root = np.sqrt(np.maximum(between.sum(axis=1), 1e-300))
    shares = between / np.outer(root, root)
    np.fill_diagonal(shares, 0)
    return float(shares.max())


def bridged(W: csr_array, z: Tensor) -> csr_array:
    """The graph with its components joined, each by an edge to the nearest sample outside, until one is left.

    Then eigenvectors separate large components before small ones. Without edges between them, every component
    counts the same: a few outliers would become a cluster, and two classes would merge.
    """
    while (parts := connected_components(W, directed=False))[0] > 1:
        member = torch.from_numpy(parts[1]).to(z.device)
        ends = [_nearest_elsewhere(z, member, part) for part in range(parts[0])]
        i, j = np.array(ends).T
        bridge = coo_array((np.full(len(i), BRIDGE), (i, j)), shape=W.shape).tocsr()
        W = W.maximum(bridge).maximum(bridge.T).tocsr()
    return W


def _nearest_elsewhere(z: Tensor, member: Tensor, part: int) -> tuple[int, int]:
    """The nearest pair of samples of which one is in `part` and the other is not."""
    mine, others = (member == part).nonzero()[:, 0], (member != part).nonzero()[:, 0]
    near, rows = nearest_neighbors(z[mine], 1, among=z[others])
    best = int(near.argmin())
    return int(mine[best]), int(others[rows[best, 0]])
