"""Micro-clusters that merge, the most closely connected first: clusters of every number in one tree.

k-means breaks features into many small clusters, each within one class if the features are any good. A graph
of nearest neighbours says how closely two of them touch: two halves of a class share many edges, two classes
few. The tree merges the closest pair again and again. Cut at a level, it has the clusters that are connected
less closely than that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from cdknet.core.clustering import cluster
from cdknet.core.neighbors import neighbor_graph

GRAPH = 15  # neighbours of a sample in the graph
PER_MICRO, FEWEST_MICRO, MOST_MICRO = (
    20,
    20,
    200,
)  # samples per micro-cluster, and how many of these there are
MOST_MERGED = 20_000  # samples of which the tree is made; the others join the micro-cluster of their nearest


class MergeTree(NamedTuple):
    """Micro-clusters 0 ... m - 1 of the samples; merge i makes cluster m + i of two earlier ones."""

    micro: NDArray[np.int64]  # (n,) micro-cluster of each sample
    pairs: NDArray[np.int64]  # (m - 1, 2)
    levels: NDArray[np.float64]  # (m - 1,) how closely the two are connected; it never rises

    def labels_at(self, level: float) -> NDArray[np.int64]:
        """(n,) clusters 0 ... k - 1 after all merges with at least this level."""
        m = len(self.pairs) + 1
        parent = np.arange(2 * m - 1)
        for i in range(int(np.searchsorted(-self.levels, -level, side="right"))):
            parent[self.pairs[i]] = m + i
        for node in range(2 * m - 2, -1, -1):  # a parent has a higher number: its root is known already
            parent[node] = parent[parent[node]]
        return np.unique(parent[:m], return_inverse=True)[1][self.micro].astype(np.int64)

    def linkage(self) -> NDArray[np.float64]:
        """(m - 1, 4) as SciPy's `linkage`: the pairs, 1 - level, and micro-clusters in the merged cluster."""
        m = len(self.pairs) + 1
        sizes = np.ones(2 * m - 1)
        for i, pair in enumerate(self.pairs):
            sizes[m + i] = sizes[pair].sum()
        return np.column_stack([self.pairs, 1 - self.levels, sizes[m:]]).astype(np.float64)


def merge_tree(z: Tensor, *, seed: int = 0) -> MergeTree:
    """The tree of the rows of z: merge the pair with the largest cut(a, b) / min(vol a, vol b), repeatedly.

    Levels never rise: merging two clusters may bring them closer to a third, but that shows only after the
    merge, and a level says what must hold for a cluster to stay apart.
    """
    n_micro = int(np.clip(len(z) // PER_MICRO, min(FEWEST_MICRO, len(z)), MOST_MICRO))
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(z), generator=draw)[:MOST_MERGED].sort().values
    part = z[rows]
    micro = cluster(part, n_micro, restarts=1, seed=seed)
    _, micro = torch.unique(micro, return_inverse=True)
    pairs, levels = _merges(neighbor_graph(part, min(GRAPH, len(part) - 1)), micro.numpy())
    if len(rows) < len(z):
        centers = torch.stack([part[micro == c].mean(dim=0) for c in range(len(pairs) + 1)])
        every = torch.cat([torch.cdist(some, centers).argmin(dim=1) for some in z.split(8192)])
        every[rows] = micro
        micro = every
    return MergeTree(micro.numpy(), pairs, levels)


def _merges(W: csr_array, micro: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The pairs that merge, in order, and the level of each."""
    m = int(micro.max()) + 1
    members = coo_array((np.ones(len(micro)), (np.arange(len(micro)), micro))).tocsr()
    cut = (members.T @ W @ members).toarray()  # a few hundred micro-clusters: a small matrix
    volume = cut.sum(axis=1)
    np.fill_diagonal(cut, 0)
    ids, alive = np.arange(m), np.ones(m, dtype=bool)
    pairs, levels, lowest = np.zeros((m - 1, 2), dtype=np.int64), np.zeros(m - 1), np.inf
    for step in range(m - 1):
        closeness = cut / np.maximum(np.minimum.outer(volume, volume), 1e-300)
        closeness[~alive] = -1
        closeness[:, ~alive] = -1
        np.fill_diagonal(closeness, -1)
        a, b = sorted(divmod(int(closeness.argmax()), m))
        lowest = min(lowest, float(closeness[a, b]))
        pairs[step], levels[step] = sorted((ids[a], ids[b])), lowest
        cut[a] += cut[b]
        cut[:, a] += cut[:, b]
        cut[a, a] = 0
        volume[a] += volume[b]
        alive[b], ids[a] = False, m + step
    return pairs, levels
