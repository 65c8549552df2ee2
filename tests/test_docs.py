"""What the documents say is so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cdknet.cli import main
from cdknet.options import as_markdown

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_readmes_example_runs_as_written(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    out = subprocess.run(
        [sys.executable, "-c", blocks[0]], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert out.stdout.startswith("[0 1 2 3 4 5 6 7 8 9]\n")
    assert (tmp_path / "digits-run" / "config.json").exists()


def test_the_options_page_is_up_to_date():
    assert (ROOT / "docs" / "options.md").read_text() == as_markdown()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_links_exist(document, capsys):
    text = document.read_text()
    for command in set(re.findall(r"^(?:\S*/)?cdknet ([a-z]+)", text, re.MULTILINE)):
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
