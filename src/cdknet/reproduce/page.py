"""docs/results.md from the lines in results/: our numbers beside the paper's, and which claims hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cdknet.reproduce import paper
from cdknet.reproduce.claims import claims_table, p_greater
from cdknet.reproduce.figures import draw_figures
from cdknet.reproduce.plan import (
    ABLATIONS,
    BASELINES,
    BUDGETS,
    KNETS,
    MODERN,
    OURS,
    RIVALS,
    SSCD,
    TABLES,
    TITLES,
    VARIANTS,
    Cell,
    plain_cell,
)
from cdknet.reproduce.rows import SETS, STALE, Row, best_in_bold, marked, section, spread, table
from cdknet.reproduce.runner import Lines, read_results, seeds_of
from cdknet.reproduce.studies import (
    NO_STUDIES,
    Studies,
    confidence_table,
    old_classes_table,
    plain_rivals_table,
    read_studies,
    tables_table,
    tuning_table,
)
from cdknet.runs.files import replace_file

if TYPE_CHECKING:
    from rich.table import Table as RichTable

__all__ = ["draw_figures", "page", "terminal_table", "write_page"]

SHOWN = {
    "fig3": "Held-out digits by t-SNE, coloured by what they are: old classes as dots, new ones as crosses.",
    "fig4": "Bars: the mean over seeds; dots: each seed.",
    "fig5": "Lines: the mean over seeds; dots: each seed. At 0 % nothing is fine-tuned: SSCD-Exp.",
}

EVEN = "≈"
INTRODUCTION = f"""\
# The paper's experiments, run again

Written by `cdknet reproduce page` from the lines in `results/reproduce/`; every line is one fit, made by
`cdknet reproduce` on two CPU cores, and names its options, seed, time and revision. No label of a new
class entered a fit; where scores on new classes had been seen before a choice, it is said below. Numbers are
over the samples of new classes only, how many there are given:

- **ACC**: share of *held-out* samples right under the best one-to-one match of clusters and classes
  (Hungarian), asked which of the *new* classes they are of, as the paper and its rivals ask.
- **open ACC**: the same samples, asked which of *all* classes they are of, old ones competing, as `predict`
  asks; one match over all classes. This is what a user gets who does not know that a sample is new.
- **purity**: several clusters may claim one class. By the code released with the paper this is what it
  calls ACC; it is never below ACC.
- **train purity**: the same over the unlabelled samples of the fit, which is where the paper measures.
  This column is to be read against the paper's.
- **old**: accuracy on held-out samples of old classes after stage 1, at the end with new classes
  competing, and at the end among the old classes only, as a classifier that knows no others would
  answer. The last was not measured in the earliest runs.

Methods: SSCD is k-means on features of a classifier of the old classes; UCD-KNet is CD-KNet without the old
labels (lambda = 0); `-Exp` adds stage 3. Mean ± standard deviation over seeds. Bold: the best mean of a
column; {EVEN}: an ACC that is not significantly below it (one-sided paired t-test over the seeds that both
have, two at least, p ≥ .05). How the settings were chosen is told at the end. Sets and rows that are not here
have not been run yet: the commands are the same.
"""

CHOICES = """\
## How the settings were chosen

The defaults of the paper's method come from folds of hidden *old* classes
(`benchmarks/choose_defaults.py`) and are the same for every set. Batch and the unit sphere were chosen
on digits. Sigma, and in what unit lambda = 10 weighs old labels against U, which the paper leaves open,
were chosen in short trials on hidden old classes of MNIST, Fashion-MNIST and rf-50-sim: an earlier unit
all but left the labels out (`label_term`, docs/how_it_works.md). A third unit, with more weight for
labels, was dropped after these trials; before them, its poor scores on new classes (digits, wifi-csi-30,
one seed of Fashion-MNIST) had been seen. That stage 1 of `quick` runs until held-out old samples no
longer get better, and does not end at .8 as chosen on digits at first, comes from hidden old classes of
MNIST and Fashion-MNIST (the remarks below); how the former setting did on new classes had been seen.

The parts of CD-KNet+ were put together while watching one seed of MNIST's and Fashion-MNIST's new
classes; its views and the start of its heads were then chosen on folds of hidden old digits and of
Fashion-MNIST's old classes, and the replay of all old samples for the sake of old-class accuracy.
Seeds 0 to 2 of Fashion-MNIST showed that its earlier read-out, one spectral cut, at times cut bags in
two and left two kinds of shoes as one; the present one, what several cuts agree on, was taken because
in trials it did as well on hidden old classes. Expect some optimism on these seeds of these two sets;
other seeds, sets and splits were not looked at. That the old labels lead for I/Q recordings and from
30 old classes on, for how many epochs and in what batches, was chosen on a fold each of hidden old
devices of rf-50-sim and hidden old classes of CIFAR-100. How its stage 3 ends (samples as they are, every
layer at a falling rate, four epochs) was chosen by what held-out samples of *old* classes are called, on
seed 0 of Fashion-MNIST and seeds 0 and 1 of rf-50-sim; scores on new classes stood beside and were not the
reason. Its rows take their own defaults, whatever the budget. When its read-out questions what leans to
classes of equal size, and for what it then gives that up, was chosen on blobs and on hidden old classes of
digits, wifi-csi-30 and Fashion-MNIST, cut down to unequal sizes or not; a first rule, dropped there, had been
seen on two seeds of wifi-csi-30's new classes, where it did harm. That a few strays are no class, when
vectors follow the gaps among the samples themselves, and how classes cut in two enter the confidence was
decided on blobs alone; that ranks count from two mistakes in a thousand on, and not in a hundred, after one
seed of MNIST's new classes had been seen to be trusted too little. How `tune` weighs its folds was decided
after two seeds of wifi-csi-30's new classes (above).

That gaps are followed only where they are as many as the classes, that the smallest class has a fifth of
the mean one, that samples which are mostly copies are cut by k-means, and that views of vectors weigh 1 was
chosen in trials on hidden *old* classes of the real tables (not satimage, which has too few), for views of
wifi-csi-30's too, on blobs and by `benchmarks/unequal_classes.py`. What led to these trials was that CD-KNet+
had done badly on the new classes of one split of these tables; they were looked at again after two changes.
How columns of two values are scaled was mended after a table of such columns and one number that says nothing
had shown that it mattered what stands for yes and no. The rule for gaps holds for pictures and recordings
too. Of their fits twelve were run again for it (digits, rf-50-sim, two seeds of MNIST): they had the same
clusters. The others were not.
"""

FORMER = f"""\
{STALE}: with a former setting, to be run again ({{stale}} fits; their lines have the options). Claims are not
tested on such rows, and figures leave them out. In the former setting CD-KNet+ followed gaps among vectors
though there were more of them than classes, and views of vectors weighed 3.
"""

REMARKS = """\
## Where we are below the paper, and why

What is below by more than .03 is marked in the tables. Our reading, from trials with hidden old classes:

- The paper does not say how sigma, the scale of f(x) or the batch were set; its released code, read (not
  run), gives the unsupervised term no gradient and renames pseudo-labels by the truth before expansion. We
  can repeat the formulas, not that pipeline.
- U is made of features that have seen old classes only, and k-means alone does badly on them: two hidden old
  digits of MNIST are told apart at .97 on pixels, at .67 on features of one epoch of stage 1, at .74 on
  those of a whole one (means of 4 folds, `results/choose_defaults.jsonl`). Stage 2 repairs much of it, the
  more the longer stage 1 was: .87 after one epoch, .96 after a whole stage 1. So we had ended stage 1
  too early: on MNIST's new digits CD-KNet-Exp rose from .694 to what the table says, and the methods now
  stand in the paper's order. Views of unlabelled samples help more still (CD-KNet+, the rows marked as ours).
- On Fashion-MNIST hidden old classes foretold the same (.87 after one epoch, .89 after a whole stage 1), and
  for the new ones it is not so: CD-KNet-Exp fell from .569. The old classes are clothes, the new ones shoes,
  bags and shirts: what hidden clothes ask for says little about shoes. It was not taken back for that.
- Features that are not on the unit sphere find hidden clothes better (.91 against .89) and hidden old digits
  of scikit-learn (.86 against .84), those of MNIST worse (.93 against .96) and devices of wifi-csi-30 (.62
  against .64): they stay on it.
- Table V says where Fashion-MNIST parts from the paper: without old labels we are where it is (ACC .58
  against .587, NMI .48 against .476); with them the paper rises and we fall, the further the larger lambda.
  The unit of lambda may give the labels more than the paper does: here lambda = 1 is best. It stays as it is:
  hidden old classes, which alone may decide that, say otherwise (lambda 1 and 10, means of 4 folds: MNIST .93
  and .96, Fashion-MNIST .89 and .89).
- What else the paper leaves open does not close the gap (`variants`, one seed): its rate of .01, smaller
  batches, features off the sphere and a short stage 1 each end at or below .82 on MNIST and .61 on
  Fashion-MNIST.
- Expansion adds .01 to .02 on MNIST here and .08 in the paper: before it we are .05 below, after it .11. That
  gain is what we cannot repeat: stage 3 learns the clusters as they are.
- DAC, which starts from the same stage 1, does better on MNIST and Fashion-MNIST than in the paper, and
  better than CD-KNet-Exp: it learns from views of the samples, as CD-KNet+ does.
- Fig. 5: on MNIST a kernel on 1 to 3 % of the samples does better than one on 5 to 10 %. A round goes over
  the whole subsample: more samples are more steps, which take the features further from where they began. On
  CIFAR-100 the share hardly matters (.21 to .24), and no kernel at all (SSCD-Exp) does better.
- Fig. 4: whichever layers grow, the outcome is the same within .02; that any do is worth up to .02.
- With many classes stage 2 itself does harm: on CIFAR-100 the K-Nets end below SSCD, whose features they
  start from, and so they do on hidden old classes (two folds of 28 in `results/choose_defaults.jsonl`: .25
  after stage 1, .21 after stage 2, at the paper's rate of .0001 as well). U has a column for each of a
  hundred classes and some 25 samples of each, and what it groups wrongly is then learned.
- CD-KNet+ keeps the old classes among themselves, but shirts, a new class of Fashion-MNIST, compete with
  T-shirts, pullovers and coats, and at times win.
- On digits the contrast of views without any label, then a spectral cut, finds the new classes as well as
  CD-KNet+ does; it has learned no old class, and mixes those up.
- CIFAR-100's fits in colour views (CD-KNet+, balanced heads) are of a time when what lies outside a picture
  was as dark as the darkest pixel of its batch; now it is that of the picture.
- Of the real tables CD-KNet+ is behind the paper's method on satimage, vowel and letter. There what sets
  old classes apart seems to set new ones apart, too, and views, in which a fifth of a handful of columns is
  another sample's, blur it; SSCD, which knows no views, does well on the same three. Where many columns tell
  the same (optdigits, texture), it is the other way about. No rule was made of it: nine tables are few.
- Purity flatters: on Fashion-MNIST k-means on pixels has a purity above the paper's headline.
"""


def write_page(results: Path, docs: Path) -> Path:
    """Write docs/results.md and its pictures."""
    lines = read_results(results)
    if not lines:
        raise FileNotFoundError(
            f"{results / 'reproduce'} must hold results. Got none. Run cdknet reproduce table3 first."
        )
    drawn = [p for what in ("fig3", "fig4", "fig5") for p in draw_figures(what, results, docs / "pictures")]
    path = docs / "results.md"
    docs.mkdir(parents=True, exist_ok=True)
    pictures = [f"pictures/{p.name}" for p in drawn if p.suffix == ".png"]
    replace_file(path, page(lines, pictures, read_studies(results)).encode())
    return path


def page(lines: Lines, pictures: Sequence[str] = (), studies: Studies = NO_STUDIES) -> str:
    """The whole page as Markdown."""
    parts = [INTRODUCTION]
    budgets = sorted({line["cell"]["budget"] for line in lines.values()}, reverse=True)
    parts.append("Budgets. " + " ".join(f"`{b}`: {BUDGETS[b]}" for b in budgets) + "\n")
    stale = sum(bool(line.get("stale")) for line in lines.values())
    if stale:
        parts.append(FORMER.format(stale=stale))
    for budget in budgets:
        here = {k: v for k, v in lines.items() if v["cell"]["budget"] == budget}
        tables = [
            _glance(here, budget),
            _performance(here, budget),
            _lambdas(here, budget),
            _expansion(here, budget),
        ]
        tables += [
            old_classes_table(here, budget, studies.classifiers),
            _variants(here, budget),
            _ablation(here, budget),
            _splits(here, budget),
        ]
        parts += [f"# Budget `{budget}`\n", _arithmetic(here), *[t for t in tables if t]]
    parts += [
        _budgets(lines),
        tables_table(studies.tables),
        plain_rivals_table(studies.plain_rivals),
        confidence_table(studies.confidence),
        tuning_table(studies.tuning),
        claims_table({key: line for key, line in lines.items() if not line.get("stale")}),
    ]
    parts += [CHOICES, REMARKS]
    if pictures:
        parts.append("## Figures\n")
        for name in pictures:
            figure = Path(name).stem
            parts.append(f"![{TABLES[figure].title}]({name})\n")
            parts.append(f"{TABLES[figure].title}. {SHOWN[figure]}\n")
    return "\n".join(parts)


def _arithmetic(lines: Lines) -> str:
    """How many cells were trained in which arithmetic; the first ones, in float32, do not say."""
    trained = [line for line in lines.values() if line["cell"]["method"] not in (*BASELINES, *MODERN, *OURS)]
    short = sum(line.get("precision") == "bfloat16" for line in trained)
    if short == len(trained):
        return f"All {short} fits of the paper's methods were in bfloat16.\n"
    return (
        f"Of {len(trained)} fits of the paper's methods, {short} were in bfloat16, the others in float32.\n"
    )


# Tables


def _glance(lines: Lines, budget: str) -> str:
    """The best of each kind of method, a row for each set."""
    kinds = {
        "trivial": BASELINES,
        "of the paper": (*SSCD, *KNETS, *RIVALS),
        "later": MODERN,
        "CD-KNet+-Exp (ours)": ("cd-knet+-exp",),
    }
    out = []
    for dataset in SETS:
        cells = []
        for methods in kinds.values():
            found = {m: seeds_of(lines, Cell(dataset, m, 0, budget)) for m in methods}
            accs = {m: [line["test"]["acc"] for line in of] for m, of in found.items() if of}
            best = max(accs, key=lambda m: float(np.mean(accs[m])), default=None)
            if best is None:
                cells.append("not run yet")
                continue
            name = f"{TITLES[best].split(',')[0].split(' (')[0]}: " if len(methods) > 1 else ""
            cells.append(marked(f"{name}{spread(accs[best])} ({len(accs[best])})", found[best]))
        if cells != ["not run yet"] * len(kinds):
            out.append([SETS[dataset], *cells])
    told = "The method with the best mean ACC of each kind, in brackets the number of seeds."
    return section("## At a glance", told, ["", *(f"{kind}:" for kind in kinds)], out)


def _performance(lines: Lines, budget: str) -> str:
    """Tables III and IV, a block for each set."""
    blocks = []
    for dataset in SETS:
        rows = []
        for method in TITLES:
            found = seeds_of(lines, Cell(dataset, method, 0, budget))
            if found:
                numbers = paper.PERFORMANCE.get((method, dataset))
                rows.append(Row(TITLES[method], found, numbers, method in (*MODERN, *OURS)))
        if rows:
            blocks += [f"### {SETS[dataset]}\n", *_markdown(rows), ""]
    if not blocks:
        return ""
    return "\n".join(["## Tables III and IV: class discovery\n", *blocks])


def _markdown(rows: Sequence[Row]) -> list[str]:
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
        stated = "" if row.paper is None else f"{row.paper[0]:.3f}"
        if row.paper is not None:
            gap = float(np.mean(row.values("train", "purity"))) - row.paper[0]
            stated += f" ({gap:+.3f})" + (" below" if gap < -0.03 else "")
        stages = ("old_before", "old_after", "old_among_old")
        old = ", ".join(f"{np.mean(v):.3f}" if (v := row.old(when)) else "-" for when in stages)
        out.append([row.name, str(len(row.lines)), *cells, stated, old])
    return table(columns, out)


def _as_good(row: Row, best: Row) -> bool:
    """Whether the seeds that both have do not show `row` to be below `best` in held-out ACC."""
    mine, theirs = ({line["cell"]["seed"]: line["test"]["acc"] for line in r.lines} for r in (row, best))
    gaps = [theirs[seed] - mine[seed] for seed in sorted(mine.keys() & theirs.keys())]
    return len(gaps) > 1 and p_greater(gaps) >= 0.05


def _lambdas(lines: Lines, budget: str) -> str:
    """Table V."""
    out = []
    for cell in TABLES["table5"].cells(seeds=1, budget=budget):
        found = seeds_of(lines, cell)
        if not found:
            continue
        weight = float(found[0]["options"].get("label_weight", 10.0))
        row = Row("", found, paper.LAMBDA.get(weight))
        cells = [spread(row.values("train", m)) for m in ("acc", "purity", "nmi", "ari")]
        stated = "" if row.paper is None else " / ".join(f"{v:.3f}" for v in row.paper)
        out.append([marked(f"{weight:g}", found), str(len(found)), *cells, stated])
    return section(
        "## Table V: the weight of the old labels, Fashion-MNIST, CD-KNet, unlabelled samples of the fit",
        "",
        ["lambda:", "seeds", "ACC:", "purity:", "NMI:", "ARI:", "paper's ACC / NMI / ARI:"],
        out,
    )


def _expansion(lines: Lines, budget: str) -> str:
    """Table VI."""
    out = []
    for cell in TABLES["table6"].cells(seeds=1, budget=budget):
        found = seeds_of(lines, cell)
        if not found:
            continue
        row = Row(TITLES[cell.method], found, None)
        ours = [row.values("train_before", "purity"), row.values("train", "purity")]
        ours += [row.old("old_before"), row.old("old_after")]
        stated = paper.EXPANSION[cell.method]
        cells = [f"{spread(mine)} ({theirs:.3f})" for mine, theirs in zip(ours, stated, strict=True)]
        out.append([row.name, str(len(found)), *cells])
    return section(
        "## Table VI: MNIST before and after expansion",
        "Purity of new classes, accuracy of old ones; the paper's in brackets.",
        ["method", "seeds", "new before:", "new after:", "old before:", "old after:"],
        out,
    )


def _budgets(lines: Lines) -> str:
    """The same seeds with both budgets: does `quick` change the picture?"""
    out = []
    for dataset in SETS:
        for method in (*SSCD, *KNETS):
            both = [
                (lines[Cell(dataset, method, seed).key], lines[Cell(dataset, method, seed, "paper").key])
                for seed in range(TABLES["table3"].most_seeds)
                if {Cell(dataset, method, seed, budget).key for budget in BUDGETS} <= lines.keys()
            ]
            if both:
                pairs = [[found[i]["test"]["acc"] for found in both] for i in (0, 1)]
                gap = np.mean(np.subtract(pairs[1], pairs[0]))
                title = marked(TITLES[method], [found for pair in both for found in pair])
                out.append([SETS[dataset], title, str(len(both)), *map(spread, pairs), f"{gap:+.3f}"])
    return section(
        "# Both budgets beside each other",
        "ACC on held-out samples, the same seeds.",
        ["set", "method", "seeds", "quick:", "paper:", "difference:"],
        out,
    )


def _one_by_one(
    lines: Lines, budget: str, what: str, parts: Mapping[str, tuple[str, dict[str, Any]]], head: Sequence[str]
) -> str:
    """One part of a method taken away or exchanged at a time, against the whole, a block for each set."""
    most = TABLES[what].most_seeds
    blocks = []
    for dataset in TABLES[what].datasets:
        rows = [
            (title, found)
            for title, (method, changes) in parts.items()
            if (found := seeds_of(lines, plain_cell(dataset, method, 0, budget, changes))[:most])
        ]
        if len(rows) < 2 or rows[0][0] != "as it is":
            continue
        whole = {line["cell"]["seed"]: line["test"]["acc"] for line in rows[0][1]}
        out = []
        for title, found in rows:
            row = Row(title, found, None)
            both = [line for line in found if line["cell"]["seed"] in whole]
            gains = [line["test"]["acc"] - whole[line["cell"]["seed"]] for line in both]
            columns = [spread(row.values("test", "acc")), f"{np.mean(gains):+.3f}" if gains else "-"]
            columns += [spread(row.values("train", "purity")), f"{np.mean(row.old('old_after')):.3f}"]
            out.append([row.name, str(len(found)), *columns])
        names = ["", "seeds", "ACC:", "difference:", "train purity:", "old after:"]
        blocks.append(section(f"### {SETS[dataset]}", "", names, out))
    return "\n".join([*head, *blocks]) if blocks else ""


def _ablation(lines: Lines, budget: str) -> str:
    head = [
        "## Ablation of CD-KNet+-Exp\n",
        "One part taken away or exchanged at a time; held-out samples, differences over the same seeds.\n",
    ]
    return _one_by_one(lines, budget, "ablation", ABLATIONS, head)


def _variants(lines: Lines, budget: str) -> str:
    head = [
        "## What the paper leaves open\n",
        "CD-KNet (stage 2) with one choice of ours exchanged at a time (`cdknet reproduce variants`): is it "
        "for these that it stays below the paper? For this table alone; nothing was chosen by it.\n",
    ]
    return _one_by_one(lines, budget, "variants", VARIANTS, head)


def _splits(lines: Lines, budget: str) -> str:
    """A line a random split, a column a method, and their means."""
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
            out = []
            for row, values in zip([*[row[0] for row in rows], None], [*acc, acc.mean(axis=0)], strict=True):
                name = "**mean**" if row is None else ", ".join(row["new_classes"])
                out.append([name, *best_in_bold(values.tolist())])
            blocks.append(section(f"### {dataset}", "", ["new classes", *heads], out))
    if not blocks:
        return ""
    return "\n".join(
        ["## Random splits of the classes\n", "ACC on held-out samples, one seed each.\n", *blocks]
    )


# For the terminal


def terminal_table(what: str, cells: Sequence[Cell], lines: Sequence[Mapping[str, Any]]) -> RichTable:
    """Mean and deviation over seeds of what was just run."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable

    title = TABLES[what].title if what in TABLES else "All tables and figures"
    shown = RichTable(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in ("set", "method"):
        shown.add_column(name, no_wrap=True)
    for name in ("seeds", "ACC", "purity", "paper's"):  # what fits into 80 columns; the page has the rest
        shown.add_column(name, justify="right", no_wrap=True)
    groups: dict[Cell, list[Mapping[str, Any]]] = {}
    for cell, line in zip(cells, lines, strict=True):
        groups.setdefault(cell._replace(seed=0), []).append(line)
    for cell, found in groups.items():
        row = Row("", found, paper.PERFORMANCE.get((cell.method, cell.dataset)))
        changes = "".join(f", {k} {v:g}" if isinstance(v, float) else f", {v}" for k, v in cell.changes)
        stated = "" if row.paper is None or cell.changes else f"{row.paper[0]:.3f}"
        numbers = [spread(row.values("test", m)) for m in ("acc", "purity")]
        shown.add_row(cell.dataset, cell.method + changes, str(len(found)), *numbers, stated)
    return shown
