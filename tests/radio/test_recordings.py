"""Recordings: what is written is read back, and no file is harmful."""

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdknet import data
from cdknet.radio import Simulation, open_recording, write_sigmf
from cdknet.radio.ofdm import SAMPLE_RATE
from cdknet.radio.simulate import equalised_slices, make_transmissions

pytest.importorskip("sigmf", reason="the sigmf package is not installed: pip install cdknet[rf]")


def noise(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 2)).astype("<f4").view("<c8")[:, 0]


def sigmf_pair(folder: Path, name: str = "rec", n: int = 1000, annotations=(), captures=None, **info) -> Path:
    """A hand-written recording of n noise samples; keywords replace `core:` fields of the global object."""
    meta = {
        "global": {"core:datatype": "cf32_le", "core:sample_rate": 1e6, "core:version": "1.0.0"},
        "captures": [{"core:sample_start": 0}] if captures is None else captures,
        "annotations": list(annotations),
    }
    for key, value in info.items():
        meta["global"][f"core:{key}"] = value
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.sigmf-data").write_bytes(noise(n).tobytes())
    path = folder / f"{name}.sigmf-meta"
    path.write_text(json.dumps(meta))
    return path


def as_complex(X: np.ndarray) -> np.ndarray:
    return X[:, 0] + 1j * X[:, 1]


# --- round trips ---


def test_the_simulator_written_as_sigmf_reads_back_to_the_same_slices(tmp_path):
    recipe = Simulation(n_devices=2, n_train=3, n_test=1)
    iq = np.concatenate([make_transmissions(recipe, d, np.arange(3)).iq for d in range(2)]).astype(
        np.complex64
    )
    labels = [f"device-{d:02d}" for d in range(2) for _ in range(3)]
    path = write_sigmf(tmp_path / "set", iq, sample_rate=SAMPLE_RATE, labels=labels, carrier_hz=2.437e9)
    samples = open_recording(path, slice_length=iq.shape[1])
    np.testing.assert_array_equal(as_complex(samples.X), iq)
    assert samples.y.tolist() == labels
    assert len(set(samples.groups)) == 6
    read = equalised_slices(recipe, as_complex(samples.X))
    np.testing.assert_array_equal(read, equalised_slices(recipe, iq))


@given(st.lists(st.integers(1, 700), min_size=1, max_size=5), st.integers(1, 64), st.data())
def test_slices_are_the_samples_at_their_time_offset(tmp_path_factory, sizes, length, data):
    overlap = data.draw(st.integers(0, length - 1))
    folder = tmp_path_factory.mktemp("rec")
    parts = [noise(n, seed=i) for i, n in enumerate(sizes)]
    whole = np.concatenate(parts)
    path = write_sigmf(folder / "r", parts, sample_rate=1e6, labels=[f"d{i}" for i in range(len(parts))])
    expected = sum(max(0, (n - length) // (length - overlap) + 1) for n in sizes)
    if expected == 0:
        with pytest.raises(ValueError, match="smaller slice_length"):
            open_recording(path, slice_length=length, overlap=overlap)
        return
    samples = open_recording(path, slice_length=length, overlap=overlap)
    assert len(samples) == expected
    assert len(set(samples.ids)) == expected
    for x, identity, group, label in zip(samples.X, samples.ids, samples.groups, samples.y, strict=True):
        at = round(float(identity.rpartition("@")[2].removesuffix("s")) * 1e6)
        np.testing.assert_array_equal(x[0] + 1j * x[1], whole[at : at + length])
        assert identity.startswith("r.sigmf-meta#")
        assert group == identity.rpartition("@")[0]
        assert label == f"d{int(group.rpartition('#')[2])}"


@pytest.mark.parametrize(
    ("suffix", "dtype", "zero", "half"),
    [(".cf32", "<f4", 0, 1), (".cs16", "<i2", 0, 2**15), (".cu8", "u1", 128, 128)],
)
def test_raw_files_scale_to_one(tmp_path, suffix, dtype, zero, half):
    rng = np.random.default_rng(0)
    high = 100 if half == 1 else zero + half - 1
    values = rng.integers(zero - min(half, 100), high + 1, (400, 2)).astype(dtype)
    path = tmp_path / f"capture{suffix}"
    path.write_bytes(values.tobytes())
    samples = open_recording(path, sample_rate=2e6)
    assert samples.X.shape == (2, 2, 198)
    assert samples.X.dtype == np.float32
    expected = (values[:396].astype(float) - zero) / half
    np.testing.assert_allclose(samples.X.transpose(0, 2, 1).reshape(-1, 2), expected)
    assert samples.y is None
    assert samples.ids.tolist() == [f"capture{suffix}@0.00000000s", f"capture{suffix}@0.00009900s"]
    assert samples.groups.tolist() == [f"capture{suffix}"] * 2


@pytest.mark.parametrize("datatype", ["cf32_be", "cf64_le", "ci16_be", "ci8", "ci32_le", "cu16_le"])
def test_every_complex_type_of_sigmf_is_read(tmp_path, datatype):
    path = sigmf_pair(tmp_path, datatype=datatype)
    kind = (
        ("<" if not datatype.endswith("be") else ">")
        + datatype[1]
        + str(int(datatype[2:].split("_")[0]) // 8)
    )
    values = np.random.default_rng(0).integers(0, 100, (250, 2)).astype(kind)
    path.with_suffix(".sigmf-data").write_bytes(values.tobytes())
    half = 1 if datatype[1] == "f" else 2.0 ** (8 * values.itemsize - 1)
    zero = half if datatype[1] == "u" else 0
    X = open_recording(path, slice_length=250).X
    np.testing.assert_allclose(X[0].T, (values.astype(float) - zero) / half, atol=1e-7)


def test_the_energy_gate_drops_slices_that_are_too_quiet(tmp_path):
    level = np.repeat([1.0, 0.5, 0.01], 100)
    (tmp_path / "a.cf32").write_bytes((np.exp(1j * np.arange(300)) * level).astype("<c8").tobytes())
    lengths = [
        len(open_recording(tmp_path / "a.cf32", sample_rate=1.0, slice_length=100, energy_gate=g))
        for g in (0, 5, 7, 39, 41)
    ]
    assert lengths == [1, 1, 2, 2, 3]


def test_unit_power_scales_each_transmission_separately(tmp_path):
    path = write_sigmf(tmp_path / "a", [3 * noise(400), 0.01 * noise(400, 1)], sample_rate=1e6)
    X = open_recording(path, slice_length=200, unit_power=True).X
    np.testing.assert_allclose((X**2).sum(axis=1).mean(axis=1).reshape(2, 2).mean(axis=1), 1, rtol=1e-5)


def test_labels_come_from_annotations_else_from_folders(tmp_path):
    marked = [{"core:sample_start": 0, "core:sample_count": 400, "core:label": "phone"}]
    plain = [{"core:sample_start": 400, "core:sample_count": 400}]
    sigmf_pair(tmp_path / "laptop", annotations=marked + plain)
    sigmf_pair(tmp_path, name="loose")
    samples = open_recording(tmp_path)
    by_group = dict(zip(samples.groups.tolist(), samples.y.tolist(), strict=True))
    assert by_group == {
        "laptop/rec.sigmf-meta#0": "phone",
        "laptop/rec.sigmf-meta#1": "laptop",
        "loose.sigmf-meta": "-1",
    }
    assert open_recording(tmp_path / "loose.sigmf-data").y is None


def test_labels_follow_the_same_rule_as_in_other_folders(tmp_path):
    """Whole numbers if all of them are; a folder named unlabelled, or a blank label, means unlabelled."""
    sigmf_pair(tmp_path / "1")
    sigmf_pair(
        tmp_path / "2", annotations=[{"core:sample_start": 0, "core:sample_count": 400, "core:label": ""}]
    )
    sigmf_pair(tmp_path / "Unlabelled")
    samples = open_recording(tmp_path)
    by_folder = {group.split("/")[0]: y for group, y in zip(samples.groups, samples.y.tolist(), strict=True)}
    assert by_folder == {"1": 1, "2": -1, "Unlabelled": -1}


def test_annotations_count_from_the_offset_and_end_with_their_capture(tmp_path):
    captures = [{"core:sample_start": 200}, {"core:sample_start": 700}]
    annotations = [
        {"core:sample_start": 200, "core:label": "a"},
        {"core:sample_start": 700, "core:label": "b"},
    ]
    samples = open_recording(
        sigmf_pair(tmp_path, annotations=annotations, captures=captures, offset=200),
        slice_length=100,
        energy_gate=1e9,
        unit_power=False,
    )
    assert samples.y.tolist() == ["a"] * 5 + ["b"] * 5
    np.testing.assert_allclose(as_complex(samples.X).ravel(), noise(1000), rtol=1e-6)
    early = sigmf_pair(tmp_path / "early", annotations=[{"core:sample_start": 100}], offset=200)
    with pytest.raises(ValueError, match="samples from core:offset 200"):
        open_recording(early)


def test_a_dataset_under_another_name_of_the_same_folder_is_read(tmp_path):
    path = sigmf_pair(tmp_path, dataset="other.bin")
    path.with_suffix(".sigmf-data").rename(tmp_path / "other.bin")
    assert len(open_recording(path)) == 5


def test_a_raw_file_with_metadata_is_read_once(tmp_path):
    path = sigmf_pair(tmp_path, dataset="rec.cf32")
    path.with_suffix(".sigmf-data").rename(tmp_path / "rec.cf32")
    assert len(open_recording(tmp_path)) == 5


def test_recordings_deep_in_a_folder_and_in_capitals_are_found(tmp_path):
    place = tmp_path / "phone" / "monday"
    place.mkdir(parents=True)
    (place / "x.CF32").write_bytes(noise(1000).tobytes())
    samples = data.open(tmp_path, sample_rate=1e6)
    assert set(samples.y.tolist()) == {"phone"}


def test_short_transmissions_are_left_out_and_noted(tmp_path):
    some = [
        {"core:sample_start": 0, "core:sample_count": 10},
        {"core:sample_start": 10, "core:sample_count": 300},
    ]
    samples = open_recording(sigmf_pair(tmp_path, annotations=some))
    assert len(samples) == 1
    assert any("1 transmissions shorter than 198" in note for note in samples.notes)


def test_a_long_recording_is_sliced_in_chunks_without_gaps(tmp_path):
    x = noise(20_000)
    (tmp_path / "a.cf32").write_bytes(x.tobytes())
    X = open_recording(tmp_path / "a.cf32", sample_rate=1.0, slice_length=2).X
    np.testing.assert_array_equal(as_complex(X).ravel(), x)


def test_writing_refuses_to_overwrite_and_odd_input(tmp_path):
    write_sigmf(tmp_path / "a", [noise(10)], sample_rate=1e6)
    with pytest.raises(ValueError, match="must not exist"):
        write_sigmf(tmp_path / "a.sigmf-meta", [noise(10)], sample_rate=1e6)
    with pytest.raises(ValueError, match="one entry per transmission"):
        write_sigmf(tmp_path / "b", [noise(10)], sample_rate=1e6, labels=["x", "y"])
    with pytest.raises(ValueError, match="hold samples"):
        write_sigmf(tmp_path / "b", [noise(0)], sample_rate=1e6)


# --- what must raise one clear error ---


def annotation(start=0, count=500, **more):
    return {"core:sample_start": start, "core:sample_count": count, **more}


FAULTS = {
    "dataset elsewhere": ({"dataset": "/etc/passwd"}, "same folder"),
    "dataset above": ({"dataset": "../rec.sigmf-data"}, "same folder"),
    "dataset in a folder": ({"dataset": "x/rec.sigmf-data"}, "same folder"),
    "dataset by backslash": ({"dataset": "..\\rec.sigmf-data"}, "same folder"),
    "dataset is dot-dot": ({"dataset": ".."}, "same folder"),
    "dataset with a null": ({"dataset": "a\0b"}, "same folder"),
    "dataset missing": ({"dataset": "nowhere"}, "no such file"),
    "dataset a number": ({"dataset": 7}, "schema"),
    "real samples": ({"datatype": "rf32_le"}, "must be complex"),
    "unknown type": ({"datatype": "cf31_le"}, "schema"),
    "type a list": ({"datatype": ["cf32_le"]}, "schema"),
    "two channels": ({"num_channels": 2}, "one channel"),
    "metadata only": ({"metadata_only": True}, "one channel"),
    "trailing bytes": ({"trailing_bytes": 8, "dataset": "rec.sigmf-data"}, "samples only"),
    "header bytes": ({"captures": [{"core:sample_start": 0, "core:header_bytes": 8}]}, "samples only"),
    "negative rate": ({"sample_rate": -1}, "rec"),
    "rate zero": ({"sample_rate": 0}, "rec"),
    "rate a text": ({"sample_rate": "fast"}, "schema"),
    "rate true": ({"sample_rate": True}, "rec"),
    "annotation past the end": ({"annotations": [annotation(900, 101)]}, "must lie within the 1000"),
    "annotation far past the end": ({"annotations": [annotation(0, 2**62)]}, "must lie within"),
    "annotation beyond int64": ({"annotations": [annotation(0, 2**70)]}, "whole number"),
    "negative start": ({"annotations": [annotation(-1)]}, "whole number"),
    "fractional start": ({"annotations": [annotation(0.5)]}, "whole number"),
    "start a boolean": ({"annotations": [annotation(True)]}, "whole number"),
    "label a number": ({"annotations": [annotation(**{"core:label": 3})]}, "schema"),
    "no start": ({"annotations": [{"core:sample_count": 3}]}, "schema"),
    "annotation a text": ({"annotations": ["x"]}, "list of objects"),
    "captures an object": ({"captures": {}}, "list of objects"),
    "the whole file 5 times": ({"annotations": [annotation(0, 1000)] * 5}, "4 times"),
    "open-ended 1000 times": ({"annotations": [{"core:sample_start": 0}] * 1000}, "4 times"),
}


@pytest.mark.parametrize(("fields", "says"), FAULTS.values(), ids=FAULTS)
def test_false_metadata_is_refused_with_the_file_name(tmp_path, fields, says):
    path = sigmf_pair(tmp_path, **fields)
    with pytest.raises(ValueError, match=says) as caught:
        open_recording(path)
    assert str(path) in str(caught.value)


TEXTS = {
    "empty": b"",
    "truncated": b'{"global": {"core:datatype": "cf32_le"',
    "not utf-8": b"\xff\xfe{}",
    "a list": b"[]",
    "a number": b"3",
    "global a list": b'{"global": []}',
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 50_000,
    "NaN": b'{"global": {"core:datatype": "cf32_le", "core:sample_rate": NaN, "core:version": "1.0.0"}}',
    "huge number": b'{"global": {"core:sample_rate": ' + b"9" * 5000 + b"}}",
    "overflow": b'{"global": {"core:datatype": "cu8", "core:sample_rate": 1e999, "core:version": "1.0.0"}}',
    "long": b'{"global": {"core:description": "' + b"x" * (17 * 2**20) + b'"}}',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_bad_json_is_refused_with_the_file_name(tmp_path, text):
    path = sigmf_pair(tmp_path)
    path.write_bytes(text)
    with pytest.raises(ValueError, match=r"rec\.sigmf-meta: "):
        open_recording(path)


def test_a_link_to_a_file_outside_the_folder_is_refused(tmp_path):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(noise(1000).tobytes())
    path = sigmf_pair(tmp_path / "in")
    path.with_suffix(".sigmf-data").unlink()
    path.with_suffix(".sigmf-data").symlink_to(secret)
    with pytest.raises(ValueError, match="a link to a file outside"):
        open_recording(path)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "x.cf32").symlink_to(secret)
    with pytest.raises(ValueError, match="a link to a file outside"):
        open_recording(tmp_path / "raw", sample_rate=1e6)


@pytest.mark.parametrize("suffix", [".cf32", ".cs16", ".cu8"])
def test_odd_byte_counts_and_empty_files_are_refused(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    for size in (0, 1, 8 * 198 + 1):
        path.write_bytes(bytes(size))
        with pytest.raises(ValueError, match=f"x{suffix}: must hold whole"):
            open_recording(path, sample_rate=1e6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_with_their_time(tmp_path, bad):
    x = noise(1000).copy()
    x[700] = bad
    (tmp_path / "x.cf32").write_bytes(x.tobytes())
    with pytest.raises(ValueError, match=r"x.cf32: .* 0\.000594"):
        open_recording(tmp_path / "x.cf32", sample_rate=1e6)


def test_doubles_too_large_for_float32_are_refused(tmp_path):
    path = sigmf_pair(tmp_path, datatype="cf64_le")
    path.with_suffix(".sigmf-data").write_bytes(np.full(800, 1e300).tobytes())
    with pytest.raises(ValueError, match="finite float32"):
        open_recording(path)


def test_a_changed_checksum_is_refused(tmp_path):
    path = sigmf_pair(tmp_path, sha512="0" * 128)
    with pytest.raises(ValueError, match="core:sha512"):
        open_recording(path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "Give sample_rate"),
        ({"sample_rate": 0}, "positive"),
        ({"sample_rate": float("nan")}, "positive"),
        ({"sample_rate": 1, "slice_length": 0}, "positive"),
        ({"sample_rate": 1, "overlap": 198}, "overlap"),
        ({"sample_rate": 1, "energy_gate": -1}, "energy_gate"),
        ({"sample_rate": 1, "slice_length": 5000}, "smaller slice_length"),
    ],
)
def test_invalid_options_are_refused(tmp_path, options, says):
    (tmp_path / "x.cf32").write_bytes(noise(1000).tobytes())
    with pytest.raises(ValueError, match=says):
        open_recording(tmp_path / "x.cf32", **options)


def test_a_rate_that_contradicts_the_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must be that of the file"):
        open_recording(sigmf_pair(tmp_path), sample_rate=2e6)


def test_missing_files_and_unknown_kinds_are_refused(tmp_path):
    for path in (tmp_path / "none.cf32", tmp_path / "none.sigmf-meta", tmp_path / "x.sigmf", tmp_path):
        with pytest.raises(ValueError, match="must"):
            open_recording(path, sample_rate=1e6)


def test_a_missing_sigmf_package_says_how_to_get_it(tmp_path, monkeypatch):
    path = sigmf_pair(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "sigmf", None)
    with pytest.raises(ImportError, match=r"pip install cdknet\[rf\]"):
        open_recording(path)


def test_memory_is_in_proportion_to_the_size_of_the_file(tmp_path):
    """A cu8 file grows fourfold as float32; besides the result, one chunk at a time is in memory."""
    n = 2_000_000
    (tmp_path / "x.cu8").write_bytes(bytes(2 * n))
    tracemalloc.start()
    X = open_recording(tmp_path / "x.cu8", sample_rate=1e6).X
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert X.nbytes == pytest.approx(8 * n, rel=0.01)
    assert peak < 2.5 * X.nbytes + 100 * 2**20


scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda s: st.lists(s, max_size=3) | st.dictionaries(st.text(max_size=6), s, max_size=3),
    max_leaves=6,
)
names = "datatype", "sample_rate", "version", "num_channels", "dataset", "sha512", "extensions", "label"
more = "sample_start", "sample_count", "header_bytes", "trailing_bytes", "datetime", "offset", "metadata_only"
keys = st.sampled_from([f"core:{name}" for name in names + more])


@given(
    where=st.sampled_from(["global", "captures", "annotations", "top"]),
    changes=st.dictionaries(keys, values, max_size=3),
    top=values,
)
def test_any_change_of_the_metadata_is_read_or_raises_a_value_error(tmp_path_factory, where, changes, top):
    path = sigmf_pair(tmp_path_factory.mktemp("rec"), annotations=[annotation()])
    meta = json.loads(path.read_text())
    if where == "top":
        meta[next(iter(changes), "global")] = top
        meta["annotations"] = top
    elif where == "global":
        meta["global"].update(changes)
    else:
        meta[where][0].update(changes)
    path.write_text(json.dumps(meta))
    fault = None
    try:
        X = open_recording(path).X
    except ValueError as error:
        fault = str(error)
    assert (fault is None and X.nbytes <= 4 * 8000) or str(path.parent) in fault


@given(st.data())
def test_any_bytes_are_read_or_raise_a_value_error(tmp_path_factory, data):
    path = sigmf_pair(tmp_path_factory.mktemp("rec"), annotations=[annotation()])
    victim = data.draw(st.sampled_from([path, path.with_suffix(".sigmf-data")]))
    raw = bytearray(victim.read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    victim.write_bytes(raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw)
    fault = None
    try:
        open_recording(path)
    except ValueError as error:
        fault = str(error)
    assert fault is None or "rec.sigmf-" in fault


def test_a_pipe_is_not_a_recording(tmp_path):
    os.mkfifo(tmp_path / "x.cf32")
    with pytest.raises(ValueError, match="existing file"):
        open_recording(tmp_path / "x.cf32", sample_rate=1e6)
