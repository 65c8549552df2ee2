"""Texts to vectors: in blocks, each saved when it is done, so that an interrupted encoding is resumed."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdknet.data.arrays import load_npy
from cdknet.data.samples import Samples
from cdknet.data.sets import save_whole
from cdknet.data.store import cache_dir
from cdknet.data.texts import check_texts

from .registry import DEFAULT, Apply, Encoder, encoder

Progress = Callable[[int, int], None]  # texts done, of all
BLOCK = 1024  # texts that are saved at once: what an interruption costs at most
RECIPE = b"1"  # to be changed with whatever changes the vectors of the same weights


def encode(
    texts: Sequence[str],
    name: str = DEFAULT,
    *,
    batch_size: int = 64,
    progress: Progress | None = None,
    cache: bool = True,
) -> NDArray[np.float32]:
    """The vectors (n, d) of texts, each of unit length, by the encoder of that name.

    They are kept in the cache under the SHA-256 of the texts and the weights, so the same texts are encoded
    only once. Interrupted, the same call resumes after the last whole block.

    Parameters
    ----------
    texts
        A list, a column of a data frame or an array of strings. Each must hold something to read.
    name
        One of `ENCODERS`.
    batch_size
        Texts that go through the model at once.
    progress
        Called as progress(texts done, all texts).
    cache
        Whether to read and write the cache. From the cache, the array is a read-only view of its file.

    Raises
    ------
    ValueError
        If a text is empty, too long or not text, or if the encoder is unknown or has other weights.
    ImportError
        If the package with the weights is not installed; the message names the extra to install.
    """
    found = encoder(name)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1. Got {batch_size}.")
    values = check_texts("texts", texts)
    if not cache:
        apply = found.load()
        parts = [_block(apply, part, batch_size) for _, part in _blocks(values, progress)]
        return np.concatenate(parts)
    key = _key(values, found)
    path = cache_dir() / "vectors" / f"{found.name}-{key}.npy"
    if (stored := _stored(path, len(values), found)) is not None:
        return stored
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:  # without a writable cache it is slower, but works
        return encode(values, name, batch_size=batch_size, progress=progress, cache=False)
    return _resumed(path, values, found, batch_size, progress)


def encoded(samples: Samples, name: str = DEFAULT, *, progress: Progress | None = None) -> Samples:
    """Samples of text with their vectors in place of the texts, which stay in `texts`."""
    if samples.texts is None:
        raise ValueError(
            f"{samples.source}: an encoder needs texts. Got none. Name the columns with text: text, --text."
        )
    found = encoder(name)
    vectors = encode(samples.texts, name, progress=progress)
    note = f"texts encoded by {found.name}: vectors of {found.dimensions} values, at unit length"
    return replace(samples, X=vectors, encoder=found.about(), notes=(*samples.notes, note))


def _key(texts: Sequence[str], found: Encoder) -> str:
    digest = hashlib.sha256(RECIPE)
    for known in (found.weights.sha256, found.tokenizer.sha256):
        digest.update(known.encode())
    for text in texts:
        content = text.encode()
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()[:40]


def _stored(path: Path, n: int, found: Encoder) -> NDArray[Any] | None:
    """The array of a file in the cache; None if there is none, or it is not whole."""
    with contextlib.suppress(ValueError, OSError):
        array = load_npy(path)
        if array.shape == (n, found.dimensions) and array.dtype == np.float32:
            return array
    return None


def _blocks(texts: Sequence[str], progress: Progress | None) -> Any:
    for start in range(0, len(texts), BLOCK):
        if progress is not None:
            progress(start, len(texts))
        yield start, texts[start : start + BLOCK]
    if progress is not None:
        progress(len(texts), len(texts))


def _block(apply: Apply, texts: Sequence[str], batch_size: int) -> NDArray[np.float32]:
    """Vectors of one block. Texts of like length go together, so that little is padded."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    parts = [
        apply([texts[i] for i in order[start : start + batch_size]])
        for start in range(0, len(order), batch_size)
    ]
    vectors = np.empty((len(texts), parts[0].shape[1]), np.float32)
    vectors[order] = np.concatenate(parts)
    return vectors


def _resumed(
    path: Path, texts: Sequence[str], found: Encoder, batch_size: int, progress: Progress | None
) -> NDArray[np.float32]:
    """Encode the blocks that an earlier call has not finished, and join all of them."""
    unfinished = path.with_suffix(".unfinished")
    apply: Apply | None = None
    parts: list[NDArray[np.float32]] = []
    for start, block in _blocks(texts, progress):
        place = unfinished / f"{start}.npy"
        part = _stored(place, len(block), found)
        if part is None:
            apply = apply or found.load()
            part = _block(apply, block, batch_size)
            with contextlib.suppress(OSError):  # a full disk: only resuming is lost
                save_whole(place, part)
        parts.append(part)
    vectors = np.concatenate(parts)
    del parts
    try:
        save_whole(path, vectors)
    except OSError:
        return vectors
    shutil.rmtree(unfinished, ignore_errors=True)
    return load_npy(path)
