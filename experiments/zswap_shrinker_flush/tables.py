"""The page's tables and figures, from what ``results.json`` holds, and their places in README.md.

A place is ``<!--name-->text<!--/-->``, in a line or around a table.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from charting import Row

from zexp import experiment
from zexp.compose import compose, ready
from zexp.schema import Published
from zexp.workload import Workload
from zswap_shrinker_flush import points as page

T_95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t, 95 % two-sided, by number of seeds."""
FITTED = {
    "allocated_mib_per_s": "248 contended acquisitions/s, sync",
    "refault_pct": "pressure of 0.57 %, shrinker off",
    "app_kernel_cpus": "osq_lock's 2.88 % of all kernel cycles, sync",
}
PUBLISHED = (
    ("on/sync", "sync", "% of kswapd's cycles flushing for the count", "kswapd/flush_in_count_pct", 1),
    ("on/sync", "sync", "`osq_lock`, % of all kernel cycles", "kernel/osq_lock_pct", 2),
    ("on/sync", "sync", "contended acquisitions/s", "rstat/contended_per_s", 1),
    ("on/sync", "sync", "waiting for the lock, s/s", "rstat/wait_s_per_s", 3),
    ("on/sync", "sync", "memory pressure, some, %", "psi/some_pct", 3),
    ("off/sync", "shrinker off", "contended acquisitions/s", "rstat/contended_per_s", 1),
    ("off/sync", "shrinker off", "waiting for the lock, s/s", "rstat/wait_s_per_s", 4),
    ("off/sync", "shrinker off", "memory pressure, some, %", "psi/some_pct", 3),
    ("on/ratelimited", "ratelimited", "contended acquisitions/s", "rstat/contended_per_s", 1),
    ("on/ratelimited", "ratelimited", "waiting for the lock, s/s", "rstat/wait_s_per_s", 4),
    ("on/ratelimited", "ratelimited", "memory pressure, some, %", "psi/some_pct", 3),
)
"""Arm as published and as run, what, metric, digits."""
SHORT = {
    "kswapd/flush_in_count_pct": ("count, % of kswapd", 1),
    "kswapd/flush_in_prepare_scan_control_pct": ("prepare_scan_control, %", 1),
    "kernel/osq_lock_pct": ("osq_lock %", 2),
    "rstat/contended_per_s": ("contended /s", 1),
    "rstat/contended_pct": ("contended %", 1),
    "rstat/wait_s_per_s": ("wait s/s", 4),
    "psi/some_pct": ("some %", 3),
    "psi/full_pct": ("full %", 3),
    "staleness/age_ms": ("age ms", 0),
    "staleness/error_pct": ("error %", 2),
    "staleness/bias_pct": ("bias %", 2),
    "zswap/written_back_per_s": ("written back /s", 0),
    "zswap/written_back_hot_per_s": ("of it hot /s", 1),
    "swapin/disk_per_s": ("disk swap-ins /s", 1),
}
"""Titles and digits of columns."""


def filled(text: str, values: Mapping[str, str]) -> str:
    """A page with all its places filled in."""
    return re.sub(r"<!--(\w+)-->.*?<!--/-->", lambda m: f"<!--{m[1]}-->{values[m[1]]}<!--/-->", text, flags=re.DOTALL)


# ---- figures ---------------------------------------------------------------------------------------------------------


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


def select(results: Sequence[Row], **labels: object) -> list[Row]:
    """Rows with these labels."""
    return [row for row in results if all(row.get(k) == v for k, v in labels.items())]


def table(head: Sequence[str], lines: Iterable[Sequence[str]], words: Collection[int] = (0,)) -> str:
    """In Markdown; all but the columns ``words`` are numbers."""
    rule = "|".join("---" if i in words else "---:" for i in range(len(head)))
    rows = (f"| {' | '.join(row)} |" for row in lines)
    return "\n\n" + "\n".join([f"| {' | '.join(head)} |", f"|{rule}|", *rows]) + "\n\n"


def columns(metrics: Sequence[str], first: str, lines: Mapping[str, Sequence[Row]]) -> str:
    """A table with a column a metric, a line a set of runs."""
    return table(
        [first, *(SHORT[m][0] for m in metrics)],
        ([name, *(shown(rows, m, SHORT[m][1]) for m in metrics)] for name, rows in lines.items()),
    )


# ---- the page's tables -----------------------------------------------------------------------------------------------


def published(results: Sequence[Row], source: Published) -> str:
    """Published beside simulated."""
    lines = []
    for name, arm, what, metric, digits in PUBLISHED:
        rows, figure = select(results, set="arms", arm=arm), source.metrics[name][metric]
        error = f"{mean(rows, metric) - figure:+.3g}"
        how = "fitted" if metric in source.fitted.get(name, []) else "predicted"
        lines.append([arm, what, f"{figure:g}", shown(rows, metric, digits), error, how])
    return table(["arm", "", "published", "simulated", "error", ""], lines, words=(0, 1, 5))


def fitted(workload: Workload) -> str:
    """The fitted constants, as configured."""
    lines = ([f"`{constant}`", str(getattr(workload, constant)), on] for constant, on in FITTED.items())
    return table(["constant", "value", "fitted on"], lines, words=(0, 2))


def scaling(results: Sequence[Row], axis: str) -> str:
    """Waiting by strategy and size."""
    rows = select(results, set="scaling", axis=axis)
    sizes = sorted({row["value"] for row in rows})
    return table(
        [axis, *(f"{size:,}" for size in sizes)],
        (
            [s, *(f"{mean(select(rows, strategy=s, value=v), 'rstat/wait_s_per_s'):.3f}" for v in sizes)]
            for s in page.STRATEGIES
        ),
    )


def breaks(results: Sequence[Row]) -> str:
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
    return table(["strategy", "nodes", "cgroups", "CPUs"], lines)


def kernels(results: Sequence[Row]) -> str:
    """Each kernel as it is, with the classic lists and with MGLRU."""
    figures = {
        "rstat/contended_per_s": 0, "rstat/contended_pct": 1, "rstat/wait_s_per_s": 2, "psi/some_pct": 2,
        "kswapd/flush_in_count_pct": 1, "kswapd/flush_in_prepare_scan_control_pct": 1,
    }  # fmt: skip
    lines = []
    for kernel in page.KERNELS:
        for lru in ("classic", "MGLRU"):
            rows = select(results, set="kernels", kernel=kernel, lru=lru)
            lines.append([f"{kernel}, {lru}", *(f"{mean(rows, m):.{d}f}" for m, d in figures.items())])
    return table(["kernel", *(SHORT[m][0] for m in figures)], lines)


def kernel_strategies(results: Sequence[Row], metric: str, digits: int) -> str:
    """A metric by kernel and strategy."""
    ours = select(results, set="kernel strategies")
    return table(
        ["kernel", *page.STRATEGIES],
        (
            [k, *(f"{mean(select(ours, kernel=k, strategy=s), metric):.{digits}f}" for s in page.STRATEGIES)]
            for k in page.KERNELS
        ),
    )


def cgroups_pressure(results: Sequence[Row]) -> str:
    """Some and full of the system and of the cgroups of each level, on average."""
    lines = []
    for arm in page.ARMS:
        rows = select(results, set="arms", arm=arm)
        cells = [arm, f"{mean(rows, 'psi/some_pct'):.3f} / {mean(rows, 'psi/full_pct'):.3f}"]
        for level in (1, 2, 3):
            some, full = (mean(rows, f"mean/psi/{which}_ppm/level{level}") / 1e4 for which in ("some", "full"))
            cells.append(f"{some:.3f} / {full:.3f}")
        lines.append(cells)
    return table(["some / full, %", "system", "slices", "services", "their children"], lines)


def pressure_parts(results: Sequence[Row]) -> str:
    """What pressure consists of, without the shrinker and rate-limited, in % of the time."""
    parts: dict[str, list[float]] = {}
    for arm in ("shrinker off", "ratelimited"):
        of = {s: mean(select(results, set="pressure", arm=arm, stalls=s), "psi/some_pct") for s in page.STALLS}
        rows = select(results, set="pressure", arm=arm, stalls="all")
        swapins, refaults = mean(rows, "swapin/disk"), mean(rows, "workingset_refault_file")
        disk = of["all"] - of["none of the disk"]
        for part, pct in (
            ("kswapd and direct reclaim", of["neither"]),
            ("swap-ins from zswap", of["all"] - of["none of zswap"]),
            ("swap-ins from the disk", disk * swapins / (swapins + refaults)),
            ("file pages read again", disk * refaults / (swapins + refaults)),
            ("all", of["all"]),
        ):
            parts.setdefault(part, []).append(pct)
    lines = ([name, f"{off:.4f}", f"{limited:.4f}", f"{limited - off:+.4f}"] for name, (off, limited) in parts.items())
    return table(["some, %", "shrinker off", "ratelimited", "difference"], lines)


def scenario(results: Sequence[Row], name: str) -> str:
    """What staleness costs in one scenario."""
    metrics = (
        "staleness/age_ms", "staleness/error_pct", "staleness/bias_pct", "zswap/written_back_per_s",
        "zswap/written_back_hot_per_s", "swapin/disk_per_s", "rstat/wait_s_per_s", "psi/some_pct",
    )  # fmt: skip
    ours = select(results, set="scenarios", scenario=name)
    return columns(metrics, "strategy", {s: select(ours, strategy=s) for s in page.STRATEGIES})


# ---- the figures in its text -----------------------------------------------------------------------------------------


def durations(results: Sequence[Row], level: int) -> Counter[int]:
    """How many flushes of a level lasted how long: by lower bounds of powers of two, in ns."""
    buckets: Counter[int] = Counter()
    for row in select(results, set="arms", arm="sync"):
        for low, _, count in row["histograms"].get(f"flush_ns/level{level}", []):
            buckets[low] += count
    return buckets


def exponent(rows: Iterable[Row]) -> float:
    """Of the power of the events with which real time grows."""
    import numpy as np

    long = [row for row in rows if row["wall_s"] > 0.1]
    events, real = [row["metrics"]["rstat/events"] for row in long], [row["wall_s"] for row in long]
    return float(np.polyfit(np.log(events), np.log(real), 1)[0])


def values(results: Sequence[Row]) -> dict[str, str]:
    """What stands in the page's places, by name."""
    arm = {name: select(results, set="arms", arm=name) for name in page.ARMS}
    sync, off, limited = (arm[name] for name in ("sync", "shrinker off", "ratelimited"))
    registry = ready()
    configured = experiment.from_config(compose([page.BASE]), registry)
    source = configured.published.metrics["on/sync"]
    scaled = select(results, set="scaling")

    def wait_ms(change: str) -> str:
        rows = select(results, set="assumed", change=change)
        return f"{1000 * mean(rows, 'rstat/wait_s_per_s') / mean(rows, 'rstat/contended_per_s'):.1f}"

    def told(scenario: str, strategy: str, metric: str, digits: int, scale: float = 1.0) -> str:
        rows = select(results, set="scenarios", scenario=scenario, strategy=strategy)
        return f"{mean(rows, metric) * scale:,.{digits}f}"

    def dearer(strategy: str, **labels: object) -> str:
        """Points of pressure that a strategy costs beyond never flushing."""
        with_, without = (select(scaled, strategy=s, **labels) for s in (strategy, "never"))
        return f"{mean(with_, 'psi/some_pct') - mean(without, 'psi/some_pct'):.2f}"

    def by_strategy(strategy: str) -> str:
        return f"{exponent(select(scaled, strategy=strategy)):.2f}"

    root, deep = durations(results, 0), durations(results, 3)
    mode, inside = max(root, key=lambda low: root[low]), sum(n for low, n in root.items() if 1 << 22 <= low < 1 << 26)
    v6_8 = {lru: select(results, set="kernels", kernel="v6_8", lru=lru) for lru in ("classic", "MGLRU")}
    return {
        "published": published(results, configured.published),
        "psi_ratelimited": shown(limited, "psi/some_pct", 3),
        "psi_off": shown(off, "psi/some_pct", 3),
        "psi_gap": f"{mean(limited, 'psi/some_pct') - mean(off, 'psi/some_pct'):.3f}",
        "parts": pressure_parts(results),
        "flushes_of_kswapds": f"{mean(limited, 'flush/zswap_shrinker_count/flushes'):.0f}",
        "wait_low": f"{source['rstat/wait_s_per_s'] / mean(sync, 'rstat/wait_s_per_s'):.1f}",
        "psi_low": f"{source['psi/some_pct'] - mean(sync, 'psi/some_pct'):.2f}",
        "pool": f"{mean(sync, 'pool/max_pct_of_limit'):.0f}",
        "written_sync": f"{mean(sync, 'zswap/written_back_per_s'):,.0f}",
        "written_ratelimited": f"{mean(limited, 'zswap/written_back_per_s'):,.0f}",
        "cgroups_pressure": cgroups_pressure(results),
        "fitted": fitted(configured.workload),
        "assumed": columns(
            ("kswapd/flush_in_count_pct", "kernel/osq_lock_pct", "rstat/contended_per_s", "rstat/wait_s_per_s",
             "psi/some_pct"),
            "changed", {change: select(results, set="assumed", change=change) for change in page.ASSUMED},
        ),
        "wait_together": wait_ms("not bound to nodes"),
        "wait_apart": wait_ms("as it is"),
        "root_flushes": f"{100 * inside / root.total():.0f} % in 4 to 64 ms, mode at {mode >> 20} to {mode >> 19}",
        "deep_flushes": f"{100 * deep[1 << 14] / deep.total():.0f} %",
        "contended_v6_8": f"{mean(v6_8['classic'], 'rstat/contended_pct'):.1f}",
        "count_mglru": f"{mean(v6_8['MGLRU'], 'kswapd/flush_in_count_pct'):.0f}",
        "breaks": breaks(results),
        "wait_nodes": scaling(results, "nodes"),
        "wait_cgroups": scaling(results, "cgroups"),
        "wait_cpus": scaling(results, "CPUs"),
        "skip_age": told("as published", "skip_if_ongoing", "staleness/age_ms", 0),
        "skip_costs": dearer("skip_if_ongoing", axis="cgroups", value=650),
        "skip_costs_large": dearer("skip_if_ongoing", axis="cgroups", value=10_000),
        "wait_costs": dearer("wait_if_ongoing", axis="cgroups", value=650),
        "wait_costs_large": dearer("wait_if_ongoing", axis="cgroups", value=2000),
        "kernels": kernels(results),
        "kernels_wait": kernel_strategies(results, "rstat/wait_s_per_s", 3),
        "kernels_psi": kernel_strategies(results, "psi/some_pct", 2),
        "as_published": scenario(results, "as published"),
        "fast_changes": scenario(results, "fast changes"),
        "flusher_late": scenario(results, "flusher 20 s late"),
        "late_fast_mglru": scenario(results, "late, fast, MGLRU"),
        "error_published": told("as published", "ratelimited", "staleness/error_pct", 2),
        "error_fast": told("fast changes", "ratelimited", "staleness/error_pct", 2),
        "age_published": told("as published", "ratelimited", "staleness/age_ms", 1, 1e-3),
        "age_late": told("flusher 20 s late", "ratelimited", "staleness/age_ms", 1, 1e-3),
        "age_never": told("late, fast, MGLRU", "never", "staleness/age_ms", 1, 1e-3),
        "disk_ratelimited": told("fast changes", "ratelimited", "swapin/disk_per_s", 0),
        "disk_sync": told("fast changes", "sync", "swapin/disk_per_s", 0),
        "seconds_sync": f"{statistics.median(row['wall_s'] for row in sync):.1f}",
        "seconds_ratelimited": f"{statistics.median(row['wall_s'] for row in limited):.1f}",
        "exponent": f"{exponent(scaled):.2f}",
        "exponent_sync": by_strategy("sync"),
        "exponent_ratelimited": by_strategy("ratelimited"),
        "runs": str(sum(row["wall_s"] > 0.1 for row in scaled)),
    }  # fmt: skip
