"""Run folders: what is written is read back, and damaged or foreign folders are refused."""

import ast
import hashlib
import io
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cdknet import ClassDiscovery
from cdknet.explorer.folder import open_run
from cdknet.nets.model import Blueprint
from cdknet.runs.checkpoints import FolderCheckpoint, Snapshot
from cdknet.runs.files import append_jsonl, npz_bytes, read_jsonl, read_npz
from cdknet.runs.fingerprints import fingerprint
from cdknet.runs.format import read_run, write_run
from cdknet.runs.summary import summary

from contracts import blob_problem
from runmaker import make_run

X, Y, TRUTH = blob_problem()
QUICK = {
    "n_new_classes": 2,
    "unlabelled": "new",
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
def test_a_loaded_model_predicts_the_same(expansion, tmp_path):
    model = ClassDiscovery(**QUICK, expansion=expansion).fit(X, Y)
    loaded = ClassDiscovery.load(model.save(tmp_path / "run"))
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))


def test_everything_learned_is_saved(model, run):
    loaded = ClassDiscovery.load(run)
    learned = "classes_ labels_ confidence_ embedding_ pseudo_labels_ spectral_embedding_ spectral_rows_"
    for name in learned.split():
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


def test_a_folder_that_is_not_a_run_is_never_replaced(model, tmp_path):
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
def test_damage_is_detected(run, name, damage, tmp_path):
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


LISTED = {"bytes": 1, "sha256": "0"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format="other"), "must be of format"),
        (lambda c: c.update(version=99), "must be of version 1 to 2. Got 99"),
        (lambda c: c.pop("files"), "nothing on files"),
        (lambda c: c["files"].update({"../x": LISTED}), "files of its own folder"),
        (lambda c: c["files"].update({"/etc/passwd": LISTED}), "files of its own folder"),
        (lambda c: c["files"].update({"labels.csv": 5}), "files.labels.csv must be an object"),
        (lambda c: c.pop("options"), "must be complete"),
        (lambda c: c.update(classes=[1, 2]), "2 names for 3 old and 2 new classes"),
        (lambda c: c["blueprint"].update(feature_size=7), "weights must fit its network"),
        (lambda c: c["blueprint"].update(surprise=7), "must be (whole|complete)"),
    ],
)
def test_a_foreign_or_tampered_configuration_is_refused(run, change, message):
    rewrite(run, change)
    with pytest.raises(ValueError, match=message):
        ClassDiscovery.load(run)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_config_that_is_not_a_json_object_is_refused(run, content):
    (run / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match="must hold"):
        read_run(run)


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        read_run(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"no config\.json"):
        read_run(tmp_path)


def test_no_pickle_is_ever_read(run):
    """Also not from an embedding of objects that has the right checksum."""
    np.savez(run / "embedding.npz", features=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    replace_listed(run, "embedding.npz", (run / "embedding.npz").read_bytes())
    with pytest.raises(ValueError, match="no pickle is ever opened"):
        read_run(run)


def test_writing_what_was_read_gives_the_same_files(run, tmp_path):
    write_run(tmp_path / "copy", read_run(run))
    for name in FILES:
        assert (tmp_path / "copy" / name).read_bytes() == (run / name).read_bytes(), name


def replace_listed(run, name, content):
    """Change a file of a run, with the size and sum in config.json."""
    (run / name).write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    rewrite(run, lambda c: c["files"].update({name: entry}))


def change_csv(before, after):
    def change(run):
        text = (run / "labels.csv").read_text()
        assert before in text
        replace_listed(run, "labels.csv", text.replace(before, after, 1).encode())

    return change


def change_embedding(change):
    def apply(run):
        arrays = read_npz((run / "embedding.npz").read_bytes())
        replace_listed(run, "embedding.npz", npz_bytes({**arrays, **change(arrays)}))

    return apply


def change_config(**changes):
    return lambda run: rewrite(run, lambda c: c.update(changes))


def change_blueprint(**changes):
    return lambda run: rewrite(run, lambda c: c["blueprint"].update(changes))


FIVE = ["kind 0", "kind 1", "kind 2", "new-1", "new-2"]
MISFITS = {
    "shared name": (change_config(classes=[*FIVE[:4], "new-1"]), "share a name or an id"),
    "shared id": (change_config(class_ids=[0, 1, 2, 3, 3]), "share a name or an id"),
    "missing id": (change_config(class_ids=[0, 1, 2, 3]), "4 ids for 5 classes"),
    "large id": (change_config(class_ids=[0, 1, 2, 3, 65535]), "must be a whole number from 0 to 59999"),
    "negative id": (change_config(class_ids=[-1, 1, 2, 3, 4]), "must be a whole number from 0"),
    "no classes": (change_config(classes=[]), "no classes"),
    "number of classes": (change_config(classes=7), "classes must be a list"),
    "too few old classes": (change_blueprint(n_old_classes=2), "5 names for 2 old and 2 new"),
    "text for a number": (change_blueprint(n_new_classes="two"), "n_new_classes must be a whole number"),
    "no blueprint": (change_config(blueprint=[]), "blueprint must be an object"),
    "no sample shape": (change_blueprint(sample_shape=[]), "sample_shape must be a list"),
    "seed": (change_config(seed=None), "seed must be a whole number"),
    "unknown label": (change_csv("new-1", "new-7"), "the label 'new-7'"),
    "missing column": (change_csv("given", "taken"), "no column given"),
    "short row": (change_csv("row 1,", ""), "5 values for 6 columns in row 2 of labels.csv"),
    "no rows": (lambda run: replace_listed(run, "labels.csv", b""), "no confidence"),
    "not finite in text": (change_csv("1.0000", "nan"), "not finite"),
    "not a number": (change_csv("1.0000", "high"), "could not convert"),
    "not finite": (change_embedding(lambda a: {"features": a["features"] * np.inf}), "not finite"),
    "fewer features": (change_embedding(lambda a: {"features": a["features"][1:]}), "29 rows of 8 features"),
    "flat features": (
        change_embedding(lambda a: {"features": a["features"][:, 0]}),
        "features of float32 in the shape",
    ),
    "fewer confidences": (change_embedding(lambda a: {"confidence": np.ones(29)}), "confidences of shape"),
    "history of lists": (
        lambda run: replace_listed(run, "history.jsonl", b"[1]\n"),
        "history.jsonl, line 1, must be an object",
    ),
    "history of text": (lambda run: replace_listed(run, "history.jsonl", b"{\n"), "must be readable"),
    "labels of bytes": (lambda run: replace_listed(run, "labels.csv", b"\xff"), "must be readable"),
    "not an archive": (lambda run: replace_listed(run, "embedding.npz", b"x"), "must be readable"),
    "not an array": (lambda run: replace_listed(run, "samples.npy", b""), "must be an array of NumPy"),
}


@pytest.mark.parametrize(("change", "message"), MISFITS.values(), ids=MISFITS)
def test_files_that_do_not_fit_together_give_one_clear_error_to_every_reader(change, message, tmp_path):
    folder = make_run(tmp_path / "run", n=30)
    read_run(folder)
    change(folder)
    for read in (read_run, open_run, lambda f: read_run(f, weights=False)):
        with pytest.raises(ValueError, match=message) as caught:
            read(folder)
        assert str(folder) in str(caught.value)


def test_damaged_weights_are_refused_by_whoever_reads_them(tmp_path):
    folder = make_run(tmp_path / "run", n=30)
    replace_listed(folder, "weights.safetensors", b"garbage")
    with pytest.raises(ValueError, match="must be readable"):
        read_run(folder)
    assert read_run(folder, weights=False).weights == {}


def test_columns_have_one_typed_entry_per_sample(tmp_path):
    run = read_run(make_run(tmp_path / "run", n=30))
    assert run.ids[:2] == ["row 0", "row 1"]
    assert run.label_names.tolist() == [run.class_names[i] for i in run.class_index]
    assert run.class_index.tolist() == [i % 5 for i in range(30)]
    assert run.given.tolist() == (~run.new).tolist() == [i % 5 < 3 for i in range(30)]
    assert (run.features.shape, run.features.dtype) == ((30, 8), np.float32)
    assert (run.n_old, run.n_new, run.class_ids, run.next_class_id) == (3, 2, [0, 1, 2, 3, 4], 5)
    assert run.sample_shape == run.samples.shape[1:]


def test_confidence_comes_from_the_embedding_and_without_it_from_the_table(tmp_path):
    folder = make_run(tmp_path / "run", n=30)
    in_table = np.array([row["confidence"] for row in read_run(folder).labels], np.float32)
    np.testing.assert_array_equal(read_run(folder).confidence, in_table)
    exact = np.linspace(0, 1, 30, dtype=np.float32)
    change_embedding(lambda arrays: {"confidence": exact})(folder)
    run = read_run(folder)
    np.testing.assert_array_equal(run.confidence, exact)
    np.testing.assert_array_equal(open_run(folder).confidence, exact)
    stated = {row["name"]: row["confidence"] for row in summary(run)["classes"]}
    assert stated["new-1"] == pytest.approx(exact[3::5].mean(dtype=np.float64))


def imports(path):
    """Every module that a file imports, also inside functions and for types."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", ["runs", "explorer"])
def test_runs_and_the_explorer_import_neither_torch_nor_an_upper_layer(package):
    allowed = ["_moved", "options", "core.metrics", "core.openworld", "inputs.kind", "data", "runs"]
    allowed += ["explorer", "__version__"] if package == "explorer" else []
    source = Path(read_run.__code__.co_filename).parent.parent / package
    for path in source.glob("*.py"):
        for name in imports(path):
            root, _, inside = name.partition(".")
            assert root not in ("torch", "sklearn") or path.name == "figures.py", (path, name)
            if root == "cdknet" and inside:
                assert any(f"{inside}.".startswith(f"{layer}.") for layer in allowed), (path, name)


# Checkpoints


def test_a_checkpoint_belongs_to_one_job(tmp_path):
    FolderCheckpoint(tmp_path / "c", {"seed": 7})
    assert not (tmp_path / "c").exists(), "nothing is written before there is something to save"
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


def test_a_damaged_checkpoint_is_refused(tmp_path):
    checkpoint = FolderCheckpoint(tmp_path / "c", {})
    checkpoint.save("pretrain", Snapshot(3, True, {}, {"history": []}))
    assert checkpoint.load("pretrain").epoch == 3
    (tmp_path / "c" / "pretrain.safetensors").write_bytes(b"garbage")
    with pytest.raises(ValueError, match="must be a checkpoint"):
        checkpoint.load("pretrain")


def test_an_interrupted_fit_resumes_from_its_checkpoint(tmp_path, model):
    def stop_in_stage_2(row):
        if row["stage"] == "discover" and row["epoch"] == 2:
            raise KeyboardInterrupt

    params = {**QUICK, "label_weight": float("inf"), "checkpoint_dir": tmp_path / "c"}
    with pytest.raises(KeyboardInterrupt):
        ClassDiscovery(**params, watchers=[stop_in_stage_2]).fit(X, Y)
    rows = []
    resumed = ClassDiscovery(**params, watchers=[rows.append]).fit(X, Y)
    np.testing.assert_array_equal(resumed.embedding_, model.embedding_)
    assert (rows[0]["stage"], rows[0]["epoch"]) == ("discover", 2), "epoch 1 was saved on Ctrl-C"
    with pytest.raises(ValueError, match="Got other data"):
        ClassDiscovery(**params).fit(X + 1, Y)
    shutil.rmtree(tmp_path / "c")


def test_fingerprints_distinguish_data():
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


def test_an_incomplete_line_is_removed_before_the_next_is_added(tmp_path):
    path = tmp_path / "lines.jsonl"
    append_jsonl(path, {"a": 1}, {"b": 2})
    with path.open("a") as file:
        file.write('{"incomplete": ')
    assert read_jsonl(path) == [{"a": 1}, {"b": 2}]
    append_jsonl(path, {"c": 3})
    assert read_jsonl(path) == [{"a": 1}, {"b": 2}, {"c": 3}]


@pytest.mark.parametrize("how", ["compressed", "false header", "objects", "truncated"])
def test_an_archive_never_yields_more_than_its_size(how):
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
    elif how == "false header":
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
def test_a_network_larger_than_its_weights_is_not_built(change):
    blueprint = Blueprint("mlp", (6,), 6, 128, 3, 2, "last-two", 0.25)
    blueprint.check(50_000)
    with pytest.raises(ValueError, match="The run"):
        blueprint._replace(**change).check(50_000)
