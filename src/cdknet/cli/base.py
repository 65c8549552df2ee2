"""What the commands share: the program, the flags that several of them take, and what they print."""

from __future__ import annotations

import difflib
import inspect
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdknet.options import ALL_OPTIONS

if TYPE_CHECKING:
    from cdknet.data import HiddenTruth, Samples

app = typer.Typer(
    help="Find the classes that nobody has labelled yet. Start with: cdknet demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.", min=0, max=2**32 - 1)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
DataPath = Annotated[
    str,
    typer.Argument(metavar="DATA", help="A file, an image folder, or a set by name (its training part)."),
]

MANY_FILES, MANY_SAMPLES = 500, 20_000  # from so many on, reading or predicting them has a bar

# How to read DATA: the options of cdknet.data.open, declared once for every command that takes DATA.
READING: dict[str, tuple[Any, str]] = {
    "labels": (Path | None, "A CSV of id and label, for data that carry no labels."),
    "label_column": (str | None, "Tables: the column of labels; blank = unlabelled."),
    "id_column": (str | None, "Tables: the column that names the samples."),
    "drop": (str | None, "Tables: columns to leave out, by comma."),
    "fill": (bool | None, "Tables: fill gaps among numbers with the median of their column."),
    "image_size": (int | None, "Folders of images: pixels a side."),
    "shape": (str | None, "All but radio: the shape of a sample, such as 28x28 or 3x32x32."),
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


def as_flags(given: Mapping[str, Any]) -> list[str]:
    """What to type for options and ways to read DATA, as far as they are other than by default."""
    usual = {f.name: f.default for group in ALL_OPTIONS for f in fields(group)}
    flags = []
    for name, value in given.items():
        if value is None or value == usual.get(name):
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags.append(f"--{flag} {shlex.quote(str(value))}")
    return flags


class InterruptedRun(Exception):
    """Ctrl-C during a run that can be resumed."""


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


def open_data(data: str, reading: dict[str, Any]) -> tuple[Samples, HiddenTruth | None]:
    """A user's file, or the training part of a set by name with the truth that only scoring may see."""
    import numpy as np

    import cdknet.data as sources
    from cdknet.data.files import is_image_folder

    if data in sources.names() and not Path(data).exists():
        flags = [f"--{name.replace('_', '-')}" for name, value in reading.items() if value is not None]
        if flags:
            raise ValueError(f"{flags[0]} is about files. Got it with the set {data!r}, which knows itself.")
        with download_bar() as progress:
            dataset = sources.load(data, progress=progress)
        problem = dataset.problem()
        ids = np.array([f"{data} {i}" for i in range(len(problem.train.X))])
        samples = sources.Samples(problem.train.X, problem.train.y, ids, data, groups=dataset.groups_train)
        return samples, problem.train_truth
    if not Path(data).exists() and (
        near := difflib.get_close_matches(data, sources.names(), n=1, cutoff=0.7)
    ):
        raise FileNotFoundError(f"{data}: no such file, folder or set. Did you mean the set {near[0]!r}?")
    given = {name: value for name, value in reading.items() if value is not None}
    if "shape" in given:
        given["shape"] = _shape(given["shape"])
    if "drop" in given:
        given["drop"] = [name.strip() for name in given["drop"].split(",") if name.strip()]
    labels = given.pop("labels", None)
    with bar_of("read", MANY_FILES) as show:
        if Path(data).is_dir() and is_image_folder(data):
            given["progress"] = show
        samples = sources.open(data, **given)
    return (samples if labels is None else sources.attach_labels(samples, labels)), None


def open_like(run: Path, data: str, reading: dict[str, Any]) -> Samples:
    """A user's file, read as the data of the run were: images of their size, columns in their order,
    without those that were dropped, gaps filled with the same numbers.
    """
    from dataclasses import replace
    from math import prod

    from cdknet.data.files import is_image_folder, is_recording, is_table
    from cdknet.data.images import is_image_shape
    from cdknet.runs.format import read_config

    config = read_config(run)
    shape = tuple(config.get("blueprint", {}).get("sample_shape", ()))
    columns = config.get("columns") or config.get("feature_names")  # of a table, or of a data frame
    asked = reading.get("shape") is not None or reading.get("image_size") is not None
    if not asked and is_image_shape(shape) and Path(data).is_dir() and is_image_folder(data):
        reading = {**reading, "shape": "x".join(map(str, shape))}
    if columns is not None and Path(data).exists() and is_table(data):
        filled = config.get("fills") if reading.get("fill") is not False else None
        known = {f"{role}_if_there": config.get(f"{role}_column") for role in ("label", "id")}
        reading = {**reading, **known, "drop_if_there": config.get("dropped")}
        reading["text_if_there"] = config.get("categories")
        reading["fill"] = filled or reading["fill"]
    if len(shape) == 2 and reading.get("slice_length") is None and Path(data).exists() and is_recording(data):
        reading = {**reading, "slice_length": shape[1]}
    samples, _ = open_data(data, reading)
    if not asked and samples.X.shape[1:] != shape and prod(samples.X.shape[1:]) == prod(shape):
        samples = replace(samples, X=samples.X.reshape(len(samples), *shape))
    return samples if columns is None else samples.aligned(tuple(columns), config.get("categories"))


def _shape(text: str) -> tuple[int, ...]:
    parts = text.lower().replace(",", "x").split("x")
    if not all(part.strip().isdigit() for part in parts):
        raise ValueError(f"--shape must be whole numbers with x between them, such as 28x28. Got {text!r}.")
    return tuple(int(part) for part in parts)


@contextmanager
def bar_of(what: str, many: int, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr for work on many things; nothing where there are fewer than `many`."""
    from cdknet.cli.progress import Bars

    with Bars(quiet=quiet) as bars:

        def show(done: int, total: int) -> None:
            if total >= many:
                bars.progress(what, done, total)

        yield show


@contextmanager
def download_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar on stderr for each file that is downloaded in this block; nothing where none is."""
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
        if not tasks:
            bars.start()
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=total)
        bars.update(tasks[name], completed=done, total=total)

    try:
        yield show
    finally:
        if tasks:
            bars.stop()  # also where a download fails: the cursor comes back


def check_new_file(out: Path, force: bool) -> None:
    from cdknet.runs.files import check_writable

    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out} must go into a folder that exists. Got {out.parent}, which does not.")
    check_writable(out)
    if out.is_dir() or (out.exists() and not force):
        what = "folder" if out.is_dir() else "file"
        raise FileExistsError(
            f"{out} must not exist yet. Got a {what} of that name. Choose another name"
            f"{'.' if out.is_dir() else ', or say --force to replace it.'}"
        )


def show_run(run: Path, as_json: bool) -> None:
    from cdknet.explorer.cards import hints_of
    from cdknet.runs.format import read_run
    from cdknet.runs.summary import summary

    opened = read_run(run)
    facts = {**summary(opened), "hints": hints_of(opened)}
    if as_json:
        print_json({"run": str(run), **facts})
        return
    from cdknet.cli.tables import summary_tables

    for table in summary_tables(run, facts):
        console().print(table)


def say(text: str, *, quiet: bool) -> None:
    if not quiet:
        console(stderr=True).print(text, style="dim", highlight=False, markup=False)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr)
