"""Mixed problems: some samples of old classes lose their labels and join those of new classes."""

import numpy as np
import pytest

from cdknet.core.openworld import UNLABELED, OpenWorldProblem, hide_classes, mix


def problem(sizes=(40, 30, 50, 20), new=(2, 3), dtype=int):
    """Sample i is the number i, so that it can be followed."""
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(dtype)
    X = np.arange(len(y))[:, None]
    hidden = [np.asarray(c).astype(dtype).item() for c in new]
    train, truth = hide_classes(X, y, hidden)
    return OpenWorldProblem(train, truth, X, truth)


def unlabelled_old(mixed):
    """How many unlabelled samples are of old classes, and how many of new ones."""
    unlabelled = mixed.train.y.astype(str) == str(UNLABELED)
    return int((unlabelled & ~mixed.train_truth.is_new).sum()), int(
        (unlabelled & mixed.train_truth.is_new).sum()
    )


@pytest.mark.parametrize("labelled", [0.5, 0.1, 1.0])
def test_a_share_of_each_old_class_keeps_its_label(labelled):
    mixed = mix(problem(), labelled=labelled, seed=0)
    assert [(mixed.train.y == c).sum() for c in (0, 1)] == [round(40 * labelled), round(30 * labelled)]
    assert len(mixed.train.X) == 140, "without a share nothing is dropped"
    assert unlabelled_old(mixed) == (70 - round(40 * labelled) - round(30 * labelled), 70)


@pytest.mark.parametrize(
    ("share", "left"),
    [(0.0, (0, 70)), (0.2, (18, 70)), (1 / 3, (35, 70)), (0.5, (35, 35)), (0.8, (35, 9)), (None, (35, 70))],
)
def test_samples_are_dropped_until_the_share_is_exact(share, left):
    mixed = mix(problem(), share=share, seed=1)
    assert unlabelled_old(mixed) == left
    assert [(mixed.train.y == c).sum() for c in (0, 1)] == [20, 15], "labelled samples stay"


@pytest.mark.parametrize("dtype", [int, str])
@pytest.mark.parametrize("share", [None, 0.0, 0.5])
def test_no_label_of_a_new_class_is_shown_and_the_truth_stays_that_of_its_sample(dtype, share):
    before = problem(dtype=dtype)
    mixed = mix(before, share=share, seed=0)
    known = mixed.train.y.astype(str) != str(UNLABELED)
    assert (mixed.train.y[known] == mixed.train_truth.y[known]).all()
    assert not (known & mixed.train_truth.is_new).any()
    assert (mixed.train_truth.y == before.train_truth.y[mixed.train.X[:, 0]]).all()
    assert mixed.train_truth.new_classes == before.train_truth.new_classes
    assert mixed.n_new_classes == 2
    assert mixed.test_truth is before.test_truth


def test_the_same_seed_gives_the_same_problem_and_the_same_labels_for_every_share():
    first, again, other = (mix(problem(), share=0.3, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.train.X, again.train.X)
    assert np.array_equal(first.train.y, again.train.y)
    assert not np.array_equal(first.train.X, other.train.X)
    labelled = [
        mixed.train.X[mixed.train.y != UNLABELED]
        for mixed in (mix(problem(), share=share, seed=3) for share in (None, 0.0, 0.8))
    ]
    assert np.array_equal(labelled[0], labelled[1])
    assert np.array_equal(labelled[0], labelled[2])


def test_the_given_problem_is_left_as_it_is():
    before = problem()
    y = before.train.y.copy()
    mix(before, share=0.5, seed=0)
    assert np.array_equal(before.train.y, y)


def test_samples_of_one_group_keep_or_lose_their_labels_together():
    y = np.repeat([0, 1, 2], 40)
    train, truth = hide_classes(np.arange(120)[:, None], y, [2])
    groups = np.arange(120) // 2
    mixed = mix(OpenWorldProblem(train, truth, train.X, truth), seed=0, groups=groups)
    labelled = (mixed.train.y != UNLABELED).reshape(60, 2)
    assert (labelled[:, 0] == labelled[:, 1]).all()
    assert [(mixed.train.y == c).sum() for c in (0, 1)] == [20, 20]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"share": 1.0}, "share must be"),
        ({"share": 0.5, "labelled": 1.0}, "share must leave samples of new classes"),
        ({"labelled": 0.0}, "labelled must be above 0"),
    ],
)
def test_shares_outside_their_range_are_errors(changed, message):
    with pytest.raises(ValueError, match=message):
        mix(problem(), seed=0, **changed)
