"""Tables of the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from zexp.result.published import Outcome, compare, compare_times
from zexp.workload import WORKLOADS

MAX_ROWS = 16


def plain_table(title: str) -> Table:
    """A table without lines, narrow enough for 80 columns."""
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))


def unit(run: Outcome) -> str:
    """What a run's figures are per."""
    workload = WORKLOADS.get(str(run.at("workload.name")))
    return workload.unit if workload is not None else "page"


def run_tables(console: Console, run: Outcome, title: str) -> None:
    """One run: its perf-style table, with the published figures beside it where there are any."""
    published = {c.figure: c for c in compare(run)}
    comms = {row["comm"] for row in run.profile}
    table = plain_table(title)
    if len(comms) > 1:
        table.add_column("comm", no_wrap=True)
    table.add_column("symbol", no_wrap=True, min_width=28)
    for column in ("self %", "child %", f"ns/{unit(run)}"):
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
            note = "fitted" if comparison.fitted else "predicted"
            cells += [f"{comparison.published:.2f}", f"{comparison.error:+.2f}", note]
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


def sweep_tables(console: Console, runs: Sequence[tuple[str, Outcome]], source: str) -> None:
    """All runs of a sweep side by side, and the ratios of times that were published."""
    table = plain_table("comparison")
    table.add_column("run", no_wrap=True)
    per = unit(runs[0][1])
    for column in ("time ms", f"ns/{per}", "accounting %", f"lock wait ns/{per}", f"transfers /{per}", f"M{per}s/s"):
        table.add_column(column, justify="right")
    for name, run in runs:
        m = run.metrics
        table.add_row(
            name,
            f"{m['time/total_ms']:.1f}",
            f"{m['time/cpu_ns_per_page']:.1f}",
            f"{m['accounting/self_pct']:.2f}",
            f"{m['lock/wait_ns_per_page']:.1f}",
            f"{m['line/transfers_per_page']:.3f}",
            f"{m['throughput/pages_per_s'] / 1e6:.3f}",
        )
    console.print(table)
    comparisons = [(name, c) for name, run in runs for c in compare(run)]
    if comparisons:
        beside = plain_table("published beside simulated")
        beside.add_column("arm", no_wrap=True)
        beside.add_column("self %", no_wrap=True)
        for column in ("simulated", "published", "error"):
            beside.add_column(column, justify="right")
        beside.add_column("")
        for _, c in comparisons:
            note = "fitted" if c.fitted else "predicted"
            beside.add_row(c.arm, c.figure, f"{c.simulated:.2f}", f"{c.published:.2f}", f"{c.error:+.2f}", note)
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
        console.print(f"published: {source}", style="dim")
