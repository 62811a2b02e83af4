"""What a reclaim storm is judged by: the shares and rates that tools on a real machine would show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zexp.kernel.rstat import LOCKS

if TYPE_CHECKING:
    from zexp.result import RunResult

PPM_PER_PCT = 10_000
RATES = {
    "rstat/flushes": "rstat/flushes_per_s",
    "rstat/yields": "rstat/yields_per_s",
    "shrink_node/passes": "kswapd/passes_per_s",
    "kswapd/wakeups": "kswapd/wakeups_per_s",
    "direct_reclaim/calls": "direct_reclaim/calls_per_s",
    "pgsteal": "reclaim/pages_per_s",
    "zswap/stored": "zswap/stored_per_s",
    "zswap/written_back": "zswap/written_back_per_s",
    "zswap/written_back_hot": "zswap/written_back_hot_per_s",
    "swapin/zswap": "swapin/zswap_per_s",
    "swapin/disk": "swapin/disk_per_s",
}


def reclaim_metrics(result: RunResult, cpus: int, app_kernel_cpus: float, max_pool_pages: int) -> dict[str, float]:
    """Derived metrics of a run on ``cpus``; ``app_kernel_cpus`` CPU s/s of other work are part of all kernel cycles."""
    seconds = result.sim_ns / 1e9
    metrics = {rate: result.metrics.get(count, 0.0) / seconds for count, rate in RATES.items()}
    locks = [lock for lock in result.locks if lock.name in LOCKS.values()]
    acquired = sum(lock.acquisitions for lock in locks)
    contended = sum(lock.contended for lock in locks)
    metrics["rstat/acquired_per_s"] = acquired / seconds
    metrics["rstat/contended_per_s"] = contended / seconds
    decisions = sum(n for name, n in result.metrics.items() if name.startswith("flush/") and name.endswith("/calls"))
    # what the cost of a simulation is held against: acquisitions, CPUs flushed, decisions whether to flush
    metrics["rstat/events"] = acquired + result.metrics.get("rstat/flushes", 0.0) * cpus + decisions
    metrics["rstat/contended_pct"] = 100 * contended / acquired if acquired else 0.0
    metrics["rstat/wait_s_per_s"] = sum(lock.wait_ns.total for lock in locks) / 1e9 / seconds
    metrics["rstat/hold_s_per_s"] = sum(lock.hold_ns.total for lock in locks) / 1e9 / seconds
    metrics.update(_shares(result, app_kernel_cpus))
    metrics.update(_staleness(result))
    metrics.update(_pressure(result, max_pool_pages))
    return metrics


def _shares(result: RunResult, app_kernel_cpus: float) -> dict[str, float]:
    kswapd_ps = result.profile.total_ps("kswapd")
    in_count = in_scan_control = osq_ps = mutex_spin_ps = spin_ps = 0
    for stack in result.profile.stacks:
        if "osq_lock" in stack.stack:
            osq_ps += stack.self_ps
        if stack.stack[-1:] == ("mutex_spin_on_owner",):
            mutex_spin_ps += stack.self_ps
        if stack.stack[-1:] == ("native_queued_spin_lock_slowpath",):
            spin_ps += stack.self_ps
        if stack.comm == "kswapd" and any("rstat_flush" in symbol for symbol in stack.stack):
            in_count += stack.self_ps * ("zswap_shrinker_count" in stack.stack)
            in_scan_control += stack.self_ps * ("prepare_scan_control" in stack.stack)
    kernel_ps = result.profile.total_ps() + app_kernel_cpus * result.sim_ns * 1000
    of_kswapd, of_kernel = 100 / max(kswapd_ps, 1), 100 / max(kernel_ps, 1)
    return {
        "kswapd/cpu_s_per_s": kswapd_ps / 1000 / result.sim_ns,
        "kswapd/flush_in_count_pct": in_count * of_kswapd,
        "kswapd/flush_in_prepare_scan_control_pct": in_scan_control * of_kswapd,
        "kernel/cpu_s_per_s": kernel_ps / 1000 / result.sim_ns,
        "kernel/osq_lock_pct": osq_ps * of_kernel,
        "kernel/mutex_spin_on_owner_pct": mutex_spin_ps * of_kernel,
        "kernel/native_queued_spin_lock_slowpath_pct": spin_ps * of_kernel,
    }


def _staleness(result: RunResult) -> dict[str, float]:
    """How old the statistics were at the shrinker's counts, and how wrong its estimates for it."""
    truth = max(result.metrics.get("count/truth_pages", 0.0), 1.0)
    age = result.histograms.get("count/stats_age_ns")
    return {
        "staleness/age_ms": age.mean / 1e6 if age is not None else 0.0,
        "staleness/error_pct": 100 * result.metrics.get("count/error_pages", 0.0) / truth,
        "staleness/bias_pct": 100 * result.metrics.get("count/signed_error_pages", 0.0) / truth,
    }


def _pressure(result: RunResult, max_pool_pages: int) -> dict[str, float]:
    metrics = {}
    for name, series in result.series.items():
        if name.startswith("psi/") and series.unit == "ppm" and series.values:
            metrics[f"{name}_pct"] = sum(series.values) / len(series.values) / PPM_PER_PCT
    pool = result.series["pool"].values
    metrics["pool/max_pct_of_limit"] = 100 * max(pool, default=0) / max(max_pool_pages, 1)
    metrics["pool/end_pct_of_limit"] = 100 * (pool[-1] if pool else 0) / max(max_pool_pages, 1)
    return metrics
