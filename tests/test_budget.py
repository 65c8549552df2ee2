"""A time budget limits every part of a fit, and a fit that is stopped early still gives complete results."""

import time

import numpy as np
import pytest
import torch

from cdknet import ClassDiscovery
from cdknet.core.metrics import clustering_accuracy
from cdknet.methods.cdknet_plus import one_cycle
from cdknet.nets.architectures import build_network
from cdknet.options import TrustOptions, seconds_of
from cdknet.runs.checkpoints import Snapshot
from cdknet.training.budget import Budget
from cdknet.training.history import History
from cdknet.training.loop import Loop

from contracts import MemoryCheckpoint, blob_problem
from stagemaker import context_of

X, Y, TRUTH = blob_problem(n=160, n_old=4, n_new=2)
ENDLESS = {  # far more than there is time for
    "unlabelled": "new",
    "n_new_classes": 2,
    "pretrain_epochs": 10**6,
    "early_stopping": False,
    "view_steps": 10**6,
    "head_steps": 10**6,
    "expand_steps": 10**6,
    "kmeans_restarts": 1,
    "random_state": 0,
}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10min", 600),
        ("1h", 3600),
        ("1.5 h", 5400),
        (45, 45),
        (0.5, 0.5),
        ("30", 30),
        (None, None),
    ],
)
def test_times_as_people_write_them(text, seconds):
    assert seconds_of(text) == seconds
    TrustOptions(time_budget=text)


@pytest.mark.parametrize("text", ["", "soon", "-5s", "0", 0, "10 days", True, float("inf"), "nan"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError, match="time_budget must be seconds above 0, or a text"):
        ClassDiscovery(n_new_classes=2, time_budget=text).fit(X, Y)


def test_unused_time_passes_on_and_missing_stages_give_theirs():
    clock = Clock()
    budget = Budget(100, ["pretrain", "discover", "expand", "calibrate"], clock=clock)
    assert [budget.left(s) for s in ("pretrain", "discover", "expand", "calibrate")] == pytest.approx(
        [20, 70, 90, 100]
    )
    clock.now = 5  # pretrain was quick
    assert budget.left("discover") == pytest.approx(65)
    budget.charge(10)
    assert budget.left("discover") == pytest.approx(55)
    assert budget.left("autoencode") == budget.left("discover")
    assert Budget(70, ["pretrain", "discover"], clock=clock).left("pretrain") == pytest.approx(20)


def loop_of(history, checkpoint=None):
    network = build_network((6,), 3)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    loop = Loop("discover", context_of(history=history, checkpoint=checkpoint), optimizer, network=network)
    loop.limit = 1000
    return loop


def run(loop, limit, at_work):
    """Run epochs that only take time."""
    while loop.goes_on(limit):
        with loop.epoch():
            at_work()


def test_a_stage_stops_at_the_end_of_an_epoch_and_its_rate_ends_low():
    clock, shares = Clock(), []
    loop = loop_of(History(budget=Budget(100, ["discover"], clock=clock)))

    def at_work():
        clock.now += 9
        shares.append(loop.share(0.5))

    run(loop, 1000, at_work)
    assert loop.done_epochs == 12
    assert loop.cut_short
    assert shares == pytest.approx([0.09 * (i + 1) for i in range(11)] + [1])
    assert one_cycle(shares[-1]) < 0.001


def test_a_stage_that_needs_less_than_its_time_is_not_touched():
    clock = Clock()
    loop = loop_of(History(budget=Budget(10_000, ["discover"], clock=clock)))
    loop.limit = 10
    run(loop, 5, lambda: None)
    assert (loop.done_epochs, loop.share(0.5)) == (5, 0.55)


def test_time_spent_before_an_interruption_counts():
    """The stage continues with its time and its schedule, as if it had not been interrupted."""
    rows = [{"stage": "discover", "epoch": i + 1, "seconds": 20.0} for i in range(2)]
    clock, kept = Clock(), MemoryCheckpoint()
    weights = {f"network.{name}": w for name, w in build_network((6,), 3).state_dict().items()}
    kept.kept["discover"] = Snapshot(2, False, weights, {"history": rows, "stopped": False, "state": {}})
    history = History(budget=Budget(100, ["pretrain", "discover", "expand"], clock=clock))
    loop = loop_of(history, kept)
    assert history.budget.left("expand") == pytest.approx(60)
    assert history.spent == {"discover": 40}
    end = 100 * 7 / 9  # of stage 2
    assert loop.share() == pytest.approx(40 / end)

    def at_work():
        clock.now += 15

    run(loop, 1000, at_work)
    assert loop.done_epochs == 2 + 3  # 85 s, in the first epoch to end after 78


def test_without_a_budget_nothing_is_measured_by_the_clock():
    loop = loop_of(None)
    loop.limit = 8
    assert [loop.share(part) for part in (0.0, 0.5)] == [0, 0.0625]


def test_a_whole_fit_keeps_to_its_time_and_reports_how_it_was_spent(tmp_path):
    ClassDiscovery(**{**ENDLESS, "time_budget": 0.2, "calibrate": False}).fit(X, Y)  # warm up
    start = time.perf_counter()
    model = ClassDiscovery(**ENDLESS, time_budget="6s").fit(X, Y)
    assert time.perf_counter() - start < 60, "it would take hours; allow for busy machines"
    assert list(model.spent_) == ["tune", "discover", "expand", "calibrate"]
    assert model.spent_["discover"] > model.spent_["expand"]
    assert clustering_accuracy(TRUTH, model.labels_) > 0.9
    assert ClassDiscovery.load(model.save(tmp_path / "run")).spent_ == model.spent_


def test_a_budget_that_is_far_too_small_still_gives_labels():
    model = ClassDiscovery(**ENDLESS, time_budget="0.01s").fit(X, Y)
    assert set(model.labels_[Y < 0]) <= {4, 5}
    assert not model.calibration_["calibrated"]
    assert "time budget" in model.calibration_["reason"]


def test_without_time_for_stage_3_the_labels_are_those_of_stage_2():
    many = {"view_steps": 60, "head_steps": 60, "expand_steps": 10**6, "calibrate": False, "tune": "off"}
    model = ClassDiscovery(**{**ENDLESS, **many}, time_budget="0.05s").fit(X, Y)
    np.testing.assert_array_equal(model.labels_[Y < 0] - 4, model.pseudo_labels_)
    rows = [row for row in model.history_ if row["stage"] == "expand"]
    assert len(rows) == 1
    assert rows[0]["agreement"] > 0.25, "it learns in its only epoch; without learning, .17 by chance"


def test_stages_that_were_stopped_early_are_not_shared(tmp_path):
    ClassDiscovery(**ENDLESS, time_budget=0.05, stage_cache=tmp_path / "cache").fit(X, Y)
    assert not (tmp_path / "cache").exists()
