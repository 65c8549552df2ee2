"""DAC, deep adaptive image clustering (Chang, Wang, Meng, Xiang, Pan 2017)."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cdknet.history import History
from cdknet.inputs import Inputs, input_statistics
from cdknet.networks import Network, build_network, embed, unit_length
from cdknet.options import DiscoverOptions
from cdknet.readout import class_means
from cdknet.stages.clusters import Clusterer, cluster, wanted_classes
from cdknet.stages.discover import Discovery
from cdknet.stages.loop import Checkpoint, Loop, Problem, batches, derive_seed, seeded
from cdknet.views import Views, view_function

UPPER, LOWER = 0.95, 0.455  # u(λ) = .95 - λ and l(λ) = .455 + .1 λ, section 3.3 of DAC
MEET = (UPPER - LOWER) / 1.1  # the λ at which they meet
BATCH_SIZE = 128  # samples a step, as in the authors' released code for MNIST
DECAY = 0.9  # of RMSprop: Keras's own, in which DAC was written; torch's begins with far longer steps
LEAST_STEPS = 50  # a small set is passed over several times in an epoch, for at least so many steps


class Thresholds(NamedTuple):
    """Pairs more alike than `upper` are taken for one class, less than `lower` for two."""

    upper: float
    lower: float


def thresholds(progress: float) -> Thresholds:
    """u = .95 - λ, l = .455 + .1 λ for λ from 0 (`progress` 0) to where they meet (`progress` 1).

    DAC adds 1.1 x .009 to λ an epoch, so that they meet after 45 epochs. Here they meet after the last
    epoch, however many there are.
    """
    lam = MEET * progress
    return Thresholds(UPPER - lam, LOWER + 0.1 * lam)


def label_features(outputs: Tensor) -> Tensor:
    """exp(o) / ‖exp(o)‖₂, the constraint layer, Eq. (7) of DAC: not negative, of unit length. (n, k)."""
    return unit_length(torch.softmax(outputs, dim=1))


class Pairs(NamedTuple):
    """What is taken for granted about the pairs of some samples."""

    same: Tensor  # (n, n) r_ij: 1 for one class, 0 for two
    chosen: Tensor  # (n, n) v_ij: False where nothing is said


def choose_pairs(features: Tensor, limits: Thresholds) -> Pairs:
    """r_ij = [l_i·l_j > u(λ)], v_ij = 1 where l_i·l_j is outside [l(λ), u(λ)], Eqs. (4) and (6) of DAC."""
    alike = features @ features.T
    return Pairs((alike > limits.upper).to(features.dtype), (alike > limits.upper) | (alike <= limits.lower))


def pair_loss(features: Tensor, pairs: Pairs) -> Tensor:
    """-Σ v_ij [r_ij log(l_i·l_j) + (1 - r_ij) log(1 - l_i·l_j)] / Σ v_ij, Eq. (5) of DAC."""
    alike = (features @ features.T).clamp(1e-6, 1 - 1e-6)
    loss = nn.functional.binary_cross_entropy(alike, pairs.same, reduction="none")
    return (loss * pairs.chosen).sum() / pairs.chosen.sum().clamp_min(1)


def cluster_head(width: int, k: int) -> nn.Sequential:
    """From features to k outputs: the last two layers of DAC's network, each normalised over the batch.

    Layers of equal width start as the identity, as in DAC. The last normalisation starts with the scale at
    which k clusters of equal size are as far apart as ten are at scale 1: with DAC's own, label features of
    three clusters are all above the lower threshold, no pair counts as different, and all fall into one.
    """
    first, second, last = nn.Linear(width, k), nn.Linear(k, k), nn.BatchNorm1d(k)
    for layer in (first, second) if width == k else (second,):
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    nn.init.constant_(last.weight, 3 / math.sqrt(max(k - 1, 1)))
    return nn.Sequential(nn.BatchNorm1d(width), first, nn.BatchNorm1d(k), nn.ReLU(), second, last, nn.ReLU())


def _start_from_clusters(head: nn.Sequential, z: Tensor, labels: Tensor) -> None:
    """Let each output begin as likeness to the centre of one cluster of the features, as DEC's centres do.

    Chance directions, in features that a few clusters fill, give several outputs to one cluster and none to
    another.
    """
    first = head[1]
    assert isinstance(first, nn.Linear)
    level = (z - z.mean(dim=0)) / (z.std(dim=0, correction=0) + 1e-3)
    with torch.no_grad():
        first.weight.copy_(unit_length(class_means(level, labels, first.out_features)))
        first.bias.zero_()


def discover_dac(
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
    """Stage 2 by DAC: are two samples of one class? Learned from the pairs that are sure already.

    As the paper has it: the network comes from stage 1, and only unlabelled samples are clustered. A head
    of k outputs on the features gives label features; it starts from k-means. Of a block of
    `discover_batch_size` samples the sure pairs are chosen, then the network learns them from views of these
    samples. What counts as sure widens from epoch to epoch until every pair does. A sample's class is its
    largest output. The head is then dropped; centres are the classes' mean features, which answer for
    samples not seen.
    """
    k = wanted_classes(options)
    if len(problem.new_rows) < 2:
        raise ValueError("method 'dac' learns from pairs: there must be 2 unlabelled samples. Got 1.")
    network = copy.deepcopy(network)
    with seeded(derive_seed(seed, "dac head")):
        head = cluster_head(network.penultimate.out_features, k).to(network.device)
    network.add_module("rival_head", head)  # so that it is kept with the weights
    rate = options.discover_learning_rate or learning_rate
    optimizer = torch.optim.RMSprop(network.trainable(), lr=rate, alpha=DECAY)
    loop = Loop("discover", network, optimizer, seed=seed, history=history, checkpoint=checkpoint)
    rows = problem.new_rows
    if loop.epoch == 0 and network.penultimate.out_features != k:
        z = embed(network, problem.inputs, rows, normalize=False).features
        near = unit_length(z) if options.normalize_features else z
        start = cluster(near, k, clusterer, restarts=options.kmeans_restarts, seed=seed)
        _start_from_clusters(head, z, start)
    view = view_function(options, views, problem.inputs.sample_shape)

    def labels_of(x: Tensor) -> Tensor:
        return label_features(head(network.features(x)))

    def epoch(generator: torch.Generator) -> dict[str, Any]:
        limits = thresholds(loop.epoch / max(options.discover_epochs - 1, 1))
        network.train_without_dropout()  # label features of a sample are to be its own
        passes = math.ceil(LEAST_STEPS / math.ceil(len(rows) / BATCH_SIZE))
        blocks = [
            b for _ in range(passes) for b in batches(len(rows), options.discover_batch_size, generator)
        ]
        losses, shares = [], []
        for block in loop.ticking(blocks, limit=options.discover_epochs):
            x = problem.inputs.take(rows[block], network.device)
            with torch.no_grad():
                pairs = choose_pairs(labels_of(x), limits)
            shares.append(float(pairs.chosen.float().mean()))
            for part in batches(len(block), BATCH_SIZE, generator):
                seen = labels_of(view(x[part], generator))
                loss = pair_loss(seen, Pairs(pairs.same[part][:, part], pairs.chosen[part][:, part]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
        return {
            "loss": float(np.mean(losses)),
            "chosen": float(np.mean(shares)),
            "upper": limits.upper,
            "lower": limits.lower,
        }

    loop.run(options.discover_epochs, epoch)
    if not loop.done:
        network.eval()
        z = embed(network, problem.inputs, rows, normalize=False).features
        with torch.inference_mode():
            labels = torch.cat([head(part.to(network.device)).argmax(dim=1).cpu() for part in z.split(4096)])
        z = unit_length(z) if options.normalize_features else z
        loop.tensors |= {"pseudo_labels": labels.clone(), "centers": class_means(z, labels, k)}
    loop.finish()
    del network.rival_head
    return Discovery(network.eval(), loop.tensors["pseudo_labels"], loop.tensors["centers"])


# The plain setting of its paper: images without any label.


def dac_network(shape: tuple[int, ...], k: int, width: int) -> nn.Sequential:
    """DAC's network for MNIST, `width` filters in place of 64: two blocks of three convolutions, pooled."""
    layers: list[nn.Module] = [nn.Unflatten(1, (1, shape[0]))] if len(shape) == 2 else []
    channels = 1 if len(shape) == 2 else shape[0]
    for filters in (width, 2 * width):
        for _ in range(3):
            layers += [nn.Conv2d(channels, filters, 3), nn.BatchNorm2d(filters), nn.ReLU()]
            channels = filters
        layers += [nn.MaxPool2d(2), nn.BatchNorm2d(filters)]
    layers += [nn.Conv2d(channels, k, 1), nn.BatchNorm2d(k), nn.ReLU(), nn.AvgPool2d(2)]
    network = nn.Sequential(*layers, nn.Flatten())
    for layer in network:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return network


def plain_dac(
    X: NDArray[Any],  # (n, h, w) or (n, c, h, w)
    n_clusters: int,
    *,
    width: int = 32,
    epochs: int = 45,
    seed: int = 0,
    history: History | None = None,
    checkpoint: Checkpoint | None = None,
) -> Discovery:
    """DAC as its paper runs it, from random weights and without labels."""
    options = DiscoverOptions(n_new_classes=n_clusters, discover_epochs=epochs, discover_batch_size=1000)
    problem = Problem.from_arrays(X, np.full(len(X), -1))
    shape = problem.inputs.sample_shape
    with seeded(derive_seed(seed, "network")):
        network = build_network(
            shape,
            1,
            encoder=dac_network(shape, n_clusters, width),
            feature_size=n_clusters,
            statistics=input_statistics(Inputs(X)),
        )
        nn.init.eye_(network.penultimate.weight)
        nn.init.zeros_(network.penultimate.bias)
    return discover_dac(network, problem, options, seed=seed, history=history, checkpoint=checkpoint)
