"""The reclaim storm: what it refuses, that it ends when it should, on all kernels, under all strategies."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel.simulate import KERNELS, kernel, machine
from kernel.storm import Ran, storm
from zexp_accounting.lazy import Lazy
from zexp_flush import zexp_flush_strategies
from zexp_flush.strategies import MinInterval, Never, Sync

from zexp.compose import compose, ready
from zexp.errors import ConfigError, ZexpError
from zexp.kernel import FlushStrategy, KernelBuilder, Policies
from zexp.kernel.cgroup import TreeConfig, build_tree
from zexp.machine import Machine
from zexp.workload.reclaim import Reclaim
from zexp.workload.reclaim_metrics import reclaim_metrics

SMALL = TreeConfig(cgroups=20, slices=3, updates_per_s=1e6)
EVERY = [*KERNELS, "cloudflare_mutex"]
LOCKS = ("cgroup_rstat_lock", "rstat_ss_lock(memory)", "rstat_ss_lock(io)", "rstat_base_lock")


def reclaim(**fields: Any) -> Reclaim:
    return Reclaim(**{"duration_s": 1.0, "tree": SMALL, "allocated_mib_per_s": 200.0, **fields})


def with_shrinker(name: str, **changes: Any) -> Any:
    return kernel(name, zswap_shrinker="none" if kernel(name).zswap_shrinker == "none" else "on", **changes)


def run(name: str = "v6_12", strategy: FlushStrategy | None = None, on: Machine | None = None, seed: int = 0,
        **fields: Any) -> Ran:  # fmt: skip
    return storm(reclaim(**fields), with_shrinker(name), on or machine(memory_mib=1024, nodes=2), strategy, seed)


# ---- what cannot be --------------------------------------------------------------------------------------------------

OUTSIDE: dict[str, tuple[Any, ...]] = {
    "duration_s": (0.0, -1.0, 1001.0, float("nan")),
    "allocated_mib_per_s": (0.0, -5.0, 2e6),
    "allocation_kib": (3.9, 1e9),
    "lru_pct": (0.0, 96.0),
    "unevictable_pct": (-1.0, 101.0),
    "anon_pct": (-1.0, 101.0),
    "zswapped_pct": (-1.0, 100.0),
    "compression_ratio": (0.9, 129.0, float("nan")),
    "ratio_swing": (-0.1, 0.91),
    "swing_period_s": (0.0, -1.0),
    "hot_pct": (-1.0, 101.0),
    "hot_per_s": (-1.0, 1001.0),
    "cold_per_s": (-1.0, 1001.0),
    "reclaimed_pct": (-1.0, 101.0),
    "refault_pct": (-1.0, 101.0),
    "app_kernel_cpus": (-1.0,),
    "busy_pct": (0.0, 101.0),
    "swapin_ns": (-1,),
    "disk_swapin_ns": (-1,),
    "readers": (-1,),
    "reader_period_s": (0.0, -1.0),
    "flusher_late_ns": (-1,),
}


def refused(on: Machine | None = None, **fields: Any) -> str:
    k = KernelBuilder(on or machine(memory_mib=1024), kernel("v6_12"))
    with pytest.raises(ConfigError) as error:
        reclaim(**fields).stage(k, Policies(Lazy(), Sync()))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in OUTSIDE.items() for value in values])
def test_values_out_of_range(name: str, value: Any) -> None:
    assert refused(**{name: value}).startswith(f"workload.{name}={value}: ")


def test_every_number_has_a_range() -> None:
    fields = {f.name for f in dataclasses.fields(Reclaim)}
    assert fields - set(OUTSIDE) == {"name", "tree", "folder", "bound"}


@pytest.mark.parametrize(("changes", "key"), [({"cgroups": 0}, "cgroups"), ({"updates_per_s": 0.0}, "updates_per_s")])
def test_impossible_trees(changes: dict[str, Any], key: str) -> None:
    assert refused(tree=dataclasses.replace(SMALL, **changes)).startswith(f"workload.tree.{key}=")


def test_too_few_cpus() -> None:
    """A kswapd and an application a node, four workers, and the agents."""
    on = machine(memory_mib=1024, nodes=4)
    reclaim(readers=4).stage(KernelBuilder(on, kernel("v6_12")), Policies(Lazy(), Sync()))
    text = refused(on, readers=5)
    assert text == "machine=laptop: its 16 CPUs are too few: none is left for workload.readers"
    text = refused(machine(memory_mib=1024, nodes=8))
    assert text == "machine=laptop: its 16 CPUs are too few: none is left for the periodic flusher"


def test_a_pool_that_leaves_no_room() -> None:
    text = refused(zswapped_pct=90.0, anon_pct=90.0)
    assert text.startswith("workload.zswapped_pct=90.0: less: the pool would be ")
    assert "workload.lru_pct=85 leaves 122.9 MiB of laptop's memory" in text


def test_too_slow_allocation() -> None:
    text = refused(allocated_mib_per_s=0.001, allocation_kib=1024.0)
    assert text == "workload.allocated_mib_per_s=0.001: a burst every 8 s at least"


def test_the_edges_of_the_ranges_are_possible() -> None:
    run(duration_s=0.001)
    run(reclaimed_pct=0.0, anon_pct=100.0, compression_ratio=128.0, hot_pct=100.0, refault_pct=100.0)
    run(reclaimed_pct=100.0, anon_pct=0.0, zswapped_pct=0.0, ratio_swing=0.0, readers=0, swapin_ns=0, busy_pct=0.1)
    run(zswapped_pct=99.0, anon_pct=1.0, lru_pct=1.0, hot_per_s=1000.0, cold_per_s=1000.0, bound=True)


# ---- how it ends -----------------------------------------------------------------------------------------------------


def count(ran: Ran, *names: str) -> int:
    return sum(ran.metric(f"rstat/{name}") for name in names)


@settings(max_examples=15)
@given(
    duration_s=st.floats(0.02, 0.3),
    name=st.sampled_from(["v6_1", "v6_8", "v6_12", "v7_2", "cloudflare_mutex"]),
    drop=st.sampled_from(["resched", "contended", "every_cpu"]),
    patient=st.booleans(),
    seed=st.integers(0, 100),
)
def test_acquisitions_add_up_wherever_the_run_ends(
    duration_s: float, name: str, drop: str, patient: bool, seed: int
) -> None:
    """Mostly in the middle of a flush: so many updates that flushes are long."""
    workload = reclaim(
        duration_s=duration_s,
        tree=dataclasses.replace(SMALL, updates_per_s=1e8),
        allocated_mib_per_s=2000.0,
        readers=3,
        reader_period_s=0.05,
    )
    strategy = MinInterval(interval_ns=5_000_000) if patient else Sync()
    config = with_shrinker(name, rstat_lock_drop=drop)
    ran = storm(workload, config, machine(memory_mib=1024, nodes=2), strategy, seed)
    assert ran.result.sim_ns == round(duration_s * 1e9)
    acquired = sum(lock.acquisitions for lock in ran.result.locks if lock.name in LOCKS)
    assert acquired == count(ran, "flushes", "yields", "not_wanted_any_more") > 0
    for lock in ran.result.locks:
        assert lock.contended == lock.wait_ns.count <= lock.acquisitions
        assert lock.hold_ns.count <= lock.acquisitions


def test_same_seed_same_metrics() -> None:
    first, second, other = (run(duration_s=0.5, seed=seed) for seed in (3, 3, 4))
    assert dict(first.result.metrics) == dict(second.result.metrics)
    assert dict(first.result.series) == dict(second.result.series)
    assert (first.memory == second.memory).all()
    assert dict(first.result.metrics) != dict(other.result.metrics)


def test_unreclaimable_memory_ends() -> None:
    """kswapds give up after 16 failures each, direct reclaim after its rounds, and the applications are killed."""
    impossible: tuple[dict[str, Any], ...] = ({"unevictable_pct": 100.0}, {"reclaimed_pct": 0.0, "zswapped_pct": 0.0})
    for fields in impossible:
        ran = run(**fields, duration_s=1.5)
        assert ran.cells("pgdat->kswapd_failures") == [16, 16]
        assert ran.metric("kswapd/failures") == 32
        assert ran.metric("oom_kills") == 2
        assert ran.result.sim_ns == 1_500_000_000


@pytest.mark.parametrize("name", EVERY)
def test_all_kernels_under_all_strategies(name: str) -> None:
    for strategy in zexp_flush_strategies():
        ran = run(name, strategy(), duration_s=1.0, readers=2, reader_period_s=0.3)
        assert ran.metric("pgsteal") > 0
        assert ran.metric("kswapd/failures") == ran.metric("oom_kills") == 0
        counts = ran.metric("flush/zswap_shrinker_count/calls")
        assert (counts > 0) == (name != "v6_1" and name != "v6_5")
        if strategy is Never:
            assert ran.metric("flush/zswap_shrinker_count/flushes") == 0


def test_series_of_pool_and_pressure() -> None:
    ran = run(duration_s=4.1, bound=True)
    series = ran.result.series
    assert list(series["pool"].times_ns) == [500_000_000 * i for i in range(9)]
    assert set(series["pool_limit"].values) == {(1 << 18) * 20 // 100}
    assert min(series["pool"].values) > 0
    assert max(series["free"].values) <= 2 * sum(ran.cells("high watermark, pages"))
    assert len(series["psi/some"].values) == 2
    assert {f"psi/slice{i}/some" for i in range(3)} <= set(series)
    assert all(one.dropped == 0 for one in series.values())


# ---- a copied machine ------------------------------------------------------------------------------------------------


def copied(folder: Path, anon_mib: int = 100, file_mib: int = 200, zswap_mib: int = 10) -> Path:
    """Two services in a slice, one of them with pages in zswap."""
    mib = 1 << 20
    for name, parts in (("", 3), ("a.slice", 3), ("a.slice/one.service", 1), ("a.slice/two.service", 2)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        stat = {
            "anon": parts * anon_mib * mib, "file": parts * file_mib * mib, "zswap": parts * zswap_mib * mib,
            "zswapped": 3 * parts * zswap_mib * mib, "pgfault": parts * 1000,
        }  # fmt: skip
        (folder / name / "memory.stat").write_text("".join(f"{k} {v}\n" for k, v in stat.items()))
    (folder / "cgroup.stat").write_text("nr_descendants 5\nnr_dying_descendants 7\n")
    averages = "avg10=1.00 avg60=2.00 avg300=3.25 total=99"
    (folder / "memory.pressure").write_text(f"some {averages}\nfull {averages}\n")
    return folder


def test_a_copied_folder(tmp_path: Path) -> None:
    folder = copied(tmp_path / "cgroup")
    workload = reclaim(folder=str(folder), compression_ratio=3.0)
    k = KernelBuilder(machine(memory_mib=2048), kernel("v6_12", zswap_shrinker="on"))
    load = workload.stage(k, Policies(Lazy(), Sync()))
    arrays = {v.name: k.memory.initial(a) for v in k.memory.variables for a in [v] if v.base >= 1 << 40}  # type: ignore[arg-type]
    assert arrays["anon LRU, pages"].tolist() == [0, 0, 25_600, 51_200]
    assert arrays["file LRU, pages"].tolist() == [0, 0, 51_200, 102_400]
    assert arrays["MEMCG_ZSWAPPED"].tolist() == [23_040, 23_040, 7680, 15_360]
    assert arrays["MEMCG_ZSWAP_B"].tolist() == [30 << 20, 30 << 20, 10 << 20, 20 << 20]
    ran = storm(workload, kernel("v6_12", zswap_shrinker="on"), machine(memory_mib=2048))
    derived = load.derive(ran.result)
    assert derived["measured/psi/some_pct"] == 3.25
    assert (derived["measured/cgroups_missing"], derived["measured/cgroups_dying"]) == (2, 7)


def test_a_copied_folder_without_memory_or_with_too_much(tmp_path: Path) -> None:
    text = refused(folder=str(copied(tmp_path / "empty", 0, 0, 0)))
    assert "memory.stat files that count some anon or file memory" in text
    text = refused(folder=str(copied(tmp_path / "large")), on=machine(memory_mib=512))
    assert "holds 930 MiB, and laptop has 512 MiB; set machine.memory_gib to the copied machine's" in text


@pytest.mark.parametrize("name", ["cgroup", "with space", "quo'te", "a,b={c}", "#+~"])
def test_from_is_short_for_the_folder(tmp_path: Path, name: str) -> None:
    ready()
    folder = str(tmp_path / name)
    config = compose(["workload=reclaim", f"from={folder}"])
    assert config.workload.folder == folder
    assert compose(["workload=reclaim"]).workload.folder == ""


def test_from_is_for_workloads_with_a_folder() -> None:
    ready()
    with pytest.raises(ZexpError, match=r"^Could not override 'workload\.folder'"):
        compose(["workload=munmap", "from=/tmp"])


def test_it_places_no_threads() -> None:
    """Each kswapd runs on its own node."""
    ready()
    with pytest.raises(ZexpError, match=r"Key 'placement' not in 'Reclaim'"):
        compose(["workload=reclaim", "workload.placement=pack"])


def test_events() -> None:
    """Acquisitions, CPUs flushed, decisions whether to flush: what a simulation's cost is held against."""
    ran, cpus = run("v6_8"), machine().cpus
    metrics = reclaim_metrics(ran.result, cpus, 30.0, 1000)
    acquired = sum(lock.acquisitions for lock in ran.result.locks if lock.name in LOCKS)
    decisions = sum(ran.metric(f"flush/{site}/calls") for site in (
        "periodic", "memory_stat", "cpu_stat", "io_stat", "prepare_scan_control", "zswap_shrinker_count"))  # fmt: skip
    assert metrics["rstat/events"] == acquired + ran.metric("rstat/flushes") * cpus + decisions
    assert min(acquired, ran.metric("rstat/flushes"), decisions) > 0


def test_pressure_of_every_cgroup() -> None:
    """As often as the system's; the means of a run's series are metrics, but not of a cgroup's number."""
    result = run(duration_s=4.5, hot_per_s=10.0, readers=0).result
    tree = build_tree(SMALL)
    for level in range(1, tree.levels):
        for which in ("some", "full"):
            assert result.histograms[f"psi/{which}_ppm/level{level}"].count == 2 * int((tree.level == level).sum())
    metrics = reclaim_metrics(result, machine().cpus, 30.0, 1000)
    worst = metrics["psi/worst_cgroup/some_pct"]
    assert worst > 0
    assert all(worst >= metrics[f"psi/slice{i}/some_pct"] >= metrics[f"psi/slice{i}/full_pct"] for i in range(3))
    assert "psi/worst_cgroup/number_pct" not in metrics
