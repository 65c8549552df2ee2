"""Texts or photos to vectors: in blocks that are saved, so that an interrupted encoding is resumed."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cdknet.data.arrays import load_npy
from cdknet.data.samples import Samples
from cdknet.data.sets import save_whole
from cdknet.data.store import cache_dir
from cdknet.data.texts import check_texts

from .registry import DEFAULT, Apply, Encoder, encoder

Progress = Callable[[int, int], None]  # samples done, of all
BLOCK = 1024  # samples that are saved at once: what an interruption costs at most
RECIPE = b"1"  # to be changed with whatever changes the vectors of the same weights


def encode(
    samples: Sequence[str] | NDArray[Any],
    name: str = DEFAULT,
    *,
    batch_size: int = 64,
    progress: Progress | None = None,
    cache: bool = True,
) -> NDArray[np.float32]:
    """The vectors (n, d) of texts or photos, each of unit length, by the encoder of that name.

    They are kept in the cache under the SHA-256 of the samples and the weights, so the same samples are
    encoded only once. Interrupted, the same call resumes after the last whole block.

    Parameters
    ----------
    samples
        Texts: a list, a column of a data frame or an array of strings; each must hold something to read.
        Photos: an array (n, 3, h, w) or (n, h, w) of uint8.
    name
        One of `ENCODERS`.
    batch_size
        Samples that go through the model at once.
    progress
        Called as progress(samples done, all samples).
    cache
        Whether to read and write the cache. From the cache, the array is a read-only view of its file.

    Raises
    ------
    ValueError
        If a text is empty, too long or not text, if photos are not such an array, or if the encoder is
        unknown or has other weights.
    ImportError
        If the package with the weights is not installed; the message names the extra to install.
    """
    found = encoder(name)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1. Got {batch_size}.")
    values = check_texts("texts", cast(Any, samples)) if found.reads == "texts" else _photos(samples)
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
    found = encoder(name, "texts")
    vectors = encode(samples.texts, name, progress=progress)
    note = f"texts encoded by {found.name}: vectors of {found.dimensions} values, at unit length"
    return replace(samples, X=vectors, encoder=found.about(), notes=(*samples.notes, note))


def encoded_photos(samples: Samples, name: str, *, progress: Progress | None = None) -> Samples:
    """Samples that are photos with their vectors in place of the pixels."""
    found = encoder(name, "photos")
    vectors = encode(samples.X, name, batch_size=16, progress=progress)
    note = f"photos encoded by {found.name}: vectors of {found.dimensions} values, at unit length"
    return replace(samples, X=vectors, encoder=found.about(), notes=(*samples.notes, note))


def _photos(samples: Any) -> NDArray[np.uint8]:
    photos = np.asarray(samples)
    if photos.dtype != np.uint8 or photos.ndim not in (3, 4) or (photos.ndim == 4 and photos.shape[1] != 3):
        raise ValueError(
            f"photos must be an array (n, 3, h, w) or (n, h, w) of uint8. Got {photos.dtype} of shape "
            f"{photos.shape}. Open a folder of images with cdknet.data.open(folder, image_size=224)."
        )
    if not len(photos):
        raise ValueError("there must be at least one photo. Got none.")
    return photos


def _key(values: Sequence[str] | NDArray[np.uint8], found: Encoder) -> str:
    digest = hashlib.sha256(RECIPE)
    for file in (found.weights, found.tokenizer):
        digest.update(file.sha256.encode() if file else b"")
    if not isinstance(values, list):
        digest.update(str(np.shape(values)).encode())
    for value in values:
        content = value.encode() if isinstance(value, str) else value.tobytes()
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


def _blocks(values: Any, progress: Progress | None) -> Any:
    for start in range(0, len(values), BLOCK):
        if progress is not None:
            progress(start, len(values))
        yield start, values[start : start + BLOCK]
    if progress is not None:
        progress(len(values), len(values))


def _block(apply: Apply, values: Any, batch_size: int) -> NDArray[np.float32]:
    """Vectors of one block. Texts of like length go together, so that little is padded."""
    order = sorted(range(len(values)), key=lambda i: len(values[i]))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    is_text = isinstance(values, list)
    parts = [apply([values[i] for i in batch] if is_text else values[batch]) for batch in batches]
    vectors = np.empty((len(values), parts[0].shape[1]), np.float32)
    vectors[order] = np.concatenate(parts)
    return vectors


def _resumed(
    path: Path, values: Any, found: Encoder, batch_size: int, progress: Progress | None
) -> NDArray[np.float32]:
    """Encode the blocks that an earlier call has not finished, and join all of them."""
    unfinished = path.with_suffix(".unfinished")
    apply: Apply | None = None
    parts: list[NDArray[np.float32]] = []
    for start, block in _blocks(values, progress):
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
