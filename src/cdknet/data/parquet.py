"""Parquet tables, read with pyarrow (the extra `tables`); columns follow the same rules as in a CSV table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .checks import LONGEST_NAME, as_value_error, check_file, check_memory, lost_in_float32
from .samples import Samples
from .tables import FIX_GAP, Feature, Numbers, Roles, TableOptions, TableParts, assemble, joined, roles_of
from .texts import LONGEST_TEXT

ROWS_PER_BATCH = 65_536
CELLS_PER_BATCH = 2**24
LARGEST_THRIFT = 100_000_000  # bytes of one string in the file's metadata


def read_parquet(path: Path, *, shape: Sequence[int] | None = None, **options: Any) -> Samples:
    """Read a Parquet table: numbers and booleans are features, text is a category, a label or an id."""
    size = check_file(path, min_size=12)
    with path.open("rb") as file:
        start = file.read(4)
        file.seek(-4, 2)
        ends = start, file.read(4)
    if ends != (b"PAR1", b"PAR1"):
        raise ValueError(
            f"{path}: not a Parquet file (it starts with {ends[0]!r} and ends with {ends[1]!r}, "
            "not b'PAR1'). It may be truncated."
        )
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError(
            f"{path}: Parquet tables need pyarrow. Install it with: pip install 'cdknet[tables]'."
        ) from None
    with as_value_error(path, "Parquet table"):
        return _read(path, size, pyarrow, TableOptions(**options), shape)


def _read(
    path: Path,
    size: int,
    pa: Any,
    options: TableOptions,
    shape: Sequence[int] | None,
) -> Samples:
    limits = {"thrift_string_size_limit": LARGEST_THRIFT, "thrift_container_size_limit": 1_000_000}
    with pa.parquet.ParquetFile(path, **limits) as table:
        schema, rows = table.schema_arrow, table.metadata.num_rows
        names = list(schema.names)
        _check_size(path, table.metadata, size)
        roles = roles_of(path, names, options)
        kinds = {field.name: _column_kind(pa, field.type) for field in schema}
        for j in roles.features:
            if not kinds[names[j]]:
                raise ValueError(
                    f"{path}: feature columns must hold numbers or text. Got {schema.field(j).type} in "
                    f"column {names[j]!r}. Convert it, or leave it out (drop, --drop)."
                )
        for j in roles.texts:
            if kinds[names[j]] != "text":
                raise ValueError(
                    f"{path}: text must name columns of text. Got {schema.field(j).type} in {names[j]!r}."
                )
    strings = [name for name in names if kinds[name] == "text"]
    features = [Feature(names[j], is_text=kinds[names[j]] == "text") for j in roles.features]
    numbers: Numbers = []
    labels: list[str] = []
    ids: list[str] = []
    texts: list[str] = []
    n = 0
    # text stays dictionary-encoded: a name repeated a million times is stored once
    with pa.parquet.ParquetFile(path, read_dictionary=strings, **limits) as table:
        for batch in table.iter_batches(max(1, min(ROWS_PER_BATCH, CELLS_PER_BATCH // len(names)))):
            if n + len(batch) > rows:
                raise ValueError(
                    f"{path}: must hold the {rows:,} rows that it declares. Got more. It may be corrupted."
                )
            _append(path, pa, batch, roles, features, numbers, n, bool(options.fill))
            if roles.label is not None:
                labels += _as_text(path, batch.column(roles.label), "labels", n)
            if roles.id is not None:
                ids += [text.strip() for text in _as_text(path, batch.column(roles.id), "ids", n)]
            if roles.texts:
                cells = (_as_text(path, batch.column(j), "texts", n, LONGEST_TEXT) for j in roles.texts)
                texts += [joined(row) for row in zip(*cells, strict=True)]
            n += len(batch)
    if n != rows or n == 0:
        raise ValueError(f"{path}: must hold the {rows:,} rows that it declares, at least one. Got {n:,}.")
    return assemble(
        TableParts(path, size, n, names, roles, features, numbers, labels, ids, texts), shape, options
    )


def _check_size(path: Path, metadata: Any, size: int) -> None:
    """Raise unless the rows, columns and bytes that the file declares are plausible for its size."""
    if metadata.num_rows < 0 or metadata.num_columns < 1:
        raise ValueError(
            f"{path}: must have columns and rows. Got {metadata.num_columns} and {metadata.num_rows}."
        )
    check_memory(path, 8 * metadata.num_rows * metadata.num_columns, size, f"its {metadata.num_rows:,} rows")
    unpacked = sum(max(0, metadata.row_group(i).total_byte_size) for i in range(metadata.num_row_groups))
    check_memory(path, unpacked, size, "unpacking")


def _column_kind(pa: Any, kind: Any) -> str:
    """'number', 'text', or '' for any other type."""
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return "number"
    return "text" if types.is_string(kind) or types.is_large_string(kind) else ""


def _append(
    path: Path,
    pa: Any,
    batch: Any,
    roles: Roles,
    features: list[Feature],
    numbers: Numbers,
    start: int,
    fill: bool,
) -> None:
    """Append a batch of rows to the columns."""
    block = np.empty((len(batch), sum(not feature.is_text for feature in features)), np.float32)
    at = 0
    for j, feature in zip(roles.features, features, strict=True):
        column = batch.column(j)
        if feature.is_text:
            feature.encode(path, [text.strip() for text in _as_text(path, column, "categories", start)])
            continue
        if column.null_count and not fill:
            row = start + int(np.argmax(np.asarray(column.is_null())))
            raise ValueError(
                f"{path}: column {feature.name!r} holds numbers, so every row must have one. "
                f"Got a blank cell in row {row}. {FIX_GAP}"
            )
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        wide = np.asarray(column).astype(np.float64)  # gaps become NaN; booleans with gaps are objects
        feature.lost |= len(lost_in_float32(wide[:, None])) > 0
        with np.errstate(over="ignore"):
            block[:, at] = wide
        at += 1
    numbers.append(block)


def _as_text(path: Path, column: Any, what: str, start: int, longest: int = LONGEST_NAME) -> list[str]:
    """The cells as a CSV file would show them: whole numbers without a point, blank if missing."""
    if hasattr(column, "dictionary"):
        column.validate(full=True)  # raises on indices outside the dictionary
        values = [_written(path, value, what, start, longest) for value in column.dictionary.to_pylist()]
        return ["" if code is None else values[code] for code in column.indices.to_pylist()]
    return [_written(path, value, what, start + i, longest) for i, value in enumerate(column.to_pylist())]


def _written(path: Path, value: Any, what: str, row: int, longest: int) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))  # pandas stores whole numbers with missing values as floats
    if not isinstance(value, str | int | float):
        raise ValueError(f"{path}: {what} must be text or numbers. Got {type(value).__name__} at row {row}.")
    text = str(value)
    if len(text) > longest:
        raise ValueError(
            f"{path}: {what} must be at most {longest:,} characters. Got {len(text):,} ({text[:30]!r}...)."
        )
    return text
