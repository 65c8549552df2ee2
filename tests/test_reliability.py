"""The promises of docs/reliability.md, each in a short form."""

import json
import os
import subprocess
import sys

import pytest
from benchmarks.reliability import MEASUREMENTS, ROOT, measurement
from benchmarks.reliability.page import PAGE, PROMISES, as_markdown, shown

from cdknet.cli import main

SHORT = {"readers": 240, "run-folders": 6, "journals": 100, "requests": 200, "names": 100}
SLOW = {"review-kills": 4, "fit-kills": 2}
unix = pytest.mark.skipif(sys.platform == "win32", reason="forks, and limits of the system")


@pytest.mark.parametrize("name", SHORT)
def test_a_promise_holds_in_its_short_form(name, tmp_path, monkeypatch):
    if name == "names":
        monkeypatch.setattr("benchmarks.reliability.names.CHROMIUM", None)  # the long form has a browser
    figures = measurement(name)(SHORT[name], 1, tmp_path)
    assert figures["broken"] == 0, figures["examples"]


@unix
@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_promise_about_kills_holds_in_its_short_form(name):
    """In a process of its own: one that has trained cannot be forked into others that train."""
    command = [sys.executable, "-m", "benchmarks.reliability", name, "--count", str(SLOW[name]), "--dry"]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["broken"] == 0


def test_the_page_says_what_was_measured_and_no_more():
    assert PAGE.read_text() == as_markdown(shown())
    assert PROMISES.keys() == MEASUREMENTS.keys()
    assert all(line["broken"] == 0 for line in shown().values())


def test_the_seed_says_what_it_depends_on(capsys):
    assert main(["discover", "--help"]) == 0
    assert "same number of threads" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_what_ci_installs_is_locked_and_names_no_host():
    lock = (ROOT / "requirements.lock").read_text()
    lines = [line for line in lock.splitlines() if not line.startswith("#")]
    assert len(lines) > 40
    assert all("==" in line or "--hash=sha256:" in line for line in lines)
    assert "://" not in lock
    assert not any(line.startswith(("torch==", "nvidia", "triton")) for line in lines)
    assert os.access(ROOT / ".ci" / "lock", os.X_OK)
