"""Samples that are texts: what every reader and every encoder asks of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

LONGEST_TEXT = 100_000  # characters of one text; encoders read the first thousand or so
JOINED_BY = "\n"  # between the texts of several columns


def check_texts(source: str, texts: Sequence[Any]) -> list[str]:
    """The texts as a list; raise unless each is a string that holds something and can be written."""
    if isinstance(texts, str | bytes):
        raise ValueError(f"{source}: must be a list of texts. Got one text. Put it into a list.")
    values = list(texts)
    if not values:
        raise ValueError(f"{source}: must hold at least one text. Got none.")
    blank = []
    for i, text in enumerate(values):
        if not isinstance(text, str):
            if text is None or text != text:  # NaN stands for a missing text in a data frame
                blank.append(i)
                continue
            raise ValueError(
                f"{source}: every sample must be a text. Got {type(text).__name__} in row {i}. "
                "Convert it with str()."
            )
        if len(text) > LONGEST_TEXT:
            raise ValueError(
                f"{source}: a text must be at most {LONGEST_TEXT:,} characters. Got {len(text):,} in row {i} "
                f"({text[:30]!r}...). Shorten it: encoders read only its beginning."
            )
        if not text.strip():
            blank.append(i)
        elif not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise ValueError(
                    f"{source}: texts must be valid Unicode. Got {text[:30]!a} in row {i}. "
                    "Read the file with its own encoding."
                ) from None
    if blank:
        more = f" and {len(blank) - 1:,} more" if len(blank) > 1 else ""
        raise ValueError(
            f"{source}: every sample must have a text. Got a blank one in row {blank[0]}{more}. "
            "Remove such rows."
        )
    return values


def texts_as_lines(texts: Sequence[str]) -> bytes:
    """Texts as JSON lines, one string per line: a text may hold line breaks, a line may not."""
    return "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in texts).encode()


def texts_of_lines(source: str, content: bytes) -> list[str]:
    """The texts that `texts_as_lines` wrote."""
    try:
        values = [json.loads(line) for line in content.decode().split("\n")[:-1]]
    except (ValueError, RecursionError):
        values = [None]
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{source}: must hold one JSON string per line. Got something else.")
    return values
