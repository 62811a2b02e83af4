"""Every workload on every kernel: what goes in comes out, and nothing is left that should not be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel.simulate import KERNELS, POLICIES, Counting, Simulated, kernel, machine, simulate

from zexp.errors import ConfigError
from zexp.kernel import PAGE_BYTES
from zexp.machine import Machine
from zexp.workload import WORKLOADS, Workload
from zexp.workload.munmap import Munmap
from zexp.workload.swap import MeminfoReader, Mixed, Store, SwapIn, SwapOff

SMALL: dict[str, Workload] = {
    "munmap": Munmap(total_size="1MiB", processes=3),
    "swapin": SwapIn(size="512KiB", processes=3),
    "swapoff": SwapOff(size="256KiB", processes=3),
    "store": Store(size="512KiB", processes=3),
    "meminfo_reader": MeminfoReader(readers=2, reads=20),
    "mixed": Mixed(munmap=2, store=2, swapin=2, size="512KiB", store_size="256KiB", swapin_size="256KiB"),
}
KB = st.integers(4, 700).map(lambda kb: f"{kb}KiB")


def initial(run: Simulated, name: str) -> int:
    """The sum of a variable's values at the start."""
    (variable,) = [v for v in run.program.variables if v.name == name]
    return int(run.program.cells[variable.base : variable.base + variable.length].sum())


def check_books(run: Simulated, under_way: int = 0) -> None:
    """Conservation of entries, objects and pages. A daemon may have been cut off amid freeing ``under_way`` entries."""
    stored, freed = run.metric("entries_stored"), run.metric("entries_freed")
    left = initial(run, "zswap_stored_pages") + stored - freed
    objects = int(run.cells("zspage->inuse").sum())
    assert 0 <= run.cell("zswap_stored_pages") - objects <= under_way
    assert 0 <= left - objects <= under_way
    pages = run.zswap.zsmalloc.initial_pages + run.metric("pages_allocated") - run.metric("pages_freed")
    slack = under_way * run.zswap.zsmalloc.k.config.zsmalloc_chain
    assert abs(int(run.cells("zs_pool->pages_allocated").sum()) - pages) <= slack
    assert (run.cells("zs_pool->pages_allocated") >= 0).all()
    if run.zswap.dynamic:  # every zspage with an object in it is counted, and no other
        zspage_of = run.cells("zspage of slot")
        assert 0 <= int((zspage_of >= 0).sum()) - objects <= under_way
        others = run.zswap.zsmalloc.initial_pages - zspage_pages(run, run.program.cells)
        assert abs(zspage_pages(run, run.memory) + others - pages) <= slack
    stocks = run.cells("obj_stock.nr_bytes")
    assert (stocks >= 0).all()
    assert (stocks <= PAGE_BYTES).all()


def zspage_pages(run: Simulated, cells: npt.NDArray[np.int64]) -> int:
    """Pages of the zspages that hold slots' entries."""
    values = {v.name: cells[v.base : v.base + v.length] for v in run.program.variables if v.base >= 0}
    used = dict(zip(values["zspage of slot"].tolist(), values["kind of slot"].tolist(), strict=True))
    used.pop(-1, None)
    return sum(int(values["class->pages"][kind]) for kind in used.values())


def test_every_workload_is_tested() -> None:
    assert {*SMALL, "stat_readers", "reclaim"} == set(WORKLOADS), "those two have tests of their own"


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("workload", SMALL)
def test_every_workload_runs_on_every_kernel_under_every_policy(workload: str, name: str) -> None:
    for policy in POLICIES.values():
        run = simulate(SMALL[workload], policy(), kernel(name), machine(nodes=2))
        assert run.result.sim_ns > 0
        assert run.load.comm in {s.comm for s in run.result.profile.stacks}
        assert run.load.pages > 0
        if run.load.watch is not None and workload != "store":
            assert run.memory[run.load.watch.array.base] == run.load.watch_to
    check_books(simulate(SMALL[workload], Counting(), kernel(name), machine(nodes=2)), int(workload == "store"))


@pytest.mark.parametrize("workload", SMALL)
def test_another_seed_changes_nothing(workload: str) -> None:
    first, second = (simulate(SMALL[workload], seed=seed).result for seed in (0, 12345))
    assert first.profile == second.profile
    assert first.sim_ns == second.sim_ns
    assert first.locks == second.locks


def check_empty(run: Simulated, pages: int) -> None:
    check_books(run)
    assert run.metric("entries_freed") == pages
    assert run.cell("zswap_stored_pages") == 0
    assert not run.cells("zs_pool->pages_allocated").any()
    assert not run.cells("zspage->inuse").any()
    assert run.cell("nr_swap_pages") == pages, "every slot is free again"
    assert run.cells("memcg->swap").sum() == -pages, "and uncharged"
    assert run.cell("root_mem_cgroup->swap") == -pages
    assert run.cells("memcg->memory").sum() == run.cell("root_mem_cgroup->memory")
    sizes = run.cells("class->size")[run.cells("kind of slot")]
    stocks = int(run.cells("obj_stock.nr_bytes").sum())
    assert -run.cell("root_mem_cgroup->memory") * PAGE_BYTES + stocks == sizes.sum(), "no byte of charge is lost"
    assert not run.cells("swap_slots_cache->n_ret").any()


@settings(max_examples=80)
@given(
    name=st.sampled_from(KERNELS),
    processes=st.integers(1, 16),
    size=st.integers(64, 900).map(lambda kb: f"{kb}KiB"),
    ratio=st.floats(1, 20),
    spread=st.floats(0, 1),
    memory=st.sampled_from(["local", "interleave"]),
    placement=st.sampled_from(["spread", "pack"]),
    nodes=st.sampled_from([1, 2, 4]),
)
def test_munmap_leaves_nothing(
    name: str, processes: int, size: str, ratio: float, spread: float, memory: str, placement: str, nodes: int
) -> None:
    workload = Munmap(
        total_size=size,
        processes=processes,
        compression_ratio=ratio,
        compression_spread=spread,
        memory=memory,
        placement=placement,
    )
    run = simulate(workload, config=kernel(name), on=machine(nodes=nodes))
    check_empty(run, workload.pages()[2])
    assert run.load.pages == workload.pages()[2]


@settings(max_examples=60)
@given(
    name=st.sampled_from(KERNELS),
    workload=st.sampled_from([SwapIn, SwapOff]),
    processes=st.integers(1, 12),
    size=st.integers(4, 200).map(lambda kb: f"{kb}KiB"),
    exclusive=st.booleans(),
)
def test_swapping_in_drops_entries(
    name: str, workload: type[SwapIn] | type[SwapOff], processes: int, size: str, exclusive: bool
) -> None:
    """All of them, but for those whose slots still wait in a CPU's slot cache where loads are not exclusive."""
    run = simulate(workload(size=size, processes=processes), config=kernel(name, exclusive_loads=exclusive))
    check_books(run)
    cached = int(run.cells("swap_slots_cache->n_ret").sum())
    freed = run.load.pages - cached
    assert run.cell("nr_swap_pages") == freed
    assert run.metric("entries_freed") == (run.load.pages if exclusive else freed)
    assert run.result.histograms.keys() >= ({"swapin_ns"} if workload is SwapIn else set())
    if workload is SwapIn:
        assert run.result.histograms["swapin_ns"].count == run.load.pages


@settings(max_examples=60)
@given(
    name=st.sampled_from(KERNELS),
    processes=st.integers(1, 12),
    size=KB,
    ratio=st.floats(1, 10),
    fill=st.floats(0, 100),
    worker=st.booleans(),
    memory_mib=st.sampled_from([8, 32, 256]),
)
def test_store_keeps_to_the_limit(
    name: str, processes: int, size: str, ratio: float, fill: float, worker: bool, memory_mib: int
) -> None:
    workload = Store(
        size=size, processes=processes, compression_ratio=ratio, pool_fill_percent=fill, shrink_worker=worker
    )
    run = simulate(workload, Counting(), kernel(name), machine(memory_mib=memory_mib))
    check_books(run, under_way=int(worker))
    pages = run.load.pages
    to_device = run.metric("swap_writepage_to_device")
    assert run.metric("entries_stored") + to_device == pages, "every page goes one way or the other"
    assert to_device == run.metric("zswap_reject_reclaim_fail")
    assert 0 <= run.metric("entries_freed") - run.metric("zswap_written_back_pages") <= 1
    assert run.result.histograms["store_ns"].count == pages
    # a store checks first and allocates later: each of those under way may add a zspage
    largest = max(int(run.cells("largest size").max()), run.zswap.zsmalloc.initial_pages)
    assert largest < run.zswap.max_pages + processes * run.zswap.mm.zsmalloc.k.config.zsmalloc_chain
    if run.metric("zswap_pool_limit_hit") == 0:
        assert to_device == 0
        assert run.cell("zswap_pool_reached_full") == 0


def store_into_a_full_pool(**changes: object) -> Simulated:
    workload = Store(size="12MiB", processes=2, **changes)  # type: ignore[arg-type]
    return simulate(workload, Counting(), kernel("v6_8", zpools=1), machine(memory_mib=16))


def test_without_a_worker_a_full_pool_stays_full() -> None:
    """Hysteresis: once full, stores are refused until the pool is below the accept threshold, which it never is."""
    run = store_into_a_full_pool(shrink_worker=False)
    refused = run.metric("zswap_reject_reclaim_fail")
    assert run.metric("zswap_pool_limit_hit") == refused > 0, "every check at the limit counts, and refuses"
    assert run.cell("zswap_pool_reached_full") == 1
    assert run.metric("zswap_written_back_pages") == 0
    assert run.zswap.max_pages == 16 * 256 * 20 // 100
    assert run.zswap.accept_pages == run.zswap.max_pages * 90 // 100
    assert int(run.cells("zs_pool->pages_allocated").sum()) >= run.zswap.max_pages


def test_the_worker_writes_back_down_to_the_accept_threshold() -> None:
    run = store_into_a_full_pool()
    assert run.metric("zswap_written_back_pages") > 0
    assert run.metric("zswap_pool_limit_hit") > 1, "room was made, and filled again"
    without = store_into_a_full_pool(shrink_worker=False)
    assert run.metric("entries_stored") > without.metric("entries_stored")
    assert "kworker/shrink" in {s.comm for s in run.result.profile.stacks}
    assert {"shrink_worker", "shrink_memcg", "zswap_writeback_entry"} <= run.symbols("kworker/shrink")


@pytest.mark.parametrize(("full", "at_most"), [(1, 100), (90, 90), (50, 95)])
def test_the_accept_threshold_is_a_parameter(full: int, at_most: int) -> None:
    """A pool that starts between the threshold and the limit accepts; it fills up, and is refused above the limit."""
    config = kernel("v6_8", zpools=1, accept_threshold_percent=at_most)
    run = simulate(Store(size="1MiB", pool_fill_percent=full), Counting(), config, machine(memory_mib=64))
    assert run.zswap.accept_pages == run.zswap.max_pages * at_most // 100
    assert run.metric("entries_stored") == run.load.pages
    assert run.metric("zswap_pool_limit_hit") == 0


def test_a_pool_that_starts_full_takes_nothing() -> None:
    workload = Store(size="1MiB", pool_fill_percent=100.0, shrink_worker=False)
    run = simulate(workload, Counting(), kernel("v6_8"), machine(memory_mib=64))
    assert run.metric("entries_stored") == 0
    assert run.metric("swap_writepage_to_device") == run.load.pages


def test_store_and_take_back() -> None:
    """Mixed: what is unmapped and loaded goes, what is stored stays."""
    workload = Mixed(munmap=2, store=3, swapin=2, size="512KiB", store_size="256KiB", swapin_size="256KiB")
    for name in KERNELS:
        run = simulate(workload, Counting(), kernel(name))
        check_books(run)
        # where loads are not exclusive, an entry stays until its slot leaves the CPU's slot cache
        cached = 0 if kernel(name).exclusive_loads else int(run.cells("swap_slots_cache->n_ret").sum())
        assert run.metric("entries_stored") == 3 * 64
        assert run.cell("zswap_stored_pages") == 3 * 64 + cached


def test_meminfo_reader_reads_as_often_as_told() -> None:
    run = simulate(MeminfoReader(readers=3, reads=7, period_ns=5000))
    assert run.metric("meminfo_reads") == 21 == run.load.pages
    histogram = run.result.histograms["meminfo_zswap_pages"]
    assert (histogram.count, histogram.unit) == (21, "pages")
    assert histogram.total == 21 * run.zswap.zsmalloc.initial_pages
    assert run.result.sim_ns > 7 * 5000


def test_local_memory_is_nearer_than_interleaved() -> None:
    on: Machine = machine("epyc_7742_2s")
    times = [simulate(Munmap(total_size="4MiB", memory=m), on=on).result.sim_ns for m in ("local", "interleave")]
    assert times[0] < times[1]


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (Munmap(), r"workload\.size=None: give either workload\.size or workload\.total_size"),
        (Munmap(size="1MiB", total_size="1MiB"), r"workload\.size=1MiB: give either"),
        (Munmap(size="1MiB", processes=0), r"workload\.processes=0: a whole number from 1 up"),
        (Munmap(total_size="8KiB", processes=3), r"workload\.total_size=8KiB: at least one page"),
        (Munmap(size="1KiB"), r"workload\.size=1KiB: at least one page"),
        (Munmap(size="1MiB", processes=17), r"workload\.processes=17: laptop has 16 CPUs"),
        (Munmap(size="1MiB", compression_ratio=0.5), r"workload\.compression_ratio=0\.5: allowed: 1 to 128"),
        (Munmap(size="1MiB", compression_spread=1.5), r"workload\.compression_spread=1\.5: allowed: 0 to 1"),
        (Munmap(size="1MiB", memory="far"), r"workload\.memory=far: allowed: interleave, local"),
        (Munmap(size="1MiB", placement="far"), r"workload\.placement=far: allowed: pack, spread"),
        (Munmap(size="30GiB"), r"workload\.size=30GiB: 30 GiB of zswapped memory needs a pool of .*; laptop lets"),
        (Munmap(size="2GiB", processes=15), r"workload\.size=2GiB: 30 GiB of zswapped memory"),
        (SwapIn(size="0"), r"workload\.size=0: a size above 0"),
        (SwapIn(processes=-1), r"workload\.processes=-1: a whole number"),
        (SwapIn(size="30GiB"), r"workload\.size=30GiB: .* laptop lets zswap use 6\.4 GiB"),
        (SwapOff(size="100"), r"workload\.size=100: at least one page"),
        (SwapOff(size="2GiB", processes=20), r"workload\.size=2GiB: 40 GiB of zswapped"),
        (SwapOff(placement="far"), r"workload\.placement=far: allowed"),
        (Store(size="1MiB", processes=16), r"workload\.processes \+ shrink_worker=17: laptop has 16 CPUs"),
        (Store(processes=17, shrink_worker=False), r"workload\.processes=17: laptop has 16 CPUs"),
        (Store(pool_fill_percent=101), r"workload\.pool_fill_percent=101: allowed: 0 to 100"),
        (Store(memory="far"), r"workload\.memory=far: allowed"),
        (Store(size="x"), r"workload\.size=x: a size like"),
        (MeminfoReader(readers=0), r"workload\.readers=0: a whole number from 1 up"),
        (MeminfoReader(reads=0), r"workload\.reads=0: a whole number from 1 up"),
        (MeminfoReader(period_ns=-1), r"workload\.period_ns=-1: a whole number from 0 up"),
        (MeminfoReader(readers=17), r"workload\.readers=17: laptop has 16 CPUs"),
        (MeminfoReader(memory="far"), r"workload\.memory=far: allowed"),
        (Mixed(munmap=0), r"workload\.munmap=0: a whole number from 1 up"),
        (Mixed(store=-1), r"workload\.store=-1: a whole number from 0 up"),
        (Mixed(munmap=9), r"workload\.munmap \+ store \+ swapin \+ meminfo_readers=18: laptop has 16 CPUs"),
        (Mixed(store_size="0"), r"workload\.store_size=0: a size above 0"),
        (Mixed(size="10GiB"), r"workload\.size=10GiB: .* of zswapped memory"),
    ],
)
def test_mistakes_are_named(workload: Workload, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        simulate(workload)
