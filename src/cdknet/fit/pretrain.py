"""Stage 1: learn the old classes."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cdknet.core.seeds import derive_seed
from cdknet.nets.network import Network, embed
from cdknet.options import PretrainedOptions
from cdknet.training.context import FitContext
from cdknet.training.loop import Loop, descend
from cdknet.training.problem import Problem, batches, stratified


class Pretraining(NamedTuple):
    """The result of stage 1."""

    network: Network
    best_epoch: int  # the epoch whose weights were selected
    validation_accuracy: float | None  # on held-out old samples; None if there are none


@dataclass
class Best:
    """The best epoch so far."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    accuracy: float = -1.0
    epoch: int = 0


def pretrain(
    network: Network, problem: Problem, options: PretrainedOptions, context: FitContext
) -> Pretraining:
    """Stage 1, section V.B: cross-entropy on the old classes, by Adam.

    A share of each old class is held out. Training stops when the accuracy on it is `enough`, or has not
    risen for `patience` epochs; the best epoch's weights are selected. These features are only a starting
    point for stage 2: the longer they are trained on old classes, the less they separate new ones. Without
    `early_stopping`, all epochs are run, as in the paper, and the last weights are selected.
    """
    network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.trainable(), lr=options.learning_rate)
    loop = Loop("pretrain", context, optimizer, network=network)
    best = loop.remember(Best, Best)

    held_out = held_out_positions(problem, options, context.seed)
    training = torch.ones(len(problem.old_rows), dtype=torch.bool)
    training[held_out] = False
    rows, targets = problem.old_rows[training], problem.old_targets[training]
    held_rows, held_targets = problem.old_rows[held_out], problem.old_targets[held_out]
    stops_early = options.early_stopping and len(held_out) > 0

    while loop.goes_on(options.pretrain_epochs):
        with loop.epoch() as epoch:
            network.train()
            total = 0.0
            for batch in epoch.ticking(batches(len(rows), options.batch_size, epoch.generator)):
                logits = network(problem.inputs.take(rows[batch], network.device))
                loss = nn.functional.cross_entropy(logits, targets[batch].to(network.device))
                total += descend(optimizer, loss) * len(batch)
            epoch.record(loss=total / len(rows))
            if not len(held_out):
                continue
            logits = embed(network, problem.inputs, held_rows, normalize=False).logits
            accuracy = float((logits.argmax(1) == held_targets).float().mean())
            loss = nn.functional.cross_entropy(logits, held_targets)
            epoch.record(validation_loss=float(loss), validation_accuracy=accuracy)
            if stops_early and accuracy > best.accuracy:
                best.accuracy, best.epoch = accuracy, epoch.number + 1
                best.weights = {name: t.detach().clone() for name, t in network.state_dict().items()}
            waited = epoch.number + 1 - best.epoch
            epoch.stop = stops_early and (accuracy >= options.enough or waited >= options.patience)
    if not loop.done:
        if stops_early:
            network.load_state_dict(best.weights)
        best.weights, best.epoch = {}, best.epoch or loop.done_epochs
    loop.finish()
    return Pretraining(network.eval(), best.epoch, loop.rows[best.epoch - 1].get("validation_accuracy"))


def held_out_positions(problem: Problem, options: PretrainedOptions, seed: int) -> Tensor:
    """Which of `problem.old_rows` stage 1 does not learn from."""
    split = torch.Generator().manual_seed(derive_seed(seed, "hold out"))
    return stratified(problem.old_targets, options.validation_fraction, split, leave=1)
