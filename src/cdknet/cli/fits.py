"""Commands that fit and use a model: demo, discover, tune, predict, evaluate, show."""

from __future__ import annotations

import json
import shlex
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdknet.cli.base import (
    MANY_SAMPLES,
    DataPath,
    Device,
    Force,
    InterruptedRun,
    Json,
    MethodCommand,
    RunFolder,
    Seed,
    app,
    as_flags,
    bar_of,
    check_new_file,
    console,
    open_labelled,
    open_like,
    print_json,
    reads_data,
    say,
    show_run,
    takes_options,
)
from cdknet.options import seconds_of, unread

AT_ONCE = 4096  # samples predicted between two updates of the progress bar
POOR = 0.6  # predict warns if the run expects a smaller share of its unlabelled samples to be right

if TYPE_CHECKING:
    from cdknet.data import HiddenTruth, Samples
    from cdknet.estimators import ClassDiscovery
    from cdknet.fit.result import FitResult

NewClasses = Annotated[
    int | None,
    typer.Option(help="How many new classes to look for. Found if not given; known for sets by name."),
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The run folder to write.")] = Path("demo-run"),
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(help="Run this many seeds, and show their mean.", min=1)] = 1,
    as_json: Json = False,
    force: Force = False,
) -> None:
    """Half of the digits 0-4 have a label: name the others, find 5-9, compare methods. Two minutes."""
    import numpy as np

    from cdknet.cli.demo import compare, digits_problem, fit_digits, truth_csv
    from cdknet.cli.progress import Bars
    from cdknet.data import Samples
    from cdknet.runs.files import replace_file
    from cdknet.runs.format import check_target
    from cdknet.training.memory import keep_freed_memory

    check_target(out, force)
    keep_freed_memory()
    problem = digits_problem()
    comparisons = []
    for s in range(seed, seed + seeds):
        say("The paper's method, on samples that do not look old", quiet=as_json)
        with Bars(quiet=as_json) as bars:
            paper = fit_digits(problem, s, [bars], method="cd-knet")
        say("CD-KNet+, the default: old labels and views of each sample, together", quiet=as_json)
        with Bars(quiet=as_json) as bars:
            model = fit_digits(problem, s, [bars])
        comparisons.append(compare(paper, model, problem))
        if s == seed:
            ids = [f"digit {i}" for i in range(len(problem.train.X))]
            samples = Samples(problem.train.X, None, np.array(ids), "digits")
            _save(model, samples, out, force=force)
            replace_file(out / "truth.csv", truth_csv(ids, problem.train_truth))
    if as_json:
        print_json([_comparison_json(c) for c in comparisons])
        return
    from cdknet.cli.tables import comparison_tables

    for table in comparison_tables(comparisons):
        console().print(table)
    console().print(
        f"Run folder: {out}   Look at it in the browser: cdknet explore {out} --truth {out / 'truth.csv'}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


@app.command(cls=MethodCommand)
@takes_options
@reads_data
def discover(
    data: DataPath,
    *,
    out: Annotated[Path, typer.Option(help="The run folder to write; it must not exist yet.")],
    new_classes: NewClasses = None,
    seed: Seed = 0,
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    samples_in_run: Annotated[
        bool,
        typer.Option("--samples/--no-samples", help="Save a copy of the samples in the run folder."),
    ] = True,
    force: Force = False,
    as_json: Json = False,
    reading: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Learn the labelled classes of DATA and find new ones among its unlabelled samples."""
    from cdknet.cli.progress import Bars, CtrlC
    from cdknet.estimators import ClassDiscovery
    from cdknet.runs.files import check_writable, claimed
    from cdknet.runs.format import check_target
    from cdknet.training.memory import keep_freed_memory

    check_writable(out)
    unfinished = out.with_name(out.name + ".partial")
    with claimed(out), resumable(unfinished):
        if resume and out.exists() and not unfinished.exists():
            raise FileExistsError(
                f"{out} is finished: there is nothing to resume. Look at it with cdknet show."
            )
        check_target(out, force)
        if unfinished.exists() and not (resume or force):
            raise FileExistsError(
                f"{out} was started before and is not finished. Use --resume to continue it, or --force to "
                "start afresh."
            )
        if resume and not unfinished.exists():
            raise FileNotFoundError(f"There must be an unfinished run to resume at {unfinished}. Got none.")

        samples, truth = open_labelled(data, reading)
        new_classes = _how_many(new_classes, truth)
        ClassDiscovery(**options, n_new_classes=new_classes, device=device).checked_params()
        if unfinished.exists() and not resume:  # not before DATA was read and the options were checked
            _remove_unfinished(unfinished)
        samples = replace(samples, notes=(*samples.notes, *_without_effect(options)))
        for note in samples.notes:
            say(note, quiet=as_json)
        keep_freed_memory()
        with CtrlC() as ctrl_c, Bars(quiet=as_json) as bars, noted_doubts(quiet=as_json) as doubts:
            model = ClassDiscovery(
                **options,
                n_new_classes=new_classes,
                random_state=seed,
                device=device,
                checkpoint_dir=unfinished,
                watchers=[bars, ctrl_c],
            )
            model.fit(samples.X, samples.y, columns=samples.columns)
        samples = replace(samples, notes=(*samples.notes, *doubts))
        say("Drawing the map and the gallery", quiet=as_json)
        _save(model, samples, out, force=force, keep_samples=samples_in_run, quiet=as_json)
        shutil.rmtree(unfinished, ignore_errors=True)
    if truth is not None and not as_json:
        from cdknet.cli.tables import scores_table
        from cdknet.core.metrics import new_class_scores

        console().print(scores_table("Samples of new classes", new_class_scores(truth, model.labels_)))
    show_run(out, as_json)


@app.command(cls=MethodCommand)
@takes_options
@reads_data
def tune(
    data: DataPath,
    *,
    out: Annotated[Path, typer.Option(help="The JSON to write: what was tried, chosen, and why.")],
    new_classes: NewClasses = None,
    folds: Annotated[int, typer.Option(help="How often old classes are hidden.", min=1, max=4)] = 3,
    seed: Seed = 0,
    device: Device = "auto",
    force: Force = False,
    as_json: Json = False,
    reading: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Select options for DATA by hiding some of its old classes. Interrupted, the same command resumes it.

    Give discover what it chose, as flags; or let discover do both: --tune old-classes.
    """
    check_new_file(out, force)
    samples, truth = open_labelled(data, reading)
    new_classes = _how_many(new_classes, truth)
    if new_classes is None:
        raise ValueError(
            "--new-classes must say how many new classes to look for. Got nothing. To find out: cdknet "
            "how-many."
        )
    from cdknet.cli.progress import Bars, CtrlC
    from cdknet.estimators import ClassDiscovery
    from cdknet.fit.plan import device_of
    from cdknet.inputs.labels import encode_labels
    from cdknet.runs.files import replace_file
    from cdknet.training.budget import Budget
    from cdknet.training.context import FitContext
    from cdknet.training.history import History
    from cdknet.training.memory import keep_freed_memory
    from cdknet.trust.rehearsal import NoRehearsal
    from cdknet.trust.tune import tune as tune_options

    params = ClassDiscovery(**options, n_new_classes=new_classes, device=device).checked_params()
    labels, finished = encode_labels(samples.y, len(samples)), out.with_name(out.name + ".partial")
    seconds = seconds_of(params["time_budget"])
    keep_freed_memory()
    with CtrlC() as ctrl_c, Bars(quiet=as_json) as bars:
        history = History([bars, ctrl_c], Budget(seconds, ["tune"]) if seconds else None)
        context = FitContext(seed=seed, device=device_of(device), history=history)
        try:
            report = tune_options(samples.X, labels.targets, params, context, folds=folds, finished=finished)
        except NoRehearsal as reason:
            raise ValueError(f"Options cannot be tried on hidden old classes: {reason}.") from None
        except KeyboardInterrupt:
            begun = f"Finished fits are in {finished}. The same command resumes it."
            raise InterruptedRun(begun if finished.exists() else "It had only begun: start again.") from None
    names = labels.old_classes
    report["hidden"] = [[str(names[c]) for c in hidden] for hidden in report["hidden"]]
    replace_file(out, json.dumps(report, indent=1).encode())
    finished.unlink(missing_ok=True)
    if as_json:
        print_json(report)
        return
    from cdknet.cli.tables import tuning_table

    console().print(tuning_table(report))
    console().print(report["why"], highlight=False, markup=False)
    meant = {**reading, **options, **report["options"], "time_budget": None, "tune": None}  # tuning is done
    flags = " ".join([f"--new-classes {new_classes}", *as_flags(meant), *([f"--seed {seed}"] * (seed > 0))])
    ready = f"With them: cdknet discover {shlex.quote(data)} {flags} --out run"
    console().print(ready, highlight=False, markup=False, soft_wrap=True)


@app.command()
@reads_data
def predict(
    run: RunFolder,
    data: DataPath,
    *,
    out: Annotated[
        Path,
        typer.Option(
            help="The CSV to write: id, label, new, probability (the network's own), novelty (P(none of the "
            "classes))."
        ),
    ],
    force: Force = False,
    as_json: Json = False,
    reading: dict[str, Any],
) -> None:
    """Label the samples of DATA with the old and new classes of RUN.

    In the CSV, text that a spreadsheet would read as a formula gets a leading '.

    Slices of radio transmissions also get a second CSV, OUT with .groups before its ending: one line per
    transmission, by vote of its slices.
    """
    import numpy as np
    import torch

    from cdknet.discoverer import inputs_like, probabilities
    from cdknet.fit.codec import from_run
    from cdknet.runs.format import read_run
    from cdknet.trust.novelty import learn_unlike

    check_new_file(out, force)
    if out.suffix.lower() in (".json", ".parquet"):
        raise ValueError(f"--out of predict is a CSV. Got {out.name}. Name it {out.stem}.csv, or see --json.")
    of_groups = out.with_name(f"{out.stem}.groups{out.suffix}")
    result = from_run(read_run(run))
    samples = open_like(run, data, reading)
    notes = [*samples.notes, *_doubts_about(result)]
    for note in notes:
        say(note, quiet=as_json)
    if samples.groups is not None:
        check_new_file(of_groups, force)
    answers, novelties = [], []
    unlike = learn_unlike(torch.from_numpy(result.embedding), result.labels)
    with bar_of("predict", MANY_SAMPLES, quiet=as_json) as show:
        for start in range(0, len(samples), AT_ONCE):
            show(start, len(samples))
            part = inputs_like(result, samples.X[start : start + AT_ONCE])
            features, logits = result.model.apply(part)
            answers.append(probabilities(logits))
            novelties.append(unlike.apply(features))
        show(len(samples), len(samples))
    found = np.concatenate(answers)
    novelty = np.concatenate(novelties)
    counts = _write_labels(out, samples.ids.tolist(), found, result, novelty)
    written = [out]
    if samples.groups is not None:
        from cdknet.radio import vote

        groups, log_votes = vote(np.log(np.maximum(found, 1e-300)), samples.groups)
        written.append(of_groups)
        _write_labels(of_groups, groups.tolist(), np.exp(log_votes), result)
    if as_json:
        facts = {"samples": len(samples), "counts": counts, "notes": notes}
        facts["unlike_all_classes"] = int((novelty > 0.5).sum())
        print_json({"out": [str(path) for path in written], **facts})
    else:
        names = " and ".join(map(str, written))
        console().print(
            f"{len(samples)} samples labelled in {names}: {counts}", highlight=False, markup=False
        )
        if strangers := int((novelty > 0.5).sum()):
            console().print(
                f"{strangers} of them look like none of these classes (novelty above .5).",
                highlight=False,
                markup=False,
            )


@app.command()
def evaluate(
    run: RunFolder,
    truth: Annotated[Path, typer.Option(help="A CSV with columns id and label: the true classes.")],
    as_json: Json = False,
) -> None:
    """Score the labels that RUN gave to unlabelled samples against the truth."""
    from cdknet.runs.evaluate import evaluate_run

    result = evaluate_run(run, truth)
    if as_json:
        print_json(result.as_json())
        return
    from cdknet.cli.tables import evaluation_tables

    for table in evaluation_tables(result):
        console().print(table)


@app.command()
def show(run: RunFolder, as_json: Json = False) -> None:
    """What RUN holds: its classes, their sizes, how it was made."""
    show_run(run, as_json)


@contextmanager
def noted_doubts(*, quiet: bool) -> Iterator[list[str]]:
    """Show and collect the warnings about its data that a fit in this block gives."""
    from cdknet.data.checks import DoubtfulData

    doubts: list[str] = []

    def note(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, DoubtfulData):
            return usual(message, category, *where, **more)
        doubts.append(str(message))
        say(doubts[-1], quiet=quiet)

    with warnings.catch_warnings():
        warnings.simplefilter("always", DoubtfulData)
        usual, warnings.showwarning = warnings.showwarning, note
        yield doubts


def _without_effect(options: dict[str, Any]) -> list[str]:
    """A sentence for each option that was set but is not read by the method."""
    notes = []
    for name, readers in unread(options["method"], options).items():
        why = f"method {options['method']} does not read it" if readers else "there is no stage 3"
        of = f" ({', '.join(readers)}: yes)" if readers else ""
        notes.append(f"--{name.replace('_', '-')} changes nothing: {why}{of}.")
    return notes


def _doubts_about(result: FitResult) -> list[str]:
    """A warning if the run expects few of its own labels to be right."""
    if not result.calibration["calibrated"] or result.overall_confidence >= POOR:
        return []
    return [
        f"The run itself expects only {100 * result.overall_confidence:.0f} of 100 of its unlabelled samples "
        "to be right (cdknet show): a high probability of a new class does not make it a class."
    ]


def _how_many(asked: int | None, truth: HiddenTruth | None) -> int | None:
    """The number of new classes: as asked for, or as known for a public data set; None: to be found."""
    return len(truth.new_classes) if asked is None and truth is not None else asked


def _remove_unfinished(folder: Path) -> None:
    if not folder.is_dir() or (any(folder.iterdir()) and not (folder / "job.json").is_file()):
        raise FileExistsError(
            f"{folder} must be an unfinished run to be replaced. Got something else. Move it, or choose "
            "another --out."
        )
    shutil.rmtree(folder)


@contextmanager
def resumable(unfinished: Path) -> Iterator[None]:
    """Say how to continue a run that ends early in this block, and leave nothing that is of no use for it."""
    began_before = unfinished.exists()
    try:
        yield
    except (KeyboardInterrupt, OSError, MemoryError) as error:
        learned = unfinished.is_dir() and any(path.name != "job.json" for path in unfinished.iterdir())
        if not learned and not began_before:
            shutil.rmtree(unfinished, ignore_errors=True)
        where = f"What was learned is in {unfinished}. Add --resume to continue."
        if isinstance(error, KeyboardInterrupt):
            raise InterruptedRun(where if learned else "It had only begun: start again.") from None
        if not learned or isinstance(error, FileExistsError | FileNotFoundError):
            raise
        raise OSError(f"{error or type(error).__name__}. {where}") from None


def _write_labels(
    out: Path, ids: list[str], found: Any, result: FitResult, novelty: Any = None
) -> dict[str, int]:
    """Write a CSV of the most probable class of each sample; return how many each class got."""
    from cdknet.runs.files import replace_file, spreadsheet_bytes

    best, classes = found.argmax(axis=1), result.classes
    n_old = len(classes) - result.n_new_classes
    columns = zip(ids, best, found.max(axis=1), strict=True)
    rows = [[name, classes[c], int(c >= n_old), f"{p:.4f}"] for name, c, p in columns]
    header = ["id", "label", "new", "probability"]
    if novelty is not None:
        header, rows = (
            [*header, "novelty"],
            [[*row, f"{v:.4f}"] for row, v in zip(rows, novelty, strict=True)],
        )
    replace_file(out, spreadsheet_bytes(header, rows))
    return {str(name): int((best == c).sum()) for c, name in enumerate(classes)}


def _save(
    model: ClassDiscovery,
    samples: Samples,
    out: Path,
    *,
    force: bool,
    keep_samples: bool = True,
    quiet: bool = True,
) -> None:
    """Write the run folder with its figures."""
    from cdknet.runs.figures import illustrated
    from cdknet.runs.files import shown
    from cdknet.runs.format import LARGEST_SAMPLES, storable, write_run

    X = samples.X
    stored = storable(X) if keep_samples else None
    if keep_samples and stored is None:
        say(
            f"The samples are more than {LARGEST_SAMPLES / 2**30:.0f} GB and are not copied into the run: "
            "give cdknet explore and refine the --data again.",
            quiet=quiet,
        )
    run = model.to_run(ids=samples.ids.tolist(), source=shown(samples.source), **samples.about())
    texts = samples.texts if keep_samples else None
    write_run(out, replace(illustrated(run, X), samples=stored, texts=texts), force=force)


def _comparison_json(comparison: Any) -> dict[str, Any]:
    lines = [
        {"method": one.method, "unlabelled": one.unlabelled._asdict(), "held_out": one.held_out._asdict()}
        for one in comparison.lines
    ]
    return {**comparison._asdict(), "right": comparison.right, "lines": lines}
