"""Samples as PNG: an image as it is, I/Q as trace, constellation and spectrogram, a vector as bars."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from cdknet.inputs.kind import kind_of

PAPER, GRID = "#ffffff", "#dcdcd8"
IN_PHASE, QUADRATURE, BAR = "#1f5fa8", "#c35200", "#1f5fa8"
MOST_BARS = 240
# Six colours of matplotlib's viridis; the others are interpolated.
_STOPS = ((68, 1, 84), (65, 68, 135), (42, 120, 142), (34, 168, 132), (122, 209, 81), (253, 231, 37))
VIRIDIS = np.stack(
    [np.interp(np.linspace(0, 5, 256), np.arange(6), [s[c] for s in _STOPS]) for c in range(3)], axis=1
).astype(np.uint8)


class Drawer:
    """Draws samples of one run. All share one range of values, so that brightness is comparable."""

    def __init__(self, samples: NDArray[Any]) -> None:
        self.samples = samples
        self.kind = kind_of(tuple(samples.shape[1:])).shown_as  # "image", "radio" or "vector"
        some = np.asarray(samples[:: max(1, len(samples) // 500)], dtype=np.float32)
        if samples.dtype == np.uint8 and self.kind == "image":
            top = float(some.max())
            # Some sets do not use all of 0 ... 255: digits go up to 16.
            self.low, self.high = np.zeros(1), np.full(1, 255.0 if top > 100 else max(top, 1.0))
        elif self.kind == "vector":  # each column of a table has its own range
            flat = some.reshape(len(some), -1)
            self.low, self.high = flat.min(axis=0), flat.max(axis=0)
        else:
            self.low, self.high = np.array([some.min()]), np.array([some.max()])

    def picture(self, row: int) -> bytes:
        """One sample in detail; an image at its own size."""
        sample = np.asarray(self.samples[row])
        if self.kind == "image":
            return png(self._image(sample))
        return png(_radio(sample) if self.kind == "radio" else self._bars(sample, 480, 160))

    def thumbnail(self, row: int, size: int) -> Image.Image:
        """One sample in a square of `size` pixels."""
        sample = np.asarray(self.samples[row])
        if self.kind == "image":
            image = self._image(sample)
            scale = size / max(image.size)
            fitted = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
            resampling = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
            image = image.resize(fitted, resampling)
            if fitted == (size, size):
                return image
            square = Image.new(image.mode, (size, size), PAPER if image.mode == "RGB" else 255)
            square.paste(image, ((size - fitted[0]) // 2, (size - fitted[1]) // 2))
            return square
        if self.kind == "radio":
            return _constellation(sample, size)
        return self._bars(sample, size, size)

    def sheet(self, rows: Sequence[int], size: int, columns: int | None = None) -> Image.Image:
        """Thumbnails in the order of `rows`, with `columns` per line; by default all in one line."""
        columns = columns or max(len(rows), 1)
        colour = self.kind != "image" or self._image(np.asarray(self.samples[0])).mode == "RGB"
        lines = max(1, math.ceil(len(rows) / columns))
        sheet = Image.new("RGB" if colour else "L", (columns * size, lines * size), PAPER if colour else 255)
        for index, row in enumerate(rows):
            sheet.paste(self.thumbnail(row, size), (index % columns * size, index // columns * size))
        return sheet

    def _image(self, sample: NDArray[Any]) -> Image.Image:
        if sample.ndim == 3:
            sample = np.moveaxis(sample[:3], 0, -1) if sample.shape[0] >= 3 else sample[0]
        if sample.dtype != np.uint8 or self.high[0] != 255:
            span = max(float(self.high[0] - self.low[0]), 1e-12)
            level = (np.asarray(sample, dtype=np.float32) - self.low[0]) / span
            sample = (np.clip(level, 0, 1) * 255).round().astype(np.uint8)
        return Image.fromarray(np.ascontiguousarray(sample))

    def _bars(self, sample: NDArray[Any], width: int, height: int) -> Image.Image:
        """One bar per value, from the middle of its column's range. Many values are averaged in groups."""
        span = np.maximum(self.high - self.low, 1e-12)
        level = np.clip((np.asarray(sample, dtype=np.float32).ravel() - self.low) / span, 0, 1)
        most = min(MOST_BARS, width // 2)
        if len(level) > most:
            level = np.array([part.mean() for part in np.array_split(level, most)])
        image = Image.new("RGB", (width, height), PAPER)
        draw = ImageDraw.Draw(image)
        draw.line([0, height // 2, width, height // 2], GRID)
        edges = np.linspace(0, width, len(level) + 1).round().astype(int)
        gap = 1 if width / len(level) >= 4 else 0
        for left, right, value in zip(edges[:-1], edges[1:], level, strict=True):
            y = round((1 - float(value)) * (height - 1))
            top, bottom = sorted((y, height // 2))
            draw.rectangle([int(left), top, max(int(right) - 1 - gap, int(left)), bottom], BAR)
        return image


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=4)
    return buffer.getvalue()


def _constellation(sample: NDArray[Any], size: int) -> Image.Image:
    """A scatter plot of I (right) and Q (up)."""
    image = Image.new("RGB", (size, size), PAPER)
    draw = ImageDraw.Draw(image)
    half = size / 2
    draw.line([half, 0, half, size], GRID)
    draw.line([0, half, size, half], GRID)
    values = np.asarray(sample, dtype=np.float32)
    scale = (half - 3) / max(float(np.abs(values).max()), 1e-12)
    dot = 1.0 if size < 100 else 1.5
    for x, y in zip((half + values[0] * scale).tolist(), (half - values[1] * scale).tolist(), strict=True):
        draw.ellipse([x - dot, y - dot, x + dot, y + dot], IN_PHASE)
    return image


def _radio(sample: NDArray[Any]) -> Image.Image:
    """The trace at the top, constellation and spectrogram below it."""
    side, width, gap = 180, 480, 8
    image = Image.new("RGB", (width, 2 * side + gap), PAPER)
    draw = ImageDraw.Draw(image)
    draw.line([0, side / 2, width, side / 2], GRID)
    values = np.asarray(sample, dtype=np.float32)
    reach = max(float(np.abs(values).max()), 1e-12)
    x = np.linspace(0, width - 1, values.shape[1])
    for line, colour in zip(values, (IN_PHASE, QUADRATURE), strict=True):
        y = side / 2 - line / reach * (side / 2 - 3)
        draw.line(np.column_stack([x, y]).ravel().tolist(), colour, width=1)
    for place, name, colour in ((4, "I", IN_PHASE), (14, "Q", QUADRATURE)):
        draw.text((place, 2), name, colour, stroke_width=2, stroke_fill=PAPER)
    image.paste(_constellation(values, side), (0, side + gap))
    image.paste(_spectrogram(values).resize((width - side - gap, side)), (side + gap, side + gap))
    return image


def _spectrogram(values: NDArray[Any]) -> Image.Image:
    """Time to the right, frequency up with the carrier in the middle, 50 dB from dark to light."""
    signal = values[0] + 1j * values[1]
    window = int(min(64, 2 ** int(np.log2(max(len(signal) // 3, 8)))))
    step = max(1, window // 8)
    starts = np.arange(0, len(signal) - window + 1, step)
    frames = signal[starts[:, None] + np.arange(window)] * np.hanning(window)
    power = np.abs(np.fft.fftshift(np.fft.fft(frames, axis=1), axes=1)) ** 2
    level = 10 * np.log10(np.maximum(power, 1e-20))
    level = np.clip((level - level.max()) / 50 + 1, 0, 1)
    return Image.fromarray(VIRIDIS[(level.T[::-1] * 255).astype(np.uint8)])
