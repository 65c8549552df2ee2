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
from cdknet.cli.demo import Comparison, compare, digits_problem, fit_digits, with_paper
from cdknet.core.metrics import Scores
from choose_defaults import CANDIDATES, PAPER_CANDIDATES, STEPS, current_cells, folds
from experiments.reproduce.markdown import table

PAGE = Path(__file__).parent / "pages" / "demo.md"
SEEDS = 5


def number(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def scores_table(comparisons: Sequence[Comparison], part: str) -> str:
    """Scores of each method over the seeds; `part` is held_out or train."""
    rows = []
    for i, line in enumerate(comparisons[0].lines):
        found: list[Scores] = [getattr(c.lines[i], part) for c in comparisons]
        cells = [number([getattr(s, m) for s in found]) for m in ("acc", "purity", "nmi", "ari")]
        rows.append([line.method, *cells, " ".join(f"{s.acc:.3f}".removeprefix("0") for s in found)])
    return table(["method", "ACC", "purity", "NMI", "ARI", "ACC of each seed"], rows)


def facts_table(comparisons: Sequence[Comparison]) -> str:
    """Accuracies on held-out samples of all ten classes."""
    facts = {
        "old classes after stage 1 of the paper's method": [c.old_before for c in comparisons],
        "old classes after expansion, new ones competing": [c.old_after for c in comparisons],
        "all classes, one assignment": [c.open_world.all for c in comparisons],
        "of which new classes": [c.open_world.new for c in comparisons],
    }
    return table(["", "accuracy"], [[name, number(values)] for name, values in facts.items()])


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


def percent(comparisons: Sequence[Comparison], method: str) -> str:
    """Mean held-out ACC of a method, in percent."""
    accs = [line.held_out.acc for c in comparisons for line in c.lines if line.method == method]
    return f"{100 * np.mean(accs):.1f}"


def main() -> None:
    problem, comparisons, seconds = digits_problem(), [], []
    for seed in range(SEEDS):
        start = time.process_time()
        model = fit_digits(problem, seed, unlabelled="new")
        seconds.append(time.process_time() - start)
        paper = fit_digits(problem, seed, method="cd-knet", unlabelled="new")
        comparisons.append(with_paper(compare(model, problem), compare(paper, problem)))
    text = Template(PAGE.read_text(encoding="utf-8")).substitute(
        seeds=SEEDS,
        cores=os.cpu_count(),
        seconds=f"{np.mean(seconds):.0f}",
        ours=percent(comparisons, "CD-KNet+-Exp"),
        pixels=percent(comparisons, "k-means on pixels"),
        held_out=scores_table(comparisons, "held_out"),
        train=scores_table(comparisons, "train"),
        facts=facts_table(comparisons),
        study=study_table(),
    )
    (ROOT / "docs" / "demo.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
