"""Tables of what benchmarks found beside the cells of the paper's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cdknet.reproduce import paper
from cdknet.reproduce.plan import TITLES, Cell
from cdknet.reproduce.rows import SETS, STALE, best_in_bold, marked, section, spread
from cdknet.reproduce.runner import Lines
from cdknet.runs.files import read_jsonl


class Studies(NamedTuple):
    """What benchmarks found beside the cells: lines of their files, none where they have not been run."""

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
    names = ("supervised", "confidence", "tune_study", "rivals_plain", "tables")
    files = [results / f"{name}.jsonl" for name in names]
    return Studies(*(list(read_jsonl(path)) if path.exists() else [] for path in files))


def old_classes_table(lines: Lines, budget: str, classifiers: Sequence[Mapping[str, Any]]) -> str:
    """What CD-KNet+-Exp still knows of the old classes, over the seeds of the plain classifier."""
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
    return section(
        "## Old classes, against a plain classifier",
        "Held-out samples of old classes: a classifier of these alone with the network of CD-KNet+ "
        "(`benchmarks/supervised.py --network small`), CD-KNet+-Exp asked which of the old classes it is, "
        "the difference, and CD-KNet+-Exp with the new classes competing. The end of stage 3 was "
        "chosen on such samples of Fashion-MNIST and rf-50-sim: expect some optimism there.",
        ["", "seeds", "plain classifier:", "CD-KNet+-Exp, among old:", "difference:", "among all:"],
        out,
    )


def plain_rivals_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """DEC and DAC as their own papers run them: no straw men."""
    out = []
    for method, reported in paper.PLAIN.items():
        mine = [run for run in runs if run["method"] == method]
        mine = [run for run in mine if run["settings"] == mine[-1]["settings"]]  # former ones are history
        if mine:
            numbers = [spread([run[m] for run in mine]) for m in ("acc", "nmi", "ari")]
            images = f"{mine[0]['settings']['images']:,}"
            out.append([TITLES[method], str(len(mine)), images, *numbers, f"{reported:.3f}"])
    return section(
        "# DEC and DAC as their own papers run them",
        "Ten digits of MNIST, no labels (`benchmarks/rivals_plain.py`; fewer images and epochs than the "
        "papers): are the rivals above straw men? Scores of the images that were clustered. Autoencoder, "
        "network, rates and loss are those of the papers and of the code that their authors released. "
        "DAC's run is as long as the first epoch of its released code, whose log has .956 there; a longer "
        "one of ours fell back to .872 (`docs/rivals.md`).",
        ["method", "seeds", "images:", "ACC:", "NMI:", "ARI:", "its paper's ACC:"],
        out,
    )


def tables_table(fits: Sequence[Mapping[str, Any]]) -> str:
    """Real tables: held-out ACC of each method, a row a set, the mean over the splits that all have."""
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
    return section(
        "## Real tables",
        "Sets of the KEEL repository with numbers only and six classes or more (`benchmarks/tables.py`, one "
        "core): half of the classes hidden, drawn at random by the split, a quarter of the samples held out; "
        "ACC on held-out samples of the new classes, mean over the splits. Every column is standardised.",
        ["set", "samples x columns, old/new", "splits", *(f"{name}:" for name in TABLE_METHODS.values())],
        [*out, ["**mean**", "", "", *overall]],
    )


def confidence_table(fits: Sequence[Mapping[str, Any]]) -> str:
    """What fits expected of themselves, and what came true."""
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
    return section(
        "## Confidence, against the truth",
        "CD-KNet+-Exp on the unlabelled samples of the fit (`benchmarks/confidence_study.py`): the share "
        "right of the hidden *old* classes that the confidence is learned on, the share of the new ones "
        "expected to be right, the share that is, the expected calibration error, and how often a right "
        "sample is surer than a wrong one (.5: by chance). The signal, half of which goes by rank, was "
        "chosen on hidden old classes of wifi-csi-30, rf-50-sim and Fashion-MNIST; how an earlier form did "
        f"on the new ones had been seen. {STALE}: before classes cut in two were a part of it.",
        [
            "",
            "seeds",
            "hidden old classes:",
            "expected:",
            "right:",
            "calibration error:",
            "right ones surer:",
        ],
        out,
    )


def tuning_table(fits: Sequence[Mapping[str, Any]]) -> str:
    """Does what recovers hidden old classes also find new ones? A row a problem that is all there."""
    from scipy.stats import spearmanr

    from cdknet.trust.tune import CANDIDATES, GIVEN, choose

    out, won, ranks, missed = [], [], [], []
    for name, split in sorted({(fit["set"], fit["split"]) for fit in fits}):
        mine = {fit["candidate"]: fit for fit in fits if (fit["set"], fit["split"]) == (name, split)}
        if len(mine) < next(iter(mine.values()))["of"]:
            continue
        acc = {candidate: fit["acc"] for candidate, fit in mine.items()}
        raced = _raced({candidate: fit["rehearsed"] for candidate, fit in mine.items()})
        kept = choose(raced, CANDIDATES)["chosen"]
        rank = spearmanr([np.mean(mine[c]["rehearsed"]) for c in acc], list(acc.values())).statistic
        best = max(acc, key=lambda c: acc[c])
        won.append(acc[kept] - acc[GIVEN])
        ranks.append(rank)
        missed.append(acc[best] - acc[kept])
        chosen = [f"{acc[GIVEN]:.3f}", f"{kept}, {acc[kept]:.3f}", f"{best}, {acc[best]:.3f}"]
        out.append([name, str(split), str(len(mine)), f"{rank:+.2f}", *chosen])
    if not out:
        return ""
    return section(
        "## Choosing on hidden old classes, against the outcome",
        "Random splits of the classes (`benchmarks/tune_study.py`, of wifi-csi-30 and pictures at most 1,000 "
        "samples of a class; one core). Each candidate of `tune` is scored on hidden *old* classes and then "
        "fitted; held-out ACC on the really new classes is for this table alone. Rank: the correlation of "
        f"both orders over the candidates, {np.nanmean(ranks):+.2f} in the mean of {len(won)} problems. Kept "
        f"less as given: {np.mean(won):+.3f} in the mean, {min(won):+.3f} at worst; the best in hindsight "
        f"would be {np.mean(missed):+.3f} above what was kept. That gains over the options as given count, "
        "and not accuracies, was decided after two splits of digits and two seeds of wifi-csi-30's own "
        "split; none of them is here.",
        ["set", "split", "candidates", "rank:", "as given:", "kept by `tune`:", "best in hindsight:"],
        out,
    )


def _raced(found: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """What `tune` would have seen of accuracies known on every fold: the worse half is dropped on each."""
    from cdknet.trust.tune import better_half

    seen: dict[str, list[float]] = {name: [] for name in found}
    running = list(found)
    for fold in range(len(next(iter(found.values())))):
        for name in running:
            seen[name].append(found[name][fold])
        running = better_half({name: seen[name] for name in running})
    return seen
