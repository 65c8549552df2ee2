"""The kind of a sample, by its shape. This is the only place with that rule."""

from __future__ import annotations

from enum import Enum

LEAST_SIDE = 6  # pixels: smaller images are too small for convolutions
LEAST_LENGTH = 32  # samples of a recording: the paper's network for radio halves it five times


class SampleKind(Enum):
    """A kind of sample. The value is the name of the augmented views that suit it."""

    VECTOR = "vectors"
    GREY = "grey"
    COLOUR = "colour"
    IQ = "radio"

    @property
    def is_image(self) -> bool:
        return self in (SampleKind.GREY, SampleKind.COLOUR)

    @property
    def shown_as(self) -> str:
        """How it is displayed: "image", "radio" or "vector"."""
        return "image" if self.is_image else "radio" if self is SampleKind.IQ else "vector"


def kind_of(shape: tuple[int, ...]) -> SampleKind:
    """The kind of a sample of this shape: (d,), (h, w), (channels, h, w), or (2, length) for I/Q.

    Two rows of at least `LEAST_LENGTH` are I/Q. Images with a side below `LEAST_SIDE` pixels, and shorter
    recordings, are treated as vectors.
    """
    if len(shape) == 2 and shape[0] == 2 and shape[1] >= LEAST_LENGTH:
        return SampleKind.IQ
    if len(shape) < 2 or min(shape[-2:]) < LEAST_SIDE:
        return SampleKind.VECTOR
    return SampleKind.COLOUR if len(shape) == 3 and shape[0] >= 3 else SampleKind.GREY
