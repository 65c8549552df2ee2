"""Folders of images: PNG, JPEG and WebP, of any size, grey or colour.

    pictures/                        pictures/
      cat/        one sub-folder       a.png     or images only:
      dog/        per old class        b.jpg     no sample is labelled
      unlabelled/ all others

A sample's id is its path inside the folder. The notes report the size and whether it is grey or colour.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from .checks import UNLABELLED_FOLDERS, AnyArray, as_value_error, check_file, labels_from_text, text_array
from .samples import Samples

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
FORMATS = ("PNG", "JPEG", "WEBP")  # the only decoders used, whatever the file is called
DEFAULT_SIDE = 32  # mixed or large images become squares of this side
MAX_UNSCALED = 64  # images that all have one size up to this side are not resized
MOST_PIXELS = 50_000_000
FREE_PIXELS = 4_000_000  # pixels that any image may have, however small its file is
PIXELS_PER_BYTE = 1_000  # further pixels allowed per byte of the file


def read_images(
    folder: Path,
    *,
    image_size: int | None = None,
    shape: Sequence[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Samples:
    """Read a folder of images as (n, h, w) or (n, 3, h, w) uint8, or in the given shape."""
    if image_size is not None and not 4 <= image_size <= 1024:
        raise ValueError(f"image_size must be from 4 to 1024 pixels. Got {image_size}.")
    if shape is not None and (image_size is not None or not is_image_shape(shape)):
        raise ValueError(
            f"{folder}: shape must be height x width or 3 x height x width, of 4 to 1024 pixels, and without "
            f"image_size. Got {tuple(shape)}{'' if image_size is None else f' and image_size {image_size}'}."
        )
    files, labels, left_out = _list_images(folder)
    sizes = {_header_size(file) for file in files}
    h, w, rule = _size_rule(sizes, image_size, shape)
    channels = None if shape is None else shape[0] if len(shape) == 3 else 1
    pixels, is_colour, flattened = _decode_all(files, h, w, channels, progress or (lambda done, total: None))
    if shape is not None:
        pixels = pixels.reshape(len(pixels), *shape)
    why = ("at least one image has colour", "no image has colour")
    if shape is not None:
        why = ("as requested", "as requested")
    notes = [rule, f"colour: {why[0]}" if is_colour else f"grey: {why[1]}"]
    if flattened:
        notes.append(f"{flattened:,} images with transparency shown on white")
    if left_out:
        shown = ", ".join(left_out[:5]) + (", ..." if len(left_out) > 5 else "")
        notes.append(f"{len(left_out):,} files that are not images were left out: {shown}")
    size = sum(file.stat().st_size for file in files)
    ids = text_array(folder, [file.relative_to(folder).as_posix() for file in files], "paths", size)
    y = None if labels is None else labels_from_text(folder, labels, size)
    return Samples(pixels, y, ids, str(folder), tuple(notes))


def is_image_shape(shape: Sequence[int]) -> bool:
    """Whether images can be resized to this shape: (h, w), (1, h, w) or (3, h, w)."""
    sides = len(shape) > 1 and all(4 <= side <= 1024 for side in shape[-2:])
    return sides and tuple(shape[:-2]) in ((), (1,), (3,))


def _list_images(folder: Path) -> tuple[list[Path], list[str] | None, list[str]]:
    """The image files in a fixed order, the label of each as text, and the files that are not images."""
    entries = _visible(folder)
    inside = [entry for entry in entries if entry.is_dir()]
    loose = [entry for entry in entries if _is_image(entry)]
    left_out = [entry.name for entry in entries if not entry.is_dir() and not _is_image(entry)]
    if not inside:
        if not loose:
            raise ValueError(
                f"{folder}: must hold images ({', '.join(IMAGE_SUFFIXES)}) or sub-folders of images. "
                f"Got neither{_but_files(left_out)}."
            )
        return loose, None, left_out
    if loose:
        raise ValueError(
            f"{folder}: must hold either images or sub-folders of images. Got both, e.g. {loose[0].name} and "
            f"{inside[0].name}/. Move the loose images into {UNLABELLED_FOLDERS[0]}/."
        )
    files: list[Path] = []
    labels: list[str] = []
    for sub in inside:
        content = _visible(sub)
        deeper = next((entry for entry in content if entry.is_dir()), None)
        if deeper is not None:
            raise ValueError(
                f"{folder}: class folders must hold images only. Got the folder {sub.name}/{deeper.name}/. "
                "Move its images up."
            )
        images = [entry for entry in content if _is_image(entry)]
        left_out += [f"{sub.name}/{entry.name}" for entry in content if not _is_image(entry)]
        hidden = sub.name.lower() in UNLABELLED_FOLDERS
        if not images and not hidden:
            raise ValueError(f"{folder}: class folder {sub.name}/ must hold an image. Got none.")
        files += images
        labels += ["" if hidden else sub.name] * len(images)
    if not files:
        raise ValueError(f"{folder}: must hold at least one image. Got empty sub-folders.")
    return files, labels, left_out


def _visible(folder: Path) -> list[Path]:
    """The entries of the folder, sorted by name, without hidden files and those that desktops create."""
    clutter = {"thumbs.db", "desktop.ini", "__macosx"}
    try:
        entries: Iterable[Path] = folder.iterdir()
        return sorted(e for e in entries if not e.name.startswith(".") and e.name.lower() not in clutter)
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder}: no such folder. Check the path.") from None
    except NotADirectoryError:
        raise ValueError(f"{folder}: must be a folder of images. Got a file.") from None


def _is_image(entry: Path) -> bool:
    return entry.suffix.lower() in IMAGE_SUFFIXES and not entry.is_dir()


def _but_files(names: list[str]) -> str:
    return f", but {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}" if names else ""


def _size_rule(
    sizes: set[tuple[int, int]], image_size: int | None, shape: Sequence[int] | None
) -> tuple[int, int, str]:
    """Height, width and the rule as a note."""
    (w, h), *others = sorted(sizes)
    if shape is not None and (others or (h, w) != tuple(shape[-2:])):
        h, w = shape[-2:]
        return h, w, f"resized to {h} x {w} (as requested): scaled to cover it, then cropped to the centre"
    if shape is not None:
        return h, w, f"not resized: every image has {h} x {w} pixels"
    if image_size is None and not others and max(w, h) <= MAX_UNSCALED:
        return h, w, f"not resized: every image has {h} x {w} pixels"
    side = image_size or DEFAULT_SIDE
    if not others and (w, h) == (side, side):
        return side, side, f"not resized: every image has {side} x {side} pixels"
    why = "as requested" if image_size else "sizes differ" if others else f"larger than {MAX_UNSCALED} pixels"
    return (
        side,
        side,
        f"resized to {side} x {side} ({why}): shorter side scaled to {side}, then cropped to the centre",
    )


def _header_size(file: Path) -> tuple[int, int]:
    """(width, height) from the header; raise if they are implausible for the size of the file."""
    size = check_file(file)
    with _opened(file) as image:
        w, h = image.size
        has_exif = image.format != "PNG" or "exif" in image.info  # else Pillow would decode the PNG for it
        turned = has_exif and image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
    if w < 1 or h < 1:
        raise ValueError(f"{file}: an image must have at least one pixel. Got {w} x {h}.")
    allowed = min(MOST_PIXELS, FREE_PIXELS + PIXELS_PER_BYTE * size)
    if w * h > allowed:
        raise ValueError(
            f"{file}: header declares {w} x {h} pixels. At most {allowed:,} pixels are allowed for a file of "
            f"{size:,} bytes. The file may be corrupted or malicious; if not, scale it down first."
        )
    return (h, w) if turned else (w, h)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    """The image with only its header read; any error becomes one ValueError."""
    with as_value_error(file, "PNG, JPEG or WebP image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file, formats=FORMATS) as image:
            yield image


def _decode_all(
    files: list[Path], h: int, w: int, channels: int | None, progress: Callable[[int, int], None]
) -> tuple[AnyArray, bool, int]:
    """All images as one array, grey until an image has colour unless `channels` says otherwise."""
    grey: NDArray[np.uint8] | None = np.empty((len(files), h, w), np.uint8)
    colour: NDArray[np.uint8] | None = None if channels != 3 else np.empty((len(files), 3, h, w), np.uint8)
    flattened = 0
    for i, file in enumerate(files):
        progress(i, len(files))
        pixels, had_alpha = _decode(file, h, w)
        flattened += had_alpha
        if channels == 1:
            pixels = np.asarray(Image.fromarray(pixels).convert("L"))[..., None]
        if colour is None and (pixels == pixels[..., :1]).all():
            assert grey is not None
            grey[i] = pixels[..., 0]
            continue
        if colour is None:
            assert grey is not None
            colour = np.empty((len(files), 3, h, w), np.uint8)
            colour[:i] = grey[:i, None]
            grey = None
        colour[i] = pixels.transpose(2, 0, 1)
    progress(len(files), len(files))
    return (grey, False, flattened) if colour is None else (colour, True, flattened)  # type: ignore[return-value]


def _decode(file: Path, h: int, w: int) -> tuple[NDArray[np.uint8], bool]:
    """One image as (h, w, 3) uint8, and whether any of it was transparent."""
    with _opened(file) as image:
        if image.format == "JPEG":
            image.draft(image.mode, (4 * w, 4 * h))  # decode a large photograph at reduced size
        image.load()
        upright = ImageOps.exif_transpose(image)
        rgb, had_alpha = _to_rgb(upright)
        if rgb.size != (w, h):
            rgb = ImageOps.fit(rgb, (w, h), Image.Resampling.LANCZOS)
        return np.asarray(rgb), had_alpha


def _to_rgb(image: Image.Image) -> tuple[Image.Image, bool]:
    """`image` as 8-bit RGB: 16-bit grey scaled down, transparent parts shown on white."""
    if image.mode.startswith("I"):  # 16-bit grey; Pillow's own conversion would clip at 255
        deep = np.clip(np.asarray(image, dtype=np.int64), 0, 65535)
        return Image.fromarray((deep // 257).astype(np.uint8)).convert("RGB"), False
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        if (np.asarray(rgba.getchannel("A")) < 255).any():
            white = Image.new("RGBA", rgba.size, "white")
            return Image.alpha_composite(white, rgba).convert("RGB"), True
        return rgba.convert("RGB"), False
    return image.convert("RGB"), False
