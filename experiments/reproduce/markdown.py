"""Markdown for the page: templates from `pages/`, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

PAGES = Path(__file__).parent / "pages"


def fill(name: str, **values: object) -> str:
    """The template pages/NAME.md with each $placeholder replaced by its value."""
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    return Template(text).substitute({key: str(value) for key, value in values.items()}).strip()


def paragraph(name: str) -> str:
    """The template pages/NAME.md, which has no placeholders, as one line."""
    return " ".join(fill(name).split())


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table. A column whose name ends in a colon holds numbers and is right-aligned."""
    edges = "".join("---:|" if name.endswith(":") else "---|" for name in columns)
    lines = [[name.removesuffix(":") for name in columns], *rows]
    head, *body = [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines]
    return "\n".join([head, f"|{edges}", *body])


def section(name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], **values: object) -> str:
    """The template pages/NAME.md with a table; empty if the table has no rows."""
    return fill(name, table=table(columns, rows), **values) if rows else ""


def block(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table under a heading of its own, as part of a section."""
    return f"### {title}\n\n{table(columns, rows)}"


def section_of_blocks(name: str, blocks: Sequence[str]) -> str:
    """The template pages/NAME.md with several blocks; empty if there are none."""
    return fill(name, blocks="\n\n".join(blocks)) if blocks else ""
