"""Edge cases of ClassDiscovery: unusual types, invalid parts, changes after the fit."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cdknet import ClassDiscovery
from cdknet.core.spectral import neighbor_embedding
from cdknet.data.checks import DoubtfulData, doubts
from cdknet.inputs.labels import encode_labels
from cdknet.inputs.warnings import scarce
from cdknet.runs.summary import given_sentence
from cdknet.training.history import History

from contracts import FEW, blob_problem

X, Y, TRUTH = blob_problem(n=80)


def few(**options):
    return ClassDiscovery(**{**FEW, **options})


# Types


@pytest.mark.parametrize(
    "options",
    [
        {"method": "sscd", "batch_size": np.int64(64)},
        {"method": "cd-knet", "discover_batch_size": np.int32(64), "sigma_scale": np.float32(0.5)},
        {"method": "sscd", "early_stopping": np.True_, "expansion": np.str_("none")},
        {"view_batch_size": np.int64(32), "n_new_classes": np.int64(2)},
    ],
)
def test_numbers_of_numpy_are_numbers(options, tmp_path):
    ours = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
    model = few(**options).fit(X, Y)
    assert np.array_equal(model.predict_proba(X), few(**ours).fit(X, Y).predict_proba(X))
    model.save(tmp_path / "run")


def test_options_can_be_searched_among_arrays():
    search = GridSearchCV(few(method="sscd"), {"batch_size": np.array([32, 64])}, cv=2, error_score="raise")
    assert search.fit(X, Y).best_params_["batch_size"] in (32, 64)


def test_pipelines_may_ask_for_data_frames():
    pandas = pytest.importorskip("pandas")
    model = make_pipeline(StandardScaler(), few(method="sscd")).set_output(transform="pandas")
    features = model.fit(X, Y).transform(X)
    assert isinstance(features, pandas.DataFrame)
    assert list(features.columns[:2]) == ["classdiscovery0", "classdiscovery1"]


@pytest.mark.parametrize(
    ("answer", "asks"), [(True, True), (np.True_, True), (np.False_, False), (1, False), (None, False)]
)
def test_a_watcher_asks_by_a_truth_value_of_any_kind(answer, asks):
    assert History([lambda row: answer]).add(stage="x") is asks


def test_labels_of_odd_types():
    names = ["b", "a", "", "b"]
    texts = np.array(names, dtype=np.dtypes.StringDType())
    assert encode_labels(texts, 4).targets.tolist() == [1, 0, -1, 1]
    assert encode_labels(np.array(["ä", "b"]).astype("U1"), 2).old_classes.tolist() == ["b", "ä"]
    assert encode_labels(np.array([n.encode() for n in ["ä", "b"]]), 2).old_classes.tolist() == ["b", "ä"]
    assert encode_labels(np.array(["a", -1.0, "b"], dtype=object), 3).targets.tolist() == [0, -1, 1]
    with pytest.raises(ValueError, match=r"not both\. Got 3 and 'a'"):
        encode_labels([-1, "a", 3], 3)
    with pytest.raises(ValueError, match="among them"):
        encode_labels(np.array([1, {2}, -1], dtype=object), 3)
    with pytest.raises(ValueError, match="not UTF-8"):
        encode_labels(np.array([b"\xff", b"a"]), 2)


# Values


def test_columns_that_float32_cannot_tell_apart_are_warned_of():
    far = X.astype(np.float64) + 0.0
    far[:, 1] += 2.4e9
    with pytest.warns(UserWarning, match=r"1 column\(s\) of X .* column 1"):
        few(method="sscd").fit(far, Y)
    still = X.astype(np.float64)
    still[:, 1] = 1 + 1e-15 * np.arange(len(X))  # rounding: no warning
    few(method="sscd").fit(still, Y)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_samples_that_are_all_alike_do_no_harm_to_sscd():
    alike = X.copy()
    alike[Y < 0] = alike[Y < 0][0]
    model = few(method="sscd-dynamic", n_new_classes=3).fit(alike, Y)
    assert np.isfinite(model.predict_proba(X)).all()


def test_a_graph_of_many_duplicates_of_a_few_samples_is_embedded():
    for seed in range(12):
        places = np.round(np.random.default_rng(seed).normal(size=(48, 2)))
        U = neighbor_embedding(torch.tensor(places).float(), 22, neighbors=10).vectors
        assert torch.allclose(U.T @ U, torch.eye(22), atol=1e-4)


def test_samples_that_float32_cannot_tell_apart_are_not_blamed_on_the_rate():
    same = 1e9 + np.linspace(0, 1e-3, len(X))[:, None] * np.ones(X.shape[1])
    with pytest.warns(DoubtfulData), pytest.raises(FloatingPointError, match="all samples of X the same"):
        few(method="cd-knet").fit(same, Y)


@pytest.mark.filterwarnings("ignore:Fewer than 5 unlabelled")
def test_dac_needs_two_samples():
    only = np.r_[np.flatnonzero(Y >= 0), np.flatnonzero(Y < 0)[:1]]
    with pytest.raises(ValueError, match="there must be 2 unlabelled samples"):
        few(method="dac", n_new_classes=1).fit(X[only], Y[only])


# Invalid arguments raise before anything is trained


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"clusterer": KMeans}, "Got the class KMeans"),
        ({"clusterer": KMeans(8)}, "Got one with n_clusters=8"),
        ({"clusterer": KMeans(2), "method": "sscd-dynamic"}, "must be a function"),
        (
            {"tune": "old-classes", "method": "sscd", "network": "none", "expansion": "none"}
            | {"detector": "softmax", "unlabelled": "mixed"},
            "detector 'softmax' needs a stage 1",
        ),
        ({"tune": "old-classes", "expansion": "all"}, "BatchNorm1d"),
        ({"watchers": print}, "watchers must be a list"),
        ({"checkpoint_dir": __file__}, "checkpoint_dir must be a folder"),
        ({"stage_cache": __file__}, "stage_cache must be a folder"),
    ],
)
def test_what_cannot_work_is_said_at_once(options, match):
    rows = []
    with pytest.raises((ValueError, TypeError), match=match):
        few(**{"watchers": [rows.append], **options}).fit(X, Y)
    assert rows == []


# After the fit


def test_a_saved_model_says_what_it_was_fitted_with(tmp_path):
    model = few(method="spectral", expansion="none", neighbors=15).fit(X, Y)
    before = model.predict_proba(X)
    model.set_params(neighbors=2, n_new_classes=None)
    again = ClassDiscovery.load(model.save(tmp_path / "run"))
    assert np.array_equal(again.predict_proba(X), before)
    assert (again.neighbors, again.n_new_classes) == (15, 2)


def test_samples_that_were_changed_since_are_not_saved(tmp_path):
    mine = X.copy()
    model = few(method="sscd").fit(mine, Y)
    mine[:] = 0
    with pytest.warns(UserWarning, match="X was changed since the fit"):
        model.save(tmp_path / "run")
    assert not list((tmp_path / "run").glob("samples*"))


def test_a_loaded_model_is_as_sure_to_the_bit_and_leaves_randomness_alone(tmp_path):
    model = few(method="sscd").fit(X, Y)
    model.save(tmp_path / "run")
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    again = ClassDiscovery.load(tmp_path / "run")
    assert torch.equal(torch.rand(2), expected)
    assert np.array_equal(again.confidence_, model.confidence_)


# Resuming


def test_a_fit_with_a_random_state_is_resumed_by_the_same_object(tmp_path):
    calls = []

    def interrupt_once(row):
        calls.append(row)
        if len(calls) == 2:
            raise KeyboardInterrupt

    state = np.random.RandomState(0)
    model = few(method="cd-knet", checkpoint_dir=tmp_path, random_state=state, watchers=[interrupt_once])
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    model.fit(X, Y)
    whole = few(method="cd-knet", random_state=np.random.RandomState(0)).fit(X, Y)
    assert np.array_equal(model.embedding_, whole.embedding_)


def test_a_stage_that_a_watcher_stopped_early_is_not_shared(tmp_path):
    options = {"method": "cd-knet", "pretrain_epochs": 5, "early_stopping": False}
    few(**options, stage_cache=tmp_path, watchers=[lambda row: True]).fit(X, Y)
    assert not list(tmp_path.iterdir())
    shared = few(**options, stage_cache=tmp_path).fit(X, Y)
    assert np.array_equal(shared.embedding_, few(**options).fit(X, Y).embedding_)
    assert list(tmp_path.iterdir())


def test_masks_of_another_type_are_not_guessed_at():
    """Values 0 and 1 do not show whether they were divided by 255, as uint8 is."""
    masks = (np.asarray(X) > 0).astype(np.uint8)
    for scale in (1, 255):
        model = few(method="sscd").fit(scale * masks, Y)
        for other in (masks.astype(float), masks.astype(bool)):
            with pytest.raises(ValueError, match="do not show whether they were divided"):
                model.predict(other)
        model.predict(masks.astype(np.uint8))


def test_numbers_of_new_classes_must_fit_beside_those_of_old_ones():
    y = np.where(Y >= 0, Y + np.int64(2**63 - 1) - Y.max(), -1)
    with pytest.raises(ValueError, match=r"numbers for 2 new classes below 2\*\*63\. Got class 92233"):
        ClassDiscovery(n_new_classes=2).fit(X, y)


@pytest.mark.parametrize("largest", [2**70, 1e19])
def test_class_numbers_beyond_any_whole_number_are_refused(largest):
    with pytest.raises(ValueError, match=r"classes below 2\*\*63\. Got 1"):
        ClassDiscovery(n_new_classes=2).fit(X, [largest, *Y[1:].tolist()])


def test_a_fit_that_fails_leaves_the_model_as_it_was():
    model = few().fit(X, Y)
    model.set_params(label_weight=1.0)
    with pytest.raises(ValueError, match="one label per sample"):
        model.fit(X, Y[1:])
    assert model.used_params()["label_weight"] == FEW.get("label_weight", ClassDiscovery().label_weight)


def test_another_default_type_of_torch_raises_a_clear_error():
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match=r"default type must be float32.*Got torch\.float64"):
            few().fit(X, Y)
    finally:
        torch.set_default_dtype(torch.float32)


def test_duplicates_of_one_sample_are_rejected():
    with pytest.raises(ValueError, match=r"samples that differ\. Got \d+ times the same one"):
        ClassDiscovery(n_new_classes=2).fit(np.ones_like(X), Y)


def test_placeholders_and_labels_that_mean_unknown_are_warned_of():
    odd = X.copy()
    odd[3, 1] = 9999
    with pytest.warns(
        DoubtfulData, match=r"1 column\(s\) of X have values far beyond .* column 1, with 9999"
    ):
        few().fit(odd, Y)
    assert doubts(X) == []
    assert "'mass'" in doubts(odd, ["size", "mass", *"abcd"])[0]
    numbered = np.column_stack([X, np.random.default_rng(0).permutation(len(X)) + 7])
    assert doubts(numbered, [*"abcdef", "row"]) == [
        "Column 'row' numbers the samples one by one. If it is no measurement, leave it out (--drop)."
    ]
    ids = np.random.default_rng(0).choice(10**6, len(X), replace=False)
    for name, is_warned in {
        "customer_id": True,
        "orderId": True,
        "ID": True,
        "acid": False,
        "size": False,
    }.items():
        warned = doubts(np.column_stack([X, ids]), [*"abcdef", name])
        assert any(f"Column '{name}' looks like the name of a sample" in one for one in warned) == is_warned
    names = np.where(Y < 0, "", np.where(Y == 0, "None", "a"))
    with pytest.warns(DoubtfulData, match="label 'None'"):
        few().fit(X, names)


def test_too_few_samples_per_new_class_are_warned_of():
    unlabelled = int((Y == -1).sum())
    assert scarce(Y, unlabelled // 5) == []
    with pytest.warns(DoubtfulData, match=rf"Fewer than 5 .* \({unlabelled} for"):
        few(n_new_classes=unlabelled // 4).fit(X, Y)


def test_a_model_reports_how_many_given_labels_it_predicts(tmp_path):
    model = few().fit(X, Y)
    assert model.given_accuracy_ == np.mean(model.predict(X[Y >= 0]) == Y[Y >= 0])
    assert ClassDiscovery.load(model.save(tmp_path / "run")).given_accuracy_ == model.given_accuracy_
    assert given_sentence(0.98) == "predict answers with them for 98 of 100 labelled samples"
    assert given_sentence(0.998) == "predict answers with them for more than 99 of 100 labelled samples"
    assert given_sentence(1.0) == "predict answers with them for 100 of 100 labelled samples"
    assert "9999" in given_sentence(0.1)


@pytest.mark.parametrize("bad", ["Rome", np.nan])
def test_an_error_names_the_column_of_a_data_frame(bad):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"size": [1.0, 2.0], "city": [3, bad]})
    with pytest.raises(ValueError, match="in column 'city'"):
        ClassDiscovery(n_new_classes=1).fit(table, [0, -1])


def test_a_row_of_texts_raises_a_clear_error():
    with pytest.raises(ValueError, match="X must hold numbers"):
        ClassDiscovery(n_new_classes=1).fit(np.array(["Rome", "Oslo"], dtype=object), [0, -1])
