"""Confidence of labels: the raw signal, the map learned on hidden old classes, and what a user sees."""

import json
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdknet import ClassDiscovery
from cdknet.cli import main
from cdknet.core.confidence import agreement, raw_confidence
from cdknet.core.metrics import expected_calibration_error
from cdknet.fit.plan import resolve
from cdknet.runs.format import read_config
from cdknet.runs.summary import confidence_sentence
from cdknet.training.context import FitContext
from cdknet.trust.confidence import Map, fit_map
from cdknet.trust.rehearsal import MOST_OF_A_CLASS, MOST_ROWS, NoRehearsal, plan_folds

from contracts import blob_problem

X, Y, TRUTH = blob_problem(n=160, n_old=4, n_new=2)
QUICK = {
    "n_new_classes": 2,
    "unlabelled": "new",
    "pretrain_epochs": 4,
    "view_steps": 6,
    "head_steps": 12,
    "expand_epochs": 2,
    "expand_steps": 4,
    "kmeans_restarts": 2,
    "random_state": 0,
}


@pytest.fixture(scope="module")
def model():
    return ClassDiscovery(**QUICK).fit(X, Y)


# The signal


def test_a_sample_far_from_its_class_and_among_others_is_unsure():
    generator = np.random.default_rng(0)
    centres = np.array([[0.0, 4.0], [4.0, 0.0]])
    labels = np.arange(80) % 2
    z = centres[labels] + generator.normal(0, 0.3, (80, 2))
    labels[0] = 1  # it lies among those of class 0
    raw = raw_confidence(torch.from_numpy(z).float(), labels, 2)
    assert ((raw >= 0) & (raw <= 1)).all()
    assert raw[0] < 0.1 < 0.9 < np.median(raw)
    assert raw.argmin() == 0


def test_samples_are_unsure_where_one_class_was_split_and_two_were_merged(monkeypatch):
    """Each is near its mean, among samples of the same label; but other clusterings disagree."""
    z = torch.from_numpy(np.random.default_rng(0).normal(0, 1, (800, 2))).float()
    truth = np.arange(800) % 4
    z += 5 * torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])[truth]
    right = z[:, 0].numpy() > 5
    wrong = np.select([truth == 0, truth == 3], [0, np.where(right, 2, 3)], default=1)  # 1 and 2 are merged
    for most in (5000, 400):  # all samples are clustered again, or half
        monkeypatch.setattr("cdknet.core.confidence.MOST_CLUSTERED", most)
        assert agreement(z, truth, 4).mean() > 0.95
        unsure = agreement(z, wrong, 4)
        assert unsure[truth > 0].mean() < 0.6 < 0.95 < unsure[truth == 0].mean()
        raw = raw_confidence(z, truth, 4).mean()
        assert raw_confidence(z, wrong, 4).mean() < 0.7 * raw


def test_neighbours_are_looked_for_among_some_and_never_the_sample_itself(monkeypatch):
    z = torch.arange(30.0)[:, None] * torch.ones(1, 2)
    labels = np.zeros(30, dtype=np.int64)
    labels[15] = 1  # alone of its class: no neighbour agrees
    for most in (10, 100):
        monkeypatch.setattr("cdknet.core.confidence.MOST_VOTERS", most)
        assert raw_confidence(z, labels, 2)[15] == 0


# The map


@given(st.integers(0, 2**32 - 1), st.floats(0.3, 3), st.floats(-1.5, 1.5))
@settings(max_examples=20, deadline=None)
def test_the_map_finds_what_made_the_data_and_rises(seed, slope, offset):
    generator = np.random.default_rng(seed)
    raw = generator.uniform(0.02, 0.98, 4000)
    truth = Map(slope, offset)
    right = generator.uniform(size=4000) < truth.apply(raw)
    found = fit_map(raw, right)
    assert np.abs(found.apply(raw) - truth.apply(raw)).mean() < 0.04
    grid = found.apply(np.linspace(0, 1, 50))
    assert (np.diff(grid) >= 0).all()
    assert expected_calibration_error(found.apply(raw), right) < 0.06


def test_confidences_that_are_lower_throughout_count_by_half():
    """The reason may be longer training, or classes that are harder to separate."""
    generator = np.random.default_rng(0)
    raw = generator.uniform(0.2, 0.9, 4000)
    found = fit_map(raw, generator.uniform(size=4000) < raw)
    lower = 1 / (1 + np.exp(1.0) * (1 - raw) / raw)  # by 1 in the logit
    by_value, as_it_is = found._replace(quantiles=()).apply(lower).mean(), found.apply(raw).mean()
    assert found.apply(lower).mean() == pytest.approx((by_value + as_it_is) / 2, abs=0.02)
    assert by_value < as_it_is - 0.15


def test_where_no_mistake_was_made_labels_like_those_of_halves_are_not_sure():
    """Rehearsals that are all right at raw .8 show nothing about raw .4; split classes, at .4, do."""
    generator = np.random.default_rng(0)
    raw, halves = generator.uniform(0.7, 0.9, 400), generator.uniform(0.3, 0.5, 400)
    found = fit_map(raw, np.ones(400, dtype=bool), halves)
    assert found.apply(np.full(50, 0.8)).mean() > 0.9
    assert found.apply(np.full(50, 0.4)).mean() < 0.75
    assert fit_map(raw, np.ones(400, dtype=bool)).apply(np.full(50, 0.4)).mean() > 0.95, "without them"


@pytest.mark.slow
def test_one_class_taken_for_two_is_not_called_right():
    generator = np.random.default_rng(0)
    centres = 4 * generator.normal(size=(6, 8))
    truth = generator.integers(0, 6, 600)
    X = centres[truth] + generator.normal(size=(600, 8))
    few = {"view_steps": 50, "head_steps": 100, "expand_epochs": 1, "expand_steps": 50}
    model = ClassDiscovery(n_new_classes=2, random_state=0, **few).fit(X, np.where(truth < 5, truth, -1))
    assert model.calibration_["accuracy"] == 1, "there was no mistake to learn from"
    assert model.overall_confidence_ < 0.8


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_map_of_one_outcome_is_sure_but_not_certain(share):
    raw = np.linspace(0, 1, 200)
    sure = fit_map(raw, np.full(200, bool(share))).apply(raw)
    assert np.isfinite(sure).all()
    assert abs(sure.mean() - share) < 0.05
    assert ((sure > 0) & (sure < 1)).all()


# The folds


def test_folds_hide_old_classes_only_and_leave_some():
    targets = np.repeat(np.arange(-1, 7), 30)
    folds = plan_folds(targets, 3, folds=2, seed=0)
    assert [len(fold.hidden) for fold in folds] == [3, 3]
    assert not set(folds[0].hidden) & set(folds[1].hidden)
    for fold in folds:
        assert (targets[fold.rows] >= 0).all()
        assert set(targets[fold.rows]) == set(range(7))
    assert plan_folds(targets, 3, folds=2, seed=1)[0].hidden != folds[0].hidden
    again = plan_folds(targets, 3, folds=2, seed=0)
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(folds, again, strict=True))


@pytest.mark.parametrize(("n_old", "n_new", "hidden"), [(4, 9, 2), (5, 5, 3), (70, 30, 30), (6, 2, 2)])
def test_as_many_are_hidden_as_are_looked_for(n_old, n_new, hidden):
    fold, *_ = plan_folds(np.repeat(np.arange(n_old), 10), n_new, folds=1, seed=0)
    assert len(fold.hidden) == hidden


def test_only_a_part_of_a_large_set_is_rehearsed():
    fold, *_ = plan_folds(np.repeat(np.arange(5), 4000), 2, folds=1, seed=0)
    assert MOST_ROWS - 5 <= len(fold.rows) <= MOST_ROWS
    fold, *_ = plan_folds(np.repeat(np.arange(70), 400), 30, folds=1, seed=0)
    assert set(np.bincount(fold.rows // 400)) == {MOST_OF_A_CLASS}


@pytest.mark.parametrize(
    ("targets", "n_new", "reason"),
    [
        (np.arange(90) % 3, 2, "4 old classes .* there are 3"),
        (np.repeat([0, 1, 2, 3], [50, 50, 50, 5]), 2, "at least 8 labelled samples.* there are 3"),
        (np.arange(90) % 9, 1, "a single new class"),
    ],
)
def test_what_cannot_be_rehearsed_says_why(targets, n_new, reason):
    with pytest.raises(NoRehearsal, match=reason):
        plan_folds(targets, n_new, folds=2, seed=0)


def test_the_short_form_is_short():
    plan = resolve(ClassDiscovery(n_new_classes=5).checked_params(), (6,), 8, FitContext())
    short = plan.rehearsal(3, 5, 0.5, 256).options
    assert (short.view_steps, short.n_new_classes, short.expansion) == (100, 3, "none")
    assert {f.name for f in fields(short) if getattr(short, f.name) != getattr(plan.options, f.name)} <= {
        "pretrain_epochs",
        "discover_epochs",
        "view_steps",
        "label_epochs",
        "head_steps",
        "view_batch_size",
        "n_new_classes",
        "expansion",
        "unlabelled",
        "noise",
    }


# The estimator


def test_a_fit_reports_its_confidence(model):
    facts = model.calibration_
    assert facts["calibrated"]
    assert [len(hidden) for hidden in facts["hidden"]] == [2, 2]
    assert set().union(*facts["hidden"]) == {"0", "1", "2", "3"}
    assert facts["samples"] == (Y >= 0).sum()
    assert 0 <= facts["accuracy"] <= 1
    assert json.loads(json.dumps(facts)) == facts
    new = ~model.given_
    assert (model.confidence_[~new] == 1).all()
    assert ((model.confidence_ > 0) & (model.confidence_ <= 1)).all()
    assert model.overall_confidence_ == pytest.approx(model.confidence_[new].mean())
    for name, sure in zip(model.classes_[4:], model.class_confidence_, strict=True):
        assert sure == pytest.approx(model.confidence_[model.labels_ == name].mean())
    assert [row["stage"] for row in model.history_[-2:]] == ["calibrate"] * 2


def test_calibration_changes_no_label_and_no_ranking(model):
    plain = ClassDiscovery(**QUICK, calibrate=False).fit(X, Y)
    np.testing.assert_array_equal(plain.labels_, model.labels_)
    np.testing.assert_array_equal(plain.embedding_, model.embedding_)
    assert plain.calibration_ == {"calibrated": False, "reason": "calibrate is off"}
    order = np.argsort(plain.confidence_[~model.given_], kind="stable")
    assert (np.diff(model.confidence_[~model.given_][order]) >= -1e-6).all()


def test_the_hidden_truth_has_no_part_in_it(model):
    """Unlabelled samples are not used in rehearsals: replacing them does not change the map."""
    other = np.where(Y[:, None] < 0, X[::-1], X)
    facts = ClassDiscovery(**QUICK).fit(other, Y).calibration_
    assert {**facts, "seconds": 0} == {**model.calibration_, "seconds": 0}


def test_an_interrupted_calibration_ends_in_the_same_bits(model, tmp_path):
    def stop(row):
        if row["stage"] == "calibrate":
            raise KeyboardInterrupt

    class StopsLater:
        def __call__(self, row):
            return None

        def progress(self, stage, done, total):
            if stage == "calibrate" and done > 1.5:
                raise KeyboardInterrupt

    for watcher in (stop, StopsLater()):
        params = {**QUICK, "checkpoint_dir": tmp_path / type(watcher).__name__}
        with pytest.raises(KeyboardInterrupt):
            ClassDiscovery(**params, watchers=[watcher]).fit(X, Y)
        resumed = ClassDiscovery(**params).fit(X, Y)
        np.testing.assert_array_equal(resumed.confidence_, model.confidence_)
        assert [row["stage"] for row in resumed.history_] == [row["stage"] for row in model.history_]


def test_with_too_few_old_classes_it_says_that_it_is_not_calibrated():
    few = blob_problem(n=100)
    model = ClassDiscovery(**QUICK).fit(*few[:2])
    assert not model.calibration_["calibrated"]
    assert "there are 3" in model.calibration_["reason"]
    assert 0 < model.overall_confidence_ <= 1


def test_nothing_is_promised_that_was_not_seen():
    kept = {"overall": 0.9, "calibration": {"calibrated": True, "accuracy": 0.85}}
    assert confidence_sentence(kept).startswith("about 90 of 100 unlabelled samples")
    assert confidence_sentence(kept).endswith("found .85")
    assert confidence_sentence(kept, 2) == confidence_sentence(kept)
    poor = {**kept, "overall": 0.54}
    assert confidence_sentence(poor, 2).startswith(
        "about 54 of 100 unlabelled samples are expected to be right ("
    )
    assert "guessing among 2 classes: 50" in confidence_sentence(poor, 2)
    sure = {"overall": 0.9999, "calibration": {"calibrated": True, "accuracy": 1.0}}
    assert confidence_sentence(sure).startswith("more than 99 of 100")
    assert "no mistake to learn from" in confidence_sentence(sure)
    unlike = {**kept, "calibration": {**kept["calibration"], "accuracies": [0.7, 1.0]}}
    assert confidence_sentence(unlike).endswith("found .70 to 1.00"), "their mean is not sure"
    beside = {**kept, "calibration": {**kept["calibration"], "plain": 0.88}}
    assert confidence_sentence(beside).endswith("found .85, k-means on the columns .88")
    beside["calibration"]["plain"] = 0.95
    assert confidence_sentence(beside).endswith(
        "on the columns .95: other options may do better, see cdknet tune"
    )


def test_a_fit_of_vectors_says_what_k_means_finds_of_the_hidden_classes(model):
    assert model.calibration_["plain"] == 1  # well separated blobs
    pictures = ClassDiscovery(**QUICK).fit(np.tile(X, (1, 11))[:, :64].reshape(-1, 8, 8), Y)
    assert pictures.calibration_["plain"] is None  # not for pixels


def test_the_run_and_the_command_line_say_it_in_words(model, tmp_path, capsys):
    run = model.save(tmp_path / "run")
    kept = read_config(run)["confidence"]
    assert kept["overall"] == pytest.approx(model.overall_confidence_)
    loaded = ClassDiscovery.load(run)
    assert loaded.calibration_ == model.calibration_
    assert loaded.overall_confidence_ == pytest.approx(model.overall_confidence_, abs=1e-3)
    assert main(["show", str(run)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert confidence_sentence(kept).split(";")[0] in said
    assert main(["show", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["confidence"]["calibration"]["calibrated"]
