"""DEC, unsupervised deep embedding for clustering analysis (Xie, Girshick, Farhadi 2016)."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cdknet.core.classifiers import class_means
from cdknet.core.clustering import Clusterer, cluster, wanted_classes
from cdknet.core.hsic import unit_length
from cdknet.core.seeds import derive_seed, seeded
from cdknet.inputs.arrays import Inputs
from cdknet.methods.objective import Discovery
from cdknet.nets.augment import Views
from cdknet.nets.network import Intake, Network, embed
from cdknet.options import DiscoverOptions
from cdknet.runs.checkpoints import Checkpoint
from cdknet.training.history import History
from cdknet.training.loop import Loop
from cdknet.training.problem import Problem, batches

TOLERANCE = 0.001  # DEC stops when a smaller share of the samples changes its cluster in a round
LENGTH = 0.3  # the length of Student's t, in root mean squared distances to the own centre at the start;
# DEC has 1 in units of its codes, which is about this much of their spread in its plain setting
SLOWER = 0.1  # learning rate of the clustering, as a share of that before it: .01 after .1 in DEC
LEAST_STEPS = 50  # a small set is passed over several times in a round, for at least so many steps

# The plain setting, on images.
LAYERS = (500, 500, 2000, 10)
DROPPED = 0.2  # share of inputs dropped while a layer is trained alone


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
    """‖z_i - μ_j‖², (n, k), by ‖z‖² - 2 z·μ + ‖μ‖² about the centres' mean: nothing of (n, k, d) is built."""
    middle = centers.detach().mean(dim=0)
    z, centers = z - middle, centers - middle
    squares = z.square().sum(dim=1, keepdim=True) + centers.square().sum(dim=1)
    return (squares - 2 * z @ centers.T).clamp_min(0)


def discover_dec(
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
    """Stage 2 by DEC: features and centres together go where soft assignments become sure ones.

    As the paper has it: the network comes from stage 1, and only unlabelled samples are clustered. Centres
    start from k-means. In each round (an epoch) the target P is made from all Q, then KL(P‖Q) falls by
    gradient steps on the network and the centres; no dropout, as in DEC. Ours: Adam, and Student's t has a
    length (`LENGTH`) measured once, since features on the unit sphere are all near in DEC's own unit.
    """
    k = wanted_classes(options)
    network = copy.deepcopy(network)
    centers = nn.Parameter(torch.zeros(k, network.penultimate.out_features, device=network.device))
    network.register_parameter("rival_centers", centers)  # so that it is kept with the weights
    rate = options.discover_learning_rate or SLOWER * learning_rate
    optimizer = torch.optim.Adam(network.trainable(), lr=rate)
    loop = Loop("discover", network, optimizer, seed=seed, history=history, checkpoint=checkpoint)
    rows = problem.new_rows

    def all_features() -> Tensor:
        return embed(network, problem.inputs, rows, normalize=options.normalize_features).features

    def assignment(z: Tensor) -> Tensor:
        q = [soft_assignment(part, centers.detach().cpu(), loop.facts["length"]) for part in z.split(4096)]
        return torch.cat(q)

    if loop.epoch == 0 and not loop.done:
        z = all_features()
        labels = cluster(z, k, clusterer, restarts=options.kmeans_restarts, seed=seed)
        start = class_means(z, labels, k)
        with torch.no_grad():
            centers.copy_(start)
        spread = float((z - start[labels]).square().sum(dim=1).mean())
        loop.facts["length"] = LENGTH * math.sqrt(spread) or 1.0
        loop.tensors["pseudo_labels"] = labels

    def epoch(generator: torch.Generator) -> dict[str, Any]:
        q = assignment(all_features())
        p = target_distribution(q)
        labels = q.argmax(dim=1)
        changed = float((labels != loop.tensors["pseudo_labels"]).float().mean())
        loop.tensors["pseudo_labels"] = labels
        row: dict[str, Any] = {"loss": float(divergence(p, q)), "changed": changed}
        if loop.epoch > 0 and changed < TOLERANCE:
            return {**row, "stop": True}
        network.train_without_dropout()
        steps = math.ceil(len(rows) / options.discover_batch_size)
        passes = math.ceil(LEAST_STEPS / steps)
        parts = [b for _ in range(passes) for b in batches(len(rows), options.discover_batch_size, generator)]
        for batch in loop.ticking(parts, limit=options.discover_epochs):
            z = network.features(problem.inputs.take(rows[batch], network.device))
            z = unit_length(z) if options.normalize_features else z
            loss = divergence(p[batch].to(z.device), soft_assignment(z, centers, loop.facts["length"]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return row

    loop.run(options.discover_epochs, epoch)
    if not loop.done:
        loop.tensors["pseudo_labels"] = assignment(all_features()).argmax(dim=1)
    loop.finish()
    found = centers.detach().cpu().clone()
    del network.rival_centers
    return Discovery(network.eval(), loop.tensors["pseudo_labels"], found)


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
    seed: int = 0,
    history: History | None = None,
    checkpoint: Checkpoint | None = None,
) -> Discovery:
    """DEC as its paper runs it, without labels: an autoencoder, then `discover_dec` on its codes."""
    network = learn_autoencoder(
        X,
        layer_epochs,
        autoencoder_epochs,
        batch_size=batch_size,
        in_bfloat16=in_bfloat16,
        seed=seed,
        history=history,
        checkpoint=checkpoint,
    )
    options = DiscoverOptions(
        n_new_classes=n_clusters,
        normalize_features=False,
        discover_epochs=epochs,
        discover_batch_size=batch_size,
        kmeans_restarts=20,
    )
    problem = Problem.from_arrays(X, np.full(len(X), -1))
    return discover_dec(network, problem, options, seed=seed, history=history, checkpoint=checkpoint)


def learn_autoencoder(
    X: NDArray[Any],
    layer_epochs: int,
    whole_epochs: int,
    *,
    batch_size: int = 256,
    learning_rate: float = 0.1,
    in_bfloat16: bool = False,
    seed: int = 0,
    history: History | None = None,
    checkpoint: Checkpoint | None = None,
) -> Network:
    """The encoder of a stacked denoising autoencoder, section 3.2 of DEC: d-500-500-2000-10 and back.

    Each layer first learns alone to give back its input, a fifth of which is dropped, then all of them
    together without dropout. ReLU but for the code and the output. By SGD as in DEC: Adam gives back the
    inputs sooner, with codes that fall into classes less.
    """
    inputs = Inputs(X)
    d = math.prod(inputs.sample_shape)
    sizes = (d, *LAYERS)
    with seeded(derive_seed(seed, "autoencoder")):
        encoder = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        decoder = [nn.Linear(b, a) for a, b in itertools.pairwise(sizes)]
        trunk = nn.Sequential(nn.Flatten(), *(part for layer in encoder[:-1] for part in (layer, nn.ReLU())))
        sample = inputs.take(torch.arange(min(len(inputs), 10_000)))
        scale = sample.square().mean().sqrt().clamp_min(1e-6).reshape(1)  # ‖x‖² / d near 1, as in DEC
        intake = Intake(torch.zeros(1), scale, add_channel=False)
        network = Network(intake, trunk, encoder[-1], 0.0, nn.Linear(LAYERS[-1], 1), rectified=False)
    network.add_module("rival_decoder", nn.ModuleList(decoder))
    network.in_bfloat16 = in_bfloat16
    optimizer = torch.optim.SGD(network.trainable(), lr=learning_rate, momentum=0.9)
    loop = Loop("autoencode", network, optimizer, seed=seed, history=history, checkpoint=checkpoint)
    n_layers, limit = len(encoder), layer_epochs * len(encoder) + whole_epochs

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

    def epoch(generator: torch.Generator) -> dict[str, Any]:
        layer = loop.epoch // layer_epochs if layer_epochs else n_layers
        alone = layer < n_layers
        first, last = (layer, layer + 1) if alone else (0, n_layers)
        total = 0.0
        for batch in loop.ticking(batches(len(inputs), batch_size, generator), limit=limit):
            x = intake(inputs.take(batch)).flatten(1)
            with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16):
                with torch.no_grad():
                    x = encode(x, 0, first)
                seen = nn.functional.dropout(x, DROPPED) if alone else x
                code = encode(seen, first, last)
                code = nn.functional.dropout(code, DROPPED) if alone and last < n_layers else code
                back = decode(code, first, last)
            loss = nn.functional.mse_loss(back.float(), x.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(batch)
        return {"layer": layer + 1 if alone else 0, "loss": total / len(inputs)}

    loop.run(limit, epoch)
    loop.finish()
    del network.rival_decoder
    return network
