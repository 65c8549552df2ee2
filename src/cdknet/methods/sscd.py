"""SSCD, semi-supervised class discovery (Nixon, Liu, Berthelot 2020), static, and its novelty detector."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from cdknet.core.classifiers import class_means
from cdknet.core.clustering import cluster
from cdknet.methods.base import Discovery, Found, Method
from cdknet.nets.network import Network, embed
from cdknet.options import SSCDOptions
from cdknet.training.context import FitContext
from cdknet.training.loop import Loop
from cdknet.training.problem import Problem

KEPT = 0.95  # share of old samples that the novelty detector accepts as old


def discover(network: Network, problem: Problem, options: SSCDOptions, context: FitContext) -> Discovery:
    """Stage 2 of SSCD, all new classes at once: k-means on the features of stage 1."""
    network, k = copy.deepcopy(network), options.n_new_classes
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate)  # takes no step
    loop = Loop("discover", context, optimizer, network=network)
    found = loop.remember(Found, Found)
    while loop.goes_on(1):
        with loop.epoch() as epoch:
            z = embed(
                network, problem.inputs, problem.new_rows, normalize=options.normalize_features
            ).features
            settings = {"restarts": options.kmeans_restarts, "seed": context.seed}
            labels = cluster(z, k, context.clusterer, **settings)
            found.labels, found.centers = labels, class_means(z, labels, k)
            epoch.record(spread=float((z - found.centers[labels]).square().sum(dim=1).mean()))
    loop.finish()
    return found.discovery(network)


METHOD = Method("sscd", "SSCD", SSCDOptions, discover, untrained=True)


# The novelty detector of SSCD (Hendrycks and Gimpel 2017). Off in the paper's protocol.


def max_softmax_probability(logits: Tensor) -> Tensor:
    """max_c softmax(logits)_c, (n,): how sure a classifier is. Low for unseen classes."""
    return torch.softmax(logits, dim=1).amax(dim=1)


def novelty_threshold(logits: Tensor, kept: float = KEPT) -> float:
    """The probability that a share `kept` of old samples reaches. `logits` are those of held-out ones."""
    if not 0 < kept <= 1:
        raise ValueError(f"kept must be a share above 0 and at most 1. Got {kept}.")
    if not len(logits):
        raise ValueError("novelty_threshold needs held-out old samples. Got none. Hold some out in stage 1.")
    sure = max_softmax_probability(logits).double().sort().values
    return float(sure[len(sure) - math.ceil(kept * len(sure))])


def is_novel(logits: Tensor, threshold: float) -> Tensor:
    """Whether each sample is below the threshold, and so counts as one of a new class. (n,)."""
    return max_softmax_probability(logits).double() < threshold
