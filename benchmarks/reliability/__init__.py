"""The figures of docs/reliability.md, each measured by one function: `python -m benchmarks.reliability`.

A measurement takes how many times to try, a seed and an empty folder, and returns its figures: how many
were tried, how many broke the promise (`broken`, which must be 0), and examples of these. Tests run the short
form.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "reliability.jsonl"
RUNS = ROOT / "tests" / "runs" / "0.1.0"  # real runs, small

Figures = dict[str, Any]
Measure = Callable[[int, int, Path], Figures]

# name -> where its function is, how many the long form tries
MEASUREMENTS: dict[str, tuple[str, int]] = {
    "review-kills": ("kills.review", 500),
    "fit-kills": ("kills.fits", 200),
    "readers": ("inputs.readers", 200_000),
    "run-folders": ("inputs.folders", 20_000),
    "journals": ("inputs.journals", 20_000),
    "memory": ("inputs.memory", 6),
    "requests": ("api.requests", 20_000),
    "names": ("names.outputs", 100),
    "repeats": ("repeats.fits", 20),
    "threads": ("repeats.threads", 5),
}


_until = math.inf  # when to stop trying


def stop_after(seconds: float) -> None:
    global _until
    _until = time.monotonic() + seconds


def tries(count: int) -> Iterator[int]:
    """0, 1, ... up to `count`, or until the time is up. At least one."""
    for number in range(count):
        if number and time.monotonic() > _until:
            return
        yield number


def measurement(name: str) -> Measure:
    module, _, function = MEASUREMENTS[name][0].partition(".")
    found: Measure = getattr(import_module(f"benchmarks.reliability.{module}"), function)
    return found
