"""Stage 3: grow the network and teach it the discovered classes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cdknet.core.seeds import derive_seed, seeded
from cdknet.methods.base import Discovery
from cdknet.nets.augment import Views
from cdknet.nets.growth import Growth, grow
from cdknet.nets.network import Network
from cdknet.options import MethodOptions
from cdknet.training.context import FitContext
from cdknet.training.loop import Loop, descend, set_rates
from cdknet.training.problem import Problem, batches, stratified

PLAIN_FROM, COOL_FROM = 1 / 2, 1 / 3  # shares of the stage


class Expansion(NamedTuple):
    """The result of stage 3: a network with outputs for old classes, then new ones."""

    network: Network
    cut_short: bool = False  # it was stopped early: the network may not have learned all labels of stage 2


def expand(
    discovery: Discovery,
    problem: Problem,
    targets_of_new: Tensor,
    options: MethodOptions,
    context: FitContext,
    views: Views | None = None,
) -> Expansion:
    """Stage 3, section V.D: more outputs (and units), then cross-entropy on pseudo-labels and old samples.

    `targets_of_new` are the classes found for `problem.new_rows`: clusters and, if unlabelled samples are
    mixed, old classes.

    Each epoch shows all new samples and a share `replay` of the old ones, drawn again each time: for the cost
    of one fixed share, all old samples are replayed in the end. A small set gets more epochs, for at least
    `expand_steps` steps. Layers that did not grow learn at `slow_rate` times the learning rate.

    With `views`, the first half of the stage shows a new view of each sample, so that wrong pseudo-labels are
    not memorised. The second half shows the samples themselves, as `predict` will. In this case the learning
    rate falls after the first third of the stage.

    The strategy `none` has no stage 3.
    """
    if options.expansion == "none":
        raise ValueError("Stage 3 needs an expansion strategy. Got 'none'. Leave the stage out instead.")
    with seeded(derive_seed(context.seed, "grow")):
        growth = grow(discovery.network, options.expansion, len(discovery.centers), options.extra_units)
    return teach(growth, problem, targets_of_new, options, context, views)


def teach(
    growth: Growth,
    problem: Problem,
    targets_of_new: Tensor,
    options: MethodOptions,
    context: FitContext,
    views: Views | None = None,
    *,
    stage: str = "expand",
) -> Expansion:
    """Train a grown network: `targets_of_new` are the classes of `problem.new_rows`. Changes it in place."""
    network, grown, slow = growth
    groups, rates = [{"params": grown}], [options.learning_rate]
    if slow and options.slow_rate > 0:
        groups, rates = [*groups, {"params": slow}], [*rates, options.learning_rate * options.slow_rate]
    optimizer = torch.optim.Adam(groups)
    set_rates(optimizer, *rates)
    loop = Loop(stage, context, optimizer, network=network)
    shown = len(problem.new_rows) + len(stratified(problem.old_targets, options.replay, torch.Generator()))
    steps = math.ceil(shown / options.batch_size)  # per epoch

    while loop.goes_on(max(options.expand_epochs, math.ceil(options.expand_steps / steps))):
        with loop.epoch() as epoch:
            replayed = stratified(problem.old_targets, options.replay, epoch.generator)
            rows = torch.cat([problem.old_rows[replayed], problem.new_rows])
            targets = torch.cat([problem.old_targets[replayed], targets_of_new])
            network.train()
            total, right = 0.0, 0
            parts = batches(len(rows), options.batch_size, epoch.generator)
            for index, batch in enumerate(epoch.ticking(parts)):
                x = problem.inputs.take(rows[batch], network.device)
                if views is not None:
                    share = loop.share(index / len(parts))
                    if epoch.number == 0:  # it runs to its end even when time is up, and has to learn
                        share = min(share, index / len(parts))
                    x = views(x, epoch.generator) if share < PLAIN_FROM else x
                    set_rates(optimizer, *[rate * cooled(share) for rate in rates])
                logits, target = network(x), targets[batch].to(network.device)
                total += descend(optimizer, nn.functional.cross_entropy(logits, target)) * len(batch)
                right += int((logits.argmax(1) == target).sum())
            epoch.record(loss=total / len(rows), agreement=right / len(rows))
    loop.finish()
    return Expansion(network.eval(), loop.cut_short)


def cooled(share: float) -> float:
    """Learning rate as a share of its initial value, after `share` of stage 3. It ends at 0."""
    return min(1.0, (1 - share) / (1 - COOL_FROM))
