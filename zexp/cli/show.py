"""``zexp show``: one run, in the terminal or as JSON."""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Table

from zexp.tracking import StoredRun, load_run, open_store
from zexp.tracking.names import flatten, plain
from zexp.tracking.recorder import NOTES
from zexp.tracking.spool import SUMMARY_OF

STATUS_STYLE = {"FINISHED": "green", "FAILED": "red", "KILLED": "red", "RUNNING": "yellow"}


def main(argv: list[str]) -> int:
    """Print one run."""
    args = _parser().parse_args(argv)
    run = load_run(open_store(args.store, create=False), args.run)
    if args.json:
        print(json.dumps(as_json(run), indent=2, ensure_ascii=False))
    else:
        show(run, args.rows, Console())
    return 0


def as_json(run: StoredRun) -> dict[str, Any]:
    """The stable JSON form of a run; ``profile`` holds all rows of its ``functions.json``."""
    return {
        "run_id": run.run_id,
        "name": run.name,
        "experiment": run.experiment,
        "status": run.status,
        "config": run.config,
        "metrics": run.metrics,
        "profile": run.profile,
    }


def show(run: StoredRun, rows: int, console: Console) -> None:
    """Print a run as tables."""
    _header(run, console)
    if SUMMARY_OF in run.tags:
        console.print()
        console.print(Markdown(run.tags.get(NOTES, "")))
        return
    _pairs("config", {".".join(map(str, path)): plain(value) for path, value in flatten(run.config)}, console)
    own = {name: _number(value) for name, value in run.metrics.items() if not name.startswith("profile/self_pct/")}
    _pairs("metrics", own, console, justify="right")
    if run.profile:
        console.print(_profile(run.profile, rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="zexp show",
        description="Print one run: what it was, its configuration, its metrics and where the time went.",
        epilog="examples: zexp show last    zexp show 3f5228 --rows 40    zexp show last --json | jq .metrics",
    )
    parser.add_argument("run", metavar="RUN", help="run id or its beginning, run name, or `last`: the one started last")
    parser.add_argument("--json", action="store_true", help="print JSON: all values, no rounding, all profile rows")
    parser.add_argument(
        "--store",
        metavar="STORE",
        help="folder of the store, or an MLflow server's address "
        "(default: $ZEXP_STORE, else $XDG_DATA_HOME/zexp, else ~/.local/share/zexp)",
    )
    parser.add_argument("--rows", type=_count, default=20, metavar="N", help="profile rows to print (default: 20)")
    return parser


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return number


def _header(run: StoredRun, console: Console) -> None:
    started = datetime.datetime.fromtimestamp(run.started_ms / 1000).astimezone()
    took = "" if run.ended_ms is None else f", {(run.ended_ms - run.started_ms) / 1000:.1f} s"
    style = STATUS_STYLE.get(run.status, "bold")
    grid = Table.grid(padding=(0, 2))
    grid.add_row("run", f"[bold]{escape(run.name)}[/]  {run.run_id}")
    grid.add_row("experiment", escape(run.experiment))
    grid.add_row("status", f"[{style}]{run.status}[/]")
    if error := run.tags.get("error"):
        grid.add_row("error", f"[red]{escape(error)}[/]")
    grid.add_row("started", f"{started:%Y-%m-%d %H:%M:%S %Z}{took}")
    if sweep := run.tags.get("sweep"):
        grid.add_row("sweep", escape(sweep))
    console.print(grid)
    # On a line of its own and never wrapped, so that a terminal makes it a link.
    console.print(f"{run.url}  (while `zexp ui` runs)", soft_wrap=True, highlight=False, markup=False)


def _pairs(title: str, values: Mapping[str, str], console: Console, justify: Any = "left") -> None:
    if not values:
        return
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", justify=justify)
    for name, value in values.items():
        table.add_row(escape(name), escape(value))
    console.print()
    console.print(table)


def _profile(rows: list[dict[str, Any]], limit: int) -> Table:
    left = len(rows) - limit
    table = Table(
        title="\nprofile",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        caption=f"{left} more rows: --rows {len(rows)}" if left > 0 else None,
        caption_justify="left",
    )
    table.add_column("comm", no_wrap=True)
    table.add_column("symbol", overflow="fold")
    for name in ("self %", "children %", "ns/page"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("base")
    for row in rows[:limit]:
        per_page = row["ns_per_page"]
        table.add_row(
            escape(row["comm"]),
            escape(row["symbol"]),
            f"{row['self_pct']:.2f}",
            f"{row['children_pct']:.2f}",
            "" if per_page is None else f"{per_page:.3f}",
            escape(row["base"]),
        )
    return table


def _number(value: float) -> str:
    if value.is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.3f}" if 0.1 <= abs(value) < 1e15 else f"{value:.4g}"
