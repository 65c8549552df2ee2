"""A contact sheet of a data set: some samples per class; the names of classes the paper hides are orange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from .sets import Dataset

CELL = 64  # width and height of a sample on the sheet, in pixels
GAP = 6
INK, PAPER, NEW = "#1a1a1a", "#ffffff", "#c35200"
CURVES = ("#1f5fa8", "#c0392b", "#2e8b57")  # one colour per antenna


def sample_sheet(dataset: Dataset, *, per_class: int = 10, most_rows: int = 12) -> Image.Image:
    """The first samples of each class; with many classes, one sample per class, in rows of ten.

    A class name is orange if the paper's split hides the class (with seed 0 if the split is random).
    """
    n_classes = len(dataset.class_names)
    by_row = n_classes <= most_rows
    new = set(dataset.new_classes("paper"))
    font = ImageFont.load_default(13 if by_row else 10)
    widest = max(font.getlength(name) for name in dataset.class_names)
    left, caption = (int(widest) + GAP, 0) if by_row else (0, 14)
    columns = per_class if by_row else 10
    rows = n_classes if by_row else -(-n_classes // columns)
    size = (left + columns * (CELL + GAP) + GAP, rows * (CELL + caption + GAP) + GAP)
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    for k, name in enumerate(dataset.class_names):
        ink = NEW if k in new else INK
        shown = np.flatnonzero(dataset.y_train == k)[: per_class if by_row else 1]
        row, first = (k, 0) if by_row else divmod(k, columns)
        y = GAP + row * (CELL + caption + GAP)
        if by_row:
            draw.text((GAP, y + CELL // 2), name, ink, font, anchor="lm")
        for j, i in enumerate(shown):
            x = left + GAP + (first + j) * (CELL + GAP)
            sheet.paste(_thumbnail(dataset.X_train[i], dataset.kind), (x, y))
            if not by_row:
                draw.text((x, y + CELL + 1), name.replace("_", " ")[:14], ink, font)
    return sheet


def _thumbnail(sample: NDArray[Any], kind: str) -> Image.Image:
    if kind == "grey images":
        top = 16 if sample.shape == (8, 8) else 255
        pixels = Image.fromarray((sample.astype(np.float64) * (255 / top)).astype(np.uint8))
    elif kind == "colour images":
        pixels = Image.fromarray(np.ascontiguousarray(sample.transpose(1, 2, 0)))
    else:
        return _constellation(sample) if kind == "I/Q" else _curves(_antennas(sample, kind))
    return pixels.resize((CELL, CELL), Image.Resampling.NEAREST).convert("RGB")


def _constellation(sample: NDArray[Any]) -> Image.Image:
    """The values of an I/Q slice as points in the plane, I to the right and Q upwards."""
    i, q = np.asarray(sample, dtype=np.float64)
    reach = max(float(np.abs(sample).max()), 1e-12)
    image = Image.new("RGB", (CELL, CELL), "#f4f4f2")
    draw = ImageDraw.Draw(image)
    half = CELL / 2
    draw.line([half, 0, half, CELL], "#d8d8d4")
    draw.line([0, half, CELL, half], "#d8d8d4")
    for x, y in zip(half + i / reach * (half - 3), half - q / reach * (half - 3), strict=True):
        draw.ellipse([x - 1, y - 1, x + 1, y + 1], CURVES[0])
    return image


def _antennas(sample: NDArray[Any], kind: str) -> NDArray[Any]:
    """Channel state as one row of 30 subcarriers per antenna, amplitudes first; other vectors unchanged."""
    return sample.reshape(-1, 30) if kind == "channel state" and sample.size % 30 == 0 else sample


def _curves(sample: NDArray[Any]) -> Image.Image:
    """Each row of the sample as a curve, drawn at four times the size and scaled down."""
    curves = np.asarray(sample, dtype=np.float64).reshape(-1, sample.shape[-1])[: len(CURVES)]
    side = 4 * CELL
    image = Image.new("RGB", (side, side), "#f4f4f2")
    draw = ImageDraw.Draw(image)
    low, high = float(curves.min()), float(curves.max())
    x = np.linspace(0, side - 1, curves.shape[1])
    for curve, colour in zip(curves, CURVES, strict=False):
        y = (side - 9) * (1 - (curve - low) / max(high - low, 1e-12)) + 4
        points = np.column_stack([x, y]).ravel().tolist()
        draw.line(points, colour, width=4)
    return image.resize((CELL, CELL), Image.Resampling.LANCZOS)
