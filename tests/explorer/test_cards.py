"""Cards: numbers equal their formulas, stay right when classes change, and hints find the groups."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_review import halves, resembled, steps

from cdknet.explorer.cards import CLOSE, Cards, divide, hints_of, kmeans, valley
from cdknet.explorer.review import REJECTED, Review, ReviewError, change_of, resolve
from cdknet.runs.format import read_run

from runmaker import make_run

GENERATOR = np.random.default_rng(0)
CENTERS = GENERATOR.normal(0, 2, (5, 4))
FEATURES = (CENTERS[np.arange(24) % 5] + GENERATOR.normal(0, 1, (24, 4))).astype(np.float32)
SURE = GENERATOR.uniform(0, 1, 24).astype(np.float32)


def review_of(labels, n_old=1) -> Review:
    m = int(np.max(labels)) + 1
    return Review.start(labels, [f"c{i}" for i in range(m)], n_old)


def cards_of(features, review) -> Cards:
    cards = Cards(np.asarray(features, np.float32), np.ones(len(features), np.float32))
    cards.update(review)
    return cards


def test_numbers_equal_their_formulas():
    review = review_of(np.arange(24) % 5)
    cards = cards_of(FEATURES, review)
    means = {c: FEATURES[np.arange(24) % 5 == c].astype(np.float64).mean(axis=0) for c in range(5)}
    for c in range(5):
        rows = np.flatnonzero(np.arange(24) % 5 == c)
        a = np.array([np.linalg.norm(FEATURES[i] - means[c]) for i in rows])
        d = {o: np.array([np.linalg.norm(FEATURES[i] - means[o]) for i in rows]) for o in range(5) if o != c}
        b = np.min(list(d.values()), axis=0)
        card = cards.card(c)
        np.testing.assert_array_equal(card.rows, rows)
        np.testing.assert_allclose(card.own, a, rtol=1e-4)
        np.testing.assert_allclose(card.cohesion, np.mean((b - a) / np.maximum(a, b)), rtol=1e-4)
        for other, share in card.shares.items():
            assert share == pytest.approx(np.mean(a / d[other] > CLOSE))
        assert cards.ordered(c, "central").tolist() == rows[np.argsort(a)].tolist()
        assert cards.outliers(c)[0] == rows[a.argmax()]


@given(st.lists(steps.filter(lambda s: not isinstance(s, str)), max_size=12))
def test_updated_cards_equal_newly_computed_cards(played):
    review = Review.start(np.arange(24) % 5, ["a", "b", "c", "new-1", "new-2"], 3)
    updated = Cards(FEATURES, SURE)
    updated.update(review)
    for step in played:
        for c in review.classes:
            updated.card(c)
            updated.hints(c, review)
        try:
            change = change_of(review, resolve(review, step, halves, resembled()))
        except ReviewError:
            continue
        change.apply(review)
        updated.update(review, change.touched)
    fresh = Cards(FEATURES, SURE)
    fresh.update(review)
    for c in review.classes:
        ours, theirs = updated.card(c), fresh.card(c)
        np.testing.assert_array_equal(ours.rows, theirs.rows)
        np.testing.assert_allclose(ours.own, theirs.own, rtol=1e-5)
        np.testing.assert_allclose(ours.ratio, theirs.ratio, rtol=1e-5)
        assert (ours.cohesion, ours.shares) == (theirs.cohesion, theirs.shares)
        assert updated.hints(c, review) == fresh.hints(c, review)
        assert updated.nearest_old(c, range(3)) == fresh.nearest_old(c, range(3))
    assert updated.rows(REJECTED).tolist() == np.flatnonzero(review.assignment == REJECTED).tolist()


def test_cards_far_from_a_change_are_not_computed_again():
    features = np.concatenate([np.random.default_rng(c).normal(20 * c, 1, (30, 3)) for c in range(4)])
    review = review_of(np.repeat(np.arange(4), 30))
    cards = cards_of(features, review)
    before = {c: cards.card(c) for c in range(4)}
    change = change_of(review, {"kind": "move", "samples": [119], "to": 2})  # one of class 3 goes to 2
    change.apply(review)
    cards.update(review, change.touched)
    assert cards.card(0) is before[0]
    assert cards.card(3) is not before[3]


@pytest.mark.parametrize("d", [2, 40])
@pytest.mark.parametrize("seed", range(4))
def test_hints_count_the_clusters_of_a_class(d, seed):
    generator = np.random.default_rng(seed)
    one = generator.normal(0, 1, (400, d))
    two = np.concatenate([generator.normal(0, 1, (250, d)), generator.normal(0, 1, (150, d)) + 8 / d**0.5])
    three = np.concatenate([two, generator.normal(0, 1, (200, d)) - 8 / d**0.5])
    far = generator.normal(100, 1, (50, d))
    for cluster, parts in ((one, 1), (two, 2), (three, 3)):
        points = np.concatenate([far, cluster])[np.random.default_rng(9).permutation(50 + len(cluster))]
        labels = (np.linalg.norm(points, axis=1) < 50 * d**0.5).astype(int)
        review = review_of(labels)
        hints = [h for h in cards_of(points, review).hints(1, review) if h.kind == "split"]
        assert [h.into for h in hints] == ([] if parts == 1 else [parts])
        assert all("%" in h.reason for h in hints)


def test_a_class_is_split_into_the_groups_of_its_hint():
    rng = np.random.default_rng(0)
    large, small = rng.normal(0, 1, (300, 4)), rng.normal(0, 0.5, (60, 4)) + np.array([9, 0, 0, 0])
    points = rng.permutation(np.concatenate([large, small]).astype(np.float32))
    parts = divide(points, 2, seed=0)
    np.testing.assert_array_equal(parts, points[:, 0] > 5)  # the largest first
    review = review_of(np.zeros(360, dtype=np.int64))
    reason = cards_of(points, review).hints(0, review)[0].reason
    assert "Groups of about 300, 60 samples" in reason
    assert len(set(divide(points, 3, seed=0).tolist())) == 3  # no hint of three groups: k-means


def test_the_largest_part_comes_first_though_a_hint_uses_only_some_samples():
    """Every other one of 4,000 is used: 1,100 left and 900 right, but 1,600 and 2,400 in total."""
    left = np.empty(4000, dtype=bool)
    left[::2], left[1::2] = np.arange(2000) < 1100, np.arange(2000) < 500
    points = np.random.default_rng(0).normal(0, 1, (4000, 4)) + np.where(left, -8, 8)[:, None]
    parts = divide(points.astype(np.float32), 2, seed=0)
    assert np.bincount(parts).tolist() == [2400, 1600]
    assert (parts[left] == 1).all()


def test_two_clusters_whose_samples_alternate_are_two_and_unlike_the_one_between_them():
    points = np.random.default_rng(0).normal(0, 1, (300, 3)) + np.array([-9, 0, 9])[np.arange(300) % 3, None]
    review = review_of(np.arange(300) % 3 % 2)
    cards = cards_of(points, review)
    assert [(h.kind, h.into) for h in cards.hints(0, review)] == [("split", 2)]
    assert cards.hints(1, review) == []


@pytest.mark.parametrize("seed", range(4))
def test_halves_of_one_cluster_get_a_merge_hint_and_two_clusters_do_not(seed):
    generator = np.random.default_rng(seed)
    cluster = generator.normal(0, 1, (600, 10))
    other = generator.normal(0, 1, (300, 10)) + 4
    points = np.concatenate([cluster, other])
    labels = np.concatenate([(cluster[:, 0] > 0).astype(int), np.full(300, 2)])
    review = review_of(labels)
    cards = cards_of(points, review)
    assert [h.other for h in cards.hints(0, review) if h.kind == "merge"] == [1]
    assert [h.other for h in cards.hints(1, review) if h.kind == "merge"] == [0]
    assert not [h for h in cards.hints(2, review) if h.kind == "merge"]


def test_valley_is_between_0_and_1():
    near, far = GENERATOR.normal(0, 1, (200, 3)), GENERATOR.normal(50, 1, (200, 3))
    assert valley(near, far) < 0.01
    assert valley(near[::2], near[1::2]) > 0.9
    assert valley(near, near) == 1.0


def test_kmeans_finds_separated_clusters_largest_first():
    sizes = (120, 70, 30)
    points = np.concatenate([GENERATOR.normal(10 * i, 1, (n, 5)) for i, n in enumerate(sizes)])
    found = kmeans(points.astype(np.float32), 3, seed=0)
    assert found.labels.tolist() == np.repeat([0, 1, 2], sizes).tolist()
    again = kmeans(points.astype(np.float32), 3, seed=0)
    np.testing.assert_array_equal(found.labels, again.labels)


def test_equal_samples_make_one_cluster():
    assert set(kmeans(np.ones((20, 3), np.float32), 3, seed=0).labels.tolist()) == {0}


def test_hints_on_a_run_leave_its_noise_out(tmp_path):
    """Noise far from everything would make the class that it was added to look like two."""
    run = read_run(make_run(tmp_path / "run", n=600, mixture=True))
    run.features[run.class_index == -1] += 40
    assert hints_of(run) == []
    noise = run.class_index == -1
    vars(run)["class_index"] = np.where(noise | (np.arange(600) % 25 == 4), 4, run.class_index)
    run.features[np.arange(600) % 25 == 4] += 40
    assert hints_of(run) == ["new-2 may be 2 classes"]
