"""What all estimators share: fit, predict, save, load. The parameters are in `cdknet.estimators`."""

from __future__ import annotations

import numbers
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils.validation import _check_feature_names, check_is_fitted
from torch import nn

from cdknet.core.clustering import Clusterer
from cdknet.core.openworld import UNLABELED, HiddenTruth
from cdknet.core.seeds import seed_of
from cdknet.data.checks import DoubtfulData
from cdknet.fit.checkpoint import Places
from cdknet.fit.codec import from_run, to_run
from cdknet.fit.plan import check_options, device_of
from cdknet.fit.result import FitResult
from cdknet.inputs.arrays import Inputs, check_pixels, check_X, refuse_copies
from cdknet.inputs.labels import check_problem, encode_labels
from cdknet.inputs.warnings import data_warnings
from cdknet.nets.network import embed
from cdknet.options import (
    all_options,
    check_choice,
)
from cdknet.runs.checkpoints import seed_of_job
from cdknet.runs.fingerprints import samples_digest
from cdknet.runs.format import NOISE, Run, read_run, storable, write_run
from cdknet.training.context import FitContext
from cdknet.training.history import History, Watcher
from cdknet.trust.novelty import Unlike, learn_unlike
from cdknet.trust.whole_fit import fit_classes

E = TypeVar("E", bound="Discoverer")

# Parameters of every estimator that are no options of a method, with their defaults.
BESIDE: dict[str, Any] = {
    "encoder": None,
    "clusterer": None,
    "random_state": None,
    "device": "auto",
    "checkpoint_dir": None,
    "stage_cache": None,
    "watchers": (),
}


class Discoverer(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):
    """What all estimators share. Use `ClassDiscovery`, or the class of a method.

    Attributes
    ----------
    classes_ : old classes, then the new ones under names that no old class has
    labels_ : one label per sample of X: the given one, the old class it was recognised as, or the new class
        discovered for it; -1 ("noise" where classes have names) if it was set aside as noise
    n_new_classes_ : int, as given or found (1, if no new class was found: then it has what looks least old)
    n_new_classes_interval_, n_classes_report_ : if it was found, between what it lies, and a dict: the level
        it was read at, why, and what the folds of hidden old classes said; else None
    novelty_ : for each sample of X, the probability that it is not of an old class; 0 for given labels
    old_share_, old_share_interval_ : the share of old classes among the unlabelled samples, and its 90 %
        interval; None with unlabelled="new"
    noise_ : for each sample of X, whether it was set aside: few, and far from everything
    given_, confidence_ : for each sample of X, whether its label was given, and how sure its label is
    class_confidence_ : for each new class, the mean confidence of its unlabelled samples
    overall_confidence_ : the share of unlabelled samples that are expected to be right
    given_accuracy_ : share of the given labels that `predict` answers with; low: something is wrong with X
    embedding_ : (n, d) features of every sample of X
    history_ : list of dicts, one per epoch
    spent_ : seconds that each stage took
    chosen_ : what "auto" stood for: network, precision, views, lead
    pseudo_labels_ : new class (0, 1, ...) that stage 2 gave each unlabelled sample; -1 for those recognised
        as old, and for noise
    spectral_embedding_, spectral_rows_ : U of stage 2, and the rows of X it is about; None without U
    stage_networks_ : the network after each stage; "expand" is the final one (not in a loaded model)
    tuning_ : dict, with tune: what was tried on hidden old classes, what was selected and why; else None
    calibration_ : dict, how the confidence was checked, or why not; among_old: what share looks old, if much
    result_ : everything of the above as one frozen object
    """

    method: str
    encoder: nn.Module | None
    clusterer: Clusterer | None
    random_state: int | np.random.RandomState | None
    device: str
    checkpoint_dir: str | Path | None
    stage_cache: str | Path | None
    watchers: Sequence[Watcher]

    # Learning

    def fit(self: E, X: Any, y: Any, *, columns: Sequence[str] | None = None) -> E:
        """Learn from samples `X` and labels `y`, -1 ("-1" among names) or a blank where it is not known.

        X is (n, d), (n, h, w), (n, channels, h, w) or (n, 2, length) for I/Q; float or uint8; an array, a
        memory map or a tensor. Neither X nor y is changed. `columns` are names for warnings about a table.
        """
        params = self.checked_params()
        if isinstance(X, HiddenTruth) or isinstance(y, HiddenTruth):
            raise TypeError(
                "fit must not see HiddenTruth. Got it as an argument. Pass OpenWorldData.X and .y instead."
            )
        _check_feature_names(self, X, reset=True)
        columns = getattr(self, "feature_names_in_", None) if columns is None else columns
        X = check_X(X)
        labels = encode_labels(y, len(X))
        n_new = params["n_new_classes"] or 1
        check_problem(labels, n_new)
        refuse_copies(X)
        doubts = data_warnings(X, labels, columns, n_new, mixed=params["unlabelled"] == "mixed")
        for sentence in doubts.sentences:
            warnings.warn(sentence, DoubtfulData, stacklevel=2)
        result = fit_classes(X, labels, params, self._context(), self._places())
        if doubts.look_old is not None:
            result = replace(result, calibration={**result.calibration, "among_old": doubts.look_old})
        self._take(result)
        self._samples: NDArray[Any] | None = X  # for `save`; a view, no copy
        self._samples_digest: str | None = samples_digest(X)
        self.n_features_in_ = X.shape[1] if X.ndim == 2 else int(np.prod(X.shape[1:]))
        return self

    def checked_params(self) -> dict[str, Any]:
        """Every option by name, and the method, if all hold what they must. One that is not set is None."""
        given = self.get_params(deep=False)
        params = {"method": self.method, **{name: one.default for name, one in all_options().items()}}
        for name, value in given.items():
            if name in params:
                params[name] = value.item() if isinstance(value, np.generic) else value
        check_options(params, self.encoder, self.clusterer)
        if callable(params["views"]):
            params["views"] = "auto"
        self._places().check()
        if not isinstance(self.watchers, Sequence) or not all(map(callable, self.watchers)):
            raise TypeError(f"watchers must be a list of functions. Got {self.watchers!r:.100}.")
        device_of(self.device)
        return params

    def used_params(self) -> dict[str, Any]:
        """Every option by name, and the method, as the fit used them: what `tune` chose in their place."""
        return {**self.result_.params, **(self.result_.tuning or {}).get("options", {})}

    def _places(self) -> Places:
        places = (self.checkpoint_dir, self.stage_cache)
        return Places(*(None if place is None else Path(place) for place in places))

    def _context(self) -> FitContext:
        begun = None if isinstance(self.random_state, numbers.Integral) else self.checkpoint_dir
        seed = None if begun is None else seed_of_job(begun)
        views = getattr(self, "views", None)
        return FitContext(
            seed=seed_of(self.random_state) if seed is None else seed,
            device=device_of(self.device),
            history=History(self.watchers),
            encoder=self.encoder,
            clusterer=self.clusterer,
            views=views if callable(views) else None,
        )

    def _take(self, result: FitResult) -> None:
        """The attributes that end in _."""
        self.result_ = result
        self._unlike: Unlike | None = None  # learned when it is first asked for
        self.model_, self.blueprint_ = result.model, result.blueprint
        self.classes_, self.n_new_classes_ = result.classes, result.n_new_classes
        self.n_classes_report_ = result.n_classes
        self.n_new_classes_interval_ = None if result.n_classes is None else result.n_classes["interval"]
        self.labels_, self.given_, self.confidence_ = result.names, result.given, result.confidence
        self.novelty_, self.noise_ = result.novelty, result.labels == NOISE
        mixture = result.mixture or {"share": None, "interval": None}
        self.old_share_, self.old_share_interval_ = mixture["share"], mixture["interval"]
        self.embedding_, self.pseudo_labels_ = result.embedding, result.pseudo_labels
        self.spectral_embedding_, self.spectral_rows_ = result.spectral_embedding, result.spectral_rows
        self.validation_accuracy_, self.given_accuracy_ = result.validation_accuracy, result.given_accuracy
        self.history_, self.spent_, self.seed_ = result.history, result.spent, result.seed
        self.chosen_, self.calibration_, self.tuning_ = result.chosen, result.calibration, result.tuning
        if result.stage_networks:
            self.stage_networks_ = result.stage_networks

    @property
    def class_confidence_(self) -> NDArray[np.float64]:
        """For each new class, the mean confidence of its unlabelled samples; 0 where it has none."""
        check_is_fitted(self)
        return self.result_.class_confidence

    @property
    def overall_confidence_(self) -> float:
        """The share of the unlabelled samples that are expected to be right."""
        check_is_fitted(self)
        return self.result_.overall_confidence

    # Answering

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each sample, old or new."""
        best = self._logits(X).argmax(dim=1).numpy()
        named: NDArray[Any] = self.classes_[best]
        return named

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Probability of each class, in the order of `classes_`."""
        return probabilities(self._logits(X))

    def novelty(self, X: Any) -> NDArray[Any]:
        """For any samples, the probability that none of `classes_`, old or new, fits, at even odds.

        It is learned by leaving out each class in turn. A class that is nearer to a known one than the known
        ones are to each other may go unnoticed. (`novelty_` answers another question: for each sample of the
        fit, how likely it is not of an *old* class.)
        """
        inputs = self._inputs(X)
        if self._unlike is None:
            self._unlike = learn_unlike(torch.from_numpy(self.embedding_), self.result_.labels)
        return self._unlike.apply(self.model_.apply(inputs).features)

    def transform(self, X: Any, *, stage: str | None = None) -> NDArray[Any]:
        """Features f(x), (n, d): the final ones, or those after stage "pretrain", "discover" or "expand".

        Earlier stages are at hand after a fit; a saved run has the final network only.
        """
        inputs = self._inputs(X)
        if stage is None:
            return self.model_.apply(inputs).features.numpy()
        check_choice("stage", stage, ("pretrain", "discover", "expand"))
        method = self.result_.plan.method
        if stage not in (*method.stages, "expand"):
            raise ValueError(
                f"stage must be 'discover' or 'expand' for method {method.name!r}, which has no stage 1. "
                f"Got {stage!r}."
            )
        if not hasattr(self, "stage_networks_"):
            raise ValueError(f"stage must be None for a loaded model. Got {stage!r}. Fit again to have it.")
        network = self.stage_networks_[stage]
        return embed(network, inputs, normalize=self.model_.normalize).features.numpy()

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> NDArray[Any]:
        """Fit, then the features of X."""
        self.fit(X, y, **fit_params)
        embedding: NDArray[Any] = self.embedding_
        return embedding

    def fit_predict(self, X: Any, y: Any) -> NDArray[Any]:
        """Fit, then `labels_`."""
        self.fit(X, y)
        return self.labels_

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of the labelled samples that are called by their own name; unlabelled ones are left out.

        It says nothing about new classes: n_new_classes cannot be chosen by it.
        """
        predicted = self.predict(X)
        labels = encode_labels(y, len(predicted))
        known = labels.targets != UNLABELED
        if not known.any():
            raise ValueError(
                "y must label at least one sample to be scored. Got none. See cdknet.core.metrics."
            )
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        right = predicted[known] == labels.old_classes[labels.targets[known]]
        return float(np.average(right, weights=weight))

    def _inputs(self, X: Any) -> Inputs:
        check_is_fitted(self)
        _check_feature_names(self, X, reset=False)
        return inputs_like(self.result_, X)

    def _logits(self, X: Any) -> torch.Tensor:
        inputs = self._inputs(X)  # says so if there is no model yet
        return self.model_.apply(inputs).logits

    @property
    def _n_features_out(self) -> int:
        """For scikit-learn, which names the columns of `transform`."""
        return int(self.embedding_.shape[1])

    # Saving

    def to_run(self, *, ids: Sequence[str] | None = None, **config: Any) -> Run:
        """Model and results as the contents of a run folder. `config` is added to config.json."""
        check_is_fitted(self)
        seed = self.random_state
        params = {"random_state": int(seed) if isinstance(seed, numbers.Integral) else None}
        result = replace(self.result_, params={**self.result_.params, **params})
        about = {
            "feature_names": list(getattr(self, "feature_names_in_", [])) or None,
            "n_features_in": self.n_features_in_,
            "samples_digest": getattr(self, "_samples_digest", None),
        }
        return to_run(result, ids, {**about, **config})

    def save(self, folder: str | os.PathLike[str], *, samples: bool = True, force: bool = False) -> Path:
        """Write a run folder: the model, the labels, the history. Never over an old one without `force`.

        The samples of the fit go with it, so that they can be looked at (`cdknet explore`), if they have at
        most 4 GB; not with `samples=False`.
        """
        X = getattr(self, "_samples", None) if samples else None
        if X is not None and samples_digest(X) != self._samples_digest:
            warnings.warn(
                "X was changed since the fit: the samples are not saved with the run.", stacklevel=2
            )
            X = None
        run = replace(self.to_run(), samples=None if X is None else storable(X))
        return write_run(Path(folder), run, force=force)

    @classmethod
    def load(
        cls: type[E],
        folder: str | os.PathLike[str],
        *,
        encoder: nn.Module | None = None,
        device: str = "auto",
    ) -> E:
        """Read a saved model. One made with your own encoder needs an untrained copy of it as `encoder`."""
        return cls.from_run(read_run(Path(folder)), encoder=encoder, device=device)

    @classmethod
    def from_run(cls: type[E], run: Run, *, encoder: nn.Module | None = None, device: str = "auto") -> E:
        """A fitted estimator from the contents of a run folder."""
        result = from_run(run, encoder, device)
        new = cls(**cls._params_of(result, run), encoder=encoder, device=device)
        new._take(result)
        if run.config.get("feature_names"):
            new.feature_names_in_ = np.asarray(run.config["feature_names"], dtype=object)
        new.n_features_in_ = int(run.config.get("n_features_in", np.prod(result.blueprint.sample_shape)))
        new._samples, new._samples_digest = run.samples, run.config.get("samples_digest")
        return new

    @classmethod
    def _params_of(cls, result: FitResult, run: Run) -> dict[str, Any]:
        """The constructor's parameters for a run."""
        usual = all_options()
        changed = {k: v for k, v in result.params.items() if k in usual and v != usual[k].default}
        seed = run.config["options"].get("random_state")
        return {"method": result.params["method"], **changed, "random_state": seed}

    def __getstate__(self) -> dict[str, Any]:
        """A copy or pickle of a model does without the samples it was made from."""
        return {name: value for name, value in super().__getstate__().items() if name != "_samples"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = []  # networks work in float32
        return tags


def inputs_like(result: FitResult, X: Any) -> Inputs:
    """Samples for a fitted model, if they are like those of its fit."""
    X = check_X(X, sample_shape=result.blueprint.sample_shape)
    check_pixels(X, result.blueprint.pixels)
    return Inputs(X)


def probabilities(logits: torch.Tensor) -> NDArray[Any]:
    """In double precision, so that rows sum to 1 as closely as scikit-learn's users expect."""
    return torch.softmax(logits.double(), dim=1).numpy()
