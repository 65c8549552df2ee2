"""Spectral clustering of features as they are, on a graph of nearest neighbours."""

from __future__ import annotations

import torch

from cdknet.history import History
from cdknet.networks import Network, embed, unit_length
from cdknet.options import DiscoverOptions
from cdknet.readout import MOST_VOTERS, Neighbors
from cdknet.spectral import neighbor_embedding
from cdknet.stages.discover import Clusterer, Discovery, class_means, cluster, wanted_classes
from cdknet.stages.loop import Checkpoint, Problem, derive_seed
from cdknet.views import Views


def spectral_clustering(
    network: Network,
    problem: Problem,
    options: DiscoverOptions,
    *,
    learning_rate: float = 0.001,
    clusterer: Clusterer | None = None,
    views: Views | None = None,
    seed: int = 0,
    history: History | None = None,
    checkpoint: Checkpoint | None = None,
) -> Discovery:
    """k-means on the rows of U, U the top eigenvectors of a neighbour graph of f(X_u). No learning.

    A graph of at most `MOST_VOTERS` samples; the others are labelled by a vote of their neighbours in it.
    """
    m_u = wanted_classes(options)
    z = embed(network, problem.inputs, problem.new_rows, normalize=options.normalize_features).features
    draw = torch.Generator().manual_seed(derive_seed(seed, "graph"))
    rows = torch.randperm(len(z), generator=draw)[:MOST_VOTERS].sort().values
    U = neighbor_embedding(z[rows], min(m_u, len(rows) - 1), neighbors=options.neighbors).vectors
    found = cluster(unit_length(U), m_u, clusterer, restarts=options.kmeans_restarts, seed=seed)
    labels = found
    if len(rows) < len(z):
        labels = Neighbors(z[rows], found, m_u, options.neighbors).logits(z).argmax(dim=1)
        labels[rows] = found
    return Discovery(network, labels, class_means(z, labels, m_u), votes=True)
