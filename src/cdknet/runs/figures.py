"""Figures of a run as PNG bytes: the map of the embedding, samples of each class, training curves."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cdknet.inputs.kind import kind_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cdknet.runs.format import Run

# Paul Tol's "muted" scheme: distinct under the common colour-vision deficiencies.
MUTED = (
    *("#332288", "#88CCEE", "#44AA99", "#117733", "#999933"),
    *("#DDCC77", "#CC6677", "#882255", "#AA4499", "#7A7A7A"),
)
MOST_MAPPED = 5000  # points that t-SNE places; the others go to the mean of their neighbours


def map_2d(features: NDArray[Any], *, seed: int = 0) -> NDArray[np.float32]:
    """(n, 2) a map of the features: t-SNE if openTSNE is installed, else two principal components."""
    features = np.asarray(features, dtype=np.float32)
    if len(features) < 10 or features.shape[1] < 2 or (features == features[0]).all():
        return _principal_components(features)
    try:
        import openTSNE
    except ImportError:
        return _principal_components(features)
    rows = np.arange(len(features))
    chosen = rows
    if len(rows) > MOST_MAPPED:
        chosen = np.sort(np.random.default_rng(seed).choice(rows, MOST_MAPPED, replace=False))
    perplexity = min(30, (len(chosen) - 1) / 3)
    tsne = openTSNE.TSNE(perplexity=perplexity, random_state=seed, n_jobs=_threads(), initialization="pca")
    with np.errstate(all="ignore"):
        placed = np.asarray(tsne.fit(features[chosen]), dtype=np.float32)
    if not np.isfinite(placed).all():  # rows that are nearly equal
        return _principal_components(features)
    if len(chosen) == len(rows):
        return placed
    from sklearn.neighbors import NearestNeighbors

    near = NearestNeighbors(n_neighbors=3).fit(features[chosen]).kneighbors(features, return_distance=False)
    points = placed[near].mean(axis=1)
    points[chosen] = placed
    return np.asarray(points, dtype=np.float32)


def _threads() -> int:
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # "2,1" is for nested loops
    return int(asked) if asked.isdecimal() and int(asked) else min(2, os.cpu_count() or 1)


def _principal_components(features: NDArray[Any]) -> NDArray[np.float32]:
    centred = features - features.mean(axis=0)
    _, _, directions = np.linalg.svd(centred[:5000], full_matrices=False)
    out = np.zeros((len(features), 2), dtype=np.float32)
    k = min(2, len(directions))
    out[:, :k] = centred @ directions[:k].T
    return out


def illustrated(run: Run, X: NDArray[Any]) -> Run:
    """The run with its map and its figures."""
    labels, names = run.label_names, np.array(run.class_names)
    points = map_2d(run.embedding["features"], seed=run.seed % 2**32)
    pictures = {
        "map.png": draw_map(points, labels, names, run.n_new),
        "gallery.png": draw_gallery(X, labels, run.confidence, run.class_names[run.n_old :]),
        "history.png": draw_history(run.history),
    }
    if run.config.get("n_classes"):
        pictures["n_classes.png"] = draw_counts(run.config["n_classes"])
    return replace(run, embedding=run.embedding | {"map": points}, pictures=pictures)


def draw_map(points: NDArray[Any], labels: NDArray[Any], classes: NDArray[Any], n_new: int) -> bytes:
    """The map with old classes as dots and new ones as crosses, one colour per class. Fig. 3 of the paper."""
    figure = new_figure(8.6, 7)
    axes = figure.subplots()
    colours = _colours(len(classes))
    size = 14 if len(points) < 5000 else 4
    for index, name in enumerate(classes):
        member = labels == name
        new = index >= len(classes) - n_new
        axes.scatter(
            points[member, 0],
            points[member, 1],
            s=size * (1.6 if new else 0.9),
            marker="x" if new else "o",
            linewidths=0.8 if new else 0,
            color=colours[index],
            label=f"{_escaped(name)} ({'new' if new else 'old'}, {int(member.sum())})",
        )
    aside = ~np.isin(labels, classes)
    if aside.any():
        x, y = points[aside].T
        label = f"set aside ({int(aside.sum())})"
        axes.scatter(x, y, s=size, marker=".", linewidths=0, color="#999999", label=label)
    axes.set(xticks=[], yticks=[], title="Embedding: old classes as dots, discovered ones as crosses")
    for side in axes.spines.values():
        side.set_visible(False)
    if len(classes) <= 40:
        columns = 1 if len(classes) <= 20 else 2
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, ncols=columns, fontsize=9)
    return _png(figure)


def draw_gallery(
    X: NDArray[Any],
    labels: NDArray[Any],
    confidence: NDArray[Any],
    names: Sequence[Any],
    *,
    columns: int = 12,
    most_rows: int = 30,
) -> bytes:
    """One row per class in `names`: its most confident samples, then, after a gap, its least confident."""
    names = list(names)[:most_rows]
    figure = new_figure(columns * 0.75 + 1.2, len(names) * 0.85 + 0.7)
    grid = figure.subplots(len(names), columns + 1, squeeze=False)
    n_sure = columns * 2 // 3
    n_unsure = columns - n_sure
    for panels, name in zip(grid, names, strict=True):
        for axes in panels:
            axes.set_axis_off()
        members = np.flatnonzero(labels == name)
        order = members[np.argsort(-confidence[members], kind="stable")]
        sure = order[:n_sure]
        unsure = order[len(sure) :][-n_unsure:]
        left, right = panels[: len(sure)], panels[n_sure + 1 : n_sure + 1 + len(unsure)]
        for axes, row in zip([*left, *right], [*sure, *unsure], strict=True):
            _draw_sample(axes, np.asarray(X[row]))
        panels[0].set_title(f"{_escaped(name)}: {len(members)} samples", loc="left", fontsize=9)
    figure.suptitle("Discovered classes: most confident samples left, least confident right", fontsize=10)
    return _png(figure)


def _escaped(name: Any) -> str:
    """A class name for matplotlib, which would read $ as a formula and hide names that start with _."""
    text = str(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _draw_sample(axes: Any, sample: NDArray[Any]) -> None:
    """An image as it is; I/Q and vectors as lines, one per row."""
    if not kind_of(sample.shape).is_image:
        for values in sample.reshape(-1, sample.shape[-1]):
            axes.plot(values, linewidth=0.6)
        return
    if sample.ndim == 3:
        sample = np.moveaxis(sample, 0, -1)
        sample = sample[..., :3] if sample.shape[-1] >= 3 else sample[..., 0]
    if sample.ndim == 3 and sample.dtype != np.uint8:
        low, high = float(sample.min()), float(sample.max())
        sample = (sample - low) / (high - low) if high > low else np.zeros_like(sample)
    axes.imshow(sample, cmap="gray_r", interpolation="nearest")


def draw_history(history: Sequence[dict[str, Any]]) -> bytes:
    """One panel per stage with all that it recorded; each curve is a share of its own largest value."""
    stages = [
        stage
        for stage in dict.fromkeys(row["stage"] for row in history)
        if stage not in ("calibrate", "count")
    ]
    figure = new_figure(4.2 * max(len(stages), 1), 3.4)
    for axes, stage in zip(figure.subplots(1, max(len(stages), 1), squeeze=False)[0], stages, strict=False):
        rows = [row for row in history if row["stage"] == stage]
        keys = dict.fromkeys(key for row in rows for key in row)  # a term may start late or end early
        for index, key in enumerate(k for k in keys if k not in ("stage", "epoch", "seconds")):
            values = np.array([row.get(key, np.nan) for row in rows], dtype=float)
            finite = values[np.isfinite(values)]
            axes.plot(
                [row["epoch"] for row in rows],
                values / (np.abs(finite).max(initial=0) or 1.0),
                label=f"{key}, {finite[0]:.3g} to {finite[-1]:.3g}" if len(finite) else key,
                color=MUTED[2 * index % 10],
                marker="o" if len(finite) == 1 else None,
            )
        axes.set(title=stage, xlabel="epoch", ylabel="share of the largest value")
        axes.margins(y=0.08)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize=7, frameon=False)
    return _png(figure)


def draw_counts(report: dict[str, Any]) -> bytes:
    """How many new classes there are at each level of detail, and how well hidden old ones are found."""
    figure = new_figure(7, 4.6)
    above, below = figure.subplots(2, 1, sharex=True)
    levels = report["levels"]
    for fold, (found, numbers) in enumerate(zip(report["agreement"], report["counts"], strict=True)):
        names = list(map(str, report["hidden"][fold]))
        hidden = ", ".join(names[:6]) + (", ..." if names[6:] else "")
        label = _escaped(f"hidden: {hidden or 'none'}")
        above.plot(levels, found, color=MUTED[2 * fold % 10], label=label)
        below.step(levels, numbers, where="mid", color=MUTED[2 * fold % 10])
    low, high = report["interval"]
    for axes in (above, below):
        axes.axvspan(*report["levels_used"], color="#dddddd", zorder=0)
    below.axhline(report["found"], color="#7a7a7a", linestyle=":")
    most = max(3 * high, 10)
    below.set(xscale="log", ylim=(-0.5, most + 0.5), xlabel="level of detail, coarse to fine")
    below.set_ylabel("new classes")
    below.yaxis.get_major_locator().set_params(integer=True)
    above.set_ylabel("hidden ones found")
    above.legend(fontsize=7, frameon=False)
    between = f"{low}" if low == high else f"{low} to {high}"
    above.set_title(
        f"New classes: {between}. Read where hidden old classes are found best (grey)", fontsize=10
    )
    return _png(figure)


def _colours(n: int) -> list[Any]:
    if n <= len(MUTED):
        return list(MUTED[:n])
    from matplotlib import colormaps

    return [colormaps["turbo"](0.03 + 0.94 * i / (n - 1)) for i in range(n)]


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # not pyplot: no global state, no display

    return Figure(figsize=(width, height), layout="constrained")


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # letters that the font lacks are drawn as boxes
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()
