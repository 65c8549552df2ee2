"""Mixed unlabelled data: the plan, the runner and the tables of `cdknet reproduce open`."""

import numpy as np
import pytest

from cdknet.cli import main
from cdknet.core.openworld import UNLABELED
from cdknet.options import all_options
from cdknet.runs.files import append_jsonl, plain
from experiments.reproduce import open_plan, runner
from experiments.reproduce.open_plan import (
    DEFAULT,
    FITTED,
    ON_FEATURES,
    ON_SAMPLES,
    OPEN_SETS,
    OPEN_TITLES,
    OPEN_VERSION,
    SHARES,
    OpenCell,
    plan_open,
)
from experiments.reproduce.open_runner import (
    confidence,
    mixed_problem,
    open_results_file,
    read_open_results,
    run_open_cells,
    scores,
)
from experiments.reproduce.open_tables import open_section
from experiments.reproduce.page import page
from experiments.reproduce.plan import Cell

# The plan


def test_every_row_sets_options_that_exist_and_has_a_title():
    for method in OPEN_TITLES:
        for dataset in OPEN_SETS:
            assert OpenCell(dataset, method, 0).options.keys() <= {"method", *all_options()}
    assert OPEN_TITLES.keys() == {*FITTED, *ON_FEATURES, *ON_SAMPLES}


def test_only_the_default_is_calibrated_and_only_the_former_one_takes_all_samples_to_be_new():
    options = {method: OpenCell("digits", method, 0).options for method in FITTED}
    assert [method for method, o in options.items() if o["calibrate"]] == [DEFAULT]
    assert [method for method, o in options.items() if o["unlabelled"] == "new"] == ["today"]
    assert [method for method, o in options.items() if o.get("detector") == "softmax"] == ["sscd-softmax"]


def test_the_most_useful_cells_come_first():
    cells = plan_open(seeds=2)
    assert (
        len({cell.key for cell in cells}) == len(cells) == 2 * len(OPEN_SETS) * len(SHARES) * len(OPEN_TITLES)
    )
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
    first = cells[: 2 * len(OPEN_SETS) * (1 + len(ON_FEATURES))]
    assert {cell.share for cell in first} == {"gcd", "0.5"}
    assert {cell.method for cell in first} == {DEFAULT, *ON_FEATURES}
    assert first[0] == OpenCell("digits", DEFAULT, 0, "gcd")
    assert first[1] == OpenCell("digits", ON_FEATURES[0], 0, "gcd"), "its fit is at hand"


def test_the_cells_can_be_narrowed_down():
    cells = plan_open(seeds=1, datasets=["mnist"], methods=[DEFAULT], shares=["0.2", "gcd"])
    assert cells == [OpenCell("mnist", DEFAULT, 0, "gcd"), OpenCell("mnist", DEFAULT, 0, "0.2")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["opne"], "Did you mean 'open'"),
        (["open", "--datasets", "digit"], "Did you mean 'digits'"),
        (["open", "--methods", "pim"], "Did you mean 'pim-z'"),
        (["open", "--shares", "0.3"], "shares must be among gcd, 0, 0.2, 0.5, 0.8"),
        (["open", "--budget", "paper"], "budget of open must be among quick"),
        (["table3", "--shares", "gcd"], "--shares must go with reproduce open"),
    ],
)
def test_what_does_not_exist_is_an_error(arguments, message, capsys):
    assert main(["reproduce", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_dry_run_lists_the_cells(capsys):
    assert main(["reproduce", "open", "--datasets", "digits", "--seeds", "1", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [c.key for c in plan_open(seeds=1, datasets=["digits"])]


# The problems and the scores


@pytest.mark.parametrize("share", SHARES)
def test_a_mixed_problem_has_its_share_of_old_samples(share):
    problem = mixed_problem("digits", 0, share)
    unlabelled = problem.train.y == UNLABELED
    old = (~problem.train_truth.is_new[unlabelled]).mean()
    everything = runner.open_problem("digits", 0)
    assert old == pytest.approx(1 / 3 if SHARES[share] is None else SHARES[share], abs=0.01)
    assert (~unlabelled).sum() == pytest.approx((everything.train.y != UNLABELED).sum() / 2, abs=3)


def test_a_new_sample_named_as_an_old_class_is_wrong_even_if_no_old_sample_is_there():
    truth = mixed_problem("digits", 0, "0").train_truth
    rows = truth.is_new
    hidden = type(truth)(truth.y[rows], truth.new_classes)
    found = scores(hidden, hidden.y - 5, np.arange(5), None)  # every new class under the name of an old one
    assert found["all"] == found["new"] == 0
    assert found["v2"]["all"] == 1
    assert found["old"] is None


def test_right_classes_should_be_surer_than_wrong_ones():
    class Fitted:
        classes_ = np.array([0, 1, 2, 3, 4])
        class_confidence_ = np.array([0.9, 0.2, 0.5])
        overall_confidence_ = 0.7

    truth = mixed_problem("digits", 0, "0").train_truth
    hidden = type(truth)(np.repeat([0, 2, 3, 4], 4), (2, 3, 4))
    labels = np.repeat([0, 2, 3, 3, 4], [4, 4, 3, 1, 4])
    labels[8:11] = [2, 3, 1]  # of class 3, one sample in four is right
    found = confidence(hidden, labels, np.array([0, 1]), Fitted())
    assert found["expected"] == 0.7
    assert found["right"] == pytest.approx((labels == hidden.y).mean())
    assert (found["right_classes"], found["wrong_classes"]) == (3, 0)
    labels[8:12] = [0, 0, 0, 3]
    labels[:4] = [3, 3, 0, 0]  # class 3 now has more wrong samples than right ones
    found = confidence(hidden, labels, np.array([0, 1]), Fitted())
    assert (found["right_classes"], found["wrong_classes"], found["ranking"]) == (2, 1, 1.0)


# The runner


@pytest.fixture
def few_steps(monkeypatch):
    """The default with very few steps, and no rehearsals."""
    few = {"view_steps": 5, "head_steps": 5, "expand_steps": 5, "calibrate": False}
    monkeypatch.setitem(open_plan.FITTED, DEFAULT, (DEFAULT, {"unlabelled": "mixed", **few}))


@pytest.mark.slow
@pytest.mark.usefixtures("few_steps")
def test_one_fit_gives_the_default_and_the_rivals_on_its_features(tmp_path):
    cells = plan_open(seeds=1, datasets=["digits"], methods=[DEFAULT, *ON_FEATURES], shares=["0.5"])
    begun = []
    lines = dict(run_open_cells(cells, tmp_path, tmp_path / "stages", begin=begun.append))
    assert begun == [cells[0].key], "the rivals were run with it"
    assert lines.keys() == set(cells)
    assert read_open_results(tmp_path) == {cell.key: line for cell, line in lines.items()}
    assert list(run_open_cells(cells, tmp_path, tmp_path / "stages", begin=begun.append)) == list(
        lines.items()
    )
    assert len(begun) == 1, "finished cells are not run again"
    default = lines[cells[0]]
    assert default["share"]["true"] == 0.5
    assert default["share"]["low"] <= default["share"]["found"] <= default["share"]["high"]
    assert 0 <= default["noise"] < 50
    assert default["held_out"]["old"] > 0.5
    assert default["stage_seconds"].keys() == {"discover", "expand"}
    for line in lines.values():
        assert line["samples"]["unlabelled"] > line["samples"]["labelled"] > 300
        assert 0.3 < line["unlabelled"]["all"] <= 1
        assert {"machine", "revision", "seconds", "when"} <= line.keys()

    again = OpenCell("digits", ON_FEATURES[0], 0, "0.5")  # on its own, it needs stage 2 only
    alone = dict(run_open_cells([again], tmp_path / "other", tmp_path / "stages"))
    assert alone[again]["unlabelled"] == lines[again]["unlabelled"]
    assert read_open_results(tmp_path / "other").keys() == {
        again._replace(method=method).key for method in ON_FEATURES
    }


def test_the_command_runs_cells_and_the_page_shows_them(tmp_path, capsys):
    arguments = [
        "open",
        "--datasets",
        "digits",
        "--methods",
        "ss-k-means",
        "--shares",
        "gcd,0",
        "--seeds",
        "2",
    ]
    places = ["--results", str(tmp_path), "--docs", str(tmp_path / "docs")]
    assert main(["reproduce", *arguments, *places, "--cache", str(tmp_path / "stages")]) == 0
    assert "Mixed unlabelled data" in capsys.readouterr().out
    assert len(read_open_results(tmp_path)) == 4
    assert main(["reproduce", "page", *places]) == 0
    text = (tmp_path / "docs" / "results.md").read_text()
    assert "| semi-supervised k-means on samples | **." in text
    assert "$" not in text


def test_a_cell_with_other_options_or_of_an_earlier_version_is_stale(tmp_path):
    cells = plan_open(seeds=3, datasets=["digits"], methods=["sscd"], shares=["gcd"])
    lines = [line(cell, 0.5) for cell in cells]
    lines[0]["options"]["patience"] = 99
    lines[1]["version"] = OPEN_VERSION - 1
    append_jsonl(open_results_file(tmp_path, "digits"), *lines)
    assert [one["stale"] for one in read_open_results(tmp_path).values()] == [True, True, False]
    assert "| SSCD, our detector first † |" in open_section(read_open_results(tmp_path))


def test_the_papers_tables_take_all_unlabelled_samples_to_be_new(tmp_path):
    """And their lines do not say so, lest all that were recorded become stale."""
    assert runner.PAPERS_PROTOCOL["unlabelled"] == "new"
    cell = Cell("digits", "spectral", 0)
    assert "unlabelled" not in cell.options
    saved, model = runner.run_cell(cell, tmp_path)
    assert "unlabelled" not in saved["options"]
    assert model.get_params()["unlabelled"] == "new"


# The tables


def line(cell, accuracy, *, holds=True, old_share=0.5):
    found = {"all": accuracy, "old": accuracy, "new": accuracy, "balanced": accuracy}
    found |= {"old_against_new": 0.9, "auroc": 0.95, "v2": {"all": accuracy, "old": None, "new": accuracy}}
    out = {
        "key": cell.key,
        "cell": cell._asdict(),
        "options": {name: plain(value) for name, value in cell.options.items()},
        "version": OPEN_VERSION,
        "unlabelled": found,
        "held_out": found,
        "seconds": 1.0,
        "machine": "2 cores",
    }
    if cell.method == DEFAULT:
        out["share"] = {"true": old_share, "found": old_share + 0.02, "low": 0, "high": 1, "holds": holds}
        out["confidence"] = {"expected": 0.8, "right": accuracy, "ranking": None}
        out["noise"] = 3
    return out


def test_the_best_of_a_column_is_bold_and_what_is_missing_is_a_dash():
    cells = {
        OpenCell("digits", DEFAULT, 0, "gcd"): 0.9,
        OpenCell("digits", DEFAULT, 1, "gcd"): 0.8,
        OpenCell("digits", "today", 0, "gcd"): 0.4,
        OpenCell("digits", "today", 0, "0.8"): 0.3,
        OpenCell("mnist", "pim-z", 0, "0"): 0.7,
    }
    text = page({}, mixed={cell.key: line(cell, accuracy) for cell, accuracy in cells.items()})
    assert "## Mixed unlabelled data" in text
    rows = text.splitlines()
    assert "| CD-KNet+-Exp (default) | **.850** (2) | - | - | - | - |" in rows
    assert f"| {OPEN_TITLES['today']} | .400 (1) | - | - | - | **.300** (1) |" in rows
    assert "| PIM on Z | - | **.700** (1) | - | - | - |" in rows
    assert "| digits | GCD | 2 | .500 | .520 | 2 of 2 | .900 | .950 | .800 | .850 | - |" in rows
    detail = "| digits | GCD | 2 | .850 / .850 / .850 | .850 | .850 / - / .850 | .850 / .850 / .850 | 3 | 1 |"
    assert detail in rows


def test_without_the_default_there_are_no_tables_about_it_and_without_cells_no_section():
    cell = OpenCell("digits", "sscd", 0)
    text = open_section({cell.key: line(cell, 0.5)})
    assert "What the default knows" not in text
    assert open_section({}) == ""
    assert "Mixed unlabelled data" not in page({})


def test_every_cell_can_be_shown():
    cells = plan_open(seeds=1)
    text = open_section({cell.key: line(cell, 0.5) for cell in cells})
    assert " - |" not in text.split("### What the default knows of itself")[0]
    assert "$" not in text
