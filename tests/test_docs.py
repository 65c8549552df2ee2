"""What the documents say is so."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cdknet import ClassDiscovery
from cdknet.cli import main
from cdknet.core.metrics import mixed_report
from cdknet.data import HiddenTruth
from cdknet.options import as_markdown
from experiments.reproduce.open_plan import DEFAULT as OPEN_DEFAULT
from experiments.reproduce.open_plan import OpenCell
from experiments.reproduce.open_runner import read_open_results
from experiments.reproduce.plan import Cell
from experiments.reproduce.runner import read_results

ROOT = Path(__file__).parent.parent
OF_THE_DEFAULT = (("unlabelled", "all"), ("confidence", "expected"), ("share", "found"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def readme():
    return (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_readmes_example_runs_as_written_and_finds_the_digits(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", readme(), re.DOTALL)
    assert len(blocks) == 1
    out = subprocess.run(
        [sys.executable, "-c", blocks[0]], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert out.stdout.startswith("[0 1 2 3 4 5 6 7 8 9]\n")
    model, digits = ClassDiscovery.load(tmp_path / "digits-run"), load_digits()
    unlabelled = ~model.given_
    truth = HiddenTruth(digits.target[unlabelled], (5, 6, 7, 8, 9))
    report = mixed_report(truth, model.labels_[unlabelled], model.novelty_[unlabelled])
    assert report.all >= 0.93
    assert report.old_against_new >= 0.95
    assert model.overall_confidence_ <= report.all + 0.08
    assert abs(model.old_share_ - (~truth.is_new).mean()) < 0.05
    facts = model.calibration_  # on a fold of old classes whose outcome the map has not seen
    assert facts["error_after"] < facts["error_before"]


def test_the_readmes_table_is_what_was_measured():
    """Each number is the mean over the seeds it names, from the lines in results/; † of a former setting."""
    names = {"scikit-learn's digits": "digits", "Fashion-MNIST": "fashion-mnist"}
    lines = read_results(ROOT / "results")

    def mean(dataset, method, seeds, former=False, of=("test", "acc")):
        keys = [Cell(dataset, method, seed).key for seed in range(seeds)]
        if any(key not in lines or (lines[key]["stale"] and not former) for key in keys):
            return None
        return float(np.mean([lines[key][of[0]][of[1]] for key in keys]))

    row = r"^\| ([^|]+) \| (\d) \| (\S+) \| (.+) \| \*\*(\S+)\*\* \| (\S+) \|$"
    rows = re.findall(row, readme(), re.MULTILINE)
    assert len(rows) >= 5
    for title, seeds, trivial, papers, ours, competing in rows:
        former, title = title.endswith(" †"), title.removesuffix(" †")
        dataset, n = names.get(title, title.lower()), int(seeds)
        assert float(trivial) == pytest.approx(
            max(mean(dataset, m, n) for m in ("k-means", "spectral")), abs=0.0006
        )
        measured = mean(dataset, "cd-knet-exp", n)
        assert (papers == "not yet") == (measured is None)
        if measured is not None:
            assert float(papers) == pytest.approx(measured, abs=0.0006)
        assert float(ours) == pytest.approx(mean(dataset, "cd-knet+-exp", n, former), abs=0.0006)
        among_all = mean(dataset, "cd-knet+-exp", n, former, ("open_world", "new"))
        assert float(competing) == pytest.approx(among_all, abs=0.0006)
        assert former == (mean(dataset, "cd-knet+-exp", n) is None)


def test_the_readmes_table_on_mixed_data_is_what_was_measured():
    """Each number is the mean over the seeds it names, from the lines in results/open; -: not run yet."""
    names = {"scikit-learn's digits": "digits"}
    lines = read_open_results(ROOT / "results")

    def mean(dataset, method, seeds, of):
        keys = [OpenCell(dataset, method, seed, "0.5").key for seed in range(seeds)]
        if any(key not in lines or lines[key]["stale"] for key in keys):
            return None
        return float(np.mean([lines[key][of[0]][of[1]] for key in keys]))

    row = r"^\| ([^|]+) \| (\d) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$"
    rows = re.findall(row, readme(), re.MULTILINE)
    assert len(rows) >= 3
    for title, seeds, *numbers in rows:
        dataset = names.get(title, title.lower())
        measured = [
            mean(dataset, "ss-k-means-z", int(seeds), ("unlabelled", "all")),
            mean(dataset, "pim-z", int(seeds), ("unlabelled", "all")),
            *(mean(dataset, OPEN_DEFAULT, int(seeds), of) for of in OF_THE_DEFAULT),
        ]
        for number, value in zip(numbers, measured, strict=True):
            assert float(number.strip("*")) == pytest.approx(value, abs=0.0006), (title, number)


def test_the_options_page_is_up_to_date():
    page = (ROOT / "docs" / "options.md").read_text()
    assert page == as_markdown()
    assert [name for name in ClassDiscovery().get_params() if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_links_exist(document, capsys):
    text = document.read_text()
    for command in set(re.findall(r"^(?:\S*/)?cdknet ([a-z-]+)", text, re.MULTILINE)):
        assert main([command, "--help"]) == 0, command
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("http") or (document.parent / link).exists(), link


def test_the_project_names_no_machine_path():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.split():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".txt") and path.exists() and not name.startswith("tests/"):
            found = re.search(r"/(?:work|tmp|home|root)/\w+", path.read_text())
            assert not found, f"{name}: {found.group()}"
