"""The command that only counts: how-many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cdknet.cli.base import (
    DataPath,
    Device,
    Force,
    InterruptedRun,
    Json,
    MethodCommand,
    Seed,
    app,
    check_new_file,
    console,
    open_labelled,
    print_json,
    reads_data,
    say,
    takes_options,
)
from cdknet.options import seconds_of


@app.command("how-many", cls=MethodCommand)
@takes_options
@reads_data
def how_many(
    data: DataPath,
    *,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="A PNG to write: the number at each level of detail.")
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    force: Force = False,
    as_json: Json = False,
    reading: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """How many new classes are there among the unlabelled samples of DATA? With an interval, and why.

    Two short fits, each with half of the old classes hidden. discover does the same without --new-classes.
    """
    if picture is not None:
        check_new_file(picture, force)
    samples, _ = open_labelled(data, reading)
    from cdknet.cli.progress import Bars, CtrlC
    from cdknet.cli.tables import counts_table
    from cdknet.estimators import ClassDiscovery
    from cdknet.fit.plan import device_of
    from cdknet.inputs.arrays import check_X
    from cdknet.inputs.labels import check_problem, encode_labels
    from cdknet.runs.figures import draw_counts
    from cdknet.runs.files import replace_file
    from cdknet.runs.summary import count_sentence
    from cdknet.training.budget import Budget
    from cdknet.training.context import FitContext
    from cdknet.training.history import History
    from cdknet.training.memory import keep_freed_memory
    from cdknet.trust.n_classes import count_new_classes

    params = ClassDiscovery(**options, device=device).checked_params()
    X, labels = check_X(samples.X), encode_labels(samples.y, len(samples))
    check_problem(labels, 1)
    for note in samples.notes:
        say(note, quiet=as_json)
    keep_freed_memory()
    seconds = seconds_of(params["time_budget"])
    with CtrlC() as ctrl_c, Bars(quiet=as_json) as bars:
        history = History([bars, ctrl_c], Budget(seconds, ["count"]) if seconds else None)
        context = FitContext(seed=seed, device=device_of(device), history=history)
        try:
            report = count_new_classes(X, labels.targets, params, context).report
        except KeyboardInterrupt:
            raise InterruptedRun("Nothing was written: start again.") from None
    report["hidden"] = [[str(labels.old_classes[c]) for c in classes] for classes in report["hidden"]]
    if picture is not None:
        replace_file(picture, draw_counts(report))
    if as_json:
        print_json(report)
        return
    sentence = count_sentence({"n_classes": report})
    console().print(sentence[:1].upper() + sentence[1:], highlight=False, markup=False)
    console().print(counts_table(report))
