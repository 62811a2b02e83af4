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
from zexp.program import Array, IntLike, Ref, Value

if TYPE_CHECKING:
    from zexp.kernel.policy import PoolAccounting
    from zexp.kernel.zswap import Zswap

MIN_ALLOC = 32
HANDLE_BYTES = 8
"""In front of every object."""
GOLDEN_RATIO_64 = 0x61C8864680B583EB
CLASS_DELTA = 16
OVERLAPPING_READS = 4
"""Independent reads from memory that a core has under way at once; assumed."""


@dataclass(frozen=True)
class SizeClass:
    """Objects of ``size`` bytes, ``objects`` of them in a zspage of ``pages`` pages."""

    size: int
    pages: int
    objects: int


def size_classes(chain: int) -> list[SizeClass]:
    """All classes, smallest first. Each takes the chain length that wastes least; neighbours that come out with the
    same pages and objects are one class, of the largest size among them, as in zs_create_pool().
    """
    classes: list[SizeClass] = []
    for size in range(PAGE_BYTES, MIN_ALLOC - 1, -CLASS_DELTA):
        pages = min(range(1, chain + 1), key=lambda n, size=size: (n * PAGE_BYTES % size, n))  # type: ignore[misc]
        objects = pages * PAGE_BYTES // size
        if not classes or (classes[-1].pages, classes[-1].objects) != (pages, objects):
            classes.append(SizeClass(size, pages, objects))
    return classes[::-1]


Ints = npt.NDArray[np.int64]


def scatter(numbers: npt.NDArray[np.uint64], bound: int) -> Ints:
    """A multiplicative hash into ``[0, bound)``, as hash_ptr() picks a zpool by the entry's address."""
    mixed = numbers * np.uint64(GOLDEN_RATIO_64)
    return (((mixed >> np.uint64(33)) * np.uint64(bound)) >> np.uint64(31)).astype(np.int64)


@dataclass(frozen=True)
class Layout:
    """Where the entries lie at time 0: stored in slot order, as an earlier reclaim left them."""

    classes: list[SizeClass]
    kind_of: Ints
    """By slot, also of those not stored yet."""
    zspage_of: Ints
    """By slot; -1: not stored."""
    inuse: Ints
    """By zspage: objects in it."""
    pages_allocated: Ints
    """By pool."""


def lay_out(
    stored: npt.NDArray[np.bool_], size_bytes: float, spread: float, pools: int, chain: int, other_pages: int = 0
) -> Layout:
    """Give every slot a pool and a size class, and fill zspages with the stored ones.

    Sizes are uniform in ``size_bytes * (1 +- spread)``, by a hash of the slot, and a handle more. ``other_pages`` more
    pages hold entries nobody touches.
    """
    slots = np.arange(len(stored), dtype=np.uint64)
    # the second hash takes the slot's bits in another order, so that sizes and pools are independent
    where = scatter(slots ^ (slots << np.uint64(20)), 1 << 20) / (1 << 20)
    sizes = np.clip(np.rint(size_bytes * (1 + spread * (2 * where - 1))) + HANDLE_BYTES, 1, PAGE_BYTES)
    every = size_classes(chain)
    klass = np.searchsorted([c.size for c in every], sizes)
    used = np.unique(klass)
    classes = [every[i] for i in used]
    kind_of = scatter(slots, pools) * len(classes) + np.searchsorted(used, klass)
    members = np.flatnonzero(stored)
    members = members[np.argsort(kind_of[members], kind="stable")]
    kinds = kind_of[members]
    counts = np.bincount(kinds, minlength=pools * len(classes))
    first = np.cumsum(counts) - counts
    objects = np.tile([c.objects for c in classes], pools)
    zspages = -(-counts // objects)
    first_zspage = np.cumsum(zspages) - zspages
    zspage_of = np.full(len(stored), -1, np.int64)
    zspage_of[members] = first_zspage[kinds] + (np.arange(len(members)) - first[kinds]) // objects[kinds]
    pages = (zspages * np.tile([c.pages for c in classes], pools)).reshape(pools, -1).sum(axis=1)
    pages += other_pages // pools + (np.arange(pools) < other_pages % pools)
    return Layout(
        classes=classes,
        kind_of=kind_of,
        zspage_of=zspage_of,
        inuse=np.bincount(zspage_of[members], minlength=int(zspages.sum())),
        pages_allocated=pages,
    )


@dataclass(frozen=True)
class Pool:
    """One zs_pool, with the zpool in front of it, as the code of a loop sees it."""

    index: IntLike
    zpool: Ref
    """The zpool's ``driver`` and ``pool`` pointers; never written after start."""
    pages_allocated: Ref


class ZsMalloc:
    """All zs_pools of a zswap pool. ``for pool in k.for_each(zsmalloc)`` walks them.

    A *kind* is a size class of one pool, numbered ``pool * classes + class``.
    """

    def __init__(self, k: KernelBuilder, layout: Layout, stores: int) -> None:
        """Room for the zspages of the initial entries and of ``stores`` more stores."""
        self.k, self.pools = k, k.config.zpools
        kinds = self.pools * len(layout.classes)
        self.initial_pages = int(layout.pages_allocated.sum())
        # struct zpool is two pointers: four to a line. pages_allocated sits alone among read-mostly fields.
        self.zpools = k.array("struct zpool", self.pools, per_line=4)
        self.pages_allocated = k.array("zs_pool->pages_allocated", self.pools, init=layout.pages_allocated)
        self.lock_by_class = k.config.zsmalloc_lock != "pool"
        self.locks = k.locks(*("size_class lock", kinds) if self.lock_by_class else ("zs_pool lock", self.pools))
        rwlock = k.config.zsmalloc_lock == "migrate_lock"
        self.migrate_lock = k.array("zs_pool->migrate_lock", self.pools) if rwlock else None

        def by_kind(name: str, attribute: str) -> Array:
            values = [getattr(c, attribute) for c in layout.classes]
            return k.bookkeeping(name, kinds, np.tile(np.array(values, np.int64), self.pools))

        self.kind_size, self.kind_pages = by_kind("class->size", "size"), by_kind("class->pages", "pages")
        self.kind_objects = by_kind("class->objs_per_zspage", "objects")
        self.kind_pool = k.bookkeeping("pool of kind", kinds, np.repeat(np.arange(self.pools), len(layout.classes)))
        self.kind_of = k.bookkeeping("kind of slot", len(layout.kind_of), layout.kind_of)
        self.zspage_of = k.bookkeeping("zspage of slot", len(layout.zspage_of), layout.zspage_of)
        spare = np.zeros(stores + 1, np.int64)
        self.inuse = k.bookkeeping(
            "zspage->inuse", len(layout.inuse) + len(spare), np.concatenate([layout.inuse, spare])
        )
        self.open = k.bookkeeping("open zspage", kinds, np.full(kinds, -1))
        """By kind: the zspage that new objects go to."""
        self.next_zspage = k.bookkeeping("next zspage", 1, [len(layout.inuse)])[0]

    def __len__(self) -> int:
        return self.pools

    def __getitem__(self, index: IntLike) -> Pool:
        return Pool(index, self.zpools[index], self.pages_allocated[index])

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

    def total_size(self) -> Value:
        """Ask every pool and add up: the loop of zswap_update_total_size() and zswap_total_pages()."""
        k = self.k
        total = k.local(0)
        with k.for_each(self) as pool:
            total.set(total + self.zpool_get_total_size(pool))
            k.work(k.cycles("zswap_update_total_size"))
        return total

    def size_of(self, slot: Value) -> Value:
        """Bytes a slot's object takes."""
        return self.k.load(self.kind_size[self.k.load(self.kind_of[slot])])

    def zs_free(self, slot: Value, node: IntLike, accounting: PoolAccounting, zswap: Zswap) -> None:
        """Free a slot's object, and its zspage with the last one (zs_free, free_zspage)."""
        k = self.k
        kind = k.load(self.kind_of[slot])
        with self._zpool("free"), k.fn("zs_free"), self._locked(kind):
            k.call("obj_free")
            zspage = k.load(self.zspage_of[slot])
            left = k.load(self.inuse[zspage]) - 1
            k.store(self.inuse[zspage], left)
            with k.if_(left == 0):
                pages = k.load(self.kind_pages[kind])
                pool = self[k.load(self.kind_pool[kind])]
                with k.func("free_zspage"):
                    # its struct pages are cold; reading them overlaps
                    k.memory_read(node, (pages + (OVERLAPPING_READS - 1)) // OVERLAPPING_READS)
                    with k.for_range(pages):
                        k.work(k.cycles("free_zspage"))
                        k.call("free_unref_page")
                    k.atomic_add(pool.pages_allocated, -pages)
                    with k.accounting():
                        accounting.zspage_freed(k, zswap, pool, pages)
                with k.if_(k.load(self.open[kind]) == zspage):
                    k.store(self.open[kind], -1)
            if zswap.dynamic:
                self._reopen(kind, zspage, left)

    def _reopen(self, kind: Value, zspage: Value, left: Value) -> None:
        """A zspage with a hole is filled before a new one is made."""
        k = self.k
        with k.if_(left > 0), k.if_(self._is_full(kind, k.load(self.open[kind]))):
            k.store(self.open[kind], zspage)

    def _is_full(self, kind: Value, zspage: Value) -> Value:
        """1 if ``zspage`` has no room, or is none at all (-1)."""
        k = self.k
        full = k.local(1)
        with k.if_(zspage >= 0):
            full.set(k.load(self.inuse[zspage]) >= k.load(self.kind_objects[kind]))
        return full

    def zs_malloc(self, slot: Value, accounting: PoolAccounting, zswap: Zswap) -> None:
        """Make room for a slot's object: in the open zspage of its kind, or in a new one."""
        k = self.k
        kind = k.load(self.kind_of[slot])
        with self._zpool("malloc"), k.fn("zs_malloc"), self._locked(kind):
            zspage = k.local(k.load(self.open[kind]))
            with k.if_(self._is_full(kind, zspage)):
                zspage.set(k.atomic_add(self.next_zspage, 1) - 1)
                k.store(self.open[kind], zspage)
                pages = k.load(self.kind_pages[kind])
                pool = self[k.load(self.kind_pool[kind])]
                with k.func("alloc_zspage"):
                    with k.for_range(pages):
                        k.work(k.cycles("alloc_zspage"))
                        k.call("__alloc_pages")
                    k.atomic_add(pool.pages_allocated, pages)
                    with k.accounting():
                        accounting.zspage_allocated(k, zswap, pool, pages)
            k.store(self.inuse[zspage], k.load(self.inuse[zspage]) + 1)
            k.store(self.zspage_of[slot], zspage)
            k.call("obj_malloc")

    @contextmanager
    def _locked(self, kind: Value) -> Iterator[None]:
        """Under the locks of this version: the pool's; the class's; or migrate_lock for reading, then the class's."""
        k = self.k
        if not self.lock_by_class:
            with k.lock(self.locks[k.load(self.kind_pool[kind])]):
                yield
            return
        migrate = self.migrate_lock[k.load(self.kind_pool[kind])] if self.migrate_lock is not None else None
        if migrate is not None:
            k.atomic_add(migrate, 1)
        with k.lock(self.locks[kind]):
            yield
        if migrate is not None:
            k.atomic_add(migrate, -1)

    @contextmanager
    def _zpool(self, what: str) -> Iterator[None]:
        """The frames of the zpool layer around a zsmalloc function, where there is one."""
        if not self.k.config.zpool_layer:
            yield
            return
        with self.k.fn(f"zpool_{what}"), self.k.fn(f"zs_zpool_{what}"):
            yield
