"""docs/reliability.md, from the lines in results/reliability.jsonl."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.reliability import MEASUREMENTS, RESULTS, ROOT

PAGE = ROOT / "docs" / "reliability.md"
# name -> what is promised; None: what is measured without a promise
PROMISES: dict[str, str] = {
    "review-kills": "No acknowledged review action is lost: kill -9, two servers on one run, a full disk.",
    "fit-kills": "A discover, refine or export that is killed ends in the same bits when it is repeated.",
    "readers": "No data file makes a reader fail in another way than one error that names it, or hang.",
    "run-folders": "No run folder, however malformed, gives more than one line.",
    "journals": "No journal, however malformed, gives more than one line.",
    "memory": "A file that is not packed takes at most 3 x its size + 200 MB.",
    "requests": "No request to the explorer gets a 500, or an answer from outside the run.",
    "names": "No name, note or id runs in the page, the report, the terminal or a spreadsheet.",
    "repeats": "Equal inputs, one thread: equal bits.",
    "threads": "(No promise.) With two threads instead of one, labels may differ.",
}
TRIED = ("kills", "inputs", "requests", "attacks", "fits", "kinds")
APART = ("promise", "command", "seconds", "date", "machine", "broken", "examples")


def shown(results: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """For each promise the measurement that broke it; if none did, the one that tried most."""
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        before = found.get(line["promise"])
        if before is None or _weight(line) >= _weight(before):
            found[line["promise"]] = line
    return found


def _weight(line: Mapping[str, Any]) -> tuple[bool, int]:
    tried = next((line[name] for name in TRIED if name in line), 0)
    return line["broken"] > 0, int(tried)


def as_markdown(lines: Mapping[str, Mapping[str, Any]]) -> str:
    machine = "; ".join(sorted({line["machine"] for line in lines.values()}))
    rows = ["| promise | figures | broken | measured by | date |", "|---|---|---:|---|---|"]
    for name, promise in PROMISES.items():
        line = lines.get(name)
        if line is None:
            rows.append(f"| {promise} | not measured yet | - | `{name}` | - |")
            continue
        figures = ", ".join(_figure(k, v) for k, v in line.items() if k not in APART)
        asked = line["command"].partition("benchmarks.reliability ")[2]
        broken = "-" if promise.startswith("(") else f"**{line['broken']}**"
        rows.append(
            f"| {promise} | {figures} | {broken} | `{asked}`, {line['seconds']:,} s | {line['date']} |"
        )
    head, tail = (ROOT / "benchmarks" / "pages" / "reliability.md").read_text().split("<!-- table -->\n")
    return head.replace("<!-- machine -->", machine) + "\n".join(rows) + "\n" + tail


def _figure(name: str, value: Any) -> str:
    name = name.replace("_", " ")
    if isinstance(value, Mapping):
        return f"{name}: " + ", ".join(f"{k.replace('_', ' ')} {v:,}" for k, v in value.items())
    if isinstance(value, list):
        return f"{name}: {', '.join(map(str, value))}"
    return f"{value:,} {name}"


def write_page() -> Path:
    PAGE.write_text(as_markdown(shown()))
    return PAGE


assert PROMISES.keys() == MEASUREMENTS.keys()
