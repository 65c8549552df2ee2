"""Commands that review a run: explore, refine, report, export."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdknet.cli.base import (
    Device,
    Force,
    InterruptedRun,
    Json,
    RunFolder,
    app,
    check_new_file,
    console,
    open_like,
    print_json,
    reads_data,
    say,
    show_run,
)

if TYPE_CHECKING:
    from cdknet.data import Samples

Truth = Annotated[Path | None, typer.Option(help="A CSV with columns id and label: the true classes.")]
DataAgain = Annotated[
    str | None, typer.Option("--data", help="The data of RUN, if the run does not store its samples.")
]


@app.command()
@reads_data
def explore(
    run: RunFolder,
    *,
    port: Annotated[int | None, typer.Option(help="8765, or the next free one.", min=0, max=65535)] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. 0.0.0.0: reachable from other machines.")
    ] = ("127.0.0.1"),
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    truth: Truth = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Look, but change nothing.")] = False,
    data: DataAgain = None,
    as_json: Json = False,
    reading: dict[str, Any],
) -> None:
    """Review RUN in the browser: name, merge, split and correct the discovered classes. Ctrl-C ends it."""
    _check_web()
    session = _session(run, truth, data, reading, read_only=read_only, quiet=as_json)
    from cdknet.explorer.auth import is_loopback
    from cdknet.explorer.server import Explorer

    server = Explorer(session, host=host, port=port)
    if as_json:
        sys.stdout.write(json.dumps({"url": server.address}) + "\n")
    else:
        sys.stdout.write(
            f"The explorer is at\n\n    {server.address}\n\nCtrl-C ends it. Every change is saved.\n"
        )
    sys.stdout.flush()
    if not is_loopback(host):
        say("Anyone with this address can change the review, also from other machines.", quiet=as_json)
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
    device: Device = "auto",
    force: Force = False,
    as_json: Json = False,
    reading: dict[str, Any],
) -> None:
    """Train stage 3 of RUN again on the reviewed labels. Names and classes stay.

    If it is interrupted, the same command resumes it.
    """
    from cdknet.runs.format import check_target

    check_target(out, force)
    read = _read_again(run, data, reading)
    again = {} if read is None else _as_samples(read)
    from cdknet.cli.progress import Bars, CtrlC
    from cdknet.fit.refine import refine as refine_run
    from cdknet.training.memory import keep_freed_memory

    keep_freed_memory()
    with CtrlC() as ctrl_c, Bars(quiet=as_json) as bars:
        try:
            refine_run(run, out, **again, device=device, watchers=[bars, ctrl_c], force=force)
        except KeyboardInterrupt:
            raise InterruptedRun("The same command resumes it.") from None
    show_run(out, as_json)


@app.command()
@reads_data
def report(
    run: RunFolder,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    truth: Truth = None,
    data: DataAgain = None,
    force: Force = False,
    as_json: Json = False,
    reading: dict[str, Any],
) -> None:
    """Write one HTML file with the map and the reviewed classes of RUN. It opens from disk, anywhere."""
    check_new_file(out, force)
    session = _session(run, truth, data, reading, read_only=True, quiet=as_json)
    from cdknet.explorer.report import report_html
    from cdknet.runs.files import replace_file

    page = report_html(session)
    replace_file(out, page)
    if as_json:
        print_json({"out": str(out), "bytes": len(page)})
    else:
        console().print(
            f"{out}: {len(page) / 1e6:.1f} MB. Open it in a browser.", highlight=False, markup=False
        )


@app.command()
def export(
    run: RunFolder,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write: .csv, .parquet or .json.")],
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write the reviewed labels of RUN: id, label, class, kind, given, confidence, rejected.

    In a CSV, text that a spreadsheet would read as a formula gets a leading '.
    """
    from cdknet.options import check_choice

    format = out.suffix.removeprefix(".").lower()
    check_choice("The ending of --out", format, ("csv", "parquet", "json"))
    check_new_file(out, force)
    from cdknet.runs.files import replace_file

    session = _session(run, None, None, {}, read_only=True, quiet=as_json)
    replace_file(out, session.export(format))
    labels = session.labels()
    facts = {"out": str(out), "samples": len(labels["id"]), "rejected": sum(labels["rejected"])}
    if as_json:
        print_json(facts)
    else:
        rejected = f", {facts['rejected']} of them rejected" if facts["rejected"] else ""
        console().print(f"{facts['samples']} samples{rejected}, in {out}", highlight=False, markup=False)


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
    """A run under review, with its samples read again from DATA if that is given."""
    from cdknet.explorer.folder import open_run
    from cdknet.explorer.session import Session, read_truth

    again = _read_again(run, data, reading)
    given = {} if again is None else {**_as_samples(again), "texts": again.texts}
    opened = open_run(run, **given, note=lambda text: say(text, quiet=quiet))
    session = Session(opened, truth=read_truth(opened, truth) if truth else None, read_only=read_only)
    if session.left_out:
        say(session.left_out, quiet=quiet)
    return session


def _has_screen() -> bool:
    """Whether there is a desktop. Without one, Python would start a text browser in this terminal."""
    import os

    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _read_again(run: Path, data: str | None, reading: dict[str, Any]) -> Samples | None:
    """The samples of a run, from the file it was made from; None without DATA."""
    if data is None:
        flags = [f"--{name.replace('_', '-')}" for name, value in reading.items() if value is not None]
        if flags:
            raise ValueError(
                f"{flags[0]} says how to read --data. Got it without --data. Add the file of the run."
            )
        return None
    return open_like(run, data, reading)


def _as_samples(samples: Samples) -> dict[str, Any]:
    return {"samples": samples.X, "sample_ids": samples.ids.tolist()}
