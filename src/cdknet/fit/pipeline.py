"""The three stages in order, and the label and confidence of every sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cdknet.core.classifiers import MOST_VOTERS, Centers, Classifier, Neighbors, class_means
from cdknet.core.confidence import raw_confidence
from cdknet.core.seeds import derive_seed, seeded
from cdknet.fit.expand import expand
from cdknet.fit.plan import FitPlan
from cdknet.fit.pretrain import Pretraining, held_out_positions, pretrain
from cdknet.inputs.arrays import Inputs, input_statistics
from cdknet.methods.base import Discovery
from cdknet.methods.sscd import is_novel, novelty_threshold
from cdknet.nets.architectures import build_network
from cdknet.nets.growth import check_growable
from cdknet.nets.model import Blueprint, Model
from cdknet.nets.network import Network, Projection, embed
from cdknet.options import PretrainedOptions
from cdknet.training.context import FitContext
from cdknet.training.problem import Problem


class Stages(NamedTuple):
    """The results of the stages."""

    pretraining: Pretraining
    discovery: Discovery
    model: Model
    blueprint: Blueprint
    novel: Tensor | None = None  # (n',) which unlabelled samples count as new ones; None: all of them
    cut_short: bool = False  # stage 3 was stopped early


def run_stages(problem: Problem, plan: FitPlan, context: FitContext) -> Stages:
    """Pretrain, discover, expand."""
    options, history = plan.options, context.history
    network, blueprint = build(problem, plan, context)
    if isinstance(network, Projection):  # nothing to train
        pretraining = Pretraining(network.fit(problem.inputs, derive_seed(context.seed, "axes")), 0, None)
    elif not plan.method.pretrains:
        pretraining = Pretraining(network, 0, None)
    else:
        with history.timed("pretrain"):
            pretraining = pretrain(network, problem, cast(PretrainedOptions, options), context)
    novel = None
    if getattr(options, "novelty", False):
        novel = _novel_ones(pretraining.network, problem, cast(PretrainedOptions, options), context.seed)
        problem = problem._replace(new_rows=problem.new_rows[novel])
    with history.timed("discover"):
        discovery = plan.method.discover(pretraining.network, problem, options, context)
    if options.expansion == "none":
        model = _unexpanded(problem, discovery, plan, context.seed)
        return Stages(pretraining, discovery, model, blueprint, novel)
    with history.timed("expand"):
        expansion = expand(discovery, problem, options, context, plan.views_of_stage_3(context))
    model = Model(expansion.network, plan.on_sphere)
    return Stages(pretraining, discovery, model, blueprint, novel, expansion.cut_short)


def build(problem: Problem, plan: FitPlan, context: FitContext) -> tuple[Network, Blueprint]:
    """The untrained network of a plan, and what is needed to build it again."""
    options, own = plan.options, context.encoder
    statistics = (torch.zeros(1), torch.ones(1))
    if options.standardize:
        statistics = input_statistics(problem.inputs)
    blueprint = Blueprint(
        architecture=options.network,
        own_encoder=own is not None,
        sample_shape=plan.shape,
        statistics_size=len(statistics[0]),
        feature_size=int(options.feature_size),
        n_old_classes=problem.n_old_classes,
        n_new_classes=int(options.n_new_classes),
        expansion=options.expansion,
        extra_units=float(options.extra_units),
        pixels=problem.inputs.X.dtype == np.uint8,
    )
    with seeded(derive_seed(context.seed, "network")):
        network = build_network(
            plan.shape,
            problem.n_old_classes,
            architecture=options.network,
            encoder=own,
            feature_size=options.feature_size,
            statistics=statistics,
        ).to(context.device)
    if options.expansion == "all":
        check_growable(network.trunk)  # before hours of training, not after
    network.in_bfloat16 = options.precision == "bfloat16"
    return network, blueprint


def check_growth(plan: FitPlan, context: FitContext) -> None:
    """Raise if the network of a plan cannot be expanded as planned."""
    if plan.options.expansion == "all":
        with seeded(0):
            name = plan.options.network
            network = build_network(plan.shape, 2, architecture=name, encoder=context.encoder)
        check_growable(network.trunk)


def _novel_ones(network: Network, problem: Problem, options: PretrainedOptions, seed: int) -> Tensor:
    """SSCD's novelty detector: which unlabelled samples stage 1 is less sure of than of held-out old ones."""
    held = problem.old_rows[held_out_positions(problem, options, seed)]
    threshold = novelty_threshold(embed(network, problem.inputs, held, normalize=False).logits)
    novel = is_novel(embed(network, problem.inputs, problem.new_rows, normalize=False).logits, threshold)
    if int(novel.sum()) < options.n_new_classes:
        raise ValueError(
            f"novelty must leave a sample for each new class ({options.n_new_classes}). Got "
            f"{int(novel.sum())} of {len(novel)} unlabelled samples. Turn it off, or train stage 1 longer."
        )
    return novel


def _unexpanded(problem: Problem, discovery: Discovery, plan: FitPlan, seed: int) -> Model:
    """The model without expansion: nearest class mean in feature space, or a vote of neighbours."""
    normalize = plan.on_sphere
    z = embed(discovery.network, problem.inputs, problem.old_rows, normalize=normalize).features
    n_old, n_new = problem.n_old_classes, len(discovery.centers)
    if discovery.votes:
        z_new = embed(discovery.network, problem.inputs, problem.new_rows, normalize=normalize).features
        labels = torch.cat([problem.old_targets, n_old + discovery.pseudo_labels])
        neighbors = getattr(plan.options, "neighbors", DEFAULT_NEIGHBORS)
        classifier: Classifier = voters(torch.cat([z, z_new]), labels, n_old + n_new, neighbors, seed)
    else:
        old = class_means(z, problem.old_targets, n_old)
        scale = float((z - old[problem.old_targets]).square().sum(dim=1).mean())
        new = discovery.centers.clone()
        new[torch.bincount(discovery.pseudo_labels, minlength=n_new) == 0] = torch.nan
        classifier = Centers(torch.cat([old, new]), max(scale, 1e-12))
    return Model(discovery.network, normalize, classifier)


DEFAULT_NEIGHBORS = 15


def voters(z: Tensor, labels: Tensor, n_classes: int, neighbors: int, seed: int) -> Neighbors:
    """A classifier by vote of neighbours, among at most `MOST_VOTERS` of these samples."""
    draw = torch.Generator().manual_seed(derive_seed(seed, "voters"))
    some = torch.randperm(len(z), generator=draw)[:MOST_VOTERS].sort().values
    return Neighbors(z[some], labels[some], n_classes, neighbors)


class Verdict(NamedTuple):
    """The answer of a fit for each sample of X."""

    labels: NDArray[np.int64]  # (n,) old classes, then new ones
    confidence: NDArray[np.float32]  # (n,) 1 where the label was given
    embedding: NDArray[np.float32]  # (n, d)
    pseudo_labels: NDArray[np.int64]  # of the unlabelled rows; -1: classified as old
    given_accuracy: float


def judge(
    stages: Stages,
    X: NDArray[Any],
    targets: NDArray[np.int64],
    calibrated: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None,
) -> Verdict:
    """Labels and confidences. `calibrated` maps raw confidences to probabilities, if it was learned.

    Unlabelled samples are assumed to be of new classes, so only new classes compete for them, unless the
    novelty detector found them old.
    """
    n_old, n_new = stages.blueprint.n_old_classes, stages.blueprint.n_new_classes
    discovery, found_by_2 = stages.discovery, stages.discovery.pseudo_labels.numpy()
    given = targets >= 0
    novel = ~given
    if stages.novel is not None:
        novel[novel] = stages.novel.numpy()
    pseudo = np.full(int((~given).sum()), -1)
    pseudo[novel[~given]] = found_by_2
    features, logits = stages.model.apply(Inputs(X))
    found = logits[:, n_old:].argmax(dim=1).numpy()
    if stages.model.classifier is not None or stages.cut_short:  # without a complete stage 3, use stage 2
        found[novel] = found_by_2
    old = logits[:, :n_old]
    labels = np.where(given, targets, np.where(novel, n_old + found, old.argmax(dim=1).numpy()))
    rows = torch.from_numpy(np.flatnonzero(novel))
    z = features[rows]  # of stage 2, which is the last stage without expansion
    if discovery.network is not stages.model.network:
        z = embed(discovery.network, Inputs(X), rows, normalize=stages.model.normalize).features
    raw = raw_confidence(z, found[novel], n_new)
    confidence = np.ones(len(X), dtype=np.float32)
    confidence[novel] = raw if calibrated is None else calibrated(raw)
    taken = ~given & ~novel
    confidence[taken] = torch.softmax(old, dim=1).amax(dim=1).numpy()[taken]
    right = logits.argmax(dim=1).numpy() == targets
    return Verdict(labels, confidence, features.numpy(), pseudo, float(right[given].mean()))
