"""The end of stage 2: clusters of features, which are the pseudo-labels."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from cdknet.core.classifiers import MOST_VOTERS, Neighbors, class_means
from cdknet.core.columns import has_two_values, is_side_note
from cdknet.core.hsic import unit_length
from cdknet.core.neighbors import neighbor_graphs, tear
from cdknet.core.seeds import derive_seed
from cdknet.core.spectral import graph_embedding
from cdknet.options import DiscoverOptions
from cdknet.runs.checkpoints import Snapshot

GRAPHS = (15, 30)  # neighbours of a sample in the graphs that are cut into classes
GRAPH_NEIGHBORS = 30  # the same for one spectral cut; with 15 it falls apart on small sets
CUTTING = ("cd-knet", "cd-knet+")  # methods whose features can be cut in several ways
BLENDS = (0.0, 0.5, 1.0, 2.0)  # weight of z beside a row of U, both of unit length
CLOSE = (0.0, 0.5, 1.0)  # the same for ways that keep closer to the neighbours
FAR_LESS = 2 / 3  # of a tear
MUCH_MORE = 20  # times a tear
GAP = 0.01  # share of edges between two clusters below which there is a gap between them
TORN = 0.04  # share of edges between two clusters above which one class may have been cut in two
SMALL = 10**7  # products of a round of k-means up to which a second thread is not worth its while
LEAST_SHARE = 0.2  # of the mean class: a smaller cluster is a few strays, which hang on next to nothing


class FitsAndPredicts(Protocol):
    """A scikit-learn clusterer."""

    def fit_predict(self, X: NDArray[Any]) -> NDArray[Any]: ...


# Either a clusterer or a function (features, n_clusters, seed) -> labels 0 ... n_clusters - 1.
Clusterer = FitsAndPredicts | Callable[[NDArray[Any], int, int], NDArray[Any]]


def wanted_classes(options: DiscoverOptions) -> int:
    """How many new classes to look for; an error where nobody said."""
    if options.n_new_classes is None:
        raise ValueError("n_new_classes must be set. Got None. Say how many new classes to look for.")
    return options.n_new_classes


def check_clusterer(clusterer: Any, n_new_classes: int | None, method: str) -> None:
    """Raise for a clusterer that cannot give what is asked of it, before anything is trained."""
    if clusterer is None:
        return
    is_estimator = hasattr(clusterer, "fit_predict")
    if isinstance(clusterer, type) or not (callable(clusterer) or is_estimator):
        got = f"the class {clusterer.__name__}" if isinstance(clusterer, type) else type(clusterer).__name__
        raise TypeError(f"clusterer must have fit_predict or be a function. Got {got}. Make one: with ().")
    if not is_estimator:
        return
    if method == "sscd-dynamic":
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
    """Labels 0 ... n_clusters - 1 of the rows of z: k-means, or what the caller's `clusterer` says."""
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
            f"The clusterer must return one whole number a sample ({len(points)}). "
            f"Got {labels.dtype} of shape {labels.shape}."
        )
    if labels.min() < 0 or labels.max() >= n_clusters:
        raise ValueError(
            f"The clusterer must return labels in 0 ... {n_clusters - 1}, for n_new_classes={n_clusters}. "
            f"Got {labels.min()} ... {labels.max()}."
        )
    return torch.from_numpy(labels.astype(np.int64))


def cut_features(
    z: Tensor,
    options: DiscoverOptions,
    clusterer: Clusterer | None,
    seed: int,
    labels: Tensor | None = None,
    samples: Tensor | None = None,
) -> Snapshot:
    """Clusters of the rows of z, to be kept: as `clusterer` or `options.cut` says, or given as `labels`.

    Those that are agreed on keep to the gaps among `samples`, if vectors are given (`along_gaps`). Where most
    of these are copies of others, they are cut themselves, by k-means: the neighbours of a sample are its
    copies, and what is learned to tell it from them is the little by which they differ.
    """
    m_u, restarts = wanted_classes(options), options.kmeans_restarts
    cut = "given" if labels is not None else "own" if clusterer is not None else options.cut
    if cut == "agreed" and samples is not None and _are_copies(samples):
        cut, labels = "k-means", cluster(samples, m_u, restarts=restarts, seed=seed)
    if cut == "agreed":
        labels = agreed_labels(z, m_u, restarts=restarts, seed=seed)
        if samples is not None and m_u > 1:
            labels = along_gaps(samples, labels, m_u, restarts=restarts, seed=seed)
    elif cut == "spectral":
        labels = spectral_labels(z, m_u, neighbors=GRAPH_NEIGHBORS, restarts=restarts, seed=seed)
    elif labels is None:  # k-means; heads, where there was no time for them to learn
        labels = cluster(z, m_u, clusterer, restarts=restarts, seed=seed)
    tensors = {"pseudo_labels": labels, "centers": class_means(z, labels, m_u)}
    return Snapshot(1, True, tensors, {"votes": cut in ("agreed", "spectral")})


def spectral_labels(
    z: Tensor,
    n_clusters: int,
    clusterer: Clusterer | None = None,
    *,
    neighbors: int = 15,
    restarts: int = 10,
    seed: int = 0,
) -> Tensor:
    """Labels of the rows of z: k-means on the rows of U, U the top eigenvectors of a neighbour graph of z.

    A graph of at most `MOST_VOTERS` samples; the others are labelled by a vote of their neighbours in it.
    """

    def label(part: Tensor) -> Tensor:
        graph = _graphs(part, n_clusters, (neighbors,))[0]
        U = _rows_of(graph, part, n_clusters, centred=False)
        return cluster(U, n_clusters, clusterer, restarts=restarts, seed=seed)

    return _label_part(z, n_clusters, neighbors, seed, label)


def agreed_labels(z: Tensor, n_clusters: int, *, restarts: int = 10, seed: int = 0) -> Tensor:
    """Labels of the rows of z that several ways to cluster them agree on, if the graph does not object.

    k-means on z takes a class for a ball and may cut across a long one; on the rows of U it follows the
    neighbours, and may cut a class in two where they are sparse, for two others that touch. So: k-means on
    z, on U and on both side by side (`BLENDS`), U of a finer and of a coarser graph (`GRAPHS`), then k-means
    on what each said of a sample. A cut that only some of them make is outvoted.

    These ways lean to classes of equal size (U is centred: its last vector cuts a class much larger than the
    others in two). Where that was done (`TORN`), the same is asked of rows that do not, and of ways that keep
    closer to the neighbours; if one of them leaves far less of a tear, it has found the gaps, if they are as
    many as it takes (`_least_torn`).
    """
    few = math.ceil(restarts / 3)  # each is one voice of many

    def label(part: Tensor) -> Tensor:
        def voices(n: int, blends: Sequence[float], *, centred: bool) -> list[Tensor]:
            rows = [_rows_of(graph, part, n, centred=centred) for graph in graphs]
            ways = [torch.cat([blend * part, U], dim=1) if blend else U for U in rows for blend in blends]
            return [cluster(way, n, restarts=few, seed=seed) for way in ways]

        graphs = _graphs(part, n_clusters, GRAPHS)
        said = [cluster(part, n_clusters, restarts=few, seed=seed)]
        said += voices(n_clusters, BLENDS, centred=True)
        index = torch.stack(said, dim=1) + n_clusters * torch.arange(len(said))
        votes = torch.zeros(len(part), n_clusters * len(said)).scatter_(1, index, 1.0)  # one-hot each
        even = cluster(votes, n_clusters, restarts=restarts, seed=seed)
        torn = tear(graphs[0], even.numpy())
        if torn < TORN:
            return even
        found = _least_torn(graphs[0], n_clusters, lambda n: voices(n, CLOSE, centred=False), FAR_LESS * torn)
        return even if found is None else found

    return _label_part(z, n_clusters, min(GRAPHS), seed, label)


def along_gaps(x: Tensor, labels: Tensor, n_clusters: int, *, restarts: int = 10, seed: int = 0) -> Tensor:
    """The labels; or, where they tear classes that x itself shows with gaps around them, those classes.

    x are the samples as they came, vectors. What is learned from old classes may look past what sets new ones
    apart: x, cut as coarsely, is asked for its own gaps, which are followed where the labels run across them.
    Not for those among the values of a category beside numbers, which are gaps whatever the classes are.
    """
    x = x[:, ~is_side_note(x)]

    def label(part: Tensor) -> Tensor:
        given = labels[rows]
        graphs = _graphs(part, n_clusters, GRAPHS)
        if tear(graphs[0], given.numpy()) < TORN:
            return given

        def cuts(n: int) -> list[Tensor]:
            ways = [part, *(_rows_of(graph, part, n, centred=False) for graph in graphs)]
            return [cluster(way, n, restarts=restarts, seed=seed) for way in ways]

        found = _least_torn(graphs[0], n_clusters, cuts, GAP)
        return given if found is None else found

    rows = _some_of(len(x), seed)
    found = label(x[rows])
    return labels if torch.equal(found, labels[rows]) else _extended(x, rows, found, n_clusters, min(GRAPHS))


def _least_torn(
    graph: csr_array, n_clusters: int, cuts: Callable[[int], list[Tensor]], most: float
) -> Tensor | None:
    """The cut of the graph that tears least; None if none tears less than `most`, or if gaps are not it.

    `cuts` are ways to make so many clusters. A few strays are no class (`LEAST_SHARE`): cut off, they leave
    two classes as one and tear nothing. Where classes overlap, clumps inside them have gaps around them too.
    But then there are more of these: one cluster more tears no more. Around classes the gaps are as many as
    it takes, and one cluster more cuts a class in two (`TORN`, or `MUCH_MORE`).
    """

    def least_torn(n: int) -> tuple[float, Tensor]:
        found = cuts(n)
        tears = [tear(graph, cut.numpy()) if _sizeable(cut, n) else 1.0 for cut in found]
        return min(tears), found[int(np.argmin(tears))]

    least, best = least_torn(n_clusters)
    if least >= most:
        return None
    return best if least_torn(n_clusters + 1)[0] >= min(TORN, MUCH_MORE * least) else None


def _are_copies(x: Tensor) -> bool:
    """Whether most samples stand there more than once; by columns of yes and no if these are most."""
    two = has_two_values(x)
    told = x[:, two] if two.any() and not is_side_note(x).any() else x
    return 2 * len(torch.unique(told, dim=0)) < len(x)


def _sizeable(labels: Tensor, n_clusters: int) -> bool:
    """Whether every cluster is large enough to be a class."""
    counts = torch.bincount(labels, minlength=n_clusters)
    return int(counts.min()) >= LEAST_SHARE * len(labels) / n_clusters


def _graphs(z: Tensor, n_clusters: int, neighbors: Sequence[int]) -> list[csr_array]:
    """Graphs of near neighbours, at most a quarter of a class of them: more leave a small set no gaps."""
    most = max(3, len(z) // (4 * n_clusters))
    return neighbor_graphs(z, [min(k, most) for k in neighbors])


def _rows_of(graph: csr_array, z: Tensor, n_clusters: int, *, centred: bool) -> Tensor:
    """Rows of U, of unit length: the top eigenvectors of a neighbour graph of z."""
    r = min(n_clusters, len(z) - 1)
    return unit_length(graph_embedding(graph, r, centred=centred).to(z).vectors)


def _label_part(
    z: Tensor, n_clusters: int, neighbors: int, seed: int, label: Callable[[Tensor], Tensor]
) -> Tensor:
    """Label at most `MOST_VOTERS` rows of z by `label`, the others by a vote of their neighbours in them."""
    if n_clusters == 1:
        return torch.zeros(len(z), dtype=torch.int64)
    rows = _some_of(len(z), seed)
    return _extended(z, rows, label(z[rows]), n_clusters, neighbors)


def _some_of(n: int, seed: int) -> Tensor:
    """At most `MOST_VOTERS` of n rows, drawn at random."""
    draw = torch.Generator().manual_seed(derive_seed(seed, "graph"))
    return torch.randperm(n, generator=draw)[:MOST_VOTERS].sort().values


def _extended(z: Tensor, rows: Tensor, found: Tensor, n_clusters: int, neighbors: int) -> Tensor:
    """Labels of all rows of z from those `found` for some of them, the others by a vote of neighbours."""
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
