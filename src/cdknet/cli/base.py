"""What the commands share: the program, common flags, reading of data, and printing."""

from __future__ import annotations

import difflib
import inspect
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from cdknet.options import DEFAULT_METHOD, METHODS, all_options, options_of

if TYPE_CHECKING:
    from cdknet.data import HiddenTruth, Samples

app = typer.Typer(
    help="Find the classes that nobody has labelled yet. Start with: cdknet demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing output.")]
Seed = Annotated[
    int,
    typer.Option(
        help="The same seed gives the same result, with the same number of threads (OMP_NUM_THREADS).",
        min=0,
        max=2**32 - 1,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
DataPath = Annotated[
    str,
    typer.Argument(metavar="DATA", help="A file, an image folder, or a set by name (its training part)."),
]

DEFAULT_ENCODER = "minilm"
MANY_FILES, MANY_TEXTS, MANY_SAMPLES = 500, 500, 20_000  # from this number on, there is a progress bar

# How to read DATA: options of cdknet.data.open, declared once for all commands that take DATA.
READING: dict[str, tuple[Any, str]] = {
    "labels": (Path | None, "A CSV with the columns id and label, for data without labels."),
    "label_column": (str | None, "Tables: the column with the labels; a blank cell means unlabelled."),
    "id_column": (str | None, "Tables: the column with the ids of the samples."),
    "drop": (str | None, "Tables: columns to leave out, separated by commas."),
    "fill": (bool | None, "Tables: fill missing numbers with the median of their column."),
    "text": (str | None, "Tables: columns of free text, separated by commas; other columns are not used."),
    "encoder": (
        str | None,
        "Text: what makes vectors of it, minilm (default) or wordllama.",
    ),
    "image_size": (int | None, "Folders of images: resize to a square with this many pixels per side."),
    "shape": (str | None, "All but radio: the shape of one sample, such as 28x28 or 3x32x32."),
    "sample_rate": (float | None, "Raw I/Q files: samples per second."),
    "slice_length": (int | None, "Radio: samples per slice (198)."),
    "overlap": (int | None, "Radio: samples shared by neighbouring slices (0)."),
    "energy_gate": (float | None, "Radio: drop slices more than this many dB below the loudest."),
}


def reads_data(command: Callable[..., None]) -> Callable[..., None]:
    """Add a flag to `command` for every option in READING; it receives them as the dict `reading`."""
    flags = [_flag(name, kind, None, help, "How to read DATA") for name, (kind, help) in READING.items()]
    return _with_flags(command, "reading", flags)


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add a flag to `command` for the method and every option; it receives them as the dict `options`."""
    help = f"How new classes are found: {', '.join(METHODS)}. With --help: the options of that method."
    flags = [_flag("method", str, DEFAULT_METHOD, help, None)]
    for one in all_options().values():
        if one.name != "n_new_classes":  # --new-classes, declared by the command itself
            choices = f"  ({', '.join(one.choices)})" if one.choices else ""
            flags.append(_flag(one.name, one.kind, one.default, one.help + choices, one.heading))
    return _with_flags(command, "options", flags)


class MethodCommand(typer.core.TyperCommand):
    """A command with options of methods: its help shows those that the method named with it reads."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--help" in args:
            read = options_of(_method_in(args))
            for parameter in self.params:
                unread = parameter.name in all_options() and parameter.name not in read
                if unread and isinstance(parameter, typer.core.TyperOption):
                    parameter.hidden = True
        return super().parse_args(ctx, args)


def _method_in(args: list[str]) -> str:
    """The method that the arguments name."""
    method = DEFAULT_METHOD
    for flag, value in zip(args, [*args[1:], ""], strict=True):
        method = value if flag == "--method" else flag.partition("=")[2] if "--method=" in flag else method
    return method


def _flag(name: str, kind: Any, default: Any, help: str, panel: str | None) -> inspect.Parameter:
    declared = Annotated.__class_getitem__((kind, typer.Option(help=help, rich_help_panel=panel)))  # type: ignore[attr-defined]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=declared)


def _with_flags(
    command: Callable[..., None], collected: str, flags: list[inspect.Parameter]
) -> Callable[..., None]:
    """`command` with `flags` instead of its parameter `collected`, which receives them as a dict."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [p for p in signature.parameters.values() if p.name != collected] + flags

    def with_flags(**values: Any) -> None:
        command(**{collected: {flag.name: values.pop(flag.name) for flag in flags}}, **values)

    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
    with_flags.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_flags


def as_flags(given: Mapping[str, Any]) -> list[str]:
    """The command-line flags for these options, without those that have their default value."""
    defaults = {"method": DEFAULT_METHOD, **{one.name: one.default for one in all_options().values()}}
    flags = []
    for name, value in given.items():
        if value is None or value == defaults.get(name):
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
    """Read a user's file, or the training part of a named data set and the truth for scoring only."""
    import numpy as np

    import cdknet.data as sources
    from cdknet.data.files import is_image_folder

    if data in sources.names() and not Path(data).exists():
        given = {name: value for name, value in reading.items() if value is not None}
        if sources.describe(data)["Kind"] == "texts":
            given.pop("encoder", None)
        if given:
            flag = f"--{next(iter(given)).replace('_', '-')}"
            raise ValueError(f"{flag} is about files. Got it with the set {data!r}. Leave it out.")
        encoder = reading.get("encoder") or DEFAULT_ENCODER
        with download_bar() as progress, bar_of("encode", MANY_TEXTS) as show:
            dataset = sources.load(data, encoder=encoder, progress=progress, encoding=show)
        problem = dataset.problem()
        y = problem.train.y
        if dataset.texts_train is not None:  # its classes have names that say something
            y = np.where(y < 0, "-1", np.array(dataset.class_names)[y])
        ids = np.array([f"{data} {i}" for i in range(len(problem.train.X))])
        more: dict[str, Any] = {
            "groups": dataset.groups_train,
            "texts": dataset.texts_train,
            "encoder": dataset.encoder,
        }
        return sources.Samples(problem.train.X, y, ids, data, **more), problem.train_truth
    if not Path(data).exists() and (
        near := difflib.get_close_matches(data, sources.names(), n=1, cutoff=0.7)
    ):
        raise FileNotFoundError(f"{data}: no such file, folder or set. Did you mean the set {near[0]!r}?")
    given = {name: value for name, value in reading.items() if value is not None}
    if "shape" in given:
        given["shape"] = _shape(given["shape"])
    if "drop" in given:
        given["drop"] = _names(given["drop"])
    if "text" in given:
        given["text"] = _names(given["text"])
    labels, encoder = given.pop("labels", None), given.pop("encoder", None)
    with bar_of("read", MANY_FILES) as show:
        if Path(data).is_dir() and is_image_folder(data):
            given["progress"] = show
        samples = sources.open(data, **given)
    if labels is not None:
        samples = sources.attach_labels(samples, labels)
    if samples.to_encode:
        return encode_texts(samples, encoder), None
    if encoder is not None:
        raise ValueError(
            f"--encoder makes vectors of texts. Got {data} without --text. Name its columns; of photos, make "
            "vectors first: cdknet embed."
        )
    return samples, None


def encode_texts(samples: Samples, encoder: str | None) -> Samples:
    """Samples of text with their vectors, under a progress bar if there are many."""
    from cdknet.encoders import encoded

    with bar_of("encode", MANY_TEXTS) as show:
        return encoded(samples, encoder or DEFAULT_ENCODER, progress=show)


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]


def open_labelled(data: str, reading: dict[str, Any]) -> tuple[Samples, HiddenTruth | None]:
    """The same for commands that need labels of old classes."""
    samples, truth = open_data(data, reading)
    if samples.y is None:
        raise ValueError(
            f"{samples.source}: discovery needs labels of the old classes. Got none. Name a table's column "
            "with --label-column, put images into one sub-folder per class and one named unlabelled/, or "
            "give --labels FILE, a CSV of id and label."
        )
    return samples, truth


def open_like(run: Path, data: str, reading: dict[str, Any]) -> Samples:
    """Read a user's file in the same way as the data of the run: images in the same size, columns in the same
    order and without those that were dropped, gaps filled with the same numbers, texts by the same encoder.
    """
    from dataclasses import replace
    from math import prod

    from cdknet.data.files import is_image_folder, is_recording, is_table
    from cdknet.data.images import is_image_shape
    from cdknet.runs.format import read_config

    config = read_config(run)
    shape = tuple(config["blueprint"]["sample_shape"])
    columns = config["columns"] or config["feature_names"]  # of a file, or of a data frame
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
    made_by = config.get("encoder")
    if made_by is not None:
        reading = _reading_of_texts(config, made_by, data, reading)
    samples, _ = open_data(data, reading)
    if made_by is not None:
        from cdknet.encoders import check_same

        check_same(made_by, samples.encoder, samples.source)
    if not asked and samples.X.shape[1:] != shape and prod(samples.X.shape[1:]) == prod(shape):
        samples = replace(samples, X=samples.X.reshape(len(samples), *shape))
    return samples if columns is None else samples.aligned(tuple(columns), config.get("categories"))


def _reading_of_texts(
    config: dict[str, Any], made_by: dict[str, Any], data: str, reading: dict[str, Any]
) -> dict[str, Any]:
    """How to read texts as those of the run: the same columns, labels and ids, the same encoder."""
    from cdknet.data.files import is_table
    from cdknet.encoders import check_same, encoder

    name = reading.get("encoder") or made_by.get("name")
    check_same(made_by, encoder(str(name)).about(), data)  # before any text is encoded
    if not Path(data).exists() or not is_table(data):
        return reading
    columns = config.get("text_columns")
    if columns and reading.get("text") is None:
        reading = {**reading, "text": ",".join(columns)}
    known = {f"{role}_if_there": config.get(f"{role}_column") for role in ("label", "id")}
    return {**reading, **known, "encoder": name}


def _shape(text: str) -> tuple[int, ...]:
    parts = text.lower().replace(",", "x").split("x")
    if not all(part.strip().isdigit() for part in parts):
        raise ValueError(f"--shape must be whole numbers separated by x, such as 28x28. Got {text!r}.")
    return tuple(int(part) for part in parts)


@contextmanager
def bar_of(what: str, many: int, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, shown only if there are at least `many` items."""
    from cdknet.cli.progress import Bars

    with Bars(quiet=quiet) as bars:

        def show(done: int, total: int) -> None:
            if total >= many:
                bars.progress(what, done, total)

        yield show


@contextmanager
def download_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress bar on stderr for each file that is downloaded in this block."""
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
            bars.stop()  # also after a failed download: it restores the cursor


def check_new_file(out: Path, force: bool) -> None:
    from cdknet.runs.files import check_writable

    if not out.parent.is_dir():
        raise FileNotFoundError(
            f"{out} must be in a folder that exists. Got {out.parent}, which does not. Create it first."
        )
    check_writable(out)
    if out.is_dir() or (out.exists() and not force):
        what = "folder" if out.is_dir() else "file"
        raise FileExistsError(
            f"{out} must not exist yet. Got a {what} of that name. Choose another name"
            f"{'.' if out.is_dir() else ', or add --force to replace it.'}"
        )


def show_run(run: Path, as_json: bool) -> None:
    from cdknet.explorer.cards import hints_of
    from cdknet.explorer.reading import traits_of
    from cdknet.runs.format import read_run
    from cdknet.runs.summary import summary

    opened = read_run(run)
    facts = {**summary(opened), "hints": hints_of(opened), "traits": traits_of(opened)}
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
    """A console that escapes control characters: names and notes are other people's text."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    from cdknet.data.checks import printable

    class Safe(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                plain = segment.control or (segment.text.isascii() and segment.text.isprintable())
                yield segment if plain else segment._replace(text=_lines(segment.text, printable))

    return Safe(stderr=stderr)


def _lines(text: str, change: Callable[[str], str]) -> str:
    return "\n".join(map(change, text.split("\n")))
