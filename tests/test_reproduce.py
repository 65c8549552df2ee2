"""The paper's experiments: each cell is run once and saved, and the page shows what was measured."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel

from cdknet.cli import main
from cdknet.cli import reproduce as command
from cdknet.options import all_options
from cdknet.runs.files import append_jsonl, plain
from experiments.reproduce import paper
from experiments.reproduce.claims import Claim, p_greater, paired, verdict
from experiments.reproduce.figures import of_common_seeds
from experiments.reproduce.markdown import PAGES, fill, section
from experiments.reproduce.open_runner import read_open_results
from experiments.reproduce.page import page
from experiments.reproduce.plan import (
    ABLATIONS,
    BUDGETS,
    CLUSTERING_VERSION,
    DATASETS,
    METHODS,
    TABLES,
    TITLES,
    VECTOR_VERSION,
    Cell,
    budget_options,
    plan,
)
from experiments.reproduce.rows import spread
from experiments.reproduce.runner import open_problem, read_results, results_file, run_cells
from experiments.reproduce.studies import TABLE_METHODS, Studies, read_studies, tables_table

ROOT = Path(__file__).parent.parent

# The plan


def test_every_method_sets_options_that_exist():
    known = {"method", *all_options()}
    for method in METHODS:
        for budget in BUDGETS:
            for dataset in (*DATASETS, "digits"):
                options = Cell(dataset, method, 0, budget).options
                assert options.keys() <= known
    assert METHODS.keys() == TITLES.keys()


def test_a_cell_that_two_tables_share_is_one_cell():
    third, fourth = plan("table3"), plan("fig4")
    assert Cell("mnist", "cd-knet-exp", 0) in set(third) & set(fourth)
    assert Cell("mnist", "cd-knet", 0) in set(third) & set(fourth)  # without expansion
    assert Cell("fashion-mnist", "ucd-knet", 0) in set(third) & set(plan("table5"))  # lambda 0
    everything = plan("all")
    assert len({cell.key for cell in everything}) == len(everything)
    assert set(everything) == {cell for what in TABLES for cell in plan(what)}


def test_no_samples_in_the_kernel_is_sscd():
    assert Cell("mnist", "sscd-exp", 0) in plan("fig5")
    assert all(cell.options["subsample"] > 0 for cell in plan("fig5"))


def test_an_ablation_changes_one_part_and_starts_with_the_unchanged_method():
    cells = plan("ablation", datasets=["digits"], seeds=1)
    assert cells[0] == Cell("digits", "cd-knet+-exp", 0)
    assert cells[-1] == Cell("digits", "cd-knet+", 0)
    assert len(cells) == len(set(cells)) == len(ABLATIONS)
    assert all(cell.changes for cell in cells[1:-1])


def test_random_splits_hide_other_classes_with_the_same_seed():
    cells = plan("splits", datasets=["mnist"], methods=["k-means"])
    assert len(cells) == len({cell.key for cell in cells}) == 10
    assert {cell.seed for cell in cells} == {0}
    first, second = (open_problem("digits", 0, split) for split in (0, 1))
    assert first.test_truth.new_classes != second.test_truth.new_classes
    assert open_problem("digits", 0).test_truth.new_classes == (5, 6, 7, 8, 9)


def test_cells_are_ordered_by_seed_and_costly_sets_get_fewer_seeds():
    cells = plan("table3", seeds=5)
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
    seeds = {d: 1 + max(c.seed for c in cells if c.dataset == d and c.method == "cd-knet") for d in DATASETS}
    assert seeds == {**dict.fromkeys(DATASETS, 5), "cifar-100": 3}


def test_the_papers_epochs_are_those_of_its_table_2():
    options = budget_options("paper", "cifar-100")
    assert [options[f"{stage}_epochs"] for stage in ("pretrain", "discover", "expand")] == [70, 20, 30]
    assert budget_options("paper", "mnist")["subsample"] == 0.03
    assert budget_options("quick", "fashion-mnist")["subsample"] == 0.05


def test_the_papers_numbers_are_about_methods_and_sets_that_exist():
    assert all(method in METHODS and dataset in DATASETS for method, dataset in paper.PERFORMANCE)
    best = {d: max(v[0] for (_, s), v in paper.PERFORMANCE.items() if s == d) for d in DATASETS[:4]}
    assert {d: paper.PERFORMANCE["cd-knet-exp", d][0] for d in best} == best


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tabel3"], "Did you mean 'table3'"),
        (["table3", "--datasets", "mnits"], "Did you mean 'mnist'"),
        (["table3", "--methods", "cdknet"], "Did you mean 'cd-knet'"),
        (["table3", "--budget", "fast"], "budget must be among quick, paper"),
    ],
)
def test_a_misspelt_name_is_an_error_with_a_suggestion(arguments, message, capsys):
    assert main(["reproduce", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_dry_run_lists_the_cells(capsys):
    assert main(["reproduce", "table6", "--seeds", "1", "--dry-run"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == [cell.key for cell in plan("table6", seeds=1)]


def test_finished_cells_are_reported_as_not_run_again(tmp_path, capsys):
    arguments = ["reproduce", "table3", "--datasets", "digits", "--methods", "k-means", "--seeds", "1"]
    arguments += ["--results", str(tmp_path), "--docs", str(tmp_path), "--cache", str(tmp_path / "stages")]
    for reported in (False, True):
        assert main(arguments) == 0
        assert ("1 of 1 cells are in" in capsys.readouterr().err) == reported


# The runner


def test_cells_are_run_once_and_saved(tmp_path):
    cells = plan("table3", datasets=["digits"], methods=["k-means", "spectral"], seeds=1)
    begun = []
    lines = dict(run_cells(cells, tmp_path, tmp_path / "stages", begin=begun.append))
    assert begun == [cell.key for cell in cells]
    saved = read_results(tmp_path)
    assert saved == {cell.key: line for cell, line in lines.items()}
    again = list(run_cells(cells, tmp_path, tmp_path / "stages", begin=begun.append))
    assert len(begun) == len(cells)
    assert [line for _, line in again] == list(lines.values())
    for line in lines.values():
        assert line["test"]["purity"] >= line["test"]["acc"] > 0.85
        assert line["seconds"] > 0
        assert line["peak_memory_mb"] > 50
        assert line["options"]["expansion"] == "none"


def test_a_cell_of_an_earlier_clustering_is_run_again(tmp_path):
    names = ["k-means", "spectral", "uno", "simclr", "cd-knet+-exp"]
    cells = plan("table3", datasets=["digits"], methods=names, seeds=1)
    lines = [line(cell, 0.5) for cell in cells]
    append_jsonl(results_file(tmp_path, "digits"), *lines)  # from before the clustering had a version
    stale = {cell.method: read_results(tmp_path)[cell.key]["stale"] for cell in cells}
    assert stale == dict(zip(names, [False, True, False, True, True], strict=True))
    append_jsonl(results_file(tmp_path, "digits"), *({**one, "cuts": CLUSTERING_VERSION} for one in lines))
    assert not any(read_results(tmp_path)[cell.key]["stale"] for cell in cells)


def test_vectors_with_former_view_weights_are_run_again_whatever_the_clustering():
    by_heads = ("readout", "heads")
    versions = [
        Cell(name, "cd-knet+", 0, changes=(by_heads,)).clustering_version
        for name in ("digits", "wifi-csi-30")
    ]
    assert versions == [0, VECTOR_VERSION]
    assert Cell("wifi-csi-30", "uno", 0).clustering_version == 0  # has no term for views


def test_real_tables_are_shown_with_the_best_of_each_in_bold():
    fit = {"set": "vowel", "split": 0, "samples": 762, "columns": 13, "old_classes": 6, "new_classes": 5}
    fits = [{**fit, "method": method, "acc": 0.1 * n} for n, method in enumerate(TABLE_METHODS)]
    text = page({}, (), Studies(tables=[*fits, {**fits[0], "split": 1}]))  # split 1 is incomplete
    assert "| vowel | 762 x 13, 6/5 | 1 | 0.000 | 0.100 | 0.200 | 0.300 | 0.400 | **0.500** |" in text
    assert tables_table(fits[:-1]) == ""


def test_a_truncated_line_costs_one_cell(tmp_path):
    folder = tmp_path / "reproduce"
    folder.mkdir()
    cell = Cell("digits", "k-means", 0)
    (folder / "digits.jsonl").write_text(json.dumps(line(cell, 0.9)) + "\n" + '{"key": "b", "te')
    assert read_results(tmp_path).keys() == {cell.key}


def test_a_cell_run_with_other_options_is_marked_until_it_is_run_again(tmp_path):
    cells = plan("table3", datasets=["digits"], methods=["k-means", "sscd"], seeds=1)
    former = line(cells[1], 0.5)
    former["options"]["patience"] = 99
    append_jsonl(results_file(tmp_path, "digits"), line(cells[0], 0.6), former)
    saved = read_results(tmp_path)
    assert [saved[cell.key]["stale"] for cell in cells] == [False, True]
    assert "| SSCD † |" in page(saved)
    assert "| k-means on samples |" in page(saved)
    other = cells[1]._replace(seed=1)  # current seeds alone, unless stale ones are the majority
    assert "| SSCD | 1 | **.700** |" in page(saved | {other.key: line(other, 0.7)})
    third = cells[1]._replace(seed=2)
    more = saved | {other.key: line(other, 0.7), third.key: line(third, 0.6) | {"stale": True}}
    assert "| SSCD † | 3 | **.600 ± .100** |" in page(more)
    begun = []
    lines = dict(run_cells(cells, tmp_path, tmp_path / "stages", begin=begun.append))
    assert begun == [cells[1].key]
    assert lines[cells[1]]["options"]["patience"] == 2
    assert "†" not in page(read_results(tmp_path))


@pytest.mark.slow
def test_stages_are_shared_and_give_the_same_answer(tmp_path):
    cells = plan("table3", datasets=["digits"], methods=["sscd-last", "sscd-exp"], seeds=1)
    cells = [cell._replace(changes=(("expand_steps", 20), ("pretrain_epochs", 3))) for cell in cells]
    shared = [line for _, line in run_cells(cells, tmp_path / "a", tmp_path / "stages")]
    alone = [line for _, line in run_cells(cells[1:], tmp_path / "b", tmp_path / "other")]
    assert shared[1]["test"] == alone[0]["test"]
    assert len(list((tmp_path / "stages" / "digits").glob("pretrain-*"))) == 1


# The page


def line(cell, acc, old=(0.9, 0.9)):
    scores = {"acc": acc, "purity": min(acc + 0.01, 1), "nmi": acc, "ari": acc}
    return {
        "key": cell.key,
        "new_classes": ["1", "2"],
        "cell": cell._asdict() | {"changes": {k: plain(v) for k, v in cell.changes}},
        "options": {k: plain(v) for k, v in cell.options.items()},
        "test": scores,
        "train": scores,
        "train_before": scores,
        "open_world": {"all": acc, "old": acc, "new": acc},
        "old_before": old[0],
        "old_after": old[1],
    }


def lines_of(cells, score):
    return {cell.key: line(cell, score(cell)) for cell in cells}


def test_the_page_has_every_table_with_the_papers_numbers_and_bold_for_the_best():
    lines = lines_of(plan("all", seeds=2), lambda c: 0.9 if c.method == "cd-knet-exp" else 0.5 + c.seed / 100)
    text = page(lines)
    for heading in ("Tables III and IV", "Table V", "Table VI", "The paper's claims", "below the paper"):
        assert heading in text
    assert "| no heads | 2 | .505 ± .007 | +0.000 | .515 ± .007 | 0.900 |" in text
    assert "| stage 1 stops at accuracy .8 | 2 | .505 ± .007 | +0.000 | .515 ± .007 | 0.900 |" in text
    assert "| **mean** | 0.500 | 0.500 | **0.900** | 0.500 |" in text
    row = next(r for r in text.splitlines() if r.startswith("| CD-KNet-Exp |"))
    assert "**.900 ± .000**" in row
    assert "0.945 (-0.035) below" in row  # purity .91 on MNIST against the paper's .945


def test_a_method_not_significantly_below_the_best_is_marked():
    """Over the seeds that both have: .1 below on every seed is significant, .1 below by chance is not."""
    below = {"cd-knet+-exp": (0, 0, 0), "spectral": (-0.1, -0.1, -0.11), "k-means": (0.1, -0.3, -0.1)}
    below["sscd"] = (-0.05,)  # a single seed is no evidence
    cells = {Cell("mnist", m, seed): 0.8 + by for m, gaps in below.items() for seed, by in enumerate(gaps)}
    rows = page({cell.key: line(cell, acc) for cell, acc in cells.items()}).splitlines()
    accs = {
        title: next(r for r in rows if r.startswith(f"| {title}")).split(" | ")[2]
        for title in (TITLES["cd-knet+-exp"], TITLES["spectral"], TITLES["k-means"], TITLES["sscd"])
    }
    assert list(accs.values()) == ["**.800 ± .000**", ".697 ± .006", ".700 ± .200 ≈", ".750"]


def test_the_page_begins_with_the_best_of_each_kind():
    accuracies = {"k-means": 0.5, "spectral": 0.6, "sscd": 0.7, "cd-knet-exp": 0.65, "cd-knet+-exp": 0.9}
    cells = [Cell("mnist", method, seed) for method in accuracies for seed in (0, 1)]
    text = page({cell.key: line(cell, accuracies[cell.method]) for cell in cells})
    row = next(r for r in text.splitlines() if r.startswith("| MNIST, 0-4 known"))
    assert row.split(" | ")[1:] == [
        "spectral: .600 ± .000 (2)",
        "SSCD: .700 ± .000 (2)",
        "not run yet",
        ".900 ± .000 (2) |",
    ]


def test_old_classes_are_compared_with_a_classifier_of_the_same_network_and_seeds():
    cells = [Cell("mnist", "cd-knet+-exp", seed) for seed in range(3)]
    lines = {cell.key: line(cell, 0.9) | {"old_among_old": 0.97 + cell.seed / 100} for cell in cells}
    plain = {"set": "mnist", "network": "small", "accuracy": 0.99}
    plains = [plain | {"seed": 0}, plain | {"seed": 1}, plain | {"network": "auto", "seed": 2}]
    text = page(lines, (), Studies(classifiers=plains))
    row = next(r for r in text.splitlines() if r.startswith("| MNIST") and "-0.015" in r)
    assert row.split(" | ")[1:] == ["2", ".990 ± .000", ".975 ± .007", "-0.015", ".900 ± .000 |"]


def test_expected_accuracy_is_shown_next_to_the_true_one():
    fit = {"set": "mnist", "seed": 0, "expected": 0.9, "right": 0.95, "error": 0.05, "rehearsed": [0.8, 1.0]}
    text = page({}, (), Studies(confidence=[fit | {"ranking": 0.75}, fit | {"seed": 1, "ranking": None}]))
    row = next(r for r in text.splitlines() if r.startswith("| MNIST"))
    assert row.split(" | ")[1:] == ["2", *(f"{v} ± .000" for v in (".900", ".900", ".950", ".050")), ".750 |"]


def test_a_variant_is_compared_over_the_seeds_it_has():
    """One seed of a variant against the same seed of the unchanged method, whatever the other seeds."""
    cells = [Cell("mnist", "cd-knet", seed) for seed in (0, 1)]
    free = Cell("mnist", "cd-knet", 1, changes=(("normalize_features", False),))
    lines = lines_of([*cells, free], {cells[0]: 0.9, cells[1]: 0.5, free: 0.6}.get)
    row = next(r for r in page(lines).splitlines() if r.startswith("| features not normalised"))
    assert row.split(" | ")[1:4] == ["1", ".600", "+0.100"]
    apart = page(lines_of([cells[0], free], {cells[0]: 0.9, free: 0.6}.get))  # no seed in common
    assert "| features not normalised to the unit sphere | 1 | .600 | - |" in apart


def test_rivals_in_their_own_setting_are_shown_next_to_their_papers():
    run = {"method": "dac", "settings": {"images": 20_000}, "acc": 0.9, "nmi": 0.8, "ari": 0.7}
    former = {**run, "settings": {"images": 10_000}, "acc": 0.5}
    text = page({}, (), Studies(plain_rivals=[former, run]))
    assert "| DAC | 1 | 20,000 | .900 | .800 | .700 | 0.978 |" in text
    assert "| DEC |" not in text


def test_the_two_budgets_are_compared_over_the_seeds_that_both_have():
    cells = [Cell("mnist", "sscd-exp", seed, budget) for seed in (0, 1) for budget in ("quick", "paper")]
    accuracies = dict(zip(cells, (0.6, 0.5, 0.9, 0.7), strict=True))
    lines = lines_of(cells[:3], accuracies.get)
    assert "| SSCD-Exp | 1 | .600 | .500 | -0.100 |" in page(lines)
    assert "| SSCD-Exp | 2 | .750 ± .212 | .600 ± .141 | -0.150 |" in page(lines_of(cells, accuracies.get))


def test_what_tune_selects_is_shown_next_to_the_outcome():
    fit = {"set": "digits", "split": 0, "of": 3}
    fits = [
        fit | {"candidate": "as given", "rehearsed": [0.8, 0.8], "acc": 0.9},
        fit | {"candidate": "no heads", "rehearsed": [0.9, 0.9], "acc": 0.85},
        fit | {"candidate": "paper", "rehearsed": [0.1, 0.1], "acc": 0.95},
        fit | {"split": 1, "candidate": "as given", "rehearsed": [1.0], "acc": 1.0},  # others are missing
    ]
    text = page({}, (), Studies(tuning=fits))
    assert "| digits | 0 | 3 | -1.00 | 0.900 | no heads, 0.850 | paper, 0.950 |" in text
    assert "-1.00 in the mean of 1 problems" in text
    assert "Selected minus as given: -0.050 in the mean, -0.050 at worst" in text
    assert "The best candidate in hindsight is +0.100 above the selected one" in text
    assert "| digits | 1 |" not in text


def test_a_claim_is_tested_over_the_seeds_that_both_sides_have():
    claim = Claim("", ("cd-knet-exp", {}), ("sscd-exp", {}))
    rng = np.random.default_rng(0)
    better, worse = 0.7 + 0.05 * rng.random(5), 0.6 + 0.05 * rng.random(5)
    lines = {}
    for seed in range(5):
        for method, values in (("cd-knet-exp", better), ("sscd-exp", worse)):
            cell = Cell("mnist", method, seed)
            lines[cell.key] = line(cell, values[seed])
    extra = Cell("mnist", "cd-knet-exp", 7)
    lines[extra.key] = line(extra, 0.1)  # the other side lacks this seed: left out
    differences = paired(lines, "mnist", claim)
    assert differences == pytest.approx(better - worse)
    p = p_greater(differences)
    assert p == pytest.approx(ttest_rel(better, worse, alternative="greater").pvalue)
    assert verdict(float(np.mean(differences)), p, 5) == "held"


@pytest.mark.parametrize(
    ("gaps", "word"),
    [((0.0, 0.001), "held"), ((0.02, 0.0), "open, leaning to held"), ((0.06, 0.061), "reversed")],
)
def test_a_larger_kernel_is_compared_with_that_of_the_table(gaps, word):
    """Fig. 5's claim: nothing to gain from a larger kernel; a gap of .03 is allowed, .06 is not."""
    cells = [Cell("mnist", "cd-knet-exp", s, changes=c) for s in (0, 1) for c in ((), (("subsample", 0.1),))]
    lines = {cell.key: line(cell, 0.7 + gaps[cell.seed] * bool(cell.changes)) for cell in cells}
    row = next(r for r in page(lines).splitlines() if r.startswith("| A kernel on 3-5 %"))
    p = p_greater([0.03 - gap for gap in gaps])
    assert row.endswith(f"(within .03) | mnist | 2 | {-np.mean(gaps):+.3f} | {p:.3f} | {word} |")


def test_verdicts():
    assert p_greater([0.1]) == p_greater([0.1, 0.1]) == 0.5, "no spread, no test"
    assert verdict(0.1, 0.5, 1) == "open (one seed)"
    assert verdict(-0.1, 0.99, 5) == "reversed"
    assert verdict(0.01, 0.2, 5) == "open, leaning to held"
    assert spread([0.5]) == ".500"
    assert spread([0.5, 0.6]) == ".550 ± .071"


def test_the_committed_page_is_up_to_date():
    """`cdknet reproduce page` writes it."""
    committed = (ROOT / "docs" / "results.md").read_text()
    pictures = [f"pictures/{name}.png" for name in ("fig3", "fig4", "fig5")]
    shown = [name for name in pictures if f"]({name})" in committed]
    results = ROOT / "results"
    assert committed == page(read_results(results), shown, read_studies(results), read_open_results(results))
    assert all((ROOT / "docs" / name).is_file() for name in shown)


def test_figures_compare_over_the_same_seeds():
    accs = {"a": {0: 0.1, 1: 0.3}, "b": {1: 0.5, 2: 0.9}}
    assert of_common_seeds(accs) == {"a": [0.3], "b": [0.5]}
    assert of_common_seeds({**accs, "c": {}}) == {}
    assert of_common_seeds({}) == {}


# The templates


def test_every_template_is_used_and_every_placeholder_filled():
    cells = plan("all", seeds=2) + plan("table6", seeds=1, budget="paper")
    lines = lines_of(cells, lambda cell: 0.5)
    stale = lines[cells[0].key] | {"stale": True}
    text = page(lines | {cells[0].key: stale}, [f"pictures/{name}.png" for name in ("fig3", "fig4", "fig5")])
    assert "$" not in text
    for path in PAGES.glob("*.md"):
        heading = path.read_text().splitlines()[0]
        if heading.startswith("#") and "$" not in heading and path.stem not in OF_STUDIES:
            assert heading in text, path.name


OF_STUDIES = ("confidence", "old-classes", "open", "plain-rivals", "tables", "tuning")  # have no lines here


def test_a_section_without_rows_is_empty():
    assert section("lambda", ["lambda:"], []) == ""
    with pytest.raises(KeyError, match="table"):
        fill("lambda")


# The command finds the experiments of a checkout


def test_without_a_checkout_the_command_says_so_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "CHECKOUT", tmp_path)
    for arguments in (["page"], ["table3", "--dry-run"]):
        assert main(["reproduce", *arguments]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("cdknet: cdknet reproduce must run from a checkout of the project.")
        assert printed.err.count("\n") == 1


def test_the_experiments_are_not_in_the_wheel():
    """setuptools packs every folder below src."""
    assert '[tool.setuptools.packages.find]\nwhere = ["src"]\n' in (ROOT / "pyproject.toml").read_text()
    packed = {path.name for path in (ROOT / "src").rglob("*") if path.is_dir()}
    assert "cli" in packed
    assert not packed & {"experiments", "reproduce"}


def test_the_package_does_not_import_the_experiments():
    command_file = ROOT / "src" / "cdknet" / "cli" / "reproduce.py"
    importing = [p for p in (ROOT / "src").rglob("*.py") if "experiments.reproduce" in p.read_text()]
    assert importing == [command_file]


def test_help_and_a_dry_run_need_no_torch():
    for arguments in (["--help"], ["table3", "--dry-run"]):
        code = f"import sys; from cdknet.cli import main; main(['reproduce', *{arguments}]); "
        done = subprocess.run(
            [sys.executable, "-c", code + "sys.exit('torch' in sys.modules)"], capture_output=True
        )
        assert done.returncode == 0, done.stderr
