"""CD-KNet+, the default: the paper's objective with a third target, and heads that group the new samples."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cdknet.core.classifiers import class_means
from cdknet.core.clustering import Clusters, cluster_features
from cdknet.core.hsic import Factor, gaussian_kernel, hsic, identity_dependence, unit_length
from cdknet.core.mixture import Mixture, combined, forest_share, labelled_share, smoothed, sort_pool
from cdknet.core.seeds import derive_seed, seeded
from cdknet.core.spectral import neighbor_embedding
from cdknet.inputs.kind import SampleKind
from cdknet.methods.base import Discovery, Method, Situation, discovered
from cdknet.methods.heads import OVER, TEMPERATURE, Heads, consensus, head_losses
from cdknet.nets.augment import view_function
from cdknet.nets.network import Network, as_vectors, embed, flat_inputs
from cdknet.options import CDKNetPlusOptions
from cdknet.training.context import FitContext
from cdknet.training.loop import Loop, Term, ascend, once, set_rates
from cdknet.training.problem import Problem, endless_batches, subsample

SIGMA = 0.5  # width of the kernel on the unit sphere
WEIGHT_DECAY = 1e-4
BUDGET_STEPS = 10  # most steps per epoch under a time budget
LEAD_BATCH = 256  # most samples per step where old labels lead: more steps work better than larger batches
MANY = 30  # from this many old classes, labels alone teach good features
PEAK = 2.0  # the learning rate rises to this many times `learning_rate`, then falls to 0
KNOWN = 2000  # old samples on which the length of features is measured


@dataclass
class Progress:
    """The state between epochs."""

    grouped: bool = False  # the heads have been trained
    U: Tensor | None = None  # (n, r), only with `spectral_weight`


def discover(
    network: Network, problem: Problem, options: CDKNetPlusOptions, context: FitContext
) -> Discovery:
    """Stages 1 and 2 in one: the old labels and the samples themselves, learned together.

    maximise  mu [HSIC(Z, identity) - gamma sqrt(HSIC(Z, Z))] - λ/10 L(labels) - L(heads) + nu HSIC(Z, U)

    over the network. Z are its features of augmented views, on the unit sphere. For `view_steps` steps the
    targets are the old labels and the identity of a sample across its views. Where the labels lead
    (`resolve`), the labels are the only target, for `label_epochs` epochs over the old samples. Then, for
    `head_steps` steps, the balanced outputs of heads (`heads`) are also targets and, with `spectral_weight`
    nu > 0, U (from a neighbour graph of new samples, recomputed each epoch).

    Unless there are many old classes, it starts from a network that was not trained on them alone: such a
    network no longer sees what separates new ones. The old labels enter as cross-entropy and not as HSIC(Z_l,
    Y), which would collapse each old class into a point, together with the samples near it.

    The pseudo-labels are the consensus of several clusterings of Z (`agreed_labels`), not the outputs of the
    heads, since a single head may split a class.

    With spies in the problem, unlabelled samples may be of old classes. The heads have one softmax over old
    and new classes: their mass on the old ones is high for old samples, also for those without a label.
    After training, all samples are sorted by it (`sorted_pool`), and only the new ones are clustered.
    """
    network, heads, progress, graph = learn(network, problem, options, context)
    m_u = options.n_new_classes
    mixture = None
    if problem.n_spies:
        sort = functools.partial(sorted_pool, network, heads, problem, m_u)
        mixture = once(context.checkpoint, "sort", Mixture, sort)
    rows = problem.new_rows if mixture is None else problem.unlabelled_rows[mixture.is_new]

    def clusters() -> Clusters:
        z = embed(network, problem.inputs, rows, normalize=True).features
        settings = {"restarts": options.kmeans_restarts, "seed": context.seed}
        how, own = options.readout, context.clusterer
        if how == "heads" and own is None and progress.grouped:
            labels = consensus(heads, z, m_u, **settings)
            return Clusters(labels, class_means(z, labels, m_u), votes=False)
        looks = how == "agreed" and own is None
        samples = as_vectors(network, problem.inputs, rows) if looks else None
        how = "k-means" if how == "heads" else how  # there was no time to train the heads
        return cluster_features(z, m_u, how, own, samples, **settings)

    found = once(context.checkpoint, "cluster", Clusters, clusters)
    U_rows = None if progress.U is None else graph
    return discovered(network, found, mixture=mixture, U=progress.U, U_rows=U_rows, sigma=SIGMA)


class Learned(NamedTuple):
    """What the training gives, before anything is clustered."""

    network: Network
    heads: Heads
    progress: Progress
    graph: Tensor  # rows of X that U is about


def learn(
    network: Network,
    problem: Problem,
    options: CDKNetPlusOptions,
    context: FitContext,
    sizes: Sequence[int] | None = None,
) -> Learned:
    """The training of `discover`. `sizes` are those of the heads; None: by the number of new classes."""
    network = copy.deepcopy(network)
    m_u, nu = options.n_new_classes, options.spectral_weight
    with seeded(derive_seed(context.seed, "heads")):
        width, over = network.penultimate.out_features, options.heads // 2
        sizes = [m_u] * options.heads + [OVER * m_u] * over if sizes is None else sizes
        heads = Heads(width, problem.n_old_classes, sizes, plain=options.heads).to(network.device)
    peak, weights = PEAK * options.discover_learning_rate, [*network.trainable(), *heads.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=peak, weight_decay=WEIGHT_DECAY, maximize=True)
    loop = Loop("discover", context, optimizer, network=network, heads=heads)
    progress = loop.remember(Progress, Progress)
    plan = schedule(problem, options, timed=context.history.budget is not None)
    view = view_function(options.views, context.views)
    draw = torch.Generator().manual_seed(derive_seed(context.seed, "subsample"))
    graph = problem.new_rows[subsample(len(problem.new_rows), options.subsample, options.min_subsample, draw)]

    def take(rows: Tensor) -> Tensor:
        return problem.inputs.take(rows, network.device)

    def features(samples: list[Tensor], generator: torch.Generator) -> Tensor:
        """Z of one view of each of these samples."""
        return unit_length(network.features(torch.cat([view(part, generator) for part in samples])))

    while loop.goes_on(plan.epochs):
        with loop.epoch() as epoch:
            network.train()
            grouping = loop.share() >= plan.turn  # heads and U are targets, too
            alone = plan.labels_lead and not grouping
            progress.grouped = grouping
            if grouping and nu > 0:  # the U step, on a neighbour graph
                z = embed(network, problem.inputs, graph, normalize=True).features
                r = min(m_u, len(z) - 1)
                progress.U = unit_length(neighbor_embedding(z, r, neighbors=options.neighbors).vectors)
            new = endless_batches(len(problem.new_rows), plan.new_size, epoch.generator)
            old_size = plan.lead_size if alone else plan.old_size
            old = endless_batches(len(problem.old_rows), old_size, epoch.generator)
            in_graph = endless_batches(len(graph), plan.old_size, epoch.generator)
            n_steps = plan.steps_alone if alone else plan.steps

            for step in epoch.ticking(list(torch.arange(n_steps))):
                share = loop.share(float(step) / n_steps)
                cycle = two_cycles(share, plan.turn) if plan.labels_lead else one_cycle(share)
                set_rates(optimizer, peak * cycle)
                twice = [] if alone else [take(problem.new_rows[next(new)])] * 2
                chosen = next(old)
                Z = features([*twice, take(problem.old_rows[chosen])], epoch.generator)
                z, z_old = Z[: -len(chosen)], Z[-len(chosen) :]
                targets = problem.old_targets[chosen].to(Z.device)
                terms = view_and_label_terms(heads, z, z_old, targets, options, grouping=grouping)
                if progress.U is not None and grouping and nu > 0:
                    part = next(in_graph)
                    K = gaussian_kernel(features([take(graph[part])], epoch.generator), SIGMA)
                    terms["hsic_U"] = Term(hsic(K, Factor(progress.U[part].to(Z.device))), nu)
                if terms:
                    ascend(optimizer, terms, epoch)
    if not loop.done:
        know_old_classes(network, heads, problem)
    loop.finish()
    return Learned(network, heads, progress, graph)


def view_and_label_terms(
    heads: Heads,
    z: Tensor,
    z_old: Tensor,
    targets: Tensor,
    options: CDKNetPlusOptions,
    *,
    grouping: bool,
) -> dict[str, Term]:
    """All terms but HSIC(Z, U). z are two views of new samples (or none), z_old one view of old ones."""
    lam, mu = options.label_weight / 10, options.view_weight
    terms = {}
    if mu > 0 and len(z):
        by_hsic = options.view_term == "hsic"
        agreement = view_agreement(z, options.collapse_weight) if by_hsic else -contrastive_loss(z)
        terms["views"] = Term(agreement, mu)
    if grouping and options.heads > 0:  # their loss includes the labels
        losses = head_losses(heads, z, z_old, targets, lam, options.head_targets)
        terms["heads"] = Term(-losses.mean())
    elif lam > 0:
        terms["labels"] = Term(-nn.functional.cross_entropy(heads.old_logits(z_old), targets), lam)
    return terms


# Old samples among the unlabelled ones.


def sorted_pool(network: Network, heads: Heads, problem: Problem, n_new: int) -> Mixture:
    """Old and new among the unlabelled samples of a pool with spies.

    Two scores are combined: the heads' mean mass on old classes (without heads, the share of labelled samples
    among neighbours), and what a forest sees in the samples themselves.
    """
    pool, old = problem.new_rows, problem.old_rows
    z = embed(network, problem.inputs, pool, normalize=True).features
    with torch.inference_mode():
        on_device = z.to(heads.old.device)
        best_old = heads.old_logits(on_device).argmax(dim=1).cpu()
        if len(heads.new):
            learned = smoothed(heads.old_mass(on_device).cpu(), z)
        else:
            learned = labelled_share(z, embed(network, problem.inputs, old, normalize=True).features)
    seen = forest_share(flat_inputs(network, problem.inputs, pool), flat_inputs(network, problem.inputs, old))
    return sort_pool(combined([learned, seen], problem.n_spies), best_old, problem.n_spies, n_new)


class Schedule(NamedTuple):
    """Batches, steps and epochs."""

    labels_lead: bool
    epochs: int
    turn: float  # share of the epochs after which heads and U are targets, too
    steps: int  # per epoch
    steps_alone: int  # per epoch on labels alone
    new_size: int  # samples per step
    old_size: int
    lead_size: int  # old samples per step on labels alone


def schedule(problem: Problem, options: CDKNetPlusOptions, *, timed: bool) -> Schedule:
    """Batches, steps and epochs for a problem; epochs are short under a time budget (`timed`)."""
    labels_lead = options.lead == "labels"
    # A batch is at most a third of the samples: larger batches would hardly differ from step to step.
    most = min(options.view_batch_size, LEAD_BATCH) if labels_lead else options.view_batch_size
    new_size, lead_size = (
        min(most, max(len(rows) // 3, 64)) for rows in (problem.new_rows, problem.old_rows)
    )
    old_size = new_size if labels_lead else new_size // 2
    steps = max(1, math.ceil(len(problem.new_rows) / new_size))  # once over the new samples
    if timed:  # a stage can only stop at the end of an epoch
        steps = min(steps, BUDGET_STEPS)
    steps_alone, first = 0, math.ceil(options.view_steps / steps)
    if labels_lead:  # an epoch takes as long as one with new samples
        steps_alone = math.ceil(steps * (2 * new_size + old_size) / lead_size)
        first = math.ceil(options.label_epochs * len(problem.old_rows) / lead_size / steps_alone)
    epochs = first
    asked = options.view_weight > 0 or options.heads > 0 or options.spectral_weight > 0
    if not labels_lead or asked:  # new samples are used, too
        epochs += math.ceil(options.head_steps / steps)
    turn = first / max(epochs, 1)
    return Schedule(labels_lead, epochs, turn, steps, steps_alone, new_size, old_size, lead_size)


def know_old_classes(network: Network, heads: Heads, problem: Problem) -> None:
    """Copy the heads' directions of old classes into the network's own outputs, so that it predicts them."""
    rows = problem.old_rows[:KNOWN]
    length = embed(network, problem.inputs, rows, normalize=False).features.norm(dim=1).mean()
    with torch.no_grad():
        network.head.weight.copy_(unit_length(heads.old) / (TEMPERATURE * length.clamp_min(1e-6)))
        network.head.bias.zero_()


def resolve(options: CDKNetPlusOptions, situation: Situation) -> CDKNetPlusOptions:
    """The options with `lead`, `view_weight`, `heads` and the learning rate set to suit the problem.

    A few old classes teach a network to look only at what separates these; many teach it to look at what
    separates classes in general. What stays the same across views of an image is the object it shows. For a
    recording it is the message, but we want the transmitter: there only the labels show what matters. A
    vector with some features replaced may no longer belong to its class: its views count less.
    """
    lead, iq = options.lead, situation.kind is SampleKind.IQ
    if lead == "auto":
        led = options.label_weight > 0 and (iq or situation.n_old_classes >= MANY)
        lead = "labels" if led else "views"
    mu = 0.0 if lead == "labels" else 1.0 if situation.kind is SampleKind.VECTOR else 3.0
    heads = (0 if iq else 4) if options.heads is None else options.heads
    if options.readout == "heads" and not heads and not situation.own_clusterer:
        raise ValueError(
            "readout 'heads' needs heads. Got 0 (for I/Q the default). Set heads, or use another readout."
        )
    return replace(
        options,
        lead=lead,
        view_weight=mu if options.view_weight is None else options.view_weight,
        heads=heads,
        discover_learning_rate=options.discover_learning_rate or options.learning_rate,
    )


def view_agreement(z: Tensor, gamma: float) -> Tensor:
    """HSIC(Z, identity) - gamma sqrt(HSIC(Z, Z)): rows are first views, then second views."""
    K = gaussian_kernel(z, SIGMA)
    crowding = hsic(K, K).clamp_min(1e-12).sqrt()  # no gradient where all features coincide
    return identity_dependence(K) - gamma * crowding


def contrastive_loss(z: Tensor, temperature: float = 0.5) -> Tensor:
    """NT-Xent (Chen et al. 2020): find the other view of the same sample among all other rows."""
    n = len(z) // 2
    logits = (z @ z.T / temperature).fill_diagonal_(-math.inf)
    return nn.functional.cross_entropy(logits, torch.arange(2 * n, device=z.device).roll(n))


def one_cycle(share: float) -> float:
    """Learning rate as a share of its peak, after `share` of the steps: up for 30 %, then down."""
    if share < 0.3:
        return 0.04 + 0.96 * (1 - math.cos(math.pi * share / 0.3)) / 2
    return 1e-4 + (1 - 1e-4) * (1 + math.cos(math.pi * (share - 0.3) / 0.7)) / 2


def two_cycles(share: float, turn: float) -> float:
    """The same for a stage of two parts: one cycle until `turn`, then another, half as high."""
    if share < turn:
        return one_cycle(share / turn)
    return one_cycle((share - turn) / (1 - turn)) / 2 if turn < 1 else 0.0


METHOD = Method(
    "cd-knet+",
    "CD-KNet+",
    CDKNetPlusOptions,
    discover,
    resolve,
    network="small",
    pretrains=False,
    shows_views=True,
    is_fast=True,
    sorts=True,
    looks_at_samples=True,
    clusterings=("agreed", "spectral", "k-means"),
    tunable=tuple(CDKNetPlusOptions.__dataclass_fields__),
)
