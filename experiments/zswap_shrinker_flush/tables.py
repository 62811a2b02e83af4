"""The tables of the page, in Markdown, from what ``results.json`` holds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from zswap_shrinker_flush import points as page

Row = dict[str, Any]
T_95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t, 95 % two-sided, by number of seeds."""


def mean(rows: Iterable[Row], metric: str) -> float:
    """Of a metric, over runs."""
    return statistics.fmean(row["metrics"].get(metric, 0.0) for row in rows)


def interval(rows: Sequence[Row], metric: str) -> float:
    """Half the 95 % confidence interval of the mean."""
    values = [row["metrics"].get(metric, 0.0) for row in rows]
    return float(T_95[len(values)] * statistics.stdev(values) / math.sqrt(len(values)))


def shown(rows: Sequence[Row], metric: str, digits: int) -> str:
    """``mean +- interval``."""
    return f"{mean(rows, metric):.{digits}f} ± {interval(rows, metric):.{digits}f}"


def select(results: Sequence[Row], **labels: Any) -> list[Row]:
    """Rows with these labels."""
    return [row for row in results if all(row.get(k) == v for k, v in labels.items())]


def table(title: str, head: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' + '---:|' * (len(head) - 1)}")
    for line in lines:
        print(f"| {' | '.join(line)} |")


def tables(results: Sequence[Row]) -> None:
    """All tables of the page."""
    arm_figures = (
        ("kswapd/flush_in_count_pct", 1), ("kernel/osq_lock_pct", 2), ("rstat/contended_per_s", 1),
        ("rstat/wait_s_per_s", 4), ("psi/some_pct", 3), ("psi/full_pct", 3), ("kswapd/cpu_s_per_s", 3),
        ("rstat/flushes_per_s", 1), ("rstat/hold_s_per_s", 3), ("pool/max_pct_of_limit", 2),
        ("zswap/written_back_per_s", 0), ("swapin/disk_per_s", 1), ("staleness/age_ms", 1), ("staleness/error_pct", 3),
    )  # fmt: skip
    table(
        "Arms",
        ["metric", *page.ARMS],
        (
            [f"`{metric}`", *(shown(select(results, set="arms", arm=arm), metric, digits) for arm in page.ARMS)]
            for metric, digits in arm_figures
        ),
    )
    for axis in ("nodes", "cgroups", "CPUs"):
        rows = select(results, set="scaling", axis=axis)
        values = sorted({row["value"] for row in rows})
        for metric, digits in (("rstat/wait_s_per_s", 3), ("psi/some_pct", 2), ("kswapd/cpu_s_per_s", 2)):
            table(
                f"{metric} by {axis}",
                [axis, *map(str, values)],
                (
                    [s, *(f"{mean(select(rows, strategy=s, value=v), metric):.{digits}f}" for v in values)]
                    for s in page.STRATEGIES
                ),
            )
    kernel_figures = (
        ("rstat/contended_per_s", 0), ("rstat/contended_pct", 1), ("rstat/wait_s_per_s", 2), ("psi/some_pct", 2),
        ("kswapd/flush_in_count_pct", 1), ("kswapd/flush_in_prepare_scan_control_pct", 1),
    )  # fmt: skip
    breaks(results)
    ours = select(results, set="kernels")
    table(
        "Kernels",
        ["kernel", *(m for m, _ in kernel_figures)],
        (
            [
                f"{kernel}, {lru}",
                *(f"{mean(select(ours, kernel=kernel, lru=lru), m):.{d}f}" for m, d in kernel_figures),
            ]
            for kernel in page.KERNELS
            for lru in ("classic", "MGLRU")
        ),
    )
    price = (
        ("staleness/age_ms", 0), ("staleness/error_pct", 2), ("staleness/bias_pct", 2), ("zswap/written_back_per_s", 0),
        ("zswap/written_back_hot_per_s", 1), ("swapin/disk_per_s", 1), ("rstat/wait_s_per_s", 4), ("psi/some_pct", 3),
    )  # fmt: skip
    for scenario in page.SCENARIOS:
        table(
            f"Scenario: {scenario}",
            ["strategy", *(m for m, _ in price)],
            (
                [s, *(shown(select(results, set="scenarios", scenario=scenario, strategy=s), m, d) for m, d in price)]
                for s in page.STRATEGIES
            ),
        )
    changed = select(results, set="assumed")
    table(
        "Assumptions",
        ["changed", *(m for m, _ in arm_figures[:5])],
        ([c, *(shown(select(changed, change=c), m, d) for m, d in arm_figures[:5])] for c in page.ASSUMED),
    )
    flush_durations(results)
    cost(results)


def breaks(results: Sequence[Row]) -> None:
    """Where each strategy first costs half a point of memory pressure more than one that does not flush."""
    lines = []
    for strategy in page.STRATEGIES:
        cells = [strategy]
        for axis in ("nodes", "cgroups", "CPUs"):
            rows = select(results, set="scaling", axis=axis)
            calm = {row["value"]: row["metrics"]["psi/some_pct"] for row in select(rows, strategy="never")}
            broken = [
                row["value"]
                for row in select(rows, strategy=strategy)
                if row["metrics"]["psi/some_pct"] > calm[row["value"]] + 0.5
            ]
            cells.append(f"from {min(broken):,}" if broken else f"not up to {max(calm):,}")
        lines.append(cells)
    table("Where each breaks", ["strategy", "nodes", "cgroups", "CPUs"], lines)


def flush_durations(results: Sequence[Row]) -> None:
    """Durations of flushes by level, over the seeds of the sync arm."""
    for level in range(4):
        buckets: dict[int, int] = {}
        for row in select(results, set="arms", arm="sync"):
            for low, _, count in row["histograms"].get(f"flush_ns/level{level}", []):
                buckets[low] = buckets.get(low, 0) + count
        print(
            f"\nflushes of level {level}:", ", ".join(f"{low / 1e6:.3g} ms: {n}" for low, n in sorted(buckets.items()))
        )


def events(row: Row) -> float:
    """What a run's cost should follow: lock acquisitions, CPUs flushed, and decisions whether to flush."""
    metrics = row["metrics"]
    calls = sum(v for k, v in metrics.items() if k.startswith("flush/") and k.endswith("/calls"))
    cpus = row["value"] if row.get("axis") == "CPUs" else 192
    locks = metrics["rstat/acquired_per_s"] * metrics["time/total_ms"] / 1000
    return float(calls + locks + metrics["rstat/flushes"] * cpus)


def cost(results: Sequence[Row]) -> None:
    """The exponent with which real time grows with the events."""
    import numpy as np

    rows = [row for row in results if row["set"] == "scaling" and row["wall_s"] > 0.1]
    x, y = np.log([events(row) for row in rows]), np.log([row["wall_s"] for row in rows])
    slope, _ = np.polyfit(x, y, 1)
    print(f"\nreal time ~ events^{slope:.2f} over {len(rows)} runs of the scaling sets")
    for arm in page.ARMS:
        walls = [row["wall_s"] for row in select(results, set="arms", arm=arm)]
        print(f"{arm}: 60 simulated seconds in {statistics.median(walls):.1f} s")
