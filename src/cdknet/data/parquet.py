"""Parquet tables, by pyarrow (the extra `tables`); the same columns and the same rules as a CSV table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .checks import LONGEST_NAME, justified, lost_in_float32, one_error, readable_file
from .samples import Samples
from .tables import MEND, Asked, Feature, Roles, assemble, roles_of

ROWS_A_BATCH = 65_536
LARGEST_THRIFT = 100_000_000  # bytes of a string, entries of a list, in the file's own description of itself


def read_parquet(path: Path, *, shape: Sequence[int] | None = None, **asked: Any) -> Samples:
    """A Parquet table: numbers and truth values are features, text is a category or holds labels or ids."""
    size = readable_file(path, least=12)
    with path.open("rb") as file:
        start = file.read(4)
        file.seek(-4, 2)
        ends = start, file.read(4)
    if ends != (b"PAR1", b"PAR1"):
        raise ValueError(
            f"{path}: not a Parquet file (it starts with {ends[0]!r} and ends with {ends[1]!r}, "
            "not b'PAR1'). It may be cut short."
        )
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError(
            f"{path}: Parquet tables need pyarrow. Install it with: pip install 'cdknet[tables]'."
        ) from None
    with one_error(path, "Parquet table"):
        return _read(path, size, pyarrow, Asked(**asked), shape)


def _read(
    path: Path,
    size: int,
    pa: Any,
    asked: Asked,
    shape: Sequence[int] | None,
) -> Samples:
    limits = {"thrift_string_size_limit": LARGEST_THRIFT, "thrift_container_size_limit": 1_000_000}
    with pa.parquet.ParquetFile(path, **limits) as table:
        schema, rows = table.schema_arrow, table.metadata.num_rows
        names = list(schema.names)
        _check_claims(path, table.metadata, size)
        kinds = {name: _column_kind(pa, schema.field(name).type) for name in names if names.count(name) == 1}
        roles = roles_of(path, names, asked)
        for j in roles.features:
            if not kinds[names[j]]:
                raise ValueError(
                    f"{path}: feature columns must hold numbers or text. Got {schema.field(j).type} in "
                    f"column {names[j]!r}. Convert it or drop it."
                )
    texts = [name for name in names if kinds[name] == "text"]
    features = [Feature(names[j], is_text=kinds[names[j]] == "text") for j in roles.features]
    labels: list[str] = []
    ids: list[str] = []
    n = 0
    # text stays in dictionary form: a name that is repeated a million times is held once
    with pa.parquet.ParquetFile(path, read_dictionary=texts, **limits) as table:
        for batch in table.iter_batches(ROWS_A_BATCH):
            if n + len(batch) > rows:
                raise ValueError(f"{path}: holds more than the {rows:,} rows that it promises.")
            _take(path, pa, batch, roles, features, n, bool(asked.fill))
            if roles.label is not None:
                labels += _as_text(path, batch.column(roles.label), "labels", n)
            if roles.id is not None:
                ids += [text.strip() for text in _as_text(path, batch.column(roles.id), "ids", n)]
            n += len(batch)
    if n != rows or n == 0:
        raise ValueError(f"{path}: must hold the {rows:,} rows that it promises, at least one. Got {n:,}.")
    return assemble(path, features, n, size, roles, names, labels, ids, shape, asked)


def _check_claims(path: Path, metadata: Any, size: int) -> None:
    """Raise unless the rows, columns and bytes that the file claims are justified by its size."""
    if metadata.num_rows < 0 or metadata.num_columns < 1:
        raise ValueError(
            f"{path}: must have columns and rows. Got {metadata.num_columns} and {metadata.num_rows}."
        )
    justified(path, 8 * metadata.num_rows * metadata.num_columns, size, f"its {metadata.num_rows:,} rows")
    unpacked = sum(max(0, metadata.row_group(i).total_byte_size) for i in range(metadata.num_row_groups))
    justified(path, unpacked, size, "unpacking")


def _column_kind(pa: Any, kind: Any) -> str:
    """'number', 'text' or '' for a type that is neither."""
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return "number"
    return "text" if types.is_string(kind) or types.is_large_string(kind) else ""


def _take(
    path: Path, pa: Any, batch: Any, roles: Roles, features: list[Feature], start: int, fill: bool
) -> None:
    for j, feature in zip(roles.features, features, strict=True):
        column = batch.column(j)
        if feature.is_text:
            feature.encode(path, [text.strip() for text in _as_text(path, column, "categories", start)])
            continue
        if column.null_count and not fill:
            row = start + int(np.argmax(np.asarray(column.is_null())))
            raise ValueError(
                f"{path}: column {feature.name!r} holds numbers, so every row must have one. "
                f"Got a blank cell in row {row}. {MEND}"
            )
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        wide = np.asarray(column).astype(np.float64)  # gaps become NaN; truth values with gaps are objects
        feature.lost |= len(lost_in_float32(wide[:, None])) > 0
        with np.errstate(over="ignore"):
            feature.blocks.append(wide.astype(np.float32))


def _as_text(path: Path, column: Any, what: str, start: int) -> list[str]:
    """The cells as CSV would show them: whole numbers without a point, blank for missing."""
    if hasattr(column, "dictionary"):
        column.validate(full=True)  # indices that point outside the dictionary
        values = [_written(path, value, what, start) for value in column.dictionary.to_pylist()]
        return ["" if code is None else values[code] for code in column.indices.to_pylist()]
    return [_written(path, value, what, start + i) for i, value in enumerate(column.to_pylist())]


def _written(path: Path, value: Any, what: str, row: int) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))  # what pandas makes of whole numbers with gaps
    if not isinstance(value, str | int | float):
        raise ValueError(f"{path}: {what} must be text or numbers. Got {type(value).__name__} at row {row}.")
    text = str(value)
    if len(text) > LONGEST_NAME:
        raise ValueError(
            f"{path}: {what} must be at most {LONGEST_NAME} characters. Got {len(text):,} ({text[:30]!r}...)."
        )
    return text
