"""Run everything this page shows, draw its charts and put its figures into README.md.

    make charts                   or: python experiments/zswap_shrinker_flush/charts.py [--jobs 2] [--redraw]

Writes ``results.json`` (every run's figures) and ``*.svg`` beside itself; points that ``results.json`` holds already
are not run again, so remove it after a change of the model. ``--redraw`` runs nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from zexp import experiment
from zexp.compose import compose, ready

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from charting import Job, Row, collect, parser, pyplot, save  # noqa: E402

from zswap_shrinker_flush import points as page  # noqa: E402
from zswap_shrinker_flush.tables import filled, interval, mean, select, values  # noqa: E402

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

DROPPED = ("line/", "mean/", "lock/", "accounting/", "psi/slice")
"""Metrics the page has no use for, by how their names begin, but for the cgroups' pressure."""


def figures(job: Job) -> Row:
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
        if not k.startswith(DROPPED) or k.startswith("mean/psi/")
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
    """The page's charts."""
    plt = pyplot()

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
        save(figure, HERE / f"{name}.svg", title)

    scaling("wait", "Waiting for the rstat lock", "rstat/wait_s_per_s", "CPU s/s", 1e-4)
    scaling("psi", "Memory pressure", "psi/some_pct", "some, %", 1e-2)
    pool_chart(results)
    price_chart(results)
    kernels_chart(results)


def pool_chart(results: Sequence[Row]) -> None:
    """The pool of each arm against time."""
    figure, axes = pyplot().subplots(1, 2, figsize=(10, 3.2))
    for axis, name, scale, unit in ((axes[0], "pool", 4096 / 2**30, "GiB"), (axes[1], "psi/some", 1e-4, "%")):
        for arm in page.ARMS:
            times, values = select(results, set="arms", arm=arm, seed=0)[0]["series"][name]
            axis.plot([t / 1e9 for t in times], [v * scale for v in values], color=COLOURS[arm], label=arm)
        axis.set_xlabel("s")
        axis.set_ylabel(unit)
    axes[0].set_title("size of the zswap pool (its limit: 76.8 GiB)", loc="left", fontsize=9)
    axes[1].set_title("memory pressure, some", loc="left", fontsize=9)
    axes[0].legend(frameon=False)
    save(figure, HERE / "arms.svg", "The published machine, three arms")


def bars(axis: Any, results: Sequence[Row], by: str, places: Collection[str], metric: str) -> None:
    """A metric of every strategy, side by side, at each value of the label ``by``."""
    for i, strategy in enumerate(page.STRATEGIES):
        runs = [select(results, strategy=strategy, **{by: place}) for place in places]
        axis.bar(
            [x + 0.13 * (i - 2.5) for x in range(len(runs))],
            [mean(rows, metric) for rows in runs],
            0.13,
            yerr=[interval(rows, metric) for rows in runs],
            error_kw={"elinewidth": 0.7},
            color=COLOURS[strategy],
            label=strategy,
        )
    axis.set_xticks(range(len(runs)), list(places))


def price_chart(results: Sequence[Row]) -> None:
    """What staleness costs under each strategy, by scenario."""
    measures = (
        ("staleness/age_ms", "age of the statistics, ms"),
        ("staleness/error_pct", "estimate's error, %"),
        ("swapin/disk_per_s", "swap-ins from disk /s"),
        ("psi/some_pct", "memory pressure, some, %"),
    )
    figure, axes = pyplot().subplots(1, 4, figsize=(12, 3.8))
    for axis, (metric, title) in zip(axes, measures, strict=True):
        bars(axis, select(results, set="scenarios"), "scenario", page.SCENARIOS, metric)
        for label in axis.get_xticklabels():
            label.set(rotation=30, ha="right", fontsize=7)
        axis.set_title(title, loc="left", fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, ncols=6, loc="upper right", fontsize=8)
    save(figure, HERE / "price.svg", "The price of staleness")


def kernels_chart(results: Sequence[Row]) -> None:
    """Memory pressure of every kernel under every strategy."""
    figure, axis = pyplot().subplots(figsize=(12, 3.2))
    bars(axis, select(results, set="kernel strategies"), "kernel", page.KERNELS, "psi/some_pct")
    axis.set_ylabel("some, %")
    figure.legend(*axis.get_legend_handles_labels(), frameon=False, ncols=6, loc="upper right", fontsize=8)
    save(figure, HERE / "kernels.svg", "Memory pressure by kernel and strategy")


def main() -> None:
    """Run, write, draw, fill the page in."""
    args = parser(__doc__).parse_args()
    target = HERE / "results.json"
    if not args.redraw:
        collect(target, page.points(), figures, args.jobs)
    results = json.loads(target.read_text())
    draw(results)
    readme = HERE / "README.md"
    readme.write_text(filled(readme.read_text(), values(results)))


if __name__ == "__main__":
    main()
