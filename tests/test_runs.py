"""Run folders: what is written is read back, and what is damaged or foreign is said to be."""

import io
import json
import shutil
import zipfile

import numpy as np
import pytest

from cdknet import ClassDiscovery
from cdknet.nets.model import Blueprint
from cdknet.runs.checkpoints import FolderCheckpoint, Snapshot
from cdknet.runs.files import append_jsonl, read_jsonl, read_npz
from cdknet.runs.fingerprints import fingerprint
from cdknet.runs.format import read_run, write_run
from cdknet.runs.summary import summary

from contracts import blob_problem

X, Y, TRUTH = blob_problem()
QUICK = {
    "n_new_classes": 2,
    "method": "cd-knet",
    "expand_steps": 0,
    "pretrain_epochs": 3,
    "discover_epochs": 3,
    "expand_epochs": 3,
    "calibrate": False,
    "random_state": 0,
}


@pytest.fixture(scope="module")
def model():
    return ClassDiscovery(**QUICK, label_weight=float("inf")).fit(X, Y)


@pytest.fixture
def run(model, tmp_path):
    return model.save(tmp_path / "run")


@pytest.mark.parametrize("expansion", ["none", "last", "last-two", "all"])
def test_a_saved_model_answers_as_before(expansion, tmp_path):
    model = ClassDiscovery(**QUICK, expansion=expansion).fit(X, Y)
    loaded = ClassDiscovery.load(model.save(tmp_path / "run"))
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))


def test_everything_learned_is_kept(model, run):
    loaded = ClassDiscovery.load(run)
    kept = "classes_ labels_ embedding_ pseudo_labels_ spectral_embedding_ spectral_rows_"
    for name in kept.split():
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name), err_msg=name)
    assert loaded.history_ == model.history_
    assert loaded.label_weight == float("inf")
    assert loaded.get_params() == model.get_params()
    with pytest.raises(ValueError, match="stage must be None for a loaded model"):
        loaded.transform(X, stage="pretrain")


def test_a_run_is_never_overwritten_unless_forced(model, run):
    with pytest.raises(FileExistsError, match="must not exist yet"):
        model.save(run)
    model.save(run, force=True)
    assert read_run(run).history == model.history_


def test_a_folder_that_is_no_run_is_not_replaced_even_by_force(model, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("...")
    with pytest.raises(FileExistsError, match="must be a run folder to be replaced"):
        model.save(tmp_path / "precious", force=True)
    assert (tmp_path / "precious" / "thesis.tex").exists()


def test_nothing_is_left_behind_when_writing_fails(model, tmp_path, monkeypatch):
    def full(*args):
        raise OSError("No space left on device")

    monkeypatch.setattr("cdknet.runs.format.write_through", full)
    with pytest.raises(OSError, match="No space"):
        model.save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_the_summary_counts_every_sample(run):
    facts = summary(read_run(run))
    assert sum(row["samples"] for row in facts["classes"]) == facts["samples"] == 240
    assert [row["kind"] for row in facts["classes"]] == ["old"] * 3 + ["new"] * 2


FILES = ["history.jsonl", "weights.safetensors", "embedding.npz", "labels.csv"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "short", "flipped", "link"])
def test_damage_is_found(run, name, damage, tmp_path):
    path = run / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "short":
        path.write_bytes(content[:-1])
    elif damage == "flipped":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        path.unlink()
        (tmp_path / "elsewhere").write_bytes(content)
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"{name}.*damaged"):
        ClassDiscovery.load(run)


def rewrite(run, change):
    config = json.loads((run / "config.json").read_text())
    change(config)
    (run / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format="other"), "must be of format"),
        (lambda c: c.update(version=99), "must be of version 1. Got 99"),
        (lambda c: c.pop("files"), "must list the run's files"),
        (lambda c: c["files"].update({"../x": {"bytes": 1}}), "files of its own folder"),
        (lambda c: c["files"].update({"/etc/passwd": {"bytes": 1}}), "files of its own folder"),
        (lambda c: c["files"].update({"labels.csv": 5}), "must state the size"),
        (lambda c: c.pop("options"), "must be whole"),
        (lambda c: c.update(classes=[1, 2]), "must name each of its classes"),
        (lambda c: c["blueprint"].update(feature_size=7), "weights must fit its network"),
        (lambda c: c["blueprint"].update(surprise=7), "must be whole"),
    ],
)
def test_a_foreign_or_tampered_configuration_is_refused(run, change, message):
    rewrite(run, change)
    with pytest.raises(ValueError, match=message):
        ClassDiscovery.load(run)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_object_is_refused(run, content):
    (run / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match="must hold"):
        read_run(run)


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        read_run(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"no config\.json"):
        read_run(tmp_path)


def test_no_pickle_is_ever_read(run):
    """An embedding of objects, with a right checksum: refused all the same."""
    import hashlib

    np.savez(run / "embedding.npz", features=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    content = (run / "embedding.npz").read_bytes()
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    rewrite(run, lambda c: c["files"].update({"embedding.npz": entry}))
    with pytest.raises(ValueError, match="no pickle is ever opened"):
        read_run(run)


def test_writing_what_was_read_gives_the_same_files(run, tmp_path):
    write_run(tmp_path / "copy", read_run(run))
    for name in FILES:
        assert (tmp_path / "copy" / name).read_bytes() == (run / name).read_bytes(), name


# Checkpoints


def test_a_checkpoint_keeps_one_job_and_no_other(tmp_path):
    FolderCheckpoint(tmp_path / "c", {"seed": 7})
    assert not (tmp_path / "c").exists(), "nothing is written before there is something to keep"
    first = FolderCheckpoint(tmp_path / "c", {"seed": 1, "lambda": 10.0})
    first.save("pretrain", Snapshot(1, True, {}, {"history": []}))
    FolderCheckpoint(tmp_path / "c", {"seed": 1, "lambda": 10.0})
    with pytest.raises(ValueError, match=r"same data and options.*seed was 1, is 2"):
        FolderCheckpoint(tmp_path / "c", {"seed": 2, "lambda": 10.0})
    with pytest.raises(ValueError, match=r"Got other data\. Use the same"):  # no digest
        FolderCheckpoint(tmp_path / "c", {"seed": 1, "lambda": 10.0, "data": "bd83"})
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "file").touch()
    with pytest.raises(ValueError, match="Got other files"):
        FolderCheckpoint(tmp_path / "d", {})


def test_a_damaged_checkpoint_is_named(tmp_path):
    checkpoint = FolderCheckpoint(tmp_path / "c", {})
    checkpoint.save("pretrain", Snapshot(3, True, {}, {"history": []}))
    assert checkpoint.load("pretrain").epoch == 3
    (tmp_path / "c" / "pretrain.safetensors").write_bytes(b"garbage")
    with pytest.raises(ValueError, match="must be a checkpoint"):
        checkpoint.load("pretrain")


def test_an_interrupted_fit_goes_on_from_its_checkpoint(tmp_path, model):
    def stop_in_stage_2(row):
        if row["stage"] == "discover" and row["epoch"] == 2:
            raise KeyboardInterrupt

    params = {**QUICK, "label_weight": float("inf"), "checkpoint_dir": tmp_path / "c"}
    with pytest.raises(KeyboardInterrupt):
        ClassDiscovery(**params, watchers=[stop_in_stage_2]).fit(X, Y)
    rows = []
    resumed = ClassDiscovery(**params, watchers=[rows.append]).fit(X, Y)
    np.testing.assert_array_equal(resumed.embedding_, model.embedding_)
    assert (rows[0]["stage"], rows[0]["epoch"]) == ("discover", 2), "epoch 1 was kept by Ctrl-C"
    with pytest.raises(ValueError, match="Got other data"):
        ClassDiscovery(**params).fit(X + 1, Y)
    shutil.rmtree(tmp_path / "c")


def test_fingerprints_tell_data_apart():
    a = np.arange(12.0).reshape(4, 3)
    prints = {fingerprint(b) for b in (a, a + 1, a.reshape(3, 4), a.astype(np.float32), a[:3])}
    assert len(prints) == 5
    assert fingerprint(a) == fingerprint(a.copy())


def test_a_fingerprint_sees_every_row_of_a_large_array():
    large = np.zeros((1100, 2**15), dtype=np.uint8)
    before = fingerprint(large)
    for row in (0, 1, 700, 1099):
        large[row, 5] = 1
        assert fingerprint(large) != before
        large[row, 5] = 0
    assert fingerprint(large) == before
    assert fingerprint(large[:, :0]) != fingerprint(large[:0])


def test_a_torn_line_goes_before_the_next_is_added(tmp_path):
    path = tmp_path / "lines.jsonl"
    append_jsonl(path, {"a": 1}, {"b": 2})
    with path.open("a") as file:
        file.write('{"torn": ')
    assert read_jsonl(path) == [{"a": 1}, {"b": 2}]
    append_jsonl(path, {"c": 3})
    assert read_jsonl(path) == [{"a": 1}, {"b": 2}, {"c": 3}]


@pytest.mark.parametrize("how", ["compressed", "promises", "objects", "no archive"])
def test_an_archive_gives_no_more_than_it_holds(how):
    good = {"features": np.arange(6, dtype=np.float32).reshape(2, 3), "empty": np.zeros((0, 4))}
    buffer = io.BytesIO()
    np.savez(buffer, **good)
    read = read_npz(buffer.getvalue())
    assert all(
        np.array_equal(read[name], array) and read[name].dtype == array.dtype for name, array in good.items()
    )
    content = buffer.getvalue()
    if how == "compressed":
        buffer = io.BytesIO()
        np.savez_compressed(buffer, features=np.zeros(10**6))
        content = buffer.getvalue()
    elif how == "promises":
        whole = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            whole, {"descr": "<f4", "fortran_order": False, "shape": (10**12,)}
        )
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("features.npy", whole.getvalue() + bytes(8))
        content = buffer.getvalue()
    elif how == "objects":
        buffer = io.BytesIO()
        np.savez(buffer, features=np.array([{}], dtype=object))
        content = buffer.getvalue()
    else:
        content = content[:50]
    with pytest.raises(ValueError, match=r"must|not"):
        read_npz(content)


@pytest.mark.parametrize(
    "change",
    [
        {"feature_size": 10**9},
        {"statistics_size": 10**12},
        {"sample_shape": (1, 300_000, 300_000)},
        {"extra_units": 1e9},
        {"n_new_classes": 10**9},
        {"architecture": "another"},
    ],
)
def test_a_network_is_not_built_that_its_weights_cannot_fill(change):
    blueprint = Blueprint("mlp", (6,), 6, 128, 3, 2, "last-two", 0.25)
    blueprint.check(50_000)
    with pytest.raises(ValueError, match="The run"):
        blueprint._replace(**change).check(50_000)
