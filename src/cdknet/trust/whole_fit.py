"""A whole fit: select options if asked, run the stages, calibrate, and label every sample."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cdknet.core.mixture import Mixture
from cdknet.core.seeds import derive_seed
from cdknet.fit.checkpoint import Places, checkpoint_of
from cdknet.fit.pipeline import Verdict, check_growth, judge, run_stages
from cdknet.fit.plan import FitPlan, resolve
from cdknet.fit.result import FitResult
from cdknet.inputs.labels import Labels, new_names
from cdknet.training.context import FitContext
from cdknet.training.loop import once
from cdknet.training.problem import Problem
from cdknet.trust.confidence import Calibration, calibrate, not_calibrated
from cdknet.trust.n_classes import Count, count_new_classes
from cdknet.trust.rehearsal import NoRehearsal
from cdknet.trust.tune import tune, untuned


def fit_classes(
    X: NDArray[Any],
    labels: Labels,
    params: Mapping[str, Any],
    context: FitContext,
    places: Places,
) -> FitResult:
    """Fit checked samples and labels. `params` holds every option by name, and the method.

    Without a number of new classes, that is found first.
    """
    given, history, counted = params, context.history, None
    shape, n_old = tuple(X.shape[1:]), len(labels.old_classes)
    if params["n_new_classes"] is None:
        any_number = resolve({**params, "n_new_classes": 1}, shape, n_old, context)
        history.budget = any_number.budget(counts=True)
        checkpoint = checkpoint_of(X, labels.targets, given, any_number, context, places)
        counted = _counted(X, labels, params, context.changed(checkpoint=checkpoint))
        params = {**params, "n_new_classes": max(1, counted.value)}
    plan = resolve(params, shape, n_old, context)
    checkpoint = checkpoint_of(X, labels.targets, given, plan, context, places)
    context = context.changed(checkpoint=checkpoint)
    if counted is None:
        history.budget = plan.budget()
    tuning, searched = None, plan.tunes
    try:
        if searched:
            check_growth(plan, context)  # before the search, not after
            checkpoint.begin()
            tuning = _tuned(X, labels, params, plan, context, places.checkpoint_dir)
            plan = resolve({**params, **tuning["options"]}, plan.shape, plan.n_old_classes, context)
            if history.budget is not None:  # the time left, divided over the stages of the new plan
                history.budget = plan.budget_of(max(history.budget.rest, 0), tunes=False)
        stages = run_stages(Problem.from_checked(X, labels.targets), plan, context)
        mixture = stages.mixture
        if plan.options.calibrate:
            with history.timed("calibrate"):
                # Not on the folds that selected the options: those classes are found too well.
                seed = derive_seed(context.seed, "calibrate") if searched else context.seed
                other = context.changed(seed=seed)
                share = None if mixture is None else mixture.share
                calibration = calibrate(X, labels.targets, labels.old_classes, plan, other, share)
        else:
            calibration = not_calibrated("calibrate is off")
    except KeyboardInterrupt:
        checkpoint.flush()
        raise
    calibrated = None if calibration.map is None else calibration.apply
    verdict = judge(stages, X, labels.targets, calibrated)
    U, rows = stages.discovery.U, stages.discovery.U_rows
    networks = {"discover": stages.discovery.network, "expand": stages.model.network}
    if plan.method.pretrains:
        networks = {"pretrain": stages.pretraining.network, **networks}
    n_new = stages.blueprint.n_new_classes
    return FitResult(
        plan=plan,
        params=dict(given),
        seed=context.seed,
        classes=np.concatenate([labels.old_classes, new_names(labels.old_classes, n_new)]),
        model=stages.model,
        blueprint=stages.blueprint,
        labels=verdict.labels,
        given=labels.targets >= 0,
        confidence=verdict.confidence,
        novelty=verdict.novelty,
        best_old=verdict.best_old,
        mixture=None if mixture is None else mixture_facts(mixture, verdict, labels.targets, calibration),
        embedding=verdict.embedding,
        pseudo_labels=verdict.pseudo_labels,
        spectral_embedding=None if U is None else U.numpy(),
        spectral_rows=None if rows is None else rows.numpy(),
        validation_accuracy=stages.pretraining.validation_accuracy,
        given_accuracy=verdict.given_accuracy,
        chosen=plan.chosen,
        history=list(history),
        spent={stage: round(seconds, 2) for stage, seconds in history.spent.items()},
        calibration=calibration.facts,
        tuning=tuning,
        n_classes=None if counted is None else counted.report,
        stage_networks=networks,
    )


def _counted(X: NDArray[Any], labels: Labels, params: Mapping[str, Any], context: FitContext) -> Count:
    """The number of new classes, with the names of the old classes that were hidden to find it."""
    try:
        found = count_new_classes(X, labels.targets, params, context)
    except KeyboardInterrupt:
        context.checkpoint.flush()
        raise
    hidden = [[str(labels.old_classes[c]) for c in classes] for classes in found.report["hidden"]]
    return found._replace(report={**found.report, "hidden": hidden})


def mixture_facts(
    mixture: Mixture, verdict: Verdict, targets: NDArray[np.int64], calibration: Calibration
) -> dict[str, Any]:
    """What is known of the mixture, as plain JSON values.

    Spies cannot show that new samples look like old ones; rehearsals can, since there the share is known. The
    interval allows for the errors that they made.
    """
    n_old = int(targets.max()) + 1
    found = verdict.labels[targets < 0]
    errors = [one["found"] - one["share"] for one in calibration.facts.get("mixtures", [])]
    others = [min(max(mixture.share - error, 0.0), 1.0) for error in errors]
    return {
        "share": mixture.share,
        "interval": [min([mixture.low, *others]), max([mixture.high, *others])],
        "spies": mixture.spies,
        "old": int(((found >= 0) & (found < n_old)).sum()),
        "new": int((found >= n_old).sum()),
        "noise": int((found < 0).sum()),
    }


class Search(NamedTuple):
    """What a search for options found, and how long it took."""

    report: dict[str, Any]
    seconds: float


def _tuned(
    X: NDArray[Any],
    labels: Labels,
    params: Mapping[str, Any],
    plan: FitPlan,
    context: FitContext,
    folder: Path | None,
) -> dict[str, Any]:
    """The report of a search for options on hidden old classes. A resumed fit does not search again."""

    def search() -> Search:
        start = time.perf_counter()
        finished = None if folder is None else folder / "tune.jsonl"
        try:
            report = tune(X, labels.targets, params, context, finished=finished, if_room=plan.tunes_if_room)
            names = [[str(labels.old_classes[c]) for c in classes] for classes in report["hidden"]]
            report |= {"hidden": names}
        except NoRehearsal as reason:
            report = untuned(str(reason))
        return Search(report, time.perf_counter() - start)

    start, history = time.perf_counter(), context.history
    found = once(context.checkpoint, "tune", Search, search)
    history.spent["tune"] = found.seconds
    if history.budget is not None:  # time spent on it before an interruption
        history.budget.charge(max(0.0, found.seconds - (time.perf_counter() - start)))
    return found.report
