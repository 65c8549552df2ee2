"""Old classes, new ones and noise among the unlabelled samples."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.datasets import load_digits

from cdknet import ClassDiscovery
from cdknet.core.metrics import mixed_report, named_right, right_under_match
from cdknet.core.mixture import (
    FEWEST_SPIES,
    Mixture,
    combined,
    far_from_everything,
    fit_old_map,
    forest_share,
    labelled_share,
    share_of_old,
    share_of_spies,
    smoothed,
    sort_pool,
)
from cdknet.core.openworld import HiddenTruth
from cdknet.fit.pipeline import Verdict
from cdknet.runs.evaluate import evaluate_run
from cdknet.runs.format import NOISE, read_run
from cdknet.runs.summary import mixture_sentence
from cdknet.training.problem import Problem
from cdknet.trust.confidence import Calibration
from cdknet.trust.whole_fit import mixture_facts

from contracts import FEW, MemoryCheckpoint, blob_problem
from stagemaker import PLUS, context_of, resolved

MIXED = {**FEW, "unlabelled": "mixed"}
LEARN = {**MIXED, "view_steps": 40, "head_steps": 60, "expand_steps": 60, "pretrain_epochs": 12}


def mixed_blobs(n=500, n_old=4, n_new=2, hidden=0.5, seed=0):
    """Blobs, half of the old samples without a label."""
    X, _, truth = blob_problem(n=n, n_old=n_old, n_new=n_new, seed=seed)
    unlabelled = (truth >= n_old) | (np.random.default_rng(seed).random(n) < hidden)
    return X, np.where(unlabelled, -1, truth), truth


X, Y, TRUTH = mixed_blobs()


# The share of old samples.


@given(st.floats(0, 1), st.integers(0, 20))
def test_the_share_is_right_where_old_and_new_look_different(share, seed):
    draw = np.random.default_rng(seed)
    old = draw.random(1000) < share
    unlabelled = np.where(old, draw.uniform(0.6, 1, 1000), draw.uniform(0, 0.4, 1000))
    found = share_of_old(draw.uniform(0.6, 1, 200), unlabelled)
    assert found.value == pytest.approx(old.mean(), abs=0.12)
    assert found.low <= found.value <= found.high
    assert found.low <= old.mean() + 1e-9


@pytest.mark.parametrize("apart", [2.0, 3.0, 4.5])
@pytest.mark.parametrize(("n_spies", "holds"), [(30, 0.75), (100, 0.9), (400, 0.9)])
def test_the_share_is_near_and_its_interval_holds_it_in_most_draws(apart, n_spies, holds):
    inside, errors = [], []
    for seed, share in itertools.product(range(20), (0.0, 0.2, 0.5, 0.8, 1.0)):
        draw = np.random.default_rng(seed)
        old = draw.random(1500) < share
        unlabelled = expit(draw.normal(np.where(old, apart, -apart), 1.3))
        found = share_of_old(expit(draw.normal(apart, 1.3, n_spies)), unlabelled)
        inside.append(found.low <= old.mean() <= found.high)
        errors.append(abs(found.value - old.mean()))
    assert np.mean(inside) >= holds
    assert np.mean(errors) <= (0.05 if n_spies > 30 else 0.08)


def test_without_old_samples_there_is_no_share_and_nobody_is_old():
    draw = np.random.default_rng(0)
    spies, new = draw.uniform(0.8, 1, 50), draw.uniform(0, 0.2, 400)
    assert share_of_old(spies, new).value == 0
    assert (fit_old_map(spies, new, 0.0).apply(new) == 0).all()


def test_if_all_look_like_spies_all_are_old():
    draws = map(np.random.default_rng, range(20))
    found = [share_of_old(draw.random(200), draw.random(2000)) for draw in draws]
    assert np.mean([one.value for one in found]) > 0.9
    assert np.mean([one.high > 0.95 for one in found]) >= 0.9


def test_the_probability_rises_with_the_score_and_its_mean_is_the_share():
    draw = np.random.default_rng(0)
    old = draw.random(5000) < 0.3
    unlabelled = expit(draw.normal(np.where(old, 1.5, -1.5), 1.0))
    spies = expit(draw.normal(1.5, 1.0, 1000))
    probability = fit_old_map(spies, unlabelled, 0.3).apply(unlabelled)
    assert (np.diff(probability[np.argsort(unlabelled)]) >= 0).all()
    assert probability.mean() == pytest.approx(0.3, abs=0.02)
    by_bayes = 0.3 * np.exp(-0.5 * (np.log(unlabelled / (1 - unlabelled)) - 1.5) ** 2)
    by_bayes /= by_bayes + 0.7 * np.exp(-0.5 * (np.log(unlabelled / (1 - unlabelled)) + 1.5) ** 2)
    assert np.abs(probability - by_bayes).mean() < 0.02


def test_scores_are_of_a_sample_and_its_neighbours():
    z = torch.tensor([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]])
    score = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 0.3])
    torch.testing.assert_close(smoothed(score, z, 3), torch.tensor([2 / 3] * 3 + [0.1] * 3))
    share = labelled_share(z, torch.tensor([[0.05], [0.15]]), neighbors=5)
    torch.testing.assert_close(share, torch.tensor([0.4] * 3 + [0.2] * 3))


def auroc(score, is_old):
    from sklearn.metrics import roc_auc_score

    return roc_auc_score(is_old, score)


def test_a_forest_sees_in_the_samples_what_features_have_lost():
    """One column of ten tells old from new; the features of a sample are all the same."""
    draw = torch.Generator().manual_seed(0)
    is_old = torch.arange(600) < 300
    x = torch.randn(600, 10, generator=draw)
    x[:, 3] += 4.0 * is_old
    labelled = torch.randn(300, 10, generator=draw)
    labelled[:, 3] += 4.0
    share = forest_share(x, labelled)
    assert share.shape == (600,)
    assert auroc(share.numpy(), is_old.numpy()) > 0.95


def test_a_forest_judges_long_samples_and_those_it_was_not_grown_on(monkeypatch):
    monkeypatch.setattr("cdknet.core.mixture.MOST_SEARCHED", 200)
    draw = torch.Generator().manual_seed(0)
    is_old = torch.arange(400) < 200
    x = torch.randn(400, 250, generator=draw) + 2.0 * is_old[:, None]
    share = forest_share(x, torch.randn(200, 250, generator=draw) + 2.0)
    assert auroc(share.numpy(), is_old.numpy()) > 0.95


def pool_of_scores(seed, *, n=2000, n_spies=200):
    """Which samples of a pool are old (all its spies are), and a way to draw scores about it."""
    draw = np.random.default_rng(seed)
    is_old = np.append(draw.random(n) < 0.5, np.ones(n_spies, dtype=bool))
    return is_old, lambda gap: torch.from_numpy(expit(draw.normal(gap * (is_old - 0.5), 1.0)))


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_weighed_by_what_they_tell(seed):
    """Two independent scores are better than one, and noise does no harm; neither needs the truth."""
    is_old, drawn = pool_of_scores(seed)
    first, second, noise = drawn(2.0), drawn(2.0), drawn(0.0)
    alone = auroc(first, is_old)
    assert auroc(combined([first, second], 200), is_old) > alone + 0.03
    assert abs(auroc(combined([first, noise], 200), is_old) - alone) < 0.01
    assert auroc(combined([noise, first], 200), is_old) > alone - 0.01


def test_scores_cannot_be_weighed_by_few_spies():
    _, drawn = pool_of_scores(0, n=50, n_spies=FEWEST_SPIES - 1)
    first = drawn(2.0)
    assert combined([first, drawn(2.0)], FEWEST_SPIES - 1) is first


# Spies.


def test_spies_are_labelled_samples_of_every_class_without_their_labels():
    problem = Problem.from_arrays(X, Y)
    hidden = problem.with_spies(0.2, torch.Generator().manual_seed(0))
    spies = hidden.new_rows[-hidden.n_spies :]
    assert set(spies.tolist()) <= set(problem.old_rows.tolist())
    assert sorted([*spies.tolist(), *hidden.old_rows.tolist()]) == problem.old_rows.tolist()
    assert torch.equal(hidden.unlabelled_rows, problem.new_rows)
    assert set(TRUTH[spies]) == set(TRUTH[hidden.old_rows]) == {0, 1, 2, 3}
    np.testing.assert_array_equal(TRUTH[hidden.old_rows], hidden.old_targets)


def test_a_class_with_one_label_keeps_it():
    y = np.where(np.arange(len(Y)) < 4, TRUTH, -1)
    hidden = Problem.from_arrays(X, y).with_spies(0.2, torch.Generator().manual_seed(0))
    assert hidden.n_old_classes == 4
    assert set(hidden.old_targets.tolist()) == set(TRUTH[:4].tolist())


def test_many_labels_need_no_more_than_a_few_thousand_spies():
    assert share_of_spies(100, 5) == 0.2
    assert share_of_spies(100_000, 5) == 0.02


# Sorting.


def test_a_pool_is_sorted_by_its_score():
    score = torch.cat([torch.full((30,), 0.9), torch.full((70,), 0.05), torch.full((20,), 0.9)])
    blur = 0.01 * torch.rand(120, generator=torch.Generator().manual_seed(0))
    found = sort_pool(score + blur, torch.arange(120) % 3, 20, 2)
    assert found.share == pytest.approx(0.3, abs=0.05)
    assert torch.equal(found.is_old, torch.arange(100) < 30)
    assert found.p_old[:30].min() > 0.9
    assert found.p_old[30:].max() < 0.1


def test_where_nothing_looks_new_the_least_old_ones_stand_in_and_are_doubted():
    draw = torch.Generator().manual_seed(0)
    score = 0.8 + 0.2 * torch.rand(400, generator=draw)
    found = sort_pool(score, torch.zeros(400, dtype=torch.int64), 100, 3)
    assert found.high > 0.9
    assert int(found.is_new.sum()) >= 6
    assert (found.p_old[found.is_new] > 0.3).all()


def test_noise_takes_its_place_among_the_others():
    pool = sort_pool(torch.tensor([0.9, 0.1, 0.9]), torch.tensor([2, 0, 1]), 1, 1)
    whole = pool.with_noise(torch.tensor([True, False, False, True]))
    assert whole.best_old.tolist() == [0, 2, 0, 0]
    assert whole.noise.tolist() == [True, False, False, True]
    assert not whole.is_new[[0, 3]].any()
    assert not whole.is_old[[0, 3]].any()
    assert isinstance(whole, Mixture)


def test_noise_is_few_and_far_from_everything():
    draw = torch.Generator().manual_seed(0)
    labelled, x = (torch.randn(n, 4, generator=draw) for n in (200, 100))
    assert not far_from_everything(x, labelled).any()
    x[:3] = 40 * torch.randn(3, 4, generator=draw)
    assert far_from_everything(x, labelled).nonzero()[:, 0].tolist() == [0, 1, 2]
    x[:30] = 40 * torch.randn(30, 4, generator=draw)
    assert not far_from_everything(x, labelled).any(), "so many are no noise"


# Scores.


def test_an_old_class_counts_under_its_own_name_alone():
    truth = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    labels = np.array([1, 1, 1, 1, 9, 9, 8, 0])
    right = named_right(truth, labels, [0, 1])
    assert right.tolist() == [False, False, True, True, True, True, True, False]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_without_old_classes_it_is_the_one_to_one_match(pairs):
    truth, labels = np.array(pairs).T
    np.testing.assert_array_equal(named_right(truth, labels, [7]), right_under_match(truth, labels))


def test_noise_is_never_matched_to_a_class():
    truth, labels = np.array([5, 5, 5]), np.array([-1, -1, -1])
    assert not named_right(truth, labels, [0]).any()
    names = np.array(["a", "b"]), np.array(["noise", "noise"])
    assert not named_right(*names, ["z"], noise="noise").any()


def test_old_against_new_is_balanced():
    truth = HiddenTruth(np.array([0, 0, 0, 1, 5]), (5,))
    report = mixed_report(truth, np.array([0, 0, 0, 7, 7]), np.array([0, 0, 0, 0.9, 0.8]))
    assert report.old_against_new == pytest.approx((3 / 4 + 1) / 2)
    assert report.auroc == pytest.approx(3 / 4)
    assert (report.all, report.old, report.new) == (0.8, 0.75, 1.0)


# Fits.


@pytest.fixture(scope="module")
def model():
    return ClassDiscovery(**LEARN).fit(X, Y)


def test_a_fit_names_the_old_and_finds_the_new(model):
    unlabelled = Y < 0
    report = mixed_report(HiddenTruth(TRUTH[unlabelled], (4, 5)), model.labels_[unlabelled])
    assert report.all > 0.95
    assert report.old_against_new > 0.95
    np.testing.assert_array_equal(model.labels_[~unlabelled], Y[~unlabelled])
    assert model.old_share_ == pytest.approx((TRUTH[unlabelled] < 4).mean(), abs=0.1)
    low, high = model.old_share_interval_
    assert low <= model.old_share_ <= high
    assert (model.novelty_[~unlabelled] == 0).all()
    assert ((model.novelty_ >= 0) & (model.novelty_ <= 1)).all()
    np.testing.assert_array_equal(model.novelty_[unlabelled] > 0.5, model.labels_[unlabelled] >= 4)
    assert np.mean(named_right(TRUTH, model.predict(X), np.arange(4))) > 0.95


@pytest.mark.parametrize("method", ["cd-knet", "sscd", "sscd-dynamic", "spectral", "dec", "dac", "pairwise"])
def test_every_method_gets_old_samples_recognised_first(method):
    model = ClassDiscovery(**LEARN, method=method).fit(X, Y)
    unlabelled = Y < 0
    report = mixed_report(HiddenTruth(TRUTH[unlabelled], (4, 5)), model.labels_[unlabelled])
    assert report.old > 0.8
    assert report.old_against_new > 0.8
    assert (model.pseudo_labels_ >= 0).sum() == (model.labels_[unlabelled] >= 4).sum()


def test_sscds_own_detector_is_a_rival():
    options = {**LEARN, "method": "sscd", "pretrain_epochs": 20, "early_stopping": False}
    model = ClassDiscovery(**options, detector="softmax").fit(X, Y)
    assert model.old_share_interval_ == [0.0, 1.0], "it does not know"
    assert set(np.unique(model.novelty_)) <= {0.0, 1.0}
    assert "is not known" in mixture_sentence(model.to_run().config)
    with pytest.raises(ValueError, match="detector 'softmax' needs a stage 1"):
        ClassDiscovery(**{**options, "network": "none", "expansion": "none"}, detector="softmax").fit(X, Y)


def test_i_q_recordings_without_heads_are_sorted_by_their_neighbours():
    draw = np.random.default_rng(0)
    waves = np.sin(np.outer(1 + np.arange(4), np.linspace(0, 12, 64)))
    truth = np.arange(240) % 4
    iq = np.stack([waves[truth], waves[truth, ::-1]], axis=1) + draw.normal(0, 0.1, (240, 2, 64))
    y = np.where((truth < 3) & (draw.random(240) < 0.5), truth, -1)
    options = {**MIXED, "n_new_classes": 1, "label_epochs": 20, "expand_steps": 20}
    model = ClassDiscovery(**options).fit(iq.astype(np.float32), y)
    assert model.chosen_["lead"] == "labels"
    assert model.old_share_ == pytest.approx((truth[y < 0] < 3).mean(), abs=0.2)


@pytest.mark.filterwarnings("ignore::cdknet.data.checks.DoubtfulData")
def test_samples_far_from_everything_are_set_aside(tmp_path):
    odd = X.copy()
    rows = np.flatnonzero(Y < 0)[:3]
    odd[rows] = 500 * np.arange(1, 4)[:, None]
    model = ClassDiscovery(**MIXED).fit(odd, Y)
    assert np.flatnonzero(model.noise_).tolist() == rows.tolist()
    assert (model.labels_[rows] == -1).all()
    assert (model.confidence_[rows] == 0).all()
    run = read_run(model.save(tmp_path / "run"))
    assert run.label_names[rows].tolist() == ["noise"] * 3
    assert (run.class_index[rows] == NOISE).all()
    assert "3 set aside as noise" in mixture_sentence(run.config)
    again = ClassDiscovery.load(tmp_path / "run")
    np.testing.assert_array_equal(again.noise_, model.noise_)
    np.testing.assert_array_equal(again.labels_, model.labels_)
    assert not ClassDiscovery(**MIXED, noise=False).fit(odd, Y).noise_.any()
    names = np.where(Y < 0, "", np.array(["noise", "b", "c", "d", "e", "f"])[Y])
    named = ClassDiscovery(**MIXED).fit(odd, names)
    assert set(named.labels_[rows]) == {"noise-2"}, "a class of that name is no noise"


def test_a_saved_run_knows_the_mixture(model, tmp_path):
    again = ClassDiscovery.load(model.save(tmp_path / "run"))
    np.testing.assert_array_equal(again.novelty_, model.novelty_)
    np.testing.assert_array_equal(again.labels_, model.labels_)
    assert (again.old_share_, again.old_share_interval_) == (model.old_share_, model.old_share_interval_)
    run = read_run(tmp_path / "run")
    assert run.recognized.sum() == run.mixture["old"] == ((Y < 0) & (model.labels_ < 4)).sum()
    truth = tmp_path / "truth.csv"
    truth.write_text("id,label\n" + "".join(f"row {i},{c}\n" for i, c in enumerate(TRUTH)))
    scored = evaluate_run(tmp_path / "run", truth)
    assert scored.mixed.all == pytest.approx(scored.confidence.right)
    assert scored.mixed.auroc > 0.95
    assert scored.mixed.old_against_new > 0.95


def test_a_fit_that_was_killed_ends_as_one_that_was_not():
    problem = Problem.from_arrays(X, Y).with_spies(0.2, torch.Generator().manual_seed(0))
    options = resolved(PLUS, problem=problem)

    def discover(checkpoint):
        from cdknet.core.seeds import seeded
        from cdknet.methods import method_of
        from cdknet.nets.architectures import build_network

        with seeded(0):
            network = build_network((6,), 4, architecture="small")
        return method_of("cd-knet+").discover(network, problem, options, context_of(checkpoint=checkpoint))

    whole = discover(None)
    for die_at in (1, 3, 4, 5):
        checkpoint = MemoryCheckpoint(die_at)
        try:
            found = discover(checkpoint)
        except KeyboardInterrupt:
            found = discover(checkpoint)
        assert torch.equal(found.pseudo_labels, whole.pseudo_labels)
        assert torch.equal(found.mixture.p_old, whole.mixture.p_old)
        assert found.mixture.share == whole.mixture.share


@pytest.mark.filterwarnings("ignore::cdknet.data.checks.DoubtfulData")
def test_if_all_are_taken_to_be_new_nothing_is_said_of_a_mixture(tmp_path):
    model = ClassDiscovery(**FEW).fit(X, Y)
    assert model.old_share_ is None
    assert model.old_share_interval_ is None
    assert (model.labels_[Y < 0] >= 4).all()
    assert (model.novelty_[Y < 0] == 1).all()
    assert mixture_sentence(model.to_run().config) == ""


def test_a_sample_of_no_known_class_has_a_higher_novelty(model):
    strange = np.full((20, 6), 30.0, dtype=np.float32) + np.random.default_rng(0).normal(0, 0.4, (20, 6))
    assert np.median(model.novelty(strange)) > 0.5
    assert np.median(model.novelty(X)) < 0.1
    assert ((model.novelty(X) >= 0) & (model.novelty(X) <= 1)).all()


def test_the_interval_allows_for_the_errors_of_rehearsals():
    """A rehearsal that found .2 too much leaves room for .2 less; errors both ways do not cancel."""
    labels, targets = np.array([0, 1, 2, 2]), np.array([0, 1, -1, -1])
    pool = Mixture(*[torch.zeros(2)] * 4, 0.5, 0.45, 0.55, 20)
    verdict = Verdict(labels, *[np.zeros(4)] * 3, np.zeros((4, 1)), np.zeros(2), 1.0)
    for errors, interval in (([], [0.45, 0.55]), ([0.2], [0.3, 0.55]), ([0.2, -0.1], [0.3, 0.6])):
        tried = [{"share": 0.4, "found": 0.4 + error} for error in errors]
        facts = mixture_facts(pool, verdict, targets, Calibration(None, {"mixtures": tried}))
        assert facts["interval"] == pytest.approx(interval)
        assert (facts["old"], facts["new"], facts["noise"]) == (0, 2, 0)


# What is said.


def mixture(share=0.5, interval=(0.45, 0.55), old=50, new=50, noise=0, spies=20, tried=()):
    facts = {
        "share": share,
        "interval": list(interval),
        "old": old,
        "new": new,
        "noise": noise,
        "spies": spies,
    }
    return {"mixture": facts, "confidence": {"calibration": {"mixtures": list(tried)}}}


def test_the_sentence_on_the_mixture_gives_the_count_the_share_and_its_interval():
    said = mixture_sentence(mixture())
    assert said.startswith("50 of 100 unlabelled samples were recognised as old classes")
    assert "estimated at 50 % (between 45 % and 55 %)" in said
    assert "uncertain" not in said
    assert mixture_sentence(mixture(old=0, new=100, share=0, interval=(0, 0.004))).startswith("none of 100")
    assert "under 1 %" in mixture_sentence(mixture(share=0.004, interval=(0, 0.02)))


@pytest.mark.parametrize(
    "facts",
    [
        mixture(interval=(0.3, 0.6)),
        mixture(tried=[{"share": 0.5, "found": 0.3}]),
    ],
)
def test_what_is_uncertain_is_called_uncertain(facts):
    assert "uncertain" in mixture_sentence(facts)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_the_case_of_a_new_user(seed):
    """Digits 0-6 are known, half of them without a label; 7-9 are new."""
    digits = load_digits()
    draw = np.random.default_rng(seed)
    y = np.where((digits.target < 7) & (draw.random(len(digits.target)) < 0.5), digits.target, -1)
    few = {"view_steps": 40, "head_steps": 80, "expand_epochs": 1, "expand_steps": 60}
    model = ClassDiscovery(n_new_classes=3, random_state=seed, **few).fit(digits.images, y)
    unlabelled = y < 0
    truth = HiddenTruth(digits.target[unlabelled], (7, 8, 9))
    report = mixed_report(truth, model.labels_[unlabelled], model.novelty_[unlabelled])
    assert report.all >= 0.93
    assert report.old_against_new >= 0.95
    assert model.overall_confidence_ <= report.all + 0.08
    assert abs(model.old_share_ - (digits.target[unlabelled] < 7).mean()) < 0.05
