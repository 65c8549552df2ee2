"""Checks of the user's data: samples, labels, and warnings about both."""

from __future__ import annotations

from typing import Any

from cdknet._moved import moved_name


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name, ("arrays",))
