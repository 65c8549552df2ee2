"""Scores of a discovery: identities, small known cases, and protection of the hidden truth."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdknet.core.metrics import (
    ari,
    clustering_accuracy,
    confidence_scores,
    expected_calibration_error,
    match_clusters,
    new_class_confidence,
    new_class_scores,
    nmi,
    old_class_accuracy,
    open_world_report,
    purity,
    right_under_match,
)
from cdknet.core.openworld import HiddenTruth, OpenWorldData, hide_classes

label_lists = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*(st.lists(st.integers(0, 4), min_size=n, max_size=n) for _ in range(2)))
)


@given(label_lists)
def test_accuracy_is_the_best_over_all_renamings(pair):
    """The Hungarian answer equals trying every one-to-one match."""
    truth, labels = map(np.array, pair)
    best = max(
        np.mean(np.array(renaming)[labels] == truth) for renaming in itertools.permutations(range(5), 5)
    )
    assert clustering_accuracy(truth, labels) == pytest.approx(best)


@given(label_lists)
def test_purity_is_never_below_accuracy(pair):
    assert purity(*pair) >= clustering_accuracy(*pair)


@pytest.mark.parametrize("measure", [clustering_accuracy, purity, nmi, ari])
@given(pair=label_lists, seed=st.integers(0, 99))
def test_names_of_clusters_do_not_matter(measure, pair, seed):
    truth, labels = map(np.array, pair)
    names = np.random.default_rng(seed).permutation(5)
    assert measure(truth, names[labels]) == pytest.approx(measure(truth, labels))


def test_nmi_is_the_geometric_one():
    """I / sqrt(H H) as section VI.D defines it, not the arithmetic mean nor the adjusted one."""
    truth, labels = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 0, 1, 1, 1])
    joint = np.zeros((3, 2))
    np.add.at(joint, (truth, labels), 1 / 6)
    p, q = joint.sum(1), joint.sum(0)
    seen = joint > 0
    information = (joint[seen] * np.log(joint[seen] / np.outer(p, q)[seen])).sum()
    entropies = [-(d * np.log(d)).sum() for d in (p, q)]
    assert nmi(truth, labels) == pytest.approx(information / np.sqrt(entropies[0] * entropies[1]))


def test_one_class_split_in_two_costs_accuracy_and_not_purity():
    truth, labels = [0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2]
    assert purity(truth, labels) == 1
    assert clustering_accuracy(truth, labels) == pytest.approx(4 / 6)
    assert match_clusters(truth, labels)[2] == 1


def test_one_assignment_over_all_classes_punishes_the_name_of_another_class():
    """New class 2 is called 0, an old class: matched separately it would score 1, together it cannot."""
    truth = HiddenTruth(np.array([0, 0, 1, 1, 2, 2]), (2,))
    labels = np.array([0, 0, 1, 1, 0, 0])
    assert new_class_scores(truth, labels).acc == 1
    report = open_world_report(truth, labels)
    assert (report.all, report.old, report.new) == (pytest.approx(4 / 6), 1.0, 0.0)
    assert old_class_accuracy(truth, labels) == 1


def test_a_perfect_discovery_scores_one_everywhere():
    truth = HiddenTruth(np.array(["a", "b", "x", "y"]), ("x", "y"))
    report = open_world_report(truth, np.array(["a", "b", "new-2", "new-1"]))
    assert (report.all, report.old, report.new) == (1, 1, 1)
    assert tuple(report.new_scores) == (1, 1, 1, 1)
    assert report.matching == {"a": "a", "b": "b", "new-2": "x", "new-1": "y"}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: purity([0, 1], [0]), ValueError, "one length"),
        (lambda: nmi([], []), ValueError, "must not be empty"),
        (lambda: open_world_report(np.zeros(2), [0, 1]), TypeError, "must be a HiddenTruth"),
        (lambda: open_world_report(HiddenTruth(np.zeros(2), (0,)), [0]), ValueError, "one entry per sample"),
        (lambda: open_world_report(HiddenTruth(np.zeros(2), (5,)), [0, 1]), ValueError, "Got none"),
        (lambda: old_class_accuracy(HiddenTruth(np.zeros(2), (0,)), [0, 1]), ValueError, "old classes"),
    ],
)
def test_wrong_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


# Protection of the hidden truth


def test_hidden_truth_turns_into_no_array():
    with pytest.raises(TypeError, match="must only be given to"):
        np.asarray(HiddenTruth(np.arange(3), (2,)))


def test_hiding_keeps_every_sample_and_marks_only_the_new():
    X, y = np.arange(12).reshape(6, 2), np.array([3, 4, 5, 3, 4, 5])
    data, truth = hide_classes(X, y, [5])
    assert isinstance(data, OpenWorldData)
    assert data.y.tolist() == [3, 4, -1, 3, 4, -1]
    assert truth.is_new.tolist() == [False, False, True] * 2
    assert y.tolist() == [3, 4, 5, 3, 4, 5]
    names, _ = hide_classes(X, y.astype(str), ["5"])
    assert names.y.tolist() == ["3", "4", "-1", "3", "4", "-1"]


@pytest.mark.parametrize(
    ("classes", "message"), [([9], "must occur in y"), ([3, 4], "leave at least one"), ([], "at least one")]
)
def test_impossible_hidings_are_refused(classes, message):
    with pytest.raises(ValueError, match=message):
        hide_classes(np.zeros((2, 1)), np.array([3, 4]), classes)


# Confidence


def test_the_calibration_error_is_the_gap_of_confidence_and_truth():
    right = np.arange(100) % 4 > 0
    assert expected_calibration_error(np.full(100, 0.75), right) == pytest.approx(0)
    assert expected_calibration_error(np.full(100, 0.95), right) == pytest.approx(0.2)
    assert expected_calibration_error(np.where(right, 1.0, 0.0), right) == 0


@given(label_lists)
def test_right_is_meant_under_the_best_match(pair):
    assert right_under_match(*pair).mean() == pytest.approx(clustering_accuracy(*pair))


def test_right_ones_by_hand():
    """One-to-one: the samples of a cluster that has no class of its own are wrong."""
    assert (
        right_under_match([0, 0, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0]).tolist()
        == [True, True] + [False] + [True] * 3
    )
    assert right_under_match(["a", "a", "a"], [5, 5, 7]).tolist() == [True, True, False]


def test_confidence_against_the_truth():
    truth, labels = np.array([0, 0, 1, 1]), np.array([7, 7, 8, 7])
    found = confidence_scores(right_under_match(truth, labels), np.array([0.9, 0.8, 0.9, 0.2]))
    assert found.expected == pytest.approx(0.7)
    assert found.right == 0.75
    assert found.ranking == 1  # the wrong one is the least sure
    assert found.error == pytest.approx((0.2 + 0.2 + 0.2) / 4)
    assert confidence_scores(truth == truth, np.full(4, 0.5)).ranking is None


def test_only_new_classes_count_for_the_confidence_of_new_classes():
    truth = HiddenTruth(np.array([0, 1, 2, 2]), (2,))
    found = new_class_confidence(truth, np.array([5, 5, 9, 9]), np.array([0.0, 0.0, 1.0, 0.8]))
    assert (found.expected, found.right) == (pytest.approx(0.9), 1)
    with pytest.raises(TypeError, match="HiddenTruth"):
        new_class_confidence(np.array([0, 1]), np.array([0, 1]), np.ones(2))
