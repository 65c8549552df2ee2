"""SSCD, semi-supervised class discovery (Nixon, Liu, Berthelot 2020), static and dynamic."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from cdknet.core.classifiers import class_means
from cdknet.core.clustering import Clusterer, cluster, wanted_classes
from cdknet.core.seeds import derive_seed, seeded
from cdknet.methods.objective import Discovery
from cdknet.nets.augment import Views
from cdknet.nets.network import Network, embed
from cdknet.options import DiscoverOptions
from cdknet.runs.checkpoints import Checkpoint
from cdknet.training.history import History
from cdknet.training.loop import Loop
from cdknet.training.problem import Problem, batches, stratified

REPLAY = 0.2  # share of the old samples that an epoch of the dynamic strategy replays, as in stage 3
BATCH_SIZE = 128
LEAST_STEPS = 25  # a small set is passed over several times in an epoch, for at least so many steps
KEPT = 0.95  # share of old samples that the novelty detector lets pass as old


def sscd_static(
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
    """Stage 2 of SSCD, all new classes at once: k-means on the features as stage 1 left them."""
    k = wanted_classes(options)
    network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)  # for the loop's sake: no step
    loop = Loop("discover", network, optimizer, seed=seed, history=history, checkpoint=checkpoint)

    def epoch(generator: torch.Generator) -> dict[str, Any]:
        z = embed(network, problem.inputs, problem.new_rows, normalize=options.normalize_features).features
        labels = cluster(z, k, clusterer, restarts=options.kmeans_restarts, seed=seed)
        centers = class_means(z, labels, k)
        loop.tensors |= {"pseudo_labels": labels, "centers": centers}
        return {"spread": float((z - centers[labels]).square().sum(dim=1).mean())}

    loop.run(1, epoch)
    loop.finish()
    return Discovery(network.eval(), loop.tensors["pseudo_labels"], loop.tensors["centers"])


def sscd_dynamic(
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
    """Stage 2 of SSCD, one new class at a time, the most appropriate one.

    The paper says "a single, most appropriate, class is added", no more. Read here as: cluster the samples
    that have no class yet into as many clusters as there are classes still to find; the best separated one
    (`separation`) is the next class; the classifier gets one more output (the last layer alone, as in SSCD)
    and is fine-tuned on the classes found so far and a replay of the old ones; then again with the rest and
    the new features. What is left at the end is the last class. `discover_epochs` is shared out over the
    rounds, at least one for each. The outputs for new classes are dropped: stage 3 grows its own.
    """
    k = wanted_classes(options)
    network = copy.deepcopy(network)
    n_old, rounds = problem.n_old_classes, max(k - 1, 1)
    with seeded(derive_seed(seed, "dynamic head")):
        head = nn.Linear(network.head.in_features, rounds).to(network.device)
    network.add_module("rival_head", head)  # so that it is kept with the weights
    rate = options.discover_learning_rate or learning_rate
    optimizer = torch.optim.Adam(network.trainable(), lr=rate)
    loop = Loop("discover", network, optimizer, seed=seed, history=history, checkpoint=checkpoint)
    rows = problem.new_rows
    if len(rows) < k:
        raise ValueError(f"n_new_classes must be at most the unlabelled samples. Got {k} > {len(rows)}.")
    if loop.epoch == 0 and not loop.done:
        loop.tensors["pseudo_labels"] = torch.full((len(rows),), -1)
    each = max(1, options.discover_epochs // rounds)
    limit = each * rounds

    def take_next_class(found: int) -> float:
        """Give the best separated cluster of what is left the number `found`; how separated it is."""
        labels = loop.tensors["pseudo_labels"].clone()
        left = (labels < 0).nonzero()[:, 0]
        if len(left) < k - found:  # samples that are all alike: what was found took them all
            return 0.0
        z = embed(network, problem.inputs, rows[left], normalize=options.normalize_features).features
        parts = cluster(z, k - found, clusterer, restarts=options.kmeans_restarts, seed=seed)
        scores = separation(z, parts, k - found)
        best = int(scores.argmax())
        labels[left[parts == best]] = found
        loop.tensors["pseudo_labels"] = labels
        return float(scores[best])

    def epoch(generator: torch.Generator) -> dict[str, Any]:
        found = loop.epoch // each + 1
        row: dict[str, Any] = {"found": found}
        if loop.epoch % each == 0 and k > 1:
            row["separation"] = take_next_class(found - 1)
        labels = loop.tensors["pseudo_labels"]
        network.train()
        named = (labels >= 0).nonzero()[:, 0]
        shown = len(named) + len(stratified(problem.old_targets, REPLAY, torch.Generator()))
        total, count = 0.0, 0
        for _ in range(math.ceil(LEAST_STEPS / math.ceil(shown / BATCH_SIZE))):
            replayed = stratified(problem.old_targets, REPLAY, generator)
            where = torch.cat([problem.old_rows[replayed], rows[named]])
            targets = torch.cat([problem.old_targets[replayed], n_old + labels[named]])
            for batch in batches(len(where), BATCH_SIZE, generator):
                z = network.dropout(network.features(problem.inputs.take(where[batch], network.device)))
                logits = torch.cat([network.head(z), head(z)[:, :found]], dim=1)
                loss = nn.functional.cross_entropy(logits, targets[batch].to(z.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total, count = total + float(loss.detach()) * len(batch), count + len(batch)
        return {**row, "loss": total / count}

    if k > 1:
        loop.run(limit, epoch)
    if not loop.done:
        labels = loop.tensors["pseudo_labels"]
        for found in range(int(labels.max()) + 1, k - 1):  # a watcher ended it before every class was found
            take_next_class(found)
        labels = loop.tensors["pseudo_labels"]
        labels = torch.where(labels < 0, k - 1, labels)
        z = embed(network, problem.inputs, rows, normalize=options.normalize_features).features
        loop.tensors |= {"pseudo_labels": labels, "centers": class_means(z, labels, k)}
    loop.finish()
    del network.rival_head
    return Discovery(network.eval(), loop.tensors["pseudo_labels"], loop.tensors["centers"])


def separation(z: Tensor, labels: Tensor, k: int) -> Tensor:
    """Mean of 1 - a/b over the members of each cluster, (k,): a to the own centre, b to the nearest other.

    The silhouette with centres in place of members. A cluster of a single sample has -1: it is no class.
    """
    distances = torch.cdist(z, class_means(z, labels, k))
    own = distances.gather(1, labels[:, None])[:, 0]
    if k == 1:
        return torch.zeros(1)
    other = distances.scatter(1, labels[:, None], math.inf).amin(dim=1)
    value = 1 - own / other.clamp_min(1e-12)
    counts = torch.bincount(labels, minlength=k)
    means = torch.zeros(k).index_add_(0, labels, value) / counts.clamp_min(1)
    return torch.where(counts > 1, means, torch.tensor(-1.0))


# The novelty detector of SSCD (Hendrycks and Gimpel 2017). Off in the paper's protocol.


def max_softmax_probability(logits: Tensor) -> Tensor:
    """max_c softmax(logits)_c, (n,): how sure a classifier is. Low for samples of classes it has not seen."""
    return torch.softmax(logits, dim=1).amax(dim=1)


def novelty_threshold(logits: Tensor, kept: float = KEPT) -> float:
    """The probability that a share `kept` of old samples reaches; `logits` are of held-out ones."""
    if not 0 < kept <= 1:
        raise ValueError(f"kept must be a share above 0 and at most 1. Got {kept}.")
    if not len(logits):
        raise ValueError("novelty_threshold needs held-out old samples. Got none. Hold some out in stage 1.")
    sure = max_softmax_probability(logits).double().sort().values
    return float(sure[len(sure) - math.ceil(kept * len(sure))])


def is_novel(logits: Tensor, threshold: float) -> Tensor:
    """Whether each sample is less sure than the threshold, and so taken for one of a new class. (n,)."""
    return max_softmax_probability(logits).double() < threshold
