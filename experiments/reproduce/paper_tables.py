"""The tables of the paper, and those that belong to them, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.reproduce import paper
from experiments.reproduce.claims import p_greater
from experiments.reproduce.markdown import block, section, section_of_blocks
from experiments.reproduce.plan import (
    ABLATIONS,
    BASELINES,
    BUDGETS,
    KNETS,
    MODERN,
    RIVALS,
    SSCD,
    TABLES,
    TITLES,
    UNCHANGED,
    VARIANTS,
    Cell,
    canonical_cell,
)
from experiments.reproduce.rows import SETS, Row, best_in_bold, marked, spread
from experiments.reproduce.runner import Lines, seeds_of

EVEN = "≈"
NOT_RUN = "not run yet"


def glance_table(lines: Lines, budget: str) -> str:
    """The best method of each kind, one row per set."""
    kinds = {
        "baselines": BASELINES,
        "the paper's methods": (*SSCD, *KNETS, *RIVALS),
        "later methods": MODERN,
        "CD-KNet+-Exp (ours)": ("cd-knet+-exp",),
    }
    rows = []
    for dataset in SETS:
        cells = [_best_of(lines, dataset, budget, methods) for methods in kinds.values()]
        if cells != [NOT_RUN] * len(kinds):
            rows.append([SETS[dataset], *cells])
    return section("at-a-glance", ["", *(f"{kind}:" for kind in kinds)], rows)


def _best_of(lines: Lines, dataset: str, budget: str, methods: Sequence[str]) -> str:
    """The method with the best mean ACC, its score and its number of seeds."""
    found = {method: seeds_of(lines, Cell(dataset, method, 0, budget)) for method in methods}
    accs = {method: [line["test"]["acc"] for line in runs] for method, runs in found.items() if runs}
    if not accs:
        return NOT_RUN
    best = max(accs, key=lambda method: float(np.mean(accs[method])))
    name = f"{TITLES[best].split(',')[0].split(' (')[0]}: " if len(methods) > 1 else ""
    return marked(f"{name}{spread(accs[best])} ({len(accs[best])})", found[best])


def performance_table(lines: Lines, budget: str) -> str:
    """Tables III and IV, one block per set."""
    blocks = []
    for dataset in SETS:
        rows = [
            Row(title, found, paper.PERFORMANCE.get((method, dataset)))
            for method, title in TITLES.items()
            if (found := seeds_of(lines, Cell(dataset, method, 0, budget)))
        ]
        if rows:
            blocks.append(_performance_block(SETS[dataset], rows))
    return section_of_blocks("performance", blocks)


def _performance_block(title: str, rows: Sequence[Row]) -> str:
    measures = [("test", "acc"), ("open_world", "new")]
    measures += [("test", m) for m in ("purity", "nmi", "ari")] + [("train", m) for m in ("acc", "purity")]
    best = {m: max(np.mean(row.values(*m)) for row in rows) for m in measures}
    first = max(rows, key=lambda row: float(np.mean(row.values("test", "acc"))))
    columns = ["ACC:", "open ACC:", "purity:", "NMI:", "ARI:", "train ACC:", "train purity:", "paper's ACC:"]
    columns = ["method", "seeds", *columns, "old before, after, among old:"]
    out = []
    for row in rows:
        cells = []
        for measure in measures:
            values = row.values(*measure)
            text = spread(values)
            cells.append(f"**{text}**" if math.isclose(np.mean(values), best[measure]) else text)
        if not cells[0].startswith("**") and _as_good(row, first):
            cells[0] += f" {EVEN}"
        stages = ("old_before", "old_after", "old_among_old")
        old = ", ".join(f"{np.mean(v):.3f}" if (v := row.old(when)) else "-" for when in stages)
        out.append([row.name, str(len(row.lines)), *cells, _papers_acc(row), old])
    return block(title, columns, out)


def _papers_acc(row: Row) -> str:
    """The ACC that the paper prints, and how far our train purity is from it."""
    if row.paper is None:
        return ""
    gap = float(np.mean(row.values("train", "purity"))) - row.paper[0]
    return f"{row.paper[0]:.3f} ({gap:+.3f})" + (" below" if gap < -0.03 else "")


def _as_good(row: Row, best: Row) -> bool:
    """Whether `row` is not significantly below `best` in held-out ACC, over the seeds that both have."""
    mine, theirs = ({line["cell"]["seed"]: line["test"]["acc"] for line in r.lines} for r in (row, best))
    gaps = [theirs[seed] - mine[seed] for seed in sorted(mine.keys() & theirs.keys())]
    return len(gaps) > 1 and p_greater(gaps) >= 0.05


def lambda_table(lines: Lines, budget: str) -> str:
    """Table V."""
    out = []
    for cell in TABLES["table5"].cells(seeds=1, budget=budget):
        found = seeds_of(lines, cell)
        if not found:
            continue
        weight = float(found[0]["options"].get("label_weight", 10.0))
        row = Row("", found, paper.LAMBDA.get(weight))
        cells = [spread(row.values("train", m)) for m in ("acc", "purity", "nmi", "ari")]
        printed = "" if row.paper is None else " / ".join(f"{v:.3f}" for v in row.paper)
        out.append([marked(f"{weight:g}", found), str(len(found)), *cells, printed])
    columns = ["lambda:", "seeds", "ACC:", "purity:", "NMI:", "ARI:", "paper's ACC / NMI / ARI:"]
    return section("lambda", columns, out)


def expansion_table(lines: Lines, budget: str) -> str:
    """Table VI."""
    out = []
    for cell in TABLES["table6"].cells(seeds=1, budget=budget):
        found = seeds_of(lines, cell)
        if not found:
            continue
        row = Row(TITLES[cell.method], found)
        ours = [row.values("train_before", "purity"), row.values("train", "purity")]
        ours += [row.old("old_before"), row.old("old_after")]
        printed = paper.EXPANSION[cell.method]
        cells = [f"{spread(mine)} ({theirs:.3f})" for mine, theirs in zip(ours, printed, strict=True)]
        out.append([row.name, str(len(found)), *cells])
    columns = ["method", "seeds", "new before:", "new after:", "old before:", "old after:"]
    return section("expansion", columns, out)


def budgets_table(lines: Lines) -> str:
    """The same seeds with both budgets: does `quick` change the picture?"""
    out = []
    for dataset in SETS:
        for method in (*SSCD, *KNETS):
            both = [
                (lines[Cell(dataset, method, seed).key], lines[Cell(dataset, method, seed, "paper").key])
                for seed in range(TABLES["table3"].max_seeds)
                if {Cell(dataset, method, seed, budget).key for budget in BUDGETS} <= lines.keys()
            ]
            if both:
                pairs = [[found[i]["test"]["acc"] for found in both] for i in (0, 1)]
                gap = np.mean(np.subtract(pairs[1], pairs[0]))
                title = marked(TITLES[method], [found for pair in both for found in pair])
                out.append([SETS[dataset], title, str(len(both)), *map(spread, pairs), f"{gap:+.3f}"])
    return section("both-budgets", ["set", "method", "seeds", "quick:", "paper:", "difference:"], out)


def ablation_table(lines: Lines, budget: str) -> str:
    """CD-KNet+-Exp with one part removed or replaced at a time."""
    return section_of_blocks("ablation", _one_at_a_time(lines, budget, "ablation", ABLATIONS))


def variants_table(lines: Lines, budget: str) -> str:
    """CD-KNet with one of our choices replaced at a time."""
    return section_of_blocks("variants", _one_at_a_time(lines, budget, "variants", VARIANTS))


def _one_at_a_time(
    lines: Lines, budget: str, what: str, changes_by_title: Mapping[str, tuple[str, dict[str, Any]]]
) -> list[str]:
    """A method with one change at a time against the unchanged one, one block per set."""
    columns = ["", "seeds", "ACC:", "difference:", "train purity:", "old after:"]
    blocks = []
    for dataset in TABLES[what].datasets:
        rows = [
            (title, found[: TABLES[what].max_seeds])
            for title, (method, changes) in changes_by_title.items()
            if (found := seeds_of(lines, canonical_cell(dataset, method, 0, budget, changes)))
        ]
        if len(rows) < 2 or rows[0][0] != UNCHANGED:
            continue
        unchanged = {line["cell"]["seed"]: line["test"]["acc"] for line in rows[0][1]}
        out = []
        for title, found in rows:
            row = Row(title, found)
            both = [line for line in found if line["cell"]["seed"] in unchanged]
            gains = [line["test"]["acc"] - unchanged[line["cell"]["seed"]] for line in both]
            cells = [spread(row.values("test", "acc")), f"{np.mean(gains):+.3f}" if gains else "-"]
            cells += [spread(row.values("train", "purity")), f"{np.mean(row.old('old_after')):.3f}"]
            out.append([row.name, str(len(found)), *cells])
        blocks.append(block(SETS[dataset], columns, out))
    return blocks


def splits_table(lines: Lines, budget: str) -> str:
    """One row per random split, one column per method, and their means."""
    blocks, planned = [], TABLES["splits"]
    methods = [method for method, _ in planned.rows]
    for dataset in planned.datasets:
        rows = []
        for split in range(planned.splits):
            cells = [Cell(dataset, m, 0, budget, split=split) for m in methods]
            if all(cell.key in lines for cell in cells):
                rows.append([lines[cell.key] for cell in cells])
        if rows:
            acc = np.array([[line["test"]["acc"] for line in row] for row in rows])
            heads = [f"{marked(TITLES[m], [row[i] for row in rows])}:" for i, m in enumerate(methods)]
            names = [", ".join(row[0]["new_classes"]) for row in rows]
            means = zip([*names, "**mean**"], [*acc, acc.mean(axis=0)], strict=True)
            out = [[name, *best_in_bold(values.tolist())] for name, values in means]
            blocks.append(block(dataset, ["new classes", *heads], out))
    return section_of_blocks("splits", blocks)
