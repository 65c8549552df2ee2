"""The three stages: one contract for all, then what each of them promises."""

import math
import sys

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering

from cdknet.history import History
from cdknet.metrics import clustering_accuracy
from cdknet.networks import build_network, embed, unit_length
from cdknet.options import DiscoverOptions, ExpandOptions, PretrainOptions
from cdknet.spectral import spectral_embedding
from cdknet.stages import discover, expand, pretrain
from cdknet.stages.discover import (
    agreed_labels,
    class_means,
    cluster,
    cluster_term,
    label_term,
    spectral_labels,
)
from cdknet.stages.heads import (
    EVENNESS,
    SHARPNESS,
    TEMPERATURE,
    Heads,
    balanced_targets,
    consensus,
    distilled_loss,
    head_losses,
    swapped_loss,
)
from cdknet.stages.loop import batches, derive_seed, seeded, stratified
from cdknet.stages.plus import contrastive_loss, discover_plus, one_cycle, suited, two_cycles

from contracts import MemoryCheckpoint, blobs_for_stages

PROBLEM, TRUTH = blobs_for_stages()
FIRST = {"pretrain_epochs": 4, "early_stopping": False}
SECOND = {"n_new_classes": 2, "discover_epochs": 4, "turn_tolerance": 0.0, "method": "cd-knet"}
PLUS = {"n_new_classes": 2, "view_steps": 4, "head_steps": 4, "view_batch_size": 64}


def first(**kwargs):
    with seeded(0):
        network = build_network((6,), 3)
    options = PretrainOptions(**{**FIRST, **kwargs.pop("options", {})})
    return pretrain(network, PROBLEM, options, **kwargs)


def second(**kwargs):
    options = DiscoverOptions(**{**SECOND, **kwargs.pop("options", {})})
    return discover(first().network, PROBLEM, options, **kwargs)


def third(**kwargs):
    options = ExpandOptions(**{"expand_epochs": 4, "expand_steps": 0, **kwargs.pop("options", {})})
    return expand(second(), PROBLEM, options, **kwargs)


def plus(**kwargs):
    """Stage 2 of CD-KNet+."""
    with seeded(0):
        network = build_network((6,), 3, architecture="small")
    options = DiscoverOptions(**{**PLUS, **kwargs.pop("options", {})})
    return discover_plus(network, PROBLEM, options, **kwargs)


def led(**kwargs):
    """The same where the old labels lead: two epochs of them, two with heads."""
    return plus(options={"lead": "labels", "label_epochs": 5, **kwargs.pop("options", {})}, **kwargs)


STAGES = {"pretrain": first, "discover": second, "plus": plus, "led": led, "expand": third}
NAMES = {name: "discover" if name in ("plus", "led") else name for name in STAGES}  # in the history
every_stage = pytest.mark.parametrize("stage", STAGES)


def weights(result):
    return torch.cat([p.flatten() for p in result.network.state_dict().values()])


def without_times(history):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history]


# The contract


@every_stage
def test_history_has_a_flat_row_an_epoch_that_watchers_saw(stage):
    seen, ticks = [], []

    class Watcher:
        def __call__(self, row):
            seen.append(row)

        def progress(self, stage, done, total):
            ticks.append((stage, done, total))

    history = History([Watcher()])
    STAGES[stage](history=history)
    rows = [row for row in history if row["stage"] == NAMES[stage]]
    assert [row["epoch"] for row in rows] == list(range(1, len(rows) + 1))
    assert seen == list(history)
    assert all(isinstance(v, (int, float, str)) for row in rows for v in row.values())
    assert (NAMES[stage], 4, 4) in ticks


@every_stage
def test_a_watcher_that_says_true_ends_the_stage(stage):
    history = History([lambda row: row["stage"] == NAMES[stage] and row["epoch"] == 2])
    STAGES[stage](history=history)
    assert max(row["epoch"] for row in history if row["stage"] == NAMES[stage]) == 2


@every_stage
def test_the_seed_decides_everything(stage):
    same, again, other = (STAGES[stage](seed=s) for s in (5, 5, 6))
    assert torch.equal(weights(same), weights(again))
    assert not torch.equal(weights(same), weights(other))


@every_stage
def test_the_callers_generators_are_left_alone(stage):
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    STAGES[stage]()
    ours = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    assert torch.equal(ours[0], torch.rand(3))
    assert np.array_equal(ours[1], np.random.rand(3))  # noqa: NPY002


@every_stage
@pytest.mark.parametrize("die_at", [1, 3, 4])
def test_a_stage_killed_anywhere_and_resumed_ends_the_same(stage, die_at):
    whole_history, history = History(), History()
    whole = STAGES[stage](history=whole_history)
    dying = MemoryCheckpoint(die_at)
    with pytest.raises(KeyboardInterrupt):
        STAGES[stage](checkpoint=dying)
    dying.die_at = None
    resumed = STAGES[stage](checkpoint=dying, history=history)
    assert torch.equal(weights(whole), weights(resumed))
    assert without_times(whole_history) == without_times(history)


def test_the_networks_given_are_not_changed():
    with seeded(0):
        network = build_network((6,), 3)
    for stage in (
        lambda given: pretrain(given, PROBLEM, PretrainOptions(pretrain_epochs=1)),
        lambda given: discover(given, PROBLEM, DiscoverOptions(**{**SECOND, "discover_epochs": 1})),
        lambda given: discover_plus(given, PROBLEM, DiscoverOptions(**PLUS)),
        lambda given: expand(
            second()._replace(network=given), PROBLEM, ExpandOptions(expand_epochs=1, expand_steps=0)
        ),
    ):
        before = {k: v.clone() for k, v in network.state_dict().items()}
        after = stage(network).network
        assert all(torch.equal(v, network.state_dict()[k]) for k, v in before.items())
        assert after is not network


@every_stage
def test_trouble_with_numbers_names_stage_and_epoch(stage):
    wild = {
        "pretrain": lambda: first(options={"learning_rate": 1e30}),
        "plus": lambda: plus(options={"discover_learning_rate": 1e30}),
        "led": lambda: led(options={"discover_learning_rate": 1e30}),
        "discover": lambda: second(options={"discover_learning_rate": 1e30}),
        "expand": lambda: third(learning_rate=1e30),
    }
    with pytest.raises(FloatingPointError, match=f"Stage {NAMES[stage]}, epoch"):
        wild[stage]()


def test_a_stage_killed_after_its_last_epoch_knows_that_it_was_the_last():
    """It stopped because U stopped turning; resumed, it must not run on to the limit."""
    early = {"discover_epochs": 30, "turn_tolerance": 0.03}
    history = History()
    whole = second(options=early, history=history)
    dying = MemoryCheckpoint(die_at=len(history))
    with pytest.raises(KeyboardInterrupt):
        second(options=early, checkpoint=dying)
    dying.die_at = None
    assert torch.equal(weights(second(options=early, checkpoint=dying)), weights(whole))


# Stage 1


def test_pretraining_learns_the_old_classes():
    result = first(options={"pretrain_epochs": 30, "early_stopping": False})
    logits = embed(result.network, PROBLEM.inputs, PROBLEM.old_rows, normalize=False).logits
    assert (logits.argmax(1) == PROBLEM.old_targets).float().mean() > 0.95
    assert result.validation_accuracy > 0.9


def test_early_stopping_keeps_the_best_epoch_and_off_keeps_the_last():
    history = History()
    on = {"pretrain_epochs": 200, "early_stopping": True}
    stopped = first(options={**on, "patience": 3, "enough": 1.0}, history=history)
    accuracies = [row["validation_accuracy"] for row in history]
    assert stopped.validation_accuracy == accuracies[stopped.best_epoch - 1] == max(accuracies)
    assert len(accuracies) == stopped.best_epoch + 3 or accuracies[-1] == 1
    assert len(accuracies) < 200
    history = History()
    first(options={**on, "patience": 50, "enough": 0.5}, history=history)
    accuracies = [row["validation_accuracy"] for row in history]
    assert accuracies[-1] >= 0.5 > max(accuracies[:-1], default=0)
    history = History()
    fixed = first(options={"pretrain_epochs": 6, "early_stopping": False}, history=history)
    assert (len(history), fixed.best_epoch) == (6, 6)


# Stage 2


@pytest.mark.parametrize(("n_classes", "each"), [(3, 40), (10, 30), (50, 12)])
def test_the_terms_of_eq_9_weigh_rows_of_equal_length_however_many_classes(n_classes, each):
    """When every class is one point: r - 1 eigenvalues of 1; r/m (1 - 1/m) for the labels of m classes."""
    labels = torch.arange(n_classes).repeat(each)
    Y = torch.eye(n_classes)[labels]
    n = len(Y)
    U = spectral_embedding(Y, n_classes, 0.1).vectors
    scaled = math.sqrt(n / n_classes) * U
    assert float(scaled.square().sum(dim=1).mean()) == pytest.approx(float(Y.square().sum(dim=1).mean()))
    assert float(cluster_term(Y, U, 0.1, n_rows=n)) == pytest.approx(n_classes - 1, rel=0.05)
    assert float(label_term(Y, Y, 0.1, n_classes=n_classes)) == pytest.approx(1 - 1 / n_classes, rel=0.05)
    half = torch.randperm(n, generator=torch.Generator().manual_seed(0))[: n // 2]
    assert float(cluster_term(Y[half], U[half], 0.1, n_rows=n)) == pytest.approx(n_classes - 1, rel=0.35)


@pytest.mark.parametrize("label_weight", [0.0, 0.5, 10.0, float("inf")])
def test_well_separated_classes_are_found_for_every_label_weight(label_weight):
    result = second(options={"label_weight": label_weight, "discover_epochs": 8})
    truth = TRUTH[PROBLEM.new_rows.numpy()]
    assert clustering_accuracy(truth, result.pseudo_labels.numpy()) > 0.95


@pytest.mark.parametrize(
    ("label_weight", "columns"),
    [(0.0, {"hsic_U"}), (1.0, {"hsic_U", "hsic_Y"}), (float("inf"), {"hsic_Y"})],
)
def test_the_label_weight_decides_which_terms_are_there(label_weight, columns):
    history = History()
    second(options={"label_weight": label_weight}, history=history)
    assert {"hsic_U", "hsic_Y"} & history[-1].keys() == columns


def test_the_objective_rises():
    """With U and sigma as they are at the start, ascent on theta raises HSIC(f(X), U)."""
    from cdknet.hsic import Factor, gaussian_kernel, hsic, normalize_by_degree
    from cdknet.spectral import median_distance, spectral_embedding

    start = first().network
    options = DiscoverOptions(**{**SECOND, "discover_epochs": 1, "label_weight": 0.0})
    end = discover(start, PROBLEM, options)
    rows = end.U_rows
    z0 = embed(start, PROBLEM.inputs, rows, normalize=True).features
    sigma = options.sigma_scale * median_distance(z0)
    U = Factor(spectral_embedding(z0, 5, sigma).vectors)
    z1 = embed(end.network, PROBLEM.inputs, rows, normalize=True).features
    values = [hsic(normalize_by_degree(gaussian_kernel(z, sigma)), U) for z in (z0, z1)]
    assert values[1] > values[0]


def test_U_belongs_to_the_final_features_and_is_orthonormal():
    from cdknet.spectral import spectral_embedding

    result = second()
    z = embed(result.network, PROBLEM.inputs, result.U_rows, normalize=True).features
    again = spectral_embedding(z, 5, result.sigma).vectors
    torch.testing.assert_close(result.U, again)
    torch.testing.assert_close(result.U.T @ result.U, torch.eye(5), atol=1e-4, rtol=0)


def test_it_stops_when_U_stops_turning():
    history = History()
    second(options={"discover_epochs": 50, "turn_tolerance": 0.02}, history=history)
    turns = [row["turn"] for row in history]
    assert turns[-1] < 0.02
    assert all(turn >= 0.02 for turn in turns[:-1])
    assert len(turns) < 50


def test_the_subsample_has_the_asked_share_of_old_and_new():
    result = second(options={"subsample": 0.5, "min_subsample": 0})
    old = torch.isin(result.U_rows, PROBLEM.old_rows)
    assert (int(old.sum()), int((~old).sum())) == (72, 48)
    assert len(second(options={"subsample": 0.01, "min_subsample": 30}).U_rows) == 60


def test_landmarks_stand_in_where_the_kernel_would_not_fit():
    result = second(options={"memory_limit": 240 * 100 * 4 * 3 / 1e9, "discover_epochs": 8})
    truth = TRUTH[PROBLEM.new_rows.numpy()]
    assert clustering_accuracy(truth, result.pseudo_labels.numpy()) > 0.95


@pytest.mark.parametrize(
    "clusterer", [AgglomerativeClustering(2), lambda z, k, seed: (z[:, 0] > z[:, 0].mean()).astype(int)]
)
def test_other_clusterers_can_be_passed_in(clusterer):
    assert set(second(clusterer=clusterer).pseudo_labels.tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("clusterer", "message"),
    [
        (lambda z, k, seed: np.zeros(3, dtype=int), "one whole number a sample"),
        (lambda z, k, seed: np.full(len(z), k), "must return labels in 0"),
        (lambda z, k, seed: np.full(len(z), 0.5), "one whole number a sample"),
    ],
)
def test_a_clusterer_that_breaks_its_promise_is_named(clusterer, message):
    with pytest.raises(ValueError, match=message):
        cluster(torch.randn(10, 2), 2, clusterer)


def test_centres_are_the_means_of_their_members():
    z, labels = torch.randn(20, 3), torch.arange(20) % 4
    means = class_means(z, labels, 5)
    for c in range(4):
        torch.testing.assert_close(means[c], z[labels == c].mean(0))
    torch.testing.assert_close(means[4], z.mean(0))


def test_a_graph_of_neighbours_finds_the_classes_too():
    result = second(options={"kernel": "neighbors", "discover_epochs": 8})
    truth = TRUTH[PROBLEM.new_rows.numpy()]
    assert clustering_accuracy(truth, result.pseudo_labels.numpy()) > 0.95


# Stage 2 of CD-KNet+


def test_heads_and_U_enter_after_the_steps_on_views():
    history = History()
    plus(
        options={"spectral_weight": 0.3}, history=history
    )  # 96 new samples in batches of 64: two steps an epoch
    assert [row["stage"] for row in history] == ["discover"] * 4
    assert ["heads" in row for row in history] == [False, False, True, True]
    assert ["hsic_U" in row for row in history] == [False, False, True, True]
    assert ["labels" in row for row in history] == [True, True, False, False]  # then heads see them
    assert all("views" in row for row in history)


def test_what_is_left_open_follows_the_kind_of_sample_and_the_number_of_old_classes():
    picture, recording = (suited(DiscoverOptions(), shape, 5) for shape in ((28, 28), (2, 198)))
    assert (picture.lead, picture.view_weight, picture.heads) == ("views", 3, 4)
    assert (recording.lead, recording.view_weight, recording.heads) == ("labels", 0, 0)  # not its message
    many = suited(DiscoverOptions(), (28, 28), 30)
    assert (many.lead, many.view_weight, many.heads) == ("labels", 0, 4)
    asked = suited(DiscoverOptions(view_weight=1.0, heads=2, lead="views"), (2, 198), 30)
    assert (asked.lead, asked.view_weight, asked.heads) == ("views", 1, 2)
    assert suited(DiscoverOptions(label_weight=0.0), (28, 28), 30).lead == "views"
    with pytest.raises(ValueError, match=r"label_weight must be above 0 where labels lead\. Got 0"):
        suited(DiscoverOptions(label_weight=0.0, lead="labels"), (28, 28), 30)


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
    assert 3 * n_old <= sum(seen) < 4 * n_old + 200  # nothing is left to ask of new samples: none is seen
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
        assert found.votes == (options["readout"] == "spectral")  # and where ways agree, the default


def on_sphere(generator, *classes):
    """Rows of unit length, 300 a class. A class is a list of blobs, (centre, width)."""

    def blob(centre, width, n):
        return torch.tensor(centre) + width * torch.randn(n, len(centre), generator=generator)

    z = torch.cat([blob(*one, 300 // len(blobs)) for blobs in classes for one in blobs])
    return unit_length(z), np.repeat(np.arange(len(classes)), 300)


def test_agreement_does_not_cut_a_class_in_two_for_two_others_that_touch():
    halves = [([1.0, 0.18, 0.0, 0.0], 0.03), ([1.0, -0.18, 0.0, 0.0], 0.03)]
    touching = [([0.0, 1.0, 0.45, 0.0], 0.13)], [([0.0, 1.0, -0.45, 0.0], 0.13)]
    z, truth = on_sphere(torch.Generator().manual_seed(0), halves, *touching)
    assert clustering_accuracy(truth, agreed_labels(z, 3).numpy()) > 0.98
    assert clustering_accuracy(truth, spectral_labels(z, 3, neighbors=30).numpy()) < 0.8


def test_agreement_follows_long_classes_that_lie_side_by_side():
    generator = torch.Generator().manual_seed(0)
    turn = 2.4 * torch.rand(300, generator=generator)
    arcs = [torch.stack([turn.cos(), turn.sin(), torch.full_like(turn, h)], dim=1) for h in (0.4, -0.4)]
    z = torch.cat(arcs) + 0.03 * torch.randn(600, 3, generator=generator)
    truth = np.repeat([0, 1], 300)
    assert clustering_accuracy(truth, agreed_labels(unit_length(z), 2).numpy()) > 0.98
    assert clustering_accuracy(truth, cluster(unit_length(z), 2).numpy()) < 0.6


def test_where_there_are_many_samples_some_are_labelled_and_the_others_follow(monkeypatch):
    monkeypatch.setattr(sys.modules["cdknet.stages.discover"], "MOST_VOTERS", 300)
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
    heads = Heads(8, 2, 2, plain=3, over=1)
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


# Stage 3


@pytest.mark.parametrize("strategy", ["last", "last-two", "all"])
def test_expansion_learns_the_pseudo_labels_and_keeps_the_old_classes(strategy):
    result = third(options={"expand_epochs": 50, "expansion": strategy})
    logits = embed(result.network, PROBLEM.inputs, normalize=False).logits
    assert logits.shape[1] == 5
    assert (logits[PROBLEM.old_rows].argmax(1) == PROBLEM.old_targets).float().mean() > 0.95
    assert clustering_accuracy(TRUTH, logits.argmax(1).numpy()) > 0.95


def test_expansion_shows_views_where_there_are_some():
    calls = []

    def own(x, generator):
        calls.append(len(x))
        return x + 0.1 * torch.randn(x.shape, generator=generator)

    options = ExpandOptions(expand_epochs=2, expand_steps=0)
    result = expand(second(), PROBLEM, options, views=own)
    assert sum(calls) == 2 * (len(PROBLEM.new_rows) + len(PROBLEM.old_rows))  # all of the old ones too
    assert not torch.equal(weights(result), weights(expand(second(), PROBLEM, options)))


def test_layers_that_did_not_grow_move_slowly():
    start = second()
    moved = {}
    for rate in (0.0, 0.1, 1.0):
        end = expand(start, PROBLEM, ExpandOptions(expand_epochs=2, expand_steps=0, slow_rate=rate))
        pairs = zip(start.network.trunk.parameters(), end.network.trunk.parameters(), strict=True)
        moved[rate] = sum(float((a - b).detach().square().sum()) for a, b in pairs)
    assert moved[0.0] == 0 < moved[0.1] < moved[1.0] / 5


def test_a_small_set_gets_at_least_so_many_steps():
    history = History()
    third(options={"expand_steps": 11}, history=history)  # 96 new and 30 old samples: one step an epoch
    assert len(history) == 11
    history = History()
    third(options={"expand_steps": 11}, history=history, batch_size=63)  # two steps an epoch
    assert len(history) == 6


def test_no_expansion_is_no_stage():
    with pytest.raises(ValueError, match="Leave the stage out"):
        third(options={"expansion": "none"})


# What they share


def test_batches_cover_every_row_once_and_none_is_a_single_one():
    for n in (2, 5, 64, 65, 100, 129):
        parts = batches(n, 32, torch.Generator().manual_seed(0))
        assert torch.cat(parts).sort().values.tolist() == list(range(n))
        assert min(map(len, parts)) >= 2


def test_stratified_draws_a_share_of_each_class_and_leaves_some():
    targets = torch.tensor([0] * 40 + [1] * 20 + [2])
    drawn = stratified(targets, 0.1, torch.Generator().manual_seed(0), leave=1)
    assert torch.bincount(targets[drawn], minlength=3).tolist() == [4, 2, 0]


def test_seeds_for_different_purposes_differ():
    seeds = {derive_seed(s, stage, epoch) for s in range(3) for stage in ("a", "b") for epoch in range(5)}
    assert len(seeds) == 30
