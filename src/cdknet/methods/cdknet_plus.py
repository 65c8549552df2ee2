"""CD-KNet+: the paper's objective with a third target, and heads that read the classes off."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from cdknet.core.clustering import Clusterer, wanted_classes
from cdknet.core.hsic import Factor, gaussian_kernel, hsic, identity_dependence, unit_length
from cdknet.core.seeds import derive_seed, seeded
from cdknet.core.spectral import neighbor_embedding
from cdknet.inputs.arrays import CHUNK
from cdknet.methods.heads import TEMPERATURE, Heads, consensus, head_losses
from cdknet.methods.objective import Discovery, Objective, Term, climb, endless_batches, subsample
from cdknet.nets.architectures import is_iq
from cdknet.nets.augment import Views, view_function
from cdknet.nets.network import Network, embed
from cdknet.options import DiscoverOptions
from cdknet.runs.checkpoints import Checkpoint
from cdknet.training.history import History
from cdknet.training.loop import Loop, set_rates
from cdknet.training.problem import Problem

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

    It starts from a network that has not seen the old classes alone, unless there are many: one that has no
    longer sees what sets new ones apart. The pseudo-labels are what several ways to cluster Z agree on
    (`agreed_labels`); not what the heads say, each of which may cut across a class.
    """
    options = suited(options, problem.inputs.sample_shape, problem.n_old_classes)
    if math.isinf(options.label_weight):
        raise ValueError(
            "label_weight must be finite for method 'cd-knet+'. Got inf. Labels alone: method 'cd-knet'."
        )
    if options.cut == "heads" and not options.heads and clusterer is None:
        raise ValueError(
            "readout 'heads' needs heads. Got 0 (for I/Q the default). Set heads, or take another readout."
        )
    view = view_function(options, views, problem.inputs.sample_shape)
    rate = options.discover_learning_rate or learning_rate
    timed = history is not None and history.budget is not None
    objective = Targets(copy.deepcopy(network), problem, options, view, rate, seed, timed=timed)
    found = climb(objective, clusterer=clusterer, history=history, checkpoint=checkpoint)
    del found.network.heads
    return found


class Targets(Objective):
    """maximise  mu [HSIC(Z, identity) - gamma sqrt(HSIC(Z, Z))] - λ/10 L(labels) - L(heads) + nu HSIC(Z, U)

    over the network, Z its features of views on the unit sphere. For `view_steps` steps the targets are the
    old labels and the identity of a sample across its views; or, where the labels lead (`suited`), these
    alone, for `label_epochs` epochs of the old samples. Then, for `head_steps` steps, also the balanced
    answers of heads (`heads`) and, with `spectral_weight` nu > 0, U (from a graph of near neighbours among
    new samples, made afresh each epoch).

    The old labels enter as cross-entropy and not as HSIC(Z_l, Y): that draws each old class together into a
    point, and with it what is near it.
    """

    on_sphere = True

    def __init__(
        self,
        network: Network,
        problem: Problem,
        options: DiscoverOptions,  # `suited` ones
        view: Views,
        rate: float,
        seed: int,
        *,
        timed: bool = False,  # there is a time budget
    ) -> None:
        self.network, self.problem, self.options, self.seed = network, problem, options, seed
        self.view, self.timed = view, timed
        self.m_u, self.n_heads = wanted_classes(options), options.heads or 0
        n_old, width = problem.n_old_classes, network.penultimate.out_features
        with seeded(derive_seed(seed, "heads")):
            over = self.n_heads // 2
            self.heads = Heads(width, n_old, self.m_u, plain=self.n_heads, over=over).to(network.device)
        network.add_module("heads", self.heads)  # so that it is kept with the weights
        self.peak = PEAK * rate
        self.optimizer = torch.optim.AdamW(
            network.trainable(), lr=self.peak, weight_decay=WEIGHT_DECAY, maximize=True
        )
        self._plan()
        draw = torch.Generator().manual_seed(derive_seed(seed, "subsample"))
        self.U_rows = problem.new_rows[subsample(len(problem.new_rows), options, draw)]

    def _plan(self) -> None:
        """Batches, steps and epochs, and after which share of these new samples have a say."""
        problem, options = self.problem, self.options
        self.labels_lead = options.lead == "labels"
        # A batch is at most a third of the samples: in larger ones nothing changes from step to step.
        most = min(options.view_batch_size, LEAD_BATCH) if self.labels_lead else options.view_batch_size
        self.new_size, self.lead_size = (
            min(most, max(len(rows) // 3, 64)) for rows in (problem.new_rows, problem.old_rows)
        )
        self.old_size = self.new_size if self.labels_lead else self.new_size // 2
        steps = max(1, math.ceil(len(problem.new_rows) / self.new_size))  # once over the new samples
        if self.timed:  # short epochs: a stage is over at the end of one
            steps = min(steps, BUDGET_STEPS)
        self.n_steps, self.n_steps_alone = steps, 0
        first = math.ceil(options.view_steps / steps)
        if self.labels_lead:  # an epoch takes as long as one with new samples
            self.n_steps_alone = math.ceil(steps * (2 * self.new_size + self.old_size) / self.lead_size)
            first = math.ceil(
                options.label_epochs * len(problem.old_rows) / self.lead_size / self.n_steps_alone
            )
        self.epochs = first
        asked = (options.view_weight or 0) > 0 or self.n_heads > 0 or options.spectral_weight > 0
        if not self.labels_lead or asked:  # new samples have a say
            self.epochs += math.ceil(options.head_steps / steps)
        self.turn = first / max(self.epochs, 1)

    def steps(self, loop: Loop, generator: torch.Generator) -> Iterator[dict[str, Term]]:
        """Views of new and of old samples, and what is asked of them in this part of the stage."""
        problem = self.problem
        grouping = loop.share(self.epochs) >= self.turn
        alone = self.labels_lead and not grouping
        loop.facts["grouped"] = grouping
        nu = self.options.spectral_weight if grouping else 0
        if nu > 0:
            loop.tensors["U"] = self.graph_step()
        new = endless_batches(len(problem.new_rows), self.new_size, generator)
        old = endless_batches(len(problem.old_rows), self.lead_size if alone else self.old_size, generator)
        in_graph = endless_batches(len(self.U_rows), self.old_size, generator)
        n_steps = self.n_steps_alone if alone else self.n_steps
        for step in loop.ticking(list(torch.arange(n_steps)), limit=self.epochs):
            share = loop.share(self.epochs, float(step) / n_steps)
            cycle = two_cycles(share, self.turn) if self.labels_lead else one_cycle(share)
            set_rates(self.optimizer, self.peak * cycle)
            twice = [] if alone else [self._taken(problem.new_rows[next(new)])] * 2
            chosen = next(old)
            Z = self._features([*twice, self._taken(problem.old_rows[chosen])], generator)
            z, z_old = Z[: -len(chosen)], Z[-len(chosen) :]
            terms = self._terms(z, z_old, problem.old_targets[chosen].to(Z.device), grouping)
            if nu > 0:
                part = next(in_graph)
                U = Factor(loop.tensors["U"][part].to(Z.device))
                K = gaussian_kernel(self._features([self._taken(self.U_rows[part])], generator), SIGMA)
                terms["hsic_U"] = Term(hsic(K, U), nu)
            yield terms

    def _terms(self, z: Tensor, z_old: Tensor, targets: Tensor, grouping: bool) -> dict[str, Term]:
        """All but HSIC(Z, U): z are two views of new samples (or none), z_old one of old ones."""
        options, lam = self.options, self.options.label_weight / 10
        mu, gamma = options.view_weight or 0, options.collapse_weight
        terms = {}
        if mu > 0 and len(z):
            by_hsic = options.view_term == "hsic"
            terms["views"] = Term(view_agreement(z, gamma) if by_hsic else -contrastive_loss(z), mu)
        if grouping and self.n_heads > 0:  # these see to the labels, too
            losses = head_losses(self.heads, z, z_old, targets, lam, options.head_targets)
            terms["heads"] = Term(-losses.mean())
        elif lam > 0:
            terms["labels"] = Term(-nn.functional.cross_entropy(self.heads.old_logits(z_old), targets), lam)
        return terms

    def _taken(self, rows: Tensor) -> Tensor:
        return self.problem.inputs.take(rows, self.network.device)

    def _features(self, samples: list[Tensor], generator: torch.Generator) -> Tensor:
        """Z of a view of each of these."""
        x = torch.cat([self.view(part, generator) for part in samples])
        return unit_length(self.network.features(x))

    def graph_step(self) -> Tensor:
        """U, a row of unit length for each sample of the graph."""
        z = embed(self.network, self.problem.inputs, self.U_rows, normalize=True).features
        r = min(self.m_u, len(z) - 1)
        return unit_length(neighbor_embedding(z, r, neighbors=self.options.neighbors).vectors)

    def end(self) -> None:
        """Give the network's own outputs the heads' directions of old classes: it then knows them too."""
        network, rows = self.network, self.problem.old_rows[:2000]
        length = embed(network, self.problem.inputs, rows, normalize=False).features.norm(dim=1).mean()
        with torch.no_grad():
            network.head.weight.copy_(unit_length(self.heads.old) / (TEMPERATURE * length.clamp_min(1e-6)))
            network.head.bias.zero_()

    def own_labels(self, loop: Loop, z: Tensor) -> Tensor | None:
        learned = loop.facts.get("grouped", False)
        if self.options.cut != "heads" or not learned:
            return None
        return consensus(self.heads, z, self.m_u, restarts=self.options.kmeans_restarts, seed=self.seed)

    def samples(self) -> Tensor | None:
        return as_vectors(self.network, self.problem)

    def sigma(self, loop: Loop) -> float:
        return SIGMA


def suited(options: DiscoverOptions, shape: tuple[int, ...], n_old_classes: int) -> DiscoverOptions:
    """The options with `lead`, `view_weight` and `heads` set, where they are not, as suits the problem.

    A few old classes teach a network to look at what sets these apart and at nothing else; many teach it
    to look at what sets classes apart. What stays the same across views of a picture is what it shows. Of a
    recording it is the message, and what is wanted is the sender: there the labels alone say what counts. Of
    a vector with a part of its features exchanged nobody knows what it is: its views count less.
    """
    lead, labelled = options.lead, options.label_weight > 0
    if lead == "auto":
        lead = "labels" if labelled and (is_iq(shape) or n_old_classes >= MANY) else "views"
    if lead == "labels" and not labelled:
        raise ValueError("label_weight must be above 0 where labels lead. Got 0. Use lead 'views' or 'auto'.")
    mu = 0.0 if lead == "labels" else 1.0 if len(shape) == 1 else 3.0
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
    with torch.no_grad():
        parts = [
            network.intake(problem.inputs.take(rows, network.device)).cpu()
            for rows in problem.new_rows.split(CHUNK)
        ]
    return torch.cat(parts)


def view_agreement(z: Tensor, gamma: float) -> Tensor:
    """HSIC(Z, identity) - gamma sqrt(HSIC(Z, Z)): rows are first views, then second views."""
    K = gaussian_kernel(z, SIGMA)
    crowding = hsic(K, K).clamp_min(1e-12).sqrt()  # no slope where all features are one
    return identity_dependence(K) - gamma * crowding


def contrastive_loss(z: Tensor, temperature: float = 0.5) -> Tensor:
    """NT-Xent (Chen et al. 2020): which of all other rows is the other view of the same sample?"""
    n = len(z) // 2
    logits = (z @ z.T / temperature).fill_diagonal_(-math.inf)
    return nn.functional.cross_entropy(logits, torch.arange(2 * n, device=z.device).roll(n))


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
