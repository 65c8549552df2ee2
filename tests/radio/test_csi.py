"""wifi-csi-30: features, the split by time, and the checks of the file."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdknet.radio.csi import SUBCARRIERS, features, load_wifi_csi_30, without_line

FOLDERS = [Path(f) for f in os.environ.get("CDKNET_DATA", "").split(os.pathsep) if f]
REAL = next((f for d in FOLDERS if (f := d / "wifi-csi-30" / "wifi_csi_30.npz").is_file()), None)
needs_data = pytest.mark.skipif(
    REAL is None, reason="wifi-csi-30/wifi_csi_30.npz is in no folder of CDKNET_DATA"
)


def small_file(path: Path, **changes) -> Path:
    rng = np.random.default_rng(0)
    device = np.repeat(np.arange(1, 31), 40)
    content = {
        "csi": rng.integers(-60, 61, (len(device), 2, 3, 30)).astype(np.int8),
        "device": device,
        "meta": np.tile(device[:, None], 8),
    }
    content |= changes
    np.savez(path, **{k: v for k, v in content.items() if v is not None})
    return path


@given(st.floats(-3, 3), st.floats(-0.5, 0.5), st.integers(0, 99))
def test_a_line_is_subtracted_and_nothing_else(a, b, seed):
    values = np.random.default_rng(seed).standard_normal((2, 30))
    clean = without_line(values, SUBCARRIERS)
    np.testing.assert_allclose(without_line(values + a + b * SUBCARRIERS, SUBCARRIERS), clean, atol=1e-9)
    np.testing.assert_allclose(without_line(clean, SUBCARRIERS), clean, atol=1e-9)
    np.testing.assert_allclose(clean @ np.stack([np.ones(30), SUBCARRIERS], axis=1), 0, atol=1e-9)


def test_thirty_subcarriers_of_a_20_mhz_channel():
    assert len(SUBCARRIERS) == 30
    assert SUBCARRIERS[0] == -28
    assert SUBCARRIERS[-1] == 28
    assert np.all(np.diff(SUBCARRIERS) > 0)


def test_gain_does_not_change_the_features():
    rng = np.random.default_rng(0)
    csi = rng.integers(-40, 41, (5, 2, 3, 30)).astype(np.int8)
    np.testing.assert_allclose(features(csi), features(2 * csi), atol=1e-9)
    assert np.isfinite(features(np.zeros((1, 2, 3, 30), np.int8))).all()


def test_earlier_frames_are_for_training_and_later_ones_for_testing(tmp_path):
    data = load_wifi_csi_30(small_file(tmp_path / "f.npz"), burst=4)
    assert data["X_train"].shape == (30 * 7, 180)  # 28 of 40 frames
    assert data["X_test"].shape == (30 * 3, 180)
    for name in data["class_names"]:
        first, last = (
            [int(g.split("/")[1]) for g in data[f"groups_{p}"] if g.startswith(name)]
            for p in ("train", "test")
        )
        assert max(first) + 4 <= min(last)
    np.testing.assert_allclose(data["X_train"].mean(axis=0), 0, atol=1e-4)


def test_a_burst_is_the_mean_of_its_frames(tmp_path):
    path = small_file(tmp_path / "f.npz")
    one, four = load_wifi_csi_30(path, burst=1), load_wifi_csi_30(path, burst=4)
    of = one["X_train"].reshape(210, 4, 180).mean(axis=1)
    correlation = [np.corrcoef(of[:, j], four["X_train"][:, j])[0, 1] for j in range(180)]
    assert min(correlation) > 0.9999  # the same up to the standardisation


def test_the_receivers_columns_are_never_read(tmp_path):
    with_meta = load_wifi_csi_30(small_file(tmp_path / "a.npz"))
    without = load_wifi_csi_30(small_file(tmp_path / "b.npz", meta=None))
    np.testing.assert_array_equal(with_meta["X_test"], without["X_test"])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"csi": np.zeros((1200, 2, 3, 29), np.int8)}, r"\(n, 2, 3, 30\)"),
        ({"csi": np.zeros((1200, 2, 3, 30), np.float32)}, "int8"),
        ({"device": np.ones(1200, int)}, "each of 1..30"),
        ({"device": np.ones(7, int)}, "1200 integers"),
        ({"device": np.full(1200, 1.5)}, "integers"),
        ({"device": None}, "Get the file again"),
        ({"csi": np.array([{}] * 3)}, "no pickles"),
        ({"device": np.repeat(np.arange(1, 31), [1171, *[1] * 29])}, "frames of device"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, changes, says):
    path = small_file(tmp_path / "wrong.npz", **changes)
    with pytest.raises(ValueError, match=says) as caught:
        load_wifi_csi_30(path)
    assert str(path) in str(caught.value)


def test_a_header_that_declares_more_than_the_file_holds_is_refused(tmp_path):
    path = small_file(tmp_path / "f.npz")
    with zipfile.ZipFile(path) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    lie = members["csi.npy"].replace(b"(1200, 2, 3, 30)", b"(9" + b"0" * 9 + b",2,3,30)"[: 14 - 9 + 3])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {"csi.npy": lie}).items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match="Get the file again"):
        load_wifi_csi_30(path)


@given(st.data())
def test_a_corrupted_file_raises_a_value_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("csi")
    raw = bytearray(small_file(folder / "f.npz").read_bytes())
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    for _ in range(data.draw(st.integers(1, 4))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    (folder / "f.npz").write_bytes(raw)
    fault = None
    try:
        load_wifi_csi_30(folder / "f.npz")
    except ValueError as error:
        fault = str(error)
    assert fault is None or "f.npz" in fault


@needs_data
def test_the_real_file_has_thirty_devices_and_its_caveats():
    data = load_wifi_csi_30(REAL)
    assert len(data["y_train"]) + len(data["y_test"]) == pytest.approx(131_435 / 10, abs=60)
    assert set(data["y_train"]) == set(data["y_test"]) == set(range(30))
    assert "channel" in data["provenance"]["caveats"]


@needs_data
def test_a_linear_classifier_separates_old_devices_on_later_frames():
    """A bound well below the network's accuracy in benchmarks/radio_supervised.py."""
    from sklearn.linear_model import RidgeClassifier

    data = load_wifi_csi_30(REAL)
    train, test = data["y_train"] < 20, data["y_test"] < 20
    model = RidgeClassifier().fit(data["X_train"][train], data["y_train"][train])
    assert model.score(data["X_test"][test], data["y_test"][test]) > 0.7
