"""Stage 2: features in which the new classes fall apart, then clusters."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from cdknet.history import History
from cdknet.hsic import Factor, gaussian_kernel, hsic, hsic_normalized
from cdknet.networks import Network, embed, unit_length
from cdknet.options import DiscoverOptions
from cdknet.readout import MOST_VOTERS, Neighbors, class_means
from cdknet.spectral import (
    graph_embedding,
    median_distance,
    neighbor_embedding,
    neighbor_graph,
    spectral_embedding,
    subspace_turn,
    tear,
)
from cdknet.stages.loop import Checkpoint, Loop, Problem, Snapshot, batches, derive_seed, once
from cdknet.views import VIEWS, Views, check_views, choose_views

GRAPHS = (15, 30)  # neighbours of a sample in the graphs that are cut into classes
GRAPH_NEIGHBORS = 30  # the same for one spectral cut; with 15 it falls apart on small sets
CUTTING = ("cd-knet", "cd-knet+")  # methods whose features can be cut in several ways
BLENDS = (0.0, 0.5, 1.0, 2.0)  # weight of z beside a row of U, both of unit length
CLOSE = (0.0, 0.5, 1.0)  # the same for ways that keep closer to the neighbours
FAR_LESS = 2 / 3  # of a tear
TORN = 0.04  # share of edges between two clusters above which one class may have been cut in two


class FitsAndPredicts(Protocol):
    """A scikit-learn clusterer."""

    def fit_predict(self, X: NDArray[Any]) -> NDArray[Any]: ...


# Either a clusterer or a function (features, n_clusters, seed) -> labels 0 ... n_clusters - 1.
Clusterer = FitsAndPredicts | Callable[[NDArray[Any], int, int], NDArray[Any]]


class Discovery(NamedTuple):
    """What stage 2 found."""

    network: Network
    pseudo_labels: Tensor  # (n',) cluster of each unlabelled row, 0 ... n_new_classes - 1
    centers: Tensor  # (n_new_classes, d) mean features of the clusters
    votes: bool = False  # a sample's class is voted by its neighbours, not given by the nearest centre
    U: Tensor | None = None  # (n1 + n1', r) the last spectral embedding, where the method has one
    U_rows: Tensor | None = None  # (n1 + n1',) the rows of X that U is about
    sigma: float | None = None


def discover(
    network: Network,
    problem: Problem,
    options: DiscoverOptions,
    *,
    learning_rate: float = 0.001,
    clusterer: Clusterer | None = None,
    views: Views | None = None,
    seed: int = 0,
    history: History | None = None,
    checkpoint: Checkpoint | None = None,
) -> Discovery:
    """Stage 2, section V.C: Algorithm 1, then clusters of f(X_u), by k-means unless `readout` says otherwise.

    maximise  HSIC(f(X), U) + λ HSIC(f(X_l), Y)  over the network and UᵀU = I, Eq. (9),

    by turns: one epoch of gradient ascent on the network while U rests, then the U step in closed form
    while the network rests. X is a subsample of old and new rows. `learning_rate` holds where the options
    set none of their own; `views` have no part in the paper's method.

    The two terms are `cluster_term` and `label_term`.
    """
    m_u = wanted_classes(options)
    rate = options.discover_learning_rate or learning_rate
    network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.trainable(), lr=rate, maximize=True)
    loop = Loop("discover", network, optimizer, seed=seed, history=history, checkpoint=checkpoint)

    draw = torch.Generator().manual_seed(derive_seed(seed, "subsample"))
    old = subsample(len(problem.old_rows), options, draw)
    new = subsample(len(problem.new_rows), options, draw)
    rows = torch.cat([problem.old_rows[old], problem.new_rows[new]])  # X_1 of section V.E
    old_rows = problem.old_rows[old]  # X_l1
    Y = nn.functional.one_hot(problem.old_targets[old], problem.n_old_classes).float()
    r = problem.n_old_classes + m_u
    if len(rows) <= r:
        raise ValueError(
            f"Stage 2 needs more samples than classes, old and new together ({r}). Got {len(rows)}. "
            "Raise subsample or min_subsample."
        )
    lam = options.label_weight
    device = network.device

    def features(x: Tensor) -> Tensor:
        z = network.features(x)
        return unit_length(z) if options.normalize_features else z

    def spectral_step() -> tuple[Tensor, float]:
        """U and the kernel's width for the features as they are now."""
        z = embed(network, problem.inputs, rows, normalize=options.normalize_features).features
        try:
            sigma = options.sigma_scale * median_distance(z)
        except ValueError as collapsed:
            raise FloatingPointError(
                f"Stage discover, epoch {loop.epoch + 1}: {collapsed} "
                + ("Lower discover_learning_rate." if loop.epoch else "Are the samples of X all alike?")
            ) from None
        if options.kernel == "neighbors":
            return neighbor_embedding(z, r, neighbors=options.neighbors).vectors, sigma
        limit = options.memory_limit * 1e9
        return spectral_embedding(z, r, sigma, memory_limit=limit, seed=seed).vectors, sigma

    def epoch(generator: torch.Generator) -> dict[str, Any]:
        U, sigma = loop.tensors["U"], float(loop.facts["sigma"])
        network.train()
        values: dict[str, list[float]] = {"hsic_U": [], "hsic_Y": []}
        labelled = endless_batches(len(old_rows), options.discover_batch_size, generator)
        # Alg. 1: one epoch of ascent on theta, Eqs. (10) and (11) alternately.
        for batch in loop.ticking(
            batches(len(rows), options.discover_batch_size, generator), limit=options.discover_epochs
        ):
            if lam < math.inf:  # Eq. (10)
                z = features(problem.inputs.take(rows[batch], device))
                value = cluster_term(z, U[batch].to(device), sigma, n_rows=len(rows))
                values["hsic_U"].append(_ascend(optimizer, value))
            if lam > 0:  # Eq. (11)
                chosen = next(labelled)
                z = features(problem.inputs.take(old_rows[chosen], device))
                value = label_term(z, Y[chosen].to(device), sigma, n_classes=r)
                values["hsic_Y"].append(_ascend(optimizer, value, lam if lam < math.inf else 1.0))
        # Alg. 1: update U by eigendecomposition, Eq. (14).
        loop.tensors["U"], loop.facts["sigma"] = spectral_step()
        turn = subspace_turn(U, loop.tensors["U"])
        means = {name: float(np.mean(v)) for name, v in values.items() if v}
        return {"sigma": loop.facts["sigma"], "turn": turn, **means, "stop": turn < options.turn_tolerance}

    if loop.epoch == 0:  # Alg. 1: initialise U by spectral embedding of f(X).
        loop.tensors["U"], loop.facts["sigma"] = spectral_step()
    loop.run(options.discover_epochs, epoch)

    loop.finish()

    def clusters() -> Snapshot:
        """Alg. 1: cluster f(X_u)."""
        z = embed(network, problem.inputs, problem.new_rows, normalize=options.normalize_features).features
        return cut_features(z, options, clusterer, seed)

    found = once(checkpoint, "cluster", clusters)
    return Discovery(
        network.eval(),
        found.tensors["pseudo_labels"],
        found.tensors["centers"],
        votes=found.facts["votes"],
        U=loop.tensors["U"],
        U_rows=rows,
        sigma=float(loop.facts["sigma"]),
    )


def cluster_term(z: Tensor, U: Tensor, sigma: float, *, n_rows: int) -> Tensor:
    """HSIC(f(X), U) of a batch, the first term of Eq. (9): n HSIC(K̃, N U Uᵀ), where U is a part of N rows.

    K̃ is degree-normalised, Eqs. (5)-(6). With UᵀU = I to the letter it would shrink as 1/n²; times the
    batch and the length of U it is the sum of the r top eigenvalues of the centred K̃: r - 1 when every
    class is one point.
    """
    return len(z) * hsic_normalized(gaussian_kernel(z, sigma), Factor(math.sqrt(n_rows) * U))


def label_term(z: Tensor, Y: Tensor, sigma: float, *, n_classes: int) -> Tensor:
    """HSIC(f(X_l), Y) of a batch, the second term of Eq. (9): r HSIC(K, Y Yᵀ), K as it is (section IV.A).

    Times r, as the rows of √N U have a squared length of r in the mean and those of Y have 1: so λ weighs
    rows of equal length, however many classes there are.
    """
    return n_classes * hsic(gaussian_kernel(z, sigma), Factor(Y))


def wanted_classes(options: DiscoverOptions) -> int:
    """How many new classes to look for; an error where nobody said."""
    if options.n_new_classes is None:
        raise ValueError("n_new_classes must be set. Got None. Say how many new classes to look for.")
    return options.n_new_classes


def view_function(options: DiscoverOptions, own: Views | None, shape: tuple[int, ...]) -> Views:
    name = view_name(options, shape)
    check_views(name, shape)
    return own or VIEWS[name]


def view_name(options: DiscoverOptions, shape: tuple[int, ...]) -> str:
    return choose_views(shape) if options.views == "auto" else options.views


def _ascend(optimizer: torch.optim.Optimizer, value: Tensor, weight: float = 1.0) -> float:
    """One step up `weight` x `value`; the value."""
    optimizer.zero_grad()
    (weight * value).backward()
    optimizer.step()
    return float(value.detach())


def subsample(available: int, options: DiscoverOptions, generator: torch.Generator) -> Tensor:
    """n_1 of n positions, section V.E: a share of them, but not too few."""
    wanted = max(round(options.subsample * available), options.min_subsample, 2)
    return torch.randperm(available, generator=generator)[:wanted].sort().values


def endless_batches(rows: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of one pass after another."""
    while True:
        yield from batches(rows, size, generator)


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
        labels = copy.deepcopy(clusterer).fit_predict(points)
    else:
        labels = clusterer(points, n_clusters, seed)
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
    z: Tensor, options: DiscoverOptions, clusterer: Clusterer | None, seed: int, labels: Tensor | None = None
) -> Snapshot:
    """Clusters of the rows of z, to be kept: as `clusterer` or `options.cut` says, or given as `labels`."""
    m_u, restarts = wanted_classes(options), options.kmeans_restarts
    cut = "given" if labels is not None else "own" if clusterer is not None else options.cut
    if cut == "agreed":
        labels = agreed_labels(z, m_u, restarts=restarts, seed=seed)
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
        U = _rows_of(_graph(part, n_clusters, neighbors), part, n_clusters, centred=False)
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
    closer to the neighbours; if one of them leaves far less of a tear, it has found the gaps.
    """
    few = math.ceil(restarts / 3)  # each is one voice of many

    def label(part: Tensor) -> Tensor:
        def voices(U: Tensor, blends: Sequence[float]) -> list[Tensor]:
            ways = [torch.cat([blend * part, U], dim=1) if blend else U for blend in blends]
            return [cluster(way, n_clusters, restarts=few, seed=seed) for way in ways]

        graphs = [_graph(part, n_clusters, neighbors) for neighbors in GRAPHS]
        said = [cluster(part, n_clusters, restarts=few, seed=seed)]
        for graph in graphs:
            said += voices(_rows_of(graph, part, n_clusters, centred=True), BLENDS)
        votes = torch.cat([nn.functional.one_hot(one, n_clusters) for one in said], dim=1)
        even = cluster(votes.float(), n_clusters, restarts=restarts, seed=seed)
        torn = tear(graphs[0], even.numpy())
        if torn < TORN:
            return even
        free = [v for g in graphs for v in voices(_rows_of(g, part, n_clusters, centred=False), CLOSE)]
        tears = [tear(graphs[0], labels.numpy()) for labels in free]
        return free[int(np.argmin(tears))] if min(tears) < FAR_LESS * torn else even

    return _label_part(z, n_clusters, min(GRAPHS), seed, label)


def _graph(z: Tensor, n_clusters: int, neighbors: int) -> csr_array:
    """A graph of near neighbours, at most a quarter of a class of them: more leave a small set no gaps."""
    return neighbor_graph(z, min(neighbors, max(3, len(z) // (4 * n_clusters))))


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
    draw = torch.Generator().manual_seed(derive_seed(seed, "graph"))
    rows = torch.randperm(len(z), generator=draw)[:MOST_VOTERS].sort().values
    found = label(z[rows])
    if len(rows) == len(z):
        return found
    labels = Neighbors(z[rows], found, n_clusters, neighbors).logits(z).argmax(dim=1)
    labels[rows] = found
    return labels


def _kmeans(points: NDArray[Any], n_clusters: int, restarts: int, seed: int) -> NDArray[Any]:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    # Threads add their partial sums in the order they finish. Two sums commute; three do not.
    with threadpool_limits(limits=2, user_api="openmp"):
        model = KMeans(n_clusters, n_init=restarts, random_state=seed % 2**32)
        labels: NDArray[Any] = model.fit_predict(points)
    return labels
