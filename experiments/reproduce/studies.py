"""Tables of further studies, from the results files of `benchmarks/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cdknet.runs.files import read_jsonl
from experiments.reproduce import paper
from experiments.reproduce.markdown import section
from experiments.reproduce.plan import TITLES, Cell
from experiments.reproduce.rows import SETS, STALE, best_in_bold, marked, spread
from experiments.reproduce.runner import Lines


class Studies(NamedTuple):
    """Lines of the results files of benchmarks; empty for those that have not been run."""

    classifiers: Sequence[Mapping[str, Any]] = ()  # benchmarks/supervised.py
    confidence: Sequence[Mapping[str, Any]] = ()  # benchmarks/confidence_study.py
    tuning: Sequence[Mapping[str, Any]] = ()  # benchmarks/tune_study.py
    plain_rivals: Sequence[Mapping[str, Any]] = ()  # benchmarks/rivals_plain.py
    tables: Sequence[Mapping[str, Any]] = ()  # benchmarks/tables.py


NO_STUDIES = Studies()
TABLE_METHODS = {
    "k-means": "k-means",
    "spectral": "spectral",
    "sscd-exp": "SSCD-Exp",
    "cd-knet-exp": "CD-KNet-Exp",
    "uno": "balanced heads",
    "cd-knet+-exp": "CD-KNet+-Exp",
}


def read_studies(results: Path) -> Studies:
    """The studies whose files are in `results`."""
    names = ("supervised", "confidence", "tune_study", "rivals_plain", "tables")
    files = [results / f"{name}.jsonl" for name in names]
    return Studies(*(list(read_jsonl(path)) if path.exists() else [] for path in files))


def old_classes_table(lines: Lines, budget: str, classifiers: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy of CD-KNet+-Exp on old classes, over the seeds of the plain classifier."""
    out = []
    for dataset, title in SETS.items():
        plain = {
            c["seed"]: c.get("by_slice", c["accuracy"])
            for c in classifiers
            if c["set"] == dataset and c["network"] == "small"
        }
        keys = {seed: Cell(dataset, "cd-knet+-exp", seed, budget).key for seed in sorted(plain)}
        both = [
            (plain[seed], lines[key]) for seed, key in keys.items() if "old_among_old" in lines.get(key, {})
        ]
        if both:
            alone = [accuracy for accuracy, _ in both]
            among, among_all = ([line[k] for _, line in both] for k in ("old_among_old", "old_after"))
            gap = float(np.mean(among) - np.mean(alone))
            numbers = [spread(alone), spread(among), f"{gap:+.3f}", spread(among_all)]
            out.append([marked(title, [line for _, line in both]), str(len(both)), *numbers])
    columns = ["", "seeds", "plain classifier:", "CD-KNet+-Exp, among old:", "difference:", "among all:"]
    return section("old-classes", columns, out)


def plain_rivals_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """DEC and DAC as their own papers run them."""
    out = []
    for method, reported in paper.PLAIN.items():
        mine = [run for run in runs if run["method"] == method]
        mine = [run for run in mine if run["settings"] == mine[-1]["settings"]]  # the latest settings only
        if mine:
            numbers = [spread([run[m] for run in mine]) for m in ("acc", "nmi", "ari")]
            images = f"{mine[0]['settings']['images']:,}"
            out.append([TITLES[method], str(len(mine)), images, *numbers, f"{reported:.3f}"])
    columns = ["method", "seeds", "images:", "ACC:", "NMI:", "ARI:", "its paper's ACC:"]
    return section("plain-rivals", columns, out)


def tables_table(fits: Sequence[Mapping[str, Any]]) -> str:
    """Real tables: held-out ACC of each method, one row per set, mean over the splits that all have."""
    out, means = [], []
    for name in sorted({fit["set"] for fit in fits}):
        mine = {(fit["method"], fit["split"]): fit for fit in fits if fit["set"] == name}
        splits = [s for s in sorted({s for _, s in mine}) if all((m, s) in mine for m in TABLE_METHODS)]
        if not splits:
            continue
        found = [[mine[method, split]["acc"] for split in splits] for method in TABLE_METHODS]
        first = mine["k-means", splits[0]]
        about = f"{first['samples']:,} x {first['columns']}, {first['old_classes']}/{first['new_classes']}"
        means.append([float(np.mean(of)) for of in found])
        out.append([name, about, str(len(splits)), *best_in_bold(means[-1])])
    if not out:
        return ""
    overall = best_in_bold(np.mean(means, axis=0).tolist())
    columns = [
        "set",
        "samples x columns, old/new",
        "splits",
        *(f"{name}:" for name in TABLE_METHODS.values()),
    ]
    return section("tables", columns, [*out, ["**mean**", "", "", *overall]])


def confidence_table(fits: Sequence[Mapping[str, Any]]) -> str:
    """The accuracy that fits expected of themselves, and the one they reached."""
    out = []
    for dataset, title in SETS.items():
        found = {fit["seed"]: {**fit, "stale": "halves" not in fit} for fit in fits if fit["set"] == dataset}
        mine = [fit for fit in found.values() if not fit["stale"]] or list(found.values())
        if mine:
            hidden = [float(np.mean(fit["rehearsed"])) for fit in mine]
            numbers = [spread([fit[k] for fit in mine]) for k in ("expected", "right", "error")]
            ranking = [fit["ranking"] for fit in mine if fit["ranking"] is not None]
            cells = [str(len(mine)), spread(hidden), *numbers, spread(ranking) if ranking else "-"]
            out.append([marked(title, mine), *cells])
    columns = ["hidden old classes:", "expected:", "right:", "calibration error:", "AUROC:"]
    return section("confidence", ["", "seeds", *columns], out, mark=STALE)


def tuning_table(fits: Sequence[Mapping[str, Any]]) -> str:
    """Do options that recover hidden old classes also find new ones? One row per complete problem."""
    from scipy.stats import spearmanr

    from cdknet.trust.tune import CANDIDATES, GIVEN, choose

    out, won, ranks, missed = [], [], [], []
    for name, split in sorted({(fit["set"], fit["split"]) for fit in fits}):
        mine = {fit["candidate"]: fit for fit in fits if (fit["set"], fit["split"]) == (name, split)}
        if len(mine) < next(iter(mine.values()))["of"]:
            continue
        acc = {candidate: fit["acc"] for candidate, fit in mine.items()}
        raced = _raced({candidate: fit["rehearsed"] for candidate, fit in mine.items()})
        selected = choose(raced, CANDIDATES)["chosen"]
        rank = spearmanr([np.mean(mine[c]["rehearsed"]) for c in acc], list(acc.values())).statistic
        best = max(acc, key=lambda c: acc[c])
        won.append(acc[selected] - acc[GIVEN])
        ranks.append(rank)
        missed.append(acc[best] - acc[selected])
        chosen = [f"{acc[GIVEN]:.3f}", f"{selected}, {acc[selected]:.3f}", f"{best}, {acc[best]:.3f}"]
        out.append([name, str(split), str(len(mine)), f"{rank:+.2f}", *chosen])
    if not out:
        return ""
    return section(
        "tuning",
        ["set", "split", "candidates", "rank:", "as given:", "selected by `tune`:", "best in hindsight:"],
        out,
        rank=f"{np.nanmean(ranks):+.2f}",
        problems=len(won),
        won=f"{np.mean(won):+.3f}",
        worst=f"{min(won):+.3f}",
        missed=f"{np.mean(missed):+.3f}",
    )


def _raced(found: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """The accuracies that `tune` would have seen: it drops the worse half of the candidates on each fold."""
    from cdknet.trust.tune import better_half

    seen: dict[str, list[float]] = {name: [] for name in found}
    running = list(found)
    for fold in range(len(next(iter(found.values())))):
        for name in running:
            seen[name].append(found[name][fold])
        running = better_half({name: seen[name] for name in running})
    return seen
