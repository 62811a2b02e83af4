"""zswap under memory pressure (mm/zswap.c): storing what reclaim swaps out, the shrinker, the shrink worker.

Works on the counts of ``Lruvecs``, many pages at a time; the life of single entries is in ``zswap.py``. What is coldest
lies at the end of the list that writeback begins with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zexp.kernel.builder import PAGE_BYTES, KernelBuilder
from zexp.kernel.lruvec import ONE
from zexp.kernel.page_alloc import MAX_RECLAIM_RETRIES
from zexp.program import IntLike, Value

if TYPE_CHECKING:
    from zexp.kernel.cgroup import Ints
    from zexp.kernel.lruvec import Lruvecs
    from zexp.kernel.memcontrol import VmStats
    from zexp.program import Body

SITE = "zswap_shrinker_count"
STOP = -1
"""SHRINK_STOP."""


class ZswapShrinker:
    """One pool, one LRU list a memcg and node."""

    def __init__(self, k: KernelBuilder, lruvecs: Lruvecs, stats: VmStats) -> None:
        self.lruvecs, self.stats = lruvecs, stats
        self.none = k.config.zswap_shrinker == "none"
        """The kernel has no such shrinker."""
        self.enabled = k.config.zswap_shrinker == "on"
        self.max_pages, self.accept_pages = k.config.pool_limits(k.machine.memory_bytes // PAGE_BYTES)
        self.reached_full = k.bookkeeping("zswap_pool_reached_full", 1)
        self.queued = k.bookkeeping("zswap_shrink_work is queued", 1)
        self.shrink_wait = k.wait_queue("zswap shrink_wq")
        self.bit = k.bookkeeping("zswap's bit in shrinker_info", len(lruvecs.hot), self._bits(lruvecs))
        """Set with a lruvec's first entry, and never cleared: the count never says SHRINK_EMPTY."""

    @staticmethod
    def _bits(lruvecs: Lruvecs) -> Ints:
        stored: Ints = (lruvecs.spread(lruvecs.contents.zswapped).ravel() > 0).astype(np.int64)
        return stored

    # ---- storing ---------------------------------------------------------------------------------------------------

    def swap_out(self, k: KernelBuilder, memcg: Value, node: IntLike, pages: Value) -> None:
        """Reclaim swaps pages out: into the pool, or while it is full, to the disk."""
        with k.if_(pages > 0), k.func("swap_writepage"):
            k.work(pages * round(k.cycles("swap_writepage")))
            lruvec, full = self.lruvecs.number(memcg, node), self._check_limits(k)
            hot = self.lruvecs.part(k, pages, round(self.lruvecs.contents.hot_share * ONE))
            with k.if_(full):
                with k.func("__swap_writepage"):
                    k.work(pages * round(k.cycles("__swap_writepage")))
                self.lruvecs.add(k, self.lruvecs.disk_hot, lruvec, hot)
                self.lruvecs.add(k, self.lruvecs.disk_cold, lruvec, pages - hot)
                k.count("zswap/rejected", pages)
                k.store(self.queued[0], 1)
                k.wake(self.shrink_wait)
            with k.else_():
                self._zswap_store(k, memcg, node, pages, hot)

    def _zswap_store(self, k: KernelBuilder, memcg: Value, node: IntLike, pages: Value, hot: Value) -> None:
        lists, lruvec = self.lruvecs, self.lruvecs.number(memcg, node)
        with k.func(k.symbol("zswap_store")):
            k.work(pages * round(k.cycles("zswap_store_page")))
            with k.func("zswap_compress"):
                k.work(pages * round(k.config.compressor.compress_cycles))
        lists.add(k, lists.hot, lruvec, hot)
        lists.add(k, lists.cold, lruvec, pages - hot)
        lists.charge(k, memcg, node, pages, pages * lists.object_bytes(k, memcg))
        k.count("zswap/stored", pages)
        k.store(self.bit[lruvec], 1)
        if k.config.zswap_shrinker_protection == "protected":
            self._protect(k, lruvec, pages)
        else:
            lists.add(k, lists.referenced, lruvec, pages)

    def _protect(self, k: KernelBuilder, lruvec: Value, pages: IntLike) -> None:
        """nr_zswap_protected grows with every entry, and is halved when it passes a quarter of the list.

        It swings between an eighth and a quarter then; the model keeps it in the middle.
        """
        lists = self.lruvecs
        entries = k.load(lists.hot[lruvec]) + k.load(lists.cold[lruvec])
        protected = k.load(lists.disk_swapins[lruvec]) + pages
        over = protected > entries >> 2
        k.store(lists.disk_swapins[lruvec], protected + over * ((entries * 3 >> 4) - protected))

    def _check_limits(self, k: KernelBuilder) -> Value:
        """1 from when the pool reaches its limit until it is below the accept threshold."""
        pages = self.lruvecs.pool_pages(k)
        full = k.local(k.load(self.reached_full[0]))
        with k.if_(pages >= self.max_pages):
            full.set(1)
        with k.else_(), k.if_(pages <= self.accept_pages):
            full.set(0)
        k.store(self.reached_full[0], full)
        return full

    # ---- the shrinker ----------------------------------------------------------------------------------------------

    def zswap_shrinker_count(self, k: KernelBuilder, memcg: Value, node: IntLike) -> Value:
        """How many entries of a memcg and node could go, by the statistics as far as they are flushed."""
        lists, lruvec = self.lruvecs, self.lruvecs.number(memcg, node)
        count = k.local(0)
        with k.fn("zswap_shrinker_count"):
            if not self.enabled:
                return count
            self.stats.flush_at(k, SITE, memcg)
            stored, backing = k.load(lists.visible_zswapped[memcg]), k.load(lists.visible_zswap_bytes[memcg])
            entries = k.load(lists.hot[lruvec]) + k.load(lists.cold[lruvec])
            with k.if_(entries > 0):
                k.observe("count/stats_age_ns", k.now_ns() - k.load(self.stats.flushed_ns[memcg]))
                freeable = self._unprotected(k, lruvec, entries, stored)
                with k.if_(stored > 0):
                    count.set(freeable * backing // (stored * PAGE_BYTES))
                true_stored = k.maximum(k.load(lists.zswapped[memcg]), 1)
                truth = freeable * k.load(lists.zswap_bytes[memcg]) // (true_stored * PAGE_BYTES)
                error = k.maximum(count - truth, truth - count)
                k.observe("count/error_pages", error, unit="pages")
                k.count("count/truth_pages", truth)
                k.count("count/error_pages", error)
                k.count("count/signed_error_pages", count - truth)
        return count

    def _unprotected(self, k: KernelBuilder, lruvec: Value, entries: Value, stored: Value) -> Value:
        lists = self.lruvecs
        protected = k.minimum(k.load(lists.disk_swapins[lruvec]), entries)
        if k.config.zswap_shrinker_protection == "second_chance":  # these are used up, unless it returned before
            k.store(lists.disk_swapins[lruvec], k.load(lists.disk_swapins[lruvec]) - protected * (stored > 0))
        return entries - protected

    def zswap_shrinker_scan(self, k: KernelBuilder, memcg: Value, node: IntLike, number: IntLike) -> Value:
        """Write back up to ``number`` entries; gives how many, or STOP if none."""
        with k.fn("zswap_shrinker_scan"):
            lists, lruvec = self.lruvecs, self.lruvecs.number(memcg, node)
            written = k.local(STOP)
            if k.config.zswap_shrinker_protection == "protected":
                entries = k.load(lists.hot[lruvec]) + k.load(lists.cold[lruvec])
                with k.if_(k.load(lists.disk_swapins[lruvec]) < entries - number):
                    written.set(self.shrink_memcg_cb(k, memcg, node, number))
            else:
                written.set(self.shrink_memcg_cb(k, memcg, node, number))
            with k.if_(written <= 0):
                written.set(STOP)
        return written

    def shrink_memcg_cb(self, k: KernelBuilder, memcg: Value, node: IntLike, number: IntLike) -> Value:
        """Walk ``number`` entries: those with a second chance lose it, the others are written to the disk."""
        lists, lruvec = self.lruvecs, self.lruvecs.number(memcg, node)
        hot, cold = k.load(lists.hot[lruvec]), k.load(lists.cold[lruvec])
        entries = hot + cold
        walked = k.minimum(entries, number)
        written = k.local(walked)
        if k.config.zswap_shrinker_protection == "second_chance":
            referenced = k.load(lists.referenced[lruvec])
            spared = (walked * referenced + k.rand_int(ONE) * entries // ONE) // k.maximum(entries, 1)
            k.store(lists.referenced[lruvec], referenced - spared)
            written.set(walked - spared)
        with k.if_(written > 0), k.func("zswap_writeback_entry"):
            of_cold = k.minimum(cold, written)
            # off the list before time passes: another thread that walks it must not find them again
            lists.add(k, lists.cold, lruvec, 0 - of_cold)
            lists.add(k, lists.hot, lruvec, of_cold - written)
            lists.add(k, lists.disk_cold, lruvec, of_cold)
            lists.add(k, lists.disk_hot, lruvec, written - of_cold)
            lists.uncharge(k, memcg, node, entries, written)
            k.count("zswap/written_back", written)
            k.count("zswap/written_back_hot", written - of_cold)
            k.work(written * round(k.cycles("zswap_writeback_entry") + k.cycles("zswap_free_entry_page")))
            with k.func("zswap_decompress"):
                k.work(written * round(k.config.compressor.decompress_cycles))
            with k.func("__swap_writepage"):
                k.work(written * round(k.cycles("__swap_writepage")))
        return written

    # ---- the shrink worker -----------------------------------------------------------------------------------------

    def shrink_worker(self, k: KernelBuilder) -> Body:
        """Once the pool was full: a few entries of every memcg and node in turn, until it may be filled again.

        It gives up after 16 failures: a memcg that has entries but lets none go, or a round without any entry.
        """
        lists, memcgs = self.lruvecs, len(self.lruvecs.tree)
        with k.thread("kworker/zswap", daemon=True) as thread, k.for_range(1 << 62):
            k.wait_event(self.shrink_wait, lambda: k.load(self.queued[0]))
            k.store(self.queued[0], 0)
            memcg, failures, seen = k.local(0), k.local(0), k.local(0)
            with (
                k.func("shrink_worker"),
                k.while_(lambda: (lists.pool_pages(k) > self.accept_pages) & (failures < MAX_RECLAIM_RETRIES)),
            ):
                entries, written = self._shrink_memcg(k, memcg)
                seen.set(seen + entries)
                failures.set(failures + ((entries > 0) & (written == 0)))
                memcg.set(memcg + 1)
                with k.if_(memcg == memcgs):
                    failures.set(failures + (seen == 0))
                    seen.set(0)
                    memcg.set(0)
        return thread

    def _shrink_memcg(self, k: KernelBuilder, memcg: Value) -> tuple[Value, Value]:
        """How many entries a memcg had, and how many were written back, a batch at most on each node."""
        lists, entries, written = self.lruvecs, k.local(0), k.local(0)
        with k.fn("shrink_memcg"), k.for_range(lists.nodes) as node:
            lruvec = lists.number(memcg, node)
            here = k.load(lists.hot[lruvec]) + k.load(lists.cold[lruvec])
            with k.if_(here > 0):
                entries.set(entries + here)
                written.set(written + self.shrink_memcg_cb(k, memcg, node, k.config.shrink_worker_batch))
        k.count("zswap/written_back_by_worker", written)
        return entries, written
