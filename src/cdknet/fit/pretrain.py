"""Stage 1: learn the old classes."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cdknet.core.seeds import derive_seed
from cdknet.nets.network import Network, embed
from cdknet.options import PretrainOptions
from cdknet.runs.checkpoints import Checkpoint
from cdknet.training.history import History
from cdknet.training.loop import Loop
from cdknet.training.problem import Problem, batches, stratified


class Pretraining(NamedTuple):
    """What stage 1 learned."""

    network: Network
    best_epoch: int  # the epoch whose weights these are
    validation_accuracy: float | None  # on held-out old samples; None where none could be held out


def pretrain(
    network: Network,
    problem: Problem,
    options: PretrainOptions,
    *,
    seed: int = 0,
    history: History | None = None,
    checkpoint: Checkpoint | None = None,
) -> Pretraining:
    """Stage 1, section V.B: cross-entropy on the old classes, by Adam.

    A share of each old class is held out. Training stops when the accuracy on it is `enough`, or has not
    risen for `patience` epochs; the best epoch's weights are kept. These features are a start for stage 2:
    the longer they are trained on old classes, the less they tell new ones apart. Without `early_stopping`
    every epoch is run, as in the paper, and the last weights are kept.
    """
    network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.trainable(), lr=options.learning_rate)
    loop = Loop("pretrain", network, optimizer, seed=seed, history=history, checkpoint=checkpoint)

    held_out = held_out_positions(problem, options, seed)
    training = torch.ones(len(problem.old_rows), dtype=torch.bool)
    training[held_out] = False
    rows, targets = problem.old_rows[training], problem.old_targets[training]
    held_rows, held_targets = problem.old_rows[held_out], problem.old_targets[held_out]
    stops_early = options.early_stopping and len(held_out) > 0

    def epoch(generator: torch.Generator) -> dict[str, Any]:
        network.train()
        total = 0.0
        for batch in loop.ticking(
            batches(len(rows), options.batch_size, generator), limit=options.pretrain_epochs
        ):
            logits = network(problem.inputs.take(rows[batch], network.device))
            loss = nn.functional.cross_entropy(logits, targets[batch].to(network.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(batch)
        row: dict[str, Any] = {"loss": total / len(rows)}
        if len(held_out):
            logits = embed(network, problem.inputs, held_rows, normalize=False).logits
            row["validation_loss"] = float(nn.functional.cross_entropy(logits, held_targets))
            row["validation_accuracy"] = float((logits.argmax(1) == held_targets).float().mean())
        if stops_early:
            row["stop"] = _remember_best(loop, row["validation_accuracy"], options)
        return row

    loop.run(options.pretrain_epochs, epoch)
    if not loop.done:
        if stops_early:
            best = {name.removeprefix("best."): t for name, t in loop.tensors.items()}
            network.load_state_dict(best)
            loop.tensors = {}
        loop.facts.setdefault("best_epoch", loop.epoch)
    loop.finish()
    best_epoch: int = loop.facts["best_epoch"]
    return Pretraining(network.eval(), best_epoch, loop.rows[best_epoch - 1].get("validation_accuracy"))


def held_out_positions(problem: Problem, options: PretrainOptions, seed: int) -> Tensor:
    """Which of `problem.old_rows` stage 1 does not learn from."""
    split = torch.Generator().manual_seed(derive_seed(seed, "hold out"))
    return stratified(problem.old_targets, options.validation_fraction, split, leave=1)


def _remember_best(loop: Loop, accuracy: float, options: PretrainOptions) -> bool:
    """Keep the weights if this epoch is the best so far; whether it is good enough, or patience at an end."""
    if accuracy > loop.facts.get("best_accuracy", -1.0):
        loop.facts |= {"best_accuracy": accuracy, "best_epoch": loop.epoch + 1}
        loop.tensors = {f"best.{name}": t.detach().clone() for name, t in loop.network.state_dict().items()}
    waited = loop.epoch + 1 - int(loop.facts.get("best_epoch", 0))
    return accuracy >= options.enough or waited >= options.patience
