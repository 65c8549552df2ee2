"""Figs. 3, 4 and 5 of the paper, as PNG and SVG, from the lines in results/."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from cdknet.runs.figures import MUTED, new_figure
from cdknet.runs.files import replace_file
from experiments.reproduce.plan import IMAGES, TABLES, TITLES
from experiments.reproduce.runner import map_file, read_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

K = TypeVar("K")
NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar-100": "CIFAR-100"}
STRATEGIES = {
    "none": "no expansion",
    "last": "last layer",
    "last-two": "last two layers",
    "all": "all layers",
}


def draw_figures(what: str, results: Path, folder: Path) -> list[Path]:
    """Draw a figure, or all of them, as far as there are results; returns the files written."""
    lines = {key: line for key, line in read_results(results).items() if not line["stale"]}
    drawn: dict[str, Callable[[], Figure | None]] = {
        "fig3": lambda: embeddings(results),
        "fig4": lambda: expansions(lines),
        "fig5": lambda: subsampling(lines),
    }
    written = []
    for name, draw in drawn.items():
        figure = draw() if what in (name, "all") else None
        if figure is not None:
            written += _write(figure, folder / name)
    return written


def embeddings(results: Path) -> Figure | None:
    """Fig. 3: held-out samples by t-SNE, old classes as dots, new as crosses; colours are true classes."""
    cells = [c for c in TABLES["fig3"].cells() if map_file(results, c).is_file()]
    if not cells:
        return None
    figure = new_figure(5.2 * len(cells), 5.2)
    for index, cell in enumerate(cells):
        axes = figure.add_subplot(1, len(cells), index + 1)
        with np.load(map_file(results, cell), allow_pickle=False) as saved:
            places, truth, new = saved["map"].astype(float), saved["truth"], saved["is_new"]
        for c in np.unique(truth):
            member = truth == c
            marker = "x" if new[member][0] else "o"
            axes.scatter(
                places[member, 0],
                places[member, 1],
                s=9 if marker == "x" else 5,
                marker=marker,
                linewidths=0.7 if marker == "x" else 0,
                color=MUTED[int(c) % len(MUTED)],
                label=f"{c} ({'new' if marker == 'x' else 'old'})",
            )
        axes.set(xticks=[], yticks=[], title=TITLES[cell.method])
        if index == len(cells) - 1:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, markerscale=1.8)
    return figure


def of_common_seeds(accs: Mapping[K, Mapping[int, float]]) -> dict[K, list[float]]:
    """Accuracies over the seeds that all have, so that means are comparable; empty if there are none."""
    common = sorted(set.intersection(*(set(by_seed) for by_seed in accs.values()))) if accs else []
    return {name: [by_seed[seed] for seed in common] for name, by_seed in accs.items()} if common else {}


def expansions(lines: Mapping[str, Mapping[str, Any]]) -> Figure | None:
    """Fig. 4: ACC of the four expansion strategies; one group of bars per set, one dot per seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for dataset in IMAGES:
        accs: dict[str, dict[int, float]] = {strategy: {} for strategy in STRATEGIES}
        for cell in TABLES["fig4"].cells(datasets=[dataset]):
            if cell.key in lines:
                strategy = lines[cell.key]["options"].get("expansion", "last-two")
                accs[strategy][cell.seed] = lines[cell.key]["test"]["acc"]
        found[dataset] = of_common_seeds(accs)
    sets = [dataset for dataset, accs in found.items() if accs]
    if not sets:
        return None
    figure = new_figure(7.2, 4)
    axes = figure.subplots()
    for i, strategy in enumerate(STRATEGIES):
        for j, dataset in enumerate(sets):
            values, x = found[dataset][strategy], j + (i - 1.5) * 0.2
            label = STRATEGIES[strategy] if j == 0 else None
            axes.bar(x, np.mean(values), 0.18, color=MUTED[(0, 2, 5, 6)[i]], label=label)
            axes.plot([x] * len(values), values, "o", color="black", markersize=3)
    axes.set(xticks=range(len(sets)), xticklabels=[NAMES[s] for s in sets], ylim=(0, 1))
    axes.set(ylabel="ACC on held-out samples of new classes")
    axes.legend(frameon=False, ncols=2, loc="upper right")
    return figure


def subsampling(lines: Mapping[str, Mapping[str, Any]]) -> Figure | None:
    """Fig. 5: ACC against the share of samples in the kernel; 0 is SSCD-Exp."""
    figure = new_figure(7.2, 4)
    axes = figure.subplots()
    drawn = False
    for index, dataset in enumerate(IMAGES):
        accs: dict[float, dict[int, float]] = {}
        for cell in TABLES["fig5"].cells(datasets=[dataset]):
            if cell.key in lines:
                share = 0.0 if cell.method == "sscd-exp" else float(cell.options["subsample"])
                accs.setdefault(100 * share, {})[cell.seed] = lines[cell.key]["test"]["acc"]
        points = of_common_seeds(accs)
        if len(points) > 2:  # two points do not make a curve
            drawn = True
            shares = sorted(points)
            colour = MUTED[(0, 6, 2)[index]]
            style = ("o-", "s--", "^:")[index]
            axes.plot(shares, [np.mean(points[s]) for s in shares], style, color=colour, label=NAMES[dataset])
            for share in shares:
                axes.plot([share] * len(points[share]), points[share], ".", color=colour, alpha=0.5)
    if not drawn:
        return None
    axes.set(xlabel="share of samples in the kernel, %", ylabel="ACC on held-out samples of new classes")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)
    return figure


def _write(figure: Figure, stem: Path) -> list[Path]:
    from matplotlib import rc_context

    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        undated = {"Date": None} if kind == "svg" else None  # the same figure gives the same file
        with rc_context({"svg.hashsalt": stem.name}):
            figure.savefig(buffer, format=kind, dpi=130, bbox_inches="tight", metadata=undated)
        path = stem.with_suffix(f".{kind}")
        replace_file(path, buffer.getvalue())
        written.append(path)
    return written
