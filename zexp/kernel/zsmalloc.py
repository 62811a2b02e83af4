"""The zsmalloc allocator (mm/zsmalloc.c): size classes, zspages, and the count of pages they take.

A zspage is a chain of pages cut into objects of one size class. ``pages_allocated`` changes when a zspage is made or
freed, not per object. Which zspage an object lies in is bookkeeping here, carried for every single entry; what touching
it costs stands in the cost table and in the memory reads per zspage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from zexp.kernel.builder import PAGE_BYTES, KernelBuilder
from zexp.program import IntLike, Ref, Value

if TYPE_CHECKING:
    from zexp.kernel.policy import PoolAccounting
    from zexp.kernel.zswap import Zswap

MIN_ALLOC = 32
CLASS_DELTA = 16
OVERLAPPING_READS = 4
"""Independent reads from memory that a core has under way at once; assumed."""


@dataclass(frozen=True)
class SizeClass:
    """Objects of ``size`` bytes, ``objects`` of them in a zspage of ``pages`` pages."""

    size: int
    pages: int
    objects: int


def size_class(size_bytes: int, chain: int) -> SizeClass:
    """The class an object of ``size_bytes`` goes to, with the chain length that wastes least (zsmalloc.c)."""
    size = max(MIN_ALLOC, -(-size_bytes // CLASS_DELTA) * CLASS_DELTA)
    pages = min(range(1, chain + 1), key=lambda n: (n * PAGE_BYTES % size, n))
    return SizeClass(size, pages, pages * PAGE_BYTES // size)


@dataclass(frozen=True)
class Pool:
    """One zs_pool, with the zpool in front of it, as the code of a loop sees it."""

    index: IntLike
    zpool: Ref
    """The zpool's ``driver`` and ``pool`` pointers; never written after start."""
    pages_allocated: Ref


class ZsMalloc:
    """All zs_pools of a zswap pool. ``for pool in k.for_each(zsmalloc)`` walks them."""

    def __init__(self, k: KernelBuilder, entry_class: SizeClass, stores: int) -> None:
        """Room for the zspages of the initial entries and of ``stores`` more stores."""
        self.k = k
        self.pools = k.config.zpools
        self.entry_class = entry_class
        # struct zpool is two pointers: four to a line. pages_allocated sits alone among read-mostly fields.
        self.zpools = k.array("struct zpool", self.pools, per_line=4)
        self.pages_allocated = k.array("zs_pool->pages_allocated", self.pools)
        self.by_class = k.config.zsmalloc_lock != "pool"
        self.locks = k.locks("size_class lock" if self.by_class else "zs_pool lock", self.pools)
        self.migrate_lock = (
            k.array("zs_pool->migrate_lock", self.pools) if k.config.zsmalloc_lock == "migrate_lock" else None
        )
        self.open = k.bookkeeping("open zspage", self.pools, np.full(self.pools, -1))
        """By pool: the zspage that new objects go to."""
        self.stores = stores

    def __len__(self) -> int:
        return self.pools

    def __getitem__(self, index: IntLike) -> Pool:
        return Pool(index, self.zpools[index], self.pages_allocated[index])

    def fill(
        self, slots: int, pool_of: npt.NDArray[np.int64], stored: npt.NDArray[np.bool_], other_pages: int
    ) -> None:
        """Lay out the entries that exist at time 0: stored in slot order, as an earlier reclaim left them."""
        k, per_zspage = self.k, self.entry_class.objects
        zspage_of = np.full(slots, -1, np.int64)
        inuse: list[npt.NDArray[np.int64]] = []
        owner: list[npt.NDArray[np.int64]] = []
        made = 0
        pages = np.zeros(self.pools, np.int64)
        for pool in range(self.pools):
            members = np.flatnonzero(stored & (pool_of == pool))
            zspage_of[members] = made + np.arange(len(members)) // per_zspage
            count = -(-len(members) // per_zspage)
            used = np.full(count, per_zspage, np.int64)
            if count and len(members) % per_zspage:
                used[-1] = len(members) % per_zspage
            inuse.append(used)
            owner.append(np.full(count, pool, np.int64))
            pages[pool] = count * self.entry_class.pages + other_pages // self.pools + (pool < other_pages % self.pools)
            made += count
        room = made + self.stores + 1
        self.initial_pages = int(pages.sum())
        k.memory.init_tracked[self.pages_allocated.base : self.pages_allocated.base + self.pools] = pages.tolist()
        spare = np.zeros(room - made, np.int64)
        self.pool_of = k.bookkeeping("pool of slot", slots, pool_of)
        self.zspage_of = k.bookkeeping("zspage of slot", slots, zspage_of)
        self.inuse = k.bookkeeping("zspage->inuse", room, np.concatenate([*inuse, spare]))
        self.zspage_pool = k.bookkeeping("pool of zspage", room, np.concatenate([*owner, spare]))
        self.next_zspage = k.bookkeeping("next zspage", 1, [made])[0]

    def zpool_get_total_size(self, pool: Pool) -> Value:
        """Ask one pool for its size in pages: through the zpool layer where there is one."""
        k = self.k
        if not k.config.zpool_layer:
            with k.fn("zs_get_total_pages"):
                return k.load(pool.pages_allocated)
        with k.fn("zpool_get_total_size"):
            k.load(pool.zpool)
            with k.fn("zs_zpool_total_size"):
                return k.load(pool.pages_allocated)

    def zs_free(self, slot: Value, node: IntLike, accounting: PoolAccounting, zswap: Zswap) -> None:
        """Free a slot's object, and its zspage with the last one (zs_free, free_zspage)."""
        k = self.k
        pool = k.load(self.pool_of[slot])
        with self._zpool("free"), k.fn("zs_free"):
            if self.migrate_lock is not None:
                k.atomic_add(self.migrate_lock[pool], 1)
            with k.lock(self.locks[pool]):
                k.call("obj_free")
                zspage = k.load(self.zspage_of[slot])
                left = k.load(self.inuse[zspage]) - 1
                k.store(self.inuse[zspage], left)
                with k.if_(left == 0):
                    with k.func("free_zspage"):
                        # its struct pages are cold; reading them overlaps
                        k.memory_read(node, -(-self.entry_class.pages // OVERLAPPING_READS))
                        for _ in range(self.entry_class.pages):
                            k.work(k.cycles("free_zspage"))
                            k.call("free_unref_page")
                        k.atomic_add(self.pages_allocated[pool], -self.entry_class.pages)
                        with k.accounting():
                            accounting.zspage_freed(k, zswap, self[pool], self.entry_class.pages)
                    with k.if_(k.load(self.open[pool]) == zspage):
                        k.store(self.open[pool], -1)
                if zswap.dynamic:
                    self._reopen(pool, zspage, left)
            if self.migrate_lock is not None:
                k.atomic_add(self.migrate_lock[pool], -1)

    def _reopen(self, pool: Value, zspage: Value, left: Value) -> None:
        """A zspage with a hole is filled before a new one is made."""
        k = self.k
        with k.if_(left > 0):
            current = k.load(self.open[pool])
            full = k.local(1)
            with k.if_(current >= 0):
                full.set(k.load(self.inuse[current]) >= self.entry_class.objects)
            with k.if_(full):
                k.store(self.open[pool], zspage)

    def zs_malloc(self, slot: Value, accounting: PoolAccounting, zswap: Zswap) -> None:
        """Make room for a slot's object: in the open zspage of its pool, or in a new one."""
        k = self.k
        pool = k.load(self.pool_of[slot])
        with self._zpool("malloc"), k.fn("zs_malloc"), k.lock(self.locks[pool]):
            zspage = k.local(k.load(self.open[pool]))
            full = k.local(1)
            with k.if_(zspage >= 0):
                full.set(k.load(self.inuse[zspage]) >= self.entry_class.objects)
            with k.if_(full):
                zspage.set(k.atomic_add(self.next_zspage, 1) - 1)
                k.store(self.open[pool], zspage)
                with k.func("alloc_zspage"):
                    for _ in range(self.entry_class.pages):
                        k.work(k.cycles("alloc_zspage"))
                        k.call("__alloc_pages")
                    k.atomic_add(self.pages_allocated[pool], self.entry_class.pages)
                    with k.accounting():
                        accounting.zspage_allocated(k, zswap, self[pool], self.entry_class.pages)
            k.store(self.inuse[zspage], k.load(self.inuse[zspage]) + 1)
            k.store(self.zspage_of[slot], zspage)
            k.call("obj_malloc")

    @contextmanager
    def _zpool(self, what: str) -> Iterator[None]:
        """The frames of the zpool layer around a zsmalloc function, where there is one."""
        if not self.k.config.zpool_layer:
            yield
            return
        with self.k.fn(f"zpool_{what}"), self.k.fn(f"zs_zpool_{what}"):
            yield
