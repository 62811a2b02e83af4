"""What simulating a reclaim storm costs: by arm, in memory, and as it grows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from zexp import experiment
from zexp.cli.compose import compose, ready
from zexp.result import RunResult

from .conftest import Report

pytestmark = pytest.mark.bench

ROOT = Path(__file__).parents[2]
BASE = ["experiment=zswap_shrinker_flush", "kernel.zswap_shrinker=on"]
GIB = 1 << 30


def run(*overrides: str) -> RunResult:
    registry = ready()
    exp = experiment.from_config(compose([*BASE, *overrides]), registry)
    return experiment.run(exp, experiment.stage(exp))


@pytest.mark.parametrize(("strategy", "asked_s"), [("sync", 20), ("ratelimited", 10)])
def test_60_simulated_seconds(strategy: str, asked_s: float, report: Report) -> None:
    result = run(f"policy/flush={strategy}")
    seconds = result.sim_ns / 1e9
    what = f"storm on 192 CPUs, {strategy}: simulated against real time"
    wanted = f"asked: at most {asked_s} s real"
    report.add(what, f"{seconds:.0f} s simulated", f"{result.wall_s:.1f} s real", seconds / result.wall_s, wanted)
    assert result.wall_s < 3 * asked_s, "far beyond what noise explains"


def test_memory(report: Report) -> None:
    code = (
        "import resource; from zexp import experiment; from zexp.cli.compose import compose, ready; r = ready(); "
        f"e = experiment.from_config(compose({BASE}), r); experiment.run(e, experiment.stage(e)); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    paths = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    peak = int(done.stdout) * 1024
    report.add("storm on 192 CPUs: peak memory", f"{peak / GIB:.2f} GiB", "1.5 GiB", peak / (1.5 * GIB), "at most 1")
    assert peak <= 1.5 * GIB


def events(result: RunResult, cpus: int) -> float:
    """Lock acquisitions, CPUs flushed, and decisions whether to flush."""
    calls = sum(v for k, v in result.metrics.items() if k.startswith("flush/") and k.endswith("/calls"))
    locks = sum(lock.acquisitions for lock in result.locks if "rstat" in lock.name)
    return calls + locks + result.metrics["rstat/flushes"] * cpus


@pytest.mark.parametrize("strategy", ["sync", "ratelimited"])
def test_cost_follows_the_events(strategy: str, report: Report) -> None:
    sizes = (300, 1000, 3000, 10_000)
    work, real = [], []
    for cgroups in sizes:
        runs = [
            run(f"policy/flush={strategy}", f"workload.tree.cgroups={cgroups}", "workload.duration_s=10")
            for _ in range(2)
        ]
        work.append(events(runs[0], 192))
        real.append(min(result.wall_s for result in runs))
    exponent = float(np.polyfit(np.log(work), np.log(real), 1)[0])
    what = f"storm, {strategy}, {sizes[0]} to {sizes[-1]} cgroups: real time ~ events^x"
    report.add(
        what, f"{real[0]:.2f} to {real[-1]:.2f} s", f"{work[0]:.2g} to {work[-1]:.2g} events", exponent, "at most 1"
    )
    assert exponent < 2, "growing with the square would be another algorithm; noise alone makes 1.3"
