"""Spectral clustering of the features, on a graph of nearest neighbours. No training."""

from __future__ import annotations

from cdknet.core.classifiers import class_means
from cdknet.core.clustering import Clusters, spectral_labels
from cdknet.methods.base import Discovery, Method, discovered
from cdknet.nets.network import Network, embed
from cdknet.options import SpectralOptions
from cdknet.training.context import FitContext
from cdknet.training.problem import Problem


def discover(network: Network, problem: Problem, options: SpectralOptions, context: FitContext) -> Discovery:
    """`spectral_labels` of f(X_u). No training."""
    m_u = options.n_new_classes
    z = embed(network, problem.inputs, problem.new_rows, normalize=options.normalize_features).features
    settings = {"neighbors": options.neighbors, "restarts": options.kmeans_restarts, "seed": context.seed}
    labels = spectral_labels(z, m_u, context.clusterer, **settings)
    return discovered(network, Clusters(labels, class_means(z, labels, m_u), votes=True))


METHOD = Method("spectral", "spectral clustering", SpectralOptions, discover, untrained=True)
