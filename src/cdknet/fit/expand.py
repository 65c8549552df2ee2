"""Stage 3: grow the network and teach it the discovered classes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cdknet.core.seeds import derive_seed, seeded
from cdknet.methods.objective import Discovery
from cdknet.nets.augment import Views
from cdknet.nets.growth import Growth, grow
from cdknet.nets.network import Network
from cdknet.options import ExpandOptions
from cdknet.runs.checkpoints import Checkpoint
from cdknet.training.history import History
from cdknet.training.loop import Loop, set_rates
from cdknet.training.problem import Problem, batches, stratified

EPOCHS, REPLAY, SLOW = 30, 0.2, 0.1  # Table II, section VI.C
# With views, where f already tells classes apart; chosen by what held-out samples of old classes are called.
EPOCHS_OF_VIEWS, REPLAY_OF_VIEWS, SLOW_OF_VIEWS = 4, 1.0, 1.0
PLAIN_FROM, COOL_FROM = 1 / 2, 1 / 3  # shares of the stage


class Expansion(NamedTuple):
    """What stage 3 made: a network with outputs for old classes, then new ones."""

    network: Network
    cut: bool = False  # it ended before its time: the network may not know all that stage 2 found


def expand(
    discovery: Discovery,
    problem: Problem,
    options: ExpandOptions,
    *,
    learning_rate: float = 0.001,
    batch_size: int = 128,
    views: Views | None = None,
    seed: int = 0,
    history: History | None = None,
    checkpoint: Checkpoint | None = None,
) -> Expansion:
    """Stage 3, section V.D: more outputs (and units), then cross-entropy on pseudo-labels and old samples.

    Each epoch shows all new samples and a share `replay` of the old ones, drawn afresh: for the cost of one
    fixed share, old classes are remembered by all of their samples. A small set gets more epochs, for at
    least `expand_steps` steps. Layers that did not grow learn at `slow_rate` of the learning rate.

    With `views` the first half of the stage shows each sample in a fresh view, so that wrong pseudo-labels
    are not learned by heart; the second half shows the samples as they are, which is how they will come
    when a class is asked for. The learning rate then falls from a third of the stage on.

    Not for the strategy `none`, which has no stage 3.
    """
    if options.expansion == "none":
        raise ValueError("Stage 3 needs an expansion strategy. Got 'none'. Leave the stage out instead.")
    with seeded(derive_seed(seed, "grow")):
        growth = grow(discovery.network, options.expansion, len(discovery.centers), options.extra_units)
    return teach(
        growth,
        problem,
        problem.n_old_classes + discovery.pseudo_labels,
        options,
        learning_rate=learning_rate,
        batch_size=batch_size,
        views=views,
        seed=seed,
        history=history,
        checkpoint=checkpoint,
    )


def teach(
    growth: Growth,
    problem: Problem,
    targets_of_new: Tensor,
    options: ExpandOptions,
    *,
    stage: str = "expand",
    learning_rate: float = 0.001,
    batch_size: int = 128,
    views: Views | None = None,
    seed: int = 0,
    history: History | None = None,
    checkpoint: Checkpoint | None = None,
) -> Expansion:
    """Train a grown network: `targets_of_new` are the classes of `problem.new_rows`. Changes it in place."""
    network, grown, kept = growth
    slow_rate = options.slow_rate
    if slow_rate is None:
        slow_rate = SLOW if views is None else SLOW_OF_VIEWS
    groups, rates = [{"params": grown}], [learning_rate]
    if kept and slow_rate > 0:
        groups, rates = [*groups, {"params": kept}], [*rates, learning_rate * slow_rate]
    optimizer = torch.optim.Adam(groups)
    set_rates(optimizer, *rates)
    loop = Loop(stage, network, optimizer, seed=seed, history=history, checkpoint=checkpoint)

    epochs = options.expand_epochs or (EPOCHS if views is None else EPOCHS_OF_VIEWS)
    replay = options.replay or (REPLAY if views is None else REPLAY_OF_VIEWS)
    shown = len(problem.new_rows) + len(stratified(problem.old_targets, replay, torch.Generator()))
    limit = max(epochs, math.ceil(options.expand_steps / math.ceil(shown / batch_size)))

    def epoch(generator: torch.Generator) -> dict[str, Any]:
        replayed = stratified(problem.old_targets, replay, generator)
        rows = torch.cat([problem.old_rows[replayed], problem.new_rows])
        targets = torch.cat([problem.old_targets[replayed], targets_of_new])
        network.train()
        total, right = 0.0, 0
        parts = batches(len(rows), batch_size, generator)
        for index, batch in enumerate(loop.ticking(parts, limit=limit)):
            x = problem.inputs.take(rows[batch], network.device)
            if views is not None:
                share = loop.share(limit, index / len(parts))
                if loop.epoch == 0:  # it runs to its end, however late it is: at a rate at which it learns
                    share = min(share, index / len(parts))
                x = views(x, generator) if share < PLAIN_FROM else x
                set_rates(optimizer, *[rate * cooled(share) for rate in rates])
            logits = network(x)
            target = targets[batch].to(network.device)
            loss = nn.functional.cross_entropy(logits, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(batch)
            right += int((logits.argmax(1) == target).sum())
        return {"loss": total / len(rows), "agreement": right / len(rows)}

    loop.run(limit, epoch)
    loop.finish()
    return Expansion(network.eval(), bool(loop.facts.get("cut", False)))


def cooled(share: float) -> float:
    """Learning rate, as a share of its start, when `share` of stage 3 is done: it falls to 0 in the end."""
    return min(1.0, (1 - share) / (1 - COOL_FROM))
