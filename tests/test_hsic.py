"""HSIC and its kernels: identities, and agreement with the formulas as written."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cdknet.core.hsic import (
    Factor,
    center,
    cka,
    gaussian_kernel,
    hsic,
    hsic_normalized,
    hsic_unbiased,
    identity_dependence,
    linear_kernel,
    normalize_by_degree,
    squared_distances,
)

from strategies import clouds, kernel_pairs, kernels, points, seeds

close = torch.testing.assert_close


def centering(n):
    return torch.eye(n, dtype=torch.float64) - torch.ones(n, n, dtype=torch.float64) / n


def hsic_as_written(K, L):
    """tr(K H L H) / (n - 1)², term for term."""
    H = centering(len(K))
    return torch.trace(K @ H @ L @ H) / (len(K) - 1) ** 2


def hsic_unbiased_as_written(K, L):
    """Song et al.'s estimator as sums over distinct indices."""
    n = len(K)
    K, L = K - torch.diag(K.diagonal()), L - torch.diag(L.diagonal())
    one = torch.ones(n, dtype=K.dtype)
    total = torch.trace(K @ L) + (one @ K @ one) * (one @ L @ one) / ((n - 1) * (n - 2))
    return (total - 2 / (n - 2) * (one @ K @ L @ one)) / (n * (n - 3))


def gaussian_as_written(z, sigma):
    difference = z[:, None, :] - z[None, :, :]
    return torch.exp(-difference.square().sum(-1) / (2 * sigma**2))


@given(kernels())
def test_centring_equals_multiplying_by_H_on_both_sides(K):
    H = centering(len(K))
    close(center(K), H @ K @ H)


@given(kernel_pairs())
def test_hsic_equals_the_formula_as_written(pair):
    close(hsic(*pair), hsic_as_written(*pair))


@given(kernel_pairs())
def test_unbiased_hsic_equals_the_formula_as_written(pair):
    close(hsic_unbiased(*pair), hsic_unbiased_as_written(*pair))


@pytest.mark.parametrize("measure", [hsic, hsic_unbiased, cka])
@given(K=kernels(), seed=seeds)
def test_a_factor_gives_the_same_as_the_kernel_it_stands_for(measure, K, seed):
    F = points(len(K), 3, seed)
    close(measure(K, Factor(F)), measure(K, linear_kernel(F)))


@given(kernels(), seeds)
def test_the_normalised_kernel_need_not_be_built(K, seed):
    F = Factor(points(len(K), 3, seed))
    close(hsic_normalized(K, F), hsic(normalize_by_degree(K), F))


@pytest.mark.parametrize("measure", [hsic, hsic_unbiased, cka])
@given(pair=kernel_pairs(), seed=seeds)
def test_the_order_of_samples_does_not_matter(measure, pair, seed):
    K, L = pair
    p = torch.randperm(len(K), generator=torch.Generator().manual_seed(seed))
    close(measure(K[p][:, p], L[p][:, p]), measure(K, L))


@pytest.mark.parametrize("measure", [hsic, hsic_unbiased, cka])
@given(pair=kernel_pairs())
def test_dependence_is_mutual(measure, pair):
    close(measure(*pair), measure(*reversed(pair)))


@given(kernels(), st.floats(-5, 5))
def test_hsic_with_a_constant_kernel_is_zero(K, c):
    assert hsic(K, torch.full_like(K, c)).abs() < 1e-12
    assert hsic_unbiased(K, torch.full_like(K, c)).abs() < 1e-12


@given(clouds(least=6, most=20), seeds)
def test_dependence_on_identity_is_hsic_with_one_hot_identities(z, seed):
    """n HSIC(K, YYᵀ) (N-1)²/N² = (1 + mean K of pairs)/2 - mean K; ours leaves a view with itself out."""
    n = len(z)
    K = gaussian_kernel(torch.cat([z, z + 0.1 * points(n, z.shape[1], seed)]), 1.0)
    identity = torch.eye(n, dtype=K.dtype).repeat(2, 1)
    exact = hsic(K, Factor(identity)) * (2 * n - 1) ** 2 / (2 * n) ** 2 * n
    pairs = K[:n, n:].diagonal().mean()
    close(exact, identity_dependence(K) + (1 - pairs) / 2)


def test_the_unbiased_estimator_is_unbiased():
    """Over independent pairs its mean is 0; that of the biased one is not."""
    unbiased, biased = [], []
    for seed in range(400):
        K, L = (gaussian_kernel(points(12, 1, 2 * seed + i), 1.0) for i in (0, 1))
        unbiased.append(hsic_unbiased(K, L))
        biased.append(hsic(K, L))
    standard_error = torch.stack(unbiased).std() / 20
    assert torch.stack(unbiased).mean().abs() < 3 * standard_error < torch.stack(biased).mean() / 3


@given(kernels(), st.floats(0.1, 10))
def test_cka_is_one_for_a_kernel_and_its_multiple_and_never_more(K, scale):
    close(cka(K, scale * K), torch.tensor(1.0, dtype=K.dtype))
    assert -1e-12 <= cka(K, gaussian_kernel(points(len(K), 2, 5), 1.0)) <= 1 + 1e-12


@given(clouds(), st.floats(0.2, 5))
def test_gaussian_kernel_equals_the_formula_and_is_positive_definite(z, sigma):
    K = gaussian_kernel(z, sigma)
    close(K, gaussian_as_written(z, sigma))
    close(K, K.T)
    assert torch.equal(K.diagonal(), torch.ones(len(z), dtype=K.dtype))
    assert torch.linalg.eigvalsh(K).min() > -1e-9


@given(clouds())
def test_distances_survive_a_far_origin(z):
    close(squared_distances(z + 1e6), squared_distances(z), rtol=1e-5, atol=1e-5)


@given(kernels())
def test_degree_normalisation_gives_the_known_leading_eigenvector(K):
    """D^-½ K D^-½ has largest eigenvalue 1, at D^½ 1 and not at 1."""
    root = K.sum(dim=1).sqrt()
    close(normalize_by_degree(K) @ root, root)
    assert torch.linalg.eigvalsh(normalize_by_degree(K)).max() < 1 + 1e-9


@pytest.mark.parametrize("measure", [hsic, hsic_unbiased, cka])
def test_gradients_are_those_of_finite_differences(measure):
    z, F = points(7, 3, 0).requires_grad_(), points(7, 2, 1)

    def through_everything(z):
        return measure(normalize_by_degree(gaussian_kernel(z, 0.8)), Factor(F))

    assert torch.autograd.gradcheck(through_everything, (z,))


def test_the_first_term_of_the_objective_has_the_same_gradient_by_both_roads():
    F = Factor(points(9, 2, 1))
    gradients = []
    for road in (lambda K: hsic_normalized(K, F), lambda K: hsic(normalize_by_degree(K), F)):
        z = points(9, 3, 0).requires_grad_()
        road(gaussian_kernel(z, 0.8)).backward()
        gradients.append(z.grad)
    close(gradients[0], gradients[1])


@given(clouds(), seeds)
def test_the_kernels_own_gradient_equals_autograds(z, seed):
    weights = points(len(z), len(z), seed)  # not symmetric, on purpose
    a, b = z.clone().requires_grad_(), z.clone().requires_grad_()
    (weights * gaussian_kernel(a, 0.9)).sum().backward()
    (weights * gaussian_as_written(b, 0.9)).sum().backward()
    close(a.grad, b.grad)


@pytest.mark.parametrize("measure", [hsic, hsic_unbiased, cka])
def test_single_precision_agrees_with_double(measure):
    z, F = points(200, 16, 0), points(200, 4, 1)
    values = [measure(gaussian_kernel(z.to(t), 2.0), Factor(F.to(t))) for t in (torch.float32, torch.float64)]
    assert values[0].dtype == torch.float32
    close(values[0].double(), values[1], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_kernel(torch.zeros(3, 2), 0.0), "sigma must be above 0"),
        (lambda: gaussian_kernel(torch.zeros(3), 1.0), "must be \\(n, d\\)"),
        (lambda: hsic(torch.zeros(3, 4), torch.zeros(3, 3)), "square kernel"),
        (lambda: hsic(torch.eye(3), torch.eye(4)), "same samples as K"),
        (lambda: hsic(torch.eye(3), Factor(torch.eye(4))), "same samples as K"),
        (lambda: hsic(torch.eye(1), torch.eye(1)), "at least 2 samples"),
        (lambda: hsic_unbiased(torch.eye(3), torch.eye(3)), "at least 4 samples"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
