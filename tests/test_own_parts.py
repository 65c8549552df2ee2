"""A user's own encoder, views and clusterer: how they are identified, and what they are passed."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch import nn

from cdknet import ClassDiscovery

from contracts import FEW, blob_problem

X, Y, TRUTH = blob_problem(n=80)


def encoder(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh())


def bent_by(function):
    """An encoder whose class name, layers and weights do not show what its forward pass does."""

    class Bent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = encoder(0)[0]

        def forward(self, x):
            return function(self.layer(x))

    return Bent()


def bent_in_a_method(function):
    """The same, by a method that `forward` calls."""

    class Bent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = encoder(0)[0]

        def bend(self, x):
            return function(x)

        def forward(self, x):
            return self.bend(self.layer(x))

    return Bent()


def called(by):
    """A class whose objects have no state, and differ only in what they do when called."""

    class Called:
        def __call__(self, x, generator):
            return by * x

    return Called


def first_half(z, n_clusters, seed):
    return np.arange(len(z)) * n_clusters // len(z)


def by_turns(z, n_clusters, seed):
    return np.arange(len(z)) % n_clusters


def louder(x, generator):
    return 1.1 * x


def softer(x, generator):
    return 0.9 * x


def scaled(by, power=1):
    return lambda x, generator: by * x**power


class Scaled:
    def __init__(self, by):
        self.by = by

    def __call__(self, x, generator):
        return self.by * x


def scaled_by(x, generator, by=1.0):
    return by * x


@pytest.mark.parametrize(
    "others",
    [
        ({"encoder": encoder(0)}, {"encoder": encoder(1)}),
        ({"encoder": encoder(0)}, {"encoder": encoder(0).requires_grad_(False)}),
        ({"encoder": bent_by(torch.relu)}, {"encoder": bent_by(torch.tanh)}),
        ({"clusterer": first_half}, {"clusterer": by_turns}),
        ({"clusterer": KMeans(2, random_state=0)}, {"clusterer": KMeans(2, random_state=1)}),
        ({"views": louder}, {"views": softer}),
        ({"views": louder}, {}),
        ({"views": eval("lambda x, g: 1.1 * x")}, {"views": eval("lambda x, g: 1.2 * x")}),
        ({"views": scaled(1.1)}, {"views": scaled(1.2)}),
        ({"views": scaled(np.float32(1.1))}, {"views": scaled(np.float32(1.2))}),
        ({"views": scaled(torch.ones(6))}, {"views": scaled(torch.zeros(6))}),
        ({"views": partial(scaled_by, by=1.1)}, {"views": partial(scaled_by, by=1.2)}),
        ({"views": Scaled(1.1)}, {"views": Scaled(1.2)}),
        ({"views": Scaled(1.1).__call__}, {"views": Scaled(1.2).__call__}),
        ({"views": called(1.1)()}, {"views": called(1.2)()}),
        (
            {"views": eval("lambda x, g: BY * x", {"BY": 1.1})},
            {"views": eval("lambda x, g: BY * x", {"BY": 1.2})},
        ),
        ({"encoder": bent_in_a_method(torch.relu)}, {"encoder": bent_in_a_method(torch.tanh)}),
    ],
    ids=[
        "weights",
        "frozen",
        "forward",
        "function",
        "options",
        "views",
        "none",
        "constants",
        "closures",
        "scalars",
        "tensors",
        "partials",
        "objects",
        "methods",
        "calls",
        "globals",
        "methods of encoders",
    ],
)
def test_a_checkpoint_is_not_resumed_with_another_part(others, tmp_path):
    first, second = others
    ClassDiscovery(**FEW, **first, checkpoint_dir=tmp_path).fit(X, Y)
    with pytest.raises(ValueError, match="Got another encoder, clusterer or views"):
        ClassDiscovery(**FEW, **second, checkpoint_dir=tmp_path).fit(X, Y)
    again = ClassDiscovery(**FEW, **first, checkpoint_dir=tmp_path).fit(X, Y)
    np.testing.assert_array_equal(
        again.predict_proba(X), ClassDiscovery(**FEW, **first).fit(X, Y).predict_proba(X)
    )


def test_a_frozen_encoder_and_one_that_learns_share_no_stage(tmp_path):
    options = {**FEW, "method": "cd-knet"}
    ClassDiscovery(**options, encoder=encoder(0).requires_grad_(False), stage_cache=tmp_path).fit(X, Y)
    shared = ClassDiscovery(**options, encoder=encoder(0), stage_cache=tmp_path).fit(X, Y)
    alone = ClassDiscovery(**options, encoder=encoder(0)).fit(X, Y)
    np.testing.assert_array_equal(shared.predict_proba(X), alone.predict_proba(X))


@pytest.mark.parametrize("method", ["cd-knet", "cd-knet+"])
def test_a_clusterer_gets_the_seed(method):
    seeds = []

    def ask(z, n_clusters, seed):
        seeds.append(seed)
        return by_turns(z, n_clusters, seed)

    ClassDiscovery(**{**FEW, "random_state": 123}, method=method, clusterer=ask).fit(X, Y)
    assert seeds == [123]


def test_a_clusterer_may_work_in_place():
    def clusterer(z, n_clusters, seed):
        labels = (z[:, 0] > np.median(z[:, 0])).astype(int)
        z -= 100
        return labels

    options = {**FEW, "method": "sscd", "expansion": "none", "normalize_features": False}
    model = ClassDiscovery(**options, clusterer=clusterer).fit(X, Y)
    z = model.transform(X[Y < 0])
    means = [z[model.pseudo_labels_ == c].mean(axis=0) for c in (0, 1)]
    np.testing.assert_allclose(model.model_.classifier.points[-2:], means, atol=1e-5)


def test_nothing_is_of_a_class_that_a_clusterer_left_empty(tmp_path):
    options = {**FEW, "method": "sscd", "expansion": "none", "n_new_classes": 3}
    model = ClassDiscovery(**options, clusterer=lambda z, k, seed: by_turns(z, 2, seed)).fit(X, Y)
    assert set(model.pseudo_labels_) == {0, 1}
    assert 5 not in model.predict(X)
    assert model.predict_proba(X)[:, -1].max() == 0
    loaded = ClassDiscovery.load(model.save(tmp_path / "run"))
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_an_encoder_sees_whole_batches():
    sizes = set()

    class Counting(nn.Module):
        def forward(self, x):
            if self.training:
                sizes.add(len(x))
            return x

    X, Y, _ = blob_problem(n=500)
    ClassDiscovery(**FEW, method="sscd", encoder=Counting(), batch_size=256).fit(X, Y)
    assert max(sizes) > 128


def test_an_encoder_with_nothing_on_top(tmp_path):
    """Features are the encoder's outputs: for methods that train nothing, where the encoder can be saved."""
    own = {"encoder": encoder(0), "network": "none"}
    with pytest.raises(ValueError, match="has nothing to train"):
        ClassDiscovery(**FEW, **own).fit(X, Y)
    model = ClassDiscovery(**FEW, **own, method="sscd", expansion="none", normalize_features=False).fit(X, Y)
    with torch.no_grad():
        expected = encoder(0)(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(model.transform(X), expected, atol=1e-6)
    loaded = ClassDiscovery.load(model.save(tmp_path / "run"), encoder=encoder(5))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
