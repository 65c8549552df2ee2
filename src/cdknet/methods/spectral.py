"""Spectral clustering of features as they are, on a graph of nearest neighbours."""

from __future__ import annotations

from cdknet.core.classifiers import class_means
from cdknet.core.clustering import Clusterer, spectral_labels, wanted_classes
from cdknet.methods.objective import Discovery
from cdknet.nets.augment import Views
from cdknet.nets.network import Network, embed
from cdknet.options import DiscoverOptions
from cdknet.runs.checkpoints import Checkpoint
from cdknet.training.history import History
from cdknet.training.problem import Problem


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
    """`spectral_labels` of f(X_u). No learning."""
    m_u = wanted_classes(options)
    z = embed(network, problem.inputs, problem.new_rows, normalize=options.normalize_features).features
    labels = spectral_labels(
        z, m_u, clusterer, neighbors=options.neighbors, restarts=options.kmeans_restarts, seed=seed
    )
    return Discovery(network, labels, class_means(z, labels, m_u), votes=True)
