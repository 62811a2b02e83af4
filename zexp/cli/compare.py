"""``zexp compare``: runs or the arms of a sweep beside each other."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from zexp.errors import ZexpError
from zexp.tracking import open_store

if TYPE_CHECKING:
    from zexp.compare import Arms, Pair, RunSet

WIDE = 240
"""Columns where no terminal sets a limit: what is piped must not be wrapped."""


def main(argv: list[str]) -> int:
    """Compare, and print or draw."""
    args = _parser().parse_args(argv)
    _check(args)
    from zexp.compare import arrange, load
    from zexp.compare.arms import check_comparable
    from zexp.compare.comparison import compare

    runs = load(open_store(args.store, create=False), args.refs).only(args.at)
    arms = arrange(runs, args.by, args.baseline)
    if args.chart is not None:
        return _chart(args, runs, arms)
    metrics = arms.chosen(args.metric) if args.metric else None
    check_comparable(arms, metrics)
    if args.pivot is None and len(arms.names) < 2:
        raise ZexpError(f"{runs.title}: only one arm ({', '.join(arms.names)}), so there is nothing to compare it with")
    pairs = compare(arms, metrics, args.least) if args.pivot is None else []
    _print(args, runs, arms, pairs)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Options that need each other."""
    if args.chart is None and (args.over or args.output):
        raise ZexpError(f"{'--over' if args.over else '-o'}: goes with --chart METRIC")
    if args.chart is not None and args.output is None:
        raise ZexpError("--chart: say where to draw it, with -o FILE.png or -o FILE.svg")
    if args.chart is not None and args.output.suffix not in (".png", ".svg"):
        raise ZexpError(f"-o {args.output}: must end in .png or .svg")


def _chart(args: argparse.Namespace, runs: RunSet, arms: Arms) -> int:
    from zexp.compare import charts, units
    from zexp.compare.arms import check_comparable

    metric = arms.one(args.chart)
    check_comparable(arms, [metric])
    numeric = [key for key in arms.keys if units.numbers(runs.values(key))]
    over = runs.key(args.over, "--over") if args.over else next(iter([*numeric, *arms.keys]), None)
    if over == arms.by:
        over = None
    elif over is not None and over not in arms.keys:
        raise ZexpError(f"--over {args.over}: seeds are what intervals are made of; over {', '.join(arms.keys)}")
    drawn = charts.draw(charts.chart(arms, metric, over), args.output.suffix.removeprefix("."))
    write(args.output, drawn)
    print(args.output)
    return 0


def _print(args: argparse.Namespace, runs: RunSet, arms: Arms, pairs: list[Pair]) -> None:
    from zexp.compare import comparison, document
    from zexp.compare.pivot import pivot
    from zexp.compare.profile_diff import profile_diff

    profile = profile_diff(runs, arms) if args.profile else None
    table = None
    if args.pivot is not None:
        row, column = (runs.key(text, "--pivot") for text in args.pivot[:2])
        table = pivot(arms, row, column, arms.one(args.pivot[2]))
    if args.format == "json":
        found: dict[str, object] = {"what": runs.title, "by": arms.by, "arms": arms.names}
        found["pairs"] = [comparison.as_json(pair) for pair in pairs]
        found |= {"profile": profile.as_json()} if profile else {}
        found |= {"pivot": table.as_json()} if table else {}
        print(json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False))
        return
    headlines = [line.metric for line in arms.workload.headlines]
    blocks: list[document.Block] = [
        comparison.table(arms, pair, pair.shown(headlines, args.all or args.metric is not None)) for pair in pairs
    ]
    blocks += [profile.grid(args.all)] if profile else []
    blocks += [table.grid()] if table else []
    by = f", by {arms.by}" if arms.by else ""
    section = document.Section("", tuple(blocks))
    page = document.Page(f"zexp compare: {runs.title}", f"{', '.join(arms.names)}{by}", (section,))
    if args.format == "text":
        document.text(page, Console(width=None if sys.stdout.isatty() else WIDE))
    else:
        sys.stdout.write(document.html(page) if args.format == "html" else document.markdown(page))


def write(path: Path, content: bytes) -> None:
    """Write a file; a mistake in its path is a ``ZexpError``."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ZexpError(f"-o {path}: cannot write it ({error.strerror})") from error


def add_store(parser: argparse.ArgumentParser) -> None:
    """The option that says where the runs are."""
    parser.add_argument(
        "--store",
        metavar="DIR|URL",
        help="folder of the store, or an MLflow server (default: $ZEXP_STORE, else $XDG_DATA_HOME/zexp, "
        "else ~/.local/share/zexp)",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="zexp compare",
        description="Compare runs, or the arms of a sweep: metrics with intervals, differences, verdicts.",
        epilog="examples: zexp compare last-sweep    zexp compare 3f52 91ab --profile    "
        "zexp compare last-sweep --pivot workload.processes policy/flush time/total_ms    "
        "zexp compare last-sweep --chart time/total_ms --over workload.processes -o time.svg",
    )
    add = parser.add_argument
    add(
        "refs",
        nargs="+",
        metavar="REF",
        help="sweep ids or their beginnings, or `last-sweep`; or runs: ids, names, `last`",
    )
    add("--by", metavar="KEY", help="swept key that makes the arms (default: the policy, else the first key swept)")
    add("--baseline", metavar="VALUE", help="the arm others are compared with (default: the first)")
    add("--at", action="append", default=[], metavar="KEY=VALUE", help="only runs of which this holds; repeatable")
    add("--metric", action="append", metavar="GLOB", help="metrics to compare; repeatable")
    add("--all", action="store_true", help="show all metrics, not only the headlines and those that differ most")
    add("--least", type=_percent, default=0.5, metavar="PCT", help="a smaller difference in %% is none (default: 0.5)")
    add("--profile", action="store_true", help="where the time goes, in perf diff's style")
    add("--pivot", nargs=3, metavar=("ROW", "COLUMN", "METRIC"), help="a table of two swept keys")
    add("--chart", metavar="METRIC", help="draw a metric, a line an arm")
    add("--over", metavar="KEY", help="the swept key of the chart's x axis (default: the first that has numbers)")
    add("-o", dest="output", type=Path, metavar="FILE.png|svg", help="where to draw the chart")
    add("--format", choices=["text", "markdown", "json", "html"], default="text", help="default: text")
    add_store(parser)
    return parser


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of % from 0 to 100")
    return value
