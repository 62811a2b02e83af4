"""Collects the rows that the benchmarks measure, and prints them as one table at the end."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

import pytest
from rich.console import Console
from rich.table import Table

from . import programs


@dataclass
class Report:
    """What was measured: what, on which terms, how much, and what it should be."""

    rows: list[tuple[str, str, str, str]] = field(default_factory=list)

    def add(self, what: str, zexp: str, other: str, ratio: float | None = None, wanted: str = "") -> None:
        """One row; ``wanted`` is the bound of ``ratio`` and its aim."""
        shown = "" if ratio is None else f"{ratio:.3g}"
        self.rows.append((what, zexp, other, f"{shown:>6}  {wanted}".rstrip()))


REPORT = Report()


@pytest.fixture(scope="session")
def report() -> Report:
    """The table, with the virtual machine loaded so that no row contains its compilation."""
    programs.warm_up()
    return REPORT


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    if not REPORT.rows:
        return
    table = Table("measurement", "zexp", "against", "ratio", title="zexp benchmarks")
    for row in REPORT.rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=120).print(table)
    terminalreporter.write(text.getvalue())
