"""Fit three constants of the workload on three of the published figures.

Run it with the Python zexp is installed in; it prints what conf/experiment/zswap_shrinker_flush.yaml holds.

* ``allocated_mib_per_s``, how often kswapds run, decides the contended acquisitions a second. The rate rises with it;
  found by the secant method on the mean of some seeds.
* ``refault_pct``, how many reclaimed file pages are missed, decides the memory pressure with the shrinker off, to which
  it adds in proportion.
* ``app_kernel_cpus``, what applications do in the kernel otherwise, is the base of osq_lock's share; closed form.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from zexp import experiment
from zexp.compose import compose, ready

EXPERIMENT = "experiment=zswap_shrinker_flush"
SYNC, OFF = "on/sync", "off/sync"
ARMS = {
    SYNC: ["kernel.zswap_shrinker=on", "policy/flush=sync"],
    OFF: ["kernel.zswap_shrinker=off", "policy/flush=sync"],
    "on/ratelimited": ["kernel.zswap_shrinker=on", "policy/flush=ratelimited"],
}
SEEDS = (0, 1, 2, 3, 4)


def metrics(arm: str, overrides: Sequence[str], seeds: Sequence[int] = SEEDS) -> dict[str, float]:
    """Means over the seeds of every metric of an arm."""
    registry = ready()
    runs = []
    for seed in seeds:
        exp = experiment.from_config(compose([EXPERIMENT, *ARMS[arm], *overrides, f"seed={seed}"]), registry)
        runs.append(experiment.run(exp, experiment.stage(exp)).metrics)
    return {name: statistics.fmean(run.get(name, 0.0) for run in runs) for name in runs[0]}


def published(arm: str, metric: str) -> float:
    """A published figure."""
    ready()
    return float(compose([EXPERIMENT]).published.metrics[arm][metric])


def fit_allocation(goal: float, close: float = 0.02) -> float:
    """MiB/s a node at which ``goal`` acquisitions a second are contended."""

    def contended(rate: float) -> float:
        found = metrics(SYNC, [f"workload.allocated_mib_per_s={rate:.2f}"])["rstat/contended_per_s"]
        print(f"  {rate:.2f} MiB/s a node: {found:.1f} contended/s", flush=True)
        return found

    last, rate = 40.0, 60.0
    before, now = contended(last), contended(rate)
    while abs(now - goal) > close * goal:
        last, rate = rate, rate + (goal - now) * (rate - last) / (now - before)
        before, now = now, contended(rate)
    return round(rate, 2)


def fit_refaults(goal: float, allocation: Sequence[str]) -> float:
    """Percent of reclaimed file pages whose loss brings the pressure, without the shrinker, to ``goal`` %."""
    none, one = (metrics(OFF, [*allocation, f"workload.refault_pct={pct}"])["psi/some_pct"] for pct in (0, 1))
    return round((goal - none) / (one - none), 2)


def fit_base(goal_pct: float, overrides: Sequence[str]) -> float:
    """CPU seconds a second of other kernel work with which osq_lock is ``goal_pct`` of all."""
    found = metrics(SYNC, [*overrides, "workload.app_kernel_cpus=0"])
    simulated = found["kernel/cpu_s_per_s"]
    return round(simulated * found["kernel/osq_lock_pct"] / goal_pct - simulated, 2)


def fit() -> dict[str, float]:
    """All three."""
    rate = fit_allocation(published(SYNC, "rstat/contended_per_s"))
    allocation = [f"workload.allocated_mib_per_s={rate}"]
    refaults = fit_refaults(published(OFF, "psi/some_pct"), allocation)
    base = fit_base(published(SYNC, "kernel/osq_lock_pct"), [*allocation, f"workload.refault_pct={refaults}"])
    return {"allocated_mib_per_s": rate, "refault_pct": refaults, "app_kernel_cpus": base}


if __name__ == "__main__":
    for name, value in fit().items():
        print(f"{name}: {value}")
