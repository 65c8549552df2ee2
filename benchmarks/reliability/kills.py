"""Kills at random moments: of the explorer's server while it is used, and of a fit while it trains.

A process is forked, so that it starts at once with everything imported, and killed like any other. A full
disk is a limit on the size of files (RLIMIT_FSIZE): the write that crosses it is cut off, as on a full disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.reliability import RUNS, Figures, tries

FORK = multiprocessing.get_context("fork")
BEFORE_THE_FORK = ("cdknet.estimators", "cdknet.fit.refine", "matplotlib.figure", "openTSNE", "rich.progress")
BEFORE_THE_FORK += (
    "matplotlib.backends.backend_agg",
    "sklearn.cluster",
    "sklearn.neighbors",
    "cdknet.runs.figures",
)
SETTING = ["--new-classes", "2", "--method", "cd-knet", "--unlabelled", "new", "--no-calibrate"]
SETTING += ["--network", "mlp", "--seed", "3", "--expand-steps", "0", "--pretrain-epochs", "8"]
SETTING += ["--discover-epochs", "8", "--expand-epochs", "8"]


# The server


def _serve(run: Path, pipe: Any, largest: int | None) -> None:
    """A server of the run, in this process; its port and token go through the pipe."""
    from cdknet.explorer.folder import open_run
    from cdknet.explorer.server import Explorer
    from cdknet.explorer.session import Session

    if largest is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    explorer = Explorer(Session(open_run(run)), host="127.0.0.1", port=0)
    pipe.send((explorer.port, explorer.token))
    explorer.serve_forever()


class Client(threading.Thread):
    """Writes notes as fast as it can, each with its own text; `said` are those that were acknowledged."""

    def __init__(self, port: int, token: str, name: str) -> None:
        super().__init__(daemon=True)
        self.port, self.token, self.prefix = port, token, name
        self.said: list[str] = []
        self.refused = 0

    def run(self) -> None:
        headers = {"X-Cdknet-Token": self.token, "Content-Type": "application/json"}
        revision, k = 0, 0
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
            while True:
                text = f"{self.prefix} {k}"
                action = {"kind": "note", "class": 4 + k % 3, "text": text}
                body = json.dumps({"revision": revision, "action": action})
                connection.request("POST", "/api/actions", body, headers)
                answer = connection.getresponse()
                told = json.loads(answer.read())
                if answer.status == 200:
                    self.said.append(text)
                    revision, k = told["revision"], k + 1
                elif answer.status == 409:
                    revision = told["revision"]
                else:
                    self.refused += 1
                    time.sleep(0.01)


def review(count: int, seed: int, folder: Path) -> Figures:
    """No acknowledged review action is lost: two servers on one run, three clients, kill -9, full disk."""
    import cdknet.explorer.server  # noqa: F401  before the fork
    from cdknet.explorer.folder import open_run

    draw = random.Random(seed)
    run = shutil.copytree(RUNS / "plus", folder / "run")
    journal = run / "review.jsonl"
    acknowledged = refused = full = damaged = 0
    lost: list[str] = []
    for kill in tries(count):
        limit = None
        if kill % 4 == 3:
            limit = (journal.stat().st_size if journal.exists() else 0) + draw.randrange(200, 4000)
            full += 1
        servers, clients = [], []
        for number in range(2):
            ours, theirs = FORK.Pipe()
            process = FORK.Process(target=_serve, args=(run, theirs, limit), daemon=True)
            process.start()
            theirs.close()
            servers.append(process)
            port, token = ours.recv()
            clients += [Client(port, token, f"{kill}-{number}-{k}") for k in range(2 - number)]
        for client in clients:
            client.start()
        patience = time.monotonic() + (20 if draw.random() < 0.9 else 0)
        while time.monotonic() < patience and not any(client.said or client.refused for client in clients):
            time.sleep(0.002)  # else a busy machine would be killed before it has done anything
        time.sleep(draw.uniform(0, 0.3))
        for process in servers:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        for client in clients:
            client.join(timeout=30)
        opened = open_run(run).journal()
        damaged += opened.left_out() is not None
        held = {new.note for e in opened.entries for _, new in e.change.classes.values() if new is not None}
        said = [text for client in clients for text in client.said]
        acknowledged += len(said)
        refused += sum(client.refused for client in clients)
        lost += [text for text in said if text not in held]
    return {
        "kills": kill + 1,
        "of_them_with_a_full_disk": full,
        "acknowledged": acknowledged,
        "refused": refused,
        "damaged_last_lines": damaged,
        "broken": len(lost),
        "examples": lost[:5],
    }


# Fits


def _command(arguments: list[str], largest: int | None) -> None:
    """A command of ours in this process, silent."""
    from cdknet.cli import main

    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    if largest is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    os._exit(main(arguments))


def _run_command(
    arguments: list[str], stop: Callable[[int], None] | None = None, largest: int | None = None
) -> int | None:
    process = FORK.Process(target=_command, args=(arguments, largest))
    process.start()
    if stop is not None:
        stop(process.pid or 0)
    process.join()
    return process.exitcode


def _bits(out: Path) -> str:
    """A digest of all that was learned: weights, features, confidences, labels. Not how long it took."""
    if out.is_file():
        return hashlib.sha256(out.read_bytes()).hexdigest()
    names = ("weights.safetensors", "embedding.npz", "labels.csv")
    return "".join(hashlib.sha256((out / name).read_bytes()).hexdigest() for name in names)


def fits(count: int, seed: int, folder: Path) -> Figures:
    """A killed discover, discover --force, refine or export ends in the same bits when it is repeated."""
    for module in BEFORE_THE_FORK:
        import_module(module)
    from cdknet.explorer.folder import open_run
    from cdknet.explorer.session import Session

    os.environ["CDKNET_CHECKPOINT_SECONDS"] = "0"
    draw, data = random.Random(seed), folder / "data.npz"
    rng = np.random.default_rng(seed)
    y = np.arange(120) % 5
    X = rng.normal(0, 1, (120, 8)) + 3 * rng.normal(0, 1, (5, 8))[y]
    np.savez(data, X=X.astype(np.float32), y=np.where((y < 3) & (np.arange(120) % 2 == 0), y, -1))
    discover = ["discover", str(data), *SETTING]
    run = folder / "reviewed"
    assert _run_command([*discover, "--out", str(run)]) == 0
    Session(open_run(run)).act(0, {"kind": "merge", "classes": [4], "into": 3})
    kinds = {
        "discover": (discover, "run"),
        "discover --force": ([*discover, "--force"], "run"),
        "refine": (["refine", str(run)], "run"),
        "export": (["export", str(run), "--force"], "out.csv"),
    }
    expected, seconds = {}, {}
    for kind, (command, name) in kinds.items():
        start = time.monotonic()
        assert _run_command([*command, "--out", str(folder / kind / name)]) == 0 or _made(folder / kind)
        if kind == "export":
            (folder / kind).mkdir(exist_ok=True)
            assert _run_command([*command, "--out", str(folder / kind / name)]) == 0
        expected[kind], seconds[kind] = _bits(folder / kind / name), time.monotonic() - start
    stopped = {"SIGKILL": 0, "SIGTERM": 0, "SIGINT": 0, "full disk": 0}
    finished_first = left = 0
    broken: list[str] = []
    for number in tries(count):
        kind = list(kinds)[number % len(kinds)]
        how = list(stopped)[(number + number // len(kinds)) % len(stopped)]  # every pair, in 16 tries
        command, name = kinds[kind]
        place = folder / "tries" / str(number)
        place.mkdir(parents=True)
        out = place / name
        if kind == "discover --force":
            shutil.copytree(folder / kind / name, out)
        moment = draw.uniform(0, 1.1 * seconds[kind])

        def stop(pid: int, moment: float = moment, how: str = how) -> None:
            time.sleep(moment)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, getattr(signal, how))

        full = how == "full disk"
        first = [*command, "--out", str(out)]
        code = _run_command(first, None if full else stop, draw.randrange(1, 60_000) if full else None)
        stopped[how] += 1
        finished_first += code == 0
        unfinished = out.with_name(f"{name}.partial").exists()
        if code != 0 or unfinished:
            again = [*first, *(["--resume"] if unfinished and kind.startswith("discover") else [])]
            if kind == "refine" and out.exists():
                again.append("--force")
            if kind == "discover" and out.exists():
                again = [*first, "--force", *(["--resume"] if unfinished else [])]
            code = _run_command(again)
        if code != 0 or not out.exists() or _bits(out) != expected[kind]:
            broken.append(f"{number}: {kind}, {how} after {moment:.2f} s, exit {code}")
        left += len([path for path in place.iterdir() if path != out])
        if not broken:
            shutil.rmtree(place)
    return {
        "kills": number + 1,
        **stopped,
        "finished_before_the_kill": finished_first,
        "files_left_behind": left,
        "broken": len(broken),
        "examples": broken[:5],
    }


def _made(folder: Path) -> bool:
    return not folder.exists()  # export makes no folder of its own: it is made, and the command repeated


assert sys.platform != "win32", "forks, and limits of the system"
