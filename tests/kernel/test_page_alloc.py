"""Watermarks against the kernel's formula; zonelists; how far an allocation goes before it gives up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zexp.kernel import KernelBuilder
from zexp.kernel.page_alloc import Zones, watermarks
from zexp.machine import Machine
from zexp.program import IntLike, Value

from .simulate import kernel, machine
from .storm import Ran, finish

GIB_PAGES = (1 << 30) // 4096

# ---- watermarks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "min_free_kbytes", "scale_factor", "expected"),
    [
        # 4096 KiB = 1024 pages; a quarter of them is less than 10/10,000 of the node's memory
        ([GIB_PAGES], 0, 10, ([1024], [1024 + 262], [1024 + 2 * 262])),
        # sqrt(16 x 402,653,184) = 80,264 KiB = 20,066 pages, a twelfth each; 8,388,608 pages x 0.1 % = 8,388
        ([32 * GIB_PAGES] * 12, 0, 10, ([1672] * 12, [10_060] * 12, [18_448] * 12)),
        # a scale factor so small that a quarter of the min watermark is more
        ([GIB_PAGES], 0, 1, ([1024], [1280], [1536])),
        # in proportion to the nodes' memory, none for the node without
        ([3 * GIB_PAGES, GIB_PAGES, 0], 65_536, 10, ([12_288, 4096, 0], [15_360, 5120, 0], [18_432, 6144, 0])),
        # 256 MiB at most, 128 KiB at least
        ([8192 * GIB_PAGES], 0, 10, ([65_536], [65_536 + 2_147_483], [65_536 + 2 * 2_147_483])),
        ([128], 0, 10, ([32], [40], [48])),
    ],
)
def test_watermarks_by_hand(
    nodes: list[int], min_free_kbytes: int, scale_factor: int, expected: tuple[list[int], list[int], list[int]]
) -> None:
    found = watermarks(np.array(nodes), min_free_kbytes, scale_factor)
    assert tuple(marks.tolist() for marks in found) == expected


@given(
    pages=st.lists(st.integers(0, 1 << 31), min_size=1, max_size=4).filter(any),
    min_free_kbytes=st.one_of(st.just(0), st.integers(128, 1 << 20)),
    scale_factor=st.integers(1, 3000),
)
def test_watermarks_against_the_formula(pages: list[int], min_free_kbytes: int, scale_factor: int) -> None:
    """calculate_min_free_kbytes and __setup_per_zone_wmarks, zone by zone."""
    kbytes = min_free_kbytes
    if kbytes == 0:
        kbytes = math.isqrt(sum(pages) * 4 * 16)
        kbytes = 128 if kbytes < 128 else 262_144 if kbytes > 262_144 else kbytes
    pages_min = kbytes >> 2
    found = watermarks(np.array(pages), min_free_kbytes, scale_factor)
    for node, managed in enumerate(pages):
        wmark_min = pages_min * managed // sum(pages)
        gap = max(wmark_min >> 2, managed * scale_factor // 10_000)
        assert [int(marks[node]) for marks in found] == [wmark_min, wmark_min + gap, wmark_min + 2 * gap]


def test_zones_start_with_the_high_watermark_free() -> None:
    k = KernelBuilder(machine(memory_mib=1024, nodes=2), kernel("v6_12", watermark_scale_factor=100))
    zones = Zones(k, bound=False)
    marks = watermarks(np.full(2, GIB_PAGES // 2), 0, 100)
    for array, expected in zip((zones.min, zones.low, zones.high), marks, strict=True):
        assert k.memory.initial(array).tolist() == expected.tolist()
    assert k.memory.initial(zones.free).tolist() == marks[2].tolist()
    assert k.memory.initial(zones.allocated).tolist() == [0, 0]


# ---- zonelists -------------------------------------------------------------------------------------------------------


def numa(distances: list[list[float]], memory_mib: list[int]) -> Machine:
    """The small machine cut into nodes with these distances and amounts of memory."""
    return replace(
        machine(nodes=len(distances)),
        memory_latency_ns=np.array(distances),
        node_memory_bytes=np.array(memory_mib, np.int64) << 20,
    )


DISTANCES = [
    [90.0, 200.0, 130.0, 130.0],
    [200.0, 90.0, 130.0, 130.0],
    [130.0, 130.0, 90.0, 200.0],
    [130.0, 140.0, 200.0, 90.0],
]


def zonelists(on: Machine, bound: bool) -> list[list[int]]:
    k = KernelBuilder(on, kernel("v6_12"))
    zones = Zones(k, bound)
    return k.memory.initial(zones.zonelist).reshape(on.nodes, zones.zonelist_length).tolist()


def test_zonelists_go_from_near_to_far() -> None:
    """Local first; of two that are equally far, the next by number, so that not all nodes turn to the same one."""
    expected = [[0, 2, 3, 1], [1, 2, 3, 0], [2, 0, 1, 3], [3, 0, 1, 2]]
    assert zonelists(numa(DISTANCES, [256] * 4), bound=False) == expected
    flat = [[100.0] * 4 for _ in range(4)]
    for node in range(4):
        flat[node][node] = 90.0
    assert zonelists(numa(flat, [256] * 4), bound=False) == [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2]]


def test_nodes_without_memory_are_in_no_zonelist() -> None:
    on = numa(DISTANCES, [256, 256, 0, 256])
    assert zonelists(on, bound=False) == [[0, 3, 1], [1, 3, 0], [0, 1, 3], [3, 0, 1]]
    assert zonelists(on, bound=True) == [[0], [1], [0], [3]]


# ---- allocations -----------------------------------------------------------------------------------------------------


@dataclass
class Scripted:
    """Reclaim that gives what it is told, on the home node."""

    k: KernelBuilder
    zones: Zones
    gains: list[int]
    rounds: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.script = self.k.bookkeeping("script", len(self.gains) + 1, [*self.gains, 0])
        self.turn = self.k.bookkeeping("turn", 1)

    def wake_all_kswapds(self, k: KernelBuilder, home: IntLike) -> None:
        k.count("woken")

    def try_to_free_pages(self, k: KernelBuilder, home: IntLike) -> Value:
        k.count("direct")
        turn = k.load(self.turn[0])
        k.store(self.turn[0], turn + 1)
        gain = k.load(self.script[k.minimum(turn, len(self.gains))])
        k.store(self.zones.free[home], k.load(self.zones.free[home]) + gain)
        return gain


def allocate(on: Machine, bound: bool, free: list[int], requests: list[tuple[int, int]], gains: list[int]) -> Ran:
    """Ask for ``(home, pages)`` one after the other."""
    k = KernelBuilder(on, kernel("v6_12"))
    zones = Zones(k, bound)
    k.memory.initial(zones.free)[:] = free
    reclaim = Scripted(k, zones, gains)
    got = k.bookkeeping("got", len(requests))
    with k.thread("app") as thread:
        for i, (home, pages) in enumerate(requests):
            k.store(got[i], zones.alloc_pages(k, home, pages, reclaim))
    k.spawn(thread, 0)
    return finish(k)


@dataclass
class Reference:
    """The same, slow and obvious."""

    lists: list[list[int]]
    least: list[int]
    low: list[int]
    free: list[int]
    gains: list[int]
    woken: int = 0
    direct: int = 0

    def __post_init__(self) -> None:
        self.allocated = [0] * len(self.free)

    def get(self, home: int, pages: int, marks: list[int]) -> bool:
        for node in self.lists[home]:
            if self.free[node] - pages > marks[node]:
                self.free[node] -= pages
                self.allocated[node] += pages
                return True
        return False

    def alloc(self, home: int, pages: int) -> bool:
        if self.get(home, pages, self.low):
            return True
        self.woken += 1
        if self.get(home, pages, self.least):
            return True
        fruitless = 0
        while fruitless < 16:
            gain = self.gains[self.direct] if self.direct < len(self.gains) else 0
            self.direct += 1
            self.free[home] += gain
            fruitless = 0 if gain else fruitless + 1
            if self.get(home, pages, self.least):
                return True
        return False


@settings(max_examples=60)
@given(
    bound=st.booleans(),
    free=st.lists(st.integers(100, 700), min_size=4, max_size=4),
    requests=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 32, 100, 300])), min_size=1, max_size=8),
    gains=st.lists(st.sampled_from([0, 0, 1, 40, 200]), max_size=30),
)
def test_allocations_against_a_reference(
    bound: bool, free: list[int], requests: list[tuple[int, int]], gains: list[int]
) -> None:
    on = numa(DISTANCES, [256] * 4)
    ran = allocate(on, bound, free, requests, gains)
    least, low = (ran.cells(f"{name} watermark, pages") for name in ("min", "low"))
    reference = Reference(zonelists(on, bound), least, low, list(free), gains)
    expected = [int(reference.alloc(home, pages)) for home, pages in requests]
    assert ran.cells("got") == expected
    assert ran.cells("free pages") == reference.free
    assert ran.cells("pages allocated so far") == reference.allocated
    assert (ran.metric("woken"), ran.metric("direct")) == (reference.woken, reference.direct)
    freed = sum(gains[: reference.direct])
    assert sum(ran.cells("free pages")) + sum(ran.cells("pages allocated so far")) == sum(free) + freed


@pytest.mark.parametrize("bound", [False, True])
def test_where_pages_come_from(bound: bool) -> None:
    """Local down to low, the neighbours down to low, kswapds, all down to min, then 16 rounds of direct reclaim."""
    on = machine(memory_mib=1024, nodes=2)
    least, low, high = (int(marks[0]) for marks in watermarks(np.full(2, GIB_PAGES // 2), 0, 10))
    nodes = 1 if bound else 2
    above_low, above_min = (high - low - 1) * nodes, (low - least) * nodes

    def single_pages(number: int, gains: list[int]) -> Ran:
        k = KernelBuilder(on, kernel("v6_12"))
        zones = Zones(k, bound)
        reclaim = Scripted(k, zones, gains)
        with k.thread("app") as thread, k.for_range(number):
            k.count("got", zones.alloc_pages(k, 1, 1, reclaim))
        k.spawn(thread, 0)
        return finish(k)

    def seen(ran: Ran) -> tuple[int, ...]:
        return tuple(ran.metric(name) for name in ("got", "woken", "direct"))

    ran = single_pages(above_low, [])
    assert seen(ran) == (above_low, 0, 0)
    assert ran.cells("free pages") == [high if bound else low + 1, low + 1]
    ran = single_pages(high - low - 1, [])
    assert ran.cells("free pages") == [high, low + 1], "the neighbour only when the node is down to low"
    ran = single_pages(above_low + above_min, [])
    assert seen(ran) == (above_low + above_min, above_min, 0)
    assert ran.cells("free pages") == [high if bound else least + 1, least + 1]
    ran = single_pages(above_low + above_min + 1, [])
    assert seen(ran) == (above_low + above_min, above_min + 1, 16)
    ran = single_pages(above_low + above_min + 1, [0] * 15 + [1])
    assert seen(ran) == (above_low + above_min + 1, above_min + 1, 16)
