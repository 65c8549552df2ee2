"""The command embed: texts or photos to vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdknet.cli.base import (
    MANY_FILES,
    DataPath,
    Force,
    Json,
    app,
    bar_of,
    check_new_file,
    console,
    open_data,
    print_json,
    reads_data,
    say,
)

if TYPE_CHECKING:
    from cdknet.data import Samples


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
    """Make vectors of the texts or photos of DATA, once, for discover and for your own use.

    DATA is a table with --text, a set of texts by name, or a folder of photos with --encoder
    efficientnet-lite0. Interrupted, the same command resumes it.
    """
    import numpy as np

    from cdknet.data.texts import texts_as_lines
    from cdknet.encoders import encoder
    from cdknet.runs.files import npz_bytes, replace_file

    check_new_file(out, force)
    if out.suffix.lower() != ".npz":
        raise ValueError(f"--out of embed is an .npz file. Got {out.name}. Name it {out.stem}.npz.")
    if reading.get("encoder") is not None and encoder(reading["encoder"]).reads == "photos":
        samples = _photos(data, reading)
    else:
        samples, _ = open_data(data, reading)
    if samples.texts is None and samples.encoder is None:
        raise ValueError(
            f"{samples.source}: embed needs texts. Got none. Name a table's columns of text with --text; "
            "for photos say --encoder efficientnet-lite0."
        )
    if samples.encoder is None:
        raise ValueError(f"{samples.source}: embed needs texts alone. Got vectors as well.")
    for note in samples.notes:
        say(note, quiet=as_json)
    arrays = {
        "X": np.asarray(samples.X),
        "ids": samples.ids,
        "encoder": np.array(json.dumps(samples.encoder)),
    }
    if samples.texts is not None:
        arrays["texts"] = np.frombuffer(texts_as_lines(samples.texts), np.uint8)
    if samples.y is not None:
        arrays["y"] = samples.y
    replace_file(out, npz_bytes(arrays))
    n, d = samples.X.shape
    if as_json:
        print_json({"out": str(out), "samples": n, "dimensions": d, **samples.encoder})
        return
    line = f"{n:,} vectors of {d} values by {samples.encoder['name']}, in {out}"
    console().print(line, highlight=False, markup=False, soft_wrap=True)


def _photos(data: str, reading: dict[str, Any]) -> Samples:
    """The photos of DATA as vectors: a folder is read at the size that the encoder takes."""
    from cdknet.data.files import is_image_folder
    from cdknet.encoders import encoded_photos, encoder

    name = reading["encoder"]
    reading = {**reading, "encoder": None}
    sized = reading.get("image_size") is not None or reading.get("shape") is not None
    if not sized and Path(data).is_dir() and is_image_folder(data):
        reading["image_size"] = encoder(name).reads_at_most
    samples, _ = open_data(data, reading)
    with bar_of("encode", MANY_FILES) as show:
        return encoded_photos(samples, name, progress=show)
