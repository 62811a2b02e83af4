"""``zexp report``: one HTML page of a sweep, to be opened from a mail."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from zexp.cli.compare import add_store, write
from zexp.tracking import open_store


def main(argv: list[str]) -> int:
    """Write the page of a sweep."""
    args = _parser().parse_args(argv)
    from zexp.compare import document, of_sweeps, pages
    from zexp.compare.runset import find_sweep

    store = open_store(args.store, create=False)
    sweep = find_sweep(store, args.sweep)
    runs = of_sweeps(store, [sweep])
    path = args.output or Path(f"report-{sweep}.html")
    write(path, document.html(pages.report(runs)).encode())
    done = f"{len(runs.finished)} finished" + (f", {len(runs.unfinished)} without a result" if runs.unfinished else "")
    Console().print(f"{path}  ({runs.title}: {done})", markup=False, highlight=False, soft_wrap=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="zexp report",
        description="Write what a sweep found as one self-contained HTML file: findings with verdicts, charts, "
        "tables, profiles, failures, and how to reproduce it.",
        epilog="examples: zexp report last-sweep    zexp report 20261202-231815 -o storm.html",
    )
    parser.add_argument("sweep", metavar="SWEEP", help="sweep id or its beginning, or `last-sweep`")
    parser.add_argument(
        "-o", dest="output", type=Path, metavar="FILE.html", help="where to (default: report-SWEEP.html here)"
    )
    add_store(parser)
    return parser
