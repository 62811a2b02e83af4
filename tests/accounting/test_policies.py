"""The accounting policies: right at rest, wrong by no more than they say in between, and seen in profiles where due."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel.simulate import KERNELS, POLICIES, Simulated, auditor, kernel, machine, simulate
from zexp_accounting.lazy import Lazy

from zexp.errors import PluginError
from zexp.kernel import KernelBuilder, PoolAccounting, Zswap
from zexp.program import Value
from zexp.workload import Workload
from zexp.workload.munmap import Munmap
from zexp.workload.swap import MeminfoReader, Mixed, Store, SwapIn, SwapOff

PLUGIN = Path(__file__).parents[2] / "plugins" / "zexp-percpu-batched" / "src"
EXACT = ("lazy", "shared_atomic")
SUMS = {"zswap_update_total_size", "zpool_get_total_size", "zs_zpool_total_size", "zs_get_total_pages"}
SUMS |= {"zpool_get_total_pages", "zs_zpool_total_pages"}


def percpu_batched(batch: int) -> PoolAccounting:
    """The policy of the third-party distribution, straight from its source."""
    if str(PLUGIN) not in sys.path:
        sys.path.append(str(PLUGIN))
    policy: PoolAccounting = importlib.import_module("zexp_percpu_batched").PerCpuBatched(batch=batch)
    policy.validate()
    return policy


def audited(workload: Workload, policy: PoolAccounting, name: str) -> Simulated:
    """Run, and ask the policy for the size of the pool after the last entry has gone."""
    return simulate(workload, policy, kernel(name), machine(nodes=2), extra=auditor)


WORKLOADS = st.one_of(
    st.builds(
        Munmap,
        total_size=st.integers(60, 600).map(lambda kb: f"{kb}KiB"),
        processes=st.integers(1, 15),
        compression_ratio=st.floats(1, 20),
    ),
    st.builds(SwapIn, size=st.integers(4, 100).map(lambda kb: f"{kb}KiB"), processes=st.integers(1, 12)),
    st.builds(SwapOff, size=st.integers(4, 100).map(lambda kb: f"{kb}KiB"), processes=st.integers(1, 12)),
)


@settings(max_examples=60)
@given(workload=WORKLOADS, name=st.sampled_from(EXACT), version=st.sampled_from(KERNELS))
def test_nothing_is_left_when_all_entries_are_gone(workload: Workload, name: str, version: str) -> None:
    config = kernel(version, exclusive_loads=True)  # else entries stay behind in the slot caches
    run = simulate(workload, POLICIES[name](), config, machine(nodes=2), extra=auditor)
    assert run.metric("audit/total_pages") == 0 == run.cells("zs_pool->pages_allocated").sum()


@settings(max_examples=30)
@given(
    processes=st.integers(1, 15),
    version=st.sampled_from(["v6_1", "v6_8"]),
    size=st.integers(60, 600),
    ratio=st.floats(1, 20),
)
def test_eager_is_exact_under_one_tree_lock(processes: int, version: str, size: int, ratio: float) -> None:
    """Up to 6.8 the sum is taken under the lock that every free holds, so the last one sees all."""
    workload = Munmap(total_size=f"{size}KiB", processes=processes, compression_ratio=ratio)
    run = audited(workload, POLICIES["eager"](), version)
    assert run.metric("audit/total_pages") == 0 == run.cell("zswap_pool_total_size")


@settings(max_examples=30)
@given(processes=st.integers(1, 15), version=st.sampled_from(["v6_12", "v7_3"]), size=st.integers(60, 600))
def test_eager_without_a_common_lock_is_exact_for_one_process_and_near_for_more(
    processes: int, version: str, size: int
) -> None:
    """Two CPUs may sum at once, and the one with the older sum may store it last."""
    run = audited(Munmap(total_size=f"{size}KiB", processes=processes), POLICIES["eager"](), version)
    left = run.metric("audit/total_pages")
    assert left == run.cell("zswap_pool_total_size")
    assert 0 <= left <= (processes - 1) * kernel(version).zsmalloc_chain


@settings(max_examples=60)
@given(workload=WORKLOADS, batch=st.sampled_from([1, 2, 7, 64, 1000]), version=st.sampled_from(KERNELS))
def test_percpu_batched_is_off_by_less_than_a_batch_a_cpu(workload: Workload, batch: int, version: str) -> None:
    config = kernel(version, exclusive_loads=True)
    run = simulate(workload, percpu_batched(batch), config, machine(nodes=2), extra=auditor)
    deltas = run.cells("zswap_total_pages.delta")
    assert (abs(deltas) <= batch - 1).all()
    assert run.cell("zswap_total_pages") + deltas.sum() == 0, "shared and own counters together are exact"
    assert run.metric("audit/total_pages") == run.cell("zswap_total_pages")
    active = len({t.cpu for t in run.program.threads}) - 1
    assert abs(run.metric("audit/total_pages")) <= active * (batch - 1)


@pytest.mark.parametrize("batch", [0, -64])
def test_percpu_batched_refuses_a_batch_below_one(batch: int) -> None:
    with pytest.raises(ValueError, match=f"batch={batch}: a whole number of pages from 1 up"):
        percpu_batched(batch)


def test_percpu_batched_touches_the_shared_line_once_a_batch() -> None:
    workload = Munmap(total_size="32MiB", processes=8)
    transfers = {}
    for batch in (1, 64):
        run = simulate(workload, percpu_batched(batch), kernel("v7_3"))
        transfers[batch] = run.transfers("zswap_total_pages")
        assert run.transfers("zswap_total_pages.delta") <= 8, "a CPU's own counter never moves"
    assert transfers[64] * 8 < transfers[1]


@pytest.mark.parametrize("name", ["eager", *EXACT])
@pytest.mark.parametrize("version", KERNELS)
def test_meminfo_shows_the_true_sum(name: str, version: str) -> None:
    run = simulate(MeminfoReader(readers=2, reads=5), POLICIES[name](), kernel(version))
    histogram = run.result.histograms["meminfo_zswap_pages"]
    assert run.zswap.zsmalloc.initial_pages == run.cells("zs_pool->pages_allocated").sum() > 0
    assert histogram.total == 10 * run.zswap.zsmalloc.initial_pages


def settle(k: KernelBuilder, zswap: Zswap) -> None:
    """A thread that asks when stores have long ended."""
    with k.thread("auditor") as thread:
        k.sleep_ns(100_000_000)
        k.count("audit/total_pages", zswap.zswap_total_pages(k))
    k.spawn(thread, k.machine.cpus - 1)


@pytest.mark.parametrize("policy", ["eager", *EXACT, "percpu_batched"])
@pytest.mark.parametrize("version", KERNELS)
def test_stores_are_counted_too(policy: str, version: str) -> None:
    accounting = percpu_batched(1) if policy == "percpu_batched" else POLICIES[policy]()
    run = simulate(Store(size="1MiB", processes=1), accounting, kernel(version), extra=settle)
    pages = run.cells("zs_pool->pages_allocated").sum()
    assert run.metric("audit/total_pages") == pages > 0
    assert run.cell("zswap_stored_pages") == 256


@pytest.mark.parametrize("version", KERNELS)
def test_lazy_munmap_shows_no_accounting(version: str) -> None:
    run = simulate(Munmap(total_size="1MiB", processes=2), POLICIES["lazy"](), kernel(version))
    assert not run.symbols() & SUMS
    assert not run.zswap.zsmalloc.k.accounting_stacks
    assert simulate(Store(size="1MiB"), POLICIES["lazy"](), kernel(version)).symbols() & SUMS, "a store asks"


@pytest.mark.parametrize("version", KERNELS)
def test_eager_munmap_walks_every_zpool_for_every_page(version: str) -> None:
    pages = 256
    for zpools in (1, 8):
        config = kernel(version, zpools=zpools)
        run = simulate(Munmap(total_size="1MiB"), POLICIES["eager"](), config)
        (symbol,) = run.symbols() & {"zs_zpool_total_size", "zs_zpool_total_pages", "zs_get_total_pages"}
        cost = config.costs["zs_get_total_pages" if symbol == "zs_get_total_pages" else "zs_zpool_total_size"]
        cycles = cost.instructions * config.cycles_per_instruction + cost.stall_cycles
        least = pages * zpools * cycles / machine().ghz  # ns, without the load
        assert run.result.profile.self_ps(symbol) / 1000 >= 0.99 * least


def test_the_eager_store_may_share_a_line() -> None:
    alone = simulate(Munmap(total_size="1MiB", processes=4), POLICIES["eager"](own_line=True))  # type: ignore[call-arg]
    shared = simulate(Munmap(total_size="1MiB", processes=4), POLICIES["eager"](own_line=False))  # type: ignore[call-arg]
    assert alone.transfers("zswap_pool_total_size") > 0
    assert shared.transfers("zswap_pool_total_size") == 0, "counted under the variable whose line it is"
    assert shared.transfers("zswap_stored_pages") > 0


def test_who_pays_what() -> None:
    """One thread: eager pays by page and zpool, the atomic by zspage, lazy nothing; a reader pays lazy's walk."""
    times = {n: simulate(Munmap(total_size="4MiB"), p(), kernel("v6_8")).result.sim_ns for n, p in POLICIES.items()}
    assert times["lazy"] < times["shared_atomic"] < times["eager"]
    reads = {
        n: simulate(MeminfoReader(reads=50), p(), kernel("v6_8")).result.histograms["meminfo_read_ns"].total
        for n, p in POLICIES.items()
    }
    assert reads["lazy"] > reads["shared_atomic"]


def test_a_mixed_load_under_every_policy_frees_the_same_pages() -> None:
    workload = Mixed(munmap=3, store=2, swapin=2, size="256KiB", store_size="128KiB", swapin_size="128KiB")
    for version in KERNELS:
        stored = set()
        for policy in (*(p() for p in POLICIES.values()), percpu_batched(64)):
            run = simulate(workload, policy, kernel(version, exclusive_loads=True))
            stored.add(run.cell("zswap_stored_pages"))
            assert run.result.histograms["meminfo_zswap_pages"].count == run.metric("meminfo_reads")
        assert stored == {2 * 32}, version


def test_total_pages_must_return_a_staged_value() -> None:
    class Forgetful(Lazy):
        def total_pages(self, k: KernelBuilder, zswap: Zswap) -> Value:
            k.load(zswap.stored_pages)
            return None  # type: ignore[return-value]

    with pytest.raises(
        PluginError, match=r"policy/accounting=lazy: total_pages returned None; allowed: a staged value"
    ):
        simulate(MeminfoReader(), Forgetful())
