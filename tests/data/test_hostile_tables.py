"""Tables of any width are read in linear time, and what is no table of ours is refused."""

import csv
import time

import numpy as np
import pytest

from cdknet.data import odd_labels, open
from cdknet.data.checks import printable, unseen

from runmaker import make_run


def seconds_to_read(path, rows, names):
    with path.open("w", newline="") as file:
        csv.writer(file).writerow(names)
        csv.writer(file).writerows(rows)
    start = time.process_time()
    samples = open(path)
    return time.process_time() - start, samples


def test_many_equal_column_names_are_refused_at_once(tmp_path):
    (tmp_path / "same.csv").write_text(",".join(["a"] * 100_000) + "\n" + ",".join(["1"] * 100_000) + "\n")
    start = time.process_time()
    with pytest.raises(ValueError, match=r"must be unique\. Got 'a' more than once"):
        open(tmp_path / "same.csv")
    assert time.process_time() - start < 2


def test_a_wide_table_takes_time_in_proportion_to_its_cells(tmp_path):
    values = np.arange(40 * 20_000).reshape(40, -1) % 997
    names = [f"gene {i}" for i in range(20_000)]
    seconds, samples = seconds_to_read(
        tmp_path / "wide.csv", [[*row, f"kind {row[0] % 3}"] for row in values], [*names, "label"]
    )
    assert seconds < 5, "10 s and more when each column was searched for among all"
    np.testing.assert_array_equal(samples.X, values)
    turned = samples.aligned(tuple(reversed(samples.columns)))
    np.testing.assert_array_equal(turned.X, values[:, ::-1])


def test_a_wide_parquet_table_of_equal_names_is_refused_at_once(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table([pa.array([1.0])] * 10_000, names=["a"] * 10_000), tmp_path / "same.parquet")
    start = time.process_time()
    with pytest.raises(ValueError, match=r"must be unique\. Got 'a' more than once"):
        open(tmp_path / "same.parquet")
    assert time.process_time() - start < 2


def test_numbers_text_and_booleans_stay_in_their_columns_over_many_blocks(tmp_path):
    n = 60_000
    rows = [[i % 7, ["red", "blue"][i % 2], i / 4, ["True", "False"][i % 3 == 0]] for i in range(n)]
    _, samples = seconds_to_read(tmp_path / "mixed.csv", rows, ["a", "colour", "b", "yes"])
    assert samples.columns == ("a", "colour=red", "colour=blue", "b", "yes")
    i = np.arange(n)
    expected = np.column_stack([i % 7, i % 2 == 0, i % 2 == 1, i / 4, i % 3 != 0])
    np.testing.assert_array_equal(samples.X, expected.astype(np.float32))


@pytest.mark.parametrize("suffix", [".csv", ".txt"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32-le"])
def test_other_encodings_are_refused_also_without_a_mark(tmp_path, suffix, encoding):
    path = tmp_path / f"table{suffix}"
    path.write_bytes("1,2\n3,4\n5,6\n".encode(encoding))
    with pytest.raises(ValueError, match="must be UTF-8 text"):
        open(path)


def test_a_run_folder_is_no_data_and_neither_is_no_name(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", n=20)
    (run / "pictures").mkdir()
    with pytest.raises(ValueError, match="Got a run folder"):
        open(run)
    assert len(open(run / "samples.npy")) == 20
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="Got no name"):
        open("")


def test_what_nobody_can_see_is_known_and_escaped():
    fine = ["caf\u00e9 \u4e2d\u6587", "\U0001f468\u200d\U0001f469", "\u0646\u0645\u06cc\u200c\u062f\u0627"]
    assert [unseen(text) for text in fine] == ["", "", ""]
    for text in ("a\u200bb", "\u202eabc", "a\u200db", "\u3164", "a\x1b[2J", "\u2066", "\u00ad", "\U000e0041"):
        assert unseen(text)
        assert printable(text).isascii()
    assert odd_labels(np.array(["cat", "cat\u200b"])) == (
        "label 'cat\\\\u200b' has characters that nobody can see",
    )
