"""The command line. Heavy imports wait inside the commands, so that --help answers at once."""

from __future__ import annotations

import difflib
import inspect
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdknet.options import ALL_OPTIONS, seconds_of

if TYPE_CHECKING:
    from cdknet.data import HiddenTruth, Samples
    from cdknet.estimator import ClassDiscovery

app = typer.Typer(
    help="Find the classes that nobody has labelled yet. Start with: cdknet demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.", min=0)]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
DataPath = Annotated[
    str, typer.Argument(metavar="DATA", help="A file, a folder of images, or a set by name.")
]

# How to read DATA: the options of cdknet.data.open, declared once for every command that takes DATA.
READING: dict[str, tuple[Any, str]] = {
    "labels": (Path | None, "A CSV of id and label, for data that carry no labels."),
    "label_column": (str | None, "Tables: the column of labels; blank = unlabelled."),
    "id_column": (str | None, "Tables: the column that names the samples."),
    "image_size": (int | None, "Folders of images: pixels a side."),
    "shape": (str | None, "Arrays, tables, text: the shape of a sample, such as 28x28."),
    "sample_rate": (float | None, "Raw I/Q files: samples a second."),
    "slice_length": (int | None, "Radio: samples a slice (198)."),
    "overlap": (int | None, "Radio: samples that neighbouring slices share (0)."),
    "energy_gate": (float | None, "Radio: drop slices this many dB below the loudest."),
}


def reads_data(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` a flag for every way to read DATA; it gets them as `reading`."""
    flags = [_flag(name, kind, None, help, "How to read DATA") for name, (kind, help) in READING.items()]
    return _with_flags(command, "reading", flags)


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` a flag for every option of the method; it gets them as `options`."""
    flags = []
    for group in ALL_OPTIONS:
        for f in fields(group):
            if f.name == "n_new_classes":  # --new-classes, spelt out in the command
                continue
            choices = f"  ({', '.join(f.metadata['choices'])})" if f.metadata["choices"] else ""
            flags.append(_flag(f.name, f.type, f.default, f.metadata["help"] + choices, group.__doc__))
    return _with_flags(command, "options", flags)


def _flag(name: str, kind: Any, default: Any, help: str, panel: str | None) -> inspect.Parameter:
    declared = Annotated.__class_getitem__((kind, typer.Option(help=help, rich_help_panel=panel)))  # type: ignore[attr-defined]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=declared)


def _with_flags(
    command: Callable[..., None], collected: str, flags: list[inspect.Parameter]
) -> Callable[..., None]:
    """`command` with `flags` in place of its parameter `collected`, which gets them as a dict."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [p for p in signature.parameters.values() if p.name != collected] + flags

    def with_flags(**values: Any) -> None:
        command(**{collected: {flag.name: values.pop(flag.name) for flag in flags}}, **values)

    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
    with_flags.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_flags


class InterruptedRun(Exception):
    """Ctrl-C during a run that can be resumed."""


def _interrupted(unfinished: Path) -> InterruptedRun:
    if not unfinished.exists():
        return InterruptedRun("It had only begun: start again.")
    return InterruptedRun(f"What was learned is in {unfinished}. Add --resume to go on.")


def _show_version(asked: bool) -> None:
    if asked:
        from cdknet import __version__

        sys.stdout.write(f"cdknet {__version__}\n")
        raise typer.Exit


@app.callback()
def options_of_all(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Find the classes that nobody has labelled yet. Start with: cdknet demo"""


# Commands


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The run folder to write.")] = Path("demo-run"),
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(help="Run this many seeds, and show their mean.", min=1)] = 1,
    as_json: Json = False,
    force: Force = False,
) -> None:
    """Digits 0-4 are known, 5-9 are not: find them, and compare with simpler methods. A minute or two."""
    from cdknet.demo import compare, digits_problem, fit_digits, truth_csv, with_paper
    from cdknet.progress import Bars
    from cdknet.runs import check_target, replace_file

    check_target(out, force)
    problem = digits_problem()
    comparisons = []
    for s in range(seed, seed + seeds):
        _say("The paper's objective: U and the old labels", quiet=as_json)
        with Bars(quiet=as_json) as bars:
            paper = fit_digits(problem, s, [bars], method="cd-knet")
        _say("CD-KNet+, the default: old labels and views of each sample, together", quiet=as_json)
        with Bars(quiet=as_json) as bars:
            model = fit_digits(problem, s, [bars])
        comparisons.append(with_paper(compare(model, problem), compare(paper, problem)))
        if s == seed:
            ids = [f"digit {i}" for i in range(len(problem.train.X))]
            _save(model, problem.train.X, out, force=force, ids=ids, source="digits")
            replace_file(out / "truth.csv", truth_csv(ids, problem.train_truth))
    if as_json:
        _print_json([_comparison_json(c) for c in comparisons])
        return
    from cdknet.tables import comparison_tables

    for table in comparison_tables(comparisons):
        _console().print(table)
    _console().print(
        f"Run folder: {out}   Look at it in the browser: cdknet explore {out} --truth {out / 'truth.csv'}",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
@takes_options
@reads_data
def discover(
    data: DataPath,
    *,
    out: Annotated[Path, typer.Option(help="The run folder to write; it must not exist yet.")],
    new_classes: Annotated[
        int | None, typer.Option(help="How many new classes to look for. Known for sets by name.")
    ] = None,
    seed: Seed = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    samples_in_run: Annotated[
        bool,
        typer.Option("--samples/--no-samples", help="Keep a copy of the samples in the run folder."),
    ] = True,
    force: Force = False,
    as_json: Json = False,
    reading: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Learn the labelled classes of DATA and find new ones among its unlabelled samples."""
    from cdknet.runs import check_target

    check_target(out, force)
    unfinished = out.with_name(out.name + ".partial")
    if unfinished.exists() and not resume:
        if not force:
            raise FileExistsError(
                f"{out} was begun before and is not finished. Say --resume to go on with it, or --force to "
                "start afresh."
            )
        shutil.rmtree(unfinished)
    if resume and not unfinished.exists():
        raise FileNotFoundError(f"There must be an unfinished run to resume at {unfinished}. Got none.")

    samples, truth = _open(data, reading)
    if samples.y is None:
        raise ValueError(
            f"{samples.source}: discovery needs labels of the old classes. Got a file without labels. "
            "Name a table's column with --label-column, or give --labels FILE, a CSV of id and label."
        )
    if new_classes is None:
        if truth is None:
            raise ValueError("--new-classes must say how many new classes to look for. Got nothing.")
        new_classes = len(truth.new_classes)
    from cdknet.estimator import ClassDiscovery
    from cdknet.progress import Bars, CtrlC

    for note in samples.notes:
        _say(note, quiet=as_json)
    with CtrlC() as ctrl_c, Bars(quiet=as_json) as bars:
        model = ClassDiscovery(
            **options,
            n_new_classes=new_classes,
            random_state=seed,
            device=device,
            checkpoint_dir=unfinished,
            watchers=[bars, ctrl_c],
        )
        try:
            model.fit(samples.X, samples.y)
        except KeyboardInterrupt:
            raise _interrupted(unfinished) from None
    _say("Drawing the map and the gallery", quiet=as_json)
    try:
        _save(
            model,
            samples.X,
            out,
            force=force,
            ids=samples.ids.tolist(),
            source=samples.source,
            notes=samples.notes,
            columns=samples.columns,
            keep_samples=samples_in_run,
            quiet=as_json,
        )
    except KeyboardInterrupt:
        raise _interrupted(unfinished) from None
    shutil.rmtree(unfinished, ignore_errors=True)
    if truth is not None and not as_json:
        from cdknet.metrics import new_class_scores
        from cdknet.tables import scores_table

        _console().print(scores_table("Unlabelled samples", new_class_scores(truth, model.labels_)))
    _show(out, as_json)


@app.command()
@takes_options
@reads_data
def tune(
    data: DataPath,
    *,
    out: Annotated[Path, typer.Option(help="The JSON to write: what was tried, chosen, and why.")],
    new_classes: Annotated[
        int | None, typer.Option(help="How many new classes to look for. Known for sets by name.")
    ] = None,
    folds: Annotated[int, typer.Option(help="How often old classes are hidden.", min=1, max=4)] = 3,
    seed: Seed = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    force: Force = False,
    as_json: Json = False,
    reading: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Choose options for DATA by hiding some of its old classes. Interrupted, the same command goes on."""
    _check_new_file(out, force)
    samples, truth = _open(data, reading)
    if new_classes is None:
        if truth is None:
            raise ValueError("--new-classes must say how many new classes to look for. Got nothing.")
        new_classes = len(truth.new_classes)
    from cdknet.budget import Budget
    from cdknet.estimator import ClassDiscovery, device_of
    from cdknet.history import History
    from cdknet.labels import encode_labels
    from cdknet.progress import Bars, CtrlC
    from cdknet.runs import replace_file
    from cdknet.tune import tune as tune_options

    params = ClassDiscovery(**options, n_new_classes=new_classes).checked_params()
    labels, kept = encode_labels(samples.y, len(samples)), out.with_suffix(".jsonl")
    seconds = seconds_of(params["time_budget"])

    with CtrlC() as ctrl_c, Bars(quiet=as_json) as bars:
        try:
            report = tune_options(
                samples.X,
                labels.targets,
                params,
                folds=folds,
                seed=seed,
                device=device_of(device),
                history=History([bars, ctrl_c], Budget(seconds, ["tune"]) if seconds else None),
                kept=kept,
            )
        except KeyboardInterrupt:
            raise InterruptedRun(f"Finished fits are in {kept}. The same command goes on.") from None
    names = labels.old_classes
    report["hidden"] = [[str(names[c]) for c in hidden] for hidden in report["hidden"]]
    replace_file(out, json.dumps(report, indent=1).encode())
    kept.unlink(missing_ok=True)
    if as_json:
        _print_json(report)
        return
    from cdknet.tables import tuning_table

    _console().print(tuning_table(report))
    _console().print(report["why"], highlight=False)


@app.command()
@reads_data
def predict(
    run: RunFolder,
    data: DataPath,
    *,
    out: Annotated[Path, typer.Option(help="The CSV to write: id, label, new, confidence.")],
    force: Force = False,
    as_json: Json = False,
    reading: dict[str, Any],
) -> None:
    """Label the samples of DATA with the old and new classes of RUN.

    Slices of radio transmissions also get a second CSV, OUT with .groups before its ending: a line a
    transmission, by vote of its slices.
    """
    import numpy as np

    from cdknet.estimator import ClassDiscovery
    from cdknet.runs import read_config

    _check_new_file(out, force)
    model = ClassDiscovery.load(run)
    samples, _ = _open(data, reading)
    columns = read_config(run).get("columns")
    if columns is not None:
        samples = samples.aligned(tuple(columns))
    probabilities = model.predict_proba(samples.X)
    counts = _write_labels(out, samples.ids.tolist(), probabilities, model)
    written = [out]
    if samples.groups is not None:
        from cdknet.radio import vote

        groups, log_votes = vote(np.log(np.maximum(probabilities, 1e-300)), samples.groups)
        written.append(out.with_name(f"{out.stem}.groups{out.suffix}"))
        counts = _write_labels(written[-1], groups.tolist(), np.exp(log_votes), model)
    if as_json:
        _print_json({"out": [str(path) for path in written], "samples": len(samples), "counts": counts})
    else:
        names = " and ".join(map(str, written))
        _console().print(f"{len(samples)} samples labelled in {names}: {counts}", highlight=False)


@app.command()
def evaluate(
    run: RunFolder,
    truth: Annotated[Path, typer.Option(help="A CSV with columns id and label: the true classes.")],
    as_json: Json = False,
) -> None:
    """Score the labels that RUN gave to unlabelled samples against the truth."""
    from cdknet.evaluate import evaluate_run

    result = evaluate_run(run, truth)
    if as_json:
        _print_json(result.as_json())
        return
    from cdknet.tables import evaluation_tables

    for table in evaluation_tables(result):
        _console().print(table)


@app.command()
def show(run: RunFolder, as_json: Json = False) -> None:
    """What RUN holds: its classes, their sizes, how it was made."""
    _show(run, as_json)


@app.command()
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="table3 ... table6, fig3, fig4, fig5, ablation, splits, all; page: docs/results.md."
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

        _console().print(f"Written: {write_page(results, docs)}", highlight=False)
        return
    names = [[name.strip() for name in part.split(",") if name.strip()] for part in (datasets, methods)]
    cells = plan(what, seeds=seeds, budget=budget, datasets=names[0], methods=names[1])
    if dry_run:
        for cell in cells:
            sys.stdout.write(cell.key + "\n")
        return
    from cdknet.data import cache_dir
    from cdknet.progress import CellBars, CtrlC
    from cdknet.reproduce.runner import run_cells

    _say(f"Budget {budget}: {BUDGETS[budget]}", quiet=as_json)
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
        _print_json(lines)
        return
    from cdknet.reproduce.page import draw_figures, terminal_table

    _console().print(terminal_table(what, cells, lines))
    for picture in draw_figures(what, results, docs / "pictures"):
        _console().print(f"Drawn: {picture}", highlight=False)


# The explorer


Truth = Annotated[Path | None, typer.Option(help="A CSV with columns id and label: the true classes.")]
DataAgain = Annotated[
    str | None, typer.Option("--data", help="The data of RUN, where the run does not hold its samples.")
]


@app.command()
@reads_data
def explore(
    run: RunFolder,
    *,
    port: Annotated[int | None, typer.Option(help="8765, or the next free one.", min=0, max=65535)] = None,
    host: Annotated[str, typer.Option(help="The address to listen at. Others than this machine: 0.0.0.0")] = (
        "127.0.0.1"
    ),
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    truth: Truth = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Look, but change nothing.")] = False,
    data: DataAgain = None,
    as_json: Json = False,
    reading: dict[str, Any],
) -> None:
    """Look at RUN in the browser: name, merge, split and move what was found. Ctrl-C ends it."""
    _check_web()
    session = _session(run, truth, data, reading, read_only=read_only, quiet=as_json)
    from cdknet.explorer.server import Explorer, is_loopback

    server = Explorer(session, host=host, port=port)
    if as_json:
        sys.stdout.write(json.dumps({"url": server.address}) + "\n")
    else:
        sys.stdout.write(
            f"The explorer is at\n\n    {server.address}\n\nCtrl-C ends it. Every change is kept.\n"
        )
    sys.stdout.flush()
    if not is_loopback(host):
        _say("Whoever has this address can change the review, from other machines too.", quiet=as_json)
    if browser and _has_screen():
        import threading
        import webbrowser

        threading.Timer(0.5, webbrowser.open, [server.address]).start()
    server.serve_forever()


@app.command()
@reads_data
def refine(
    run: RunFolder,
    *,
    out: Annotated[Path, typer.Option(help="The run folder to write; it must not exist yet.")],
    data: DataAgain = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    force: Force = False,
    as_json: Json = False,
    reading: dict[str, Any],
) -> None:
    """Train the expansion of RUN again, on the labels as they were reviewed. Names and classes stay.

    Interrupted, the same command goes on where it was.
    """
    from cdknet.runs import check_target

    check_target(out, force)
    again = {} if data is None else _samples_again(run, data, reading)
    from cdknet.explorer.refine import refine as refine_run
    from cdknet.progress import Bars, CtrlC

    with CtrlC() as ctrl_c, Bars(quiet=as_json) as bars:
        try:
            refine_run(run, out, **again, device=device, watchers=[bars, ctrl_c], force=force)
        except KeyboardInterrupt:
            raise InterruptedRun("The same command goes on from there.") from None
    _show(out, as_json)


@app.command()
def report(
    run: RunFolder,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    truth: Truth = None,
    data: DataAgain = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write one HTML file with the map and the classes of RUN as reviewed. It opens anywhere, from disk."""
    _check_new_file(out, force)
    session = _session(run, truth, data, {}, read_only=True, quiet=as_json)
    from cdknet.explorer.report import report_html
    from cdknet.runs import replace_file

    page = report_html(session)
    replace_file(out, page)
    if as_json:
        _print_json({"out": str(out), "bytes": len(page)})
    else:
        _console().print(f"{out}: {len(page) / 1e6:.1f} MB. Open it in a browser.", highlight=False)


@app.command()
def export(
    run: RunFolder,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write: .csv, .parquet or .json.")],
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write the labels of RUN as reviewed: id, label, class, kind, given, confidence, rejected."""
    from cdknet.options import check_choice

    format = out.suffix.removeprefix(".").lower()
    check_choice("The ending of --out", format, ("csv", "parquet", "json"))
    _check_new_file(out, force)
    from cdknet.runs import replace_file

    session = _session(run, None, None, {}, read_only=True, quiet=as_json)
    replace_file(out, session.export(format))
    labels = session.labels()
    facts = {"out": str(out), "samples": len(labels["id"]), "rejected": sum(labels["rejected"])}
    if as_json:
        _print_json(facts)
    else:
        left = f", {facts['rejected']} of them rejected" if facts["rejected"] else ""
        _console().print(f"{facts['samples']} samples{left}, in {out}", highlight=False)


# Public sets


data_app = typer.Typer(help="The paper's data sets: list, info, fetch, verify.", no_args_is_help=True)
app.add_typer(data_app, name="data")
SetName = Annotated[str, typer.Argument(metavar="NAME", help="A name that cdknet data list shows.")]


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """The sets that can be had by name."""
    from cdknet import data

    described = {name: data.describe(name) for name in data.names()}
    if as_json:
        _print_json(described)
        return
    from cdknet.tables import sets_table

    _console().print(sets_table(described))


@data_app.command("info")
def data_info(
    name: SetName,
    picture: Annotated[Path | None, typer.Option(help="Write a sheet of samples to this PNG.")] = None,
    as_json: Json = False,
) -> None:
    """What a set is, where it comes from, and what to keep in mind."""
    from cdknet import data

    described = data.describe(name)
    if picture is not None:
        import io

        from cdknet.runs import replace_file

        png = io.BytesIO()
        data.sample_sheet(data.load(name, progress=_download_bar())).save(png, "PNG")
        replace_file(picture, png.getvalue())
        described["Picture"] = str(picture)
    if as_json:
        _print_json(described)
        return
    from cdknet.tables import facts_table

    _console().print(facts_table(described))


@data_app.command("fetch")
def data_fetch(name: SetName, as_json: Json = False) -> None:
    """Make sure that every file of a set is on this machine, downloading what is not."""
    from cdknet import data

    paths = [str(path) for path in data.fetch(name, progress=_download_bar())]
    if as_json:
        _print_json(paths)
    else:
        _console().print("\n".join(paths) or f"{name} needs no files.", highlight=False)


@data_app.command("verify")
def data_verify(name: SetName, as_json: Json = False) -> None:
    """Check every file of a set against its published SHA-256."""
    from cdknet import data

    checks = data.verify(name)
    if as_json:
        _print_json([check._asdict() for check in checks])
    else:
        for check in checks:
            _console().print(f"{'ok ' if check.ok else 'BAD'}  {check.file}: {check.detail}", highlight=False)
    if not all(check.ok for check in checks):
        raise ValueError(
            f"every file of {name} must be there and right. See above; try cdknet data fetch {name}."
        )


# Helpers of the commands


def _check_new_file(out: Path, force: bool) -> None:
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out} must go into a folder that exists. Got {out.parent}, which does not.")
    if out.is_dir() or (out.exists() and not force):
        what = "folder" if out.is_dir() else "file"
        raise FileExistsError(
            f"{out} must not exist yet. Got a {what} of that name. Choose another name"
            f"{'.' if out.is_dir() else ', or say --force to replace it.'}"
        )


def _check_web() -> None:
    from importlib.util import find_spec

    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise ImportError(
            f"The explorer needs {' and '.join(missing)}. Install with: pip install 'cdknet[web]'"
        )


def _session(
    run: Path,
    truth: Path | None,
    data: str | None,
    reading: dict[str, Any],
    *,
    read_only: bool = False,
    quiet: bool = False,
) -> Any:
    """A run under review, with its samples read again from DATA where asked."""
    from cdknet.explorer.folder import open_run
    from cdknet.explorer.session import Session, read_truth

    again = {} if data is None else _samples_again(run, data, reading)
    opened = open_run(run, **again, note=lambda text: _say(text, quiet=quiet))
    return Session(opened, truth=read_truth(opened, truth) if truth else None, read_only=read_only)


def _has_screen() -> bool:
    """Whether there is a desktop: without one, Python would start a browser inside this terminal."""
    import os

    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _samples_again(run: Path, data: str, reading: dict[str, Any]) -> dict[str, Any]:
    """The samples of a run from the file it was made from, and what they are called."""
    from cdknet.runs import read_config

    samples, _ = _open(data, reading)
    columns = read_config(run).get("columns")
    if columns is not None:
        samples = samples.aligned(tuple(columns))
    return {"samples": samples.X, "sample_ids": samples.ids.tolist()}


def _open(data: str, reading: dict[str, Any]) -> tuple[Samples, HiddenTruth | None]:
    """A user's file, or the training part of a set by name with the truth that only scoring may see."""
    import numpy as np

    import cdknet.data as sources

    if data in sources.names() and not Path(data).exists():
        dataset = sources.load(data, progress=_download_bar())
        problem = dataset.problem()
        ids = np.array([f"{data} {i}" for i in range(len(problem.train.X))])
        samples = sources.Samples(problem.train.X, problem.train.y, ids, data, groups=dataset.groups_train)
        return samples, problem.train_truth
    if not Path(data).exists() and (near := difflib.get_close_matches(data, sources.names(), n=1)):
        raise FileNotFoundError(f"{data}: no such file, folder or set. Did you mean the set {near[0]!r}?")
    given = {name: value for name, value in reading.items() if value is not None}
    if "shape" in given:
        given["shape"] = _shape(given["shape"])
    labels = given.pop("labels", None)
    samples = sources.open(data, **given)
    return (samples if labels is None else sources.attach_labels(samples, labels)), None


def _shape(text: str) -> tuple[int, ...]:
    parts = text.lower().replace(",", "x").split("x")
    if not all(part.strip().isdigit() for part in parts):
        raise ValueError(f"--shape must be whole numbers with x between them, such as 28x28. Got {text!r}.")
    return tuple(int(part) for part in parts)


def _write_labels(out: Path, ids: list[str], probabilities: Any, model: ClassDiscovery) -> dict[str, int]:
    """A CSV of the most probable class of each sample; how many each class got."""
    import csv
    import io

    from cdknet.runs import replace_file

    best = probabilities.argmax(axis=1)
    n_old = len(model.classes_) - model.n_new_classes_
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("id", "label", "new", "confidence"))
    for name, c, p in zip(ids, best, probabilities.max(axis=1), strict=True):
        writer.writerow((name, model.classes_[c], int(c >= n_old), f"{p:.4f}"))
    replace_file(out, text.getvalue().encode())
    return {str(name): int((best == c).sum()) for c, name in enumerate(model.classes_)}


def _download_bar() -> Callable[[str, int, int | None], None]:
    """A bar on stderr for each file that is downloaded; nothing where none is."""
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        *Progress.get_default_columns()[:2],
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bars = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, Any] = {}

    def show(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            bars.start()
            tasks[name] = bars.add_task(name, total=total)
        bars.update(tasks[name], completed=done, total=total)
        if done == total:
            bars.stop()

    return show


def _save(
    model: ClassDiscovery,
    X: Any,
    out: Path,
    *,
    force: bool,
    ids: list[str],
    source: str,
    notes: Any = (),
    columns: Any = None,
    keep_samples: bool = True,
    quiet: bool = True,
) -> None:
    """Write the run folder with its pictures."""
    from dataclasses import replace

    from cdknet.pictures import illustrated
    from cdknet.runs import LARGEST_SAMPLES, storable, write_run

    kept = storable(X) if keep_samples else None
    if keep_samples and kept is None:
        _say(
            f"The samples are more than {LARGEST_SAMPLES / 2**30:.0f} GB and are not copied into the run: "
            "give cdknet explore and refine the --data again.",
            quiet=quiet,
        )
    run = model.to_run(ids=ids, source=source, notes=list(notes), columns=columns)
    write_run(out, replace(illustrated(run, X), samples=kept), force=force)


def _show(run: Path, as_json: bool) -> None:
    from cdknet.runs import read_run, summary

    facts = summary(read_run(run))
    if as_json:
        _print_json({"run": str(run), **facts})
        return
    from cdknet.tables import summary_tables

    for table in summary_tables(run, facts):
        _console().print(table)


def _comparison_json(comparison: Any) -> dict[str, Any]:
    return {
        "lines": [
            {"method": line.method, "train": line.train._asdict(), "held_out": line.held_out._asdict()}
            for line in comparison.lines
        ],
        "old_before": comparison.old_before,
        "old_after": comparison.old_after,
        "open_world": {k: getattr(comparison.open_world, k) for k in ("all", "old", "new")},
    }


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        _console(stderr=True).print(text, style="dim", highlight=False)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr)


def main(argv: list[str] | None = None) -> int:
    """Run a command. What is the user's to mend is said in one line, with exit code 2."""
    try:
        code = app(args=argv, prog_name="cdknet", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except InterruptedRun as interrupt:
        _complain(f"Interrupted. {interrupt}")
        return 130
    except (ValueError, OSError, TypeError, FloatingPointError, MemoryError, ImportError) as error:
        _complain(str(error) or type(error).__name__)
        return 2
    except Exception as error:  # what the command-line parser raises: Ctrl-C, or a usage error
        if type(error).__name__ == "Abort":
            _complain("Interrupted.")
            return 130
        if not hasattr(error, "format_message"):
            raise
        if message := error.format_message():  # none where the help was shown instead
            path = getattr(getattr(error, "ctx", None), "command_path", "cdknet")
            _complain(f"{message.rstrip('.')}. Try: {path} --help")
        return 2


def _complain(message: str) -> None:
    sys.stderr.write("cdknet: " + " ".join(message.split()) + "\n")


if __name__ == "__main__":
    sys.exit(main())
