"""Write docs/demo.md: the demo over five seeds, and the study that its defaults come from.

    python benchmarks/choose_defaults.py     # first: the study on hidden old digits
    python benchmarks/demo_table.py

The prose is in benchmarks/pages/demo.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from string import Template

import numpy as np

from bench import ROOT, finished
from cdknet.cli.demo import Comparison, compare, digits_problem, fit_digits
from cdknet.core.metrics import MixedReport
from choose_defaults import CANDIDATES, PAPER_CANDIDATES, STEPS, current_cells, folds
from experiments.reproduce.markdown import table

PAGE = Path(__file__).parent / "pages" / "demo.md"
SEEDS = 5


def number(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def scores_table(comparisons: Sequence[Comparison], part: str) -> str:
    """Accuracies of each method over the seeds; `part` is held_out or unlabelled."""
    rows = []
    for i, line in enumerate(comparisons[0].lines):
        found: list[MixedReport] = [getattr(c.lines[i], part) for c in comparisons]
        cells = [number([getattr(one, which) for one in found]) for which in ("all", "old", "new")]
        rows.append([line.method, *cells, " ".join(f"{one.all:.3f}".removeprefix("0") for one in found)])
    return table(["method", "all", "0-4, by name", "5-9, matched", "all, each seed"], rows)


def facts_table(comparisons: Sequence[Comparison]) -> str:
    """What the default says of its own answer, beside the truth."""
    facts = {
        "share of 0-4 among the unlabelled digits": ("found", "share"),
        "share of labels that is right": ("expected", "right"),
    }
    rows = [
        [name, *(number([getattr(c, value) for c in comparisons]) for value in values)]
        for name, values in facts.items()
    ]
    return table(["", "said", "true"], rows)


def study_table() -> str:
    """Each candidate on hidden old digits, mean over the folds."""
    cells = current_cells("digits", finished(ROOT / "results" / "choose_defaults.jsonl"))
    rows = []
    for name in (name for name in CANDIDATES if name not in PAPER_CANDIDATES):
        mine = [cell for cell in cells if cell["candidate"] == name]
        if len(mine) == len(folds()):
            means = [f"{np.mean([c[k] for c in mine]):.3f}" for k in STEPS]
            worst = f"{min(c['stage 3'] for c in mine):.3f}"
            old = [f"{np.mean([c[k] for c in mine]):.3f}" for k in ("old_before", "old_after")]
            rows.append([name, *means, worst, *old])
    return table(["setting", *STEPS, "worst fold", "old before", "old after"], rows)


def percent(comparisons: Sequence[Comparison], place: int) -> str:
    """Share of the unlabelled samples that a method labels right, mean over the seeds, in percent."""
    return f"{100 * np.mean([c.lines[place].unlabelled.all for c in comparisons]):.1f}"


def main() -> None:
    problem, comparisons, seconds = digits_problem(), [], []
    for seed in range(SEEDS):
        start = time.process_time()
        model = fit_digits(problem, seed)
        seconds.append(time.process_time() - start)
        paper = fit_digits(problem, seed, method="cd-knet")
        comparisons.append(compare(paper, model, problem))
    text = Template(PAGE.read_text(encoding="utf-8")).substitute(
        seeds=SEEDS,
        cores=os.cpu_count(),
        seconds=f"{np.mean(seconds):.0f}",
        ours=percent(comparisons, -1),
        pixels=percent(comparisons, 0),
        holds=sum(c.interval[0] <= c.share <= c.interval[1] for c in comparisons),
        held_out=scores_table(comparisons, "held_out"),
        unlabelled=scores_table(comparisons, "unlabelled"),
        facts=facts_table(comparisons),
        study=study_table(),
    )
    (ROOT / "docs" / "demo.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
