"""SSCD, dynamic: one new class at a time (Nixon, Liu, Berthelot 2020)."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cdknet.core.classifiers import class_means
from cdknet.core.clustering import Clusters, cluster
from cdknet.core.seeds import derive_seed, seeded
from cdknet.methods.base import Discovery, Method, discovered, with_rate
from cdknet.nets.network import Network, embed
from cdknet.options import SSCDDynamicOptions
from cdknet.training.context import FitContext
from cdknet.training.loop import Loop, descend
from cdknet.training.problem import Problem, batches, stratified

REPLAY = 0.2  # share of the old samples that are replayed per epoch, as in stage 3
BATCH_SIZE = 128
LEAST_STEPS = 25  # an epoch of a small set is several passes, for at least this many steps


@dataclass
class FoundSoFar:
    """The classes found so far."""

    labels: Tensor  # (n',) new class of each unlabelled row; -1: none yet


def discover(
    network: Network, problem: Problem, options: SSCDDynamicOptions, context: FitContext
) -> Discovery:
    """Stage 2 of SSCD, one new class at a time: the most appropriate one.

    The paper only says "a single, most appropriate, class is added". We read it as follows. Cluster the
    samples that have no class yet into as many clusters as there are classes still to find. The best
    separated cluster (`separation`) is the next class. The classifier gets one more output (only the last
    layer grows, as in SSCD) and is fine-tuned on the classes found so far and a replay of the old ones.
    Repeat with the remaining samples and the new features. The samples left at the end are the last class.
    `discover_epochs` is divided over the rounds, at least one for each. The outputs for new classes are
    dropped: stage 3 grows its own.
    """
    network, rows, k = copy.deepcopy(network), problem.new_rows, options.n_new_classes
    n_old, rounds = problem.n_old_classes, max(k - 1, 1)
    if len(rows) < k:
        raise ValueError(f"n_new_classes must be at most the unlabelled samples. Got {k} > {len(rows)}.")
    with seeded(derive_seed(context.seed, "dynamic head")):
        head = nn.Linear(network.head.in_features, rounds).to(network.device)
    weights = [*network.trainable(), *head.parameters()]
    optimizer = torch.optim.Adam(weights, lr=options.discover_learning_rate)
    loop = Loop("discover", context, optimizer, network=network, head=head)
    found = loop.remember(FoundSoFar, lambda: FoundSoFar(torch.full((len(rows),), -1)))
    each = max(1, options.discover_epochs // rounds)

    def features(rows: Tensor) -> Tensor:
        return embed(network, problem.inputs, rows, normalize=options.normalize_features).features

    def take_next_class(number: int) -> float:
        """Make the best separated cluster of the remaining samples class `number`; return its separation."""
        left = (found.labels < 0).nonzero()[:, 0]
        if len(left) < k - number:  # all samples are the same: no sample is left
            return 0.0
        z, settings = features(rows[left]), {"restarts": options.kmeans_restarts, "seed": context.seed}
        parts = cluster(z, k - number, context.clusterer, **settings)
        scores = separation(z, parts, k - number)
        best = int(scores.argmax())
        found.labels = found.labels.clone()
        found.labels[left[parts == best]] = number
        return float(scores[best])

    while k > 1 and loop.goes_on(each * rounds):
        with loop.epoch() as epoch:
            n_found = epoch.number // each + 1
            epoch.record(found=n_found)
            if epoch.number % each == 0:
                epoch.record(separation=take_next_class(n_found - 1))
            network.train()
            named = (found.labels >= 0).nonzero()[:, 0]
            shown = len(named) + len(stratified(problem.old_targets, REPLAY, torch.Generator()))
            total, count = 0.0, 0
            for _ in range(math.ceil(LEAST_STEPS / math.ceil(shown / BATCH_SIZE))):
                replayed = stratified(problem.old_targets, REPLAY, epoch.generator)
                where = torch.cat([problem.old_rows[replayed], rows[named]])
                targets = torch.cat([problem.old_targets[replayed], n_old + found.labels[named]])
                for batch in batches(len(where), BATCH_SIZE, epoch.generator):
                    z = network.dropout(network.features(problem.inputs.take(where[batch], network.device)))
                    logits = torch.cat([network.head(z), head(z)[:, :n_found]], dim=1)
                    loss = nn.functional.cross_entropy(logits, targets[batch].to(z.device))
                    total, count = total + descend(optimizer, loss) * len(batch), count + len(batch)
            epoch.record(loss=total / count)
    if not loop.done:
        for number in range(int(found.labels.max()) + 1, k - 1):  # a watcher stopped it before all were found
            take_next_class(number)
        found.labels = torch.where(found.labels < 0, k - 1, found.labels)
    loop.finish()
    return discovered(
        network, Clusters(found.labels, class_means(features(rows), found.labels, k), votes=False)
    )


def separation(z: Tensor, labels: Tensor, k: int) -> Tensor:
    """Mean of 1 - a/b over the members of each cluster, (k,): a to its own centre, b to the nearest other.

    The silhouette with centres in place of members. A cluster of a single sample gets -1: it is not a class.
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


METHOD = Method("sscd-dynamic", "SSCD, dynamic", SSCDDynamicOptions, discover, with_rate, counts_vary=True)
