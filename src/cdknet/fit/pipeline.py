"""The three stages in order, and the label and confidence of every sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cdknet.core.classifiers import MOST_VOTERS, Centers, Classifier, Neighbors, class_means
from cdknet.core.confidence import raw_of_mixture
from cdknet.core.mixture import (
    Mixture,
    combined,
    far_from_everything,
    forest_share,
    labelled_share,
    share_of_spies,
    sort_pool,
)
from cdknet.core.seeds import derive_seed, seeded
from cdknet.fit.expand import expand
from cdknet.fit.plan import FitPlan
from cdknet.fit.pretrain import Pretraining, held_out_positions, pretrain
from cdknet.inputs.arrays import CHUNK, Inputs, input_statistics
from cdknet.methods.base import Discovery
from cdknet.methods.sscd import is_novel, novelty_threshold
from cdknet.nets.architectures import build_network
from cdknet.nets.growth import check_growable
from cdknet.nets.model import Blueprint, Model
from cdknet.nets.network import Network, Projection, embed, flat_inputs
from cdknet.options import PretrainedOptions
from cdknet.training.context import FitContext
from cdknet.training.loop import once
from cdknet.training.problem import Problem

# Raw confidences of new and of old samples -> probabilities that their labels are right.
Raw = NDArray[np.float64]
PROJECTED = 128  # axes onto which longer samples are projected at random; distances stay nearly the same
Calibrated = Callable[[Raw, Raw], tuple[Raw, Raw]]


class Stages(NamedTuple):
    """The results of the stages."""

    pretraining: Pretraining
    discovery: Discovery
    model: Model
    blueprint: Blueprint
    mixture: Mixture | None = None  # old, new and noise among the unlabelled samples; None: all are new
    cut_short: bool = False  # stage 3 was stopped early


def run_stages(problem: Problem, plan: FitPlan, context: FitContext) -> Stages:
    """Pretrain, discover, expand.

    If the unlabelled samples are mixed, some labelled ones hide among them as spies through stages 1 and 2
    (`cdknet.core.mixture`). A method that `sorts` does so after its training. Else old samples are recognised
    by the features of stage 1, and stage 2 only sees the others. Stage 3 learns from all labels, the spies'
    among them, from recognised old samples and from the clusters of new ones; noise is left out.
    """
    options, history, everything = plan.options, context.history, problem
    mixed = options.unlabelled == "mixed"
    by_softmax = getattr(options, "detector", "spies") == "softmax"
    network, blueprint = build(problem, plan, context)
    noise = torch.zeros(len(problem.new_rows), dtype=torch.bool)
    if mixed and options.noise:
        noise = noise_in(problem, network)
        problem = problem._replace(new_rows=problem.new_rows[~noise])
    whole = problem
    if mixed and not by_softmax:
        problem = with_spies(problem, context.seed)
    if isinstance(network, Projection):  # nothing to train
        pretraining = Pretraining(network.fit(problem.inputs, derive_seed(context.seed, "axes")), 0, None)
    elif not plan.method.pretrains:
        pretraining = Pretraining(network, 0, None)
    else:
        with history.timed("pretrain"):
            pretraining = pretrain(network, problem, cast(PretrainedOptions, options), context)
    mixture = None
    with history.timed("discover"):
        if mixed and not plan.method.sorts:
            find = _softmax_mixture if by_softmax else _stage_1_mixture
            mixture = once(
                context.checkpoint, "sort", Mixture, lambda: find(pretraining, problem, plan, context)
            )
            problem = whole._replace(new_rows=whole.new_rows[mixture.is_new])
        discovery = plan.method.discover(pretraining.network, problem, options, context)
    mixture = discovery.mixture if mixture is None else mixture
    mixture = None if mixture is None else mixture.with_noise(noise)
    lesson, targets = taught_by(everything, discovery, mixture)
    if options.expansion == "none":
        model = _unexpanded(lesson, targets, discovery, plan, context.seed)
        return Stages(pretraining, discovery, model, blueprint, mixture)
    with history.timed("expand"):
        expansion = expand(discovery, lesson, targets, options, context, plan.views_of_stage_3(context))
    model = Model(expansion.network, plan.on_sphere)
    return Stages(pretraining, discovery, model, blueprint, mixture, expansion.cut_short)


def noise_in(problem: Problem, network: Network) -> Tensor:
    """(n',) unlabelled samples far from everything, as the network sees them (long ones projected)."""
    length = math.prod(problem.inputs.sample_shape)
    draw = torch.Generator().manual_seed(0)
    axes = torch.randn(length, PROJECTED, generator=draw) / math.sqrt(PROJECTED)

    def seen(rows: Tensor) -> Tensor:
        if length <= 2 * PROJECTED:
            return flat_inputs(network, problem.inputs, rows)
        return torch.cat([flat_inputs(network, problem.inputs, part) @ axes for part in rows.split(CHUNK)])

    return far_from_everything(seen(problem.new_rows), seen(problem.old_rows))


def with_spies(problem: Problem, seed: int) -> Problem:
    """The problem with some labelled samples among the unlabelled ones."""
    draw = torch.Generator().manual_seed(derive_seed(seed, "spies"))
    return problem.with_spies(share_of_spies(len(problem.old_rows), problem.n_old_classes), draw)


def taught_by(problem: Problem, discovery: Discovery, mixture: Mixture | None) -> tuple[Problem, Tensor]:
    """What stage 3 learns: the unlabelled samples but noise, and the class of each, old or new."""
    targets = problem.n_old_classes + discovery.pseudo_labels
    if mixture is None:
        return problem, targets
    classes = mixture.best_old.clone()
    classes[mixture.is_new] = targets
    return problem._replace(new_rows=problem.new_rows[~mixture.noise]), classes[~mixture.noise]


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


def _stage_1_mixture(
    pretraining: Pretraining, problem: Problem, plan: FitPlan, context: FitContext
) -> Mixture:
    """Old and new among the unlabelled samples, by neighbours in the features of stage 1 and by a forest."""
    network, normalize = pretraining.network, plan.on_sphere
    z = embed(network, problem.inputs, problem.new_rows, normalize=normalize).features
    z_old = embed(network, problem.inputs, problem.old_rows, normalize=normalize).features
    best_old = Neighbors(z_old, problem.old_targets, problem.n_old_classes, DEFAULT_NEIGHBORS).logits(z)
    rows = (problem.new_rows, problem.old_rows)
    seen = forest_share(*(flat_inputs(network, problem.inputs, part) for part in rows))
    score = combined([labelled_share(z, z_old), seen], problem.n_spies)
    return sort_pool(score, best_old.argmax(dim=1), problem.n_spies, int(plan.options.n_new_classes))


def _softmax_mixture(
    pretraining: Pretraining, problem: Problem, plan: FitPlan, context: FitContext
) -> Mixture:
    """SSCD's detector: new samples are those that stage 1 is less sure of than of held-out old ones.

    It has no probabilities and no interval: a sample is old or not.
    """
    network, options = pretraining.network, cast(PretrainedOptions, plan.options)
    held = problem.old_rows[held_out_positions(problem, options, context.seed)]
    threshold = novelty_threshold(embed(network, problem.inputs, held, normalize=False).logits)
    logits = embed(network, problem.inputs, problem.new_rows, normalize=False).logits
    novel = is_novel(logits, threshold)
    if int(novel.sum()) < options.n_new_classes:
        raise ValueError(
            f"The softmax detector must leave a sample for each new class ({options.n_new_classes}). Got "
            f"{int(novel.sum())} of {len(novel)} unlabelled samples. Use detector 'spies', or train stage 1 "
            "longer."
        )
    share = float((~novel).double().mean())
    none = torch.zeros(len(novel), dtype=torch.bool)
    return Mixture((~novel).double(), logits.argmax(dim=1), none, novel, share, 0.0, 1.0, 0)


def _unexpanded(problem: Problem, targets: Tensor, discovery: Discovery, plan: FitPlan, seed: int) -> Model:
    """The model without expansion: nearest class mean in feature space, or a vote of neighbours."""
    normalize = plan.on_sphere
    z = embed(discovery.network, problem.inputs, problem.old_rows, normalize=normalize).features
    n_old, n_new = problem.n_old_classes, len(discovery.centers)
    if discovery.votes:
        z_new = embed(discovery.network, problem.inputs, problem.new_rows, normalize=normalize).features
        labels = torch.cat([problem.old_targets, targets])
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

    labels: NDArray[np.int64]  # (n,) old classes, then new ones; -1: noise
    confidence: NDArray[np.float32]  # (n,) 1 where the label was given
    novelty: NDArray[np.float32]  # (n,) P(not of an old class); 0 where the label was given
    best_old: NDArray[np.int64]  # (n,) the old class that a sample resembles most
    embedding: NDArray[np.float32]  # (n, d)
    pseudo_labels: NDArray[np.int64]  # of the unlabelled rows; -1: classified as old
    given_accuracy: float


def judge(
    stages: Stages,
    X: NDArray[Any],
    targets: NDArray[np.int64],
    calibrated: Calibrated | None,
) -> Verdict:
    """Labels and confidences. `calibrated` maps raw confidences to probabilities, if it was learned.

    P(old) decides whether an unlabelled sample is old or new. Stage 3 decides among the old classes, or among
    the new ones.
    """
    n_old, n_new = stages.blueprint.n_old_classes, stages.blueprint.n_new_classes
    discovery, mixture = stages.discovery, stages.mixture
    given = targets >= 0
    unlabelled = np.flatnonzero(~given)
    novel, taken = unlabelled, unlabelled[:0]
    if mixture is not None:
        novel, taken = unlabelled[mixture.is_new.numpy()], unlabelled[mixture.is_old.numpy()]
    features, logits = stages.model.apply(Inputs(X))
    best_old = logits[:, :n_old].argmax(dim=1).numpy()
    found = logits[:, n_old:].argmax(dim=1).numpy()[novel]
    if stages.model.classifier is not None or stages.cut_short:  # without a complete stage 3, use stage 2
        found = discovery.pseudo_labels.numpy()
        if mixture is not None:
            best_old[unlabelled] = mixture.best_old.numpy()
    labels = np.where(given, targets, -1)
    labels[novel], labels[taken] = n_old + found, best_old[taken]
    novelty = (~given).astype(np.float32)
    pseudo = np.full(len(unlabelled), -1)
    if mixture is None:
        pseudo[:] = discovery.pseudo_labels.numpy()
    else:
        novelty[unlabelled] = 1 - mixture.p_old.numpy()
        pseudo[mixture.is_new.numpy()] = discovery.pseudo_labels.numpy()
    z = features  # of stage 2, which is the last stage without expansion
    if discovery.network is not stages.model.network:
        rows = torch.from_numpy(np.flatnonzero(~given) if mixture is None else np.arange(len(X)))
        z = torch.zeros(len(X), stages.discovery.centers.shape[1])
        z[rows] = embed(discovery.network, Inputs(X), rows, normalize=stages.model.normalize).features
    raw = raw_of_mixture(z, labels, given, novelty, n_old, n_new)
    confidence = np.ones(len(X), dtype=np.float32)
    confidence[novel], confidence[taken] = raw.new, raw.old
    if calibrated is not None:
        confidence[novel], confidence[taken] = calibrated(raw.new, raw.old)
    confidence[labels < 0] = 0.0
    right = logits.argmax(dim=1).numpy() == targets
    share = float(right[given].mean())
    return Verdict(labels, confidence, novelty, best_old, features.numpy(), pseudo, share)
