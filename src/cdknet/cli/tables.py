"""Results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from cdknet.runs.summary import confidence_sentence, count_sentence, given_sentence, mixture_sentence

if TYPE_CHECKING:
    from cdknet.cli.demo import Comparison
    from cdknet.core.metrics import Scores
    from cdknet.runs.evaluate import Evaluation


def _number(values: Sequence[float]) -> str:
    """.912, or .912 ± .010 over several."""
    mean = f"{np.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.3f}"


def comparison_tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """The demo: accuracies of each method, then what the default knows of itself."""
    seeds = "" if len(comparisons) == 1 else f", mean ± std of {len(comparisons)} seeds"
    tables = []
    for part, title in (("unlabelled", "Unlabelled digits of the fit"), ("held_out", "Held-out digits")):
        table = Table(title=f"{title}: share that is right{seeds}", title_justify="left", box=SIMPLE_HEAD)
        table.add_column("method", no_wrap=True)
        for name in ("all", "0-4, by name", "5-9, matched"):
            table.add_column(name, justify="right", no_wrap=True)
        for i, line in enumerate(comparisons[0].lines):
            found = [getattr(c.lines[i], part) for c in comparisons]
            numbers = (_number([getattr(one, which) for one in found]) for which in ("all", "old", "new"))
            table.add_row(line.method, *numbers)
        tables.append(table)
    last = comparisons[0].lines[-1].method
    rest = Table(title=f"What {last} says of its own answer", title_justify="left", box=SIMPLE_HEAD)
    for name in ("", "said", "true"):
        rest.add_column(name, justify="right" if name else "left")
    facts = {
        "share of 0-4 among the unlabelled digits": ("found", "share"),
        "share of labels that is right": ("expected", "right"),
    }
    for name, values in facts.items():
        rest.add_row(name, *(_number([getattr(c, value) for c in comparisons]) for value in values))
    return [*tables, rest]


def scores_table(title: str, scores: Scores) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("ACC", "purity", "NMI", "ARI"):
        table.add_column(name, justify="right")
    table.add_row(*(f"{value:.3f}" for value in scores))
    return table


def evaluation_tables(result: Evaluation) -> list[Table]:
    notes = f"; {result.n_strange} ids of the truth are not in the run" if result.n_strange else ""
    if result.n_contradicted:
        notes += f"; it contradicts {result.n_contradicted} given labels: is it of these samples?"
    title = f"{result.n_scored} of {result.n_unlabelled} unlabelled samples{notes}"
    tables = [scores_table(title, result.scores)]
    title = "How far the confidence can be trusted"
    trust = Table(
        title=title if result.calibrated else f"{title}: it only ranks",
        title_justify="left",
        caption="right ones surer: how often a right label is more confident than a wrong one; .5 is chance",
        caption_justify="left",
    )
    names = ("expected right", "right", "calibration error", "right ones surer")
    shown = dict(zip(names, result.confidence, strict=True))
    if not result.calibrated:
        shown = {name: shown[name] for name in ("right", "right ones surer")}
    for name in shown:
        trust.add_column(name, justify="right")
    trust.add_row(*("-" if value is None else f"{value:.3f}" for value in shown.values()))
    tables.append(trust)
    if result.mixed is not None:
        split = Table(
            title="Old classes by their names, new ones matched one to one",
            title_justify="left",
            caption="old against new: balanced accuracy of that one decision; AUROC: of P(new)",
            caption_justify="left",
        )
        named = result.mixed._asdict()
        for name in ("all", "old", "new", "balanced", "old against new", "AUROC"):
            split.add_column(name, justify="right")
        split.add_row(*("-" if v is None else f"{v:.3f}" for v in named.values()))
        tables.append(split)
    confusion = Table(title="True class (down) and label (across)", title_justify="left")
    confusion.add_column("")
    for label in result.labels:
        confusion.add_column(escape(label), justify="right")
    for name, counts in zip(result.classes, result.counts, strict=True):
        confusion.add_row(escape(name), *(str(n) if n else "·" for n in counts))
    if len(result.labels) <= 16:
        tables.append(confusion)
    return tables


def sets_table(described: dict[str, dict[str, str]]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for column in ("name", "kind", "samples", "split", "here"):
        table.add_column(column)
    for name, facts in described.items():
        files = facts["Files"]
        missing = "no" if files.startswith("not on") else "in part"
        here = missing if files.endswith("not on this machine") else "yes"
        here = "-" if files == "needs no files" else here
        table.add_row(name, facts["Kind"], facts["Samples"], facts["Paper's split"], here)
    return table


def facts_table(facts: dict[str, str]) -> Table:
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for title, text in facts.items():
        table.add_row(title, escape(text))
    return table


def summary_tables(run: Path, facts: dict[str, Any]) -> list[Table]:
    table = Table(
        title=escape(f"{run}: {facts['samples']} samples of {facts['source']}"), title_justify="left"
    )
    calibrated = (facts["confidence"] or {}).get("calibration", {}).get("calibrated", False)
    sureness = "confidence of the others" if calibrated else "score of the others (not a probability)"
    for name in ("class", "kind", "samples", "of them given", sureness):
        table.add_column(name, justify="left" if name in ("class", "kind") else "right")
    for row in facts["classes"]:
        sure = "-" if row["found_confidence"] is None else f"{row['found_confidence']:.2f}"
        if sure == "1.00":
            sure = "> .99"  # no label that was found is certain
        table.add_row(escape(row["name"]), row["kind"], str(row["samples"]), str(row["given"]), sure)
    if facts["noise"]:
        table.add_row("set aside", "noise", str(facts["noise"]), "0", "-")
    how = Table(show_header=False, box=None)
    for key in ("method", "chosen", "expansion", "label_weight", "seed", "epochs", "pictures"):
        value = facts[key]
        if isinstance(value, dict):
            value = ", ".join(f"{name} {n}" for name, n in value.items())
        elif isinstance(value, list):
            value = ", ".join(value)
        how.add_row(key, escape(str(value)))
    if facts["tuning"] is not None:
        chosen = ", ".join(f"{name}={value}" for name, value in facts["tuning"]["options"].items())
        how.add_row(
            "tuning", escape(" ".join(filter(None, [chosen + "." if chosen else "", facts["tuning"]["why"]])))
        )
    timed = facts["time_budget"] is not None
    if facts["spent"]:
        spent = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in facts["spent"].items())
        within = f", of a budget of {facts['time_budget']}" if timed else ""
        how.add_row("spent", escape(spent + within))
    if sentence := count_sentence(facts):
        how.add_row("new classes", escape(sentence))
    if sentence := mixture_sentence(facts):
        how.add_row("unlabelled", escape(sentence))
    if facts["confidence"] is not None:
        n_new = sum(row["kind"] == "new" for row in facts["classes"])
        how.add_row("confidence", escape(confidence_sentence(facts["confidence"], n_new)))
    empty = [row["name"] for row in facts["classes"] if row["kind"] == "new" and not row["samples"]]
    if empty:
        what = "Ask for fewer new classes" + (", or allow more time." if timed else ".")
        how.add_row("empty", escape(f"no samples in {', '.join(empty)}. {what}"))
    if facts["hints"]:
        more = f"; and {len(facts['hints']) - MOST_HINTS} more" if len(facts["hints"]) > MOST_HINTS else ""
        hints = "; ".join(facts["hints"][:MOST_HINTS]) + more
        how.add_row("hints", escape(f"{hints}. To see why: cdknet explore {run}"))
    if facts["given_accuracy"] is not None:
        how.add_row("given labels", escape(given_sentence(facts["given_accuracy"], timed=timed)))
    for index, note in enumerate(facts["notes"]):
        how.add_row("notes" if index == 0 else "", escape(note))
    return [table, *_traits_table(facts["traits"]), how]


def counts_table(report: dict[str, Any]) -> Table:
    """The number of new classes at levels of detail, from coarse to fine, and how well old ones are found."""
    table = Table(
        title="From coarse to fine: the number is read at the levels with a *",
        title_justify="left",
        caption="hidden: how well the hidden old classes are found (adjusted Rand index: 1 at best)",
        caption_justify="left",
    )
    table.add_column("level")
    for half in ("first half hidden", "second half hidden")[: len(report["counts"])]:
        table.add_column(f"{half}: hidden", justify="right")
        table.add_column("new classes", justify="right")
    low, high = report["levels_used"]
    last: list[Any] = []
    for i, level in enumerate(report["levels"]):
        counts = [numbers[i] for numbers in report["counts"]]
        if counts == last:
            continue
        last = counts
        cells = zip((curve[i] for curve in report["agreement"]), counts, strict=True)
        row = [cell for found, number in cells for cell in (f"{found:.2f}", str(number))]
        used = low <= level <= high
        table.add_row(f"{level:.3f}{' *' if used else ''}", *row, style="bold" if used else "")
    return table


MOST_HINTS = 4  # that are shown
LONGEST_TEXT = 120  # characters of a text that are shown


def _traits_table(traits: Sequence[dict[str, Any]]) -> list[Table]:
    """What can be read of each new class: its words and a sentence, or its columns."""
    if not traits:
        return []
    table = Table(title="What sets the new classes apart", title_justify="left")
    of_texts = traits[0]["text"] is not None
    for name in ("class", "words" if of_texts else "columns", *(["most central"] if of_texts else [])):
        table.add_column(name)
    for one in traits:
        told = [word["word"] for word in one["words"]] or [_column_sentence(c) for c in one["columns"]]
        row = [one["name"], ", ".join(told) if of_texts else "; ".join(told)]
        if of_texts:
            shown = "".join(c if c.isprintable() else " " for c in one["text"][: 4 * LONGEST_TEXT])
            line = " ".join(shown.split())  # on one line, and without codes that a terminal would obey
            row.append(line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 1] + "…")
        table.add_row(*map(escape, row))
    return [table]


def _column_sentence(column: dict[str, Any]) -> str:
    here, elsewhere = column["here"], column["elsewhere"]
    if len(here) == 1:
        return f"{column['name']} {here[0]:.0%} ({elsewhere[0]:.0%} elsewhere)"
    return f"{column['name']} {here[1]:g} ({elsewhere[1]:g})"


def tuning_table(report: dict[str, Any]) -> Table:
    """What was tried on hidden old classes; the chosen row is bold."""
    table = Table(title="Accuracy on hidden old classes", title_justify="left")
    for name in ("candidate", "options", "folds", "mean", "gain", "score"):
        table.add_column(name, justify="left" if name in ("candidate", "options") else "right")
    for line in report["tried"]:
        options = ", ".join(f"{name}={value}" for name, value in line["options"].items())
        figures = [f"{line['mean']:.3f}", f"{line['gain']:+.3f}", f"{line['score']:+.3f}"]
        style = "bold" if line["candidate"] == report["chosen"] else ""
        table.add_row(line["candidate"], options, str(len(line["accuracies"])), *figures, style=style)
    return table
