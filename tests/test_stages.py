"""The three stages: the contract that all share, then the properties of each."""

import math

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering

from cdknet.core.classifiers import class_means
from cdknet.core.clustering import cluster
from cdknet.core.metrics import clustering_accuracy
from cdknet.core.seeds import derive_seed, seeded
from cdknet.core.spectral import spectral_embedding
from cdknet.fit.expand import expand
from cdknet.fit.pipeline import taught_by
from cdknet.fit.pretrain import pretrain
from cdknet.methods import method_of
from cdknet.methods.cdknet import cluster_term, label_term
from cdknet.nets.architectures import build_network
from cdknet.nets.network import embed
from cdknet.training.context import FitContext
from cdknet.training.history import History
from cdknet.training.loop import Loop, Term, ascend
from cdknet.training.problem import batches, stratified

from contracts import MemoryCheckpoint
from stagemaker import PLUS, PROBLEM, SECOND, TRUTH, first, led, plus, resolved, second, third

STAGES = {"pretrain": first, "discover": second, "plus": plus, "led": led, "expand": third}
NAMES = {name: "discover" if name in ("plus", "led") else name for name in STAGES}  # in the history
every_stage = pytest.mark.parametrize("stage", STAGES)


def weights(result):
    return torch.cat([p.flatten() for p in result.network.state_dict().values()])


def without_times(history):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history]


# The contract


@every_stage
def test_history_has_a_flat_row_per_epoch_that_watchers_saw(stage):
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
def test_a_watcher_that_returns_true_ends_the_stage(stage):
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
    short = {"pretrain_epochs": 1, "discover_epochs": 1, "expand_epochs": 1, "expand_steps": 0}
    few = resolved({**SECOND, **short})
    for stage in (
        lambda given: pretrain(given, PROBLEM, few, FitContext()),
        lambda given: method_of("cd-knet").discover(given, PROBLEM, few, FitContext()),
        lambda given: method_of("cd-knet+").discover(given, PROBLEM, resolved(PLUS), FitContext()),
        lambda given: expand(
            second()._replace(network=given), *taught_by(PROBLEM, second(), None), few, FitContext()
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
        "expand": lambda: third(options={"learning_rate": 1e30}),
    }
    with pytest.raises(FloatingPointError, match=f"Stage {NAMES[stage]}, epoch"):
        wild[stage]()


def test_a_stage_killed_after_its_last_epoch_knows_that_it_was_the_last():
    """It stopped because U no longer changed; when resumed, it must not run up to the limit."""
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
    m = 2 * n_classes // 3
    old = labels < m
    by_labels = float(label_term(Y[old], Y[old, :m], 0.1, n_classes=n_classes))
    assert by_labels == pytest.approx(n_classes / m * (1 - 1 / m), rel=0.05)
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


def test_an_objective_is_the_weighted_sum_of_its_terms_and_history_has_each_by_itself():
    """2 x (sum of the output biases) - 3 x (their squared length), climbed for two of three epochs."""
    with seeded(0):
        network = build_network((6,), 3)
    bias, history = network.head.bias, History()
    torch.nn.init.zeros_(bias)
    optimizer = torch.optim.SGD(network.trainable(), lr=0.1, maximize=True)
    loop = Loop("discover", FitContext(history=history), optimizer, network=network)
    while loop.goes_on(3):
        with loop.epoch() as epoch:
            terms = {"sum": Term(bias.sum(), 2.0), "length": Term(-bias.square().sum(), 3.0)}
            ascend(optimizer, terms, epoch)
            epoch.stop = epoch.number == 1
    loop.finish()
    # b + .1 (2 - 6 b): from 0 to .2, to .28; the third epoch is not run
    torch.testing.assert_close(bias.detach(), torch.full((3,), 0.28))
    assert [row["sum"] for row in history] == pytest.approx([0.0, 0.6])
    assert [row["length"] for row in history] == pytest.approx([0.0, -3 * 0.04])
    assert loop.done
    assert not loop.cut_short


def test_the_objective_rises():
    """With U and sigma as they are at the start, ascent on theta raises HSIC(f(X), U)."""
    from cdknet.core.hsic import Factor, gaussian_kernel, hsic, normalize_by_degree
    from cdknet.core.spectral import median_distance, spectral_embedding

    start = first().network
    options = resolved({**SECOND, "discover_epochs": 1, "label_weight": 0.0})
    end = method_of("cd-knet").discover(start, PROBLEM, options, FitContext())
    rows = end.U_rows
    z0 = embed(start, PROBLEM.inputs, rows, normalize=True).features
    sigma = options.sigma_scale * median_distance(z0)
    U = Factor(spectral_embedding(z0, 5, sigma).vectors)
    z1 = embed(end.network, PROBLEM.inputs, rows, normalize=True).features
    values = [hsic(normalize_by_degree(gaussian_kernel(z, sigma)), U) for z in (z0, z1)]
    assert values[1] > values[0]


def test_U_belongs_to_the_final_features_and_is_orthonormal():
    from cdknet.core.spectral import spectral_embedding

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
        (lambda z, k, seed: np.zeros(3, dtype=int), "one whole number per sample"),
        (lambda z, k, seed: np.full(len(z), k), "must return labels in 0"),
        (lambda z, k, seed: np.full(len(z), 0.5), "one whole number per sample"),
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


# Stage 3


@pytest.mark.parametrize("strategy", ["last", "last-two", "all"])
def test_expansion_learns_the_pseudo_labels_and_keeps_the_old_classes(strategy):
    found = second(options={"discover_epochs": 16, "label_weight": 1.0, "sigma_scale": 0.3})
    result = third(options={"expand_epochs": 50, "expansion": strategy}, found=found)
    logits = embed(result.network, PROBLEM.inputs, normalize=False).logits
    assert logits.shape[1] == 5
    assert (logits[PROBLEM.old_rows].argmax(1) == PROBLEM.old_targets).float().mean() > 0.95
    assert clustering_accuracy(TRUTH, logits.argmax(1).numpy()) > 0.95


def test_expansion_shows_views_where_there_are_some_and_then_samples_as_they_are():
    calls = []

    def own(x, generator):
        calls.append(len(x))
        return x + 0.1 * torch.randn(x.shape, generator=generator)

    options = {"expand_epochs": 2, "replay": 1.0}
    result = third(options=options, views=own)
    # One of two epochs, and all of the old samples too.
    assert sum(calls) == len(PROBLEM.new_rows) + len(PROBLEM.old_rows)
    assert not torch.equal(weights(result), weights(third(options=options)))


def test_with_views_the_rate_falls_to_nothing_and_every_layer_learns_at_it(monkeypatch):
    class Watched(torch.optim.Adam):
        rates = []

        def step(self):
            self.rates.append([group["lr"] for group in self.param_groups])
            super().step()

    found = second()
    monkeypatch.setattr(torch.optim, "Adam", Watched)
    few = {"expand_epochs": 3, "batch_size": 96, "learning_rate": 0.01}
    ours = {**few, **{name: resolved(PLUS).__dict__[name] for name in ("replay", "slow_rate")}}
    third(options=ours, views=lambda x, generator: x, found=found)
    shown = len(PROBLEM.new_rows) + len(PROBLEM.old_rows)
    steps = 3 * math.ceil(shown / 96)
    assert len(Watched.rates) == steps
    for step, (grown, kept) in enumerate(Watched.rates):
        assert grown == kept == pytest.approx(0.01 * min(1.0, 1.5 * (1 - step / steps)))
    Watched.rates.clear()
    third(options=few, found=found)  # as in the paper: a tenth for earlier layers, and constant
    assert all(pair == pytest.approx([0.01, 0.001]) for pair in Watched.rates)


def test_layers_that_did_not_grow_move_slowly():
    start = second()
    moved = {}
    for rate in (0.0, 0.1, 1.0):
        end = third(options={"expand_epochs": 2, "slow_rate": rate}, found=start)
        pairs = zip(start.network.trunk.parameters(), end.network.trunk.parameters(), strict=True)
        moved[rate] = sum(float((a - b).detach().square().sum()) for a, b in pairs)
    assert moved[0.0] == 0 < moved[0.1] < moved[1.0] / 5


def test_a_small_set_gets_a_minimum_number_of_steps():
    history = History()
    third(options={"expand_steps": 11}, history=history)  # 96 new and 30 old samples: one step per epoch
    assert len(history) == 11
    history = History()
    third(options={"expand_steps": 11, "batch_size": 63}, history=history)  # two steps per epoch
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
