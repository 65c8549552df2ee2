"""The command line. Heavy imports wait inside the commands, so that --help answers at once."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdknet.options import ALL_OPTIONS

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
LabelColumn = Annotated[str | None, typer.Option(help="Tables: the column of labels; blank = unlabelled.")]
ImageSize = Annotated[int | None, typer.Option(help="Folders of images: pixels a side.", min=6)]


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` a flag for every option, in place of its **options."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    for group in ALL_OPTIONS:
        for f in fields(group):
            if f.name == "n_new_classes":  # --new-classes, spelt out in the command
                continue
            choices = f"  ({', '.join(f.metadata['choices'])})" if f.metadata["choices"] else ""
            flag = typer.Option(help=f.metadata["help"] + choices, rich_help_panel=group.__doc__)
            kind = inspect.Parameter.KEYWORD_ONLY
            annotation = Annotated.__class_getitem__((f.type, flag))  # type: ignore[attr-defined]
            parameters.append(inspect.Parameter(f.name, kind, default=f.default, annotation=annotation))

    def with_flags(**values: Any) -> None:
        command(**values)

    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
    with_flags.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_flags


class InterruptedRun(Exception):
    """Ctrl-C during a run that can be resumed."""


# Commands


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The run folder to write.")] = Path("demo-run"),
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(help="Run this many seeds, and show their mean.", min=1)] = 1,
    as_json: Json = False,
    force: Force = False,
) -> None:
    """Digits 0-4 are known, 5-9 are not: find them, and compare with simpler methods. About a minute."""
    from cdknet.demo import compare, digits_problem, fit_digits
    from cdknet.progress import Bars
    from cdknet.runs import check_target

    check_target(out, force)
    problem = digits_problem()
    comparisons = []
    for s in range(seed, seed + seeds):
        with Bars(quiet=as_json) as bars:
            model = fit_digits(problem, s, [bars])
        comparisons.append(compare(model, problem))
        if s == seed:
            ids = [f"digit {i}" for i in range(len(problem.train.X))]
            _save(model, problem.train.X, out, force=force, ids=ids, source="digits")
    if as_json:
        _print_json([_comparison_json(c) for c in comparisons])
        return
    from cdknet.tables import comparison_tables

    for table in comparison_tables(comparisons):
        _console().print(table)
    _console().print(
        f"Run folder: {out}   Look at {out / 'pictures'}, or: cdknet show {out}", highlight=False
    )


@app.command()
@takes_options
def discover(
    data: DataPath,
    *,
    out: Annotated[Path, typer.Option(help="The run folder to write; it must not exist yet.")],
    new_classes: Annotated[
        int | None, typer.Option(help="How many new classes to look for. Known for sets by name.")
    ] = None,
    seed: Seed = 0,
    label_column: LabelColumn = None,
    image_size: ImageSize = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    force: Force = False,
    as_json: Json = False,
    **options: Any,
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

    samples, truth = _open(data, label_column, image_size)
    if samples.y is None:
        raise ValueError(
            f"{samples.source}: discovery needs labels of the old classes. Got a file without labels."
        )
    if new_classes is None:
        if truth is None:
            raise ValueError("--new-classes must say how many new classes to look for. Got nothing.")
        new_classes = len(truth.new_classes)
    from cdknet.estimator import ClassDiscovery
    from cdknet.progress import Bars

    for note in samples.notes if not as_json else ():
        _console(stderr=True).print(note, style="dim", highlight=False)
    with Bars(quiet=as_json) as bars:
        model = ClassDiscovery(
            **options,
            n_new_classes=new_classes,
            random_state=seed,
            device=device,
            checkpoint_dir=unfinished,
            watchers=[bars],
        )
        try:
            model.fit(samples.X, samples.y)
        except KeyboardInterrupt:
            raise InterruptedRun(f"What was learned is in {unfinished}. Add --resume to go on.") from None
    _save(
        model,
        samples.X,
        out,
        force=force,
        ids=samples.ids.tolist(),
        source=samples.source,
        notes=samples.notes,
    )
    shutil.rmtree(unfinished)
    if truth is not None and not as_json:
        from cdknet.metrics import new_class_scores
        from cdknet.tables import scores_table

        _console().print(scores_table("Unlabelled samples", new_class_scores(truth, model.labels_)))
    _show(out, as_json)


@app.command()
def predict(
    run: RunFolder,
    data: DataPath,
    out: Annotated[Path, typer.Option(help="The CSV to write: id, label, new, confidence.")],
    label_column: LabelColumn = None,
    image_size: ImageSize = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Label the samples of DATA with the old and new classes of RUN."""
    import csv
    import io

    from cdknet.estimator import ClassDiscovery
    from cdknet.runs import replace_file

    if out.exists() and not force:
        raise FileExistsError(
            f"{out} must not exist yet. Got a file of that name. Say --force to replace it."
        )
    model = ClassDiscovery.load(run)
    samples, _ = _open(data, label_column, image_size)
    probabilities = model.predict_proba(samples.X)
    best = probabilities.argmax(axis=1)
    n_old = len(model.classes_) - model.n_new_classes_
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("id", "label", "new", "confidence"))
    for name, c, p in zip(samples.ids.tolist(), best, probabilities.max(axis=1), strict=True):
        writer.writerow((name, model.classes_[c], int(c >= n_old), f"{p:.4f}"))
    replace_file(out, text.getvalue().encode())
    counts = {str(name): int((best == c).sum()) for c, name in enumerate(model.classes_)}
    if as_json:
        _print_json({"out": str(out), "samples": len(best), "counts": counts})
    else:
        _console().print(f"{len(best)} samples labelled in {out}: {counts}", highlight=False)


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


# Helpers of the commands


def _open(data: str, label_column: str | None, image_size: int | None) -> tuple[Samples, HiddenTruth | None]:
    """A user's file, or the training part of a set by name with the truth that only scoring may see."""
    import numpy as np

    import cdknet.data as sources

    if data in sources.names() and not Path(data).exists():
        problem = sources.load(data).problem()
        ids = np.array([f"{data} {i}" for i in range(len(problem.train.X))])
        return sources.Samples(problem.train.X, problem.train.y, ids, data), problem.train_truth
    return sources.open(data, label_column=label_column, image_size=image_size), None


def _save(
    model: ClassDiscovery, X: Any, out: Path, *, force: bool, ids: list[str], source: str, notes: Any = ()
) -> None:
    """Write the run folder with its pictures."""
    from dataclasses import replace

    from cdknet import pictures
    from cdknet.runs import write_run

    run = model.to_run(ids=ids, source=source, notes=list(notes))
    points = pictures.map_2d(model.embedding_, seed=model.seed_)
    new = model.classes_[-model.n_new_classes_ :]
    drawn = {
        "map.png": pictures.draw_map(points, model.labels_, model.classes_, len(new)),
        "gallery.png": pictures.draw_gallery(X, model.labels_, model.confidence_, new.tolist()),
        "history.png": pictures.draw_history(model.history_),
    }
    write_run(out, replace(run, embedding=run.embedding | {"map": points}, pictures=drawn), force=force)


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
    except (ValueError, OSError, TypeError, FloatingPointError, MemoryError) as error:
        _complain(str(error) or type(error).__name__)
        return 2
    except Exception as error:  # what the command-line parser raises: Ctrl-C, or a usage error
        if type(error).__name__ == "Abort":
            _complain("Interrupted.")
            return 130
        if not hasattr(error, "format_message"):
            raise
        _complain(f"{error.format_message()} Try: cdknet --help")
        return 2


def _complain(message: str) -> None:
    sys.stderr.write("cdknet: " + " ".join(message.split()) + "\n")


if __name__ == "__main__":
    sys.exit(main())
