"""zswap under pressure: what the shrinker counts and writes back, the limit, the worker; nothing is lost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from zexp_flush.strategies import Never, Sync

from zexp.kernel import KernelBuilder
from zexp.kernel.cgroup import TreeConfig
from zexp.program import Value
from zexp.workload.reclaim import Reclaim

from .simulate import kernel, machine
from .storm import AUDITED, MS, Parts, Ran, S, auditor, parts, storm

ONE = TreeConfig(1, 0, updates_per_s=1e6)
SCHEMES = {"protected": "v6_8", "second_chance": "v6_12"}

# ---- the count -------------------------------------------------------------------------------------------------------


def counted(scheme: str, hot: int, cold: int, stored: int, backing: int, spared: int, **changes: Any) -> Ran:
    """Ask for the count of one list; the statistics are as flushed."""
    p = parts(cgroups=ONE, kernel_name=SCHEMES[scheme], horizon_ns=S, **changes)
    for array, value in (
        (p.lruvecs.hot, hot), (p.lruvecs.cold, cold), (p.lruvecs.visible_zswapped, stored),
        (p.lruvecs.visible_zswap_bytes, backing), (p.lruvecs.disk_swapins, spared),
        (p.lruvecs.zswapped, hot + cold), (p.lruvecs.zswap_bytes, backing),
    ):  # fmt: skip
        p.set(array, value)
    with p.thread() as k:
        k.count("count", p.zswap.zswap_shrinker_count(k, k.local(0), 0))
    return p.run()


@settings(max_examples=60)
@given(
    scheme=st.sampled_from(sorted(SCHEMES)),
    hot=st.one_of(st.just(0), st.integers(0, 100_000)),
    cold=st.one_of(st.just(0), st.integers(0, 100_000)),
    stored=st.one_of(st.just(0), st.integers(1, 1 << 24)),
    ratio=st.floats(1.0, 128.0),
    spared=st.one_of(st.just(0), st.integers(0, 200_000)),
)
def test_the_count_is_the_kernels(scheme: str, hot: int, cold: int, stored: int, ratio: float, spared: int) -> None:
    """What is not spared, times backing pages over stored pages; the model does not round backing to pages first."""
    backing = int(stored * 4096 / ratio)
    ran = counted(scheme, hot, cold, stored, backing, spared)
    if stored == 0 or hot + cold == 0:
        assert ran.metric("count") == 0
        assert ran.cells("nr_disk_swapins, or nr_zswap_protected") == [spared], "returned before it used them up"
        return
    freeable = max(hot + cold - spared, 0)
    assert ran.metric("count") == freeable * backing // (4096 * stored)
    in_pages = freeable * (backing >> 12) // stored
    assert in_pages <= ran.metric("count") <= in_pages + 1 + freeable // stored
    used_up = min(spared, hot + cold) if scheme == "second_chance" else 0
    assert ran.cells("nr_disk_swapins, or nr_zswap_protected") == [spared - used_up]


def test_better_compression_counts_less() -> None:
    counts = [counted("second_chance", 0, 9000, 9000, 9000 * size, 0).metric("count") for size in (1024, 2048, 4096)]
    assert counts == [2250, 4500, 9000]


def test_the_count_of_a_shrinker_that_is_off() -> None:
    ran = counted("second_chance", 10, 10, 20, 20 * 4096, 5, kernel_changes={"zswap_shrinker": "off"})
    assert ran.metric("count") == ran.metric("flush/zswap_shrinker_count/calls") == 0
    assert ran.cells("nr_disk_swapins, or nr_zswap_protected") == [5]


# ---- the scan --------------------------------------------------------------------------------------------------------


def scan(p: Parts, number: int, **start: int) -> Ran:
    """Scan the only list."""
    entries = start.get("hot", 0) + start.get("cold", 0)
    for name, value in start.items():
        p.set(getattr(p.lruvecs, name), value)
    p.set(p.lruvecs.bytes, entries * 1000)
    p.set(p.lruvecs.zswapped, entries)
    p.set(p.lruvecs.zswap_bytes, entries * 1000)
    with p.thread() as k:
        answer = p.zswap.zswap_shrinker_scan(k, k.local(0), 0, number)
        k.count("stopped", answer == -1)
        k.count("written", k.maximum(answer, 0))
    return p.run()


def two_scans(scheme: str) -> Parts:
    return parts(cgroups=ONE, kernel_name=SCHEMES[scheme], horizon_ns=S)


@pytest.mark.parametrize(("protected", "written"), [(0, 128), (871, 128), (872, 0), (1000, 0)])
def test_a_scan_stops_where_it_would_reach_the_protected(protected: int, written: int) -> None:
    ran = scan(two_scans("protected"), 128, cold=1000, disk_swapins=protected)
    assert (ran.metric("written"), ran.metric("stopped")) == (written, written == 0)
    assert ran.metric("zswap/written_back") == written
    assert ran.cells("nr_disk_swapins, or nr_zswap_protected") == [protected]


@pytest.mark.parametrize(
    ("referenced", "spared"), [(0, 0), (1000, 128), (500, 64), (250, 32)]
)  # as many as of the whole list
def test_a_scan_gives_second_chances(referenced: int, spared: int) -> None:
    ran = scan(two_scans("second_chance"), 128, cold=1000, referenced=referenced)
    assert ran.metric("written") == ran.metric("zswap/written_back") == 128 - spared
    assert ran.metric("stopped") == (spared == 128), "nothing written is SHRINK_STOP"
    assert ran.cells("zswap entries with a second chance") == [referenced - spared]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_coldest_are_written_back_first(scheme: str) -> None:
    ran = scan(two_scans(scheme), 128, cold=100, hot=900)
    assert (ran.cells("cold in zswap"), ran.cells("hot in zswap")) == ([0], [872])
    assert (ran.cells("cold on disk"), ran.cells("hot on disk")) == ([100], [28])
    assert ran.metric("zswap/written_back_hot") == 28
    assert ran.cells("MEMCG_ZSWAPPED") == [872]
    assert ran.cells("compressed bytes") == ran.cells("MEMCG_ZSWAP_B") == [872_000]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scan_of_an_empty_list_stops(scheme: str) -> None:
    assert scan(two_scans(scheme), 128, cold=0).metric("stopped") == 1


def test_what_stores_protect() -> None:
    """6.8: between an eighth and a quarter of the list; later every new entry has a second chance."""
    for scheme in SCHEMES:
        p = two_scans(scheme)
        with p.thread() as k, k.for_range(100):
            p.zswap.swap_out(k, k.local(0), 0, k.local(20))
        ran = p.run()
        (protected,) = ran.cells("nr_disk_swapins, or nr_zswap_protected")
        if scheme == "protected":
            assert 2000 / 8 <= protected <= 2000 / 4
        else:
            assert protected == 0
        assert ran.cells("zswap entries with a second chance") == [0 if scheme == "protected" else 2000]


# ---- the pool's limit ------------------------------------------------------------------------------------------------


@dataclass
class Pool:
    """Pages stored and written back, one object size: who is rejected."""

    limit: int
    accept: int
    objects_a_page: int = 4
    entries: int = 0
    full: bool = False
    rejected: int = 0
    disk: list[int] = field(default_factory=lambda: [0])

    def store(self, pages: int) -> None:
        size = self.entries // self.objects_a_page
        if size >= self.limit:
            self.full = True
        elif size <= self.accept:
            self.full = False
        if self.full:
            self.rejected += pages
            self.disk[0] += pages
        else:
            self.entries += pages

    def write_back(self, pages: int) -> None:
        written = min(pages, self.entries)
        self.entries -= written
        self.disk[0] += written


@settings(max_examples=60)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["store", "write_back"]), st.integers(1, 9000)), min_size=1, max_size=25)
)
@example(
    [
        *[("store", 13_103), ("store", 1), ("store", 1), ("write_back", 1), ("store", 1), ("write_back", 1307)],
        *[("store", 5), ("write_back", 1), ("store", 5), ("store", 5)],  # at 11,796 pages
    ]
)
def test_the_limit_against_a_reference(steps: list[tuple[str, int]]) -> None:
    p = parts(cgroups=ONE, memory_mib=64, horizon_ns=60 * S, kernel_changes={"max_pool_percent": 20})
    assert (p.zswap.max_pages, p.zswap.accept_pages) == (3276, 2948)
    with p.thread() as k:
        for what, pages in steps:
            k.store(p.lruvecs.referenced[0], 0)
            if what == "store":
                p.zswap.swap_out(k, k.local(0), 0, k.local(pages))
            else:
                p.zswap.shrink_memcg_cb(k, k.local(0), 0, pages)
    ran = p.run()
    model = Pool(3276, 2948)
    for what, pages in steps:
        getattr(model, what)(pages)
    assert ran.cells("zswap_pool_reached_full") == [model.full]
    assert ran.metric("zswap/rejected") == model.rejected
    assert ran.cells("cold in zswap") == ran.cells("MEMCG_ZSWAPPED") == [model.entries]
    assert ran.cells("cold on disk") == model.disk
    assert ran.cells("zswap_shrink_work is queued") == [int(model.rejected > 0)]


# ---- the worker ------------------------------------------------------------------------------------------------------


def counting_shrinks(p: Parts) -> None:
    """Counts the memcgs that the worker visits."""
    shrink_memcg = p.zswap._shrink_memcg

    def counting(k: KernelBuilder, memcg: Value) -> tuple[Value, Value]:
        k.count("shrunk")
        return shrink_memcg(k, memcg)

    p.zswap._shrink_memcg = counting  # type: ignore[method-assign]


def full(zswapped: int, referenced: int, batch: int, rejections: int = 1) -> Ran:
    """Two nodes, three memcgs; the pool is at its limit, and stores are rejected, 100 ms apart."""
    p = parts(
        zswapped=zswapped, nodes=2, memory_mib=64, kernel_changes={"shrink_worker_batch": batch}, horizon_ns=60 * S
    )
    p.set(p.zswap.reached_full, 1)
    counting_shrinks(p)
    p.k.spawn(p.zswap.shrink_worker(p.k), 5)
    with p.thread() as k, k.for_range(rejections):
        k.sleep_ns(100 * MS)
        with k.for_each(p.lruvecs.referenced) as element:
            k.store(element, referenced)
        p.zswap.swap_out(k, k.local(1), 0, k.local(7))
    return p.run()


def in_turn(cells: list[int]) -> list[int]:
    """Of all lruvecs, in the order in which the worker visits them."""
    return [cells[node * 3 + memcg] for memcg in range(3) for node in range(2)]


@pytest.mark.parametrize("batch", [1, 32])
def test_the_worker_stops_at_the_accept_threshold(batch: int) -> None:
    """A batch of every memcg and node in turn. Nobody stores anything later, and it sleeps."""
    ran = full(zswapped=2200, referenced=0, batch=batch)  # 13,200 entries, 3300 pages
    (pool,) = ran.cells("MEMCG_ZSWAP_B")[:1]
    assert 2948 - batch * 2 / 4 - 1 <= pool // 4096 <= 2948
    left = in_turn(ran.cells("cold in zswap"))
    assert max(left) - min(left) <= batch
    assert left == sorted(left), "in the order of the tree"
    assert ran.metric("zswap/written_back_by_worker") == 13_200 - sum(left)
    assert ran.cells("zswap_shrink_work is queued") == [0]
    assert ran.metric("zswap/rejected") == 7
    assert ran.cells("cold on disk")[1] == 7 + 2200 - left[2], "what zswap does not take goes to the disk"


@pytest.mark.parametrize("rejections", [1, 3])
def test_the_worker_gives_up_after_16_failures(rejections: int) -> None:
    """Each memcg has entries and lets none go, as all have a second chance. The next rejection queues it again."""
    ran = full(zswapped=2200, referenced=2200, batch=1, rejections=rejections)
    assert ran.metric("zswap/written_back_by_worker") == 0
    assert ran.metric("shrunk") == 16 * rejections
    spared = [2200 - referenced for referenced in in_turn(ran.cells("zswap entries with a second chance"))]
    assert spared == [6, 6, 5, 5, 5, 5], "the last time, from the root on, an entry on each node"


def test_the_worker_sleeps_until_a_store_is_rejected() -> None:
    assert full(zswapped=2200, referenced=0, batch=32, rejections=0).metric("zswap/written_back_by_worker") == 0


def test_rounds_without_an_entry_are_failures() -> None:
    p = parts(memory_mib=64, horizon_ns=S)
    p.set(p.lruvecs.zswap_bytes, 3300 * 4096)  # somebody else's
    p.set(p.zswap.queued, 1)
    counting_shrinks(p)
    p.k.spawn(p.zswap.shrink_worker(p.k), 5)
    ran = p.run()
    assert ran.metric("shrunk") == 16 * 3
    assert ran.cells("zswap_shrink_work is queued") == [0]
    assert ran.metric("zswap/written_back_by_worker") == 0


# ---- estimates -------------------------------------------------------------------------------------------------------


def estimates(strategy: Any, how: str = "sync", **changes: Any) -> Ran:
    config = kernel("v6_12", zswap_shrinker="on", lru_gen=False, flush_sites={
        "memory_stat": "sync", "prepare_scan_control": "ratelimited", "zswap_shrinker_count": how})  # fmt: skip
    tree = changes.pop("tree", TreeConfig(8, 3, updates_per_s=1e6))
    workload = Reclaim(
        duration_s=1.9, tree=tree, readers=0, allocated_mib_per_s=100, allocation_kib=64, anon_pct=90, **changes
    )
    return storm(workload, config, machine(memory_mib=1024), strategy)


def test_estimates_are_right_if_nothing_is_pending() -> None:
    """One kswapd, and every count flushes: at once, or since updates come so fast that all pass the threshold."""
    fast = TreeConfig(8, 3, updates_per_s=1e10, skew=0)
    for ran in (estimates(Never(sites=[]), "forced"), estimates(Sync(), tree=fast)):
        assert ran.metric("direct_reclaim/calls") == ran.metric("zswap/written_back_by_worker") == 0
        assert ran.metric("count/truth_pages") > 0
        assert ran.metric("count/error_pages") == ran.metric("count/signed_error_pages") == 0
        assert ran.metric("flush/zswap_shrinker_count/flushes") == ran.metric("flush/zswap_shrinker_count/calls") > 100


def test_estimates_are_wrong_if_nobody_flushes() -> None:
    def error(**changes: Any) -> float:
        ran = estimates(Never(), **changes)
        assert ran.metric("flush/zswap_shrinker_count/flushes") == 0
        assert abs(ran.metric("count/signed_error_pages")) <= ran.metric("count/error_pages")
        return ran.metric("count/error_pages") / ran.metric("count/truth_pages")

    swinging = error(ratio_swing=0.5, swing_period_s=1.0)
    assert swinging > 0.01
    assert error(ratio_swing=0.0) < 0.3 * swinging


# ---- nothing is negative, lost or counted twice ----------------------------------------------------------------------


@settings(max_examples=15)
@given(
    name=st.sampled_from(["v6_1", "v6_8", "v6_12", "v7_3"]),
    shrinker=st.sampled_from(["on", "on", "off"]),
    lru_gen=st.booleans(),
    max_pool_percent=st.sampled_from([1, 5, 20, 50]),
    swappiness=st.sampled_from([60, 200]),
    nodes=st.sampled_from([1, 2, 4]),
    bound=st.booleans(),
    memory_mib=st.sampled_from([256, 1024]),
    lru_pct=st.floats(5.0, 60.0),
    anon_pct=st.floats(0.0, 100.0),
    zswapped_pct=st.floats(0.0, 60.0),
    allocated_mib_per_s=st.sampled_from([100.0, 1000.0, 5000.0]),
    hot_per_s=st.sampled_from([0.1, 100.0]),
    seed=st.integers(0, 1000),
)
def test_nothing_is_lost(
    name: str,
    shrinker: str,
    lru_gen: bool,
    max_pool_percent: int,
    swappiness: int,
    nodes: int,
    memory_mib: int,
    seed: int,
    **fields: Any,
) -> None:
    """Looked at every ms or so, with several threads at the same lists."""
    config = kernel(
        name,
        zswap_shrinker="none" if name == "v6_1" else shrinker,
        lru_gen=lru_gen,
        max_pool_percent=max_pool_percent,
        swappiness=swappiness,
    )
    workload = Reclaim(
        duration_s=0.4, tree=TreeConfig(9, 2, updates_per_s=1e6), readers=0, hot_pct=50.0, swing_period_s=0.1, **fields
    )
    on = machine(memory_mib=memory_mib, nodes=nodes)
    ran = storm(workload, config, on, seed=seed, extra=auditor(7, MS))
    turns = ran.metric("audit/turns")
    assert turns > 300
    assert {what: ran.metric(f"audit/negative/{what}") for what in AUDITED} == dict.fromkeys(AUDITED, 0)
    assert ran.metric("audit/entries_off") == ran.metric("audit/bytes_off") == 0
    assert ran.metric("audit/referenced_more_than_all") == 0
    # every charge of the pool and every attribution of allocations is rounded at random, by less than a page
    roundings = 3 * 9 * ran.metric("shrink_node/passes") + 9 * ran.metric("zswap/written_back_by_worker") + 100
    drift = ran.result.histograms["audit/drift_pages"]
    assert drift.count == nodes * turns
    assert drift.total / drift.count < 2 * math.sqrt(roundings)
