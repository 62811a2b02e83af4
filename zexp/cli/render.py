"""Tables of the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from zexp.result.published import Comparison, Outcome, compare, compare_times
from zexp.workload import WORKLOADS, Headline, Workload

MAX_ROWS = 16
MAX_COLUMNS = 6
"""Beside the first one, in 80 characters."""


def plain_table(title: str) -> Table:
    """A table without lines, narrow enough for 80 columns."""
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))


def workload(run: Outcome) -> type[Workload]:
    """The workload of a run."""
    return WORKLOADS.get(str(run.at("workload.name")), Workload)


def run_tables(console: Console, run: Outcome, title: str) -> None:
    """One run: its perf-style table, with the published figures beside it where there are any."""
    comparisons = compare(run)
    published = {c.figure: c for c in comparisons if not c.is_metric}
    comms = {row["comm"] for row in run.profile}
    table = plain_table(title)
    if len(comms) > 1:
        table.add_column("comm", no_wrap=True)
    table.add_column("symbol", no_wrap=True, min_width=28)
    for column in ("self %", "child %", f"ns/{workload(run).unit}"):
        table.add_column(column, justify="right", no_wrap=True)
    if published:
        for column in ("publ. %", "error", ""):
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
    shown = [row for i, row in enumerate(run.profile) if i < MAX_ROWS or row["symbol"] in published]
    for row in shown:
        cells = [str(row["comm"])] if len(comms) > 1 else []
        cells += [str(row["symbol"]), f"{row['self_pct']:.2f}", f"{row['children_pct']:.2f}"]
        cells.append(f"{row['ns_per_page']:.1f}" if row["ns_per_page"] is not None else "")
        if (comparison := published.get(str(row["symbol"]))) is not None:
            cells += [f"{comparison.published:.2f}", f"{comparison.error:+.2f}", _origin(comparison)]
        table.add_row(*cells)
    names = {str(row["symbol"]) for row in shown}
    for comparison in published.values():
        if comparison.figure not in names:
            cells = [""] if len(comms) > 1 else []
            table.add_row(*cells, comparison.figure, "absent", "", "", "absent", "0.00", "predicted", style="dim")
    console.print(table)
    if run.profile:
        base = run.profile[0]["base"] if len(comms) == 1 else "CPU time of the row's comm"
        console.print(f"100 % is the {base}", style="dim")
    if workload(run).governed_by == "flush":  # a profile alone does not say what they are about
        headlines(console, [("", run)], "in short")
    published_metrics(console, comparisons)


def headlines(console: Console, runs: Sequence[tuple[str, Outcome]], title: str) -> None:
    """The metrics by which runs of this workload are compared; a row a metric if those are many and the runs few."""
    table, lines = plain_table(title), workload(runs[0][1]).headlines
    if len(lines) > MAX_COLUMNS and len(runs) < MAX_COLUMNS:
        table.add_column("metric", no_wrap=True)
        for name, _ in runs:
            table.add_column(name, justify="right")
        for line in lines:
            table.add_row(line.title, *(headline(run, line) for _, run in runs))
    else:
        table.add_column("run", no_wrap=True)
        for line in lines[:MAX_COLUMNS]:
            table.add_column(line.title, justify="right")
        for name, run in runs:
            table.add_row(name, *(headline(run, line) for line in lines[:MAX_COLUMNS]))
    console.print(table)


def headline(run: Outcome, line: Headline) -> str:
    """One cell."""
    return f"{run.metrics.get(line.metric, 0.0) * line.scale:.{line.digits}f}"


def published_metrics(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Published metrics beside the run's."""
    rows = [c for c in comparisons if c.is_metric]
    if not rows:
        return
    table = _beside("metric")
    for c in rows:
        table.add_row(c.arm, c.figure, f"{c.simulated:.4g}", f"{c.published:.4g}", f"{c.error:+.3g}", _origin(c))
    console.print(table)


def _beside(figure: str) -> Table:
    """A table of published figures beside simulated ones."""
    table = plain_table("published beside simulated")
    for column in ("arm", figure):
        table.add_column(column, no_wrap=True)
    for column in ("simulated", "published", "error"):
        table.add_column(column, justify="right")
    table.add_column("")
    return table


def _origin(c: Comparison) -> str:
    return "fitted" if c.fitted else "predicted"


def sweep_tables(console: Console, runs: Sequence[tuple[str, Outcome]], source: str) -> None:
    """All runs of a sweep side by side, and the ratios of times that were published."""
    headlines(console, runs, "comparison")
    compared = [c for _, run in runs for c in compare(run)]
    published_metrics(console, compared)
    comparisons = [c for c in compared if not c.is_metric]
    if comparisons:
        beside = _beside("self %")
        for c in comparisons:
            beside.add_row(c.arm, c.figure, f"{c.simulated:.2f}", f"{c.published:.2f}", f"{c.error:+.2f}", _origin(c))
        for ratio in compare_times([run for _, run in runs]):
            beside.add_row(
                ratio.ratio,
                "ratio of times",
                f"{ratio.simulated:.4f}",
                f"{ratio.low:.2f}-{ratio.high:.2f}",
                f"{ratio.error:+.4f}",
                "predicted",
            )
        console.print(beside)
    if compared:
        console.print(f"published: {source}", style="dim")
