"""Run folders: the format, checkpoints, summaries, figures and scores. No torch here."""

from __future__ import annotations

from typing import Any

from cdknet._moved import moved_name


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name, ("format", "files", "fingerprints", "checkpoints", "summary"))
