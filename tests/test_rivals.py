"""The rival methods: their common contract, the formulas of their papers, and that they find classes."""

import copy
import math

import numpy as np
import pytest
import torch

from cdknet.core.metrics import clustering_accuracy
from cdknet.core.seeds import seeded
from cdknet.fit.expand import expand
from cdknet.fit.pipeline import taught_by
from cdknet.fit.pretrain import pretrain
from cdknet.methods import method_of
from cdknet.methods.dac import cluster_head, label_features, pair_loss, plain_dac, threshold
from cdknet.methods.dec import divergence, plain_dec, soft_assignment, squared_distances, target_distribution
from cdknet.methods.pairwise import PairHead, cut_tree, draw_pairs, similarity
from cdknet.methods.sscd import is_novel, max_softmax_probability, novelty_threshold
from cdknet.methods.sscd_dynamic import separation
from cdknet.nets.architectures import build_network
from cdknet.nets.network import embed
from cdknet.training.context import FitContext
from cdknet.training.history import History

from contracts import MemoryCheckpoint, blobs_for_stages
from stagemaker import context_of, resolved

PROBLEM, TRUTH = blobs_for_stages(n=280, n_old=4, n_new=3, d=8, seed=2)
every_rival = pytest.mark.parametrize("name", ["sscd", "sscd-dynamic", "dec", "dac", "pairwise"])


@pytest.fixture(scope="module")
def pretrained():
    with seeded(0):
        network = build_network((8,), 4)
    few = {"method": "sscd", "pretrain_epochs": 4, "early_stopping": False}
    return pretrain(network, PROBLEM, resolved(few, problem=PROBLEM), FitContext()).network


def run(name, network, *, epochs=4, options=None, **kwargs):
    epochs = max(2, epochs // 4) if name == "dac" else epochs  # each epoch has many passes
    chosen = {"method": name, "n_new_classes": 3, "discover_epochs": epochs, "kmeans_restarts": 2}
    context = context_of(**kwargs)
    settled = resolved({**chosen, **(options or {})}, context, PROBLEM)
    return method_of(name).discover(network, PROBLEM, settled, context)


def everything(result):
    """The whole result of a rival as one vector."""
    parts = [*result.network.state_dict().values(), result.pseudo_labels, result.centers]
    return torch.cat([part.double().flatten() for part in parts])


def without_times(history):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history]


# The contract


@every_rival
def test_well_separated_classes_are_found(name, pretrained):
    found = run(name, pretrained, epochs=10).pseudo_labels
    assert clustering_accuracy(TRUTH[PROBLEM.new_rows.numpy()], found.numpy()) > 0.95


@every_rival
def test_the_answer_is_what_later_stages_need(name, pretrained):
    result = run(name, pretrained)
    assert set(result.pseudo_labels.tolist()) <= {0, 1, 2}
    assert result.pseudo_labels.shape == (len(PROBLEM.new_rows),)
    assert result.centers.shape == (3, 128)
    assert not result.network.training
    assert result.network.state_dict().keys() == pretrained.state_dict().keys()
    options = resolved({"method": name, "expand_epochs": 1, "expand_steps": 0}, problem=PROBLEM)
    grown = expand(result, *taught_by(PROBLEM, result, None), options, FitContext()).network
    assert grown.head.out_features == 7


@every_rival
@pytest.mark.parametrize("normalize", [True, False])
def test_the_nearest_centre_answers_as_the_labels_do(name, normalize, pretrained):
    result = run(name, pretrained, epochs=8, options={"normalize_features": normalize})
    z = embed(result.network, PROBLEM.inputs, PROBLEM.new_rows, normalize=normalize).features
    nearest = torch.cdist(z, result.centers).argmin(dim=1)
    assert (nearest == result.pseudo_labels).float().mean() > 0.9


@every_rival
def test_the_network_given_is_not_changed(name, pretrained):
    before = copy.deepcopy(pretrained.state_dict())
    result = run(name, pretrained)
    assert pretrained.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in pretrained.state_dict().items())
    assert result.network is not pretrained


@every_rival
def test_one_seed_one_answer(name, pretrained):
    assert torch.equal(everything(run(name, pretrained, seed=5)), everything(run(name, pretrained, seed=5)))


@every_rival
def test_the_callers_generators_are_left_alone(name, pretrained):
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    run(name, pretrained)
    ours = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    assert torch.equal(ours[0], torch.rand(3))
    assert np.array_equal(ours[1], np.random.rand(3))  # noqa: NPY002


@every_rival
@pytest.mark.parametrize("die_at", [1, -1])
def test_killed_anywhere_and_resumed_it_ends_the_same(name, die_at, pretrained):
    whole_history, history, counting = History(), History(), MemoryCheckpoint()
    whole = run(name, pretrained, history=whole_history, checkpoint=counting)
    dying = MemoryCheckpoint(min(die_at, counting.saves) if die_at > 0 else counting.saves)
    with pytest.raises(KeyboardInterrupt):
        run(name, pretrained, checkpoint=dying)
    dying.die_at = None
    resumed = run(name, pretrained, checkpoint=dying, history=history)
    assert torch.equal(everything(whole), everything(resumed))
    assert without_times(whole_history) == without_times(history)


@every_rival
def test_history_has_a_flat_row_per_epoch_and_a_watcher_may_stop_it(name, pretrained):
    history = History([lambda row: row["epoch"] == 2])
    result = run(name, pretrained, history=history)
    epochs = [row["epoch"] for row in history]
    assert epochs == ([1] if name in ("sscd", "pairwise") else [1, 2])  # these two need only one
    assert {row["stage"] for row in history} == {"discover"}
    assert all(isinstance(value, (int, float, str)) for row in history for value in row.values())
    assert set(result.pseudo_labels.tolist()) == {0, 1, 2}


@every_rival
def test_the_number_of_classes_must_be_said(name, pretrained):
    with pytest.raises(ValueError, match="n_new_classes must be set"):
        run(name, pretrained, options={"n_new_classes": None})


# DEC


def test_distances_to_centres_and_their_slopes_are_as_written_also_far_from_the_origin():
    generator = torch.Generator().manual_seed(3)
    z, centers = (torch.randn(n, 6, generator=generator) + 1000 for n in (20, 3))
    centers[0] = z[0]  # at a distance of 0, too
    slopes = []
    for far in (squared_distances, lambda a, b: (a[:, None] - b).square().sum(dim=2)):
        a, b = z.clone().requires_grad_(), centers.clone().requires_grad_()
        found = far(a, b)
        found.sin().sum().backward()
        slopes.append((found.detach(), a.grad, b.grad))
    for ours, written in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, written, rtol=1e-3, atol=1e-3)


def test_soft_assignment_is_students_t_as_written():
    z, centers = torch.randn(6, 3, dtype=torch.double), torch.randn(4, 3, dtype=torch.double)
    q = soft_assignment(z, centers)
    for i in range(6):
        kernel = [1 / (1 + float((z[i] - centers[j]).square().sum())) for j in range(4)]
        torch.testing.assert_close(q[i], torch.tensor(kernel, dtype=torch.double) / sum(kernel))
    torch.testing.assert_close(soft_assignment(10 * z, 10 * centers, length=10.0), q)


def test_target_distribution_is_the_formula_as_written_and_sharper():
    q = torch.rand(7, 3, dtype=torch.double)
    q /= q.sum(dim=1, keepdim=True)
    p = target_distribution(q)
    f = q.sum(dim=0)
    for i in range(7):
        terms = [float(q[i, j] ** 2 / f[j]) for j in range(3)]
        torch.testing.assert_close(p[i], torch.tensor(terms, dtype=torch.double) / sum(terms))
    sure = torch.tensor([[0.8, 0.2], [0.2, 0.8]])
    torch.testing.assert_close(target_distribution(sure)[0, 0], torch.tensor(0.64 / 0.68))


def test_divergence_is_zero_for_equals_only():
    p = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    q = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    assert divergence(p, p) == 0
    by_hand = (0.5 * math.log(2) + 0.5 * math.log(2 / 3) + math.log(2)) / 2
    assert float(divergence(p, q)) == pytest.approx(by_hand, rel=1e-5)


def test_dec_makes_clusters_denser(pretrained):
    history = History()
    run("dec", pretrained, epochs=6, history=history)
    assert history[-1]["loss"] < history[0]["loss"]


def test_dec_stops_when_labels_rest(pretrained):
    history = History()
    run("dec", pretrained, epochs=50, history=history)
    assert len(history) < 50
    assert history[-1]["changed"] < 0.001


# DAC


def test_label_features_are_not_negative_and_of_unit_length():
    outputs = torch.randn(9, 4)
    features = label_features(outputs)
    assert (features >= 0).all()
    torch.testing.assert_close(features.norm(dim=1), torch.ones(9))
    torch.testing.assert_close(features, outputs.exp() / outputs.exp().norm(dim=1, keepdim=True))


def test_pair_loss_is_the_squared_error_as_written():
    features = label_features(torch.randn(5, 3)).double()
    same = (torch.rand(5, 5) > 0.5).double()
    errors = [float(features[i] @ features[j] - same[i, j]) ** 2 for i in range(5) for j in range(5)]
    assert float(pair_loss(features, same)) == pytest.approx(sum(errors) / 25)


def test_what_is_alike_enough_widens_from_block_to_block(pretrained):
    history = History()
    run("dac", pretrained, history=history)
    limits = [row["threshold"] for row in history]
    assert limits == sorted(limits, reverse=True)
    assert threshold(0) == 0.9
    assert threshold(1) == 0.5 < limits[-1] < threshold(1 / 2)


def test_outputs_of_dac_cannot_rise_for_all_samples():
    head = cluster_head(6, 4)
    normalisations = [layer for layer in head if isinstance(layer, torch.nn.BatchNorm1d)]
    assert not any(weight.requires_grad for layer in normalisations for weight in layer.parameters())
    before_relu = head[:-1](torch.randn(50, 6))
    torch.testing.assert_close(before_relu.mean(dim=0), torch.zeros(4), atol=1e-5, rtol=0)


def test_dac_learns_from_the_views_it_is_given(pretrained):
    calls = []

    def own(x, generator):
        calls.append(len(x))
        return x

    run("dac", pretrained, epochs=1, views=own)
    assert sum(calls) >= len(PROBLEM.new_rows)


# Pairwise


def test_partners_are_of_the_same_and_of_another_class():
    targets = torch.tensor([0, 1, 1, 2, 0, 1, 2, 2, 3])
    for seed in range(20):
        same, other = draw_pairs(targets, torch.Generator().manual_seed(seed))
        assert torch.equal(targets[same], targets)
        assert (targets[other] != targets).all()
        assert ((same != torch.arange(9)) | (targets == 3)).all()  # only a class of one is paired with itself


def test_a_pair_is_alike_whichever_comes_first():
    with seeded(0):
        head, z = PairHead(4), torch.randn(6, 4)
        torch.nn.init.normal_(head.weights)
    table = similarity(head, z, z)
    torch.testing.assert_close(table, table.T)
    distance = sum(
        abs(float(w)) * abs(float(a - b)) for w, a, b in zip(head.weights.detach(), z[2], z[4], strict=True)
    )
    assert float(table[2, 4]) == pytest.approx(1 / (1 + math.exp(distance - 4.0)), rel=1e-4)


def test_the_tree_is_cut_into_large_branches_and_outliers_are_left_over():
    points = np.concatenate([np.linspace(0, 1, 40), np.linspace(10, 11, 40), [100.0]])
    distances = np.abs(points[:, None] - points)
    labels = cut_tree(distances, 2)
    assert (labels[:40] == labels[0]).all()
    assert (labels[40:80] == 1 - labels[0]).all()
    assert labels[80] == -1
    assert set(cut_tree(distances[:3, :3], 3).tolist()) == {0, 1, 2}  # without large branches, any size


# SSCD


def test_static_leaves_the_features_as_they_are(pretrained):
    result = run("sscd", pretrained)
    assert all(torch.equal(v, pretrained.state_dict()[k]) for k, v in result.network.state_dict().items())


def test_dynamic_takes_the_best_separated_cluster_first(pretrained):
    z = torch.cat([torch.zeros(20, 2), torch.tensor([[3.0, 0.0]]).repeat(20, 1), torch.full((20, 2), 50.0)])
    z += 0.5 * torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(3).repeat_interleave(20)
    assert int(separation(z, labels, 3).argmax()) == 2
    history = History()
    run("sscd-dynamic", pretrained, epochs=4, history=history)
    assert [row["found"] for row in history] == [1, 1, 2, 2]
    assert ["separation" in row for row in history] == [True, False, True, False]


@pytest.mark.parametrize("k", [1, 2])
def test_dynamic_finds_one_class_and_two(k, pretrained):
    result = run("sscd-dynamic", pretrained, options={"n_new_classes": k})
    assert set(result.pseudo_labels.tolist()) == set(range(k))


def test_separation_is_the_simple_silhouette_as_written():
    z, labels = torch.randn(30, 3), torch.arange(30) % 3
    centers = torch.stack([z[labels == c].mean(dim=0) for c in range(3)])
    for c in range(3):
        values = []
        for point in z[labels == c]:
            far = sorted(float((point - centers[d]).norm()) for d in range(3) if d != c)
            values.append(1 - float((point - centers[c]).norm()) / far[0])
        assert float(separation(z, labels, 3)[c]) == pytest.approx(np.mean(values), rel=1e-4)


def test_the_novelty_detector_accepts_the_given_share_of_old_samples():
    logits = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    for kept in (0.5, 0.9, 0.95, 1.0):
        novel = is_novel(logits, novelty_threshold(logits, kept))
        assert int((~novel).sum()) == math.ceil(kept * 200)
    with pytest.raises(ValueError, match="kept must be"):
        novelty_threshold(logits, 0.0)
    with pytest.raises(ValueError, match="needs held-out old samples"):
        novelty_threshold(logits[:0])


def test_new_classes_are_more_novel_than_old_ones(pretrained):
    logits = embed(pretrained, PROBLEM.inputs, normalize=False).logits
    old, new = logits[PROBLEM.old_rows], logits[PROBLEM.new_rows]
    threshold = novelty_threshold(old[::2])
    assert is_novel(new, threshold).float().mean() > 3 * is_novel(old[1::2], threshold).float().mean()
    assert max_softmax_probability(torch.zeros(1, 4)).item() == 0.25


# The plain settings


def digits_0_to_2():
    from sklearn.datasets import load_digits

    digits = load_digits()
    few = digits.target < 3
    return (digits.images[few] * (255 / 16)).astype(np.uint8), digits.target[few]


def test_plain_dec_finds_digits_without_labels(monkeypatch):
    """k-means on the pixels gets .92 of them right."""
    monkeypatch.setattr("cdknet.methods.dec.LAYERS", (100, 100, 400, 10))  # a fifth of DEC's, for speed
    X, y = digits_0_to_2()
    found = plain_dec(X, 3, layer_epochs=3, autoencoder_epochs=25, epochs=10, batch_size=64).pseudo_labels
    assert clustering_accuracy(y, found.numpy()) > 0.93


def test_the_codes_of_the_autoencoder_may_be_negative_and_its_loss_falls():
    from cdknet.inputs.arrays import Inputs
    from cdknet.methods.dec import learn_autoencoder

    X, _ = digits_0_to_2()
    history = History()
    network = learn_autoencoder(X, (1, 3), FitContext(history=history))
    assert [row["layer"] for row in history] == [1, 2, 3, 4, 0, 0, 0]
    assert history[-1]["loss"] < history[-3]["loss"]
    codes = embed(network, Inputs(X), normalize=False).features
    assert codes.shape == (len(X), 10)
    assert (codes < 0).any()


@pytest.mark.slow
def test_plain_dac_needs_no_old_class():
    X = np.random.default_rng(0).integers(0, 255, (150, 28, 28), dtype=np.uint8)
    result = plain_dac(X, 4, width=2, epochs=1)
    assert result.centers.shape == (4, 4)
    assert set(result.pseudo_labels.tolist()) <= {0, 1, 2, 3}
