"""Tuning on hidden old classes: what is tried, what is selected, and that the search can be resumed."""

import json

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from cdknet import ClassDiscovery
from cdknet.cli import main
from cdknet.core.metrics import clustering_accuracy
from cdknet.fit.plan import resolve
from cdknet.runs.format import read_run
from cdknet.runs.summary import summary
from cdknet.training.budget import Budget
from cdknet.training.context import FitContext
from cdknet.training.history import History
from cdknet.trust.confidence import not_calibrated
from cdknet.trust.rehearsal import NoRehearsal, Rehearsal, plan_folds, recluster, rehearse
from cdknet.trust.tune import CANDIDATES, better_half, choose, only_clusters, tune
from cdknet.trust.tune import distinct as distinct_trials

from contracts import blob_problem

X, Y, TRUTH = blob_problem(n=160, n_old=5, n_new=2)
PARAMS = ClassDiscovery(n_new_classes=2).checked_params()


@pytest.fixture
def fits(monkeypatch):
    """Replaces the fits: the lower the label weight, the higher the accuracy. It lists the calls."""
    asked = []

    def rehearse(X, targets, fold, plan, context):
        weight, method = getattr(plan.options, "label_weight", 10.0), plan.method.name
        asked.append((weight, method, fold.number))
        truth = np.arange(100) % 2
        wrong = int(weight) + 3 * (method == "cd-knet")
        labels = np.where(np.arange(100) < wrong, 1 - truth, truth)
        return Rehearsal(truth, labels, torch.eye(2)[torch.from_numpy(labels)])

    monkeypatch.setattr("cdknet.trust.tune.rehearse", rehearse)
    return asked


# With five old classes, views already lead; "auto" means views of vectors, and their weight is low.
TRIED = len(CANDIDATES) - 3
CLUSTERINGS = 2  # candidates that need no fit of their own
FITS = [TRIED - CLUSTERINGS, 6, 3]  # per fold: the better half goes on


def run(history=None, seed=0, **changes):
    context = FitContext(seed=seed, history=History() if history is None else history)
    return tune(X, Y.astype(np.int64), PARAMS, context, **{"folds": 2, **changes})


def distinct(params, shape, n_old_classes, **parts):
    return distinct_trials(CANDIDATES, params, shape, n_old_classes, FitContext(**parts))


def test_the_better_half_is_tried_on_the_next_fold_and_the_best_is_selected(fits):
    report = run()
    assert [sum(fold == n for _, _, fold in fits) for n in (0, 1)] == FITS[:2]
    assert len(report["tried"]) == TRIED
    folds = {line["candidate"]: len(line["accuracies"]) for line in report["tried"]}
    assert folds["as given"] == folds["no old labels"] == folds["old labels low"] == 2
    assert folds["paper"] == folds["paper's network"] == folds["one spectral cut"] == 1
    assert report["chosen"] == "no old labels"
    assert report["options"] == {"label_weight": 0.0}
    assert report["alike"] == pytest.approx({"with_labels": 0.9, "without_labels": 1.0, "gain": -0.1})
    assert "'no old labels' finds 1.000, the options as given 0.900" in report["why"]
    assert json.loads(json.dumps(report)) == report


def test_a_candidate_that_cannot_be_fitted_is_not_chosen(fits, monkeypatch):
    from cdknet.trust import tune as module

    working = module.rehearse

    def failing(X, targets, fold, plan, context):
        if getattr(plan.options, "label_weight", 10.0) == 0:
            raise FloatingPointError("nan")
        return working(X, targets, fold, plan, context)

    monkeypatch.setattr("cdknet.trust.tune.rehearse", failing)
    report = run()
    assert report["chosen"] == "old labels low"
    assert report["tried"][1]["accuracies"] == [0.0]


def test_a_candidate_that_comes_to_the_same_is_not_tried_twice():
    few, many = (distinct(PARAMS, (6,), n) for n in (5, 50))
    assert set(CANDIDATES) - set(few) == {"views lead", "views low", "views of vectors"}
    assert set(CANDIDATES) - set(many) == {"no views", "old labels lead", "views of vectors"}
    assert "views of vectors" in distinct(PARAMS, (28, 28), 5)
    parts = {
        "views": lambda x, generator: x,
        "clusterer": lambda z, k, seed: z,
        "encoder": torch.nn.Flatten(),
    }
    own = distinct(PARAMS, (28, 28), 5, **parts)
    missing = {"views of vectors", "one spectral cut", "k-means", "paper's network", "k-means on samples"}
    assert set(CANDIDATES) - set(own) == {"views lead", *missing}
    heads = distinct({**PARAMS, "readout": "heads"}, (6,), 5)
    assert {"paper", "k-means", "one spectral cut"} <= set(heads)
    asked = distinct({**PARAMS, "lead": "labels"}, (6,), 5)
    without = set(CANDIDATES) - set(asked)
    missing = {"old labels lead", "no old labels", "no views", "views of vectors"}
    assert without == missing  # without labels none can lead, and views have no weight
    with pytest.raises(
        ValueError, match="label_weight must be above 0"
    ):  # it was asked for, so it is not replaced
        distinct({**PARAMS, "lead": "labels", "label_weight": 0.0}, (6,), 5)


def test_ties_go_to_the_options_as_given_and_steadiness_counts():
    candidates = {"as given": {}, "other": {"heads": 0}, "unsteady": {"heads": 1}}
    report = choose({"as given": [0.9, 0.7], "other": [0.9, 0.7], "unsteady": [1.0, 0.62]}, candidates)
    assert report["chosen"] == "as given"
    assert report["tried"][2]["score"] == pytest.approx(0.01 - 0.09 / 2)
    # Folds are not equally hard: gaining the same on each is steady, being equally right on each is not.
    report = choose({"as given": [0.9, 0.7], "other": [0.91, 0.71], "unsteady": [0.81, 0.81]}, candidates)
    assert report["chosen"] == "other"
    one = choose({"as given": [0.8], "other": [0.9]}, candidates)
    assert one["options"] == {"heads": 0}
    assert "far more, on the one fold that was tried" in one["why"]
    assert "steadily" not in one["why"]
    assert choose({"as given": [0.899], "other": [0.904]}, candidates)["options"] == {}, "a sample more"
    assert choose({"as given": [0.9, 0.7], "other": [0.901, 0.701]}, candidates)["options"] == {}


def test_what_was_dropped_on_the_way_is_not_chosen_and_the_options_as_given_never_are_dropped():
    candidates = {"as given": {}, "lucky": {"heads": 0}, "steady": {"heads": 1}}
    report = choose({"as given": [0.7, 0.7], "lucky": [0.99], "steady": [0.8, 0.8]}, candidates)
    assert report["chosen"] == "steady"
    assert better_half({"as given": [0.1], "a": [0.9], "b": [0.8], "c": [0.7]}) == ["as given", "a"]
    assert better_half({"as given": [0.1]}) == ["as given"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"method": "cd-knet", "normalize_features": False, "pretrain_epochs": 4, "discover_epochs": 4}],
)
def test_another_clustering_of_the_same_features_is_what_a_fit_with_that_readout_finds(changes):
    params = PARAMS | {"view_steps": 20, "head_steps": 20} | changes
    fold, context = plan_folds(Y.astype(np.int64), 2, folds=1, seed=0)[0], FitContext(seed=3)

    def planned(**other):
        return resolve(params | other, (6,), 5, context)

    def rehearsed(readout):
        return rehearse(X, Y.astype(np.int64), fold, planned(readout=readout), context)

    first = rehearsed("agreed")
    for readout in ("spectral", "k-means"):
        found = recluster(first, fold, planned(readout=readout), 3)
        np.testing.assert_array_equal(found.labels, rehearsed(readout).labels)
    assert only_clusters(planned(), planned(readout="spectral"))
    assert not only_clusters(planned(), planned(readout="spectral", label_weight=3.0))
    if not changes:
        assert not only_clusters(planned(), planned(readout="heads"))
        assert not only_clusters(planned(), planned(readout="spectral", heads=0))


def test_finished_fits_are_not_done_again(fits, tmp_path):
    first = run(finished=tmp_path / "fits.jsonl")
    lines = (tmp_path / "fits.jsonl").read_text().splitlines()
    (tmp_path / "fits.jsonl").write_text("\n".join([*lines[:-1], lines[-1][:9]]))  # truncated by a crash
    fits.clear()
    assert run(finished=tmp_path / "fits.jsonl") == first
    assert len(fits) == 1
    fits.clear()
    run(finished=tmp_path / "other.jsonl", seed=1)
    assert len(fits) == sum(FITS[:2])


def test_too_few_old_classes_are_named(fits):
    with pytest.raises(NoRehearsal, match="4 old classes"):
        tune(X, Y % 2, PARAMS, FitContext(), folds=2)


def test_the_command_line_writes_the_report_and_prints_a_table(fits, tmp_path, capsys):
    np.savez(tmp_path / "data.npz", X=X, y=Y)
    out = tmp_path / "tuned.json"
    command = ["tune", str(tmp_path / "data.npz"), "--new-classes", "2", "--folds", "2", "--out", str(out)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "no old labels" in shown
    assert "score" in shown
    assert "cdknet discover" in shown
    assert "--new-classes 2 --label-weight 0.0 --out run" in " ".join(shown.split())
    report = json.loads(out.read_text())
    assert report["chosen"] == "no old labels"
    assert not out.with_suffix(".jsonl").exists()
    assert main(command) == 2
    assert "must not exist yet" in capsys.readouterr().err


# In a fit

FEW = {"n_new_classes": 2, "view_steps": 2, "head_steps": 2, "expand_steps": 2, "calibrate": False}


def test_a_fit_can_choose_its_options_first(fits, tmp_path):
    model = ClassDiscovery(**FEW, tune="old-classes", random_state=0).fit(X, Y)
    assert model.tuning_["chosen"] == "no old labels"
    assert all(name in "01234" for hidden in model.tuning_["hidden"] for name in hidden)
    direct = ClassDiscovery(**FEW, label_weight=0.0, random_state=0).fit(X, Y)
    np.testing.assert_array_equal(model.labels_, direct.labels_)
    np.testing.assert_array_equal(model.embedding_, direct.embedding_)
    assert direct.tuning_ is None
    assert "tune" in model.spent_
    again = ClassDiscovery.load(model.save(tmp_path / "run"))
    assert again.tuning_ == model.tuning_
    assert again.label_weight == 10, "the parameters stay what the user gave"


def test_a_fit_is_not_calibrated_on_the_folds_that_chose_its_options(fits, monkeypatch):
    seeds = []
    monkeypatch.setattr(
        "cdknet.trust.whole_fit.calibrate",
        lambda *given: seeds.append(given[4].seed) or not_calibrated("this is a test"),
    )
    for choice in ("off", "old-classes"):
        ClassDiscovery(**{**FEW, "calibrate": True}, tune=choice, random_state=7).fit(X, Y)
    assert seeds[0] == 7
    assert seeds[1] != 7


def test_a_fit_chooses_within_a_time_budget_unless_tuning_is_off(fits):
    assert ClassDiscovery(**FEW, random_state=0).fit(X, Y).tuning_ is None
    assert ClassDiscovery(**FEW, random_state=0, time_budget="1h", tune="off").fit(X, Y).tuning_ is None
    model = ClassDiscovery(**FEW, random_state=0, time_budget="1h").fit(X, Y)
    assert model.tuning_["chosen"] == "no old labels"


def test_what_choosing_leaves_is_shared_out_anew(fits, monkeypatch):
    from cdknet.trust import whole_fit

    left, working = {}, whole_fit.run_stages

    def run_stages(problem, plan, context):
        left.update({stage: context.history.budget.left(stage) for stage in ("discover", "expand")})
        return working(problem, plan, context)

    monkeypatch.setattr("cdknet.trust.whole_fit.run_stages", run_stages)
    ClassDiscovery(**FEW, random_state=0, time_budget="1h").fit(X, Y)
    assert left["discover"] == pytest.approx(3600 * 5 / 7, rel=0.02)  # .5 and .2, no calibration
    assert left["expand"] == pytest.approx(3600, rel=0.02)


def test_a_resumed_fit_does_not_search_again(fits, tmp_path):
    options = {**FEW, "tune": "old-classes", "random_state": 0, "checkpoint_dir": tmp_path / "kept"}
    first = ClassDiscovery(**options).fit(X, Y)
    fits.clear()
    second = ClassDiscovery(**options).fit(X, Y)
    assert not fits
    assert second.tuning_ == first.tuning_


def test_an_interrupted_search_is_resumed(fits, monkeypatch, tmp_path):
    from cdknet.trust import tune as module

    working = module.rehearse

    def interrupted(*args, **rest):
        if len(fits) == 5:
            raise KeyboardInterrupt
        return working(*args, **rest)

    options = {**FEW, "tune": "old-classes", "random_state": 0, "checkpoint_dir": tmp_path / "kept"}
    monkeypatch.setattr("cdknet.trust.tune.rehearse", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ClassDiscovery(**options).fit(X, Y)
    monkeypatch.setattr("cdknet.trust.tune.rehearse", working)
    model = ClassDiscovery(**options).fit(X, Y)
    assert len(fits) == sum(FITS), "five were saved, the others tried"
    assert model.tuning_["chosen"] == "no old labels"


def test_a_resumed_fit_keeps_the_options_that_were_chosen(fits, monkeypatch, tmp_path):
    """The search would now choose other options; stage 2 was started with its first choice."""

    def interrupt(row):
        if row["stage"] == "discover":
            raise KeyboardInterrupt

    options = {**FEW, "tune": "old-classes", "random_state": 0, "checkpoint_dir": tmp_path / "kept"}
    with pytest.raises(KeyboardInterrupt):
        ClassDiscovery(**options, watchers=[interrupt]).fit(X, Y)
    other = {"tried": [], "chosen": "paper", "options": {"method": "cd-knet"}, "why": "", "hidden": []}
    monkeypatch.setattr("cdknet.trust.whole_fit.tune", lambda *args, **rest: other)
    model = ClassDiscovery(**options).fit(X, Y)
    assert model.tuning_["chosen"] == "no old labels"
    assert model.spent_["tune"] > 0


def test_what_was_chosen_is_what_a_run_says_it_used(fits, tmp_path):
    model = ClassDiscovery(**FEW, tune="old-classes", random_state=0).fit(X, Y)
    assert model.used_params()["label_weight"] == 0
    assert model.get_params()["label_weight"] == 10
    run = read_run(model.save(tmp_path / "run"))
    assert summary(run)["label_weight"] == 0
    assert ClassDiscovery.from_run(run).used_params()["label_weight"] == 0


def test_a_method_is_tried_with_options_that_it_reads():
    always = {"as given", "k-means on samples"}
    softmax = {**PARAMS, "detector": "softmax", "method": "dec"}
    assert "k-means on samples" not in distinct(softmax, (6,), 5)
    assert "k-means on samples" not in distinct(PARAMS, (6,), 5, clusterer=lambda z, k, seed: z)
    assert set(distinct({**PARAMS, "method": "dec"}, (6,), 5)) == {*always, "paper"}
    paper = distinct({**PARAMS, "method": "cd-knet"}, (6,), 5)
    assert set(paper) == {*always, "no old labels", "old labels low", "one spectral cut"}


def test_k_means_on_samples_is_a_candidate_that_can_be_rehearsed_and_fitted():
    options = {**PARAMS, **CANDIDATES["k-means on samples"], "n_new_classes": 2, "calibrate": False}
    fold = plan_folds(Y.astype(np.int64), 2, folds=1, seed=0)[0]
    found = rehearse(X, Y.astype(np.int64), fold, resolve(options, (6,), 5, FitContext()), FitContext())
    assert found.accuracy == 1
    model = ClassDiscovery(**options).fit(X, Y)
    assert clustering_accuracy(TRUTH[Y < 0], model.labels_[Y < 0]) == 1
    assert model.chosen_["network"] == "none"


def test_a_clusterer_that_counts_for_itself_cannot_be_rehearsed(fits):
    with pytest.raises(NoRehearsal, match="a number of classes of its own"):
        tune(X, Y.astype(np.int64), PARAMS, FitContext(clusterer=KMeans(2)))
    assert not fits


def test_options_that_find_nothing_because_they_fail_are_not_called_the_best(monkeypatch):
    def failing(*args, **rest):
        raise ValueError("too few samples")

    monkeypatch.setattr("cdknet.trust.tune.rehearse", failing)
    with pytest.raises(NoRehearsal, match="could not be discovered: too few samples"):
        run()


def test_a_report_may_have_any_ending(fits, tmp_path):
    np.savez(tmp_path / "d.npz", X=X, y=Y)
    out = tmp_path / "report.jsonl"
    assert main(["tune", str(tmp_path / "d.npz"), "--new-classes", "2", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["chosen"] == "no old labels"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.npz", "report.jsonl"]


def test_with_too_few_old_classes_a_fit_keeps_its_options_and_says_why(fits):
    few = Y < 3
    model = ClassDiscovery(**FEW, tune="old-classes", random_state=0).fit(X[few], Y[few])
    assert model.tuning_["options"] == {}
    assert "4 old classes" in model.tuning_["why"]
    assert not fits


class Clock:
    """A clock that advances by one second per fit."""

    def __init__(self, monkeypatch):
        from cdknet.trust import tune as module

        self.now, working = 0.0, module.rehearse

        def rehearse(*args, **rest):
            self.now += 1
            return working(*args, **rest)

        monkeypatch.setattr("cdknet.trust.tune.rehearse", rehearse)
        monkeypatch.setattr("cdknet.trust.rehearsal.Budget", lambda s, stages: Budget(s, stages, clock=self))

    def __call__(self):
        return self.now

    def history(self, seconds):
        return History([], Budget(seconds, ["tune"], clock=self))


def test_only_what_the_budget_left_time_for_counts(fits, monkeypatch):
    clock = Clock(monkeypatch)
    report = run(history=clock.history(FITS[0] + 2.5))  # time for two fits of the second fold
    assert len(report["hidden"]) == 1
    assert all(len(line["accuracies"]) == 1 for line in report["tried"])
    assert len(report["tried"]) == TRIED
    report = run(history=clock.history(2.5))  # as given, no old labels; the third is stopped early
    tried = [line["candidate"] for line in report["tried"]]
    assert tried == ["as given", "no old labels", "one spectral cut", "k-means"]
    assert report["chosen"] == "no old labels"
    few = {name: CANDIDATES[name] for name in ("as given", "no old labels")}
    monkeypatch.setattr("cdknet.trust.tune.CANDIDATES", few)
    report = run(history=clock.history(0.5))
    assert report["options"] == {}
    assert "time budget" in report["why"]


def test_a_budget_without_room_is_not_spent_on_choosing(fits, monkeypatch):
    clock = Clock(monkeypatch)
    assert run(history=clock.history(9), if_room=True)["options"] == {}
    assert len(fits) == 1, "as given, to see how long it takes"
    assert run(history=clock.history(12), if_room=True)["chosen"] == "no old labels"


def test_a_fit_spends_a_share_of_its_budget_on_choosing():
    budget = Budget(130, ["tune", "discover", "expand", "calibrate"], clock=lambda: 0.0)
    assert budget.left("tune") == pytest.approx(50)
    assert budget.left("calibrate") == pytest.approx(130)


def test_the_command_says_that_it_needs_labels(tmp_path, capsys):
    np.savez(tmp_path / "bare.npz", X=np.zeros((20, 4), dtype=np.float32))
    out = tmp_path / "tuned.json"
    assert main(["tune", str(tmp_path / "bare.npz"), "--new-classes", "2", "--out", str(out)]) == 2
    assert "needs labels of the old classes" in capsys.readouterr().err
    assert not out.exists()
