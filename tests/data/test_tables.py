"""Tables: the roles of columns, the encoding of text, and what is refused."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdknet import data

pa = pytest.importorskip("pyarrow", reason="pyarrow, the extra `tables`, is not installed")
import pyarrow.parquet as pq  # noqa: E402


def opened(folder, text, **options):
    path = Path(folder) / "a.csv"
    path.write_text(text, encoding="utf-8", newline="")
    return data.open(path, **options)


def refused(folder, text, match, **options):
    with pytest.raises(ValueError, match=match) as caught:
        opened(folder, text, **options)
    assert "a.csv" in str(caught.value)


words = st.sampled_from(["red", "green", "deep blue", "a;b", 'q"q', "line\nbreak", "ü"])


@given(
    rows=st.lists(
        st.tuples(
            st.floats(-1e6, 1e6, width=32),
            words,
            st.integers(-(10**6), 10**6),
            st.none() | st.integers(0, 3),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_csv_and_parquet_of_the_same_table_agree(rows):
    import csv

    names = ["a", "colour", "b", "label"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([names, *rows])
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        columns["label"] = pa.array(columns["label"], pa.int64())
        pq.write_table(pa.table(columns), path.with_suffix(".parquet"))
        one, two = data.open(path), data.open(path.with_suffix(".parquet"))
    np.testing.assert_array_equal(one.X, two.X)
    np.testing.assert_array_equal(one.y, two.y)
    assert one.notes == two.notes
    assert one.y.tolist() == [-1 if row[3] is None else row[3] for row in rows]


@given(cells=st.lists(words, min_size=1, max_size=20))
def test_a_text_column_becomes_one_column_of_ones_for_each_value(cells):
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({"colour": cells, "x": np.arange(len(cells))})
        pq.write_table(table, Path(folder) / "a.parquet")
        X = data.open(Path(folder) / "a.parquet").X
    one_hot = X[:, :-1]
    assert one_hot.shape[1] == len(set(cells))
    assert set(np.unique(one_hot)) <= {0.0, 1.0}
    np.testing.assert_array_equal(one_hot.sum(axis=1), 1)
    same = np.array(cells)[:, None] == np.array(cells)[None, :]
    np.testing.assert_array_equal(one_hot @ one_hot.T == 1, same)


def test_label_and_id_columns_are_found_by_name_or_named(tmp_path):
    text = "id,x,y,label,kind\ns1,1,2,0,3\ns2,4,5,,6\n"
    samples = opened(tmp_path, text)
    np.testing.assert_array_equal(samples.X, [[1, 2, 3], [4, 5, 6]])  # y is a coordinate, not a label
    assert samples.y.tolist() == [0, -1]
    assert samples.ids.tolist() == ["s1", "s2"]
    assert samples.notes == ("ids from column 'id'", "labels from column 'label'; 1 of 2 samples unlabelled")
    samples = opened(tmp_path, text.replace(",,", ",9,"), label_column="kind", id_column="x")
    assert samples.y.tolist() == [3, 6]
    assert samples.ids.tolist() == ["1", "4"]
    np.testing.assert_array_equal(samples.X[:, 2:], [[2, 0], [5, 9]])  # after two columns for the text in id
    refused(tmp_path, "a,label,class\n1,2,3\n", r"only one column may look like its label_column.*'class'")
    refused(
        tmp_path, "a,b\n1,2\n", r"label_column must name a column. Got 'c'; there are a, b", label_column="c"
    )
    refused(tmp_path, "a,b\n1,2\n", "must differ", label_column="a", id_column="a")
    refused(tmp_path, "label\n1\n", "a feature column")
    refused(tmp_path, "a,a\n1,2\n", "column names must be unique. Got 'a'")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_separators_line_ends_and_byte_order_marks_do_not_matter(separator, ending, tmp_path):
    lines = ["\ufeffa,b,label", "1,2.5,x", "", "3,4,"]
    samples = opened(tmp_path, ending.join(lines).replace(",", separator))
    np.testing.assert_array_equal(samples.X, [[1, 2.5], [3, 4]])
    assert samples.y.tolist() == ["x", "-1"]


def test_a_table_without_column_names_is_all_samples(tmp_path):
    samples = opened(tmp_path, "1,2,7\n3,4,-1\n", label_column="column 2")
    np.testing.assert_array_equal(samples.X, [[1, 2], [3, 4]])
    assert samples.y.tolist() == [7, -1]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["0", "1", ""], [0, 1, -1]),
        (["0", "-1", "2"], [0, -1, 2]),
        (["01", "1", ""], ["01", "1", "-1"]),  # not one class
        (["1.0", "2.00", ""], [1, 2, -1]),  # what pandas writes next to missing values
        (["1.5", "2", ""], ["1.5", "2", "-1"]),
        (["1.", "-1.0", "."], ["1.", "-1.0", "."]),
        (["cat", "1", " "], ["cat", "1", "-1"]),
        (["", "", ""], [-1, -1, -1]),
        (["9" * 30, "1", "2"], ["9" * 30, "1", "2"]),
    ],
)
def test_labels_are_numbers_only_where_all_are_plain_whole_numbers(labels, expected, tmp_path):
    text = "x,label\n" + "".join(f'{i},"{label}"\n' for i, label in enumerate(labels))
    assert opened(tmp_path, text).y.tolist() == expected


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,b\n1,2\n3\n", "every row must have 2 cells.*Got 1 in row 1"),
        ("a,b\n1,2\n3,4,5\n", "every row must have 2 cells.*Got 3 in row 1"),
        ("a,b\n1,2\n3,\n", "column 'b' holds numbers.*Got a blank cell in row 1"),
        ("a,b\n1,2\n3,4O\n", "column 'b' holds numbers.*Got '4O' in row 1"),
        ("a,b\n1,x\n3,4\n", "column 'b' starts with text.*Got the number 4 in row 1"),
        ("a,b\n", "at least one row of values"),
        ("\n\n \n", "blank lines only"),
        ('a,b\n1,"2\n3,4\n', "not a valid CSV"),
        ("a,b\n" + "".join(f"{i},w{i}\n" for i in range(70)), "at most 64 different values.*column 'b'"),
        ("a,label\n1," + "x" * 600 + "\n", "at most 512 characters"),
    ],
)
def test_tables_with_an_error_are_refused_with_its_position(text, match, tmp_path):
    refused(tmp_path, text, match)


def test_errors_are_found_beyond_the_first_block(tmp_path, monkeypatch):
    from cdknet.data import tables

    monkeypatch.setattr(tables, "BLOCK_CHARACTERS", 50)
    rows = [f"{i},w{i % 3}" for i in range(200)]
    good = opened(tmp_path, "a,b\n" + "\n".join(rows))
    assert good.X.shape == (200, 4)
    np.testing.assert_array_equal(good.X[:, 0], np.arange(200))
    rows[150] = "150.x,w1"
    refused(tmp_path, "a,b\n" + "\n".join(rows), "Got '150.x' in row 150")


def test_bytes_that_are_not_utf8_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("a,label\n1,früh\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"a\.csv: must be UTF-8 text"):
        data.open(path)


def test_parquet_types_that_are_neither_numbers_nor_text_are_refused(tmp_path):
    import datetime

    path = tmp_path / "a.parquet"
    for column in ([datetime.date(2020, 1, 1)], [[1.0, 2.0]], [b"bytes"], [{"a": 1}]):
        pq.write_table(pa.table({"x": [1.0], "odd": column}), path)
        with pytest.raises(ValueError, match=r"a\.parquet: feature columns must hold numbers or text.*'odd'"):
            data.open(path)
    pq.write_table(pa.table({"x": pa.array([1.0, None])}), path)
    with pytest.raises(ValueError, match=r"column 'x'.*blank cell in row 1"):
        data.open(path)


def test_parquet_categories_booleans_and_float_labels_are_read(tmp_path):
    path = tmp_path / "a.parquet"
    table = {
        "flag": [True, False, True],
        "size": pa.array(["S", "L", "S"]).dictionary_encode(),
        "label": pa.array([1.0, None, 0.0]),  # pandas stores whole numbers with missing values as floats
    }
    pq.write_table(pa.table(table), path, row_group_size=2)
    samples = data.open(path)
    np.testing.assert_array_equal(samples.X, [[1, 1, 0], [0, 0, 1], [1, 1, 0]])
    assert samples.y.tolist() == [1, -1, 0]
    same = tmp_path / "a.csv"
    same.write_text("flag,size,label\nTrue,S,1\nFalse,L,\nTRUE,S,0\n")
    assert data.open(same).columns == samples.columns  # a run on one file reads the other
    np.testing.assert_array_equal(data.open(same).X, samples.X)
    same.write_text("flag,size\nTrue,S\n,L\nfalse,S\n")
    with pytest.raises(ValueError, match=r"column 'flag' holds numbers.*a blank cell in row 1"):
        data.open(same)
    assert data.open(same, fill=True).X[:, 0].tolist() == [1, 0.5, 0]
    same.write_text("flag,size\nTrue,S\nmaybe,L\n")
    assert data.open(same).columns[:2] == ("flag=True", "flag=maybe")  # then it is categorical


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    import sys

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1.0]}), path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'cdknet\[tables\]'"):
        data.open(path)


def test_the_index_of_a_data_frame_is_not_a_feature(tmp_path):
    samples = opened(tmp_path, ",a,label\n0,1.5,x\n1,2.5,\n")
    assert samples.X.tolist() == [[1.5], [2.5]]
    assert samples.columns == ("a",)
    assert any("index of a data frame" in note for note in samples.notes)
    pq.write_table(pa.table({"a": [1.5, 2.5], "__index_level_0__": [7, 3]}), tmp_path / "t.parquet")
    assert data.open(tmp_path / "t.parquet").columns == ("a",)


def test_nan_as_a_label_means_unlabelled(tmp_path):
    assert opened(tmp_path, "a,label\n1,3\n2,NaN\n3,4\n").y.tolist() == [3, -1, 4]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a;b;label\n1,5;2;x\n2,5;3;y\n", "decimal point. Got '1,5' in column 'a'"),
        ("1,5;2,5;3,5\n2,5;3,5;4,5\n", "decimal point"),
        ("a,b\n,1\n2,3\n", "'a' holds numbers.*blank cell in row 0"),
    ],
)
def test_numbers_that_are_not_written_as_numbers_are_named(text, match, tmp_path):
    refused(tmp_path, text, match)


def test_columns_can_be_dropped(tmp_path):
    """A column of notes, or one with gaps, need not be removed from the file."""
    table = {
        "a": [1.0, 2.0, 3.0],
        "note": ["x", "y", "z"],
        "gaps": [None, 1.0, None],
        "label": ["p", "q", ""],
    }
    pandas.DataFrame(table).to_csv(tmp_path / "t.csv", index=False)
    pandas.DataFrame(table).to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        with pytest.raises(ValueError, match="gaps"):
            data.open(tmp_path / name)
        samples = data.open(tmp_path / name, drop=["note", "gaps"])
        assert samples.columns == ("a",)
        assert samples.X.tolist() == [[1], [2], [3]]
        with pytest.raises(ValueError, match=r"drop must name a column\. Got 'nothing'"):
            data.open(tmp_path / name, drop=["nothing"])
        with pytest.raises(ValueError, match="drop must name feature columns"):
            data.open(tmp_path / name, drop=["label"])


def test_gaps_are_filled_with_the_median_of_their_column_on_request(tmp_path):
    """A gap may be written in many ways, and may be the first cell; a gap in text stays a category."""
    ages = ["", "1", "NA", "3", "nan", "8", "?", "null"]
    colours = ["red", "", "red", "NA", "red", "red", "red", "nan"]
    table = pa.table(
        {
            "age": pa.array([None, 1, None, 3, None, 8, None, None], pa.int64()),
            "colour": colours,
            "good": [True, True, None, None, False, True, True, True],
            "size": [1.5, float("nan"), 2.5, 3.5, 1.5, 2.5, 2.5, 2.5],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    sizes, good = (
        ["1.5", "NaN", "2.5", "3.5", "1.5", "2.5", "2.5", "2.5"],
        ["True", "True", "", "", "False", "True", "True", "True"],
    )
    lines = [",".join(row) for row in zip(ages, colours, good, sizes, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["age,colour,good,size", *lines]))
    for name in ("t.csv", "t.parquet"):
        samples = data.open(tmp_path / name, fill=True)
        columns = dict(zip(samples.columns, samples.X.T.tolist(), strict=True))
        assert columns["age"] == [3, 1, 3, 3, 3, 8, 3, 3]
        assert columns["good"] == [1, 1, 1, 1, 0, 1, 1, 1]
        assert columns["size"] == [1.5, 2.5, 2.5, 3.5, 1.5, 2.5, 2.5, 2.5]
        assert samples.categories == ("colour",)
        assert samples.fills == {"age": 3, "good": 1, "size": 2.5}
        assert any("'age' 5 with 3" in note and "'size' 1 with 2.5" in note for note in samples.notes)
        given = data.open(tmp_path / name, fill={**samples.fills, "age": 7})
        assert given.X[:, 0].tolist() == [7, 1, 7, 3, 7, 8, 7, 7]
        with pytest.raises(ValueError, match=r"Got a blank cell in row \d\. .* --fill"):
            data.open(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,b\n1,\n2,NA\n", r"column 'b' must hold at least one number\. Got gaps only"),
        ("a,b\n1,2\n2,x\n", r"Got 'x' in row 1"),
        ("a,b\n1,\nx,2\n", r"Got 'x' in row 1"),
        ("a,b\n1,\n2,inf\n", r"must be finite.*column 'b'"),
    ],
)
def test_what_is_not_a_gap_is_not_filled(text, match, tmp_path):
    refused(tmp_path, text, match, fill=True)


def test_notes_distinguish_dropped_columns_from_an_index(tmp_path):
    samples = opened(tmp_path, ",a,note\n0,1,x\n1,2,y\n", drop=["note"], drop_if_there=["elsewhere"])
    assert samples.notes == (
        "column 0 ('') is the index of a data frame and was left out",
        "column 2 ('note') was left out",
    )
    assert samples.dropped == ("note",)
