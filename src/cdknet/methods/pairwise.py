"""Clusters by a learned similarity, in the spirit of Shu, Xu, Liu 2018 (Unseen class discovery)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform
from torch import Tensor, nn

from cdknet.core.classifiers import class_means
from cdknet.core.seeds import derive_seed
from cdknet.methods.base import Discovery, Found, Method, with_rate
from cdknet.nets.network import Network, embed
from cdknet.options import PairwiseOptions
from cdknet.training.context import FitContext
from cdknet.training.loop import Loop, descend
from cdknet.training.problem import Problem, passes

ENOUGH = 0.9  # stop at this accuracy on pairs: beyond it, the distance overfits the old classes
LEAST_STEPS = 5  # an epoch of a small set is several passes, for at least this many steps
LINKED = 1500  # most samples in the tree of clusters, which is quadratic in time and memory
SPEAKERS = 20  # members of a cluster that a sample outside the tree is compared with
LEAST_SHARE = 0.1  # of the mean class size: smaller branches of the tree are outliers, not classes


class PairHead(nn.Module):
    """logit of "same class" = bias - Σ_j |w_j| |a_j - b_j| / scale: a distance whose weights are learned.

    It starts from equal weights, at which an average pair has probability 1/2.
    """

    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.full((width,), 4 / width))
        self.bias = nn.Parameter(torch.tensor(4.0))
        self.register_buffer("scale", torch.tensor(1.0))  # mean |a_j - b_j|, set before training

    def forward(self, a: Tensor, b: Tensor) -> Tensor:  # (n, d), (n, d) -> (n,)
        return self.bias - (a - b).abs() @ self.weights.abs() / self.scale


def draw_pairs(targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two partners for each position, one of the same class (itself if alone) and one of another class."""
    n = len(targets)
    mix = torch.randperm(n, generator=generator)
    order = mix[torch.argsort(targets[mix], stable=True)]  # by class, shuffled within
    sizes = torch.bincount(targets)
    starts = torch.cumsum(sizes, 0) - sizes
    place = torch.empty(n, dtype=torch.long)
    place[order] = torch.arange(n)
    start, size = starts[targets], sizes[targets]
    same = order[start + (place - start + 1) % size]  # the next of the class, cyclically
    jump = (torch.rand(n, generator=generator) * (n - size)).long()
    other = order[(start + size + jump) % n]
    return same, other


def discover(network: Network, problem: Problem, options: PairwiseOptions, context: FitContext) -> Discovery:
    """Stage 2 by pairs: learn from old classes what "same class" means, and cluster new samples by it.

    A distance between features (`PairHead`) learns from equally many same-class and different-class pairs of
    old samples. The features stay those of stage 1: if they learn from pairs too, new classes merge. Then
    `LINKED` new samples are clustered bottom-up by average linkage, and each of the others joins the cluster
    with the highest mean similarity. Shu et al. train features, a classifier with a reject option and an
    autoencoder together with the distance. They use complete linkage, and find the number of clusters
    themselves; here it is given. A user's own clusterer and views are not used.
    """
    if problem.n_old_classes < 2:
        raise ValueError(
            f"The pairwise method needs at least 2 old classes to learn from. Got {problem.n_old_classes}."
        )
    network, k = copy.deepcopy(network), options.n_new_classes
    head = PairHead(network.penultimate.out_features)
    optimizer = torch.optim.Adam(head.parameters(), lr=options.discover_learning_rate)
    loop = Loop("discover", context, optimizer, network=network, head=head)
    found = loop.remember(Found, Found)
    targets, size = problem.old_targets, options.discover_batch_size

    def features(rows: Tensor) -> Tensor:
        return embed(network, problem.inputs, rows, normalize=options.normalize_features).features

    z_old = features(problem.old_rows) if not loop.done else torch.zeros(0)
    while loop.goes_on(options.discover_epochs):
        with loop.epoch() as epoch:
            if epoch.number == 0:
                same, other = draw_pairs(targets, epoch.generator)
                spread = ((z_old - z_old[same]).abs().mean() + (z_old - z_old[other]).abs().mean()) / 2
                head.scale.fill_(spread.clamp_min(1e-12))
            parts = passes(len(targets), size, epoch.generator, least_steps=LEAST_STEPS)
            for batch in epoch.ticking(parts):
                if len(targets[batch].unique()) < 2:
                    continue
                same, other = draw_pairs(targets[batch], epoch.generator)
                z = z_old[batch]
                logits = torch.cat([head(z, z[same]), head(z, z[other])])
                answers = torch.cat([torch.ones(len(batch)), torch.zeros(len(batch))])
                loss = descend(optimizer, nn.functional.binary_cross_entropy_with_logits(logits, answers))
                epoch.note(loss=loss, pairs_right=((logits > 0) == (answers > 0)).float().mean())
            epoch.stop = float(np.mean(epoch.noted["pairs_right"])) >= ENOUGH
    if not loop.done:
        z = features(problem.new_rows)
        found.labels = _cluster_by_similarity(head, z, k, context.seed)
        found.centers = class_means(z, found.labels, k)
    loop.finish()
    return found.discovery(network)


METHOD = Method("pairwise", "pairwise similarity", PairwiseOptions, discover, with_rate)


def _cluster_by_similarity(head: PairHead, z: Tensor, k: int, seed: int) -> Tensor:
    """Labels 0 ... k - 1 of all rows of z: a tree of some of them, the rest by mean similarity."""
    n = len(z)
    if n < k:
        raise ValueError(f"n_new_classes must be at most the unlabelled samples. Got {k} > {n}.")
    generator = torch.Generator().manual_seed(derive_seed(seed, "linked"))
    order = torch.randperm(n, generator=generator)
    linked = order[:LINKED]
    known = cut_tree(1 - similarity(head, z[linked], z[linked]).numpy(), k)
    labels = torch.full((n,), -1)
    labels[linked] = torch.from_numpy(known)
    rest = (labels < 0).nonzero()[:, 0]
    if len(rest):
        votes = [
            similarity(head, z[rest], z[(labels == c).nonzero()[:SPEAKERS, 0]]).mean(dim=1) for c in range(k)
        ]
        labels[rest] = torch.stack(votes, dim=1).argmax(dim=1)
    return labels


def similarity(head: PairHead, a: Tensor, b: Tensor) -> Tensor:
    """Probability of "same class" for each row of a with each of b, (n, m)."""
    out = []
    with torch.inference_mode():
        for part in a.split(max(1, 65536 // len(b))):
            left = part.repeat_interleave(len(b), dim=0)
            right = b.repeat(len(part), 1)
            out.append(torch.sigmoid(head(left, right)).reshape(len(part), len(b)))
    return torch.cat(out).clone()


def cut_tree(distances: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Labels 0 ... k - 1, or -1 for outliers, from average-link clustering of an (n, n) table of distances.

    The tree is cut at the highest level that has k large branches: a cut into k branches of any size would
    mostly cut off single outliers. If there is no such level, it is cut into k branches of any size.
    """
    n = len(distances)
    if k == 1:
        return np.zeros(n, dtype=np.int64)
    table = (distances + distances.T) / 2
    np.fill_diagonal(table, 0)
    merges = linkage(squareform(table, checks=False), method="average")
    least = max(2.0, LEAST_SHARE * n / k)
    alive: set[int] = {2 * n - 2}  # the branches of the cut, by their number in the tree
    sizes = np.concatenate([np.ones(n), merges[:, 3]])
    chosen: list[int] = []
    for step in reversed(range(n - 1)):
        alive.remove(n + step)
        alive |= {int(merges[step, 0]), int(merges[step, 1])}
        large = [branch for branch in sorted(alive) if sizes[branch] >= least]
        if len(large) == k:
            chosen = large
            break
        if len(alive) == k:
            chosen = sorted(alive)  # the fallback if there is no better cut
    labels = np.full(n, -1, dtype=np.int64)
    for label, branch in enumerate(chosen):
        stack = [branch]
        while stack:
            node = stack.pop()
            if node < n:
                labels[node] = label
            else:
                stack += [int(merges[node - n, 0]), int(merges[node - n, 1])]
    return labels
