"""The interface of a method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from cdknet.core.clustering import Clusters
from cdknet.core.mixture import Mixture
from cdknet.inputs.kind import SampleKind
from cdknet.nets.network import Network
from cdknet.options import MethodOptions
from cdknet.training.context import FitContext
from cdknet.training.problem import Problem

M = TypeVar("M", bound=MethodOptions)


class Discovery(NamedTuple):
    """The result of stage 2."""

    network: Network
    pseudo_labels: (
        Tensor  # (n',) cluster of each unlabelled row that is taken to be new, 0 ... n_new_classes - 1
    )
    centers: Tensor  # (n_new_classes, d) mean features of the clusters
    votes: bool = False  # a sample is classified by a vote of its neighbours, not by the nearest centre
    mixture: Mixture | None = None  # old and new among the unlabelled rows, if the method sorts them itself
    U: Tensor | None = None  # (n1 + n1', r) the last spectral embedding, where the method has one
    U_rows: Tensor | None = None  # (n1 + n1',) the rows of X that the rows of U belong to
    sigma: float | None = None


def discovered(network: Network, found: Clusters, **more: object) -> Discovery:
    """A discovery from the clusters of its features."""
    return Discovery(network.eval(), *found, **more)  # type: ignore[arg-type]


class Situation(NamedTuple):
    """What the defaults of a method may depend on."""

    kind: SampleKind
    n_old_classes: int
    own_clusterer: bool = False


@dataclass
class Found:
    """The clusters, once found: for methods that remember nothing else between epochs."""

    labels: Tensor | None = None
    centers: Tensor | None = None

    def discovery(self, network: Network) -> Discovery:
        assert self.labels is not None
        assert self.centers is not None
        return Discovery(network.eval(), self.labels, self.centers)


def with_rate(options: M, situation: Situation) -> M:
    """The options with the learning rate of stage 2 set; by default it is that of all stages."""
    rate = getattr(options, "discover_learning_rate", None) or options.learning_rate
    return replace(options, discover_learning_rate=rate)  # type: ignore[call-arg]


def _as_given(options: M, situation: Situation) -> M:
    return options


@dataclass(frozen=True)
class Method(Generic[M]):
    """A method: its name, what it reads, and how it discovers.

    `discover` gets a network (after stage 1, if the method has one), does not change it and returns a new
    one. It can be interrupted and resumed: see `cdknet.training.loop`. `resolve` sets the method's own
    options that the user left unset. After it nothing is "auto" or None.
    """

    name: str
    title: str
    options: type[M]
    discover: Callable[[Network, Problem, M, FitContext], Discovery]
    resolve: Callable[[M, Situation], M] = _as_given
    network: str = "paper"  # what network "auto" stands for
    pretrains: bool = True  # it has a stage 1; else it learns the old classes in stage 2
    sorts: bool = False  # it tells old from new itself, after training; else that is done before stage 2
    shows_views: bool = False  # stage 3 shows augmented views
    is_fast: bool = False  # precision "auto" stands for the fastest one
    clusterings: tuple[str, ...] = ()  # values of `readout` that share the same features
    looks_at_samples: bool = False  # "agreed" also looks at the samples, where they are vectors
    tunable: tuple[str, ...] = ()  # options that tuning may change
    untrained: bool = False  # it can also work on the samples themselves (network "none" or "pca")
    counts_vary: bool = False  # a clusterer is asked for different numbers of classes

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages before expansion."""
        return ("pretrain", "discover") if self.pretrains else ("discover",)

    def normalizes(self, options: M) -> bool:
        """Whether features are scaled to unit length."""
        return bool(getattr(options, "normalize_features", True))
