"""The three stages in a row, and the model they leave behind."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cdknet.core.classifiers import MOST_VOTERS, Centers, Neighbors, Readout, class_means
from cdknet.core.clustering import Clusterer, wanted_classes
from cdknet.core.seeds import derive_seed, seeded
from cdknet.fit.expand import expand
from cdknet.fit.identity import identity_of
from cdknet.fit.pretrain import Pretraining, held_out_positions, pretrain
from cdknet.inputs.arrays import input_statistics
from cdknet.methods.cdknet import discover
from cdknet.methods.cdknet_plus import discover_plus, suited
from cdknet.methods.dac import discover_dac
from cdknet.methods.dec import discover_dec
from cdknet.methods.objective import Discovery
from cdknet.methods.pairwise import discover_pairwise
from cdknet.methods.spectral import spectral_clustering
from cdknet.methods.sscd import is_novel, novelty_threshold, sscd_dynamic, sscd_static
from cdknet.nets.architectures import build_network, choose_architecture
from cdknet.nets.augment import Views, view_function, view_name
from cdknet.nets.growth import check_growable
from cdknet.nets.model import Blueprint, Model
from cdknet.nets.network import Network, Projection, embed, has_bfloat16
from cdknet.options import DiscoverOptions, ExpandOptions, NetworkOptions, PretrainOptions
from cdknet.runs.checkpoints import Checkpoint
from cdknet.training.history import History
from cdknet.training.problem import Problem

# What `method` names: each a function of the pretrained network, in the place of stage 2.
STAGE_2: dict[str, Callable[..., Discovery]] = {
    "cd-knet+": discover_plus,
    "cd-knet": discover,
    "spectral": spectral_clustering,
    "sscd": sscd_static,
    "sscd-dynamic": sscd_dynamic,
    "dec": discover_dec,
    "dac": discover_dac,
    "pairwise": discover_pairwise,
}


class Fitted(NamedTuple):
    """Everything a fit made, stage by stage."""

    pretraining: Pretraining
    discovery: Discovery
    model: Model
    blueprint: Blueprint
    chosen: dict[str, str]  # what `auto` came to, by the name of the option
    novel: Tensor | None = None  # (n',) which unlabelled samples were taken for new ones; None: all of them
    cut: bool = False  # stage 3 ended before its time


class Parts(NamedTuple):
    """What a fit is given beside samples and options: a user's own parts, and where to compute."""

    encoder: nn.Module | None = None
    clusterer: Clusterer | None = None
    views: Views | None = None
    device: torch.device = torch.device("cpu")

    def identity(self) -> list[Any]:
        """What tells a user's own parts from others, so that a checkpoint is not taken up with others."""
        return [identity_of(part) for part in (self.encoder, self.clusterer, self.views)]


def check_growth(problem: Problem, params: Mapping[str, Any], parts: Parts) -> None:
    """Raise if the network that the options mean cannot be expanded as they say."""
    if params["expansion"] != "all":
        return
    shape = problem.inputs.sample_shape
    name = network_name(params["network"], params["method"], shape)
    with seeded(0):
        network = build_network(shape, problem.n_old_classes, architecture=name, encoder=parts.encoder)
    check_growable(network.trunk)


def run_stages(
    problem: Problem,
    params: Mapping[str, Any],
    parts: Parts,
    *,
    seed: int,
    history: History,
    checkpoint: Checkpoint | None = None,
) -> Fitted:
    """Pretrain, discover, expand. `params` holds every option by name."""
    encoder, clusterer, views, device = parts
    network_options, first = NetworkOptions.pick(params), PretrainOptions.pick(params)
    second, third = DiscoverOptions.pick(params), ExpandOptions.pick(params)
    keep_freed_memory()

    standardize = network_options.standardize
    if standardize is None:
        standardize = encoder is None
    statistics = input_statistics(problem.inputs) if standardize else (torch.zeros(1), torch.ones(1))
    shape = problem.inputs.sample_shape
    name = network_name(network_options.network, second.method, shape)
    blueprint = Blueprint(
        architecture=name,
        own_encoder=encoder is not None,
        sample_shape=shape,
        statistics_size=len(statistics[0]),
        feature_size=None if network_options.feature_size is None else int(network_options.feature_size),
        n_old_classes=problem.n_old_classes,
        n_new_classes=int(second.n_new_classes or 0),
        expansion=third.expansion,
        extra_units=float(third.extra_units),
        pixels=problem.inputs.X.dtype == np.uint8,
    )
    with seeded(derive_seed(seed, "network")):
        network = build_network(
            shape,
            problem.n_old_classes,
            architecture=name,
            encoder=encoder,
            feature_size=network_options.feature_size,
            statistics=statistics,
        ).to(device)
    if third.expansion == "all":
        check_growable(network.trunk)  # before hours of training, not after
    precision = arithmetic(network_options.precision, second.method, parts)
    network.in_bfloat16 = precision == "bfloat16"

    rate = first.learning_rate
    if isinstance(network, Projection):  # nothing to train
        pretraining = Pretraining(network.fit(problem.inputs, derive_seed(seed, "axes")), 0, None)
    elif second.method == "cd-knet+":  # learns the old classes in stage 2, beside the new ones
        pretraining = Pretraining(network, 0, None)
    else:
        with history.timed("pretrain"):
            pretraining = pretrain(network, problem, first, seed=seed, history=history, checkpoint=checkpoint)
    novel = None
    if second.novelty:
        novel = _novel_ones(pretraining.network, problem, first, second, seed)
        problem = problem._replace(new_rows=problem.new_rows[novel])
    with history.timed("discover"):
        discovery = STAGE_2[second.method](
            pretraining.network,
            problem,
            second,
            learning_rate=rate,
            clusterer=clusterer,
            views=views,
            seed=seed,
            history=history,
            checkpoint=checkpoint,
        )
    cut = False
    if third.expansion == "none":
        model = _unexpanded(problem, discovery, second, seed)
    else:
        with history.timed("expand"):
            expansion = expand(
                discovery,
                problem,
                third,
                learning_rate=rate,
                batch_size=first.batch_size,
                views=stage_3_views(second, views, shape),
                seed=seed,
                history=history,
                checkpoint=checkpoint,
            )
        model, cut = Model(expansion.network, second.on_sphere), expansion.cut
    chosen = {"network": "encoder" if encoder is not None else name, "precision": precision}
    if second.method == "cd-knet+":
        chosen["views"] = "your own" if views is not None else view_name(second, shape)
        chosen["lead"] = suited(second, shape, problem.n_old_classes).lead
    return Fitted(pretraining, discovery, model, blueprint, chosen, novel, cut)


def network_name(name: str, method: str, shape: tuple[int, ...]) -> str:
    """The network that an option means for a method and samples of this shape."""
    if name == "auto":
        name = "small" if method == "cd-knet+" else "paper"
    return choose_architecture(shape) if name == "paper" else name


def arithmetic(precision: str, method: str, parts: Parts) -> str:
    """What `precision` comes to on the processor at hand: float32 or bfloat16."""
    if precision == "auto":
        precision = "fastest" if method == "cd-knet+" and parts.encoder is None else "float32"
    if precision == "fastest":
        precision = "bfloat16" if has_bfloat16(parts.device) else "float32"
    return precision


def _novel_ones(
    network: Network, problem: Problem, first: PretrainOptions, second: DiscoverOptions, seed: int
) -> Tensor:
    """SSCD's novelty detector: which unlabelled samples stage 1 is less sure of than of held-out old ones."""
    held = problem.old_rows[held_out_positions(problem, first, seed)]
    threshold = novelty_threshold(embed(network, problem.inputs, held, normalize=False).logits)
    novel = is_novel(embed(network, problem.inputs, problem.new_rows, normalize=False).logits, threshold)
    if int(novel.sum()) < wanted_classes(second):
        raise ValueError(
            f"novelty must leave a sample for each new class ({second.n_new_classes}). Got "
            f"{int(novel.sum())} of {len(novel)} unlabelled samples. Turn it off, or train stage 1 longer."
        )
    return novel


def stage_3_views(options: DiscoverOptions, own: Views | None, shape: tuple[int, ...]) -> Views | None:
    """CD-KNet+ goes on with the views of stage 2; the paper's method and its rivals know none."""
    return view_function(options, own, shape) if options.method == "cd-knet+" else None


def _unexpanded(problem: Problem, discovery: Discovery, options: DiscoverOptions, seed: int) -> Model:
    """The model without expansion: every class is its mean in feature space, or a vote of its samples."""
    normalize = options.on_sphere
    z = embed(discovery.network, problem.inputs, problem.old_rows, normalize=normalize).features
    n_old, n_new = problem.n_old_classes, len(discovery.centers)
    if not discovery.votes:
        old = class_means(z, problem.old_targets, n_old)
        scale = float((z - old[problem.old_targets]).square().sum(dim=1).mean())
        new = discovery.centers.clone()
        new[torch.bincount(discovery.pseudo_labels, minlength=n_new) == 0] = torch.nan
        readout: Readout = Centers(torch.cat([old, new]), max(scale, 1e-12))
    else:
        z_new = embed(discovery.network, problem.inputs, problem.new_rows, normalize=normalize).features
        points = torch.cat([z, z_new])
        labels = torch.cat([problem.old_targets, n_old + discovery.pseudo_labels])
        draw = torch.Generator().manual_seed(derive_seed(seed, "voters"))
        kept = torch.randperm(len(points), generator=draw)[:MOST_VOTERS].sort().values
        readout = Neighbors(points[kept], labels[kept], n_old + n_new, options.neighbors)
    return Model(discovery.network, normalize, readout)


def keep_freed_memory() -> None:
    """Ask glibc to keep freed tensors instead of handing each back to the kernel between steps.

    For the whole process, and harmless: it only costs idle memory. Elsewhere than on glibc this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    trim_threshold, mmap_threshold = -1, -3  # mallopt's names for them
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, 1 << 30)
    except (OSError, AttributeError):
        return
