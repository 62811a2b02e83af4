"""do_shrink_slab against a slow and obvious version of itself; who is asked."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zexp.kernel import KernelBuilder
from zexp.kernel.cgroup import TreeConfig
from zexp.program import IntLike, Value

from .storm import Parts, Ran, S, parts

STOP = -1
FIVE = TreeConfig(5, 2, updates_per_s=1e6)


@dataclass
class FakeZswap:
    """Counts and scans as told; remembers what it is asked."""

    p: Parts
    counts: list[int]
    """By call."""
    scans: list[int]
    """By call: how many it gives, or STOP; everything it is asked for when the list has ended."""
    none: bool = False

    def __post_init__(self) -> None:
        k = self.p.k
        self.bit = self.p.zswap.bit
        self.given = k.bookkeeping("counts given", len(self.counts), self.counts)
        self.answers = k.bookkeeping("scans given", len(self.scans) + 1, [*self.scans, 0])
        self.counted = k.series("counted", 1000, "memcg and node")
        self.scanned = k.series("scanned", 100_000, "entries")
        self.calls = k.bookkeeping("calls", 2)

    def zswap_shrinker_count(self, k: KernelBuilder, memcg: Value, node: IntLike) -> Value:
        k.record(self.counted, memcg * 10 + node)
        call = k.atomic_add(self.calls[0]) - 1
        return k.load(self.given[call % len(self.counts)])

    def zswap_shrinker_scan(self, k: KernelBuilder, memcg: Value, node: IntLike, number: IntLike) -> Value:
        k.record(self.scanned, number)
        call = k.atomic_add(self.calls[1]) - 1
        ended = call >= len(self.scans)
        return k.load(self.answers[k.minimum(call, len(self.scans))]) + ended * number


@dataclass
class Reference:
    """mm/shrinker.c."""

    counts: list[int]
    scans: list[int]
    deferred: int = 0
    asked: list[int] = field(default_factory=list)

    def scan(self, number: int) -> int:
        self.asked.append(number)
        return self.scans.pop(0) if self.scans else number

    def do_shrink_slab(self, priority: int) -> None:
        freeable = self.counts.pop(0)
        if freeable == 0:
            return
        nr = self.deferred
        delta = (freeable >> priority) * 4 // 2
        total_scan = (nr >> priority) + delta
        total_scan = min(total_scan, 2 * freeable)
        scanned = 0
        while total_scan >= 128 or total_scan >= freeable:
            nr_to_scan = min(128, total_scan)
            if self.scan(nr_to_scan) == STOP:
                break
            total_scan -= nr_to_scan
            scanned += nr_to_scan
        next_deferred = max(nr + delta - scanned, 0)
        self.deferred = min(next_deferred, 2 * freeable)


def shrink(counts: list[int], priorities: list[int], scans: list[int], deferred: int) -> Ran:
    """Ask the root's shrinker, once at each priority."""
    p = parts(cgroups=TreeConfig(1, 0, updates_per_s=1e6), horizon_ns=S)
    p.set(p.shrinkers.nr_deferred, deferred)
    p.shrinkers.zswap = FakeZswap(p, counts, scans)  # type: ignore[assignment]
    at = p.k.bookkeeping("priorities", len(priorities), priorities)
    with p.thread() as k, k.for_range(len(priorities)) as i:
        p.shrinkers.shrink_slab(k, k.local(0), 0, k.load(at[i]))
    return p.run()


freeable = st.one_of(st.just(0), st.integers(1, 300), st.integers(1, 1 << 20))
how_hard = st.one_of(st.just(12), st.integers(0, 12))


@settings(max_examples=100)
@given(
    calls=st.lists(st.tuples(freeable, how_hard), min_size=1, max_size=6),
    scans=st.lists(st.sampled_from([STOP, 1, 60, 128]), max_size=12),
    deferred=st.one_of(st.just(0), st.integers(0, 1 << 20)),
)
def test_do_shrink_slab_against_a_reference(calls: list[tuple[int, int]], scans: list[int], deferred: int) -> None:
    reference = Reference([count for count, _ in calls], list(scans), deferred)
    for _, priority in calls:
        reference.do_shrink_slab(priority)
    ran = shrink([count for count, _ in calls], [priority for _, priority in calls], scans, deferred)
    assert list(ran.result.series["scanned"].values) == reference.asked
    assert ran.cells("nr_deferred") == [reference.deferred]
    assert len(ran.result.series["counted"].values) == len(calls), "exactly one count a call"


@pytest.mark.parametrize(
    ("count", "priority", "deferred", "asked", "left"),
    [
        (262_143, 12, 0, [], 126),  # freeable / 2048 is less than a batch: put off
        (262_144, 12, 0, [128], 0),
        (262_144, 12, 4096, [128], 4096),  # deferred >> 12 is 1 more
        (300, 0, 0, [128] * 4, 88),  # 512 of 600; the rest is less than a batch, and less than all
        (100, 0, 0, [128], 72),
        (100, 1, 0, [100], 0),  # all of it is less than a batch
        (100, 2, 0, [], 50),
        (1000, 12, 1 << 40, [128] * 15, 2000),  # never more than twice what is there
    ],
)
def test_do_shrink_slab_by_hand(count: int, priority: int, deferred: int, asked: list[int], left: int) -> None:
    ran = shrink([count], [priority], [], deferred)
    assert list(ran.result.series["scanned"].values) == asked
    assert ran.cells("nr_deferred") == [left]


def test_a_stop_puts_the_rest_off() -> None:
    ran = shrink([10_000, 10_000], [3, 12], [128, 128, STOP, STOP], 0)
    assert list(ran.result.series["scanned"].values) == [128, 128, 128]
    assert ran.cells("nr_deferred") == [2 * (10_000 >> 3) - 256 + 2 * (10_000 >> 12)]


# ---- who is asked ----------------------------------------------------------------------------------------------------


@given(bits=st.lists(st.integers(0, 1), min_size=10, max_size=10))
@settings(max_examples=20)
def test_the_root_always_others_with_their_bit(bits: list[int]) -> None:
    p = parts(cgroups=FIVE, nodes=2, horizon_ns=S)
    p.set(p.zswap.bit, bits)
    p.shrinkers.zswap = FakeZswap(p, [0], [])  # type: ignore[assignment]
    with p.thread() as k, k.for_range(5) as memcg, k.for_range(2) as node:
        p.shrinkers.shrink_slab(k, memcg, node, k.local(12))
    counted = [(value // 10, value % 10) for value in p.run().result.series["counted"].values]
    assert counted == [(m, n) for m in range(5) for n in range(2) if m == 0 or bits[n * 5 + m]]


def test_a_kernel_without_zswap_shrinker_asks_nobody() -> None:
    p = parts(zswapped=1000, kernel_name="v6_1", kernel_changes={"zswap_shrinker": "none"}, horizon_ns=S)
    with p.thread() as k:
        p.shrinkers.shrink_slab(k, k.local(0), 0, k.local(0))
    ran = p.run()
    assert not any("zswap_shrinker_count" in stack.stack for stack in ran.result.profile.stacks)


def test_the_bit_is_set_by_the_first_store_and_stays() -> None:
    """Also when the list is empty again: the count says 0, which is not SHRINK_EMPTY."""
    p = parts(cgroups=FIVE, nodes=2, horizon_ns=S)
    assert p.k.memory.initial(p.zswap.bit).tolist() == [0] * 10
    with p.thread() as k:
        memcg = k.local(3)
        p.zswap.swap_out(k, memcg, 1, k.local(0))
        k.count("after nothing", k.load(p.zswap.bit[8]))
        p.zswap.swap_out(k, memcg, 1, k.local(5))
        k.store(p.lruvecs.referenced[8], 0)
        k.count("written", p.zswap.shrink_memcg_cb(k, memcg, 1, 100))
        with k.for_range(5) as asked:
            p.shrinkers.shrink_slab(k, asked, 1, k.local(0))
    ran = p.run()
    assert (ran.metric("after nothing"), ran.metric("written")) == (0, 5)
    assert ran.cells("zswap's bit in shrinker_info") == [0] * 8 + [1, 0]
    assert ran.metric("flush/zswap_shrinker_count/calls") == 2, "the root, and the one whose list is empty again"


def test_bits_at_the_start() -> None:
    p = parts(zswapped=1, cgroups=FIVE, nodes=2)
    assert p.k.memory.initial(p.zswap.bit).tolist() == [1] * 10
