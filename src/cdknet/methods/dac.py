"""DAC, deep adaptive image clustering (Chang, Wang, Meng, Xiang, Pan 2017)."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cdknet.core.classifiers import class_means
from cdknet.core.clustering import cluster
from cdknet.core.hsic import unit_length
from cdknet.core.seeds import derive_seed, seeded
from cdknet.inputs.arrays import Inputs, input_statistics
from cdknet.methods.base import Discovery, Found, Method, with_rate
from cdknet.nets.architectures import build_network
from cdknet.nets.augment import view_function, warp
from cdknet.nets.layers import channels_last
from cdknet.nets.network import Network, embed
from cdknet.options import DACOptions
from cdknet.training.context import FitContext
from cdknet.training.loop import Loop, descend
from cdknet.training.problem import Problem, batches

FIRST, LAST = 0.9, 0.5  # similarity above which two samples count as one class: first, last
PASSES = 5  # over a block, before its pairs are selected again
BATCH_SIZE = 128  # samples per step
DECAY = 0.9  # of RMSprop: the default of Keras, which DAC used; torch's starts with far longer steps
LEAST_STEPS = 250  # blocks of a small set are repeated per epoch, for at least this many steps


def threshold(progress: float, last: float = LAST) -> float:
    """From .9 (`progress` 0) down to `last` (1)."""
    return FIRST + (last - FIRST) * progress


def label_features(outputs: Tensor) -> Tensor:
    """exp(o) / ‖exp(o)‖₂, the constraint layer, Eq. (7) of DAC: non-negative, of unit length. (n, k)."""
    return unit_length(torch.softmax(outputs, dim=1))


def alike(features: Tensor) -> Tensor:
    """l_i·l_j for all pairs of label features, (n, n)."""
    return features @ features.T


def pair_loss(features: Tensor, same: Tensor) -> Tensor:
    """Mean of (l_i·l_j - r_ij)² over all pairs, r_ij being 1 for one class and 0 for two."""
    return (alike(features) - same).square().mean()


def _fixed(normalisation: _BatchNorm, scale: float = 1.0) -> _BatchNorm:
    """A normalisation with a fixed scale and no shift.

    Learned ones let an output rise for all samples or for none, so that classes merge.
    """
    nn.init.constant_(normalisation.weight, scale)
    for weight in normalisation.parameters():
        weight.requires_grad_(False)
    return normalisation


def cluster_head(width: int, k: int) -> nn.Sequential:
    """From features to k outputs: the last two layers of DAC's network, with batch normalisation.

    Layers of equal width start as the identity, as in DAC. The last normalisation has the scale at which k
    clusters of equal size are as far apart as ten are at scale 1. With DAC's own scale, the label features of
    three clusters are all similar, and all samples end up in one cluster.
    """
    first, second = nn.Linear(width, k), nn.Linear(k, k)
    for layer in (first, second) if width == k else (second,):
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    last = _fixed(nn.BatchNorm1d(k), 3 / math.sqrt(max(k - 1, 1)))
    inner = (_fixed(nn.BatchNorm1d(width)), first, _fixed(nn.BatchNorm1d(k)), nn.ReLU(), second)
    return nn.Sequential(*inner, last, nn.ReLU())


def _start_from_clusters(head: nn.Sequential, z: Tensor, labels: Tensor) -> None:
    """Initialise each output as the similarity to one cluster centre of the features, as in DEC.

    If the features form a few clusters, random directions give several outputs to one cluster and none to
    another.
    """
    first = head[1]
    assert isinstance(first, nn.Linear)
    level = (z - z.mean(dim=0)) / (z.std(dim=0, correction=0) + 1e-3)
    with torch.no_grad():
        first.weight.copy_(unit_length(class_means(level, labels, first.out_features)))
        first.bias.zero_()


def discover(
    network: Network, problem: Problem, options: DACOptions, context: FitContext, *, last: float = LAST
) -> Discovery:
    """Stage 2 by DAC: learn whether two samples are of one class, from the pairs that are already sure.

    As the paper has it: the network comes from stage 1, and only unlabelled samples are clustered. A head of
    k outputs on the features gives label features; it starts from k-means. In a block of
    `discover_batch_size` samples, pairs above a threshold of similarity count as one class, the others as
    two. The network learns them from views of these samples, `PASSES` times. The threshold falls from block
    to block. A sample's class is its largest output. The head is then dropped; the centres are the mean
    features of the classes, which classify new samples. This follows the code that DAC's authors released;
    their paper has cross-entropy over the pairs outside of two thresholds.
    """
    network, rows, k = copy.deepcopy(network), problem.new_rows, options.n_new_classes
    if len(rows) < 2:
        raise ValueError("method 'dac' learns from pairs: there must be 2 unlabelled samples. Got 1.")
    with seeded(derive_seed(context.seed, "dac head")):
        head = cluster_head(network.penultimate.out_features, k).to(network.device)
    weights = [*network.trainable(), *(weight for weight in head.parameters() if weight.requires_grad)]
    optimizer = torch.optim.RMSprop(weights, lr=options.discover_learning_rate, alpha=DECAY)
    loop = Loop("discover", context, optimizer, network=network, head=head)
    found = loop.remember(Found, Found)
    if loop.is_new and network.penultimate.out_features != k:
        z = embed(network, problem.inputs, rows, normalize=False).features
        near = unit_length(z) if options.normalize_features else z
        settings = {"restarts": options.kmeans_restarts, "seed": context.seed}
        _start_from_clusters(head, z, cluster(near, k, context.clusterer, **settings))
    view = view_function(options.views, context.views)

    def labels_of(x: Tensor) -> Tensor:
        return label_features(head(network.features(x)))

    while loop.goes_on(options.discover_epochs):
        with loop.epoch() as epoch:
            network.train_without_dropout()  # label features of a sample must not be random
            head.train()
            size, limit = options.discover_batch_size, FIRST
            rounds = math.ceil(LEAST_STEPS / (PASSES * math.ceil(len(rows) / BATCH_SIZE)))
            blocks = [block for _ in range(rounds) for block in batches(len(rows), size, epoch.generator)]
            for i, block in enumerate(epoch.ticking(blocks)):
                limit = threshold((epoch.number + i / len(blocks)) / options.discover_epochs, last)
                x = problem.inputs.take(rows[block], network.device)
                with torch.no_grad():
                    same = (alike(labels_of(x)) > limit).to(torch.float32)
                epoch.note(same=same.mean())
                in_turn = (batches(len(block), BATCH_SIZE, epoch.generator) for _ in range(PASSES))
                for part in itertools.chain.from_iterable(in_turn):
                    loss = pair_loss(labels_of(view(x[part], epoch.generator)), same[part][:, part])
                    epoch.note(loss=descend(optimizer, loss))
            epoch.record(threshold=limit)
    if not loop.done:
        network.eval()
        head.eval()
        z = embed(network, problem.inputs, rows, normalize=False).features
        with torch.inference_mode():
            labels = torch.cat([head(part.to(network.device)).argmax(dim=1).cpu() for part in z.split(4096)])
        z = unit_length(z) if options.normalize_features else z
        found.labels, found.centers = labels.clone(), class_means(z, labels, k)
    loop.finish()
    return found.discovery(network)


METHOD = Method("dac", "DAC", DACOptions, discover, with_rate)


# The plain setting of its paper: images without any label.


def dac_network(shape: tuple[int, ...], k: int, width: int) -> nn.Sequential:
    """DAC's network for MNIST, `width` filters in place of 64: two blocks of three convolutions, pooled."""
    layers: list[nn.Module] = [nn.Unflatten(1, (1, shape[0]))] if len(shape) == 2 else []
    channels = 1 if len(shape) == 2 else shape[0]
    for filters in (width, 2 * width):
        for _ in range(3):
            layers += [nn.Conv2d(channels, filters, 3), _fixed(nn.BatchNorm2d(filters)), nn.ReLU()]
            channels = filters
        layers += [nn.MaxPool2d(2), _fixed(nn.BatchNorm2d(filters))]
    layers += [nn.Conv2d(channels, k, 1), _fixed(nn.BatchNorm2d(k)), nn.ReLU(), nn.AvgPool2d(2)]
    network = channels_last(*layers, nn.Flatten())
    for layer in network:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return network


def slight_views(x: Tensor, generator: torch.Generator) -> Tensor:
    """Turned by up to 10 degrees, shifted by a tenth, a twentieth larger, smaller, brighter or darker."""
    pictures = x if x.ndim == 4 else x.unsqueeze(1)
    pictures = warp(pictures, generator, turn=10, seen=(0.95, 1.05), shear=0, shift=0.2)
    light = 0.05 * (2 * torch.rand(len(x), 1, 1, 1, generator=generator) - 1)
    return (pictures + light.to(x)).reshape(x.shape)


def plain_dac(
    X: NDArray[Any],  # (n, h, w) or (n, c, h, w)
    n_clusters: int,
    *,
    width: int = 64,
    epochs: int = 20,
    last: float = LAST,
    in_bfloat16: bool = False,
    context: FitContext | None = None,
) -> Discovery:
    """DAC as its paper runs it, from random weights and without labels.

    The threshold ends at `last`: above .5, the run is the first part of a longer one.
    """
    context = (context or FitContext()).changed(views=slight_views)
    options = DACOptions(
        n_new_classes=n_clusters,
        discover_epochs=epochs,
        discover_batch_size=1000,
        discover_learning_rate=0.001,
        views="grey",
    )
    problem = Problem.from_arrays(X, np.full(len(X), -1))
    shape = problem.inputs.sample_shape
    with seeded(derive_seed(context.seed, "network")):
        network = build_network(
            shape,
            1,
            encoder=dac_network(shape, n_clusters, width),
            feature_size=n_clusters,
            statistics=input_statistics(Inputs(X)),
        )
        nn.init.eye_(network.penultimate.weight)
        nn.init.zeros_(network.penultimate.bias)
    network.penultimate.requires_grad_(False)  # DAC has none
    network.in_bfloat16 = in_bfloat16
    return discover(network, problem, options, context, last=last)
