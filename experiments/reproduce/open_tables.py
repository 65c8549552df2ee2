"""The tables on mixed unlabelled data, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.reproduce.markdown import block, fill
from experiments.reproduce.open_plan import DEFAULT, OPEN_SETS, OPEN_TITLES, SHARES, OpenCell
from experiments.reproduce.rows import STALE, marked
from experiments.reproduce.runner import Lines, seeds_of

MISSING = "-"
SHARE_TITLES = {"gcd": "GCD"} | {share: f"{100 * float(share):.0f} %" for share in SHARES if share != "gcd"}
Found = Sequence[Mapping[str, Any]]  # the lines of a cell, one per seed


def open_section(lines: Lines) -> str:
    """The section on mixed unlabelled data; empty if no cell has been run."""
    if not lines:
        return ""
    machines = sorted({line["machine"] for line in lines.values()})
    blocks = [block(OPEN_SETS[dataset], *_accuracies(lines, dataset)) for dataset in _sets(lines)]
    defaults = _defaults(lines)
    if defaults:
        blocks += [
            block("What the default knows of itself", *_knowledge(defaults)),
            block("The default in detail", *_details(defaults)),
        ]
    return fill("open", machines="; ".join(machines), mark=STALE, blocks="\n\n".join(blocks))


def _sets(lines: Lines) -> list[str]:
    run = {line["cell"]["dataset"] for line in lines.values()}
    return [dataset for dataset in OPEN_SETS if dataset in run]


def _accuracies(lines: Lines, dataset: str) -> tuple[list[str], list[list[str]]]:
    """Named accuracy of all unlabelled samples: one row per method, one column per share."""
    by_method = {
        method: [seeds_of(lines, OpenCell(dataset, method, 0, share)) for share in SHARES]
        for method in OPEN_TITLES
    }
    by_method = {method: found for method, found in by_method.items() if any(found)}
    means = {method: [_mean(f, "unlabelled", "all") for f in found] for method, found in by_method.items()}
    columns = zip(*means.values(), strict=True)
    best = [max((mean for mean in column if mean is not None), default=None) for column in columns]
    rows = []
    for method, found in by_method.items():
        cells = [
            MISSING if mean is None else f"{_bold(mean, top)} ({len(some)})"
            for mean, top, some in zip(means[method], best, found, strict=True)
        ]
        rows.append([marked(OPEN_TITLES[method], [line for some in found for line in some]), *cells])
    return ["method", *(f"{SHARE_TITLES[share]}:" for share in SHARES)], rows


def _defaults(lines: Lines) -> list[tuple[str, str, Found]]:
    """The name of the set, the share, and the lines of the default, where there are any."""
    return [
        (marked(dataset, found), SHARE_TITLES[share], found)
        for dataset in OPEN_SETS
        for share in SHARES
        if (found := seeds_of(lines, OpenCell(dataset, DEFAULT, 0, share)))
    ]


def _knowledge(defaults: Sequence[tuple[str, str, Found]]) -> tuple[list[str], list[list[str]]]:
    """The share of old samples found against the true one, and expected against right."""
    rows = []
    for dataset, share, found in defaults:
        holds = sum(line["share"]["holds"] for line in found)
        parts = [("share", "true"), ("share", "found")]
        told = [("unlabelled", "old_against_new"), ("unlabelled", "auroc")]
        told += [("confidence", part) for part in ("expected", "right", "ranking")]
        rows.append(
            [
                *(dataset, share, str(len(found))),
                *(_number(_mean(found, *part)) for part in parts),
                f"{holds} of {len(found)}",
                *(_number(_mean(found, *part)) for part in told),
            ]
        )
    columns = ["set", "share", "seeds", "old, true:", "old, found:", "interval holds:", "old against new:"]
    return [*columns, "AUROC:", "expected:", "right:", "right classes surer:"], rows


def _details(defaults: Sequence[tuple[str, str, Found]]) -> tuple[list[str], list[list[str]]]:
    """Old and new samples apart, by name and under GCD's one match, and held-out samples."""
    rows = []
    for dataset, share, found in defaults:
        apart = [_mean(found, "unlabelled", part) for part in ("all", "old", "new", "balanced")]
        held_out = [_mean(found, "held_out", part) for part in ("all", "old", "new")]
        v2 = [_mean([line["unlabelled"] for line in found], "v2", part) for part in ("all", "old", "new")]
        noise = float(np.mean([line["noise"] for line in found]))
        seconds = float(np.mean([line["seconds"] for line in found]))
        numbers = [_together(apart[:3]), _number(apart[3]), _together(v2), _together(held_out)]
        rows.append([dataset, share, str(len(found)), *numbers, f"{noise:.0f}", f"{seconds:.0f}"])
    columns = ["set", "share", "seeds", "named, all / old / new:", "balanced:", "v2, all / old / new:"]
    return [*columns, "held-out, all / old / new:", "noise:", "seconds:"], rows


def _mean(found: Found, part: str, measure: str) -> float | None:
    """The mean of a score over the seeds that have it."""
    values = [line[part][measure] for line in found if line[part][measure] is not None]
    return float(np.mean(values)) if values else None


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}".removeprefix("0")


def _bold(value: float, best: float | None) -> str:
    """The value, in bold if it is the best one or looks the same."""
    text = _number(value)
    return f"**{text}**" if text == _number(best) else text


def _together(values: Sequence[float | None]) -> str:
    return " / ".join(map(_number, values))
