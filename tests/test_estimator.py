"""ClassDiscovery: what a user of scikit-learn expects, and what this one promises on top."""

import inspect

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.cluster import AgglomerativeClustering
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from cdknet import ClassDiscovery, estimators
from cdknet.core.metrics import clustering_accuracy, new_class_scores
from cdknet.core.openworld import hide_classes
from cdknet.data.checks import DoubtfulData
from cdknet.inputs.labels import encode_labels, new_names
from cdknet.options import METHODS as ALL_METHODS
from cdknet.options import all_options, options_of
from experiments.reproduce.plan import METHODS

from contracts import blob_problem

X, Y, TRUTH = blob_problem()
QUICK = {
    "n_new_classes": 2,
    "unlabelled": "new",
    "method": "cd-knet",
    "expand_steps": 80,
    "pretrain_epochs": 8,
    "discover_epochs": 6,
    "expand_epochs": 8,
    "calibrate": False,
    "random_state": 0,
}
PLUS = {**QUICK, "method": "cd-knet+", "view_steps": 3, "head_steps": 3, "expand_epochs": 1}


@pytest.fixture(scope="module")
def fitted():
    return ClassDiscovery(**QUICK).fit(X, Y)


def test_every_option_has_one_default():
    facade = inspect.signature(ClassDiscovery).parameters
    shown = {name: one.default for name, one in all_options().items() if name in facade}
    assert {name: facade[name].default for name in shown} == shown
    apart = {"encoder", "clusterer", "random_state", "device", "checkpoint_dir", "stage_cache", "watchers"}
    assert set(facade) - set(shown) == apart | {"method", "options"}
    assert len(facade) < 25, "what a user would turn; the others by name, for experiments"


@pytest.mark.parametrize("kind", [c for c in vars(estimators).values() if hasattr(c, "of_method")])
def test_a_methods_own_class_has_its_own_parameters_and_no_others(kind):
    declared = {name: one.default for name, one in options_of(kind.of_method).items()}
    params = kind().get_params()
    assert {name: params[name] for name in declared} == declared
    assert params.keys() - declared.keys() == estimators.BESIDE.keys()
    assert clone(kind(n_new_classes=3)).n_new_classes == 3
    with pytest.raises(TypeError, match="has no parameter 'kmeans_restart'"):
        kind(kmeans_restart=3)


def test_every_method_has_a_class_that_fits_as_the_door_does(tmp_path):
    kinds = {c.of_method: c for c in vars(estimators).values() if hasattr(c, "of_method")}
    assert kinds.keys() == ALL_METHODS.keys()
    few = {
        name: value for name, value in QUICK.items() if name in options_of("dec") or name == "random_state"
    }
    own = kinds["dec"](**few).fit(X, Y)
    door = ClassDiscovery(**few, method="dec").fit(X, Y)
    np.testing.assert_array_equal(own.predict_proba(X), door.predict_proba(X))
    again = kinds["dec"].load(own.save(tmp_path / "run"))
    np.testing.assert_array_equal(again.predict_proba(X), own.predict_proba(X))
    assert again.get_params()["discover_epochs"] == own.discover_epochs
    with pytest.raises(ValueError, match=r"SSCD reads runs of method 'sscd'.*ClassDiscovery\.load"):
        kinds["sscd"].load(tmp_path / "run")


def test_options_for_experiments_are_parameters_like_the_others():
    model = ClassDiscovery(n_new_classes=2, view_steps=7)
    assert clone(model).get_params()["view_steps"] == 7
    assert model.set_params(view_steps=8, head_steps=9).checked_params()["view_steps"] == 8
    assert "view_steps" not in ClassDiscovery().get_params()
    with pytest.raises(TypeError, match=r"no parameter 'view_stepz'\. Did you mean 'view_steps'\?"):
        ClassDiscovery(view_stepz=3)
    with pytest.raises(ValueError, match="Invalid parameter 'nothing'"):
        model.set_params(nothing=1)


def test_what_auto_came_to_is_kept_with_the_run(fitted, tmp_path):
    assert fitted.chosen_ == {"network": "mlp", "precision": "float32"}  # the paper's method, exactly
    assert ClassDiscovery.load(fitted.save(tmp_path / "run")).chosen_ == fitted.chosen_
    short = {"n_new_classes": 2, "view_steps": 2, "head_steps": 2, "expansion": "none", "calibrate": False}
    plus = ClassDiscovery(**short, precision="bfloat16").fit(X, Y)
    assert plus.chosen_ == {
        "network": "small",
        "precision": "bfloat16",
        "views": "vectors",
        "lead": "views",
    }


def test_new_classes_are_found_named_and_predicted(fitted):
    assert fitted.classes_.tolist() == [0, 1, 2, 3, 4]
    assert fitted.n_new_classes_ == 2
    known = Y >= 0
    assert np.array_equal(fitted.labels_[known], Y[known])
    assert set(fitted.labels_[~known]) <= {3, 4}
    assert clustering_accuracy(TRUTH, fitted.labels_) > 0.95
    X_later, _, truth_later = blob_problem(n=100, seed=0)
    assert clustering_accuracy(truth_later, fitted.predict(X_later)) > 0.9


def test_probabilities_agree_with_predictions_and_features_with_embedding(fitted):
    probabilities = fitted.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert np.array_equal(fitted.classes_[probabilities.argmax(axis=1)], fitted.predict(X))
    np.testing.assert_array_equal(fitted.transform(X), fitted.embedding_)
    np.testing.assert_array_equal(fitted.transform(X, stage="expand"), fitted.embedding_)
    assert fitted.transform(X, stage="pretrain").shape == (240, 128)
    assert fitted.embedding_.shape == (240, 160)


def test_every_intermediate_can_be_had(fitted):
    assert fitted.pseudo_labels_.shape == ((Y < 0).sum(),)
    assert fitted.spectral_embedding_.shape == (len(fitted.spectral_rows_), 5)
    assert [row["stage"] for row in fitted.history_][:: len(fitted.history_) - 1] == ["pretrain", "expand"]
    assert set(fitted.stage_networks_) == {"pretrain", "discover", "expand"}
    ours = ClassDiscovery(**{**QUICK, "method": "cd-knet+", "view_steps": 2, "head_steps": 2}).fit(X, Y)
    assert set(ours.stage_networks_) == {"discover", "expand"}
    with pytest.raises(ValueError, match="which has no stage 1"):
        ours.transform(X, stage="pretrain")


def test_the_same_seed_gives_the_same_bits(fitted):
    again = ClassDiscovery(**QUICK).fit(X, Y)
    np.testing.assert_array_equal(again.embedding_, fitted.embedding_)
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    other = ClassDiscovery(**{**QUICK, "random_state": 1}).fit(X, Y)
    assert not np.array_equal(other.embedding_, fitted.embedding_)


def test_shuffling_the_hidden_truth_changes_nothing():
    """The wall: only metrics can tell two hidings apart whose hidden classes are permuted."""
    generator = np.random.default_rng(0)
    shuffled = TRUTH.copy()
    hidden = TRUTH >= 3
    shuffled[hidden] = generator.permutation(TRUTH[hidden])
    fits, scores = [], []
    for labels in (TRUTH, shuffled):
        data, truth = hide_classes(X, labels, [3, 4])
        fits.append(ClassDiscovery(**QUICK).fit(data.X, data.y))
        scores.append(new_class_scores(truth, fits[-1].labels_).acc)
    np.testing.assert_array_equal(fits[0].predict_proba(X), fits[1].predict_proba(X))
    np.testing.assert_array_equal(fits[0].embedding_, fits[1].embedding_)
    assert scores[0] > scores[1]


def test_no_stage_takes_the_truth():
    data, truth = hide_classes(X, TRUTH, [3, 4])
    with pytest.raises(TypeError, match="must not see HiddenTruth"):
        ClassDiscovery(**QUICK).fit(data.X, truth)


def test_the_callers_arrays_and_generators_are_untouched():
    x, y = X.copy(), Y.copy()
    x.flags.writeable = y.flags.writeable = False
    torch.manual_seed(1)
    expected = torch.rand(2)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    ClassDiscovery(**{**QUICK, "random_state": None, "pretrain_epochs": 1, "discover_epochs": 1}).fit(x, y)
    assert torch.equal(torch.rand(2), expected)
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002


@pytest.mark.parametrize(
    "kind", ["list", "float64", "tensor", "memmap", "uint8", "grey image", "colour image", "I/Q"]
)
def test_samples_of_many_kinds_go_in(kind, tmp_path):
    generator = np.random.default_rng(0)
    y = np.arange(40) % 4
    images = (40 * y[:, None, None, None] + generator.integers(0, 30, (40, 3, 12, 12))).astype(np.uint8)
    samples = {
        "list": images[:, 0, 0].tolist(),
        "float64": images[:, 0, 0].astype(np.float64),
        "tensor": torch.from_numpy(images[:, 0, 0]).float(),
        "uint8": images[:, 0, 0],
        "grey image": images[:, 0],
        "colour image": images,
        "I/Q": images.reshape(40, -1)[:, :80].reshape(40, 2, 40).astype(np.float32),
    }
    if kind == "memmap":
        np.save(tmp_path / "x.npy", images)
        data = np.load(tmp_path / "x.npy", mmap_mode="r")
    else:
        data = samples[kind]
    tiny = {"pretrain_epochs": 1, "discover_epochs": 1, "expand_epochs": 1, "feature_size": 8}
    model = ClassDiscovery(**{**QUICK, **tiny}).fit(data, np.where(y < 2, y, -1))
    assert model.predict(data[:5]).shape == (5,)


def test_names_as_labels_and_new_names_that_no_old_class_has():
    y = np.where(Y < 0, "-1", np.array(["new-1", "cat", "dog"])[Y])
    model = ClassDiscovery(**QUICK).fit(X, y)
    assert model.classes_.tolist() == ["cat", "dog", "new-1", "new-2", "new-3"]
    assert set(model.predict(X)) <= set(model.classes_)
    mixed = np.array([str(v) if v != "-1" else -1 for v in y], dtype=object)
    np.testing.assert_array_equal(ClassDiscovery(**QUICK).fit(X, mixed).labels_, model.labels_)


def test_names_of_new_classes():
    assert new_names(np.array([3, 7]), 2).tolist() == [8, 9]
    assert new_names(np.array(["new-2", "a"]), 3).tolist() == ["new-1", "new-3", "new-4"]
    labels = encode_labels([5.0, -1.0, 9.0], 3)
    assert (labels.old_classes.tolist(), labels.targets.tolist()) == ([5, 9], [0, -1, 1])


@pytest.mark.parametrize("expansion", ["none", "last", "all"])
def test_every_expansion_predicts_old_and_new(expansion):
    model = ClassDiscovery(**{**QUICK, "expand_epochs": 30}, expansion=expansion).fit(X, Y)
    assert clustering_accuracy(TRUTH, model.predict(X)) > 0.9
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_one_contract(method, tmp_path):
    """The rows of the paper's tables, ours and rivals: fit, labels_, predict, history_, save and load."""
    short = {**PLUS, "pretrain_epochs": 3, "discover_epochs": 2, "expand_steps": 20, "min_subsample": 100}
    model = ClassDiscovery(**{**short, **METHODS[method]}).fit(X, Y)
    assert model.labels_.shape == (len(X),)
    np.testing.assert_array_equal(model.labels_[Y >= 0], Y[Y >= 0])
    assert set(model.labels_[Y < 0]) <= set(model.classes_[3:])
    assert len(model.classes_) == 5
    assert model.predict(X[:7]).shape == (7,)
    assert model.predict_proba(X).shape == (len(X), 5)
    assert all({"stage", "epoch", "seconds"} <= row.keys() for row in model.history_)
    loaded = ClassDiscovery.load(model.save(tmp_path / "run"))
    np.testing.assert_allclose(loaded.predict_proba(X), model.predict_proba(X), atol=1e-6)
    np.testing.assert_array_equal(loaded.labels_, model.labels_)
    again = ClassDiscovery(**{**short, **METHODS[method]}).fit(X, Y)
    np.testing.assert_array_equal(again.labels_, model.labels_)


def test_samples_as_they_are_and_on_their_main_axes():
    from sklearn.decomposition import PCA

    bare = {**QUICK, **METHODS["k-means"]}
    np.testing.assert_array_equal(ClassDiscovery(**bare).fit(X, Y).transform(X), X)
    axes = ClassDiscovery(**{**bare, "network": "pca", "feature_size": 2}).fit(X, Y).transform(X)
    np.testing.assert_allclose(np.abs(axes), np.abs(PCA(2).fit_transform(X)), atol=1e-3)


@pytest.mark.parametrize("what", ["code", "arithmetic"])
def test_stages_that_were_made_otherwise_are_not_shared(what, tmp_path, monkeypatch):
    options = {**QUICK, "precision": "fastest", "stage_cache": tmp_path}
    monkeypatch.setattr("cdknet.fit.plan.has_bfloat16", lambda device: False)
    ClassDiscovery(**options).fit(X, Y)
    kept = set(tmp_path.iterdir())
    ClassDiscovery(**options).fit(X, Y)
    assert set(tmp_path.iterdir()) == kept
    if what == "code":
        monkeypatch.setattr("cdknet.fit.checkpoint.learning_code", lambda: "another")
    else:
        monkeypatch.setattr("cdknet.fit.plan.has_bfloat16", lambda device: True)
    ClassDiscovery(**options).fit(X, Y)
    assert len(set(tmp_path.iterdir()) - kept) == len(kept)


def test_a_stage_that_two_fits_share_is_trained_once(tmp_path):
    first = ClassDiscovery(**QUICK, stage_cache=tmp_path).fit(X, Y)
    second = ClassDiscovery(**{**QUICK, "expansion": "last"}, stage_cache=tmp_path).fit(X, Y)
    alone = ClassDiscovery(**{**QUICK, "expansion": "last"}).fit(X, Y)
    np.testing.assert_array_equal(second.predict_proba(X), alone.predict_proba(X))
    learned = [[r for r in m.history_ if r["stage"] != "expand"] for m in (first, second)]
    assert learned[0] == learned[1]  # to the second it took
    ClassDiscovery(**{**QUICK, "label_weight": 1.0}, stage_cache=tmp_path).fit(X, Y)
    kept = sorted(p.name.split("-")[0] for p in tmp_path.iterdir())
    assert kept == ["cluster"] * 2 + ["discover"] * 2 + ["pretrain"]


@pytest.mark.parametrize(
    ("options", "readouts", "learned"),
    [
        (PLUS, ("agreed", "heads", "k-means"), ["discover"]),
        ({**QUICK, "method": "cd-knet"}, ("agreed", "spectral", "k-means"), ["discover", "pretrain"]),
    ],
)
def test_features_that_are_cut_in_two_ways_are_learned_once(options, readouts, learned, tmp_path):
    options = {**options, "expansion": "none"}
    for readout in readouts:
        shared = ClassDiscovery(**options, readout=readout, stage_cache=tmp_path).fit(X, Y)
        alone = ClassDiscovery(**options, readout=readout).fit(X, Y)
        np.testing.assert_array_equal(shared.predict_proba(X), alone.predict_proba(X))
    assert sorted(p.name.split("-")[0] for p in tmp_path.iterdir()) == ["cluster"] * 3 + learned


@pytest.mark.parametrize(
    ("method", "by_default", "another"), [("cd-knet", "k-means", "agreed"), ("cd-knet+", "agreed", "k-means")]
)
def test_each_method_has_a_readout_of_its_own_by_default(method, by_default, another, tmp_path):
    options = {**QUICK, **PLUS, "method": method, "expansion": "none", "stage_cache": tmp_path}
    plain, asked = (ClassDiscovery(**options, readout=r).fit(X, Y) for r in (None, by_default))
    np.testing.assert_array_equal(plain.predict_proba(X), asked.predict_proba(X))
    other = ClassDiscovery(**options, readout=another).fit(X, Y)
    assert not np.array_equal(other.predict_proba(X), plain.predict_proba(X))


def test_cd_knet_plus_has_its_features_on_the_sphere_whatever_is_asked(tmp_path):
    asked = {**PLUS, "expansion": "none", "readout": "k-means"}
    model = ClassDiscovery(**asked, normalize_features=False).fit(X, Y)
    same = ClassDiscovery(**asked).fit(X, Y).predict_proba(X)
    np.testing.assert_array_equal(model.predict_proba(X), same)
    loaded = ClassDiscovery.load(model.save(tmp_path / "run"))
    np.testing.assert_array_equal(loaded.predict_proba(X), same)


def test_without_stage_3_labels_are_what_stage_2_found():
    """New samples amid an old class: a vote of all neighbours says nothing about which new one they are."""
    generator = np.random.default_rng(0)
    old = generator.normal(size=(400, 3))
    new = np.array([[0.02, 0, 0], [-0.02, 0, 0]])[np.arange(40) % 2] + generator.normal(0, 1e-4, (40, 3))
    x = np.concatenate([old, old + 50, new]).astype(np.float32)
    y = np.repeat([0, 1, -1], [400, 400, 40])
    for method in ("sscd", "spectral"):
        options = {**QUICK, **METHODS["k-means"], "method": method}
        model = ClassDiscovery(**options).fit(x, y)
        np.testing.assert_array_equal(model.labels_[y < 0], model.classes_[2:][model.pseudo_labels_])
        assert clustering_accuracy(np.arange(40) % 2, model.labels_[y < 0]) == 1


def test_what_cannot_grow_is_said_before_the_training():
    seen = []
    with pytest.raises(ValueError, match=r"Got BatchNorm1d in it\. Use network='paper'"):
        ClassDiscovery(**{**PLUS, "expansion": "all"}, watchers=[seen.append]).fit(X, Y)
    assert not seen


def test_heads_that_are_not_there_cannot_be_read():
    with pytest.raises(ValueError, match="readout 'heads' needs heads"):
        ClassDiscovery(**PLUS, readout="heads", heads=0).fit(X, Y)
    seen = []
    with pytest.raises(ValueError, match="which method 'cd-knet' has none of"):
        ClassDiscovery(**{**QUICK, "method": "cd-knet"}, readout="heads", watchers=[seen.append]).fit(X, Y)
    assert not seen


def test_baselines_do_not_mind_samples_far_from_the_origin():
    for method in ("k-means", "spectral"):
        options = {**QUICK, **METHODS[method], "network": "none"}
        near, far = (ClassDiscovery(**options).fit(X + offset, Y) for offset in (0, 3000))
        assert clustering_accuracy(near.predict(X), far.predict(X + 3000)) > 0.99


def test_what_is_not_known_among_names():
    for blank in (float("nan"), None, "", " "):
        labels = encode_labels(["a", "b", blank, "a"], 4)
        assert labels.old_classes.tolist() == ["a", "b"]
        assert labels.targets.tolist() == [0, 1, -1, 0]
    with pytest.raises(ValueError, match="below 2"):
        encode_labels(np.array([0, 2**64 - 1], dtype=np.uint64), 2)


def test_samples_in_odd_containers(fitted):
    hidden = np.ma.masked_greater(X, X.mean())
    with pytest.raises(ValueError, match="Got masked ones"):
        fitted.predict(hidden)
    np.testing.assert_array_equal(fitted.predict(np.ma.masked_array(X)), fitted.predict(X))
    short = torch.from_numpy(X).bfloat16()
    np.testing.assert_array_equal(fitted.predict(short), fitted.predict(short.float()))


def test_class_names_with_line_ends_are_read_back(tmp_path):
    names = np.array(["a\rb", 'c"\n', "plain", "-1"])[np.where(Y >= 0, Y, 3)]
    with pytest.warns(DoubtfulData, match="nobody can see"):
        model = ClassDiscovery(**{**QUICK, "expand_epochs": 1, "expand_steps": 0}).fit(X, names)
    loaded = ClassDiscovery.load(model.save(tmp_path / "run"))
    assert loaded.labels_.tolist() == model.labels_.tolist()


class OwnEncoder(nn.Module):
    """A user's network: any module from a batch to rows."""

    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(6, 32)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x):
        return torch.tanh(self.norm(self.lift(x)))


def test_a_users_own_encoder(tmp_path):
    torch.manual_seed(0)
    encoder = OwnEncoder()
    before = encoder.lift.weight.clone()
    model = ClassDiscovery(**QUICK, encoder=encoder).fit(X, Y)
    assert torch.equal(encoder.lift.weight, before)
    assert clustering_accuracy(TRUTH, model.labels_) > 0.9
    model.save(tmp_path / "run")
    with pytest.raises(ValueError, match="encoder of your own"):
        ClassDiscovery.load(tmp_path / "run")
    loaded = ClassDiscovery.load(tmp_path / "run", encoder=OwnEncoder())
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_a_frozen_encoder_is_left_as_it_is():
    torch.manual_seed(0)
    encoder = OwnEncoder().eval().requires_grad_(False)
    model = ClassDiscovery(**QUICK, encoder=encoder).fit(X, Y)
    trained = model.stage_networks_["expand"].trunk.state_dict()
    assert all(torch.equal(v, trained[k]) for k, v in encoder.state_dict().items())


def test_precomputed_embeddings_are_an_ordinary_input():
    """512-dimensional unit vectors, as a pretrained network would give."""
    generator = np.random.default_rng(0)
    y = np.arange(300) % 6
    Z = generator.normal(size=(6, 512))[y] + generator.normal(0, 1.0, (300, 512))
    Z = (Z / np.linalg.norm(Z, axis=1, keepdims=True)).astype(np.float32)
    model = ClassDiscovery(**{**QUICK, "n_new_classes": 3}).fit(Z, np.where(y < 3, y, -1))
    assert model.blueprint_.architecture == "mlp"
    assert clustering_accuracy(y, model.labels_) > 0.9
    quick = {**QUICK, "n_new_classes": 3, "method": "cd-knet+", "view_steps": 60, "head_steps": 40}
    model = ClassDiscovery(**quick).fit(Z, np.where(y < 3, y, -1))
    assert model.blueprint_.architecture == "small"
    assert clustering_accuracy(y, model.labels_) > 0.9


def test_it_can_be_cloned_set_and_put_into_a_pipeline():
    model = clone(ClassDiscovery(**QUICK)).set_params(label_weight=0.0)
    assert model.get_params()["label_weight"] == 0
    pipeline = make_pipeline(StandardScaler(), model).fit(X, Y)
    assert pipeline.predict(X).shape == (240,)
    with_clusterer = clone(ClassDiscovery(**QUICK, clusterer=AgglomerativeClustering(2)))
    assert set(with_clusterer.fit(X, Y).pseudo_labels_) == {0, 1}


def test_views_of_the_users_own_are_used_and_do_not_stop_saving(tmp_path):
    seen = []

    def own(x, generator):
        seen.append(len(x))
        return x

    plus = {**QUICK, "method": "cd-knet+", "view_steps": 5, "head_steps": 5}
    model = ClassDiscovery(**plus, views=own).fit(X, Y)
    assert seen
    assert ClassDiscovery.load(model.save(tmp_path / "run")).views == "auto"


def test_watchers_see_every_epoch():
    rows = []
    model = ClassDiscovery(**QUICK, watchers=[rows.append]).fit(X, Y)
    assert rows == model.history_


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.where(np.arange(240)[:, None] == 7, np.nan, X)}, "NaN in row 7"),
        ({"y": np.where(Y < 0, -1, 0)}, "at least 2 old classes. Got one class"),
        ({"y": np.full(240, -1)}, "Got no labelled sample"),
        ({"y": np.abs(Y)}, "must mark unlabelled samples"),
        ({"X": X[:4], "y": np.array([0, 1, -1, -1])}, "more samples than classes"),
        ({"y": np.where(np.arange(240) < 1, -1, np.abs(Y))}, "at most the number of unlabelled"),
        ({"n_new_classes": 0}, "n_new_classes must be at least 1. Got 0"),
        ({"n_new_classes": None, "clusterer": lambda X, k, seed: None}, "must be set with a clusterer"),
        ({"y": Y[:5]}, r"one label per sample \(240\). Got 5"),
        ({"X": X[:0], "y": Y[:0]}, "must not be empty"),
        ({"X": X.astype(object) + 1j}, "must hold numbers|real|complex"),
        ({"X": np.array([["a"] * 6] * 240, dtype=object)}, "must hold numbers"),
        ({"y": np.full(240, 0.5)}, "Unknown label type"),
        ({"y": np.full(240, -7)}, "must hold classes >= 0"),
        ({"y": None}, "y to be passed"),
        ({"y": np.array([["a", 1]] * 240, dtype=object)}, "one-dimensional"),
        ({"network": "resnet"}, "network must be one of"),
        ({"expansion": "last-tow"}, "Did you mean 'last-two'"),
        ({"label_weight": -1}, "label_weight must be at least 0"),
        ({"subsample": 0.0}, "subsample must be above 0"),
        ({"device": "toaster"}, "device must be auto"),
        ({"device": "cuda:99"}, "and be there. Got 'cuda:99'"),
        ({"views": "colour", "method": "dac"}, "views='colour' must suit"),
        ({"random_state": -1}, "random_state must be"),
        ({"encoder": "resnet"}, "encoder must be a torch"),
        ({"clusterer": 5}, "clusterer must have fit_predict"),
        ({"network": "none"}, "network='none' has nothing to train: it needs method 'sscd'"),
        ({"network": "pca", "method": "sscd"}, "expansion 'none'. Got 'sscd' and 'last-two'"),
    ],
)
def test_bad_input_gets_one_clear_error_before_any_training(change, message):
    trained = []
    params = {**QUICK, "watchers": [trained.append]}
    params |= {k: v for k, v in change.items() if k not in ("X", "y")}
    with pytest.raises((ValueError, TypeError), match=message):
        ClassDiscovery(**params).fit(change.get("X", X), change.get("y", Y))
    assert not trained


def test_the_score_is_of_labelled_samples_only(fitted):
    known = Y >= 0
    expected = np.mean(fitted.predict(X[known]) == Y[known])
    assert fitted.score(X, Y) == pytest.approx(expected)
    with pytest.raises(ValueError, match="at least one sample"):
        fitted.score(X, np.full(240, -1))
    named = ClassDiscovery(**QUICK).fit(X, [None if label < 0 else f"c{label}" for label in Y])
    for model, forms in (
        (fitted, (Y.astype(float), torch.from_numpy(Y), Y.tolist())),
        (named, (["-1" if label < 0 else f"c{label}" for label in Y],)),
    ):
        for y in forms:  # whatever fit takes for unlabelled
            assert model.score(X, y) == pytest.approx(expected)


def test_wrong_shapes_at_prediction_are_named(fitted):
    with pytest.raises(ValueError, match="expecting 6 features"):
        fitted.predict(X[:, :3])
    with pytest.raises(ValueError, match=r"samples of shape \(6,\)"):
        fitted.predict(X.reshape(240, 2, 3))


def test_pixels_must_come_as_pixels_again(tmp_path):
    """uint8 is divided by 255 and nothing else is: the same values as int64 would be other samples."""
    pixels = np.clip(40 * X + 100, 0, 255).astype(np.uint8)
    model = ClassDiscovery(**QUICK).fit(pixels, Y)
    model = ClassDiscovery.load(model.save(tmp_path / "run"))
    np.testing.assert_array_equal(model.predict(pixels / 255), model.predict(pixels))
    for other in (pixels.astype(np.int64), pixels.astype(np.float32)):
        with pytest.raises(ValueError, match="X must be uint8 as in fit, or in"):
            model.predict(other)
    with pytest.raises(ValueError, match="X must not be uint8"):
        ClassDiscovery(**QUICK).fit(pixels.astype(float), Y).predict(pixels)


def test_numpy_numbers_as_options_can_be_saved(tmp_path):
    model = ClassDiscovery(**{**QUICK, "n_new_classes": np.int64(2), "feature_size": np.int32(8)}).fit(X, Y)
    again = ClassDiscovery.load(model.save(tmp_path / "run"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_a_loaded_model_knows_the_names_of_the_columns(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=list("abcdef"))
    model = ClassDiscovery(**QUICK).fit(table, Y)
    again = ClassDiscovery.load(model.save(tmp_path / "run"))
    with pytest.raises(ValueError, match="feature names"):
        again.predict(table[list("fedcba")])


@pytest.mark.filterwarnings("ignore:Fewer than 5 unlabelled")
def test_one_unlabelled_sample_is_a_class():
    one = np.append(np.flatnonzero(Y >= 0), np.flatnonzero(Y < 0)[0])
    options = {**QUICK, "method": "cd-knet+", "n_new_classes": 1, "view_steps": 2, "head_steps": 2}
    assert ClassDiscovery(**options).fit(X[one], Y[one]).labels_[-1] == Y.max() + 1


def test_a_fit_without_a_seed_goes_on_with_the_seed_it_had(tmp_path):
    options = {**QUICK, "random_state": None, "checkpoint_dir": tmp_path / "kept"}
    first = ClassDiscovery(**options).fit(X, Y)
    second = ClassDiscovery(**options).fit(X, Y)
    assert second.seed_ == first.seed_
    np.testing.assert_array_equal(second.embedding_, first.embedding_)


def test_stages_are_shared_with_an_encoder_that_counts_batches(tmp_path):
    encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
    options = {**QUICK, "encoder": encoder, "stage_cache": tmp_path}
    first, second = (ClassDiscovery(**options).fit(X, Y) for _ in range(2))
    np.testing.assert_array_equal(first.embedding_, second.embedding_)


@pytest.mark.parametrize(
    "gaps",
    [
        lambda y: pandas_series(
            y, "float64", float("nan")
        ),  # what read_csv makes of whole numbers and blanks
        lambda y: pandas_series(y, "Int64", None),
        lambda y: pandas_series([f"c{label}" if label >= 0 else None for label in y], "object", None),
        lambda y: pandas_series([f"c{label}" if label >= 0 else None for label in y], "string", None),
    ],
)
def test_blanks_of_a_pandas_column_are_unlabelled(gaps):
    labels = encode_labels(gaps(Y.tolist()), len(Y))
    np.testing.assert_array_equal(labels.targets, Y)


def pandas_series(values, dtype, blank):
    pandas = pytest.importorskip("pandas")
    return pandas.Series([blank if value == -1 else value for value in values], dtype=dtype)
