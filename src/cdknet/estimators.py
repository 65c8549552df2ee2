"""`ClassDiscovery`: the three stages behind scikit-learn's manners. A shell; the work is in `pipeline`."""

from __future__ import annotations

import numbers
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

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

import cdknet
from cdknet.core.clustering import CUTTING, Clusterer, check_clusterer
from cdknet.core.openworld import UNLABELED, HiddenTruth
from cdknet.core.seeds import derive_seed, seed_of
from cdknet.data.checks import DoubtfulData, doubts, odd_labels
from cdknet.fit.codec import UNSAVED, restored, run_of
from cdknet.fit.identity import learning_code
from cdknet.fit.pipeline import Fitted, Parts, arithmetic, check_growth, run_stages
from cdknet.inputs.arrays import Inputs, check_pixels, check_X, refuse_copies
from cdknet.inputs.labels import Labels, check_problem, encode_labels, new_names
from cdknet.inputs.warnings import among_old, mixed, scarce
from cdknet.nets.augment import Views, check_views
from cdknet.nets.model import device_of
from cdknet.nets.network import embed
from cdknet.options import (
    ALL_OPTIONS,
    DiscoverOptions,
    ExpandOptions,
    NetworkOptions,
    PretrainOptions,
    TrustOptions,
    check_choice,
    seconds_of,
)
from cdknet.runs.checkpoints import Checkpoint, FolderCheckpoint, Snapshot, StageCache, seed_of_job
from cdknet.runs.files import plain
from cdknet.runs.fingerprints import fingerprint, samples_digest
from cdknet.runs.format import Run, read_run, storable, write_run
from cdknet.training.history import History, Watcher
from cdknet.training.loop import once
from cdknet.training.problem import Problem
from cdknet.trust.confidence import Calibration, calibrate, not_calibrated, raw_confidence
from cdknet.trust.rehearsal import NoRehearsal, budget_of
from cdknet.trust.tune import Report, tunes, untuned
from cdknet.trust.tune import tune as search


class ClassDiscovery(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):
    """Find new classes among unlabelled samples, and learn to predict old and new ones. CD-KNet-Exp.

    Give `fit` the labels of old classes and -1 for every sample whose class nobody has named. The
    unlabelled samples are taken to be of new classes, as in the paper.

    Parameters
    ----------
    n_new_classes : int
        How many new classes to look for.
    encoder : torch.nn.Module, optional
        Your own network, trained or not, from a float32 batch to (n, ...). A copy of it is used, under a
        feature layer of our own. Weights with requires_grad=False stay as they are.
    clusterer : object with fit_predict, or function (features, n_clusters, seed) -> labels, optional
        What makes the pseudo-labels, in place of what `readout` says or the method does (`dec` and `dac` only
        start from it; `pairwise` has its own).
    random_state : int, RandomState or None
        The same int gives the same result, to the bit, on one CPU with one number of threads.
    device : str
        "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", ...
    checkpoint_dir : path, optional
        Where progress is kept. A fit that was interrupted goes on from there, given the same data and
        parameters, and ends in the same result. Without a `random_state`, its seed is taken from there.
    stage_cache : path, optional
        Where finished stages 1 and 2 are kept for other fits. A fit of the same data, seed and options of a
        stage (and those before it) takes it from there instead of training again; so does one that only cuts
        the same features another way (`readout`).
    watchers : sequence of callables
        Each is called with a dict an epoch; one that returns True ends the stage.

    The other parameters are the options of the three stages: see `cdknet.options` or docs/options.md.

    Attributes
    ----------
    classes_ : old classes, then the new ones under names that no old class has
    labels_ : one label a sample of X: the given one, or the class discovered for it
    n_new_classes_ : int
    embedding_ : (n, d) features of every sample of X
    history_ : list of dicts, one an epoch
    spent_ : seconds that each stage took
    chosen_ : what `auto` came to: network, precision, views, lead
    pseudo_labels_ : new class (0, 1, ...) that stage 2 gave each unlabelled sample; with novelty, -1 for
        those taken for old ones
    spectral_embedding_, spectral_rows_ : U of stage 2, and the rows of X it is about; None without U
    stage_networks_ : the network after each stage; "expand" is the final one (not in a loaded model)
    given_, confidence_ : for each sample of X, whether its label was given, and how sure its label is
    given_accuracy_ : share of the given labels that `predict` answers with; low: something is wrong with X
    class_confidence_ : for each new class, the mean confidence of its unlabelled samples
    overall_confidence_ : the share of unlabelled samples that are expected to be right
    tuning_ : dict, with tune: what was tried on hidden old classes, what was kept and why; else None
    calibration_ : dict, how the confidence was checked, or why not; among_old: what share looks old, if much
    """

    def __init__(
        self,
        *,
        n_new_classes: int | None = DiscoverOptions.n_new_classes,
        method: str = DiscoverOptions.method,
        network: str = NetworkOptions.network,
        encoder: nn.Module | None = None,
        feature_size: int | None = NetworkOptions.feature_size,
        standardize: bool | None = NetworkOptions.standardize,
        precision: str = NetworkOptions.precision,
        pretrain_epochs: int = PretrainOptions.pretrain_epochs,
        early_stopping: bool = PretrainOptions.early_stopping,
        patience: int = PretrainOptions.patience,
        enough: float = PretrainOptions.enough,
        validation_fraction: float = PretrainOptions.validation_fraction,
        learning_rate: float = PretrainOptions.learning_rate,
        batch_size: int = PretrainOptions.batch_size,
        novelty: bool = DiscoverOptions.novelty,
        label_weight: float = DiscoverOptions.label_weight,
        discover_epochs: int = DiscoverOptions.discover_epochs,
        discover_batch_size: int = DiscoverOptions.discover_batch_size,
        discover_learning_rate: float | None = DiscoverOptions.discover_learning_rate,
        subsample: float = DiscoverOptions.subsample,
        min_subsample: int = DiscoverOptions.min_subsample,
        lead: str = DiscoverOptions.lead,
        view_weight: float | None = DiscoverOptions.view_weight,
        collapse_weight: float = DiscoverOptions.collapse_weight,
        spectral_weight: float = DiscoverOptions.spectral_weight,
        view_term: str = DiscoverOptions.view_term,
        heads: int | None = DiscoverOptions.heads,
        head_targets: str = DiscoverOptions.head_targets,
        readout: str | None = DiscoverOptions.readout,
        views: str | Views = DiscoverOptions.views,
        view_steps: int = DiscoverOptions.view_steps,
        label_epochs: int = DiscoverOptions.label_epochs,
        head_steps: int = DiscoverOptions.head_steps,
        view_batch_size: int = DiscoverOptions.view_batch_size,
        kernel: str = DiscoverOptions.kernel,
        neighbors: int = DiscoverOptions.neighbors,
        sigma_scale: float = DiscoverOptions.sigma_scale,
        normalize_features: bool = DiscoverOptions.normalize_features,
        turn_tolerance: float = DiscoverOptions.turn_tolerance,
        kmeans_restarts: int = DiscoverOptions.kmeans_restarts,
        memory_limit: float = DiscoverOptions.memory_limit,
        clusterer: Clusterer | None = None,
        expansion: str = ExpandOptions.expansion,
        extra_units: float = ExpandOptions.extra_units,
        expand_epochs: int | None = ExpandOptions.expand_epochs,
        expand_steps: int = ExpandOptions.expand_steps,
        replay: float | None = ExpandOptions.replay,
        slow_rate: float | None = ExpandOptions.slow_rate,
        calibrate: bool = TrustOptions.calibrate,
        tune: str = TrustOptions.tune,
        time_budget: str | float | None = TrustOptions.time_budget,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        checkpoint_dir: str | Path | None = None,
        stage_cache: str | Path | None = None,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.n_new_classes = n_new_classes
        self.method = method
        self.network = network
        self.encoder = encoder
        self.feature_size = feature_size
        self.standardize = standardize
        self.precision = precision
        self.pretrain_epochs = pretrain_epochs
        self.early_stopping = early_stopping
        self.patience = patience
        self.enough = enough
        self.validation_fraction = validation_fraction
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.novelty = novelty
        self.label_weight = label_weight
        self.discover_epochs = discover_epochs
        self.discover_batch_size = discover_batch_size
        self.discover_learning_rate = discover_learning_rate
        self.subsample = subsample
        self.min_subsample = min_subsample
        self.lead = lead
        self.view_weight = view_weight
        self.collapse_weight = collapse_weight
        self.spectral_weight = spectral_weight
        self.view_term = view_term
        self.heads = heads
        self.head_targets = head_targets
        self.readout = readout
        self.views = views
        self.view_steps = view_steps
        self.label_epochs = label_epochs
        self.head_steps = head_steps
        self.view_batch_size = view_batch_size
        self.kernel = kernel
        self.neighbors = neighbors
        self.sigma_scale = sigma_scale
        self.normalize_features = normalize_features
        self.turn_tolerance = turn_tolerance
        self.kmeans_restarts = kmeans_restarts
        self.memory_limit = memory_limit
        self.clusterer = clusterer
        self.expansion = expansion
        self.extra_units = extra_units
        self.expand_epochs = expand_epochs
        self.expand_steps = expand_steps
        self.replay = replay
        self.slow_rate = slow_rate
        self.calibrate = calibrate
        self.tune = tune
        self.time_budget = time_budget
        self.random_state = random_state
        self.device = device
        self.checkpoint_dir = checkpoint_dir
        self.stage_cache = stage_cache
        self.watchers = watchers

    # Learning

    def fit(self, X: Any, y: Any) -> ClassDiscovery:
        """Learn from samples `X` and labels `y`, -1 ("-1" among names) or a blank where it is not known.

        X is (n, d), (n, h, w), (n, channels, h, w) or (n, 2, length) for I/Q; float or uint8; an array, a
        memory map or a tensor. Neither X nor y is changed.
        """
        params = self.checked_params()
        given = dict(params)  # what `save` says of the fit, whatever is set afterwards
        self._refuse_truth(X, y)
        _check_feature_names(self, X, reset=True)
        X = check_X(X)
        labels = encode_labels(y, len(X))
        check_problem(labels, params["n_new_classes"])
        refuse_copies(X)
        mixture = 0.0 if params["novelty"] else among_old(X, labels.targets)
        named = labels.old_classes[labels.targets[labels.targets >= 0]]
        told = [*doubts(X, getattr(self, "feature_names_in_", None)), *odd_labels(named), *mixed(mixture)]
        for sentence in told + scarce(labels.targets, params["n_new_classes"]):
            warnings.warn(sentence, DoubtfulData, stacklevel=2)
        if params["views"] != "auto":
            check_views(params["views"], tuple(X.shape[1:]))
        problem = Problem.from_checked(X, labels.targets)
        begun = None if isinstance(self.random_state, numbers.Integral) else self.checkpoint_dir
        seed = None if begun is None else seed_of_job(begun)
        seed = seed_of(self.random_state) if seed is None else seed
        views = self.views if callable(self.views) else None
        parts = Parts(self.encoder, self.clusterer, views, device_of(self.device))
        checkpoint = self._checkpoint(X, labels, params, parts, seed)
        seconds, searching = seconds_of(params["time_budget"]), tunes(params)
        history = History(self.watchers, budget_of(params, seconds, tunes=searching))
        run: dict[str, Any] = {"seed": seed, "history": history, "checkpoint": checkpoint}
        tuning: Report | None = None
        try:
            if searching:
                check_growth(problem, params, parts)  # before the search, not after
                if isinstance(checkpoint, FolderCheckpoint):
                    checkpoint.begin()
                tuning = self._tuned(X, labels, params, parts, seed, history, checkpoint)
                params |= tuning["options"]
                if history.budget is not None:  # what is left, for the stages that there now are
                    history.budget = budget_of(params, max(history.budget.rest, 0), tunes=False)
            fitted = run_stages(problem, params, parts, **run)
            if params["calibrate"]:
                with history.timed("calibrate"):
                    # Not on the folds that chose the options: they find just those classes too well.
                    own = run | {"seed": derive_seed(seed, "calibrate")} if searching else run
                    calibration = calibrate(X, labels.targets, labels.old_classes, params, parts, **own)
            else:
                calibration = not_calibrated("calibrate is off")
            if mixed(mixture):
                calibration.facts["among_old"] = round(mixture, 3)
        except KeyboardInterrupt:
            if checkpoint is not None:
                checkpoint.flush()
            raise
        self.tuning_, self._fit_params = tuning, given
        self._keep(X, labels, fitted, calibration, history, seed)
        return self

    def _tuned(
        self,
        X: NDArray[Any],
        labels: Labels,
        params: dict[str, Any],
        parts: Parts,
        seed: int,
        history: History,
        checkpoint: Checkpoint | None,
    ) -> Report:
        """The report of a search for options on hidden old classes; a fit that is taken up keeps to it."""
        kept = None if self.checkpoint_dir is None else Path(self.checkpoint_dir) / "tune.jsonl"

        def searched() -> Snapshot:
            start = time.perf_counter()
            try:
                report = search(
                    X,
                    labels.targets,
                    params,
                    parts,
                    seed=seed,
                    history=history,
                    kept=kept,
                    if_room=params["tune"] == "auto",
                )
                hidden = [[str(labels.old_classes[c]) for c in classes] for classes in report["hidden"]]
                report |= {"hidden": hidden}
            except NoRehearsal as reason:
                report = untuned(str(reason))
            return Snapshot(1, True, {}, {"report": report, "seconds": time.perf_counter() - start})

        start = time.perf_counter()
        facts = once(checkpoint, "tune", searched).facts
        history.spent["tune"] = facts["seconds"]
        if history.budget is not None:  # what an earlier start spent on it
            history.budget.charge(max(0.0, facts["seconds"] - (time.perf_counter() - start)))
        report: Report = facts["report"]
        return report

    def _keep(
        self,
        X: NDArray[Any],
        labels: Labels,
        fitted: Fitted,
        calibration: Calibration,
        history: History,
        seed: int,
    ) -> None:
        n_old = len(labels.old_classes)
        self.model_, self.blueprint_ = fitted.model, fitted.blueprint
        self.n_new_classes_ = fitted.blueprint.n_new_classes
        new = new_names(labels.old_classes, self.n_new_classes_)
        self.classes_ = np.concatenate([labels.old_classes, new])
        self.history_, self.seed_, self.chosen_ = list(history), seed, fitted.chosen
        self.spent_ = {stage: round(seconds, 2) for stage, seconds in history.spent.items()}
        self._samples: NDArray[Any] | None = X  # for `save`; a view, no copy
        self._samples_digest: str | None = samples_digest(X)
        self.n_features_in_ = X.shape[1] if X.ndim == 2 else int(np.prod(X.shape[1:]))
        unlabelled = labels.targets == UNLABELED
        novel = unlabelled.copy()
        if fitted.novel is not None:
            novel[unlabelled] = fitted.novel.numpy()
        self.pseudo_labels_ = np.full(int(unlabelled.sum()), -1)
        self.pseudo_labels_[novel[unlabelled]] = fitted.discovery.pseudo_labels.numpy()
        U, rows = fitted.discovery.U, fitted.discovery.U_rows
        self.spectral_embedding_ = None if U is None else U.numpy()
        self.spectral_rows_ = None if rows is None else rows.numpy()
        self.validation_accuracy_ = fitted.pretraining.validation_accuracy
        self.stage_networks_ = {"discover": fitted.discovery.network, "expand": fitted.model.network}
        if self.used_params()["method"] != "cd-knet+":
            self.stage_networks_ = {"pretrain": fitted.pretraining.network, **self.stage_networks_}
        features, logits = self.model_.apply(Inputs(X))
        self.embedding_ = features.numpy()
        # Unlabelled samples are of new classes: only those compete for them. Unless they were taken for old.
        found = logits[:, n_old:].argmax(dim=1).numpy()
        if fitted.model.readout is not None or fitted.cut:  # without all of stage 3, stage 2 stands
            found[novel] = fitted.discovery.pseudo_labels.numpy()
        numbers = np.where(novel, n_old + found, logits[:, :n_old].argmax(dim=1).numpy())
        numbers = np.where(unlabelled, numbers, labels.targets)
        self.labels_ = self.classes_[numbers]
        self.given_ = ~unlabelled
        named = logits.argmax(dim=1).numpy() == labels.targets
        self.given_accuracy_: float | None = float(named[self.given_].mean())
        rows = torch.from_numpy(np.flatnonzero(novel))
        z = features[rows]  # of stage 2, which is the last one without expansion
        if fitted.discovery.network is not fitted.model.network:
            z = embed(fitted.discovery.network, Inputs(X), rows, normalize=fitted.model.normalize).features
        sure = raw_confidence(z, found[novel], self.n_new_classes_)
        self.confidence_ = np.ones(len(X), dtype=np.float32)
        self.confidence_[novel] = sure if calibration.map is None else calibration.map.apply(sure)
        taken = unlabelled & ~novel
        sure_of_old = torch.softmax(logits[:, :n_old], dim=1).amax(dim=1).numpy()
        self.confidence_[taken] = sure_of_old[taken]
        self.calibration_ = calibration.facts

    def checked_params(self) -> dict[str, Any]:
        """Every parameter by name, if all of them hold what they must."""
        given = self.get_params(deep=False).items()
        params: dict[str, Any] = {k: v.item() if isinstance(v, np.generic) else v for k, v in given}
        if callable(self.views):
            params["views"] = "auto"  # an option's value; the function itself goes its own way
        for options in ALL_OPTIONS:
            options.pick(params)
        if self.n_new_classes is None:
            raise ValueError("n_new_classes must be set. Got None. Say how many new classes to look for.")
        if self.encoder is not None and not isinstance(self.encoder, nn.Module):
            raise TypeError(f"encoder must be a torch.nn.Module. Got {type(self.encoder).__name__}.")
        check_clusterer(self.clusterer, self.n_new_classes, self.method)
        trains = self.network not in ("none", "pca")
        if not trains and (self.method not in ("sscd", "spectral") or self.expansion != "none"):
            raise ValueError(
                f"network={self.network!r} has nothing to train: it needs method 'sscd' (k-means) or "
                f"'spectral', and expansion 'none'. Got {self.method!r} and {self.expansion!r}. For "
                "embeddings of your own, leave network as 'auto': a small network is trained on them."
            )
        if self.novelty and (not trains or self.method == "cd-knet+"):
            raise ValueError(
                "novelty needs a stage 1 on the old classes. Got a method or network without one. Take "
                "another, such as method 'sscd' or 'cd-knet'."
            )
        for name in ("checkpoint_dir", "stage_cache"):
            place = getattr(self, name)
            if place is not None and Path(place).exists() and not Path(place).is_dir():
                raise ValueError(f"{name} must be a folder, or not be there yet. Got the file {place}.")
        if not isinstance(self.watchers, Sequence) or not all(map(callable, self.watchers)):
            raise TypeError(f"watchers must be a list of functions. Got {self.watchers!r:.100}.")
        device_of(self.device)
        return params

    def used_params(self) -> dict[str, Any]:
        """Every parameter by name as the fit used it: what `tune` chose in the place of what was given."""
        chosen = (getattr(self, "tuning_", None) or {}).get("options", {})
        return {**self._fit_params, **chosen}

    @staticmethod
    def _refuse_truth(*arguments: Any) -> None:
        if any(isinstance(argument, HiddenTruth) for argument in arguments):
            raise TypeError(
                "fit must not see HiddenTruth. Got it as an argument. Pass OpenWorldData.X and .y instead."
            )

    def _checkpoint(
        self, X: NDArray[Any], labels: Labels, params: dict[str, Any], parts: Parts, seed: int
    ) -> FolderCheckpoint | StageCache | None:
        if self.checkpoint_dir is None and self.stage_cache is None:
            return None
        job = {k: plain(v) for k, v in params.items() if k not in UNSAVED}
        job |= {"own parts": parts.identity(), "seed": seed, "cdknet": cdknet.__version__}
        job["data"] = fingerprint(X, labels.targets)
        kept = None if self.checkpoint_dir is None else FolderCheckpoint(self.checkpoint_dir, job)
        if self.stage_cache is None or self.time_budget is not None or tunes(params):
            return kept  # stages cut short, or with options not known yet, are not shared
        job["precision"] = arithmetic(job["precision"], job["method"], parts)
        return StageCache(self.stage_cache, self._stage_keys(job, parts.device.type), kept)

    def _stage_keys(self, job: dict[str, Any], device: str) -> dict[str, list[Any]]:
        """What decides the outcome of each stage that may be shared. Functions cannot be told apart."""
        first = [job["seed"], job["data"], learning_code(), device, job["own parts"][0]]
        first += [[job[f.name] for f in fields(group)] for group in (NetworkOptions, PretrainOptions)]
        keys = {"pretrain": first}
        if self.clusterer is None and not callable(self.views):
            cut = ("readout", "kmeans_restarts") if job["method"] in CUTTING else ()  # after the learning
            second = [*first, [job[f.name] for f in fields(DiscoverOptions) if f.name not in cut]]
            keys |= {"discover": second, "cluster": [*second, [job[name] for name in cut]]}
        return keys

    @property
    def _n_features_out(self) -> int:
        """For scikit-learn, which names the columns of `transform`."""
        return int(self.embedding_.shape[1])

    # Answering

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each sample, old or new."""
        best = self._logits(X).argmax(dim=1).numpy()
        named: NDArray[Any] = self.classes_[best]
        return named

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Probability of each class, in the order of `classes_`."""
        # In double precision, so that rows sum to 1 as closely as scikit-learn's users expect.
        return torch.softmax(self._logits(X).double(), dim=1).numpy()

    def transform(self, X: Any, *, stage: str | None = None) -> NDArray[Any]:
        """Features f(x), (n, d): the final ones, or those after stage "pretrain", "discover" or "expand".

        Earlier stages are at hand after a fit; a saved run keeps the final network only.
        """
        inputs = self._inputs(X)
        if stage is None:
            return self.model_.apply(inputs).features.numpy()
        check_choice("stage", stage, ("pretrain", "discover", "expand"))
        if stage == "pretrain" and self.used_params()["method"] == "cd-knet+":
            raise ValueError(
                "stage must be 'discover' or 'expand' for method 'cd-knet+', which has no stage 1. "
                "Got 'pretrain'."
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

    @property
    def class_confidence_(self) -> NDArray[np.float64]:
        """For each new class, the mean confidence of its unlabelled samples; 0 where it has none."""
        check_is_fitted(self)
        of = [~self.given_ & (self.labels_ == name) for name in self.classes_[-self.n_new_classes_ :]]
        return np.array([float(self.confidence_[rows].mean()) if rows.any() else 0.0 for rows in of])

    @property
    def overall_confidence_(self) -> float:
        """The share of the unlabelled samples that are expected to be right."""
        check_is_fitted(self)
        return float(self.confidence_[~self.given_].mean(dtype=np.float64))

    def fit_predict(self, X: Any, y: Any) -> NDArray[Any]:
        """Fit, then `labels_`."""
        self.fit(X, y)
        return self.labels_

    def _inputs(self, X: Any) -> Inputs:
        check_is_fitted(self)
        _check_feature_names(self, X, reset=False)
        X = check_X(X, sample_shape=self.blueprint_.sample_shape)
        check_pixels(X, self.blueprint_.pixels)
        return Inputs(X)

    def _logits(self, X: Any) -> torch.Tensor:
        inputs = self._inputs(X)  # says so if there is no model yet
        return self.model_.apply(inputs).logits

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of the labelled samples that are called by their own name; unlabelled ones are left out.

        It says nothing of new classes: n_new_classes cannot be chosen by it.
        """
        predicted = self.predict(X)
        labels = encode_labels(y, len(predicted))
        known = labels.targets != UNLABELED
        if not known.any():
            raise ValueError("y must label at least one sample to be scored. Got none. See cdknet.metrics.")
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        right = predicted[known] == labels.old_classes[labels.targets[known]]
        return float(np.average(right, weights=weight))

    # Keeping

    def to_run(self, *, ids: Sequence[str] | None = None, **config: Any) -> Run:
        """Model and results as the contents of a run folder. `config` is added to config.json."""
        check_is_fitted(self)
        return run_of(self, ids, config)

    def save(self, folder: str | os.PathLike[str], *, samples: bool = True, force: bool = False) -> Path:
        """Write a run folder: the model, the labels, the history. Never over an old one without `force`.

        The samples of the fit go with it, so that they can be looked at (`cdknet explore`), if they have at
        most 4 GB; not with `samples=False`.
        """
        X = getattr(self, "_samples", None) if samples else None
        if X is not None and samples_digest(X) != self._samples_digest:
            warnings.warn("X was changed since the fit: the samples are not kept with the run.", stacklevel=2)
            X = None
        run = replace(self.to_run(), samples=None if X is None else storable(X))
        return write_run(Path(folder), run, force=force)

    def __getstate__(self) -> dict[str, Any]:
        """A copy or pickle of a model does without the samples it was made from."""
        return {name: value for name, value in super().__getstate__().items() if name != "_samples"}

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], *, encoder: nn.Module | None = None, device: str = "auto"
    ) -> ClassDiscovery:
        """Read a saved model. One made with your own encoder needs an untrained copy of it as `encoder`."""
        return cls.from_run(read_run(Path(folder)), encoder=encoder, device=device)

    @classmethod
    def from_run(cls, run: Run, *, encoder: nn.Module | None = None, device: str = "auto") -> ClassDiscovery:
        """A fitted estimator from the contents of a run folder."""
        return restored(cls, run, encoder, device)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = []  # networks work in float32
        return tags
