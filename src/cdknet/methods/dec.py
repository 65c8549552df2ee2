"""DEC, unsupervised deep embedding for clustering analysis (Xie, Girshick, Farhadi 2016)."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cdknet.core.classifiers import class_means
from cdknet.core.clustering import cluster
from cdknet.core.hsic import unit_length
from cdknet.core.seeds import derive_seed, seeded
from cdknet.inputs.arrays import Inputs
from cdknet.methods.base import Discovery, Method, Situation
from cdknet.nets.network import Intake, Network, embed
from cdknet.options import DECOptions
from cdknet.training.context import FitContext
from cdknet.training.loop import Loop, descend
from cdknet.training.problem import Problem, batches, passes

TOLERANCE = 0.001  # DEC stops when a smaller share of the samples changes cluster in a round
LENGTH = 0.3  # the length of Student's t, in root mean squared distances to the cluster centre at the start;
# DEC has 1 in units of its codes, which is about this much of their spread in its plain setting
SLOWER = 0.1  # learning rate of the clustering, as a share of the one before it: .01 after .1 in DEC
LEAST_STEPS = 50  # a round of a small set is several passes, for at least this many steps

# The plain setting, on images.
LAYERS = (500, 500, 2000, 10)
DROPPED = 0.2  # share of inputs dropped in layer-wise training


def soft_assignment(z: Tensor, centers: Tensor, length: float = 1.0) -> Tensor:
    """q_ij = (1 + ‖z_i - μ_j‖² / l²)^-1 / Σ_j', Student's t of one degree, Eq. (1) of DEC, where l = 1."""
    q = 1 / (1 + squared_distances(z, centers) / length**2)
    return q / q.sum(dim=1, keepdim=True)


def target_distribution(q: Tensor) -> Tensor:
    """p_ij = (q_ij² / f_j) / Σ_j' with f_j = Σ_i q_ij, Eq. (3) of DEC."""
    p = q.square() / q.sum(dim=0)
    return p / p.sum(dim=1, keepdim=True)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(P‖Q) = Σ_ij p_ij log(p_ij / q_ij), Eq. (2) of DEC, per sample."""
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(dim=1).mean()


def squared_distances(z: Tensor, centers: Tensor) -> Tensor:
    """‖z_i - μ_j‖², (n, k), by ‖z‖² - 2 z·μ + ‖μ‖² about the centres' mean: no (n, k, d) array is built."""
    middle = centers.detach().mean(dim=0)
    z, centers = z - middle, centers - middle
    squares = z.square().sum(dim=1, keepdim=True) + centers.square().sum(dim=1)
    return (squares - 2 * z @ centers.T).clamp_min(0)


class Centers(nn.Module):
    """The cluster centres, as trainable weights."""

    def __init__(self, k: int, width: int) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.zeros(k, width))


@dataclass
class Assigned:
    """The state between rounds."""

    labels: Tensor  # (n',) cluster of each unlabelled row
    length: float  # of Student's t


def discover(network: Network, problem: Problem, options: DECOptions, context: FitContext) -> Discovery:
    """Stage 2 by DEC: train features and centres together, so that soft assignments become sure.

    As the paper has it: the network comes from stage 1, and only unlabelled samples are clustered. Centres
    start from k-means. In each round (an epoch) the target P is computed from all Q, then gradient steps on
    the network and the centres minimise KL(P‖Q), without dropout, as in DEC. Different from DEC: we use Adam,
    and Student's t has a length (`LENGTH`), measured once, since features of unit length are all close to
    each other in DEC's own unit.
    """
    network, rows, k = copy.deepcopy(network), problem.new_rows, options.n_new_classes
    centers = Centers(k, network.penultimate.out_features).to(network.device)
    weights = [centers.points, *network.trainable()]
    optimizer = torch.optim.Adam(weights, lr=options.discover_learning_rate)
    loop = Loop("discover", context, optimizer, network=network, centers=centers)

    def all_features() -> Tensor:
        return embed(network, problem.inputs, rows, normalize=options.normalize_features).features

    def assignment(z: Tensor) -> Tensor:
        points = centers.points.detach().cpu()
        return torch.cat([soft_assignment(part, points, state.length) for part in z.split(4096)])

    def start() -> Assigned:
        z, settings = all_features(), {"restarts": options.kmeans_restarts, "seed": context.seed}
        labels = cluster(z, k, context.clusterer, **settings)
        means = class_means(z, labels, k)
        with torch.no_grad():
            centers.points.copy_(means)
        spread = float((z - means[labels]).square().sum(dim=1).mean())
        return Assigned(labels, LENGTH * math.sqrt(spread) or 1.0)

    state = loop.remember(Assigned, start)
    while loop.goes_on(options.discover_epochs):
        with loop.epoch() as epoch:
            q = assignment(all_features())
            p = target_distribution(q)
            labels = q.argmax(dim=1)
            changed = float((labels != state.labels).float().mean())
            state.labels = labels
            epoch.record(loss=float(divergence(p, q)), changed=changed)
            epoch.stop = epoch.number > 0 and changed < TOLERANCE
            if epoch.stop:
                continue
            network.train_without_dropout()
            size = options.discover_batch_size
            for batch in epoch.ticking(passes(len(rows), size, epoch.generator, least_steps=LEAST_STEPS)):
                z = network.features(problem.inputs.take(rows[batch], network.device))
                z = unit_length(z) if options.normalize_features else z
                q = soft_assignment(z, centers.points, state.length)
                descend(optimizer, divergence(p[batch].to(z.device), q))
    if not loop.done:
        state.labels = assignment(all_features()).argmax(dim=1)
    loop.finish()
    return Discovery(network.eval(), state.labels, centers.points.detach().cpu().clone())


def resolve(options: DECOptions, situation: Situation) -> DECOptions:
    return replace(
        options, discover_learning_rate=options.discover_learning_rate or SLOWER * options.learning_rate
    )


METHOD = Method("dec", "DEC", DECOptions, discover, resolve)


# The plain setting of its paper: images without any label, a stacked denoising autoencoder.


def plain_dec(
    X: NDArray[Any],  # (n, ...)
    n_clusters: int,
    *,
    layer_epochs: int = 10,
    autoencoder_epochs: int = 60,
    epochs: int = 40,
    batch_size: int = 256,
    in_bfloat16: bool = False,
    context: FitContext | None = None,
) -> Discovery:
    """DEC as its paper runs it, without labels: an autoencoder, then `discover` on its codes."""
    context = context or FitContext()
    epochs_of_both = (layer_epochs, autoencoder_epochs)
    network = learn_autoencoder(X, epochs_of_both, context, batch_size=batch_size, in_bfloat16=in_bfloat16)
    options = DECOptions(
        n_new_classes=n_clusters,
        normalize_features=False,
        discover_epochs=epochs,
        discover_batch_size=batch_size,
        discover_learning_rate=SLOWER * 0.001,
        kmeans_restarts=20,
    )
    return discover(network, Problem.from_arrays(X, np.full(len(X), -1)), options, context)


def learn_autoencoder(
    X: NDArray[Any],
    epochs: tuple[int, int],  # layer by layer, then of all layers
    context: FitContext,
    *,
    batch_size: int = 256,
    learning_rate: float = 0.1,
    in_bfloat16: bool = False,
) -> Network:
    """The encoder of a stacked denoising autoencoder, section 3.2 of DEC: d-500-500-2000-10 and back.

    Each layer first learns alone to reconstruct its input, a fifth of which is dropped. Then all layers learn
    together, without dropout. All are followed by ReLU but the code and the output. By SGD as in DEC: Adam
    reconstructs the inputs sooner, but its codes separate the classes less.
    """
    inputs = Inputs(X)
    d = math.prod(inputs.sample_shape)
    sizes = (d, *LAYERS)
    with seeded(derive_seed(context.seed, "autoencoder")):
        encoder = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        decoder = [nn.Linear(b, a) for a, b in itertools.pairwise(sizes)]
        trunk = nn.Sequential(nn.Flatten(), *(part for layer in encoder[:-1] for part in (layer, nn.ReLU())))
        sample = inputs.take(torch.arange(min(len(inputs), 10_000)))
        scale = sample.square().mean().sqrt().clamp_min(1e-6).reshape(1)  # ‖x‖² / d near 1, as in DEC
        intake = Intake(torch.zeros(1), scale, add_channel=False)
        network = Network(intake, trunk, encoder[-1], 0.0, nn.Linear(LAYERS[-1], 1), rectified=False)
    network.in_bfloat16, back = in_bfloat16, nn.ModuleList(decoder)
    weights = [*network.trainable(), *back.parameters()]
    optimizer = torch.optim.SGD(weights, lr=learning_rate, momentum=0.9)
    loop = Loop("autoencode", context, optimizer, network=network, decoder=back)
    n_layers, (layer_epochs, whole_epochs) = len(encoder), epochs
    limit = layer_epochs * n_layers + whole_epochs

    def encode(x: Tensor, first: int, last: int) -> Tensor:
        for i in range(first, last):
            x = encoder[i](x)
            x = torch.relu(x) if i < n_layers - 1 else x
        return x

    def decode(x: Tensor, first: int, last: int) -> Tensor:
        for i in reversed(range(first, last)):
            x = decoder[i](x)
            x = torch.relu(x) if i > 0 else x
        return x

    while loop.goes_on(limit):
        with loop.epoch() as epoch:
            layer = epoch.number // layer_epochs if layer_epochs else n_layers
            alone = layer < n_layers
            first, last = (layer, layer + 1) if alone else (0, n_layers)
            total = 0.0
            for batch in epoch.ticking(batches(len(inputs), batch_size, epoch.generator)):
                x = intake(inputs.take(batch)).flatten(1)
                with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16):
                    with torch.no_grad():
                        x = encode(x, 0, first)
                    seen = nn.functional.dropout(x, DROPPED) if alone else x
                    code = encode(seen, first, last)
                    code = nn.functional.dropout(code, DROPPED) if alone and last < n_layers else code
                    output = decode(code, first, last)
                loss = nn.functional.mse_loss(output.float(), x.float())
                total += descend(optimizer, loss) * len(batch)
            epoch.record(layer=layer + 1 if alone else 0, loss=total / len(inputs))
    loop.finish()
    return network
