"""The estimators: parameters in, `FitResult` out, behind scikit-learn's interface.

`ClassDiscovery` is the default method, and the door to the others (`method="cd-knet"`). Each method also has
a class of its own, with the parameters that it reads and no others: `CDKNet`, `SSCD`, `DEC`, ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import nn

from cdknet.core.clustering import Clusterer
from cdknet.discoverer import BESIDE, Discoverer
from cdknet.fit.result import FitResult
from cdknet.nets.augment import Views
from cdknet.options import (
    DEFAULT_METHOD,
    CDKNetPlusOptions,
    all_options,
    did_you_mean,
    options_of,
)
from cdknet.runs.format import Run
from cdknet.training.history import Watcher


class ClassDiscovery(Discoverer):
    """Find new classes among unlabelled samples, and learn to predict old and new ones.

    Give `fit` the labels of old classes and -1 for every sample whose class nobody has named. Unlabelled
    samples may be of old classes, of new ones, or noise.

    Parameters
    ----------
    n_new_classes : int, optional
        How many new classes to look for. If not set, the number is found, with an interval: this takes about
        as long as the fit itself.
    unlabelled : "mixed" or "new"
        What the unlabelled samples are. "mixed": of old classes, of new ones, and noise; a fit sorts them.
        "new": all are of new classes, as in the paper.
    noise : bool
        Whether the few unlabelled samples that are far from everything are set aside; only if mixed.
    method : str
        CD-KNet+ unless you say otherwise; "cd-knet" is the paper's; the others are rivals: sscd,
        sscd-dynamic, spectral, dec, dac, pairwise. Each has a class of its own, too.
    network, standardize, precision, learning_rate, batch_size, label_weight, readout, expansion, calibrate, \
tune, time_budget
        The options that are most often changed: see docs/options.md.
    encoder : torch.nn.Module, optional
        Your own network, trained or not, from a float32 batch to (n, ...). A copy of it is used, under a
        feature layer of our own. Weights with requires_grad=False stay as they are.
    views : str or function (batch, generator) -> batch
        How an augmented view differs from the sample.
    clusterer : object with fit_predict, or function (features, n_clusters, seed) -> labels, optional
        What makes the pseudo-labels, in place of what `readout` says or the method does (`dec` and `dac` only
        start from it; `pairwise` has its own).
    random_state : int, RandomState or None
        The same int gives the same result, to the bit, on one CPU with one number of threads.
    device : str
        "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", ...
    checkpoint_dir : path, optional
        Where progress is saved. A fit that was interrupted resumes from there, given the same data and
        parameters, and ends in the same result. Without a `random_state`, its seed is taken from there.
    stage_cache : path, optional
        Where finished stages 1 and 2 are saved for other fits. A fit of the same data, seed and options of a
        stage (and those before it) takes it from there instead of training again; so does one that only
        clusters the same features another way (`readout`).
    watchers : sequence of callables
        Each is called with one dict per epoch; one that returns True ends the stage.
    **options
        Every other option in docs/options.md, by name: for experiments.
    """

    __doc__ += Discoverer.__doc__[Discoverer.__doc__.index("\n    Attributes") :]  # type: ignore[index,union-attr]

    def __init__(
        self,
        *,
        n_new_classes: int | None = None,
        unlabelled: str = CDKNetPlusOptions.unlabelled,
        noise: bool = CDKNetPlusOptions.noise,
        method: str = DEFAULT_METHOD,
        network: str = CDKNetPlusOptions.network,
        encoder: nn.Module | None = None,
        views: str | Views = CDKNetPlusOptions.views,
        label_weight: float = CDKNetPlusOptions.label_weight,
        readout: str | None = None,
        clusterer: Clusterer | None = None,
        standardize: bool | None = None,
        precision: str = CDKNetPlusOptions.precision,
        learning_rate: float = CDKNetPlusOptions.learning_rate,
        batch_size: int = CDKNetPlusOptions.batch_size,
        expansion: str = CDKNetPlusOptions.expansion,
        calibrate: bool = CDKNetPlusOptions.calibrate,
        tune: str = CDKNetPlusOptions.tune,
        time_budget: str | float | None = CDKNetPlusOptions.time_budget,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        checkpoint_dir: str | Path | None = None,
        stage_cache: str | Path | None = None,
        watchers: Sequence[Watcher] = (),
        **options: Any,
    ) -> None:
        self.n_new_classes = n_new_classes
        self.unlabelled = unlabelled
        self.noise = noise
        self.method = method
        self.network = network
        self.encoder = encoder
        self.views = views
        self.label_weight = label_weight
        self.readout = readout
        self.clusterer = clusterer
        self.standardize = standardize
        self.precision = precision
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.expansion = expansion
        self.calibrate = calibrate
        self.tune = tune
        self.time_budget = time_budget
        self.random_state = random_state
        self.device = device
        self.checkpoint_dir = checkpoint_dir
        self.stage_cache = stage_cache
        self.watchers = watchers
        self._set_options(options)

    def _set_options(self, options: dict[str, Any]) -> None:
        """Options for experiments: attributes like the others, if there are such options."""
        known = all_options()
        for name, value in options.items():
            if name not in known:
                hint = did_you_mean(name, [*self._get_param_names(), *known])
                raise TypeError(f"ClassDiscovery has no parameter {name!r}.{hint} See docs/options.md.")
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """An option that was not set has its default."""
        known = all_options()
        if name in known:
            return known[name].default
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name: those of the signature, and the options that were set beside them."""
        params: dict[str, Any] = super().get_params(deep)
        beside = {name: getattr(self, name) for name in all_options() if name in vars(self)}
        return {**params, **beside}

    def set_params(self, **params: Any) -> ClassDiscovery:
        """Set parameters by name; every option of docs/options.md is one."""
        own = {*self._get_param_names()}
        options = {k: v for k, v in params.items() if k not in own and k in all_options()}
        self._set_options(options)
        super().set_params(**{k: v for k, v in params.items() if k not in options})
        return self


# One class per method, with the parameters that it reads.


class MethodEstimator(Discoverer):
    """The estimator of one method. Its parameters are the options that the method reads."""

    of_method: ClassVar[str]

    def __init_subclass__(cls, method: str | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if method is not None:  # else a user's class over one of ours
            cls.of_method = method
            cls.__init__ = _constructor(method)  # type: ignore[method-assign]

    @property
    def method(self) -> str:  # type: ignore[override]
        return self.of_method

    @classmethod
    def _params_of(cls, result: FitResult, run: Run) -> dict[str, Any]:
        params = super()._params_of(result, run)
        if params.pop("method") != cls.of_method:
            raise ValueError(
                f"{cls.__name__} reads runs of method {cls.of_method!r}. Got one of "
                f"{result.params['method']!r}. Use ClassDiscovery.load."
            )
        read = {*options_of(cls.of_method), *BESIDE}
        return {name: value for name, value in params.items() if name in read}


def _constructor(method: str) -> Callable[..., None]:
    """An __init__ that takes the options of a method, and what every estimator takes beside them."""
    defaults = {name: one.default for name, one in options_of(method).items()} | BESIDE
    kind = inspect.Parameter
    own = [kind(name, kind.KEYWORD_ONLY, default=default) for name, default in defaults.items()]
    signature = inspect.Signature([kind("self", kind.POSITIONAL_OR_KEYWORD), *own])

    def __init__(self: Any, **params: Any) -> None:
        for name in params:
            if name not in defaults:
                hint = did_you_mean(name, defaults)
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}.{hint}")
        for name, default in defaults.items():
            setattr(self, name, params.get(name, default))

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    return __init__


class CDKNetPlus(MethodEstimator, method=DEFAULT_METHOD):
    """CD-KNet+, the default: old labels and what views of a sample share, learned together."""


class CDKNet(MethodEstimator, method="cd-knet"):
    """CD-KNet-Exp, the paper's method: HSIC with U and with the old labels, by turns."""


class SSCD(MethodEstimator, method="sscd"):
    """SSCD, semi-supervised class discovery: k-means on the features of stage 1."""


class SSCDDynamic(MethodEstimator, method="sscd-dynamic"):
    """SSCD, dynamic: one new class at a time."""


class Spectral(MethodEstimator, method="spectral"):
    """Spectral clustering of the features of stage 1."""


class DEC(MethodEstimator, method="dec"):
    """DEC, deep embedded clustering, on the network of stage 1."""


class DAC(MethodEstimator, method="dac"):
    """DAC, deep adaptive clustering, on the network of stage 1."""


class Pairwise(MethodEstimator, method="pairwise"):
    """Clusters by a similarity of pairs that is learned on old classes."""
