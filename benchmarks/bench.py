"""What the benchmarks share: their arguments, and results files that can be resumed.

Import this module before `experiments`: it makes the experiments of this checkout importable.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from cdknet.runs.files import read_jsonl

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(1, str(ROOT))  # after this folder


def study_parser(
    doc: str | None, results: str, *, seeds: int | None = None, threads: int | None = 1
) -> argparse.ArgumentParser:
    """The arguments that every study has. `results` is the name of its file in results/."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=form)
    if seeds is not None:
        parser.add_argument("--seeds", type=int, default=seeds, help="number of seeds [%(default)s]")
    parser.add_argument("--results", type=Path, default=Path("results") / results, help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=threads, help=f"threads [{threads or 'all cores'}]")
    return parser


def start(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the arguments and set the number of threads."""
    import torch

    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    return arguments


def check_names(
    parser: argparse.ArgumentParser, what: str, names: Iterable[str], known: Collection[str], hint: str = ""
) -> None:
    """Exit with a message for the first name that is not known."""
    for name in names:
        if name not in known:
            parser.error(f"{what} must be any of {', '.join(known)}. Got {name}.{hint}")


def finished(path: Path) -> list[dict[str, Any]]:
    """The lines of a results file; none if it does not exist yet."""
    return read_jsonl(path) if path.exists() else []


def print_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """A Markdown table with numbers in every column but the first."""
    names = list(head)
    print(f"| {' | '.join(names)} |\n|---|" + "---:|" * (len(names) - 1))
    for row in rows:
        print(f"| {' | '.join(row)} |")
