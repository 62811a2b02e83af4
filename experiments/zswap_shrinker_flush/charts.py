"""Run everything this page shows, draw its charts and print its tables.

    make charts                   or: python experiments/zswap_shrinker_flush/charts.py [--jobs 2] [--redraw]

Writes ``results.json`` (every run's figures) and ``*.svg`` beside itself; points that ``results.json`` holds already
are not run again, so remove it after a change of the model. ``--redraw`` only draws and prints.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from zexp import experiment
from zexp.cli.compose import compose, ready

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from zswap_shrinker_flush import points as page  # noqa: E402
from zswap_shrinker_flush.tables import Row, interval, mean, select, tables  # noqa: E402

COLOURS = {
    "sync": "#c0392b",
    "ratelimited": "#2471a3",
    "skip_if_ongoing": "#1e8449",
    "wait_if_ongoing": "#b9770e",
    "min_interval": "#7d3c98",
    "never": "#7f8c8d",
    "shrinker off": "#17202a",
}
KEPT = ("pool", "psi/some")
"""Series kept of the arms' first seed."""
HISTOGRAMS = ("flush_ns/", "rstat_hold_ns/kswapd/level0", "rstat_wait_ns/kswapd/level0")


def figures(job: tuple[Row, list[str], dict[str, Row]]) -> Row:
    """Run one point, unless it is known."""
    labels, overrides, known = job
    registry = ready()
    exp = experiment.from_config(compose(overrides), registry)
    digest = exp.digest()
    if digest in known:
        return {**known[digest], **labels}
    result = experiment.run(exp, experiment.stage(exp))
    metrics = {
        k: float(f"{v:.6g}")
        for k, v in sorted(result.metrics.items())
        if not k.startswith(("line/", "mean/", "lock/", "accounting/", "psi/slice"))
    }
    row = {**labels, "config_hash": digest, "metrics": metrics, "wall_s": round(result.wall_s, 3)}
    if labels["set"] == "arms":
        row["histograms"] = {
            name: h.buckets() for name, h in sorted(result.histograms.items()) if name.startswith(HISTOGRAMS)
        }
        if labels["seed"] == 0:
            row["series"] = {
                name: [list(s.times_ns), list(s.values)] for name, s in result.series.items() if name in KEPT
            }
    return row


def draw(results: Sequence[Row]) -> None:
    """The page's charts, as SVG that does not change from one drawing to the next."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams.update({"svg.hashsalt": "zexp", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})

    def save(name: str, figure: Any, title: str) -> None:
        figure.suptitle(title, x=0.02, ha="left")
        figure.tight_layout()
        figure.savefig(HERE / f"{name}.svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)

    def scaling(name: str, title: str, metric: str, unit: str, floor: float) -> None:
        figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), sharey=True)
        for axis, by in zip(axes, ("nodes", "cgroups", "CPUs"), strict=True):
            for strategy in page.STRATEGIES:
                rows = sorted(select(results, set="scaling", axis=by, strategy=strategy), key=lambda r: r["value"])
                axis.plot(
                    [r["value"] for r in rows],
                    [max(r["metrics"].get(metric, 0.0), floor) for r in rows],
                    marker="o", markersize=3, color=COLOURS[strategy], label=strategy,
                    linestyle="--" if strategy in ("never", "ratelimited") else "-",
                )  # fmt: skip
            axis.set_xscale("log")
            axis.set_yscale("log")
            values = sorted({r["value"] for r in select(results, set="scaling", axis=by)})
            ticks = values if len(values) < 7 else values[::2]
            axis.set_xticks(ticks, [f"{v:,}" for v in ticks])
            axis.minorticks_off()
            axis.set_xlabel({"nodes": "NUMA nodes (192 CPUs)", "CPUs": "CPUs (16 a node)"}.get(by, by))
        axes[0].set_ylabel(unit)
        figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, ncols=3, loc="upper right", fontsize=8)
        save(name, figure, title)

    scaling("wait", "Waiting for the rstat lock", "rstat/wait_s_per_s", "CPU s/s", 1e-4)
    scaling("psi", "Memory pressure", "psi/some_pct", "some, %", 1e-2)
    pool_chart(results, plt, save)
    price_chart(results, plt, save)


def pool_chart(results: Sequence[Row], plt: Any, save: Callable[[str, Any, str], None]) -> None:
    """The pool of each arm against time."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.2))
    for axis, name, scale, unit in ((axes[0], "pool", 4096 / 2**30, "GiB"), (axes[1], "psi/some", 1e-4, "%")):
        for arm in page.ARMS:
            times, values = select(results, set="arms", arm=arm, seed=0)[0]["series"][name]
            axis.plot([t / 1e9 for t in times], [v * scale for v in values], color=COLOURS[arm], label=arm)
        axis.set_xlabel("s")
        axis.set_ylabel(unit)
    axes[0].set_title("size of the zswap pool (its limit: 76.8 GiB)", loc="left", fontsize=9)
    axes[1].set_title("memory pressure, some", loc="left", fontsize=9)
    axes[0].legend(frameon=False)
    save("arms", figure, "The published machine, three arms")


def price_chart(results: Sequence[Row], plt: Any, save: Callable[[str, Any, str], None]) -> None:
    """What staleness costs under each strategy, by scenario."""
    measures = (
        ("staleness/age_ms", "age of the statistics, ms"),
        ("staleness/error_pct", "estimate's error, %"),
        ("swapin/disk_per_s", "swap-ins from disk /s"),
        ("psi/some_pct", "memory pressure, some, %"),
    )
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.8))
    for axis, (metric, title) in zip(axes, measures, strict=True):
        for i, strategy in enumerate(page.STRATEGIES):
            rows = [select(results, set="scenarios", scenario=s, strategy=strategy) for s in page.SCENARIOS]
            axis.bar(
                [x + 0.13 * (i - 2.5) for x in range(len(rows))],
                [mean(r, metric) for r in rows],
                0.13,
                yerr=[interval(r, metric) for r in rows],
                error_kw={"elinewidth": 0.7},
                color=COLOURS[strategy],
                label=strategy,
            )
        axis.set_xticks(range(len(page.SCENARIOS)), list(page.SCENARIOS), rotation=30, ha="right", fontsize=7)
        axis.set_title(title, loc="left", fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, ncols=6, loc="upper right", fontsize=8)
    save("price", figure, "The price of staleness")


def main() -> None:
    """Run, write, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    parser.add_argument("--redraw", action="store_true", help="draw what results.json holds")
    args = parser.parse_args()
    target = HERE / "results.json"
    if not args.redraw:
        old = json.loads(target.read_text()) if target.exists() else []
        known = {row["config_hash"]: row for row in old}
        jobs = [(labels, overrides, known) for labels, overrides in page.points()]
        results = []
        try:
            with ProcessPoolExecutor(args.jobs) as pool:
                for i, row in enumerate(pool.map(figures, jobs)):
                    results.append(row)
                    if i % 20 == 0:
                        print(f"{i + 1}/{len(jobs)}", file=sys.stderr, flush=True)
        finally:  # what there is need not be run again
            target.write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")
    results = json.loads(target.read_text())
    draw(results)
    tables(results)


if __name__ == "__main__":
    main()
