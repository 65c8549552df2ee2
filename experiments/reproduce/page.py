"""docs/results.md from the lines in results/: our numbers next to the paper's, and which claims hold.

The prose is in `pages/`; this module only puts the parts in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from cdknet.runs.files import replace_file
from experiments.reproduce.claims import claims_table
from experiments.reproduce.figures import draw_figures
from experiments.reproduce.markdown import fill, paragraph
from experiments.reproduce.open_runner import read_open_results
from experiments.reproduce.open_tables import open_section
from experiments.reproduce.paper_tables import (
    EVEN,
    ablation_table,
    budgets_table,
    expansion_table,
    glance_table,
    lambda_table,
    performance_table,
    splits_table,
    variants_table,
)
from experiments.reproduce.plan import BASELINES, MODERN, OURS, TABLES
from experiments.reproduce.rows import STALE
from experiments.reproduce.runner import Lines, read_results
from experiments.reproduce.studies import (
    NO_STUDIES,
    Studies,
    confidence_table,
    old_classes_table,
    plain_rivals_table,
    read_studies,
    tables_table,
    tuning_table,
)


def write_page(results: Path, docs: Path) -> Path:
    """Write docs/results.md and its figures."""
    lines, mixed = read_results(results), read_open_results(results)
    if not lines and not mixed:
        raise FileNotFoundError(
            f"{results / 'reproduce'} must hold results. Got none. Run cdknet reproduce table3 first."
        )
    drawn = [p for what in ("fig3", "fig4", "fig5") for p in draw_figures(what, results, docs / "pictures")]
    path = docs / "results.md"
    docs.mkdir(parents=True, exist_ok=True)
    pictures = [f"pictures/{p.name}" for p in drawn if p.suffix == ".png"]
    text = page(lines, pictures, read_studies(results), mixed)
    replace_file(path, text.encode())
    return path


def page(
    lines: Lines,
    pictures: Sequence[str] = (),
    studies: Studies = NO_STUDIES,
    mixed: Lines = MappingProxyType({}),
) -> str:
    """The whole page as Markdown. Sections without results are left out."""
    budgets = sorted({line["cell"]["budget"] for line in lines.values()}, reverse=True)
    current = {key: line for key, line in lines.items() if not line.get("stale")}
    about = "\n".join(f"- {paragraph(f'budget-{budget}')}" for budget in budgets)
    parts = [fill("introduction", even=EVEN, budgets=about)]
    if len(current) < len(lines):
        parts.append(fill("former-settings", mark=STALE, count=len(lines) - len(current)))
    for budget in budgets:
        parts += _budget(budget, lines, studies)
    parts += [
        budgets_table(lines),
        open_section(mixed),
        tables_table(studies.tables),
        plain_rivals_table(studies.plain_rivals),
        confidence_table(studies.confidence),
        tuning_table(studies.tuning),
        claims_table(current),
        fill("settings"),
        fill("below-the-paper"),
        _figures(pictures),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _budget(budget: str, lines: Lines, studies: Studies) -> list[str]:
    """All tables of one budget."""
    here = {key: line for key, line in lines.items() if line["cell"]["budget"] == budget}
    return [
        fill("budget", budget=budget, precision=_precision(here)),
        glance_table(here, budget),
        performance_table(here, budget),
        lambda_table(here, budget),
        expansion_table(here, budget),
        old_classes_table(here, budget, studies.classifiers),
        variants_table(here, budget),
        ablation_table(here, budget),
        splits_table(here, budget),
    ]


def _precision(lines: Lines) -> str:
    """How many fits were trained in which precision. The earliest lines do not say: they are float32."""
    trained = [line for line in lines.values() if line["cell"]["method"] not in (*BASELINES, *MODERN, *OURS)]
    short = sum(line.get("precision") == "bfloat16" for line in trained)
    name = "precision-one" if short == len(trained) else "precision-both"
    return fill(name, short=short, total=len(trained))


def _figures(pictures: Sequence[str]) -> str:
    if not pictures:
        return ""
    parts = []
    for name in pictures:
        figure = Path(name).stem
        title = TABLES[figure].title
        parts += [f"![{title}]({name})", f"{title}. {fill(figure)}"]
    return fill("figures", figures="\n\n".join(parts))
