"""Rivals on fixed features, on blobs whose classes are plain to see."""

import numpy as np
import pytest

from cdknet.core.metrics import named_right
from cdknet.core.openworld import UNLABELED
from experiments.reproduce.open_rivals import pim, ss_k_means, ss_k_means_on_samples

CENTERS = np.array([[4, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 0], [0, 0, 0, 4]], dtype=float)


def blobs(per_class=60, sizes=None, noise=0.4, seed=0):
    """Two old and two new blobs, half of the old samples labelled."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(4), sizes or [per_class] * 4))
    z = CENTERS[truth] + noise * rng.standard_normal((len(truth), 4))
    y = np.where((truth < 2) & (rng.random(len(truth)) < 0.5), truth, UNLABELED)
    return z.astype(np.float32), y, truth


@pytest.mark.parametrize("rival", [ss_k_means, ss_k_means_on_samples, pim])
def test_two_old_and_two_new_blobs_are_found(rival):
    z, y, truth = blobs()
    labels = rival(z, y, 2, 2, 0)
    assert labels.shape == y.shape
    assert set(labels.tolist()) == {0, 1, 2, 3}
    assert (labels[y != UNLABELED] == y[y != UNLABELED]).all()
    assert named_right(truth, labels, [0, 1]).mean() > 0.98


@pytest.mark.parametrize("rival", [ss_k_means, pim])
def test_one_seed_gives_one_answer_and_no_global_randomness_is_touched(rival):
    import torch

    z, y, _ = blobs(noise=1.5)
    before = torch.random.get_rng_state()
    assert np.array_equal(rival(z, y, 2, 2, 3), rival(z, y, 2, 2, 3))
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_labelled_sample_stays_in_its_class_wherever_it_is():
    z, y, truth = blobs()
    astray = np.flatnonzero(truth == 2)[0]
    y[astray] = 0  # labelled 0, though it is where class 2 is
    for rival in (ss_k_means, pim):
        assert rival(z, y, 2, 2, 0)[astray] == 0


def test_labelled_samples_pull_the_centre_of_their_class():
    """Class 0 is labelled on one side only; without labels its two halves would be two clusters."""
    z = np.array([[0.0], [0.2], [3.0], [3.2], [9.0], [9.2]], dtype=np.float32).repeat(20, axis=0)
    y = np.full(len(z), UNLABELED)
    y[:80] = 0
    labels = ss_k_means(z, y, 1, 1, 0)
    assert set(labels[80:].tolist()) == {1}


def test_long_samples_are_reduced_and_images_flattened():
    z, y, truth = blobs()
    images = np.zeros((len(z), 12, 12), dtype=np.float32)
    images[:, :2, :2] = z.reshape(-1, 2, 2)
    labels = ss_k_means_on_samples(images, y, 2, 2, 0)
    assert named_right(truth, labels, [0, 1]).mean() > 0.98


def test_without_unlabelled_old_samples_nothing_is_needed_of_them():
    z, y, truth = blobs()
    rows = (y != UNLABELED) | (truth > 1)
    labels = ss_k_means(z[rows], y[rows], 2, 2, 0)
    assert named_right(truth[rows], labels, [0, 1]).mean() > 0.98
