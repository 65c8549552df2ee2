"""Stage 2 of CD-KNet+: its terms, its heads, and how samples are clustered."""

import sys

import numpy as np
import pytest
import torch

from cdknet import ClassDiscovery
from cdknet.core.clustering import Case, agreed_labels, cluster, follow_gaps, spectral_labels
from cdknet.core.hsic import unit_length
from cdknet.core.metrics import clustering_accuracy
from cdknet.inputs.kind import kind_of
from cdknet.methods.base import Situation
from cdknet.methods.cdknet_plus import contrastive_loss, one_cycle, resolve, two_cycles
from cdknet.methods.heads import (
    EVENNESS,
    SHARPNESS,
    TEMPERATURE,
    Heads,
    balanced_targets,
    consensus,
    distilled_loss,
    head_losses,
    margin_of,
    nearest_partners,
    paired_loss,
    swapped_loss,
)
from cdknet.nets.network import embed
from cdknet.options import CDKNetPlusOptions
from cdknet.training.history import History

from stagemaker import PROBLEM, TRUTH, plus


def suited(shape, n_old_classes, **options):
    """The resolved options for samples of a shape."""
    return resolve(CDKNetPlusOptions(**options), Situation(kind_of(shape), n_old_classes))


def along_gaps(x, labels, n_clusters):
    """The labels, or those of `follow_gaps` in their place."""
    found = follow_gaps(Case(x, n_clusters, x, 10, 0), labels)
    return labels if found is None else found.labels


def test_heads_and_U_enter_after_the_steps_on_views():
    history = History()
    # 96 new samples in batches of 64: two steps per epoch
    plus(options={"spectral_weight": 0.3}, history=history)
    assert [row["stage"] for row in history] == ["discover"] * 4
    assert ["heads" in row for row in history] == [False, False, True, True]
    assert ["hsic_U" in row for row in history] == [False, False, True, True]
    assert ["labels" in row for row in history] == [True, True, False, False]  # then the heads use them
    assert all("views" in row for row in history)


def test_what_is_left_open_follows_the_kind_of_sample_and_the_number_of_old_classes():
    picture, recording = (suited(shape, 5) for shape in ((28, 28), (2, 198)))
    assert (picture.lead, picture.view_weight, picture.heads) == ("views", 3, 4)
    assert (recording.lead, recording.view_weight, recording.heads) == ("labels", 0, 0)  # sender, not message
    many = suited((28, 28), 30)
    assert (many.lead, many.view_weight, many.heads) == ("labels", 0, 4)
    asked = suited((2, 198), 30, view_weight=1.0, heads=2, lead="views")
    assert (asked.lead, asked.view_weight, asked.heads) == ("views", 1, 2)
    assert suited((28, 28), 30, label_weight=0.0).lead == "views"
    with pytest.raises(ValueError, match=r"label_weight must be above 0 where labels lead\. Got 0"):
        suited((28, 28), 30, label_weight=0.0, lead="labels")


def test_where_labels_lead_each_part_has_its_own_cycle_of_the_rate():
    shares = torch.linspace(0, 1, 101).tolist()
    rates = [two_cycles(share, 0.6) for share in shares]
    assert max(rates) == pytest.approx(1)
    assert max(rates[60:]) == pytest.approx(0.5, abs=0.01)
    assert max(rates[59], rates[100]) < 0.01
    assert rates[:60] == [one_cycle(share / 0.6) for share in shares[:60]]
    assert two_cycles(1.0, 1.0) == 0  # a single part, at its end


def test_where_labels_lead_they_are_learned_first_and_alone():
    seen, history = [], History()

    def own(x, generator):
        seen.append(len(x))
        return x

    n_old = len(PROBLEM.old_rows)
    plus(views=own, options={"lead": "labels", "label_epochs": 3}, history=history)
    names = [set(row) - {"stage", "epoch", "seconds"} for row in history]
    led = names.index({"heads"})
    assert led > 0
    assert names == [{"labels"}] * led + [{"heads"}] * (len(names) - led)
    seen.clear()
    network = plus(views=own, options={"lead": "labels", "label_epochs": 3, "heads": 0}).network
    assert 3 * n_old <= sum(seen) < 4 * n_old + 200  # no term uses new samples, so none is seen
    assert not network.training


def test_a_term_without_weight_is_not_there():
    history = History()
    plus(options={"view_weight": 0.0, "heads": 0}, history=history)
    names = {name for row in history for name in row} - {"stage", "epoch", "seconds"}
    assert names == {"labels"}


def test_a_users_own_views_are_used():
    calls = []

    def own(x, generator):
        calls.append(len(x))
        return x + 0.1 * torch.randn(x.shape, generator=generator)

    plus(views=own, options={"head_steps": 0})
    assert calls[:3] == [64, 64, 32]  # two views of new samples, one of half as many old ones


def test_plus_finds_the_classes():
    result = plus(options={"view_steps": 60, "head_steps": 60})
    truth = TRUTH[PROBLEM.new_rows.numpy()]
    assert clustering_accuracy(truth, result.pseudo_labels.numpy()) > 0.95
    assert not hasattr(result.network, "heads")


@pytest.mark.parametrize(
    "options",
    [
        {"readout": "spectral"},
        {"readout": "k-means"},
        {"readout": "heads"},
        {"head_targets": "sharpened"},
        {"head_targets": "paired"},
        {"view_term": "contrast"},
        {"heads": 0},
        {"view_weight": 0.0},
    ],
    ids=str,
)
def test_plus_finds_the_classes_in_other_ways_too(options):
    found = plus(options={"view_steps": 60, "head_steps": 60, **options})
    truth = TRUTH[PROBLEM.new_rows.numpy()]
    assert clustering_accuracy(truth, found.pseudo_labels.numpy()) > 0.95
    if "readout" in options:
        assert found.votes == (options["readout"] == "spectral")  # the default "agreed" votes as well


def on_sphere(generator, *classes):
    """Rows of unit length, 300 per class. A class is a list of blobs, (centre, width)."""

    def blob(centre, width, n):
        return torch.tensor(centre) + width * torch.randn(n, len(centre), generator=generator)

    z = torch.cat([blob(*one, 300 // len(blobs)) for blobs in classes for one in blobs])
    return unit_length(z), np.repeat(np.arange(len(classes)), 300)


def test_no_class_is_split_for_two_others_that_touch():
    halves = [([1.0, 0.18, 0.0, 0.0], 0.03), ([1.0, -0.18, 0.0, 0.0], 0.03)]
    touching = [([0.0, 1.0, 0.45, 0.0], 0.13)], [([0.0, 1.0, -0.45, 0.0], 0.13)]
    z, truth = on_sphere(torch.Generator().manual_seed(0), halves, *touching)
    assert clustering_accuracy(truth, agreed_labels(z, 3).numpy()) > 0.98
    assert clustering_accuracy(truth, spectral_labels(z, 3, neighbors=30).numpy()) > 0.98


def test_a_few_outliers_are_no_class_for_which_two_others_are_merged():
    """Outliers are hardly connected, so separating them has a low split affinity, but is not better."""
    generator, axes = torch.Generator().manual_seed(0), torch.eye(16)
    centres = [axes[0], axes[1] + 0.3 * axes[2], axes[1] - 0.3 * axes[2]]
    z = torch.cat([centre + 0.15 * torch.randn(200, 16, generator=generator) for centre in centres])
    outliers = -axes[1] + 0.05 * torch.randn(18, 16, generator=generator)
    labels = agreed_labels(unit_length(torch.cat([z, outliers])), 3)
    assert clustering_accuracy(np.repeat([0, 1, 2], 200), labels[:600].numpy()) > 0.95


def test_labels_keep_to_gaps_that_the_samples_themselves_show():
    """Old classes may teach a network to ignore what separates new ones."""
    generator = torch.Generator().manual_seed(0)
    truth = np.repeat([0, 1], [120, 30])
    x = torch.randn(150, 4, generator=generator) + 8 * torch.from_numpy(truth)[:, None]
    across = (x[:, 0] - x[:, 1] > 0).long()  # as wrong as can be
    assert clustering_accuracy(truth, along_gaps(x, across, 2).numpy()) == 1
    nearly = torch.from_numpy(truth).clone()
    nearly[:2] = 1  # nearly right: the learned labels stay
    assert torch.equal(along_gaps(x, nearly, 2), nearly)
    one = torch.randn(300, 4, generator=generator)
    halves = (one[:, 0] > 0).long()
    assert torch.equal(along_gaps(one, halves, 2), halves), "no gaps, nothing to follow"


def test_clumps_inside_classes_that_overlap_are_no_classes():
    """They have gaps around them, too; but the rest is many classes, and there are more clumps."""
    generator = torch.Generator().manual_seed(0)
    truth = np.repeat(np.arange(3), 400)
    x = torch.randn(1200, 6, generator=generator) + 2.5 * torch.eye(3, 6)[torch.from_numpy(truth)]
    for clump in range(4):  # 110 samples of one class, a little way off
        x[400 * (clump % 3) + 110 * (clump // 3) :][:110, 3:] += 30 * torch.eye(4, 3)[clump]
    given = torch.from_numpy(truth).clone()
    assert torch.equal(along_gaps(x, given, 3), given)
    one = torch.randn(1200, 6, generator=generator)  # the same clumps, without overlapping classes
    one[:110, 3] += 30
    one[110:220, 4] += 30
    whole = torch.from_numpy(np.repeat([0, 1, 2], [110, 110, 980]))
    across = (one[:, 0] > 0).long()
    assert clustering_accuracy(whole.numpy(), along_gaps(one, across, 3).numpy()) == 1


@pytest.mark.parametrize("yes", [1, 2, 100])
def test_a_number_that_says_nothing_hides_no_classes_among_columns_of_yes_and_no(yes):
    """Lights of a display of seven bars, one in ten wrong, and the month: it was what was found, more or less
    by what stood for a light.
    """
    rng = np.random.default_rng(0)
    codes = ("1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111")  # 0 to 6
    lights = np.array([[int(light) for light in code] for code in codes])
    truth = np.repeat(np.arange(7), 60)
    seen = np.where(rng.random((420, 7)) < 0.1, 1 - lights[truth], lights[truth])
    X = np.column_stack([rng.integers(1, 13, 420), np.where(seen == 1, yes, 0)]).astype(float)
    y = np.where(truth < 4, truth, -1)
    few = {"view_steps": 25, "head_steps": 50, "expansion": "none", "calibrate": False}
    model = ClassDiscovery(n_new_classes=3, random_state=0, **few).fit(X, y)
    assert clustering_accuracy(truth[y < 0], model.pseudo_labels_) > 0.75


def test_views_of_vectors_count_less_than_those_of_pictures():
    shapes = [(20,), (8, 8), (2, 64), (4, 4), (2, 20)]  # too small for a picture or a recording: vectors
    weights = {shape: suited(shape, 5).view_weight for shape in shapes}
    assert weights == {(20,): 1, (8, 8): 3, (2, 64): 0, (4, 4): 1, (2, 20): 1}
    assert suited((20,), 5, view_weight=2.0).view_weight == 2


@pytest.mark.slow
def test_a_table_with_clear_gaps_is_clustered_along_them():
    generator = np.random.default_rng(1)
    truth = generator.integers(0, 6, 700)
    centres = np.array([[0, 0], [10, 0], [0, 10], [10, 10], [5, 5], [20, 5]])
    X = centres[truth] + generator.normal(size=(700, 2))
    y = np.where(truth >= 4, -1, truth)
    model = ClassDiscovery(n_new_classes=2, random_state=0, calibrate=False).fit(X, y)
    assert clustering_accuracy(truth[y < 0], model.labels_[y < 0]) > 0.98


def test_agreement_follows_long_classes_that_lie_side_by_side():
    generator = torch.Generator().manual_seed(0)
    turn = 2.4 * torch.rand(300, generator=generator)
    arcs = [torch.stack([turn.cos(), turn.sin(), torch.full_like(turn, h)], dim=1) for h in (0.4, -0.4)]
    z = torch.cat(arcs) + 0.03 * torch.randn(600, 3, generator=generator)
    truth = np.repeat([0, 1], 300)
    assert clustering_accuracy(truth, agreed_labels(unit_length(z), 2).numpy()) > 0.98
    assert clustering_accuracy(truth, cluster(unit_length(z), 2).numpy()) < 0.6


def test_where_there_are_many_samples_some_are_labelled_and_the_others_follow(monkeypatch):
    monkeypatch.setattr(sys.modules["cdknet.core.clustering"], "MOST_VOTERS", 300)
    z, truth = on_sphere(torch.Generator().manual_seed(0), [([1.0, 0.0, 0.0], 0.1)], [([0.0, 1.0, 0.0], 0.1)])
    for label in (agreed_labels, spectral_labels):
        assert clustering_accuracy(truth, label(z, 2).numpy()) == 1


def test_the_network_that_plus_leaves_knows_the_old_classes():
    result = plus(options={"view_steps": 60, "head_steps": 20})
    logits = embed(result.network, PROBLEM.inputs, PROBLEM.old_rows, normalize=False).logits
    assert (logits.argmax(1) == PROBLEM.old_targets).float().mean() > 0.95


def test_labels_alone_are_not_for_plus():
    with pytest.raises(ValueError, match="finite"):
        plus(options={"label_weight": float("inf")})


def test_the_learning_rate_rises_and_falls_to_nothing():
    rates = [one_cycle(share) for share in np.linspace(0, 1, 101)]
    assert max(rates) == pytest.approx(1) == rates[30]
    assert rates[0] < 0.05
    assert rates[-1] < 0.001
    assert all(np.diff(rates[:31]) > 0)
    assert all(np.diff(rates[31:]) < 0)


def test_balanced_targets_are_distributions_and_even_over_the_classes():
    logits = 10 * torch.rand(400, 4, generator=torch.Generator().manual_seed(0))
    Q = balanced_targets(logits, rounds=50)
    torch.testing.assert_close(Q.sum(dim=1), torch.ones(400))
    torch.testing.assert_close(Q.mean(dim=0), torch.full((4,), 0.25), atol=1e-3, rtol=0)


def test_balanced_targets_leave_a_clear_and_even_answer_alone():
    logits = 10 * torch.eye(3).repeat(5, 1)
    torch.testing.assert_close(balanced_targets(logits), torch.eye(3).repeat(5, 1), atol=1e-4, rtol=0)


def test_a_class_that_nobody_chooses_gets_its_share():
    logits = torch.rand(90, 3, generator=torch.Generator().manual_seed(0))
    logits[:, 2] -= 5
    assert float(balanced_targets(logits, rounds=20)[:, 2].mean()) == pytest.approx(1 / 3, abs=0.01)


def test_swapped_loss_is_cross_entropy_of_one_view_against_the_other():
    generator = torch.Generator().manual_seed(0)
    old, new = torch.randn(8, 3, generator=generator), torch.randn(8, 2, generator=generator)
    answers = torch.cat([old, new], dim=1).log_softmax(dim=1)[:, 3:]
    first, second = balanced_targets(new[:4]), balanced_targets(new[4:])
    by_hand = [-(first[i] * answers[4 + i]).sum() - (second[i] * answers[i]).sum() for i in range(4)]
    torch.testing.assert_close(swapped_loss(old, new), torch.stack(by_hand).mean() / 2)


def test_distilled_loss_is_the_swapped_answer_less_the_entropy_of_the_mean():
    generator = torch.Generator().manual_seed(0)
    old, new = (torch.randn(8, k, generator=generator) for k in (3, 2))
    logits = torch.cat([old, new], dim=1)
    p, q = logits.softmax(dim=1), (logits * TEMPERATURE / SHARPNESS).softmax(dim=1)
    swapped = [-(q[i] * p[(i + 4) % 8].log()).sum() for i in range(8)]
    mean = p.mean(dim=0)
    by_hand = torch.stack(swapped).mean() + EVENNESS * (mean * mean.log()).sum()
    torch.testing.assert_close(distilled_loss(old, new), by_hand)


def test_distilled_loss_is_lowest_for_sure_even_and_steady_answers():
    sure = torch.eye(2).repeat(4, 1) * 100  # samples 0, 1, 0, 1 in two views
    none = torch.full((8, 1), -100.0)
    best = distilled_loss(none, sure)
    assert float(best) == pytest.approx(-EVENNESS * np.log(2), abs=1e-4)
    one_class = torch.tensor([[100.0, 0.0]]).repeat(8, 1)
    assert distilled_loss(none, one_class) > best
    assert distilled_loss(none, torch.zeros(8, 2)) > best


def test_partners_are_the_other_views_of_the_nearest_samples():
    z = torch.nn.functional.normalize(torch.randn(10, 3, generator=torch.Generator().manual_seed(0)))
    for i, partner in enumerate(nearest_partners(z).tolist()):
        mine = range(5) if i < 5 else range(5, 10)
        nearest = max((j for j in mine if j != i), key=lambda j: float(z[i] @ z[j]))
        assert partner == (nearest + 5) % 10


def test_paired_loss_is_the_formula_as_written():
    generator = torch.Generator().manual_seed(0)
    old, new = (torch.randn(8, k, generator=generator) for k in (3, 2))
    partners = torch.tensor([5, 4, 7, 6, 1, 0, 3, 2])
    p = torch.cat([old, new], dim=1).softmax(dim=1)
    by_hand = -torch.stack([(p[i] @ p[partners[i]]).log() for i in range(8)]).mean()
    mean = p.mean(dim=0)
    torch.testing.assert_close(paired_loss(old, new, partners), by_hand + (mean * mean.log()).sum())


def test_a_negative_margin_lets_old_classes_wait_while_new_ones_are_unsure():
    old, new, targets = torch.zeros(4, 2), torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])
    loss = [
        float(torch.nn.functional.cross_entropy(margin_of(old, new, targets, torch.tensor(u)), targets))
        for u in (0.0, 0.2, 0.5)
    ]
    assert loss[0] == pytest.approx(np.log(5), abs=1e-6)
    assert loss[0] > loss[1] > loss[2]


def test_contrastive_loss_asks_for_the_other_view():
    z = torch.nn.functional.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    by_hand = []
    for i in range(6):
        others = torch.tensor([float(z[i] @ z[j]) / 0.5 for j in range(6) if j != i])
        by_hand.append(others.logsumexp(0) - z[i] @ z[(i + 3) % 6] / 0.5)
    torch.testing.assert_close(contrastive_loss(z), torch.stack(by_hand).mean())


def test_heads_learn_and_agree_whatever_they_call_a_class():
    torch.manual_seed(0)
    centers = torch.nn.functional.normalize(torch.randn(4, 8), dim=1)
    z = torch.nn.functional.normalize(centers.repeat(30, 1) + 0.1 * torch.randn(120, 8), dim=1)
    truth = torch.arange(4).repeat(30)
    new, old = z[truth < 2], z[truth >= 2]
    heads = Heads(8, 2, [2, 2, 2, 6], plain=3)
    optimizer = torch.optim.Adam(heads.parameters(), lr=0.05)
    for _ in range(60):
        losses = head_losses(heads, torch.cat([new, new]), old, truth[truth >= 2] - 2, 1.0)
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
    assert len(losses) == 4
    found = consensus(heads, new, 2, restarts=3, seed=0)
    assert clustering_accuracy(truth[truth < 2].numpy(), found.numpy()) == 1
    assert (heads.old_logits(old).argmax(1) == truth[truth >= 2] - 2).all()


@pytest.mark.parametrize("sizes", [(200, 20, 20), (400, 100, 100)])
def test_new_classes_may_be_of_unequal_size(sizes):
    generator = np.random.default_rng(1)
    places = 4 * generator.normal(size=(7, 8))
    truth = np.repeat(np.arange(7), [100] * 4 + list(sizes))
    X = places[truth] + generator.normal(size=(len(truth), 8))
    y = np.where(truth < 4, truth, -1)
    few = {"view_steps": 25, "head_steps": 50, "expansion": "none", "calibrate": False}
    model = ClassDiscovery(n_new_classes=3, random_state=0, **few).fit(X, y)
    assert clustering_accuracy(truth[y < 0], model.labels_[y < 0]) > 0.98
