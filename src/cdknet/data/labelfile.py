"""Labels in a separate file: a CSV with the columns id and label."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from cdknet.core.openworld import UNLABELED

from .checks import labels_from_text
from .samples import Samples
from .tables import csv_rows


def read_labels(path: str | Path) -> dict[str, str]:
    """Read id -> label from a CSV with these two columns; as in tables, blank, NaN or -1 means unlabelled."""
    path = Path(path)
    wanted = "a CSV with the columns id and label, such as: id,label / row 0,cat / row 1,dog"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file. Name {wanted}.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in row] for row in csv_rows(path, file)]
    except (csv.Error, UnicodeDecodeError) as error:
        array = " Save labels in an array together with the samples: np.savez(file, X=X, y=y)."
        advice = array if path.suffix in (".npy", ".npz") else ""
        raise ValueError(f"{path}: must be a CSV in UTF-8. Got {error}.{advice}") from None
    head = [name.lower() for name in lines[0]] if lines else []
    if not {"id", "label"} <= set(head):
        raise ValueError(
            f"{path}: must be {wanted}. Got {str(lines[0])[:200] if lines else 'an empty file'}."
        )
    odd = next((i for i, line in enumerate(lines) if len(line) != len(head)), None)
    if odd is not None:
        raise ValueError(
            f"{path}: every row must have {len(head)} cells. Got {len(lines[odd])} in row {odd - 1}."
        )
    id, label = head.index("id"), head.index("label")
    rows = [(line[id], line[label]) for line in lines[1:]]
    labels: dict[str, str] = {}
    y = labels_from_text(path, [text for _, text in rows], path.stat().st_size)
    for (name, _), found in zip(rows, map(str, y.tolist()), strict=True):
        if found == str(UNLABELED):
            continue
        if labels.setdefault(name, found) != found:
            raise ValueError(
                f"{path}: an id must have only one label. Got {labels[name]!r} and {found!r} for {name!r}."
            )
    if not labels:
        raise ValueError(f"{path}: must label at least one sample. Got none.")
    return labels


def attach_labels(samples: Samples, path: str | Path) -> Samples:
    """`samples` with labels from a file, matched by id; as in tables, whole numbers if all of them are."""
    labels = read_labels(path)
    unknown = labels.keys() - set(samples.ids.tolist())
    if unknown:
        raise ValueError(
            f"{path}: ids must be those of {samples.source}, such as {str(samples.ids[0])!r}. "
            f"Got {min(unknown)!r}, which is not among them."
        )
    texts = [labels.get(name, "") for name in samples.ids.tolist()]
    y = labels_from_text(Path(path), texts, max(Path(path).stat().st_size, samples.X.nbytes))
    notes = samples.notes
    if samples.y is not None:
        notes += (f"labels from {path} only, in place of those in {samples.source}",)
    return replace(samples, y=y, notes=notes)
