"""The slices of a transmission vote for its class."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cdknet.radio import vote


def scores(n: int = 12, c: int = 4):
    return arrays(float, (n, c), elements=st.floats(-30, 0))


@given(scores(), st.lists(st.sampled_from("abc"), min_size=12, max_size=12), st.randoms())
def test_the_vote_is_the_mean_log_probability_whatever_the_order(log_proba, groups, random):
    names, voted = vote(log_proba, groups)
    assert names.tolist() == sorted(set(groups))
    for name, row in zip(names, voted, strict=True):
        mean = log_proba[np.array(groups) == name].mean(axis=0)
        np.testing.assert_allclose(row - row[0], mean - mean[0], atol=1e-9)
    np.testing.assert_allclose(np.exp(voted).sum(axis=1), 1)
    order = list(range(12))
    random.shuffle(order)
    np.testing.assert_allclose(vote(log_proba[order], np.array(groups)[order])[1], voted, atol=1e-9)


def test_a_group_of_one_slice_is_the_slice_itself():
    p = np.log([[0.2, 0.8], [0.9, 0.1]])
    names, voted = vote(p, ["b", "a"])
    np.testing.assert_allclose(voted, p[::-1])
    assert names.tolist() == ["a", "b"]


def test_one_impossible_class_stays_impossible():
    with np.errstate(divide="ignore"):
        p = np.log([[0.0, 1.0], [0.5, 0.5]])
    np.testing.assert_array_equal(np.exp(vote(p, ["a", "a"])[1]), [[0, 1]])


@pytest.mark.parametrize(
    ("log_proba", "groups", "says"),
    [
        (np.zeros(3), ["a"] * 3, "must be"),
        (np.zeros((3, 2)), ["a"] * 2, "must be"),
        (np.full((1, 2), np.nan), ["a"], "NaN"),
        (np.full((1, 2), -np.inf), ["a"], "'a'"),
    ],
)
def test_wrong_input_is_refused(log_proba, groups, says):
    with pytest.raises(ValueError, match=says):
        vote(log_proba, groups)
