"""kswapd and direct reclaim: when they run, how hard they try, whom they visit, when they give up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zexp_flush.strategies import Sync

from zexp.kernel import KernelBuilder
from zexp.kernel.cgroup import TreeConfig
from zexp.program import IntLike, Local, Value
from zexp.workload.reclaim import Reclaim

from .simulate import kernel, machine
from .storm import MS, Parts, Ran, S, parts, storm

SMALL = TreeConfig(cgroups=12, slices=3, updates_per_s=1e6)
PLENTY = 100_000


def allocating(p: Parts, pages: int = 1, times: int = 1 << 40, gap_ns: int = MS, cpu: int = 1, home: int = 0) -> None:
    """A task that allocates, and says how often it was refused."""
    with p.thread(cpu) as k, k.for_range(times):
        with k.if_(p.zones.alloc_pages(k, home, pages, p.vmscan) == 0):
            k.count("refused")
        k.sleep_ns(gap_ns)


def with_kswapd(p: Parts, nodes: Sequence[int] = (0,)) -> Parts:
    thread = p.vmscan.kswapd(p.k)
    for node in nodes:
        p.k.spawn(thread, p.on.cpus_of_node(node)[0], node=node)
    return p


# ---- when kswapd runs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lru_gen", [False, True])
def test_kswapd_runs_from_low_to_high(lru_gen: bool) -> None:
    p = with_kswapd(parts(file=PLENTY, kernel_changes={"lru_gen": lru_gen}, horizon_ns=2 * S))
    free = p.k.series("seen free", 4000, "pages")
    runs = p.k.series("seen running", 4000, "")
    with p.thread(1) as k, k.for_range(1 << 40):
        p.zones.alloc_pages(k, 0, 1, p.vmscan)
        k.record(free, k.load(p.zones.free[0]))
        k.record(runs, k.load(p.vmscan.wanted[0]) + k.load(p.vmscan.active[0]))
        k.sleep_ns(2 * MS)
    ran = p.run()
    (low,), (high,) = ran.cells("low watermark, pages"), ran.cells("high watermark, pages")
    seen = list(zip(ran.result.series["seen free"].values, ran.result.series["seen running"].values, strict=True))
    woken = [pages for pages, running in seen if running]
    assert len(woken) == ran.metric("kswapd/wakeups") == ran.metric("kswapd/woken") > 1
    assert set(woken) == {low}, "the allocation that would go below low takes a page from below it, and wakes kswapd"
    assert min(pages for pages, _ in seen) == low
    after = [seen[i + 1][0] + 1 for i, (_, running) in enumerate(seen[:-1]) if running]
    assert min(after) >= high, "it goes on up to high"
    assert max(after) < high + 300, "and stops there: a pass brings twice as much as the one before, 262 are wanted"
    assert ran.cells("kswapd is running") == [0]
    assert ran.metric("direct_reclaim/calls") == 0


def woken(p: Parts, pages: int) -> tuple[int, int, list[int]]:
    allocating(p, pages, times=1)
    ran = p.run()
    return ran.metric("kswapd/wakeups"), ran.metric("kswapd/woken"), ran.cells("kswapd is to run")


def test_all_unbalanced_nodes_are_woken_together() -> None:
    def four(**changes: Any) -> Parts:
        return parts(file=100, nodes=4, memory_mib=1024, horizon_ns=MS, **changes)

    p = four()
    low, high = (int(p.k.memory.initial(marks)[0]) for marks in (p.zones.low, p.zones.high))
    p.set(p.zones.free, low)
    assert woken(p, 1) == (1, 4, [1, 1, 1, 1])
    p = four()
    p.set(p.zones.free, low + 2)
    assert woken(p, 1) == (0, 0, [0, 0, 0, 0])
    p = four()
    p.set(p.zones.free, [low, low, high, high - 1])  # 2 is balanced; a large allocation does not fit there
    assert woken(p, high - low) == (1, 3, [1, 1, 0, 1])
    p = four()
    p.set(p.zones.free, low)
    p.set(p.vmscan.failures, [0, 16, 15, 17])  # 1 and 3 are hopeless
    assert woken(p, 1) == (1, 2, [1, 0, 1, 0])
    p = four()
    p.set(p.zones.free, low)
    p.set(p.vmscan.active, [1, 0, 0, 0])
    p.set(p.vmscan.wanted, [0, 1, 0, 0])
    assert woken(p, 1) == (1, 2, [0, 1, 1, 1])
    p = four(bound=True)
    p.set(p.zones.free, low)
    assert woken(p, 1) == (1, 1, [1, 0, 0, 0])


def test_woken_kswapds_run_at_the_same_time() -> None:
    p = with_kswapd(parts(file=PLENTY, nodes=4, memory_mib=2048, horizon_ns=S), range(4))
    p.set(p.zones.free, p.k.memory.initial(p.zones.low))
    began = [p.k.series(f"began{node}", 10, "ns") for node in range(4)]
    allocating(p, times=1)
    with p.thread(3) as k:
        k.sleep_ns(5000)
        for node in range(4):
            k.record(began[node], k.load(p.vmscan.active[node]))
    ran = p.run()
    assert [ran.result.series[f"began{node}"].values for node in range(4)] == [(1,)] * 4
    assert ran.result.histograms["kswapd_awake_ns"].count == 4


# ---- how hard it tries -----------------------------------------------------------------------------------------------


def scripted(p: Parts, script: list[tuple[int, int]]) -> None:
    """shrink_node that reclaims and scans what it is told, and records its node and priority."""
    k = p.k
    gains = k.bookkeeping("gains", len(script) + 1, [*(gain for gain, _ in script), 0])
    scans = k.bookkeeping("scans", len(script) + 1, [*(scan for _, scan in script), 0])
    turn = k.bookkeeping("turn", 1)
    asked = k.series("asked", 10_000, "node and priority")
    targets = k.series("targets", 10_000, "pages")

    def shrink_node(
        k: KernelBuilder, node: IntLike, priority: Local, target: IntLike | None = None
    ) -> tuple[Value, Value]:
        k.record(asked, node * 100 + priority)
        if target is not None:
            k.record(targets, target)
        k.work(1000)
        i = k.minimum(k.load(turn[0]), len(script))
        k.store(turn[0], k.load(turn[0]) + 1)
        got = k.load(gains[i])
        k.store(p.zones.free[node], k.load(p.zones.free[node]) + got)
        return got, k.load(scans[i])

    p.vmscan.shrink_node = shrink_node  # type: ignore[method-assign]


def asked(ran: Ran) -> list[tuple[int, int]]:
    return [(value // 100, value % 100) for value in ran.result.series["asked"].values]


class Script:
    """Consumes a script and remembers."""

    def __init__(self, script: list[tuple[int, int]], free: list[int]) -> None:
        self.script, self.free, self.asked = list(script), free, list[tuple[int, int]]()

    def shrink_node(self, node: int, priority: int) -> tuple[int, int]:
        self.asked.append((node, priority))
        gain, scan = self.script.pop(0) if self.script else (0, 0)
        self.free[node] += gain
        return gain, scan


@settings(max_examples=60)
@given(
    script=st.lists(
        st.tuples(st.sampled_from([0, 0, 1, 50, 400]), st.sampled_from([0, 100, 1547, 1548, 9000])), max_size=40
    ),
    short=st.integers(1, 1000),
    failures=st.integers(0, 14),
)
def test_priorities_against_a_reference(script: list[tuple[int, int]], short: int, failures: int) -> None:
    """balance_pgdat called three times over."""
    p = parts(horizon_ns=S)
    high = int(p.k.memory.initial(p.zones.high)[0])
    assert high == 1548
    p.set(p.zones.free, high - short)
    p.set(p.vmscan.failures, failures)
    scripted(p, script)
    with p.thread() as k, k.for_range(3):
        p.vmscan.balance_pgdat(k, k.local(0))
    ran = p.run()

    model, failed = Script(script, [high - short]), 0
    for _ in range(3):
        priority, reclaimed = 12, 0
        while priority >= 1 and model.free[0] < high:
            got, scanned = model.shrink_node(0, priority)
            reclaimed += got
            raise_priority = scanned < max(high, 32)
            if raise_priority or not got:
                priority -= 1
        if reclaimed:
            failures = 0
        elif priority < 1:
            failures += 1
            failed += 1
    assert asked(ran) == model.asked
    assert ran.cells("free pages") == model.free
    assert ran.cells("pgdat->kswapd_failures") == [failures]
    assert ran.metric("kswapd/failures") == failed


@settings(max_examples=60)
@given(
    script=st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 16, 31, 32, 99]), st.just(0)), max_size=40),
    failures=st.lists(st.integers(0, 16), min_size=2, max_size=2),
)
def test_direct_reclaim_against_a_reference(script: list[tuple[int, int]], failures: list[int]) -> None:
    """All nodes of the zonelist at a priority, then the next, until 32 pages are there from all together."""
    p = parts(nodes=2, horizon_ns=S)
    p.set(p.zones.free, 0)
    p.set(p.vmscan.failures, failures)
    scripted(p, script)
    with p.thread() as k, k.for_range(3):
        k.count("got", p.vmscan.try_to_free_pages(k, 1))
    ran = p.run()
    model, total, targets = Script(script, [0, 0]), 0, list[int]()
    for _ in range(3):
        got = 0
        for priority in range(12, -1, -1):
            for node in (1, 0):
                targets.append(32 - got)
                here, _ = model.shrink_node(node, priority)
                got += here
                if here:
                    failures[node] = 0
            if got >= 32:
                break
        total += got
    assert asked(ran) == model.asked
    assert list(ran.result.series["targets"].values) == targets
    assert ran.metric("got") == total
    assert ran.cells("pgdat->kswapd_failures") == failures
    assert ran.metric("direct_reclaim/calls") == ran.result.histograms["direct_reclaim_ns"].count == 3


@pytest.mark.parametrize(
    ("pages", "goal", "priority"),
    [(3 << 20, 1548, 10), (3 << 16, 1548, 6), (0, 1548, 6), (3 << 24, 1548, 12), (6 << 20, 1548, 11)],
)
def test_mglru_begins_where_one_walk_finds_the_goal(pages: int, goal: int, priority: int) -> None:
    """set_initial_priority: fls(reclaimable) - 1 - fls(nr_to_reclaim - 1), between 6 and 12."""
    by_hand = min(max(pages.bit_length() - 1 - (goal - 1).bit_length(), 6), 12)
    assert by_hand == priority
    p = parts(anon=pages // 6, file=pages // 6, kernel_changes={"lru_gen": True}, horizon_ns=S)
    p.set(p.zones.free, 0)
    scripted(p, [])
    with p.thread() as k:
        p.vmscan.balance_pgdat(k, k.local(0))
    assert [at for _, at in asked(p.run())] == list(range(priority, 0, -1))


# ---- whom it visits --------------------------------------------------------------------------------------------------


def visiting(p: Parts, gains: list[int]) -> None:
    """shrink_one that reclaims from each memcg what it is told, and records whom."""
    visited = p.k.series("visited", 1000, "memcg")
    gain = p.k.bookkeeping("gain of memcg", len(gains), gains)

    def shrink_one(
        k: KernelBuilder, memcg: Value, node: IntLike, priority: Local, reclaimed: Local, scanned: Local
    ) -> None:
        k.record(visited, memcg)
        reclaimed.set(reclaimed + k.load(gain[memcg]))
        scanned.set(scanned + 2 * k.load(gain[memcg]))
        k.store(p.zones.free[node], k.load(p.zones.free[node]) + k.load(gain[memcg]))

    p.vmscan._shrink_one = shrink_one  # type: ignore[method-assign]


def test_the_classic_walk_of_kswapd_is_all_memcgs_in_pre_order() -> None:
    p = parts(cgroups=SMALL, horizon_ns=S)
    visiting(p, [10] * 12)
    with p.thread() as k, k.for_range(3):
        reclaimed, scanned = p.vmscan.shrink_node(k, k.local(0), k.local(12))
        k.count("reclaimed", reclaimed)
        k.count("scanned", scanned)
    ran = p.run()
    assert list(ran.result.series["visited"].values) == list(range(12)) * 3, "whatever has been reclaimed"
    assert (ran.metric("reclaimed"), ran.metric("scanned")) == (360, 720)
    assert ran.metric("shrink_node/passes") == 3


@settings(max_examples=40)
@given(
    gains=st.lists(st.sampled_from([0, 0, 1, 10, 31, 32, 100]), min_size=5, max_size=5),
    nodes=st.lists(st.integers(0, 1), max_size=12),
    target=st.sampled_from([32, 32, 1, 0, -68]),
)
def test_the_walk_of_direct_reclaim_goes_on_where_it_stopped(gains: list[int], nodes: list[int], target: int) -> None:
    """On each node; it ends after 32 pages, or one round, or, if others gave enough, with the first memcg."""
    p = parts(cgroups=TreeConfig(5, 2, updates_per_s=1e6), nodes=2, horizon_ns=S)
    visiting(p, gains)
    with p.thread() as k:
        k.sleep_ns(1)
        for node in nodes:
            p.vmscan.shrink_node(k, node, k.local(12), target=target)
    ran = p.run()
    cursor, visited = [0, 0], []
    for node in nodes:
        got = turns = 0
        while turns == 0 or (turns < 5 and got < target):
            visited.append(cursor[node])
            got += gains[cursor[node]]
            cursor[node] = (cursor[node] + 1) % 5
            turns += 1
    assert list(ran.result.series["visited"].values) == visited
    assert ran.cells("where direct reclaim goes on") == cursor


@pytest.mark.parametrize("target", [None, 32])
def test_the_walk_of_mglru(target: int | None) -> None:
    """From anywhere on, around at most once; kswapd stops 64 pages above high, direct reclaim after 32 pages."""
    p = parts(cgroups=SMALL, kernel_changes={"lru_gen": True}, horizon_ns=S)
    visiting(p, [10] * 12)
    high = int(p.k.memory.initial(p.zones.high)[0])
    lengths = p.k.series("length", 100, "memcgs")
    with p.thread() as k, k.for_range(50) as turn:
        k.store(p.zones.free[0], high + 64 - 25 - 1000 * (turn & 1) * int(target is None))
        before = k.load(p.zones.free[0])
        p.vmscan.shrink_node(k, k.local(0), k.local(12), target=target)
        k.record(lengths, (k.load(p.zones.free[0]) - before) // 10)
    ran = p.run()
    length = list(ran.result.series["length"].values)
    assert length == ([3, 12] * 25 if target is None else [4] * 50)
    visited, starts = list(ran.result.series["visited"].values), set()
    for number in length:
        walk, visited = visited[:number], visited[number:]
        starts.add(walk[0])
        assert walk == [(walk[0] + i) % 12 for i in range(number)]
    assert len(starts) > 6


@pytest.mark.parametrize("priority", [12, 5, 0])
@pytest.mark.parametrize("swappiness", [0, 60, 200])
def test_how_much_is_scanned_and_reclaimed(priority: int, swappiness: int) -> None:
    """2 to the -priority of each list, shared out by swappiness; half of it is taken."""
    anon, file = 100_000, 300_000
    p = parts(anon=anon, file=file, kernel_changes={"swappiness": swappiness}, horizon_ns=60 * S)
    with p.thread() as k:
        p.vmscan.shrink_node(k, k.local(0), k.local(priority))
    ran = p.run()
    scan_anon, scan_file = (anon >> priority) * swappiness // 200, (file >> priority) * (200 - swappiness) // 200
    assert ran.metric("pgscan") == 3 * (scan_anon + scan_file)
    (free,) = ran.cells("free pages")
    for before, scan, name in ((anon, scan_anon, "anon"), (file, scan_file, "file")):
        for left in ran.cells(f"{name} LRU, pages"):
            assert abs(before - left - scan / 2) <= 1
    stolen = 3 * (anon + file) - sum(ran.cells("anon LRU, pages")) - sum(ran.cells("file LRU, pages"))
    assert ran.metric("pgsteal") == stolen
    stored = ran.metric("zswap/stored") + ran.metric("zswap/rejected")
    assert stored == 3 * anon - sum(ran.cells("anon LRU, pages"))
    pool = sum(ran.cells("compressed bytes"))
    assert abs(free - (p.k.memory.initial(p.zones.free)[0] + stolen - pool / 4096)) <= 3


# ---- when it gives up ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lru_gen", [False, True])
@pytest.mark.parametrize(("anon", "file", "reclaimed_pct"), [(1000, 1000, 0.0), (0, 0, 50.0)])
def test_kswapd_gives_up_after_16_failures(anon: int, file: int, reclaimed_pct: float, lru_gen: bool) -> None:
    p = parts(anon, file, reclaimed_pct=reclaimed_pct, kernel_changes={"lru_gen": lru_gen}, horizon_ns=5 * S)
    with_kswapd(p)
    p.set(p.lruvecs.share, 0)  # nor can what is allocated be reclaimed
    allocating(p, pages=4)
    ran = p.run()
    assert ran.cells("pgdat->kswapd_failures") == [16]
    assert ran.metric("kswapd/failures") == 16
    assert ran.metric("kswapd/woken") == 1, "and not again"
    assert ran.result.histograms["kswapd_awake_ns"].count == 1
    assert ran.cells("kswapd is running") == [0]
    assert ran.metric("pgsteal") == 0
    assert ran.metric("refused") > 0
    assert ran.metric("direct_reclaim/calls") // 16 == ran.metric("refused"), "16 rounds each"
    (free,), (least,) = ran.cells("free pages"), ran.cells("min watermark, pages")
    assert least < free <= least + 4, "allocations went down to min"


def test_a_success_of_direct_reclaim_brings_kswapd_back() -> None:
    p = with_kswapd(parts(file=PLENTY, horizon_ns=3 * S))
    p.set(p.vmscan.failures, 16)
    allocating(p, pages=4)
    ran = p.run()
    assert ran.metric("direct_reclaim/calls") == 1
    assert ran.metric("kswapd/woken") > 0
    assert ran.cells("pgdat->kswapd_failures") == [0]
    assert ran.metric("refused") == 0


# ---- which call sites flush ------------------------------------------------------------------------------------------


def flushes(name: str, lru_gen: bool, **changes: Any) -> Ran:
    config = kernel(name, lru_gen=lru_gen, zswap_shrinker="on", **changes)
    workload = Reclaim(duration_s=1.5, tree=SMALL, readers=0, allocated_mib_per_s=300)
    return storm(workload, config, machine(memory_mib=2048, nodes=2), Sync())


def test_mglru_flushes_in_the_shrinker_only() -> None:
    ran = flushes("v6_8", lru_gen=True)
    assert ran.metric("shrink_node/passes") > 10
    assert ran.metric("flush/prepare_scan_control/calls") == 0
    assert ran.metric("flush/zswap_shrinker_count/flushes") > 10


@pytest.mark.parametrize(("name", "flushes_there"), [("v6_8", True), ("v6_12", False), ("v7_3", False)])
def test_the_classic_lists_flush_before_each_walk_as_the_version_says(name: str, flushes_there: bool) -> None:
    """Once a pass, of the root; from 6.12 on only if the periodic flusher is late."""
    ran = flushes(name, lru_gen=False)
    assert ran.metric("flush/prepare_scan_control/calls") == ran.metric("shrink_node/passes") > 10
    assert (ran.metric("flush/prepare_scan_control/flushes") > 10) == flushes_there
    assert flushes_there or ran.metric("flush/prepare_scan_control/flushes") == 0


def test_the_shrinker_switched_off_is_asked_and_does_not_flush() -> None:
    ran = flushes("v6_12", lru_gen=False)
    assert ran.metric("flush/zswap_shrinker_count/flushes") > 0
    config = kernel("v6_12", zswap_shrinker="off", lru_gen=False)
    workload = Reclaim(duration_s=1.0, tree=SMALL, readers=0, allocated_mib_per_s=300)
    off = storm(workload, config, machine(memory_mib=2048, nodes=2), Sync())
    assert off.metric("flush/zswap_shrinker_count/calls") == 0
    stacks = [stack.stack for stack in off.result.profile.stacks if stack.self_ps > 0]
    assert any("zswap_shrinker_count" in stack for stack in stacks)
    assert not any("zswap_shrinker_scan" in stack for stack in stacks)


def test_all_of_balance_pgdat_is_a_memory_stall() -> None:
    p = with_kswapd(parts(file=PLENTY, horizon_ns=S))
    allocating(p, pages=4)
    ran = p.run()
    stalled = ran.cells("memstall of the window, ns")
    assert stalled[0] > 0
    assert sum(stalled[1:]) == 0
    assert stalled[0] == pytest.approx(ran.result.histograms["kswapd_awake_ns"].total, rel=0.05)
