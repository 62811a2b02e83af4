"""Shrinkers (mm/shrinker.c): whom reclaim asks, and how hard. The one the model looks into is zswap's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zexp.kernel.builder import KernelBuilder
from zexp.program import IntLike, Local, Value

if TYPE_CHECKING:
    from zexp.kernel.lruvec import Lruvecs
    from zexp.kernel.zswap_shrinker import ZswapShrinker

SHRINK_BATCH = 128
SEEKS_FACTOR = 2
"""4 / DEFAULT_SEEKS."""


class Shrinkers:
    """What was put off, by memcg and node; zswap keeps its own bit of the bitmaps."""

    def __init__(self, k: KernelBuilder, lruvecs: Lruvecs, zswap: ZswapShrinker) -> None:
        self.lruvecs, self.zswap = lruvecs, zswap
        self.nr_deferred = k.bookkeeping("nr_deferred", len(lruvecs.hot))

    def shrink_slab(self, k: KernelBuilder, memcg: Value, node: IntLike, priority: Value) -> None:
        """Ask a memcg's shrinkers: the root's all, another's if their bit is set."""
        if self.zswap.none:
            return
        lruvec = self.lruvecs.number(memcg, node)
        with k.func("shrink_slab"):
            asked = k.local(k.load(self.zswap.bit[lruvec]))
            with k.if_(memcg == 0):
                k.call("shrink_slab")
                asked.set(1)
            with k.else_():
                k.call("shrink_slab_memcg")
            with k.if_(asked):
                self._do_shrink_slab(k, memcg, node, lruvec, priority)

    def _do_shrink_slab(self, k: KernelBuilder, memcg: Value, node: IntLike, lruvec: Value, priority: Value) -> None:
        with k.fn("do_shrink_slab"):
            freeable = self.zswap.zswap_shrinker_count(k, memcg, node)
            with k.if_(freeable > 0):
                deferred = k.load(self.nr_deferred[lruvec])
                left = k.local((deferred >> priority) + (freeable >> priority) * SEEKS_FACTOR)
                left.set(k.minimum(left, 2 * freeable))
                scanned = k.local(0)
                with k.while_(lambda: (left >= SHRINK_BATCH) | ((left >= freeable) & (left > 0))):
                    number = k.minimum(left, SHRINK_BATCH)
                    written = self.zswap.zswap_shrinker_scan(k, memcg, node, number)
                    with k.if_(written < 0):  # SHRINK_STOP
                        k.break_()
                    left.set(left - number)
                    scanned.set(scanned + number)
                self._defer(k, lruvec, deferred, freeable, priority, scanned)

    def _defer(
        self, k: KernelBuilder, lruvec: Value, deferred: Value, freeable: Value, priority: Value, scanned: Local
    ) -> None:
        """What was due and not done is put off."""
        due = deferred + (freeable >> priority) * SEEKS_FACTOR - scanned
        k.store(self.nr_deferred[lruvec], k.minimum(k.maximum(due, 0), 2 * freeable))
