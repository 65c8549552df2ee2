"""CD-KNet+: the paper's objective with a third target, and heads that read the classes off."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cdknet.history import History
from cdknet.hsic import Factor, gaussian_kernel, hsic, identity_dependence
from cdknet.inputs import CHUNK
from cdknet.networks import Network, embed, is_iq, unit_length
from cdknet.options import DiscoverOptions
from cdknet.spectral import neighbor_embedding
from cdknet.stages.clusters import Clusterer, cut_features, wanted_classes
from cdknet.stages.discover import Discovery, endless_batches, subsample
from cdknet.stages.heads import TEMPERATURE, Heads, consensus, head_losses
from cdknet.stages.loop import Checkpoint, Loop, Problem, Snapshot, derive_seed, once, seeded, set_rates
from cdknet.views import Views, view_function

SIGMA = 0.5  # width of the kernel on the unit sphere
WEIGHT_DECAY = 1e-4
BUDGET_STEPS = 10  # most steps of an epoch under a time budget
LEAD_BATCH = 256  # most samples a step where old labels lead: more steps do better than larger ones
MANY = 30  # old classes whose labels alone teach what to look at
PEAK = 2.0  # the learning rate rises to this many times `learning_rate`, then falls to nothing


def discover_plus(
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
    """Stages 1 and 2 of CD-KNet+ in one: the old labels and the samples themselves, learned together.

    maximise  mu [HSIC(Z, identity) - gamma sqrt(HSIC(Z, Z))] - λ/10 L(labels) - L(heads) + nu HSIC(Z, U)

    over the network, Z its features of views on the unit sphere. For `view_steps` steps the targets are the
    old labels and the identity of a sample across its views; or, where the labels lead (`suited`), these
    alone, for `label_epochs` epochs of the old samples. Then, for `head_steps` steps, also the balanced
    answers of heads (`heads`) and, with `spectral_weight` nu > 0, U (from a graph of near neighbours among
    new samples, made afresh each epoch). The pseudo-labels are what several ways to cluster Z agree on
    (`agreed_labels`); not what the heads say, each of which may cut across a class.

    It starts from a network that has not seen the old classes alone, unless there are many: one that has no
    longer sees what sets new ones apart. The old labels enter as cross-entropy and not as HSIC(Z_l, Y): that
    draws each old class together into a point, and with it what is near it.
    """
    m_u = wanted_classes(options)
    options = suited(options, problem.inputs.sample_shape, problem.n_old_classes)
    n_heads = options.heads or 0
    if math.isinf(options.label_weight):
        raise ValueError(
            "label_weight must be finite for method 'cd-knet+'. Got inf. Labels alone: method 'cd-knet'."
        )
    if options.cut == "heads" and n_heads == 0 and clusterer is None:
        raise ValueError(
            "readout 'heads' needs heads. Got 0 (for I/Q the default). Set heads, or take another readout."
        )
    network = copy.deepcopy(network)
    n_old, width = problem.n_old_classes, network.penultimate.out_features
    with seeded(derive_seed(seed, "heads")):
        heads = Heads(width, n_old, m_u, plain=n_heads, over=n_heads // 2).to(network.device)
    network.add_module("heads", heads)  # so that it is kept with the weights
    peak = PEAK * (options.discover_learning_rate or learning_rate)
    optimizer = torch.optim.AdamW(network.trainable(), lr=peak, weight_decay=WEIGHT_DECAY)
    loop = Loop("discover", network, optimizer, seed=seed, history=history, checkpoint=checkpoint)

    device, view = network.device, view_function(options, views, problem.inputs.sample_shape)
    by_hsic, labels_lead = options.view_term == "hsic", options.lead == "labels"
    lam, mu, gamma = options.label_weight / 10, options.view_weight or 0, options.collapse_weight
    # A batch is at most a third of the samples: in larger ones nothing changes from step to step.
    most = min(options.view_batch_size, LEAD_BATCH) if labels_lead else options.view_batch_size
    new_size, lead_size = (
        min(most, max(len(rows) // 3, 64)) for rows in (problem.new_rows, problem.old_rows)
    )
    old_size = new_size if labels_lead else new_size // 2
    steps = max(1, math.ceil(len(problem.new_rows) / new_size))  # an epoch: once over the new samples
    if loop.history.budget is not None:  # short epochs: a stage is over at the end of one
        steps = min(steps, BUDGET_STEPS)
    first, steps_alone = math.ceil(options.view_steps / steps), 0
    if labels_lead:  # an epoch takes as long as one with new samples
        steps_alone = math.ceil(steps * (2 * new_size + old_size) / lead_size)
        first = math.ceil(options.label_epochs * len(problem.old_rows) / lead_size / steps_alone)
    limit = first
    if not labels_lead or mu > 0 or n_heads > 0 or options.spectral_weight > 0:  # new samples have a say
        limit += math.ceil(options.head_steps / steps)
    turn = first / max(limit, 1)  # the share of the stage after which they have it
    draw = torch.Generator().manual_seed(derive_seed(seed, "subsample"))
    graph = problem.new_rows[subsample(len(problem.new_rows), options, draw)]  # the rows that U is about

    def graph_step() -> Tensor:
        """U, a row of unit length for each sample of the graph."""
        z = embed(network, problem.inputs, graph, normalize=True).features
        return unit_length(neighbor_embedding(z, min(m_u, len(z) - 1), neighbors=options.neighbors).vectors)

    def epoch(generator: torch.Generator) -> dict[str, Any]:
        grouping = loop.share(limit) >= turn
        alone = labels_lead and not grouping
        loop.facts["grouped"] = grouping
        if grouping and options.spectral_weight > 0:
            loop.tensors["U"] = graph_step()
        network.train()
        values: dict[str, list[float]] = {}
        new = endless_batches(len(problem.new_rows), new_size, generator)
        old = endless_batches(len(problem.old_rows), lead_size if alone else old_size, generator)
        in_graph = endless_batches(len(graph), old_size, generator)
        n_steps = steps_alone if alone else steps
        for step in loop.ticking(list(torch.arange(n_steps)), limit=limit):
            share = loop.share(limit, float(step) / n_steps)
            set_rates(optimizer, peak * (two_cycles(share, turn) if labels_lead else one_cycle(share)))
            x = None if alone else problem.inputs.take(problem.new_rows[next(new)], device)
            chosen = next(old)
            x_old = problem.inputs.take(problem.old_rows[chosen], device)
            seen = [x_old] if x is None else [x, x, x_old]
            Z = unit_length(network.features(torch.cat([view(part, generator) for part in seen])))
            z, z_old = Z[: -len(chosen)], Z[-len(chosen) :]
            terms = {}
            if mu > 0 and not alone:
                terms["views"] = mu * (_agreement(z, gamma) if by_hsic else -contrastive_loss(z))
            targets = problem.old_targets[chosen].to(device)
            if lam > 0 and not (grouping and n_heads > 0):  # else the heads see to the labels
                terms["labels"] = -lam * nn.functional.cross_entropy(heads.old_logits(z_old), targets)
            if grouping and options.spectral_weight > 0:
                part = next(in_graph)
                z_U = unit_length(network.features(view(problem.inputs.take(graph[part], device), generator)))
                U_b = Factor(loop.tensors["U"][part].to(device))
                terms["hsic_U"] = options.spectral_weight * hsic(gaussian_kernel(z_U, SIGMA), U_b)
            if grouping and n_heads > 0:
                losses = head_losses(heads, z, z_old, targets, lam, options.head_targets)
                terms["heads"] = -losses.mean()
            if not terms:
                continue
            optimizer.zero_grad()
            (-torch.stack(list(terms.values())).sum()).backward()
            optimizer.step()
            for name, value in terms.items():
                values.setdefault(name, []).append(float(value.detach()))
        return {name: float(np.mean(v)) for name, v in values.items()}

    loop.run(limit, epoch)
    if not loop.done:
        _hand_over(heads, network, problem)
    loop.finish()

    def clusters() -> Snapshot:
        z = embed(network, problem.inputs, problem.new_rows, normalize=True).features
        in_time = loop.history.budget is None or loop.facts.get("grouped", False)  # for heads to learn
        said = None
        if options.cut == "heads" and in_time and clusterer is None:
            said = consensus(heads, z, m_u, restarts=options.kmeans_restarts, seed=seed)
        return cut_features(z, options, clusterer, seed, said, as_vectors(network, problem))

    found = once(checkpoint, "cluster", clusters)
    del network.heads
    return Discovery(
        network.eval(),
        found.tensors["pseudo_labels"],
        found.tensors["centers"],
        votes=found.facts["votes"],
        U=loop.tensors.get("U"),
        U_rows=graph if "U" in loop.tensors else None,
        sigma=SIGMA,
    )


def suited(options: DiscoverOptions, shape: tuple[int, ...], n_old_classes: int) -> DiscoverOptions:
    """The options with `lead`, `view_weight` and `heads` set, where they are not, as suits the problem.

    A few old classes teach a network to look at what sets these apart and at nothing else; many teach it
    to look at what sets classes apart. What stays the same across views of a picture is what it shows. Of a
    recording it is the message, and what is wanted is the sender: there the labels alone say what counts.
    """
    lead, labelled = options.lead, options.label_weight > 0
    if lead == "auto":
        lead = "labels" if labelled and (is_iq(shape) or n_old_classes >= MANY) else "views"
    if lead == "labels" and not labelled:
        raise ValueError("label_weight must be above 0 where labels lead. Got 0. Use lead 'views' or 'auto'.")
    mu = 0.0 if lead == "labels" else 3.0
    heads = 0 if is_iq(shape) else 4
    return replace(
        options,
        lead=lead,
        view_weight=mu if options.view_weight is None else options.view_weight,
        heads=heads if options.heads is None else options.heads,
    )


def as_vectors(network: Network, problem: Problem) -> Tensor | None:
    """New samples as the network takes them in, where they are vectors; None else: pixels are no features."""
    if len(problem.inputs.sample_shape) != 1:
        return None
    with torch.inference_mode():
        parts = [
            network.intake(problem.inputs.take(rows, network.device)).cpu()
            for rows in problem.new_rows.split(CHUNK)
        ]
    return torch.cat(parts).clone()


def _agreement(z: Tensor, gamma: float) -> Tensor:
    """HSIC(Z, identity) - gamma sqrt(HSIC(Z, Z)): rows are first views, then second views."""
    K = gaussian_kernel(z, SIGMA)
    crowding = hsic(K, K).clamp_min(1e-12).sqrt()  # no slope where all features are one
    return identity_dependence(K) - gamma * crowding


def contrastive_loss(z: Tensor, temperature: float = 0.5) -> Tensor:
    """NT-Xent (Chen et al. 2020): which of all other rows is the other view of the same sample?"""
    n = len(z) // 2
    logits = (z @ z.T / temperature).fill_diagonal_(-math.inf)
    return nn.functional.cross_entropy(logits, torch.arange(2 * n, device=z.device).roll(n))


def _hand_over(heads: Heads, network: Network, problem: Problem) -> None:
    """Give the network's own outputs the heads' directions of old classes: it then knows them too."""
    some = problem.old_rows[: 2000 if len(problem.old_rows) > 2000 else None]
    length = embed(network, problem.inputs, some, normalize=False).features.norm(dim=1).mean()
    with torch.no_grad():
        network.head.weight.copy_(unit_length(heads.old) / (TEMPERATURE * length.clamp_min(1e-6)))
        network.head.bias.zero_()


def one_cycle(share: float) -> float:
    """Learning rate, as a share of its peak, when `share` of the steps are done: up for 30 %, then down."""
    if share < 0.3:
        return 0.04 + 0.96 * (1 - math.cos(math.pi * share / 0.3)) / 2
    return 1e-4 + (1 - 1e-4) * (1 + math.cos(math.pi * (share - 0.3) / 0.7)) / 2


def two_cycles(share: float, turn: float) -> float:
    """The same for a stage of two parts: one cycle until `turn`, then another, half as high."""
    if share < turn:
        return one_cycle(share / turn)
    return one_cycle((share - turn) / (1 - turn)) / 2 if turn < 1 else 0.0
