"""The storm page's claims: what was fitted, what follows, and that the page shows what was run."""

from __future__ import annotations

import functools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from zexp import experiment
from zexp.compose import compose, ready
from zexp.result import RunResult

HERE = Path(__file__).parents[1] / "experiments" / "zswap_shrinker_flush"
BASE = "experiment=zswap_shrinker_flush"
ON, OFF = "kernel.zswap_shrinker=on", "kernel.zswap_shrinker=off"


def composed(*overrides: str) -> experiment.Experiment:
    registry = ready()
    return experiment.from_config(compose([BASE, *overrides]), registry)


@functools.cache
def run(*overrides: str) -> RunResult:
    exp = composed(*overrides)
    return experiment.run(exp, experiment.stage(exp))


def mean(metric: str, *overrides: str) -> float:
    """Over three seeds, which is enough for the tolerances here."""
    return statistics.fmean(run(*overrides, f"seed={seed}").metrics[metric] for seed in range(3))


@functools.cache
def results() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads((HERE / "results.json").read_text()))


def test_the_published_machine() -> None:
    """Fitted on 248/s, 2.88 % and 0.57 %; the others follow. Tolerances are the issue's."""
    assert mean("rstat/contended_per_s", ON) == pytest.approx(248, rel=0.1), "fitted"
    assert mean("kernel/osq_lock_pct", ON) == pytest.approx(2.88, abs=0.6), "fitted"
    assert mean("psi/some_pct", OFF) == pytest.approx(0.57, abs=0.05), "fitted"
    assert mean("kswapd/flush_in_count_pct", ON) == pytest.approx(84, abs=4)
    assert 1.04 / 2 < mean("rstat/wait_s_per_s", ON) < 1.04 * 2
    assert mean("psi/some_pct", ON) == pytest.approx(1.58, abs=0.4)


def test_rate_limiting_ends_the_storm_and_nothing_else() -> None:
    limited = (ON, "policy/flush=ratelimited")
    assert mean("rstat/contended_per_s", *limited) < 2
    assert mean("rstat/wait_s_per_s", *limited) < 0.01
    assert mean("psi/some_pct", *limited) == pytest.approx(mean("psi/some_pct", OFF), abs=0.05)
    assert mean("pool/max_pct_of_limit", *limited) < 100
    assert mean("zswap/written_back_per_s", *limited) == pytest.approx(mean("zswap/written_back_per_s", ON), rel=0.1)


def test_how_long_flushes_take() -> None:
    """Published: root flushes 4 to 64 ms, those of deep cgroups 16 to 32 us."""
    histograms = run(ON, "seed=0").histograms
    root = histograms["flush_ns/level0"].buckets()
    inside = sum(count for low, high, count in root if low >= 1 << 22 and high <= 1 << 26)
    assert inside > sum(count for *_, count in root) / 2
    _, low = max((count, low) for low, _, count in histograms["flush_ns/level3"].buckets())
    assert low == 1 << 14


@pytest.mark.parametrize("kernel", ["cloudflare_mutex", "v6_8", "v6_12", "v6_17"])
def test_every_acquisition_is_a_flush_or_a_yield(kernel: str) -> None:
    result = run(ON, f"kernel={kernel}", "workload.duration_s=5")
    acquired = sum(lock.acquisitions for lock in result.locks if "rstat" in lock.name)
    assert acquired == result.metrics["rstat/flushes"] + result.metrics["rstat/yields"] > 0


def test_a_spinlock_that_is_handed_over_when_contended_is_contended_nearly_always() -> None:
    result = run(ON, "kernel=v6_8", "policy.flush.sites=[]", "workload.duration_s=20")
    assert result.metrics["rstat/contended_pct"] > 90
    assert result.metrics["kernel/native_queued_spin_lock_slowpath_pct"] > 1
    assert result.metrics["kernel/osq_lock_pct"] == 0


def test_mglru_flushes_for_the_count_only() -> None:
    result = run(ON, "kernel=v6_8", "kernel.lru_gen=true", "policy.flush.sites=[]", "workload.duration_s=10")
    assert result.metrics.get("flush/prepare_scan_control/flushes", 0) == 0
    assert result.metrics["flush/zswap_shrinker_count/flushes"] > 0
    classic = run(ON, "kernel=v6_8", "policy.flush.sites=[]", "workload.duration_s=20")
    assert classic.metrics["flush/prepare_scan_control/flushes"] > 0


def test_the_fitted_constants_were_published_on_the_page() -> None:
    workload, page = composed().workload, (HERE / "README.md").read_text()
    for constant in ("allocated_mib_per_s", "refault_pct", "app_kernel_cpus"):
        assert f"| `{constant}` | {getattr(workload, constant)} |" in page


def test_the_page_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the figures of results.json, as charts.py --redraw would."""
    monkeypatch.syspath_prepend(HERE.parent)
    from zswap_shrinker_flush.tables import filled, values

    page = (HERE / "README.md").read_text()
    assert filled(page, values(results())) == page


def test_the_page_shows_what_was_run() -> None:
    """Every run of the arms in results.json is of the configuration as it is now."""
    page = (HERE / "README.md").read_text()
    for arm, overrides in (("shrinker off", [OFF]), ("sync", [ON]), ("ratelimited", [ON, "policy/flush=ratelimited"])):
        rows = [row for row in results() if row["set"] == "arms" and row["arm"] == arm]
        assert [row["seed"] for row in rows] == [0, 1, 2, 3, 4]
        assert rows[0]["config_hash"] == composed(*overrides, "seed=0").digest(), "run charts.py again"
        psi = statistics.fmean(row["metrics"]["psi/some_pct"] for row in rows)
        assert f"{psi:.3f} ±" in page
