"""Counting new classes: the merge tree, and where old classes ask for it to be cut."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import is_valid_linkage
from sklearn.metrics import adjusted_rand_score

from cdknet import ClassDiscovery
from cdknet.cli import main
from cdknet.core.merging import MergeTree, merge_tree
from cdknet.runs.figures import draw_counts
from cdknet.runs.summary import count_sentence
from cdknet.trust.n_classes import LEVELS, Curve, Sighting, curve_of, read_off, summed_up

from contracts import blob_problem


def blobs(n_classes, per=120, gap=12.0, seed=0):
    draw = np.random.default_rng(seed)
    truth = np.repeat(np.arange(n_classes), per)
    centers = gap * np.eye(max(n_classes, 4))[:n_classes]
    return torch.from_numpy(
        (centers[truth] + draw.normal(size=(len(truth), max(n_classes, 4)))).astype("f4")
    ), truth


# The tree.


def test_the_tree_has_clusters_of_every_number_and_levels_that_never_rise():
    z, _ = blobs(4)
    tree = merge_tree(z)
    m = int(tree.micro.max()) + 1
    assert tree.pairs.shape == (m - 1, 2)
    assert (np.diff(tree.levels) <= 0).all()
    assert len(np.unique(tree.labels_at(np.inf))) == m
    assert len(np.unique(tree.labels_at(0.0))) == 1
    assert sorted(tree.pairs.ravel()) == list(range(2 * m - 2))  # every cluster but the last merges once
    assert is_valid_linkage(tree.linkage())
    assert tree.linkage()[-1, 3] == m


@pytest.mark.parametrize("n_classes", [2, 5, 9])
def test_blobs_are_found_at_any_level_below_that_of_their_halves(n_classes):
    z, truth = blobs(n_classes)
    labels = merge_tree(z).labels_at(0.05)
    assert adjusted_rand_score(truth, labels) == 1.0


@given(st.integers(0, 30), st.floats(0, 1))
def test_a_lower_level_only_merges(seed, level):
    """The clusters at a lower level are unions of those at a higher one."""
    draw = np.random.default_rng(seed)
    m = 6
    alive, pairs = list(range(m)), []
    for step in range(m - 1):
        a, b = sorted(draw.choice(alive, 2, replace=False).tolist())
        pairs.append((a, b))
        alive = [c for c in alive if c not in (a, b)] + [m + step]
    tree = MergeTree(np.arange(m), np.array(pairs), np.sort(draw.random(m - 1))[::-1])
    fine, coarse = tree.labels_at(level), tree.labels_at(level / 2)
    assert all(len(np.unique(coarse[fine == c])) == 1 for c in np.unique(fine))
    assert len(np.unique(fine)) == m - (tree.levels >= level).sum()


def test_samples_beyond_those_of_the_tree_join_the_nearest_micro_cluster(monkeypatch):
    monkeypatch.setattr("cdknet.core.merging.MOST_MERGED", 200)
    z, truth = blobs(3)
    tree = merge_tree(z)
    assert len(tree.micro) == len(z)
    assert adjusted_rand_score(truth, tree.labels_at(0.05)) == 1.0


# Where to cut it.


def sighting(n_old=4, n_new=3, n_hidden=2, seed=0):
    """Blobs. Half of the old samples have a label; classes 0 ... n_hidden - 1 are hidden in plain sight."""
    z, truth = blobs(n_old + n_new, seed=seed)
    is_old = truth < n_old
    labelled = is_old & (np.random.default_rng(seed).random(len(truth)) < 0.5)
    in_plain_sight = truth < n_hidden
    return Sighting(
        merge_tree(z),
        unlabelled=~labelled,
        p_new=np.where(labelled & ~in_plain_sight, 0.0, np.where(is_old & ~in_plain_sight, 0.02, 0.98)),
        hidden=np.where(labelled & in_plain_sight, truth, -1),
        visible=int((labelled & ~in_plain_sight).sum()),
    )


@pytest.mark.parametrize(("n_old", "n_new"), [(4, 3), (6, 1), (5, 8), (4, 0)])
def test_the_count_leaves_out_old_classes_whether_they_are_visible_or_hidden(n_old, n_new):
    curve = curve_of(sighting(n_old, n_new))
    assert curve.agreement.max() == 1.0
    assert read_off([curve]).value == n_new


def test_hidden_classes_are_not_new_where_the_share_of_old_samples_was_taken_for_smaller():
    """P(new) of .3 for old samples: fewer unlabelled ones of hidden classes are expected than there are."""
    seen = sighting(6, 3, n_hidden=3)
    seen = seen._replace(p_new=np.where(seen.p_new == 0.02, 0.3, seen.p_new))
    assert read_off([curve_of(seen)]).value == 3


def curve(agreement, numbers):
    return Curve(torch.tensor(agreement, dtype=torch.float64), torch.tensor(numbers))


def flat(number):
    """A curve that agrees with old classes between two levels, and counts `number` there."""
    n = len(LEVELS)
    middle = slice(n // 3, 2 * n // 3)
    agreement, numbers = np.full(n, 0.2), np.arange(n)
    agreement[middle], numbers[middle] = 1.0, number
    return curve(agreement.tolist(), numbers.tolist())


def test_the_number_is_read_where_old_classes_are_found_best():
    found = read_off([flat(5), flat(5)])
    assert (found.value, found.low, found.high) == (5, 5, 5)
    both = read_off([flat(4), flat(6)])
    assert (both.value, both.low, both.high) == (5, 4, 6)


def test_what_is_uncertain_is_called_uncertain():
    assert not summed_up([flat(5), flat(5)], [[0], [1]], 10).report["uncertain"]
    apart = summed_up([flat(4), flat(8)], [[0], [1]], 10)
    assert apart.report["uncertain"]
    assert "different numbers" in apart.report["reason"]
    few = summed_up([flat(5), flat(5)], [[0], [1]], 5)
    assert few.report["uncertain"]
    assert "only 5 old classes" in few.report["reason"]
    assert (few.low, few.high) == (4, 6), "no narrower than one class either way"
    assert summed_up([flat(0)], [[]], 3).low == 0


def test_without_hidden_classes_the_usual_levels_give_an_interval_and_a_warning():
    numbers = np.arange(len(LEVELS)) // 6
    found = summed_up([curve([0.0] * len(LEVELS), numbers.tolist())], [[]], 2)
    assert found.low < found.value < found.high
    assert "guess" in found.report["reason"]


# A whole fit without a number.

SHORT = {"view_steps": 40, "head_steps": 60, "expand_steps": 30, "expand_epochs": 1, "calibrate": False}


def mixed(n_old=6, n_new=3):
    """Blobs, half of the old samples without a label."""
    X, _, truth = blob_problem(n=540, n_old=n_old, n_new=n_new, d=10, seed=1)
    hidden = (truth >= n_old) | (np.random.default_rng(0).random(len(truth)) < 0.5)
    return X, np.where(hidden, -1, truth)


@pytest.fixture(scope="module")
def counted():
    return ClassDiscovery(random_state=0, **SHORT).fit(*mixed())


def test_a_fit_needs_no_number_of_new_classes(counted, tmp_path):
    low, high = counted.n_new_classes_interval_
    assert low <= counted.n_new_classes_ <= high
    assert low <= 3 <= high
    assert len(counted.classes_) == 6 + counted.n_new_classes_
    assert counted.spent_["count"] > 0
    counted.save(tmp_path / "run")
    loaded = ClassDiscovery.load(tmp_path / "run")
    assert loaded.n_new_classes is None
    assert loaded.n_new_classes_ == counted.n_new_classes_
    assert loaded.n_classes_report_ == counted.n_classes_report_
    np.testing.assert_array_equal(loaded.predict(mixed()[0]), counted.predict(mixed()[0]))


def test_the_report_names_the_hidden_classes_and_draws_the_curve(counted):
    report = counted.n_classes_report_
    assert sorted(name for names in report["hidden"] for name in names) == [str(c) for c in range(6)]
    assert draw_counts(report)[:4] == b"\x89PNG"
    assert "new classes" in count_sentence({"n_classes": report})


def test_a_given_number_is_not_questioned():
    X, y = mixed()
    model = ClassDiscovery(n_new_classes=2, random_state=0, **SHORT).fit(X, y)
    assert model.n_new_classes_ == 2
    assert model.n_new_classes_interval_ is None
    assert count_sentence({"n_classes": model.n_classes_report_}) == ""


def test_a_killed_count_is_resumed_to_the_same_bits(counted, tmp_path):
    def stop(row):
        raise KeyboardInterrupt

    settings = {"random_state": 0, **SHORT, "checkpoint_dir": tmp_path / "job"}
    with pytest.raises(KeyboardInterrupt):
        ClassDiscovery(**settings, watchers=[stop]).fit(*mixed())
    assert (tmp_path / "job" / "count-1.safetensors").exists()
    again = ClassDiscovery(**settings).fit(*mixed())
    assert again.n_classes_report_ == counted.n_classes_report_
    np.testing.assert_array_equal(again.labels_, counted.labels_)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "5 new classes found (probably between 4 and 6)"),
        ({"interval": [5, 5]}, "5 new classes found (both halves of the old classes say 5)"),
        ({"uncertain": True}, "between 4 and 6 new classes, perhaps 5"),
        ({"found": 0, "interval": [0, 1]}, "no new class found (between 0 and 1)"),
    ],
)
def test_a_sentence_says_no_more_than_is_known(changes, said):
    count = {"found": 5, "interval": [4, 6], "uncertain": False, "reason": "Because.", **changes}
    sentence = count_sentence({"n_classes": count})
    assert sentence.startswith(said)
    assert sentence.endswith("Because.")


def test_how_many_answers_that_alone(tmp_path, capsys):
    X, y = mixed()
    np.savez(tmp_path / "data.npz", X=X, y=y)
    picture = tmp_path / "counts.png"
    short = ["--view-steps", "20", "--head-steps", "20"]
    assert main(["how-many", str(tmp_path / "data.npz"), "--picture", str(picture), *short]) == 0
    said = capsys.readouterr().out
    assert "new classes" in said
    assert picture.read_bytes()[:4] == b"\x89PNG"
