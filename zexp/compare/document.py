"""A page of tables, charts and sentences, written as text, Markdown or one self-contained HTML file.

Whatever a page contains may come from a user: each writer escapes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from zexp.compare.charts import Chart, draw

Kind = Literal["text", "number", "code", "verdict"]
TEMPLATE = Path(__file__).with_name("page.html.j2")


@dataclass(frozen=True)
class Column:
    """The head of a column, and what its cells are."""

    name: str
    kind: Kind = "text"


@dataclass(frozen=True)
class Grid:
    """A table."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Points:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Commands:
    """What to type."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """A chart under a file name."""

    name: str
    chart: Chart

    @cached_property
    def svg(self) -> str:
        """The chart for a page: its text in the page's font and colour, without references to anything."""
        text = draw(self.chart, "svg").decode()
        text = text[text.index("<svg") :]
        text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
        # names are made of what they name, so equal ones of two charts on a page are the same drawing
        return text.replace("#1b1f24", "currentColor")

    @cached_property
    def png(self) -> bytes:
        """The chart as a file of its own."""
        return draw(self.chart, "png")


Block = str | Grid | Points | Commands | Figure


@dataclass(frozen=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: tuple[Block, ...]
    folded: bool = False
    """In HTML, closed until somebody opens it (and always open on paper)."""


@dataclass(frozen=True)
class Page:
    """A title, a line about it, and sections."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]

    def figures(self) -> list[Figure]:
        """All charts, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]


def text(page: Page, console: Console) -> None:
    """Print a page, without its charts."""
    for section in page.sections:
        for block in section.blocks:
            match block:
                case Grid():
                    if block.title:
                        console.print(block.title, style="bold", markup=False, highlight=False, soft_wrap=True)
                    console.print(_rich(block))
                    if block.caption:
                        console.print(block.caption, style="dim", markup=False, highlight=False)
                case Points():
                    for item in block.items:
                        console.print(f"- {item}", markup=False, highlight=False)
                case Commands():
                    for line in block.lines:
                        console.print(line, markup=False, highlight=False, soft_wrap=True)
                case str():
                    console.print(block, markup=False, highlight=False)
                case Figure():
                    continue
            console.print()


STYLES = {"higher": "bold", "lower": "bold", "mixed": "bold magenta", "no difference": "dim", "equal": "dim"}


def _rich(grid: Grid) -> Table:
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in grid.columns:
        table.add_column(
            Text(column.name),
            justify="right" if column.kind == "number" else "left",
            no_wrap=column.kind in ("number", "verdict"),
            overflow="fold",
        )
    for row in grid.rows:
        table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
    return table


def markdown(page: Page, folder: str = "charts") -> str:
    """A page as Markdown; charts are files in ``folder``."""
    lines = [f"# {_md(page.title)}", "", _md(page.subtitle), ""]
    for section in page.sections:
        lines += [f"## {_md(section.title)}", ""] if section.title else []
        for block in section.blocks:
            lines += [*_md_block(block, folder), ""]
    return "\n".join(lines).rstrip() + "\n"


def _md_block(block: Block, folder: str) -> list[str]:
    match block:
        case Grid():
            rule = ["---:" if column.kind == "number" else "---" for column in block.columns]
            rows = [[column.name for column in block.columns], rule]
            lines = [f"**{_md(block.title)}**", ""] if block.title else []
            lines += [_md_row([_md(cell) for cell in row] if row is not rule else rule) for row in rows]
            for cells in block.rows:
                shown = zip(block.columns, cells, strict=True)
                lines.append(_md_row([_code(c) if column.kind == "code" and c else _md(c) for column, c in shown]))
            return [*lines, "", f"*{_md(block.caption)}*"] if block.caption else lines
        case Points():
            return [f"- {_md(item)}" for item in block.items]
        case Commands():
            return [f"    {' '.join(line.split())}" for line in block.lines]
        case Figure():
            return [f"![{_md(block.chart.title)}]({folder}/{block.name}.png)"]
        case str():
            return [_md(block)]


def _md_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _md(value: str) -> str:
    """Text that Markdown shows as it is, also inside a table."""
    value = " ".join(value.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*\[\]|]|(?<!\w)_|_(?!\w))", r"\\\1", value)


def _code(value: str) -> str:
    """A name; as code unless it contains what cannot stand in code, in a table."""
    return _md(value) if re.search(r"[`|<>&\s\\]", value) else f"`{value}`"


def html(page: Page) -> str:
    """A page as one HTML file that loads nothing."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.tests["grid"] = lambda block: isinstance(block, Grid)
    environment.tests["points"] = lambda block: isinstance(block, Points)
    environment.tests["commands"] = lambda block: isinstance(block, Commands)
    environment.tests["figure"] = lambda block: isinstance(block, Figure)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(page=page) + "\n"
