"""A time budget: when each stage of a fit must end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

# How the time is divided. The share of a stage that is not run goes to the others, and the time that a stage
# does not use goes to those after it.
SHARES = {"count": 0.4, "tune": 0.5, "pretrain": 0.2, "discover": 0.5, "expand": 0.2, "calibrate": 0.1}


class Budget:
    """Seconds for a fit, starting now, divided over `stages`."""

    def __init__(
        self, seconds: float, stages: Iterable[str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds, self.clock = seconds, clock
        shares = {stage: SHARES[stage] for stage in SHARES if stage in set(stages)}
        self._ends, passed = {}, 0.0
        for stage, share in shares.items():
            passed += share / sum(shares.values())
            self._ends[stage] = seconds * passed
        self._start = clock()

    def left(self, stage: str) -> float:
        """Seconds until `stage` must end. A part of stage 2 that has its own name counts as stage 2."""
        end = self._ends.get(stage, self._ends.get("discover", self.seconds))
        return end - (self.clock() - self._start)

    @property
    def rest(self) -> float:
        """Seconds until the fit must end."""
        return self.seconds - (self.clock() - self._start)

    def charge(self, seconds: float) -> None:
        """Count time that was spent before this budget began, in a resumed fit."""
        self._start -= seconds
