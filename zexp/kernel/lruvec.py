"""What each cgroup has in memory, in zswap and on disk on each node, and how that moves (struct lruvec).

Pages are counted, not kept one by one. Between two visits of kswapd a cgroup's tasks go on: they allocate their share
of what the node gave out, and touch some of what was swapped out, hot pages often and cold ones rarely. That is caught
up when the lruvec is visited: numbers are means, rounded at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from zexp.kernel.builder import PAGE_BYTES, KernelBuilder
from zexp.program import Array, IntLike, Value

if TYPE_CHECKING:
    from zexp.kernel.cgroup import CgroupTree, Floats, Ints
    from zexp.kernel.memcontrol import VmStats
    from zexp.kernel.page_alloc import Zones
    from zexp.kernel.psi import Psi

ONE = 1 << 20
"""Probabilities and shares are in 1/1,048,576."""
RATE = 1 << 40
"""Rates are in 1/RATE a microsecond."""


@dataclass(frozen=True, eq=False)
class Contents:
    """Memory at the start of a run, in pages: by cgroup, spread over the nodes as their memory is."""

    anon: Floats
    file: Floats
    zswapped: Floats
    zswap_bytes: Floats
    """Compressed, by cgroup."""
    hot_share: float
    """Of what is swapped out: the part that will be touched soon."""
    hot_per_s: float
    """How often a hot swapped-out page is touched."""
    cold_per_s: float
    object_bytes: float
    """Mean size of a compressed page."""
    object_swing: float
    """Every cgroup's new objects are this part larger for half a period, then smaller."""
    swing_period_ns: int
    swapin_ns: int
    """Time a task is stalled by a fault on a page in zswap."""
    disk_swapin_ns: int
    refault_share: float
    """Of the file pages reclaimed: those still needed, which are read again at once, at the price of a disk swap-in."""


class Lruvecs:
    """All of them: the lruvec of ``memcg`` on ``node`` has the number ``node * memcgs + memcg``.

    Node by node, as kswapd walks them: what it touches in turn lies side by side in the simulating computer's memory.
    """

    def __init__(
        self, k: KernelBuilder, tree: CgroupTree, contents: Contents, zones: Zones, stats: VmStats, psi: Psi
    ) -> None:
        nodes, memcgs = k.machine.nodes, len(tree)
        self.node_memory = k.machine.node_memory_bytes.astype(np.float64)
        self.tree, self.contents, self.zones, self.psi, self.nodes = tree, contents, zones, psi, nodes

        def pages(name: str, by_cgroup: Floats) -> Array:
            return k.bookkeeping(name, memcgs * nodes, self.spread(by_cgroup).ravel())

        self.anon, self.file = pages("anon LRU, pages", contents.anon), pages("file LRU, pages", contents.file)
        hot = contents.zswapped * contents.hot_share
        self.hot, self.cold = pages("hot in zswap", hot), pages("cold in zswap", contents.zswapped - hot)
        self.referenced = pages("zswap entries with a second chance", 0 * hot)
        self.disk_hot, self.disk_cold = pages("hot on disk", 0 * hot), pages("cold on disk", 0 * hot)
        self.disk_swapins = pages("nr_disk_swapins, or nr_zswap_protected", 0 * hot)
        self.bytes = pages("compressed bytes", contents.zswap_bytes)
        self.seen_allocated = k.bookkeeping("allocations caught up with", memcgs * nodes)
        self.seen_ns = k.bookkeeping("time caught up with, ns", memcgs * nodes)
        self.parent = k.bookkeeping("parent of memcg", memcgs, tree.parent)
        own = contents.anon + contents.file
        # rounded so that they add up to ONE
        share = np.diff(np.rint(np.cumsum(own) / max(own.sum(), 1) * ONE), prepend=0).astype(np.int64)
        self.share = k.bookkeeping("share of allocations", memcgs, share)
        entries = self.spread(hot) + self.spread(contents.zswapped - hot)
        size = self.spread(contents.zswap_bytes)
        self.zswapped = k.bookkeeping("MEMCG_ZSWAPPED", memcgs, self._subtrees(tree, entries.sum(axis=0)))
        self.zswap_bytes = k.bookkeeping("MEMCG_ZSWAP_B", memcgs, self._subtrees(tree, size.sum(axis=0)))
        self.visible_zswapped = stats.statistic(k, "MEMCG_ZSWAPPED", self.zswapped)
        self.visible_zswap_bytes = stats.statistic(k, "MEMCG_ZSWAP_B", self.zswap_bytes)

    def spread(self, by_cgroup: Floats) -> Ints:
        """Whole pages, or bytes, of each cgroup on each node, by the nodes' memory: a row a node."""
        by_node: Ints = np.rint(np.outer(self.node_memory, by_cgroup) / self.node_memory.sum()).astype(np.int64)
        return by_node

    @staticmethod
    def _subtrees(tree: CgroupTree, own: Ints) -> Ints:
        sums = np.concatenate([[0], np.cumsum(own)])
        totals: Ints = sums[tree.end] - sums[:-1]
        return totals

    def number(self, memcg: Value, node: IntLike) -> Value:
        """The lruvec of a memcg on a node."""
        return memcg + node * len(self.tree)

    def pool_pages(self, k: KernelBuilder) -> Value:
        """Size of the zswap pool, in pages: zsmalloc is taken to pack objects without loss."""
        return k.load(self.zswap_bytes[0]) // PAGE_BYTES

    def add(self, k: KernelBuilder, array: Array, lruvec: Value, pages: IntLike) -> None:
        """Add to a count of a lruvec."""
        k.store(array[lruvec], k.load(array[lruvec]) + pages)

    def object_bytes(self, k: KernelBuilder, memcg: Value) -> IntLike:
        """Size of the memcg's new objects at this moment."""
        mean, swing = self.contents.object_bytes, self.contents.object_swing
        if swing == 0:
            return round(mean)
        phase = (k.now_ns() // (self.contents.swing_period_ns // 2) + memcg) & 1
        return round(mean * (1 - swing)) + phase * round(mean * 2 * swing)

    def charge(self, k: KernelBuilder, memcg: Value, node: IntLike, entries: Value, size_bytes: Value) -> None:
        """Entries came to zswap (or, negative, left it): count them for the memcg, its ancestors and the pool."""
        lruvec = self.number(memcg, node)
        self.add(k, self.bytes, lruvec, size_bytes)
        pool_pages = (size_bytes + k.rand_int(PAGE_BYTES)) // PAGE_BYTES
        k.store(self.zones.free[node], k.load(self.zones.free[node]) - pool_pages)
        here = k.local(memcg)
        with k.while_(lambda: here >= 0):
            k.store(self.zswapped[here], k.load(self.zswapped[here]) + entries)
            k.store(self.zswap_bytes[here], k.load(self.zswap_bytes[here]) + size_bytes)
            here.set(k.load(self.parent[here]))

    def uncharge(self, k: KernelBuilder, memcg: Value, node: IntLike, before: Value, entries: Value) -> None:
        """Entries of mean size left, of ``before`` that were there."""
        lruvec = self.number(memcg, node)
        size = k.load(self.bytes[lruvec]) * entries // k.maximum(before, 1)
        self.charge(k, memcg, node, 0 - entries, 0 - size)

    def chance(self, k: KernelBuilder, per_s: float, elapsed_us: Value) -> Value:
        """That a page touched ``per_s`` times a second is touched in some time: 1 - exp(-x), as x / (1 + x / 2)."""
        x = (elapsed_us * round(per_s * RATE / 1e6)) >> 20
        return k.minimum((x << 20) // (ONE + (x >> 1)), ONE)

    def part(self, k: KernelBuilder, number: Value, chance: IntLike) -> Value:
        """How many of ``number`` have it, rounded at random."""
        return (number * chance + k.rand_int(ONE)) >> 20

    def catch_up(self, k: KernelBuilder, memcg: Value, node: IntLike) -> None:
        """What the cgroup's tasks have done since the last visit: allocate, and fault swapped-out pages in."""
        lruvec = self.number(memcg, node)
        allocated = k.load(self.zones.allocated[node])
        new = allocated - k.load(self.seen_allocated[lruvec])
        k.store(self.seen_allocated[lruvec], allocated)
        self.add(k, self.file, lruvec, self.part(k, new, k.load(self.share[memcg])))
        hot, cold = k.load(self.hot[lruvec]), k.load(self.cold[lruvec])
        disk_hot, disk_cold = k.load(self.disk_hot[lruvec]), k.load(self.disk_cold[lruvec])
        now = k.now_ns()
        elapsed_us = (now - k.load(self.seen_ns[lruvec])) // 1000
        k.store(self.seen_ns[lruvec], now)
        with k.if_((hot + cold + disk_hot + disk_cold > 0) & (elapsed_us > 0)):
            often = self.chance(k, self.contents.hot_per_s, elapsed_us)
            rarely = self.chance(k, self.contents.cold_per_s, elapsed_us)
            from_hot, from_cold = self.part(k, hot, often), self.part(k, cold, rarely)
            loads = from_hot + from_cold
            disk_loads = self._swap_in_from_disk(k, lruvec, disk_hot, disk_cold, often, rarely)
            with k.if_(loads > 0):
                k.store(self.hot[lruvec], hot - from_hot)
                k.store(self.cold[lruvec], cold - from_cold)
                referenced = k.load(self.referenced[lruvec])
                k.store(self.referenced[lruvec], referenced - referenced * loads // k.maximum(hot + cold, 1))
                self.uncharge(k, memcg, node, hot + cold, loads)
                k.count("swapin/zswap", loads)
            with k.if_(loads + disk_loads > 0):
                self.add(k, self.anon, lruvec, loads + disk_loads)
                k.store(self.zones.free[node], k.load(self.zones.free[node]) - (loads + disk_loads))
                self.psi.stalled(
                    k,
                    memcg,
                    loads * self.contents.swapin_ns,
                    disk_loads * self.contents.disk_swapin_ns,
                )

    def refault(self, k: KernelBuilder, memcg: Value, dropped: Value) -> None:
        """Some of the file pages just reclaimed are missed: tasks wait until they are read again.

        That they take memory again is part of what the node allocates.
        """
        refaults = self.part(k, dropped, round(self.contents.refault_share * ONE))
        self.psi.stalled(k, memcg, 0, refaults * self.contents.disk_swapin_ns)
        k.count("workingset_refault_file", refaults)

    def _swap_in_from_disk(
        self, k: KernelBuilder, lruvec: Value, hot: Value, cold: Value, often: Value, rarely: Value
    ) -> Value:
        loads = k.local(0)
        with k.if_(hot + cold > 0):
            from_hot, from_cold = self.part(k, hot, often), self.part(k, cold, rarely)
            k.store(self.disk_hot[lruvec], hot - from_hot)
            k.store(self.disk_cold[lruvec], cold - from_cold)
            loads.set(from_hot + from_cold)
            self.add(k, self.disk_swapins, lruvec, loads)
            k.count("swapin/disk", loads)
        return loads
