"""Texts on the command line: from a table to a run folder, to labels, and back with the same encoder only."""

from __future__ import annotations

import csv
import json
from importlib.util import find_spec

import numpy as np
import pytest

from cdknet.cli import main
from cdknet.runs.format import TEXTS, read_run

if find_spec("wordllama") is None or find_spec("tokenizers") is None:
    pytest.skip("needs wordllama: pip install 'cdknet[text]'", allow_module_level=True)

TOPICS = {
    "refund": [
        "I want my money back for order {}",
        "please refund purchase {}",
        "return the payment of bill {}",
    ],
    "login": [
        "cannot sign in to account {}",
        "the password of user {} is rejected",
        "locked out of login {}",
    ],
    "parcel": ["where is my parcel {}", "delivery {} has not arrived", "the courier lost package {}"],
    "battery": ["battery {} drains overnight", "phone {} does not charge", "the charger of device {} is hot"],
}
FEW = ["--view-steps", "5", "--head-steps", "5", "--label-epochs", "2", "--expand-steps", "9"]
FEW += ["--encoder", "wordllama", "--no-calibrate"]


def tickets(path, n=96, labelled=True):
    names = list(TOPICS)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["number", "message", "team", "asked"])
        for i in range(n):
            topic = names[i % 4]
            text = TOPICS[topic][i // 4 % 3].format(i) + ", <b>ü</b>"
            known = labelled and topic in ("refund", "login") and i % 8 < 4
            rows.writerow([f"t{i}", text, topic if known else "", i % 5])
    return path


READING = ["--text", "message", "--label-column", "team", "--id-column", "number"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    data = str(tickets(folder / "tickets.csv"))
    out = folder / "run"
    assert main(["discover", data, *READING, "--new-classes", "2", "--out", str(out), *FEW]) == 0
    return out


def test_a_run_has_its_texts_and_says_what_encoded_them(run):
    opened = read_run(run, weights=False)
    assert opened.texts[1].startswith("cannot sign in to account 1, <b>ü</b>")
    assert len(opened.texts) == len(opened) == 96
    assert opened.ids[5] == "t5"
    assert opened.config["encoder"]["name"] == "wordllama"
    assert opened.config["text_columns"] == ["message"]
    assert opened.config["files"][TEXTS]["bytes"] == (run / TEXTS).stat().st_size


def test_changed_texts_are_noticed(run, tmp_path):
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    content = (copy / TEXTS).read_bytes()
    (copy / TEXTS).write_bytes(content.replace(b"parcel", b"barrel"))
    with pytest.raises(ValueError, match="SHA-256"):
        read_run(copy, weights=False)


def test_predict_reads_the_same_column_with_the_same_encoder(run, tmp_path, capsys):
    more = tickets(tmp_path / "more.csv", 12, labelled=False)
    assert main(["predict", str(run), str(more), "--out", str(tmp_path / "out.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 12
    again = ["predict", str(run), str(more), "--out", str(tmp_path / "out.csv"), "--force"]
    assert main([*again, "--encoder", "minilm"]) == 2
    error = capsys.readouterr().err
    assert "must come from the encoder that the run was made with, wordllama. Got minilm" in error
    config = json.loads((run / "config.json").read_text())
    config["encoder"]["weights_sha256"] = "1" * 64
    other = tmp_path / "other"
    other.mkdir()
    for path in run.iterdir():
        if path.is_file() and path.name != "config.json":
            (other / path.name).write_bytes(path.read_bytes())
    (other / "pictures").mkdir()
    for path in (run / "pictures").iterdir():
        (other / "pictures" / path.name).write_bytes(path.read_bytes())
    (other / "config.json").write_text(json.dumps(config))
    assert main(["predict", str(other), str(more), "--out", str(tmp_path / "no.csv")]) == 2
    assert "wordllama with weights 111111111111. Got weights 64b47a2dc493" in capsys.readouterr().err
    assert not (tmp_path / "no.csv").exists()


def test_embed_writes_vectors_that_discover_and_predict_read(run, tmp_path, capsys):
    data, out = tickets(tmp_path / "tickets.csv"), tmp_path / "vectors.npz"
    command = ["embed", str(data), *READING, "--encoder", "wordllama", "--out", str(out), "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["dimensions"] == 256
    with np.load(out) as arrays:
        np.testing.assert_allclose(arrays["X"], np.load(run / "samples.npy"), atol=1e-6)
        assert arrays["y"].tolist()[:3] == ["refund", "login", "-1"]
    assert main(["predict", str(run), str(out), "--out", str(tmp_path / "labels.csv"), "--json"]) == 0
    assert main(command) == 2
    assert "add --force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ([], "say --text message"),
        (["--text", "massage"], "text must name a column. Got 'massage'"),
        (
            ["--text", "message", "--encoder", "bert"],
            "one of minilm, wordllama, efficientnet-lite0. Got 'bert'",
        ),
        (["--drop", "message", "--encoder", "minilm"], "without --text"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, flags, what):
    data = tickets(tmp_path / "tickets.csv", 300)
    flags = [*flags, "--id-column", "number", "--label-column", "team"]
    assert main(["discover", str(data), *flags, "--new-classes", "2", "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert what in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_texts_that_the_run_does_not_store_come_from_the_data_again(run, tmp_path):
    import shutil

    from cdknet.cli import review

    data = tickets(tmp_path / "tickets.csv")
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    config = json.loads((copy / "config.json").read_text())
    for name in (TEXTS, "samples.npy"):
        (copy / name).unlink()
        del config["files"][name]
    (copy / "config.json").write_text(json.dumps(config))
    assert review._session(copy, None, None, {}).about()["kind"] == "vector"
    session = review._session(copy, None, str(data), {})
    assert session.about()["kind"] == "text"
    assert session.sample(1)["text"].startswith("cannot sign in to account 1")


def test_a_refined_run_keeps_its_texts(run, tmp_path):
    assert main(["refine", str(run), "--out", str(tmp_path / "refined")]) == 0
    before, after = read_run(run, weights=False), read_run(tmp_path / "refined", weights=False)
    assert after.texts == before.texts
    assert after.config["encoder"] == before.config["encoder"]


def test_without_samples_the_run_has_no_texts_either(run, tmp_path):
    from cdknet import ClassDiscovery, data, encoders
    from cdknet.cli import fits

    read = data.open(tickets(tmp_path / "tickets.csv"), text=["message"], id_column="number")
    samples, model = encoders.encoded(read, "wordllama"), ClassDiscovery.load(run)
    for keep in (True, False):
        fits._save(model, samples, tmp_path / f"run-{keep}", force=False, keep_samples=keep)
        there = b"".join(
            path.read_bytes() for path in (tmp_path / f"run-{keep}").rglob("*") if path.is_file()
        )
        assert (b"where is my parcel" in there) is keep
