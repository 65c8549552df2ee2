"""Heads: softmax classifiers of the new classes on f(x), each trained on its own output for another view.

Several heads with the wanted number of classes, and some with more ("over-clustering"), learn side by side on
the same features. Their targets are balanced over the classes, so that no class dies (Caron et al. 2020, Fini
et al. 2021). They start from random directions and so differ: if one splits a class, the features do not
learn that, because the others do not split it. If all started from k-means, the features would learn its
mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cdknet.core.clustering import cluster
from cdknet.core.hsic import unit_length

TEMPERATURE = 0.1  # logits are cosines divided by this
SHARPNESS = 0.05  # and those of targets by this
EVENNESS = 2.0  # weight of even use of the classes, where targets are not balanced
OVER = 3  # an over-clustering head has this many times the classes


class Heads(nn.Module):
    """Directions on the unit sphere: one for each old class, and for each class of each head."""

    def __init__(self, width: int, n_old: int, sizes: Sequence[int], *, plain: int = 4) -> None:
        super().__init__()
        self.old = nn.Parameter(unit_length(torch.randn(n_old, width)))
        self.new = nn.ParameterList([nn.Parameter(unit_length(torch.randn(k, width))) for k in sizes])
        self.plain = plain

    def old_logits(self, z: Tensor) -> Tensor:
        return z @ unit_length(self.old).T / TEMPERATURE

    def new_logits(self, z: Tensor) -> list[Tensor]:
        return [z @ unit_length(directions).T / TEMPERATURE for directions in self.new]

    def old_mass(self, z: Tensor) -> Tensor:
        """(n,) the softmax mass on old classes, mean over the heads."""
        old = self.old_logits(z)
        each = [torch.cat([old, new], dim=1).softmax(dim=1)[:, : old.shape[1]] for new in self.new_logits(z)]
        return torch.stack([one.sum(dim=1) for one in each]).mean(dim=0)


def balanced_targets(logits: Tensor, rounds: int = 3) -> Tensor:
    """Sinkhorn-Knopp: soft targets near softmax(logits), balanced over the classes in the batch."""
    with torch.no_grad():
        cosines = logits * TEMPERATURE
        Q = torch.exp((cosines - cosines.amax()) / SHARPNESS)
        for _ in range(rounds):
            Q = Q / Q.sum(dim=0).clamp_min(1e-30) / Q.shape[1]
            Q = Q / Q.sum(dim=1, keepdim=True).clamp_min(1e-30)
    return Q


def swapped_loss(old_logits: Tensor, new_logits: Tensor) -> Tensor:
    """Cross-entropy of each view's output against the balanced output of the other view, mean over both.

    Rows are first views, then second views of the same samples. The softmax is over old and new classes
    together: predicting an old class for an unlabelled sample counts as wrong.
    """
    n = len(new_logits) // 2
    answers = torch.cat([old_logits, new_logits], dim=1).log_softmax(dim=1)[:, old_logits.shape[1] :]
    first, second = balanced_targets(new_logits[:n]), balanced_targets(new_logits[n:])
    return -((first * answers[n:]).sum(dim=1).mean() + (second * answers[:n]).sum(dim=1).mean()) / 2


def distilled_loss(old_logits: Tensor, new_logits: Tensor) -> Tensor:
    """Cross-entropy of each view's output against the sharpened output of the other view.

    Minus the entropy of the mean output, which keeps every class in use (Wen et al. 2023). The softmax is
    over old and new classes together.
    """
    logits = torch.cat([old_logits, new_logits], dim=1)
    n = len(logits) // 2
    answers = logits.log_softmax(dim=1)
    sharp = (logits.detach() * (TEMPERATURE / SHARPNESS)).softmax(dim=1)
    mean = answers.exp().mean(dim=0).clamp_min(1e-9)
    swapped = -((sharp[:n] * answers[n:]).sum(dim=1).mean() + (sharp[n:] * answers[:n]).sum(dim=1).mean()) / 2
    return swapped + EVENNESS * (mean * mean.log()).sum()


def paired_loss(old_logits: Tensor, new_logits: Tensor, partners: Tensor) -> Tensor:
    """-log(p(x) · p(partner)), minus the entropy of the mean output (ORCA, Cao et al. 2022).

    The partner of a view is the other view of the sample nearest to it (`nearest_partners`). The softmax is
    over old and new classes together.
    """
    answers = torch.cat([old_logits, new_logits], dim=1).softmax(dim=1)
    same = (answers * answers[partners]).sum(dim=1).clamp_min(1e-9)
    mean = answers.mean(dim=0).clamp_min(1e-9)
    return -same.log().mean() + (mean * mean.log()).sum()


def nearest_partners(z: Tensor) -> Tensor:
    """For each row of two views: the other view of the nearest *other* sample in the same view."""
    n = len(z) // 2
    with torch.no_grad():
        views = z.view(2, n, -1)
        near = (views @ views.transpose(1, 2)).diagonal_scatter(
            torch.full((2, n), -torch.inf, device=z.device), dim1=1, dim2=2
        )
        first, second = near.argmax(dim=2)
    return torch.cat([n + first, second])


def margin_of(old_logits: Tensor, new_logits: Tensor, targets: Tensor, unsure: Tensor) -> Tensor:
    """Logits of old samples, with the true class raised by `unsure` cosines: a negative margin (ORCA).

    While new classes are unsure, old ones need not be learned to the end: both are learned at one pace.
    """
    logits = torch.cat([old_logits, new_logits], dim=1)
    raised = torch.zeros_like(logits).scatter_(1, targets[:, None], 1.0)
    return logits + unsure / TEMPERATURE * raised


LOSSES = {"balanced": swapped_loss, "sharpened": distilled_loss}


def head_losses(
    heads: Heads,
    z_new: Tensor,
    z_old: Tensor,
    targets: Tensor,
    label_weight: float,
    head_targets: str = "balanced",
) -> Tensor:
    """(heads,) loss of each head: outputs for views of new samples, labels of old ones."""
    old_of_new, old_of_old = heads.old_logits(z_new), heads.old_logits(z_old)
    losses, paired = [], head_targets == "paired"
    partners = nearest_partners(z_new) if paired else torch.empty(0)
    for of_new, of_old in zip(heads.new_logits(z_new), heads.new_logits(z_old), strict=True):
        if paired:
            loss = paired_loss(old_of_new, of_new, partners)
        else:
            loss = LOSSES[head_targets](old_of_new, of_new)
        if label_weight > 0 and len(z_old):
            joint = torch.cat([old_of_old, of_old], dim=1)
            if paired:
                sure = torch.cat([old_of_new, of_new], dim=1).detach().softmax(dim=1).amax(dim=1)
                joint = margin_of(old_of_old, of_old, targets, 1 - sure.mean())
            loss = loss + label_weight * nn.functional.cross_entropy(joint, targets)
        losses.append(loss)
    return torch.stack(losses)


def consensus(heads: Heads, z: Tensor, n_classes: int, *, restarts: int, seed: int) -> Tensor:
    """Labels 0 ... n_classes - 1 of the rows of z: k-means on the outputs of all plain heads.

    A head that disagrees with the others is outvoted, and heads need not number the classes in the same way.
    """
    with torch.inference_mode():
        logits = heads.new_logits(z.to(heads.old.device))[: heads.plain]
        answers = torch.cat([head.softmax(dim=1) for head in logits], dim=1).cpu()
    return cluster(answers, n_classes, restarts=restarts, seed=seed)
