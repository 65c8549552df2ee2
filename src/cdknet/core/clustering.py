"""Clusters of features: k-means, spectral clustering, and what several clusterings agree on.

`cluster_features` is the entry point. `agreed_labels` applies a list of named rules (`RULES`). Each rule is a
function below, and its docstring names the case it handles. docs/results.md, "How the settings
were chosen", has the evidence for each.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from cdknet.core.classifiers import MOST_VOTERS, Neighbors, class_means
from cdknet.core.columns import has_two_values, is_categorical
from cdknet.core.hsic import unit_length
from cdknet.core.neighbors import neighbor_graphs, split_affinity
from cdknet.core.seeds import derive_seed
from cdknet.core.spectral import graph_embedding

GRAPHS = (15, 30)  # neighbours per sample, in the graphs behind the consensus of several clusterings
GRAPH_NEIGHBORS = 30  # the same for a single spectral clustering; with 15 it breaks up small sets
BLENDS = (0.0, 0.5, 1.0, 2.0)  # weight of z beside a row of U, both of unit length
CLOSE_BLENDS = (0.0, 0.5, 1.0)  # the same, for clusterings that give the graph more weight
MUCH_LESS = 2 / 3  # factor: a split affinity this much smaller counts as much less
MUCH_MORE = 20  # factor: a split affinity this many times as large counts as much more
GAP = 0.01  # below this split affinity, there is a gap between two clusters
SPLIT = 0.04  # above this split affinity, two clusters may be one class that was split
SMALL = 10**7  # multiplications per k-means iteration, up to which a second thread does not pay off
LEAST_SHARE = 0.2  # of the mean class size: a smaller cluster counts as outliers, not as a class


class FitsAndPredicts(Protocol):
    """A scikit-learn clusterer."""

    def fit_predict(self, X: NDArray[Any]) -> NDArray[Any]: ...


# Either a clusterer or a function (features, n_clusters, seed) -> labels 0 ... n_clusters - 1.
Clusterer = FitsAndPredicts | Callable[[NDArray[Any], int, int], NDArray[Any]]


class Clusters(NamedTuple):
    """A clustering of features."""

    labels: Tensor  # (n,) 0 ... n_clusters - 1
    centers: Tensor  # (n_clusters, d) mean features
    votes: bool  # a new sample is classified by a vote of its neighbours, not by the nearest centre


def cluster_features(
    z: Tensor,
    n_clusters: int,
    how: str,
    clusterer: Clusterer | None = None,
    samples: Tensor | None = None,
    *,
    restarts: int = 10,
    seed: int = 0,
) -> Clusters:
    """Cluster the rows of z, by `clusterer` if one is given, else by the method `how`.

    `how` is "agreed", "spectral" or "k-means". "agreed" also looks at `samples` if they are given: the
    vectors from which the features z were computed.
    """
    votes = clusterer is None and how in ("agreed", "spectral")
    if clusterer is not None or how == "k-means":
        labels = cluster(z, n_clusters, clusterer, restarts=restarts, seed=seed)
    elif how == "spectral":
        graph = GRAPH_NEIGHBORS
        labels = spectral_labels(z, n_clusters, neighbors=graph, restarts=restarts, seed=seed)
    else:
        labels, votes = _agree(Case(z, n_clusters, samples, restarts, seed))
    return Clusters(labels, class_means(z, labels, n_clusters), votes)


def check_clusterer(clusterer: Any, n_new_classes: int | None, *, counts_vary: bool = False) -> None:
    """Raise if a clusterer cannot do what it will be asked for. Called before anything is trained.

    `counts_vary`: it will be asked for fewer classes in every round.
    """
    if clusterer is None:
        return
    is_estimator = hasattr(clusterer, "fit_predict")
    if isinstance(clusterer, type) or not (callable(clusterer) or is_estimator):
        got = f"the class {clusterer.__name__}" if isinstance(clusterer, type) else type(clusterer).__name__
        raise TypeError(f"clusterer must have fit_predict or be a function. Got {got}. Make one: with ().")
    if not is_estimator:
        return
    if counts_vary:
        raise ValueError(
            "clusterer must be a function of (features, n_clusters, seed) for method 'sscd-dynamic', which "
            f"asks for fewer classes from round to round. Got {type(clusterer).__name__}."
        )
    options = clusterer.get_params() if hasattr(clusterer, "get_params") else {}
    for name in ("n_clusters", "n_components"):
        if options.get(name) is not None and options[name] != n_new_classes:
            raise ValueError(
                f"clusterer must look for n_new_classes={n_new_classes} classes. Got one with "
                f"{name}={options[name]}."
            )


def cluster(
    z: Tensor, n_clusters: int, clusterer: Clusterer | None = None, *, restarts: int = 10, seed: int = 0
) -> Tensor:
    """Labels 0 ... n_clusters - 1 of the rows of z, by k-means or the caller's `clusterer`."""
    points = z.numpy()
    if len(points) < n_clusters:
        raise ValueError(
            f"n_new_classes must be at most the unlabelled samples. Got {n_clusters} > {len(points)}."
        )
    if clusterer is None:
        labels = _kmeans(points, n_clusters, restarts, seed)
    elif hasattr(clusterer, "fit_predict"):
        labels = copy.deepcopy(clusterer).fit_predict(points.copy())  # it may work in place
    else:
        labels = clusterer(points.copy(), n_clusters, seed)
    labels = np.asarray(labels)
    if labels.shape != (len(points),) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"The clusterer must return one whole number per sample ({len(points)}). "
            f"Got {labels.dtype} of shape {labels.shape}."
        )
    if labels.min() < 0 or labels.max() >= n_clusters:
        raise ValueError(
            f"The clusterer must return labels in 0 ... {n_clusters - 1}, for n_new_classes={n_clusters}. "
            f"Got {labels.min()} ... {labels.max()}."
        )
    return torch.from_numpy(labels.astype(np.int64))


def spectral_labels(
    z: Tensor,
    n_clusters: int,
    clusterer: Clusterer | None = None,
    *,
    neighbors: int = 15,
    restarts: int = 10,
    seed: int = 0,
) -> Tensor:
    """Labels of the rows of z: k-means on the rows of U, the top eigenvectors of a neighbour graph of z.

    The graph has at most `MOST_VOTERS` samples. The others are labelled by a vote of their neighbours in it.
    """

    def label(part: Tensor) -> Tensor:
        graph = _graphs(part, n_clusters, (neighbors,))[0]
        U = _rows_of(graph, part, n_clusters, centered=False)
        return cluster(U, n_clusters, clusterer, restarts=restarts, seed=seed)

    return _label_part(z, n_clusters, neighbors, seed, label)


# What several clusterings agree on: the rules.


class Case(NamedTuple):
    """The input of a rule: features to cluster, and how."""

    z: Tensor  # (n, d) features
    n_clusters: int
    samples: Tensor | None  # (n, d') the inputs from which z was computed; None if they are not vectors
    restarts: int
    seed: int

    def kmeans(self, points: Tensor, n: int | None = None, restarts: int | None = None) -> Tensor:
        return cluster(points, n or self.n_clusters, restarts=restarts or self.restarts, seed=self.seed)


class Answer(NamedTuple):
    """The answer of a rule. A rule that does not apply answers None."""

    labels: Tensor
    final: bool = False  # the rules after this one are skipped
    votes: bool = True


Rule = Callable[[Case, Tensor | None], Answer | None]


def cluster_duplicate_rows(case: Case, labels: Tensor | None) -> Answer | None:
    """Most samples are duplicates of others: k-means on the samples themselves.

    The neighbours of a sample are then its duplicates, and the network learns only the small differences
    between them.

    Evidence: docs/results.md, "Tables" (led7digit, `benchmarks/tables.py`).
    """
    if case.samples is None or not _are_duplicates(case.samples):
        return None
    return Answer(case.kmeans(case.samples), final=True, votes=False)


def take_the_consensus(case: Case, labels: Tensor | None) -> Answer | None:
    """Several clusterings vote. If they split a large class, a clustering that does not split it wins.

    k-means on z assumes that a class is a ball, and may split a long one. k-means on the rows of U follows
    the neighbour graph: it may split a class where the graph is sparse, and merge two classes that touch. So
    we run k-means on z, on U and on both concatenated (`BLENDS`), with U from a finer and a coarser graph
    (`GRAPHS`). The consensus is k-means on the one-hot labels of all these clusterings. A boundary that only
    some of them draw is outvoted.

    These clusterings prefer classes of equal size: U is centred, so its last vector splits a class that is
    much larger than the others. If that happened (`SPLIT`), we try clusterings of U without centring, which
    also give the graph more weight (`CLOSE_BLENDS`). If one of them has a much smaller split affinity, and
    the number of gaps fits the number of clusters (`_least_split`), it is the answer.

    Evidence: docs/results.md, "CD-KNet+" and "Class sizes, outliers and confidence".
    """
    few, n_clusters = math.ceil(case.restarts / 3), case.n_clusters  # each is one vote of many

    def label(part: Tensor) -> Tensor:
        def labels_for(n: int, blends: Sequence[float], *, centered: bool) -> list[Tensor]:
            rows = [_rows_of(graph, part, n, centered=centered) for graph in graphs]
            ways = [torch.cat([blend * part, U], dim=1) if blend else U for U in rows for blend in blends]
            return [case.kmeans(way, n, few) for way in ways]

        graphs = _graphs(part, n_clusters, GRAPHS)
        labelings = [case.kmeans(part, restarts=few)]
        labelings += labels_for(n_clusters, BLENDS, centered=True)
        index = torch.stack(labelings, dim=1) + n_clusters * torch.arange(len(labelings))
        votes = torch.zeros(len(part), n_clusters * len(labelings)).scatter_(1, index, 1.0)  # one-hot each
        even = case.kmeans(votes)
        affinity = split_affinity(graphs[0], even.numpy())
        if affinity < SPLIT:
            return even
        found = _least_split(
            graphs[0], n_clusters, lambda n: labels_for(n, CLOSE_BLENDS, centered=False), MUCH_LESS * affinity
        )
        return even if found is None else found

    return Answer(_label_part(case.z, n_clusters, min(GRAPHS), case.seed, label))


def follow_gaps(case: Case, labels: Tensor | None) -> Answer | None:
    """If the labels split classes that have gaps around them in the samples themselves, return those classes.

    Features learned from old classes may miss what separates new ones. So this rule looks for gaps in the
    samples, and follows them where the labels run across them. Categorical columns do not count: there are
    always gaps between their values, whatever the classes are.

    Evidence: docs/results.md, "Tables" (`benchmarks/tables.py`, `benchmarks/unequal_classes.py`).
    """
    if case.samples is None or case.n_clusters == 1 or labels is None:
        return None
    x = case.samples[:, ~is_categorical(case.samples)]
    rows = _some_of(len(x), case.seed)
    part, given = x[rows], labels[rows]
    graphs = _graphs(part, case.n_clusters, GRAPHS)
    if split_affinity(graphs[0], given.numpy()) < SPLIT:
        return None

    def clusterings(n: int) -> list[Tensor]:
        ways = [part, *(_rows_of(graph, part, n, centered=False) for graph in graphs)]
        return [case.kmeans(way, n) for way in ways]

    found = _least_split(graphs[0], case.n_clusters, clusterings, GAP)
    if found is None or torch.equal(found, given):
        return None
    return Answer(_extended(x, rows, found, case.n_clusters, min(GRAPHS)))


RULES: tuple[Rule, ...] = (cluster_duplicate_rows, take_the_consensus, follow_gaps)


def agreed_labels(
    z: Tensor, n_clusters: int, samples: Tensor | None = None, *, restarts: int = 10, seed: int = 0
) -> Tensor:
    """Labels of the rows of z by `RULES`, in order: each rule may replace the labels of the one before it."""
    return _agree(Case(z, n_clusters, samples, restarts, seed))[0]


def _agree(case: Case) -> tuple[Tensor, bool]:
    """The labels by `RULES`, and whether new samples are classified by a vote of neighbours."""
    answer: Answer | None = None
    for rule in RULES:
        found = rule(case, None if answer is None else answer.labels)
        answer = answer if found is None else found
        if answer is not None and answer.final:
            break
    assert answer is not None  # the consensus always has an answer
    return answer.labels, answer.votes


def _least_split(
    graph: csr_array, n_clusters: int, clusterings: Callable[[int], list[Tensor]], most: float
) -> Tensor | None:
    """The clustering with the least split affinity; None if it is not below `most`, or if gaps do not fit.

    `clusterings(n)` returns several clusterings into n clusters. One with a cluster of a few outliers
    (`LEAST_SHARE`) does not count: it splits nothing, but it merges two classes. Where classes overlap,
    clumps inside them have gaps around them too. But then there are more gaps than classes, so that one more
    cluster does not raise the split affinity. If the gaps are those between classes, one more cluster splits
    a class, and the split affinity rises (`SPLIT`, or `MUCH_MORE`).
    """

    def least_split(n: int) -> tuple[float, Tensor]:
        found = clusterings(n)
        split = [split_affinity(graph, labels.numpy()) if _sizeable(labels, n) else 1.0 for labels in found]
        return min(split), found[int(np.argmin(split))]

    least, best = least_split(n_clusters)
    if least >= most:
        return None
    return best if least_split(n_clusters + 1)[0] >= min(SPLIT, MUCH_MORE * least) else None


def _are_duplicates(x: Tensor) -> bool:
    """Whether most rows occur more than once. If most columns are yes/no columns, only these are compared."""
    two = has_two_values(x)
    seen = x[:, two] if two.any() and not is_categorical(x).any() else x
    return 2 * len(torch.unique(seen, dim=0)) < len(x)


def _sizeable(labels: Tensor, n_clusters: int) -> bool:
    """Whether every cluster is large enough to be a class."""
    counts = torch.bincount(labels, minlength=n_clusters)
    return int(counts.min()) >= LEAST_SHARE * len(labels) / n_clusters


def _graphs(z: Tensor, n_clusters: int, neighbors: Sequence[int]) -> list[csr_array]:
    """Neighbour graphs, of at most a quarter of a class per sample: with more, a small set has no gaps."""
    most = max(3, len(z) // (4 * n_clusters))
    return neighbor_graphs(z, [min(k, most) for k in neighbors])


def _rows_of(graph: csr_array, z: Tensor, n_clusters: int, *, centered: bool) -> Tensor:
    """Rows of U, scaled to unit length. U holds the top eigenvectors of a neighbour graph of z."""
    r = min(n_clusters, len(z) - 1)
    return unit_length(graph_embedding(graph, r, centered=centered).to(z).vectors)


def _label_part(
    z: Tensor, n_clusters: int, neighbors: int, seed: int, label: Callable[[Tensor], Tensor]
) -> Tensor:
    """Label at most `MOST_VOTERS` rows of z by `label`, and the others by a vote of neighbours."""
    if n_clusters == 1:
        return torch.zeros(len(z), dtype=torch.int64)
    rows = _some_of(len(z), seed)
    return _extended(z, rows, label(z[rows]), n_clusters, neighbors)


def _some_of(n: int, seed: int) -> Tensor:
    """At most `MOST_VOTERS` of n rows, drawn at random."""
    draw = torch.Generator().manual_seed(derive_seed(seed, "graph"))
    return torch.randperm(n, generator=draw)[:MOST_VOTERS].sort().values


def _extended(z: Tensor, rows: Tensor, found: Tensor, n_clusters: int, neighbors: int) -> Tensor:
    """Labels of all rows of z: those `found` for some of them, and a vote of neighbours for the others."""
    if len(rows) == len(z):
        return found
    labels = Neighbors(z[rows], found, n_clusters, neighbors).logits(z).argmax(dim=1)
    labels[rows] = found
    return labels


def _kmeans(points: NDArray[Any], n_clusters: int, restarts: int, seed: int) -> NDArray[Any]:
    from sklearn.cluster import KMeans
    from threadpoolctl import ThreadpoolController

    # Threads add their partial sums in the order they finish. Two sums commute; three do not. One for a small
    # job, and never more than the process has: a thread that waits for a busy core wastes what it waits for.
    threads = ThreadpoolController().select(user_api="openmp")
    there = [lib["num_threads"] for lib in threads.info()]  # none where scikit-learn was built without them
    with threads.limit(limits=min([2 if points.size * n_clusters > SMALL else 1, *there])):
        model = KMeans(n_clusters, n_init=restarts, random_state=seed % 2**32)
        labels: NDArray[Any] = model.fit_predict(points)
    return labels
