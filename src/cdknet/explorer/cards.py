"""Class cards: how tight a class is, how near to others, and whether it looks like several classes.

Distances are Euclidean, between features and class centres (means). For a sample x of class c with centre
m_c, a = |x - m_c| and b = |x - m_j| for the nearest other class j:

    cohesion    mean of (b - a) / max(a, b), the simplified silhouette: 1 if far from all others, below 0 if
                samples are nearer to another class
    share of j  the share of samples of c with a / |x - m_j| > 0.8: about as near to j as to c, or nearer
    valley      samples of two groups are projected on the line through both centres; the lowest density
                between the two peaks, divided by the lower peak. 1 is one cluster, 0 is two with a clear gap

A change of some classes makes the card of another class stale only if it could change its numbers: if a
changed class was near, or if its new centre is now within `reach`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cdknet.explorer.review import REJECTED, Review, ids_of
from cdknet.runs.format import Run

SHOWN = 24  # samples on a card's sheets
CLOSE = 0.8  # a / |x - m_j| above which a sample is about as near to class j
SPLIT_BELOW, MERGE_ABOVE = 0.35, 0.75  # valleys at which a hint is given
FEWEST, MOST_USED = 60, 2000  # samples that a hint needs, and uses at most
MOST_HINTED_PARTS = 5  # parts that a hint to split may name
MOST_FITTED = 5000  # samples that k-means is fitted to
CHUNK = 8192

Floats = NDArray[np.floating[Any]]


class Hint(NamedTuple):
    """A suggestion to split a class or to merge two."""

    kind: str  # "split" or "merge"
    other: int | None  # the class to merge with
    into: int | None  # the number of parts to split into
    reason: str


@dataclass(frozen=True)
class Card:
    """The numbers of a class, and its samples with their distances to its centre."""

    rows: NDArray[np.int64]  # (m,)
    own: NDArray[np.float32]  # (m,) a
    ratio: NDArray[np.float32]  # (m,) a / b
    radius: float  # mean of a
    cohesion: float | None
    shares: dict[int, float]  # other class -> share, largest first; always at least the nearest class
    near: frozenset[int]  # classes that the numbers depend on
    reach: float  # a centre farther away than this changes nothing here


class Cards:
    """Cards of all classes of a review, computed on demand and again when stale."""

    def __init__(self, features: NDArray[np.float32], confidence: NDArray[np.float32]) -> None:
        self.features, self.confidence = features, confidence
        self._centers: dict[int, NDArray[np.float32]] = {}  # only classes with samples
        self._rows: dict[int, NDArray[np.int64]] = {}
        self._cards: dict[int, Card] = {}
        self._split_hints: dict[int, Hint | None] = {}
        self._valleys: dict[tuple[int, int], float] = {}

    def update(self, review: Review, touched: Iterable[int] | None = None) -> None:
        """Follow a change of the classes in `touched`; None: everything may have changed."""
        if touched is None:
            self.__init__(self.features, self.confidence)  # type: ignore[misc]
            order = np.argsort(review.assignment, kind="stable")
            ids, starts = np.unique(review.assignment[order], return_index=True)
            for class_id, rows in zip(ids.tolist(), np.split(order, starts[1:]), strict=True):
                self._set(class_id, rows)
            return
        changed = set(touched) | {REJECTED}
        for class_id in changed:
            self._set(class_id, review.members(class_id))
        for class_id, card in list(self._cards.items()):
            if class_id in changed or changed & card.near or self._within_reach(class_id, card, changed):
                del self._cards[class_id]
        self._split_hints = {c: hint for c, hint in self._split_hints.items() if c not in changed}
        self._valleys = {pair: v for pair, v in self._valleys.items() if not changed & set(pair)}

    def _set(self, class_id: int, rows: NDArray[np.int64]) -> None:
        self._rows[class_id] = rows
        self._centers.pop(class_id, None)
        if len(rows) and class_id != REJECTED:
            self._centers[class_id] = _mean(self.features, rows)

    def _within_reach(self, class_id: int, card: Card, changed: set[int]) -> bool:
        center = self._centers.get(class_id)
        if center is None:
            return True
        moved = [self._centers[c] for c in changed if c in self._centers]
        return any(float(np.linalg.norm(m - center)) <= card.reach for m in moved)

    def rows(self, class_id: int) -> NDArray[np.int64]:
        return self._rows.get(class_id, np.zeros(0, dtype=np.int64))

    def card(self, class_id: int) -> Card:
        if class_id not in self._cards:
            self._cards[class_id] = self._compute(class_id)
        return self._cards[class_id]

    def _compute(self, class_id: int) -> Card:
        rows = self.rows(class_id)
        if class_id not in self._centers:
            none = np.zeros(len(rows), dtype=np.float32)
            return Card(rows, none, none, 0.0, None, {}, frozenset(), np.inf)
        center = self._centers[class_id]
        others = [c for c in self._centers if c != class_id]
        M = np.stack([self._centers[c] for c in others]) - center if others else np.zeros((0, len(center)))
        M = M.astype(np.float32)
        squares = np.square(M).sum(axis=1)
        own = np.empty(len(rows), dtype=np.float32)
        second = np.full(len(rows), np.inf, dtype=np.float32)
        close, nearest = np.zeros(len(others), dtype=np.int64), np.zeros(len(others), dtype=np.int64)
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            z = self.features[rows[part]] - center  # relative to the centre: small numbers lose no digits
            norms = np.square(z).sum(axis=1)
            own[part] = np.sqrt(norms)
            if others:
                d = np.sqrt(np.maximum(norms[:, None] - 2 * (z @ M.T) + squares, 0))  # (chunk, others)
                which = d.argmin(axis=1)
                second[part] = d[np.arange(len(d)), which]
                nearest += np.bincount(which, minlength=len(others))
                close += (own[part, None] > CLOSE * d).sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(second > 0, own / second, np.where(own > 0, np.inf, 1.0)).astype(np.float32)
            gap = (second - own) / np.maximum(np.maximum(own, second), 1e-12)
            silhouette = np.where(second == np.inf, 1.0, gap)
        order = sorted(range(len(others)), key=lambda j: (-close[j], -nearest[j], squares[j]))
        shares = {others[j]: int(close[j]) / len(rows) for j in order if close[j] or j == order[0]}
        near = {others[j] for j in range(len(others)) if close[j] or nearest[j]}
        reach = float((own + np.maximum(second, own / CLOSE)).max())
        return Card(
            rows, own, ratio, float(own.mean()), float(silhouette.mean()), shares, frozenset(near), reach
        )

    # Samples of a class

    def ordered(self, class_id: int, order: str) -> NDArray[np.int64]:
        """Samples of a class: nearest to the centre ("central") or least confident ("unsure") first."""
        card = self.card(class_id)
        if order == "unsure":
            return card.rows[np.lexsort((-card.ratio, self.confidence[card.rows]))]
        return card.rows[np.argsort(card.own, kind="stable")]

    def outliers(self, class_id: int) -> NDArray[np.int64]:
        """Samples of a class, farthest from the centre first."""
        return self.ordered(class_id, "central")[::-1]

    # Between classes

    def nearest_old(self, class_id: int, old: Iterable[int]) -> tuple[int, float] | None:
        """The other old class with the nearest centre, and its distance in radii of this class."""
        rivals = [c for c in old if c != class_id and c in self._centers]
        if class_id not in self._centers or not rivals:
            return None
        steps = np.stack([self._centers[c] for c in rivals]) - self._centers[class_id]
        far = np.linalg.norm(steps, axis=1)
        best = int(far.argmin())
        return rivals[best], float(far[best]) / max(self.card(class_id).radius, 1e-12)

    def hints(self, class_id: int, review: Review) -> list[Hint]:
        """Hints that a class looks like several, or that it and another look like one."""
        if class_id not in self._centers:
            return []
        split = self._cached_split_hint(class_id)
        if split is not None:
            return [split]  # the centre between two clusters says nothing about other classes
        out = []
        for other in list(self.card(class_id).shares)[:3]:
            if "new" not in (review.classes[class_id].kind, review.classes[other].kind):
                continue
            if self._cached_split_hint(other) is not None:
                continue
            hint = self._merge_hint(class_id, other, review)
            if hint is not None:
                out.append(hint)
        return out

    def _points(self, class_id: int) -> NDArray[np.float32]:
        """Features of at most `MOST_USED` samples of a class."""
        points: NDArray[np.float32] = self.features[_subsample(self.rows(class_id))]
        return points

    def _cached_split_hint(self, class_id: int) -> Hint | None:
        if class_id not in self._split_hints:
            self._split_hints[class_id] = self._split_hint(class_id)
        return self._split_hints[class_id]

    def _split_hint(self, class_id: int) -> Hint | None:
        points = self._points(class_id)
        groups = _separated_groups(points, MOST_HINTED_PARTS)
        if len(groups.sizes) < 2:
            return None
        scale = len(self.rows(class_id)) / len(points)
        sizes = ", ".join(f"{round(size * scale)}" for size in groups.sizes)
        return Hint(
            "split",
            None,
            len(groups.sizes),
            f"Groups of about {sizes} samples with a gap between them: midway between the first two, "
            f"samples are only {groups.valley:.0%} as dense as inside the groups. A single class has no "
            f"gap, near 100%; this hint is shown below {SPLIT_BELOW:.0%}.",
        )

    def _merge_hint(self, class_id: int, other: int, review: Review) -> Hint | None:
        pair = (min(class_id, other), max(class_id, other))
        if pair not in self._valleys:
            a, b = self._points(pair[0]), self._points(pair[1])
            enough = min(len(a), len(b)) >= FEWEST // 4
            self._valleys[pair] = valley(a, b) if enough else 0.0
        depth = self._valleys[pair]
        if depth < MERGE_ABOVE:
            return None
        share = self.card(class_id).shares.get(other, 0.0)
        apart = float(np.linalg.norm(self._centers[class_id] - self._centers[other]))
        radius = self.card(class_id).radius
        return Hint(
            "merge",
            other,
            None,
            f"There is hardly a gap to {review.classes[other].name}: midway between the two, samples are "
            f"{depth:.0%} as dense as inside them. Separate classes have few samples there, near 0%; this "
            f"hint is shown above {MERGE_ABOVE:.0%}. The centres are {apart / max(radius, 1e-12):.1f} radii "
            f"apart, and {share:.0%} of this class is about as near to the other.",
        )


def hints_of(run: Run) -> list[str]:
    """A sentence for each new class of a run that looks like several, or like one with another."""
    names = run.class_names
    review = Review.start(ids_of(run.class_index, range(len(names))), names, run.n_old)
    cards = Cards(run.features, run.confidence)
    cards.update(review)
    found: dict[tuple[int, ...], str] = {}
    for class_id in range(run.n_old, len(names)):
        for hint in cards.hints(class_id, review):
            if hint.other is None:
                found[class_id,] = f"{names[class_id]} may be {hint.into} classes"
            else:
                pair = sorted([class_id, hint.other])
                found[tuple(pair)] = f"{names[pair[0]]} and {names[pair[1]]} may be one class"
    return list(found.values())


def _mean(features: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    total = np.zeros(features.shape[1])
    for start in range(0, len(rows), CHUNK):
        total += features[rows[start : start + CHUNK]].sum(axis=0, dtype=np.float64)
    return np.asarray(total / len(rows), dtype=np.float32)


def valley(a: Floats, b: Floats, ends: tuple[Floats, Floats] | None = None) -> float:
    """Lowest density between the peaks of two groups, divided by the lower peak; 1 if there is no gap."""
    start, stop = (a.mean(axis=0), b.mean(axis=0)) if ends is None else ends
    line = stop - start
    length = float(line @ line)
    if length <= 0:
        return 1.0
    t = np.concatenate([(a - start) @ line, (b - start) @ line]) / length  # centres at 0 and 1
    spread = np.sqrt((np.var(t[: len(a)]) * len(a) + np.var(t[len(a) :]) * len(b)) / len(t))
    width = max(0.9 * float(spread) * len(t) ** -0.2, 0.03)
    grid = np.linspace(-0.25, 1.25, 61)
    density = np.exp(-0.5 * np.square((grid[:, None] - t) / width)).sum(axis=1)
    left, right = int(density[grid < 0.4].argmax()), int(np.flatnonzero(grid > 0.6)[0])
    right += int(density[right:].argmax())
    lower = min(density[left], density[right])
    return float(min(1.0, density[left : right + 1].min() / max(lower, 1e-12)))


class _Groups(NamedTuple):
    members: list[NDArray[np.float32]]  # the points of each group, largest group first
    valley: float  # of the first split

    @property
    def sizes(self) -> list[int]:
        return [len(group) for group in self.members]


def _separated_groups(points: NDArray[np.float32], most: int) -> _Groups:
    """Groups with gaps between them: points are split in two as long as `_validated_split` finds a gap."""
    candidates, first_valley = [points], 1.0
    final: list[NDArray[np.float32]] = []
    while candidates and len(candidates) + len(final) < most:
        group = max(candidates, key=len)
        candidates = [c for c in candidates if c is not group]
        split = _validated_split(group)
        if split is None:
            final.append(group)
            continue
        depth, halves = split
        first_valley = depth if not final and not candidates else first_valley
        candidates += halves
    return _Groups(sorted([*final, *candidates], key=len, reverse=True), first_valley)


def _validated_split(points: NDArray[np.float32]) -> tuple[float, list[NDArray[np.float32]]] | None:
    """The points split in two, and the valley between; None unless held-out points show a gap as well.

    The two centres come from one half of the points, the valley from the other half.
    """
    if len(points) < FEWEST:
        return None
    points = np.random.default_rng(0).permutation(points)  # classes may alternate
    centers = kmeans(points[::2], 2, seed=0, restarts=2).centers
    held_out = points[1::2]
    side = _nearest(held_out, centers)
    if min((side == 0).sum(), (side == 1).sum()) < max(8, len(held_out) // 20):
        return None
    depth = valley(held_out[side == 0], held_out[side == 1], (centers[0], centers[1]))
    if depth >= SPLIT_BELOW:
        return None
    side = _nearest(points, centers)
    return depth, [points[side == 0], points[side == 1]]


# Clustering of one class


def divide(points: NDArray[np.float32], k: int, *, seed: int) -> NDArray[np.int64]:
    """(n,) parts 0 ... k - 1 of one class, largest first: the groups of its hint if k, else k-means."""
    groups = _separated_groups(_subsample(points), MOST_HINTED_PARTS).members
    if len(groups) != k or k < 2:
        return kmeans(points, k, seed=seed).labels
    labels = _nearest(points, np.stack([group.mean(axis=0) for group in groups]))
    return np.argsort(_largest_first(labels, k))[labels]


def _subsample(rows: NDArray[Any]) -> NDArray[Any]:
    """At most `MOST_USED` of the rows, evenly spaced."""
    return rows[:: max(1, -(-len(rows) // MOST_USED))]


class Clusters(NamedTuple):
    labels: NDArray[np.int64]  # (n,) the largest cluster first
    centers: NDArray[np.float32]


def kmeans(points: NDArray[np.float32], k: int, *, seed: int, restarts: int = 5, steps: int = 50) -> Clusters:
    """k-means: Lloyd's algorithm from several k-means++ starts, fitted to at most `MOST_FITTED` points."""
    generator = np.random.default_rng(seed)
    sample = points
    if len(points) > MOST_FITTED:
        sample = points[np.sort(generator.choice(len(points), MOST_FITTED, replace=False))]
    norms = np.square(sample).sum(axis=1)
    best, best_cost = None, np.inf
    for _ in range(restarts):
        centers = _kmeans_plus_plus(sample, k, generator)
        cost = np.inf
        for _ in range(steps):
            d = np.square(centers).sum(axis=1) - 2 * (
                sample @ centers.T
            )  # squared distances without the norms of the points
            labels = d.argmin(axis=1)
            before, cost = cost, float((d[np.arange(len(d)), labels] + norms).sum())
            if before - cost <= 1e-5 * abs(cost):
                break
            members = (labels[:, None] == np.arange(k)).astype(np.float32)
            counts = members.sum(axis=0)
            used = counts > 0
            centers[used] = (members.T @ sample)[used] / counts[used, None]
        if cost < best_cost:
            best, best_cost = centers, cost
    assert best is not None
    labels = _nearest(points, best)
    order = _largest_first(labels, k)
    return Clusters(np.argsort(order)[labels], best[order])


def _largest_first(labels: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    return np.argsort(-np.bincount(labels, minlength=k), kind="stable")


def _kmeans_plus_plus(
    points: NDArray[np.float32], k: int, generator: np.random.Generator
) -> NDArray[np.float32]:
    """k starting centres: each next one is drawn by squared distance to the nearest one so far."""
    chosen = [int(generator.integers(len(points)))]
    nearest = _squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < k:
        total = float(nearest.sum())
        pick = int(generator.integers(len(points))) if total <= 0 else 0
        if total > 0:
            pick = int(np.searchsorted(np.cumsum(nearest, dtype=np.float64), generator.random() * total))
        chosen.append(min(pick, len(points) - 1))
        nearest = np.minimum(nearest, _squared_distances(points, points[chosen[-1:]])[:, 0])
    return points[chosen].copy()


def _squared_distances(points: NDArray[np.float32], centers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Squared distances (n, k)."""
    d = np.square(points).sum(axis=1)[:, None] - 2 * (points @ centers.T) + np.square(centers).sum(axis=1)
    return np.asarray(np.maximum(d, 0), dtype=np.float32)


def _nearest(points: NDArray[np.float32], centers: NDArray[np.float32]) -> NDArray[np.int64]:
    parts = [
        _squared_distances(points[s : s + CHUNK], centers).argmin(axis=1)
        for s in range(0, len(points), CHUNK)
    ]
    return np.concatenate(parts).astype(np.int64)
