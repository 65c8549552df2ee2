"""The U step: optimality, two algorithms for one subspace, known answers."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cdknet.core import spectral
from cdknet.core.clustering import agreed_labels, spectral_labels
from cdknet.core.hsic import Factor, center, gaussian_kernel, hsic, normalize_by_degree
from cdknet.core.metrics import clustering_accuracy
from cdknet.core.neighbors import bridged, nearest_neighbors, neighbor_graph, split_affinity
from cdknet.core.spectral import (
    every_leading,
    graph_embedding,
    leading_eigenpairs,
    median_distance,
    neighbor_embedding,
    nystrom_embedding,
    spectral_embedding,
    subspace_turn,
)

from strategies import blobs, clouds, frame, kernels, points, seeds

close = torch.testing.assert_close


@given(kernels(), seeds)
def test_no_other_frame_beats_the_leading_eigenvectors(K, seed):
    r = max(1, len(K) // 2)
    values, U = leading_eigenpairs(K, r)
    rival = frame(len(K), r, seed)
    close(torch.trace(U.T @ K @ U), values.sum())
    close(U.T @ U, torch.eye(r, dtype=K.dtype))
    assert torch.trace(rival.T @ K @ rival) <= values.sum() + 1e-9


@given(clouds(least=8), seeds)
def test_the_U_step_maximises_the_hsic_of_the_normalised_kernel(z, seed):
    """Eq. (7): HSIC(K̃, U) over UᵀU = I is largest at the spectral embedding."""
    K = normalize_by_degree(gaussian_kernel(z, 1.0))
    U = spectral_embedding(z, 3, 1.0).vectors
    assert hsic(K, Factor(frame(len(z), 3, seed))) <= hsic(K, Factor(U)) + 1e-12


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_iterative_solver_and_the_full_one_agree(centered, dtype):
    z, _ = blobs(300, 6, seed=3, spread=0.4)
    K = normalize_by_degree(gaussian_kernel(z.to(dtype), 1.5))
    full = leading_eigenpairs(K, 5, centered=centered)
    iterative = leading_eigenpairs(K, 5, centered=centered, dense_order=10)
    tolerance = 1e-3 if dtype == torch.float32 else 1e-8
    close(iterative.values, full.values, rtol=tolerance, atol=tolerance)
    close(iterative.vectors, full.vectors, rtol=tolerance, atol=tolerance)


def test_centring_inside_the_solver_equals_centring_the_matrix():
    K = normalize_by_degree(gaussian_kernel(points(60, 4, 0), 1.5))
    inside, before = leading_eigenpairs(K, 4, centered=True), leading_eigenpairs(center(K), 4)
    close(inside.values, before.values)
    close(inside.vectors, before.vectors)


def test_signs_are_fixed_and_order_is_descending():
    K = gaussian_kernel(points(50, 3, 1), 1.0)
    values, U = leading_eigenpairs(K, 6)
    assert (values.diff() <= 0).all()
    assert (U.gather(0, U.abs().argmax(dim=0, keepdim=True)) > 0).all()


def test_a_hard_matrix_still_gets_the_exact_answer(monkeypatch):
    def gives_up(*args, **kwargs):
        raise spectral.ArpackError(3)

    K = gaussian_kernel(points(80, 3, 1), 1.0)
    exact = leading_eigenpairs(K, 3)
    monkeypatch.setattr(spectral, "eigsh", gives_up)
    close(leading_eigenpairs(K, 3, dense_order=10).vectors, exact.vectors)


def test_landmarks_and_the_whole_kernel_span_the_same_subspace():
    z, _ = blobs(600, 5, seed=0, spread=0.3)
    sigma = 0.5 * median_distance(z)
    whole = spectral_embedding(z, 4, sigma)
    limit = 600 * 600 * 8 - 1  # one byte short of the whole kernel: takes the landmark path
    few = spectral_embedding(z, 4, sigma, memory_limit=limit)
    close(few.vectors.T @ few.vectors, torch.eye(4, dtype=z.dtype))
    assert subspace_turn(whole.vectors, few.vectors) < 1e-3
    all_of_them = nystrom_embedding(z, 4, sigma, landmarks=600)
    assert subspace_turn(whole.vectors, all_of_them.vectors) < 1e-6
    close(all_of_them.values, whole.values, rtol=1e-4, atol=1e-6)


def test_the_memory_limit_decides_how_many_landmarks(monkeypatch):
    """3 n m numbers: C, its product with W^-1/2, and the centred copy."""
    seen = []
    monkeypatch.setattr(spectral, "nystrom_embedding", lambda *a, landmarks, seed: seen.append(landmarks))
    spectral_embedding(points(4000, 2, 0), 2, 1.0, memory_limit=3 * 4000 * 8 * 50)
    assert seen == [50]


def test_the_graph_of_neighbours_separates_groups_that_a_round_kernel_cannot():
    """Two interleaved half-moons: one eigenvector of the graph separates them, the Gaussian's does not."""
    angle = torch.linspace(0, torch.pi, 200, dtype=torch.float64)
    upper = torch.stack([angle.cos(), angle.sin()], dim=1)
    z = torch.cat([upper, torch.tensor([1.0, 0.4]) - upper])
    which = torch.arange(400) < 200

    def separation(U):
        u = U[:, 0]
        return float((u[which] > 0).double().mean()) - float((u[~which] > 0).double().mean())

    assert abs(separation(neighbor_embedding(z, 1, neighbors=10).vectors)) > 0.92
    assert abs(separation(spectral_embedding(z, 1, 0.5 * median_distance(z)).vectors)) < 0.9
    assert clustering_accuracy(which.long().numpy(), agreed_labels(z, 2).numpy()) == 1


def test_the_graphs_eigenvectors_are_those_of_its_dense_matrix():
    z, _ = blobs(90, 3, seed=1, spread=1.5, d=4)
    near, rows = nearest_neighbors(z, 12)
    scale = near[:, 5]
    W = torch.zeros(90, 90, dtype=torch.float64)
    W[torch.arange(90)[:, None], rows] = torch.exp(-near.square() / (scale[:, None] * scale[rows]))
    W = torch.maximum(W, W.T)
    for centred in (True, False):
        dense = leading_eigenpairs(normalize_by_degree(W), 4, centered=centred)
        sparse = graph_embedding(neighbor_graph(z, 12), 4, centered=centred)
        close(sparse.values, dense.values, rtol=1e-5, atol=1e-6)
        assert subspace_turn(dense.vectors, sparse.vectors) < 1e-5
    close(neighbor_embedding(z, 4, neighbors=12).vectors, graph_embedding(neighbor_graph(z, 12), 4).vectors)


def test_nearest_neighbours_are_the_nearest_and_never_oneself():
    z = points(50, 3, 0)
    distances = torch.cdist(z, z).fill_diagonal_(torch.inf)
    near, rows = nearest_neighbors(z, 4)
    close(near, distances.sort(dim=1).values[:, :4])
    assert (rows != torch.arange(50)[:, None]).all()
    near, rows = nearest_neighbors(z, 1, among=z)
    assert rows[:, 0].tolist() == list(range(50))


def test_tight_groups_are_separated_by_U():
    """k far groups: rows of U are equal inside a group and differ between groups."""
    z, which = blobs(120, 4, seed=2, spread=0.01)
    U = spectral_embedding(z, 3, 0.3).vectors
    for group in range(4):
        assert U[which == group].std(dim=0).max() < 1e-3
    assert torch.pdist(torch.stack([U[which == g].mean(0) for g in range(4)])).min() > 0.05


@given(clouds(least=5), seeds)
def test_median_distance_is_the_median_off_the_diagonal(z, seed):
    rows, columns = torch.triu_indices(len(z), len(z), 1)
    close(median_distance(z), float((z[rows] - z[columns]).norm(dim=1).median()))
    rotation = frame(z.shape[1], z.shape[1], seed)
    close(median_distance(z @ rotation), median_distance(z))
    close(median_distance(3 * z), 3 * median_distance(z))


def test_median_distance_of_a_sample_is_near_that_of_all():
    z = points(3000, 5, 0)
    close(median_distance(z, sample=500), median_distance(z, sample=3000), rtol=0.05, atol=0)


def test_median_distance_of_mostly_equal_points_is_not_zero():
    z = torch.zeros(20, 2)
    z[0] = 1.0
    assert median_distance(z) == pytest.approx(2**0.5)
    with pytest.raises(ValueError, match="must not all be 0"):
        median_distance(torch.zeros(5, 2))


def test_turn_is_zero_for_one_subspace_and_one_for_orthogonal_ones():
    U = frame(30, 8, 0)
    turned = U[:, :4] @ frame(4, 4, 1)
    assert subspace_turn(U[:, :4], turned) == pytest.approx(0, abs=1e-12)
    assert subspace_turn(U[:, :4], U[:, 4:]) == pytest.approx(1)


@pytest.mark.parametrize("r", [0, 10, 11])
def test_an_impossible_rank_is_refused_not_shrunk(r):
    with pytest.raises(ValueError, match="r must lie in"):
        leading_eigenpairs(torch.eye(10), r)


def test_too_little_memory_for_the_rank_is_refused():
    with pytest.raises(ValueError, match="more landmarks than the 4 eigenvectors"):
        spectral_embedding(points(100, 3, 0), 4, 1.0, memory_limit=100 * 8 * 3 * 4)


def far_groups(sizes, *, seed=0, d=8):
    """Groups without neighbours in another group, and the group of each point."""
    generator = np.random.default_rng(seed)
    which = np.repeat(np.arange(len(sizes)), sizes)
    places = 20 * generator.standard_normal((len(sizes), d))
    return torch.from_numpy(places[which] + generator.standard_normal((len(which), d))), which


@pytest.mark.parametrize("sizes", [(200, 20, 20), (1000, 100, 100), (60,) * 20, (400, 300, 200, 100, 50, 40)])
def test_a_clustering_of_the_graph_does_not_split_groups_of_any_size(sizes):
    """Eigenvalues of far groups are almost equal: ARPACK finds some of them and misses others."""
    z, which = far_groups(sizes)
    for labels in (spectral_labels(z, len(sizes)), agreed_labels(z, len(sizes))):
        assert clustering_accuracy(which, labels.numpy()) == 1


def test_outliers_are_no_class_while_there_are_larger_ones():
    generator = np.random.default_rng(0)
    which = np.repeat([0, 1], 300)
    touching = 4.5 * which[:, None] * [1, 0] + generator.standard_normal((600, 2))
    outliers = 40 + generator.standard_normal((20, 2))
    z = torch.from_numpy(np.concatenate([touching, outliers]))
    assert clustering_accuracy(which, spectral_labels(z, 2)[:600].numpy()) > 0.95


def test_eigenvalues_that_are_many_times_the_same_are_all_found():
    values = np.concatenate([np.ones(6), np.linspace(0.9, -0.5, 1494)])
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((1500, 1500)))[0]
    matrix = turn @ np.diag(values) @ turn.T
    found, vectors = every_leading(lambda x: matrix @ x, 1500, 7, 1e-7)
    np.testing.assert_allclose(found, [0.9, *[1] * 6], atol=1e-6)
    close(torch.from_numpy(vectors.T @ vectors), torch.eye(7, dtype=torch.float64), atol=1e-6, rtol=0)
    assert subspace_turn(torch.from_numpy(turn[:, :6]), torch.from_numpy(vectors[:, 1:].copy())) < 1e-6


def test_a_graph_in_parts_has_its_parts_joined_at_the_nearest():
    z, which = far_groups((40, 30, 20))
    _, rows = nearest_neighbors(z, 5)
    W = coo_array((np.ones(450), (np.repeat(np.arange(90), 5), rows.numpy().ravel())), shape=(90, 90)).tocsr()
    joined = bridged(W.maximum(W.T).tocsr(), z)
    assert connected_components(joined, directed=False)[0] == 1
    added = np.argwhere((joined - W.maximum(W.T)).toarray() > 0)
    distances = torch.cdist(z, z)
    for i, j in added:
        apart = distances[which == which[i]][:, which == which[j]].min()
        close(distances[i, j], apart)


def test_split_affinity_is_the_largest_share_of_edges_between_two_clusters():
    z, _ = blobs(60, 3, seed=2, spread=3.0, d=4)
    W = neighbor_graph(z, 7)
    labels = np.arange(60) % 4  # a bad clustering
    dense = W.toarray()
    by_hand = []
    for a, b in itertools.combinations(range(4), 2):
        first, second = labels == a, labels == b
        volumes = dense[first].sum() * dense[second].sum()
        by_hand.append(dense[first][:, second].sum() / np.sqrt(volumes))
    assert split_affinity(W, labels) == pytest.approx(max(by_hand))
    far, which = far_groups((80, 50))
    assert split_affinity(neighbor_graph(far, 7), which) < 0.005  # only the edge that joins them
    split = np.where(which == 0, np.arange(130) % 2, 2)
    assert split_affinity(neighbor_graph(far, 7), split) > 0.3
