"""What happens to a cgroup's pages between two visits: allocations, swap-ins, charges."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zexp.kernel.cgroup import TreeConfig, build_tree
from zexp.kernel.lruvec import Lruvecs

from .storm import S, contents, parts

FIVE = TreeConfig(5, 2, updates_per_s=1e6)
DEEP = build_tree(TreeConfig(12, 3, fanout=2, updates_per_s=1e6))

# ---- the start -------------------------------------------------------------------------------------------------------


def test_the_start() -> None:
    p = parts(anon=100, file=200, zswapped=50, cgroups=FIVE, nodes=2, contents_changes={"hot_share": 0.2})
    initial = {name: p.k.memory.initial(getattr(p.lruvecs, name)).tolist() for name in (
        "anon", "file", "hot", "cold", "disk_hot", "disk_cold", "bytes")}  # fmt: skip
    assert initial == {
        "anon": [100] * 10, "file": [200] * 10, "hot": [10] * 10, "cold": [40] * 10,
        "disk_hot": [0] * 10, "disk_cold": [0] * 10, "bytes": [50 * 1024] * 10,
    }  # fmt: skip
    subtree = [int(end - i) for i, end in enumerate(p.tree.end)]
    for name, one in (("zswapped", 100), ("zswap_bytes", 100 * 1024)):
        expected = [one * size for size in subtree]
        assert p.k.memory.initial(getattr(p.lruvecs, name)).tolist() == expected
        assert p.k.memory.initial(getattr(p.lruvecs, f"visible_{name}")).tolist() == expected, "flushed at the start"


@given(sizes=st.lists(st.floats(0, 1e7), min_size=12, max_size=12), nodes=st.sampled_from([1, 2, 4]))
@settings(max_examples=25)
def test_sums_at_the_start(sizes: list[float], nodes: int) -> None:
    """Also where pages do not divide by nodes, and hot and cold are rounded apart."""
    p = parts(cgroups=DEEP, nodes=nodes)
    own = np.array(sizes)
    memory = contents(own, own / 3, own / 7, hot_share=0.3)
    p2 = type(p)(p.config, p.on, DEEP, memory)
    cells = {name: p2.k.memory.initial(getattr(p2.lruvecs, name)) for name in (
        "hot", "cold", "bytes", "zswapped", "zswap_bytes", "share")}  # fmt: skip
    entries = (cells["hot"] + cells["cold"]).reshape(nodes, 12).sum(axis=0)
    size = cells["bytes"].reshape(nodes, 12).sum(axis=0)
    for cgroup in range(12):
        subtree = slice(cgroup, DEEP.end[cgroup])
        assert cells["zswapped"][cgroup] == entries[subtree].sum()
        assert cells["zswap_bytes"][cgroup] == size[subtree].sum()
    assert cells["share"].min() >= 0
    assert cells["share"].sum() == (1 << 20 if own.sum() > 1 else cells["share"].sum())


def test_nodes_have_their_part_by_their_memory() -> None:
    """None where there is no memory."""
    p = parts(cgroups=FIVE, nodes=4)
    on = replace(p.on, node_memory_bytes=np.array([2, 0, 1, 1]) << 30)
    own = np.array([0.0, 400.0, 40.0, 4.0, 0.0])
    p = type(p)(p.config, on, p.tree, contents(own, 2 * own, own))
    assert p.k.memory.initial(p.lruvecs.anon).reshape(4, 5).tolist() == [
        [0, 200, 20, 2, 0], [0] * 5, [0, 100, 10, 1, 0], [0, 100, 10, 1, 0]
    ]  # fmt: skip
    assert p.k.memory.initial(p.zswap.bit).reshape(4, 5)[1].tolist() == [0] * 5
    assert int(p.k.memory.initial(p.lruvecs.zswapped)[0]) == 444


# ---- probabilities ---------------------------------------------------------------------------------------------------


def lists(**changes: Any) -> tuple[Any, Lruvecs]:
    p = parts(cgroups=FIVE, nodes=2, horizon_ns=60 * S, **changes)
    return p, p.lruvecs


@pytest.mark.parametrize("per_s", [0.0005, 0.1, 10.0, 1000.0])
def test_chances_are_nearly_exponential(per_s: float) -> None:
    p, lruvecs = lists()
    times = [0, 1, 100, 10_000, 1_000_000, 100_000_000, 1_000_000_000]
    at = p.k.bookkeeping("times", len(times), times)
    found = p.k.bookkeeping("found", len(times))
    with p.thread() as k, k.for_range(len(times)) as i:
        k.store(found[i], lruvecs.chance(k, per_s, k.load(at[i])))
    before = 0
    for elapsed_us, chance in zip(times, p.run().cells("found"), strict=True):
        x = per_s * elapsed_us / 1e6
        assert before <= chance <= 1 << 20
        assert chance / (1 << 20) == pytest.approx(-math.expm1(-x), abs=0.14)
        if x < 0.1:
            assert chance / (1 << 20) == pytest.approx(-math.expm1(-x), rel=0.01, abs=2e-6)
        before = chance


@pytest.mark.parametrize(("number", "chance"), [(7, 0.25), (1, 0.01), (1000, 0.5), (5, 0.0), (5, 1.0)])
def test_parts_are_rounded_at_random(number: int, chance: float) -> None:
    p, lruvecs = lists()
    with p.thread() as k, k.for_range(4000):
        part = lruvecs.part(k, k.local(number), round(chance * (1 << 20)))
        k.count("sum", part)
        k.count("outside", (part < math.floor(number * chance)) | (part > math.ceil(number * chance)))
    ran = p.run()
    assert ran.metric("outside") == 0
    assert ran.metric("sum") / 4000 == pytest.approx(number * chance, abs=0.04)


# ---- catching up -----------------------------------------------------------------------------------------------------


def test_allocations_go_to_the_cgroups_by_their_size() -> None:
    """Each node's to its own lruvecs; nothing twice."""
    own = np.array([0.0, 100.0, 300.0, 0.0, 600.0])
    p = parts(cgroups=FIVE, nodes=2)
    p = type(p)(p.config, p.on, p.tree, contents(own, 0 * own, 0 * own))
    with p.thread() as k:
        for allocated in (10_000, 10_000, 30_000):
            k.store(p.zones.allocated[1], allocated)
            with k.for_range(5) as memcg, k.for_range(2) as node:
                p.lruvecs.catch_up(k, memcg, node)
    ran = p.run()
    file = ran.cells("file LRU, pages")
    assert file[:5] == [0] * 5
    for found, expected in zip(file[5:], [0, 3000, 9000, 0, 18_000], strict=True):
        assert abs(found - expected) <= 3
    assert abs(sum(file) - 30_000) <= 3
    assert ran.cells("anon LRU, pages") == [0, 50, 150, 0, 300] * 2


def test_swap_ins() -> None:
    """After 5 s, of pages touched every 10 s and every 1000 s: what leaves zswap and the disk is in memory."""
    p, lruvecs = lists(zswapped=100_000, contents_changes={"hot_share": 0.1, "hot_per_s": 0.1, "cold_per_s": 0.001})
    free = int(p.k.memory.initial(p.zones.free)[1])
    p.set(lruvecs.disk_hot, 20_000)
    p.set(lruvecs.disk_cold, 50_000)
    p.set(lruvecs.referenced, 60_000)
    with p.thread() as k:
        k.sleep_ns(5 * S)
        lruvecs.catch_up(k, k.local(3), 1)  # number 7
    ran = p.run()
    often, rarely = 0.5 / 1.25, 0.005 / 1.0025
    hot, cold = ran.cells("hot in zswap")[8], ran.cells("cold in zswap")[8]
    assert abs(10_000 - hot - 10_000 * often) <= 2
    assert abs(90_000 - cold - 90_000 * rarely) <= 2
    loads = 100_000 - hot - cold
    disk_hot, disk_cold = ran.cells("hot on disk")[8], ran.cells("cold on disk")[8]
    assert abs(20_000 - disk_hot - 20_000 * often) <= 2
    assert abs(50_000 - disk_cold - 50_000 * rarely) <= 2
    disk_loads = 70_000 - disk_hot - disk_cold
    assert (ran.metric("swapin/zswap"), ran.metric("swapin/disk")) == (loads, disk_loads)
    assert ran.cells("anon LRU, pages")[8] == loads + disk_loads
    assert ran.cells("nr_disk_swapins, or nr_zswap_protected") == [0] * 8 + [disk_loads, 0]
    (left,) = ran.cells("zswap entries with a second chance")[8:9]
    assert left == 60_000 - 60_000 * loads // 100_000
    assert ran.cells("compressed bytes")[8] == 1024 * (100_000 - loads)
    assert abs(ran.cells("free pages")[1] - (free - loads - disk_loads + loads / 4)) <= 1
    assert ran.cells("applications' memstall on a CPU, ns") == [0, 0, 0, loads * 6000, 0]
    assert ran.cells("applications' memstall off the CPU, ns") == [0, 0, 0, disk_loads * 100_000, 0]
    others = [i for i in range(10) if i != 8]
    assert {ran.cells("hot in zswap")[i] for i in others} == {10_000}


def test_visits_in_between_change_nothing_in_the_mean() -> None:
    """Many visits find what one long gap does; the approximation of exp is better, the shorter they are."""

    def left(visits: int) -> int:
        p, lruvecs = lists(zswapped=1_000_000, contents_changes={"hot_share": 1.0, "hot_per_s": 0.1})
        with p.thread() as k, k.for_range(visits):
            k.sleep_ns(10 * S // visits)
            lruvecs.catch_up(k, k.local(0), 0)
        return int(p.run().cells("hot in zswap")[0])

    assert left(1000) == pytest.approx(1_000_000 * math.exp(-1), rel=0.005)
    assert left(10) == pytest.approx(1_000_000 * math.exp(-1), rel=0.005)
    assert left(1) == pytest.approx(1_000_000 * math.exp(-1), rel=0.1)


def test_refaults_stall_and_take_no_memory() -> None:
    p, lruvecs = lists(contents_changes={"refault_share": 0.25})
    with p.thread() as k:
        lruvecs.refault(k, k.local(4), k.local(1000))
    ran = p.run()
    assert ran.metric("workingset_refault_file") == pytest.approx(250, abs=1)
    asleep_ns = ran.metric("workingset_refault_file") * 100_000
    assert ran.cells("applications' memstall off the CPU, ns") == [0, 0, 0, 0, asleep_ns]
    assert ran.cells("free pages") == p.k.memory.initial(p.zones.free).tolist()


# ---- charges ---------------------------------------------------------------------------------------------------------


@given(steps=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 1), st.integers(-300, 500)), min_size=1, max_size=8))
@settings(max_examples=25)
def test_charges_reach_all_ancestors(steps: list[tuple[int, int, int]]) -> None:
    p = parts(zswapped=5000, cgroups=DEEP, nodes=2, horizon_ns=S)
    free = p.k.memory.initial(p.zones.free).tolist()
    with p.thread() as k:
        for memcg, node, entries in steps:
            p.lruvecs.charge(k, k.local(memcg), node, k.local(entries), k.local(1000 * entries))
    ran = p.run()
    own = np.zeros((12, 2), np.int64)
    for memcg, node, entries in steps:
        own[memcg, node] += entries
    zswapped = [10_000 * int(DEEP.end[c] - c) + int(own[c : DEEP.end[c]].sum()) for c in range(12)]
    assert ran.cells("MEMCG_ZSWAPPED") == zswapped
    total = [10_000 * 1024 * int(DEEP.end[c] - c) + 1000 * int(own[c : DEEP.end[c]].sum()) for c in range(12)]
    assert ran.cells("MEMCG_ZSWAP_B") == total
    assert ran.cells("compressed bytes") == (5000 * 1024 + 1000 * own).T.ravel().tolist()
    for node in range(2):
        pages = 1000 * int(own[:, node].sum()) / 4096
        assert abs(free[node] - pages - ran.cells("free pages")[node]) <= len(steps)


def test_entries_that_leave_have_the_mean_size() -> None:
    p = parts(zswapped=1000, cgroups=FIVE, horizon_ns=S)
    with p.thread() as k:
        p.lruvecs.uncharge(k, k.local(2), 0, k.local(1000), k.local(250))
        p.lruvecs.uncharge(k, k.local(2), 0, k.local(750), k.local(750))
    ran = p.run()
    assert ran.cells("compressed bytes") == [1_024_000, 1_024_000, 0, 1_024_000, 1_024_000]
    assert ran.cells("MEMCG_ZSWAPPED")[:1] == [4000]


@pytest.mark.parametrize("swing", [0.0, 0.25])
def test_sizes_swing(swing: float) -> None:
    """By turns larger and smaller, every other cgroup the other way round."""
    p = parts(cgroups=FIVE, horizon_ns=10 * S, contents_changes={"object_swing": swing, "swing_period_ns": 2 * S})
    sizes = p.k.series("sizes", 100, "bytes")
    with p.thread() as k, k.for_range(4):
        k.sleep_ns(S // 2)
        with k.for_range(2) as memcg:
            k.record(sizes, p.lruvecs.object_bytes(k, memcg))
        k.sleep_ns(S // 2)
    small, large = round(1024 * (1 - swing)), round(1024 * (1 + swing))
    assert list(p.run().result.series["sizes"].values) == [small, large, large, small] * 2
