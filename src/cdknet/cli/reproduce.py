"""The command that runs the paper's tables and figures: reproduce."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cdknet.cli.base import InterruptedRun, Json, app, console, print_json, say


@app.command()
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="table3 ... table6, fig3 ... fig5, ablation, variants, splits, all; page: docs/results.md."
        ),
    ],
    datasets: Annotated[str, typer.Option(help="Only these sets, by comma: mnist,digits.")] = "",
    methods: Annotated[str, typer.Option(help="Only these methods, by comma: k-means,cd-knet-exp.")] = "",
    seeds: Annotated[int, typer.Option(help="Seeds 0, 1, ...; some tables use fewer.", min=1)] = 5,
    budget: Annotated[str, typer.Option(help="quick, or paper: its epochs in full.")] = "quick",
    results: Annotated[Path, typer.Option(help="Where finished cells are kept.")] = Path("results"),
    docs: Annotated[Path, typer.Option(help="Where pages and pictures go.")] = Path("docs"),
    cache: Annotated[Path | None, typer.Option(help="Where stages are shared.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Run the paper's tables and figures, cell by cell. Finished cells are kept; start again to go on."""
    from cdknet.reproduce.plan import BUDGETS, plan

    if what == "page":
        from cdknet.reproduce.page import write_page

        written = str(write_page(results, docs))
        if as_json:
            print_json({"out": written})
        else:
            console().print(f"Written: {written}", highlight=False, markup=False)
        return
    names = [[name.strip() for name in part.split(",") if name.strip()] for part in (datasets, methods)]
    cells = plan(what, seeds=seeds, budget=budget, datasets=names[0], methods=names[1])
    if dry_run:
        keys = [cell.key for cell in cells]
        if as_json:
            print_json(keys)
        else:
            sys.stdout.write("\n".join(keys) + "\n")
        return
    from cdknet.cli.progress import CellBars, CtrlC
    from cdknet.data import cache_dir
    from cdknet.reproduce.runner import read_results, run_cells

    say(f"Budget {budget}: {BUDGETS[budget]}", quiet=as_json)
    done = read_results(results)
    there = sum(not done.get(cell.key, {"stale": True})["stale"] for cell in cells)
    if there:
        told = f"{there} of {len(cells)} cells are in {results} already and are not run again"
        say(f"{told} (--results NEW_FOLDER: run them here).", quiet=as_json)
    lines = []
    with CtrlC() as ctrl_c, CellBars(len(cells), quiet=as_json) as bars:
        try:
            for cell, line in run_cells(
                cells, results, cache or cache_dir() / "stages", [bars, ctrl_c], begin=bars.begin
            ):
                bars.finish(cell.key, line)
                lines.append(line)
        except KeyboardInterrupt:
            raise InterruptedRun(
                f"{len(lines)} of {len(cells)} cells are in {results}. Start again to go on."
            ) from None
    if as_json:
        print_json(lines)
        return
    from cdknet.reproduce.page import draw_figures, terminal_table

    console().print(terminal_table(what, cells, lines))
    kept = f"Kept in {results / 'reproduce'}. The page of them all: cdknet reproduce page."
    console().print(kept, highlight=False, markup=False)
    for picture in draw_figures(what, results, docs / "pictures"):
        console().print(f"Drawn: {picture}", highlight=False, markup=False)
