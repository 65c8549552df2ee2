"""Commands for data sets by name: data list, info, fetch, verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cdknet.cli.base import Force, Json, app, check_new_file, console, download_bar, print_json

data_app = typer.Typer(help="Data sets by name: list, info, fetch, verify.", no_args_is_help=True)
app.add_typer(data_app, name="data")
SetName = Annotated[str, typer.Argument(metavar="NAME", help="A name from: cdknet data list")]


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """List the data sets that are available by name."""
    from cdknet import data

    described = {name: data.describe(name) for name in data.names()}
    if as_json:
        print_json(described)
        return
    from cdknet.cli.tables import sets_table

    console().print(sets_table(described))


@data_app.command("info")
def data_info(
    name: SetName,
    picture: Annotated[
        Path | None, typer.Option(help="Write a contact sheet of samples to this PNG.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Describe a data set: its content, its source and its caveats."""
    from cdknet import data

    described = data.describe(name)
    if picture is not None:
        check_new_file(picture, force)
        if described["Kind"] == "texts":
            raise ValueError(
                f"--picture is about samples that are pictures. Got {name}: texts. Leave it out."
            )
        import io

        from cdknet.runs.files import replace_file

        png = io.BytesIO()
        with download_bar() as progress:
            dataset = data.load(name, progress=progress)
        data.sample_sheet(dataset).save(png, "PNG")
        replace_file(picture, png.getvalue())
        described["Picture"] = str(picture)
    if as_json:
        print_json(described)
        return
    from cdknet.cli.tables import facts_table

    console().print(facts_table(described))


@data_app.command("fetch")
def data_fetch(name: SetName, as_json: Json = False) -> None:
    """Download the missing files of a data set, and check all of them."""
    from cdknet import data

    with download_bar() as progress:
        paths = [str(path) for path in data.fetch(name, progress=progress)]
    if as_json:
        print_json(paths)
    else:
        console().print("\n".join(paths) or f"{name} needs no files.", highlight=False, markup=False)


@data_app.command("verify")
def data_verify(name: SetName, as_json: Json = False) -> None:
    """Check every file of a data set against its published SHA-256."""
    from cdknet import data

    checks = data.verify(name)
    if as_json:
        print_json([check._asdict() for check in checks])
    else:
        for check in checks:
            console().print(
                f"{'ok ' if check.ok else 'BAD'}  {check.file}: {check.detail}", highlight=False, markup=False
            )
    if not all(check.ok for check in checks):
        raise ValueError(
            f"every file of {name} must exist and have the published SHA-256. Got those marked BAD. "
            f"Remove them, then try: cdknet data fetch {name}"
        )
