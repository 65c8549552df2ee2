"""The command that runs the paper's tables and figures: reproduce.

The experiments are not part of the package. They are in `experiments/`, next to `src/`, in a checkout.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from cdknet.cli.base import InterruptedRun, Json, app, console, print_json, say

CHECKOUT = Path(__file__).resolve().parents[3]  # of an editable install: the folder that has src/


def experiment(module: str) -> Any:
    """The module experiments.reproduce.MODULE of this checkout."""
    if not (CHECKOUT / "experiments" / "reproduce").is_dir():
        raise ImportError(
            "cdknet reproduce must run from a checkout of the project. Got an installed package, which does "
            "not include the experiments. Get the project's source and run pip install -e . in it."
        )
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    return import_module(f"experiments.reproduce.{module}")


@app.command()
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="table3 ... table6, fig3 ... fig5, ablation, variants, splits, all; open: mixed unlabelled "
            "data; page: docs/results.md."
        ),
    ],
    datasets: Annotated[str, typer.Option(help="Only these sets, separated by commas: mnist,digits.")] = "",
    methods: Annotated[
        str, typer.Option(help="Only these methods, separated by commas: k-means,cd-knet-exp.")
    ] = "",
    shares: Annotated[
        str, typer.Option(help="open: only these shares of old samples, separated by commas: gcd,0.5.")
    ] = "",
    seeds: Annotated[int, typer.Option(help="Number of seeds: 0, 1, ...; some tables use fewer.", min=1)] = 5,
    budget: Annotated[str, typer.Option(help="quick, or paper: the paper's epochs in full.")] = "quick",
    results: Annotated[Path, typer.Option(help="Folder of finished cells.")] = Path("results"),
    docs: Annotated[Path, typer.Option(help="Folder for the page and its figures.")] = Path("docs"),
    cache: Annotated[Path | None, typer.Option(help="Folder of stages that cells share.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Run the paper's tables and figures (from a checkout). Finished cells are saved; run again to resume."""
    plan = experiment("plan")
    plan.check_names("what to reproduce", [what], plan.NAMES)
    if what == "page":
        written = str(experiment("page").write_page(results, docs))
        if as_json:
            print_json({"out": written})
        else:
            _print(f"Written: {written}")
        return
    names = [
        [name.strip() for name in part.split(",") if name.strip()] for part in (datasets, methods, shares)
    ]
    if what == plan.OPEN:
        plan.check_names("budget of open", [budget], ["quick"])
        plan_open = experiment("open_plan").plan_open
        cells = plan_open(seeds=seeds, datasets=names[0], methods=names[1], shares=names[2])
    else:
        if names[2]:
            raise ValueError(f"--shares must go with reproduce open. Got it with {what}.")
        cells = plan.plan(what, seeds=seeds, budget=budget, datasets=names[0], methods=names[1])
    if dry_run:
        keys = [cell.key for cell in cells]
        if as_json:
            print_json(keys)
        else:
            sys.stdout.write("\n".join(keys) + "\n")
        return
    say(f"Budget {experiment('markdown').paragraph(f'budget-{budget}')}", quiet=as_json)
    lines = _run(what, cells, results, cache, quiet=as_json)
    if as_json:
        print_json(lines)
        return
    terminal = experiment("terminal")
    if what == plan.OPEN:
        console().print(terminal.open_terminal_table(cells, lines))
    else:
        console().print(terminal.terminal_table(what, cells, lines))
    folder = results / ("open" if what == plan.OPEN else "reproduce")
    _print(f"Saved in {folder}. To write the page: cdknet reproduce page.")
    for figure in experiment("figures").draw_figures(what, results, docs / "pictures"):
        _print(f"Drawn: {figure}")


def _run(
    what: str, cells: list[Any], results: Path, cache: Path | None, *, quiet: bool
) -> list[dict[str, Any]]:
    """Run the cells that are not in `results` yet. The lines of all cells."""
    from cdknet.cli.progress import CtrlC
    from cdknet.data import cache_dir

    terminal = experiment("terminal")
    if what == experiment("plan").OPEN:
        runner = experiment("open_runner")
        read, run, summary = runner.read_open_results, runner.run_open_cells, terminal.open_summary
    else:
        runner = experiment("runner")
        read, run, summary = runner.read_results, runner.run_cells, terminal.paper_summary
    finished = read(results)
    there = sum(not finished.get(cell.key, {"stale": True})["stale"] for cell in cells)
    if there:
        found = f"{there} of {len(cells)} cells are in {results} already and are not run again"
        say(f"{found} (--results NEW_FOLDER: run them here).", quiet=quiet)
    lines = []
    from cdknet.training.memory import keep_freed_memory

    keep_freed_memory()
    with CtrlC() as ctrl_c, terminal.CellBars(len(cells), quiet=quiet, summary=summary) as bars:
        try:
            for cell, line in run(
                cells, results, cache or cache_dir() / "stages", [bars, ctrl_c], begin=bars.begin
            ):
                bars.finish(cell.key, line)
                lines.append(line)
        except KeyboardInterrupt:
            raise InterruptedRun(
                f"{len(lines)} of {len(cells)} cells are in {results}. Run the command again to resume."
            ) from None
    return lines


def _print(text: str) -> None:
    console().print(text, highlight=False, markup=False)
