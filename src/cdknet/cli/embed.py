"""The command embed: texts to vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cdknet.cli.base import (
    DataPath,
    Force,
    Json,
    app,
    check_new_file,
    console,
    open_data,
    print_json,
    reads_data,
    say,
)


@app.command()
@reads_data
def embed(
    data: DataPath,
    *,
    out: Annotated[Path, typer.Option(help="The .npz to write: X, y, ids, texts, encoder.")],
    force: Force = False,
    as_json: Json = False,
    reading: dict[str, Any],
) -> None:
    """Make vectors of the texts of DATA, once, for discover and for your own use.

    DATA is a table with --text, or a set of texts by name (see: cdknet data list). Interrupted, the same
    command resumes it.
    """
    import numpy as np

    from cdknet.data.texts import texts_as_lines
    from cdknet.runs.files import npz_bytes, replace_file

    check_new_file(out, force)
    if out.suffix.lower() != ".npz":
        raise ValueError(f"--out of embed is an .npz file. Got {out.name}. Name it {out.stem}.npz.")
    samples, _ = open_data(data, reading)
    if samples.texts is None:
        raise ValueError(
            f"{samples.source}: embed needs texts. Got none. Name a table's columns of text with --text."
        )
    if samples.encoder is None:
        raise ValueError(f"{samples.source}: embed needs texts alone. Got vectors as well.")
    for note in samples.notes:
        say(note, quiet=as_json)
    arrays = {
        "X": np.asarray(samples.X),
        "ids": samples.ids,
        "texts": np.frombuffer(texts_as_lines(samples.texts), np.uint8),
        "encoder": np.array(json.dumps(samples.encoder)),
    }
    if samples.y is not None:
        arrays["y"] = samples.y
    replace_file(out, npz_bytes(arrays))
    n, d = samples.X.shape
    if as_json:
        print_json({"out": str(out), "samples": n, "dimensions": d, **samples.encoder})
        return
    line = f"{n:,} vectors of {d} values by {samples.encoder['name']}, in {out}"
    console().print(line, highlight=False, markup=False, soft_wrap=True)
