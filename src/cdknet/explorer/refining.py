"""Refining from the page: a separate process whose progress can be read at any time."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdknet.explorer.review import ReviewError

TRAINING = 0.85  # share of the progress bar; the rest is the map
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


class Refining:
    """Refinements of one run, one at a time, each into a new folder beside it.

    `samples` are passed if the run does not store its own. `why_not` is why it cannot be refined at all.
    """

    def __init__(self, run: Path, samples: NDArray[Any] | None = None, *, why_not: str | None = None) -> None:
        self.run, self.samples, self.why_not = run.resolve(), samples, why_not
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._status: dict[str, Any] = {
            "state": "idle",
            "stage": None,
            "share": 0.0,
            "seconds_left": None,
            "out": None,
            "error": None,
        }

    def status(self) -> dict[str, Any]:
        with self._lock:
            return {**self._status, "free": self.free_name()}

    def free_name(self) -> str:
        """The name of a folder beside the run that does not exist yet."""
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", self.run.name).strip("._-")[:60] or "run"
        names = (f"{stem}-refined{f'-{k}' if k > 1 else ''}" for k in itertools.count(1))
        return next(name for name in names if not (self.run.parent / name).exists())

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._status |= changes

    def start(self, out: str) -> None:
        """Start a refinement, or raise `ReviewError`. `out` names a folder that does not exist yet."""
        if self.why_not is not None:
            raise ReviewError(self.why_not)
        if not PLAIN_NAME.fullmatch(out) or out.endswith("."):
            raise ReviewError(
                "out must be a plain folder name: letters, digits, dots, dashes and underscores. "
                "Got something else."
            )
        target = self.run.parent / out
        if target.exists() or target.is_symlink():
            raise ReviewError(f"out must be a folder that does not exist yet. Got {out}, which does.")
        with self._lock:
            if self._status["state"] == "running":
                raise ReviewError(f"One refinement at a time: {self._status['out']} is running.")
            self._status = {
                "state": "running",
                "stage": "starting",
                "share": 0.0,
                "seconds_left": None,
                "out": out,
                "error": None,
            }
        threading.Thread(target=self._run, args=(target,), daemon=True).start()

    def _run(self, target: Path) -> None:
        """Write the samples for the process, which may take a while, then start it and follow it."""
        try:
            with TemporaryDirectory(prefix="cdknet-") as temporary:  # only this user can read it
                arguments = [str(self.run), str(target)]
                if self.samples is not None:
                    arguments.append(str(Path(temporary) / "samples.npy"))
                    np.save(arguments[-1], self.samples, allow_pickle=False)
                with self._lock:
                    if self._stopped:
                        return
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", "cdknet.fit.refine", *arguments],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        stdin=subprocess.DEVNULL,
                        text=True,
                    )
                self._follow(self._process)
        except OSError as error:
            self._set(state="failed", seconds_left=None, error=f"It could not be started: {error}.")

    def _follow(self, process: subprocess.Popen[str]) -> None:
        start, total_share = time.monotonic(), 0.0
        assert process.stdout is not None
        assert process.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.append(process.stderr.read()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        for line in process.stdout:
            try:
                row = json.loads(line)
                stage, share = str(row["stage"]), float(row["share"])
            except (ValueError, KeyError, TypeError):
                continue
            # It never decreases, though training may stop before its last epoch.
            at = TRAINING * share if stage != "map" else TRAINING + (1 - TRAINING) * share
            total_share = max(total_share, at)
            passed = time.monotonic() - start
            left = round(passed / total_share * (1 - total_share)) if total_share > 0.05 else None
            self._set(stage=stage, share=round(total_share, 3), seconds_left=left)
        code = process.wait()
        reader.join(timeout=5)
        process.stdout.close()
        process.stderr.close()
        if code == 0:
            self._set(state="done", share=1.0, seconds_left=0)
        else:
            message = " ".join("".join(errors).split())
            self._set(
                state="failed", seconds_left=None, error=message[-500:] or f"It ended with code {code}."
            )

    def stop(self) -> None:
        """Stop a running refinement. Its checkpoint is saved, so that it can be resumed."""
        with self._lock:
            self._stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
