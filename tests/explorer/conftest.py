"""A run, its server and a real browser: fixtures of the explorer's tests."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pagemaker import Server, cdknet
from servermaker import SCRIPT, Serving

from runmaker import make_run

CHROMIUM = next((p for p in (os.environ.get("CHROMIUM"), shutil.which("chromium")) if p), None)
ARGUMENTS = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"]


# The server


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explorer")
    ids = [f"{SCRIPT} {i}" if i % 50 == 0 else f"row {i}" for i in range(300)]
    out = make_run(folder / "run", ids=ids)
    truth = "id,label\n" + "".join(f'"{name}",true {i % 5}\n' for i, name in enumerate(ids) if i != 7)
    (folder / "truth.csv").write_text(truth)
    return out


@pytest.fixture(scope="module")
def client(run):
    with Serving(run, truth=run.parent / "truth.csv") as client:
        yield client


@pytest.fixture
def fresh(tmp_path):
    """A client of a new run that a test may change."""
    with Serving(make_run(tmp_path / "run")) as client:
        yield client


@pytest.fixture
def mixed(tmp_path):
    """A client of a new run whose unlabelled samples are old, new, or noise."""
    with Serving(make_run(tmp_path / "run", mixture=True)) as client:
        yield client


# The page in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    pytest.importorskip("fastapi", reason="the extra [web] is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium: install Debian's package chromium, or set $CHROMIUM")
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(folder: Path, *arguments: str, port: int = 0) -> Server:
        started.append(Server(folder, *arguments, port=port))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.kill()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on digits (0-4 known), its data and the truth."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("digits")
    data = load_digits()
    X, truth = data.images[:800], data.target[:800]
    np.savez(folder / "digits.npz", X=X, y=np.where(truth < 5, truth, -1))
    with (folder / "truth.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label"])
        writer.writerows([f"row {i}", str(label)] for i, label in enumerate(truth))
    quick = ("--method", "cd-knet", "--discover-epochs", "5", "--no-calibrate")
    cdknet("discover", folder / "digits.npz", "--new-classes", "5", "--out", folder / "run", *quick)
    return folder


@pytest.fixture
def reviewable(digits: Path, tmp_path: Path) -> Path:
    shutil.copytree(digits / "run", tmp_path / "run")
    return tmp_path / "run"
