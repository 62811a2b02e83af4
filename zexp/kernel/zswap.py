"""zswap (mm/zswap.c): the index of compressed pages, and what storing, loading and dropping one does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zexp.errors import PluginError
from zexp.kernel.builder import PAGE_BYTES, KernelBuilder
from zexp.kernel.config import TREE_64MIB_SLOTS
from zexp.program import IntLike, Value

if TYPE_CHECKING:
    from zexp.kernel.mm import Mm, Owner
    from zexp.kernel.policy import PoolAccounting


class Zswap:
    """One zswap pool over one swap device."""

    def __init__(
        self, k: KernelBuilder, mm: Mm, accounting: PoolAccounting, slots: int, stored: int, dynamic: bool
    ) -> None:
        config = k.config
        self.mm, self.accounting = mm, accounting
        self.zsmalloc = mm.zsmalloc
        self.dynamic = dynamic
        """Entries also come (or go by more than one way), so the model must look whether a slot has one."""
        self.tree_slots = slots if config.zswap_tree == "device" else TREE_64MIB_SLOTS
        name = "zswap_tree->lock" if config.zswap_index == "rbtree" else "zswap xa_lock"
        self.tree_locks = k.locks(name, -(-slots // self.tree_slots))
        self.stored_pages = k.var("zswap_stored_pages", init=stored)
        self.pool_kref = k.var("zswap_pool->kref")
        self.reached_full = k.var("zswap_pool_reached_full")
        self.max_pages, self.accept_pages = config.pool_limits(k.machine.memory_bytes // PAGE_BYTES)
        accounting.setup(k, self)

    def zswap_total_pages(self, k: KernelBuilder) -> Value:
        """The size of the pool in pages, by the accounting policy."""
        with k.accounting():
            pages = self.accounting.total_pages(k, self)
        if not isinstance(pages, Value):
            raise PluginError(
                f"policy/accounting={self.accounting.name}: total_pages returned {pages!r}; allowed: a staged value, "
                "like the result of k.load() or a k.local()"
            )
        return pages

    def _tree(self, slot: Value) -> IntLike:
        return 0 if len(self.tree_locks) == 1 else slot // self.tree_slots

    @contextmanager
    def _if_stored(self, k: KernelBuilder, slot: Value) -> Iterator[None]:
        if not self.dynamic:
            yield
            return
        with k.if_(k.load(self.zsmalloc.zspage_of[slot]) >= 0):
            yield

    def zswap_invalidate(self, k: KernelBuilder, slot: Value, owner: Owner) -> None:
        """A swap slot is freed: drop its entry."""
        with k.fn("zswap_invalidate"):
            if k.config.zswap_index == "rbtree":
                with k.lock(self.tree_locks[self._tree(slot)]):
                    k.call("zswap_rb_search")
                    with self._if_stored(k, slot):
                        k.call("rb_erase")
                        self.zswap_free_entry(k, slot, owner)
            else:
                with self._if_stored(k, slot):
                    self._xa_erase(k, slot)
                    self.zswap_free_entry(k, slot, owner)

    def _xa_erase(self, k: KernelBuilder, slot: Value) -> None:
        with k.fn("xa_erase"), k.lock(self.tree_locks[self._tree(slot)]):
            k.call("xas_load")
            k.call("xas_store")

    def zswap_free_entry(self, k: KernelBuilder, slot: Value, owner: Owner) -> None:
        """Free an entry and all it holds."""
        node = owner.node(k, slot)
        with k.fn("zswap_free_entry"):
            self.mm.list_lru.list_lru_del(k, owner.memcg, node)
            self.zsmalloc.zs_free(slot, node, self.accounting, self)
            if self.dynamic:
                k.store(self.zsmalloc.zspage_of[slot], -1)
            self._pool_ref(k, -1)
            self.mm.memcontrol.obj_cgroup_uncharge_zswap(k, owner.memcg, self.zsmalloc.size_of(slot))
            with k.fn("kmem_cache_free"):
                k.call("__slab_free")
            k.atomic_add(self.stored_pages, -1)
            with k.accounting():
                self.accounting.entry_freed(k, self)

    def _pool_ref(self, k: KernelBuilder, change: int) -> None:
        function = "zswap_pool_put" if change < 0 else "zswap_pool_get"
        with k.fn(function):
            if k.config.pool_ref == "kref":
                k.atomic_add(self.pool_kref, change)

    def zswap_store(self, k: KernelBuilder, slot: Value, owner: Owner) -> Value:
        """Compress a page into the pool; 1 if it went in, 0 if the pool is full."""
        accepted = k.local(0)
        node = owner.node(k, slot)
        with k.fn("zswap_store"):
            with k.if_(self.zswap_check_limits(k)):
                k.wake(self.mm.shrink_wait)
                k.count("zswap_reject_reclaim_fail")
            with k.else_():
                k.call("kmem_cache_alloc_node")
                with k.fn("zswap_compress"):
                    k.work(k.config.compressor.compress_cycles)
                    self._pool_ref(k, 1)
                    self.zsmalloc.zs_malloc(slot, self.accounting, self)
                self.mm.memcontrol.obj_cgroup_charge_zswap(k, owner.memcg, self.zsmalloc.size_of(slot))
                with k.lock(self.tree_locks[self._tree(slot)]):
                    k.call("zswap_rb_insert" if k.config.zswap_index == "rbtree" else "xas_store")
                self.mm.list_lru.list_lru_add(k, owner.memcg, node)
                k.atomic_add(self.stored_pages, 1)
                with k.accounting():
                    self.accounting.entry_stored(k, self)
                accepted.set(1)
        return accepted

    def zswap_check_limits(self, k: KernelBuilder) -> Value:
        """1 while the pool is over its limit, and from then on until it is below the accept threshold."""
        with k.fn("zswap_check_limits"):
            total = self.zswap_total_pages(k)
            full = k.local(k.load(self.reached_full))
            with k.if_(total >= self.max_pages):
                k.count("zswap_pool_limit_hit")
                with k.if_(full == 0):
                    k.store(self.reached_full, 1)
                    full.set(1)
            with k.else_(), k.if_((full == 1) & (total <= self.accept_pages)):
                k.store(self.reached_full, 0)
                full.set(0)
        return full

    def zswap_load(self, k: KernelBuilder, slot: Value, owner: Owner) -> None:
        """Decompress a page for a fault; where loads are exclusive, drop its entry."""
        with k.fn("zswap_load"):
            exclusive = k.config.exclusive_loads
            if k.config.zswap_index == "rbtree":
                with k.lock(self.tree_locks[self._tree(slot)]):
                    k.call("zswap_rb_search")
            elif not exclusive:
                k.call("xas_load")
            with self._if_stored(k, slot):
                if exclusive and k.config.zswap_index == "xarray":
                    self._xa_erase(k, slot)
                with k.fn("zswap_decompress"):
                    k.memory_read(owner.node(k, slot), 1)
                    k.work(k.config.compressor.decompress_cycles)
                if exclusive:
                    if k.config.zswap_index == "rbtree":
                        with k.lock(self.tree_locks[self._tree(slot)]):
                            k.call("rb_erase")
                            self.zswap_free_entry(k, slot, owner)
                    else:
                        self.zswap_free_entry(k, slot, owner)

    def zswap_writeback_entry(self, k: KernelBuilder, slot: Value, owner: Owner) -> None:
        """Decompress an entry, hand it to the swap device and drop it."""
        with k.fn("zswap_writeback_entry"):
            with k.fn("zswap_decompress"):
                k.memory_read(owner.node(k, slot), 1)
                k.work(k.config.compressor.decompress_cycles)
            k.call("__swap_writepage")
            if k.config.zswap_index == "rbtree":
                with k.lock(self.tree_locks[self._tree(slot)]):
                    k.call("rb_erase")
                    self.zswap_free_entry(k, slot, owner)
            else:
                self._xa_erase(k, slot)
                self.zswap_free_entry(k, slot, owner)
            k.count("zswap_written_back_pages")
