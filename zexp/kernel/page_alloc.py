"""Free pages of each NUMA node, its watermarks, and the slow path of an allocation (mm/page_alloc.c)."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import numpy as np

from zexp.kernel.builder import PAGE_BYTES, KernelBuilder
from zexp.program import Array, IntLike, Value

if TYPE_CHECKING:
    from zexp.kernel.cgroup import Ints

MAX_RECLAIM_RETRIES = 16
"""Rounds of direct reclaim without progress until the OOM killer is called (mm/internal.h); also kswapd's failures."""
MAX_MIN_FREE_KBYTES = 262_144


def watermarks(memory_pages: Ints, min_free_kbytes: int, scale_factor: int) -> tuple[Ints, Ints, Ints]:
    """Min, low and high watermark of every node in pages (__setup_per_zone_wmarks), a node being one zone.

    ``min_free_kbytes`` 0 stands for the kernel's own choice, 4 sqrt(KiB of memory), at most 256 MiB.
    """
    kbytes = int(memory_pages.sum()) * (PAGE_BYTES // 1024)
    wanted = min_free_kbytes or min(max(math.isqrt(kbytes * 16), 128), MAX_MIN_FREE_KBYTES)
    pages = wanted // (PAGE_BYTES // 1024)
    least = memory_pages * pages // max(int(memory_pages.sum()), 1)
    gap = np.maximum(least // 4, memory_pages * scale_factor // 10_000)
    return least, least + gap, least + 2 * gap


class Reclaim(Protocol):
    """What an allocation turns to when memory is short."""

    def wake_all_kswapds(self, k: KernelBuilder, home: IntLike) -> None:
        """Wake the kswapds of a node's zonelist."""

    def try_to_free_pages(self, k: KernelBuilder, home: IntLike) -> Value:
        """Reclaim; gives how many pages."""


class Zones:
    """One zone a node. Free pages are counted exactly; the per-CPU lists in front of them are left out."""

    def __init__(self, k: KernelBuilder, bound: bool) -> None:
        """``bound``: allocations stay on their node, as under a memory policy; else they go round the zonelist."""
        machine, config = k.machine, k.config
        self.nodes = machine.nodes
        pages = machine.node_memory_bytes // PAGE_BYTES
        least, low, high = watermarks(pages, config.min_free_kbytes, config.watermark_scale_factor)
        self.min = k.bookkeeping("min watermark, pages", self.nodes, least)
        self.low = k.bookkeeping("low watermark, pages", self.nodes, low)
        self.high = k.bookkeeping("high watermark, pages", self.nodes, high)
        self.free = k.bookkeeping("free pages", self.nodes, high)
        self.allocated = k.bookkeeping("pages allocated so far", self.nodes)
        lists = []
        for home in range(self.nodes):
            # equally far nodes are tried from the next number on, as find_next_best_node spreads them
            near = [(machine.memory_latency_ns[home, n], (n - home) % self.nodes, n) for n in range(self.nodes)]
            lists.append([n for *_, n in sorted(near) if pages[n] > 0][: 1 if bound else None])
        self.zonelist_length = len(lists[0])
        self.zonelist = k.bookkeeping("zonelists", self.nodes * self.zonelist_length, np.array(lists).ravel())

    def balanced(self, k: KernelBuilder, node: IntLike) -> Value:
        """1 if a node has its high watermark free (pgdat_balanced)."""
        return k.load(self.free[node]) >= k.load(self.high[node])

    def for_each_zone(self, k: KernelBuilder) -> AbstractContextManager[Value]:
        """Positions of a zonelist."""
        return k.for_range(self.zonelist_length)

    def zone(self, k: KernelBuilder, home: IntLike, position: Value) -> Value:
        """The node at a position of a node's zonelist."""
        return k.load(self.zonelist[home * self.zonelist_length + position])

    def alloc_pages(self, k: KernelBuilder, home: IntLike, pages: IntLike, reclaim: Reclaim) -> Value:
        """Take pages from the first node that stays above its watermark; 0 if the OOM killer has to be called.

        Below the low watermark everywhere, kswapds are woken and the min watermark counts; below that, the caller
        reclaims itself.
        """
        got = k.local(self._get_page_from_freelist(k, home, pages, self.low))
        with k.if_(got == 0), k.fn("__alloc_pages_slowpath"):
            reclaim.wake_all_kswapds(k, home)
            got.set(self._get_page_from_freelist(k, home, pages, self.min))
            no_progress_loops = k.local(0)
            with k.while_(lambda: (got == 0) & (no_progress_loops < MAX_RECLAIM_RETRIES)):
                progress = reclaim.try_to_free_pages(k, home)
                no_progress_loops.set((no_progress_loops + 1) * (progress == 0))
                got.set(self._get_page_from_freelist(k, home, pages, self.min))
        return got

    def _get_page_from_freelist(self, k: KernelBuilder, home: IntLike, pages: IntLike, mark: Array) -> Value:
        found = k.local(0)
        with self.for_each_zone(k) as position:
            node = self.zone(k, home, position)
            free = k.load(self.free[node]) - pages
            with k.if_(free > k.load(mark[node])):
                k.store(self.free[node], free)
                k.store(self.allocated[node], k.load(self.allocated[node]) + pages)
                found.set(1)
                k.break_()
        return found
