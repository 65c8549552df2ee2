"""Tables whose samples are texts: one or several columns, and what is wrong with them in one line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cdknet import data

ROWS = "id,label,message,title,priority\n" + "".join(
    f'{i},{"" if i % 2 else "billing"},"the invoice, no. {i}",Title {i},{i % 3}\n' for i in range(100)
)


def written(tmp_path, content, name="tickets.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_texts_keep_ids_and_labels_and_leave_other_columns_out(tmp_path):
    samples = data.open(written(tmp_path, ROWS), text=["message"])
    assert samples.texts[:2] == ("the invoice, no. 0", "the invoice, no. 1")
    assert samples.to_encode
    assert samples.X.shape == (100, 0)
    assert samples.columns is None
    assert samples.ids[1] == "1"
    assert (samples.y == "billing").sum() == 50
    assert "with text, other columns are not used: 'title', 'priority'" in samples.notes
    assert samples.about()["text_columns"] == ["message"]
    json.dumps(samples.about())


def test_several_columns_are_joined_without_blank_cells(tmp_path):
    path = written(tmp_path, "title,message\nHelp , it broke\n,only this\n")
    assert data.open(path, text=["title", "message"]).texts == ("Help\nit broke", "only this")
    assert data.open(path, text=["message", "title"]).texts[0] == "it broke\nHelp"


def test_parquet_gives_the_same_texts(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    texts = ["word " * 200, "b", "b"]
    pq.write_table(pa.table({"message": texts, "n": [1, 2, 3]}), tmp_path / "t.parquet")
    samples = data.open(tmp_path / "t.parquet", text=["message"])
    assert samples.texts == tuple(text.strip() for text in texts)
    with pytest.raises(ValueError, match=r"text must name columns of text. Got int64 in 'n'"):
        data.open(tmp_path / "t.parquet", text=["n"])


@pytest.mark.parametrize(
    ("content", "text", "what"),
    [
        (ROWS, ["massage"], "text must name a column. Got 'massage'; there are id, label, message"),
        (ROWS, ["label"], "neither labels nor ids nor dropped"),
        (
            "m,n\na,1\n,2\n b ,3\n  ,4\n",
            ["m"],
            "every sample must have a text. Got a blank one in row 1 and 1 more",
        ),
        ("m\n" + "x" * 1_000_000 + "\n", ["m"], "a cell must be at most 100,000 characters"),
        (
            "m\n" + "x" * 110_000 + "\n",
            ["m"],
            "a text must be at most 100,000 characters. Got 110,000 in row 0",
        ),
        ("m\nZürich\n".encode("latin-1"), ["m"], "must be UTF-8 text"),
    ],
)
def test_bad_tables_of_text_give_one_clear_line(tmp_path, content, text, what):
    with pytest.raises(ValueError) as raised:
        data.open(written(tmp_path, content), text=text)
    assert what in str(raised.value)


def test_free_text_without_the_option_says_what_to_do(tmp_path):
    with pytest.raises(
        ValueError, match=r"If it is text to be read, .* say --text message \(text=\['message'\]\)"
    ):
        data.open(written(tmp_path, ROWS))
    spaced = ROWS.replace("message", "the message")
    with pytest.raises(ValueError, match="say --text 'the message'"):
        data.open(written(tmp_path, spaced))


def test_npz_carries_texts_and_encoder_with_its_vectors(tmp_path):
    lines = np.frombuffer(b'"a\\nb"\n"c"\n', np.uint8)
    known = {"name": "minilm", "weights_sha256": "0"}
    np.savez(tmp_path / "v.npz", X=np.eye(2), texts=lines, encoder=np.array(json.dumps(known)))
    samples = data.open(tmp_path / "v.npz")
    assert samples.texts == ("a\nb", "c")
    assert samples.encoder == known
    assert not samples.to_encode
    assert samples.notes == ()
    np.savez(tmp_path / "v.npz", X=np.eye(2), texts=np.array(["a", "b"]))
    assert data.open(tmp_path / "v.npz").texts == ("a", "b")


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"texts": np.array(["a"])}, r"one entry per sample \(2\). Got 1"),
        ({"texts": np.frombuffer(b"{}\n[]\n", np.uint8)}, "one JSON string per line"),
        ({"texts": np.zeros((2, 2))}, "texts must be one text per sample"),
        ({"encoder": np.array("{")}, "encoder must say in JSON"),
        ({"encoder": np.array([1, 2])}, "encoder must say in JSON"),
    ],
)
def test_bad_texts_of_an_npz_are_refused(tmp_path, arrays, what):
    np.savez(tmp_path / "v.npz", X=np.eye(2), **arrays)
    with pytest.raises(ValueError, match=what):
        data.open(tmp_path / "v.npz")


def test_numbers_are_no_texts(tmp_path):
    with pytest.raises(ValueError, match="Got numbers in 'priority'"):
        data.open(written(tmp_path, ROWS), text=["priority"])
