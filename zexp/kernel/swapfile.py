"""Freeing swap slots (mm/swapfile.c, mm/swap_slots.c, mm/swap_state.c), the way each version does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zexp.kernel.builder import KernelBuilder
from zexp.kernel.config import TREE_64MIB_SLOTS
from zexp.program import SPINLOCK_IRQ, IntLike, Value

if TYPE_CHECKING:
    from zexp.kernel.mm import Mm, Owner


class SwapFile:
    """One swap device."""

    def __init__(self, k: KernelBuilder, mm: Mm, slots: int) -> None:
        config = k.config
        self.mm = mm
        self.cluster_slots = config.cluster_slots
        self.cluster_locks = k.locks("swap_cluster_info lock", -(-slots // self.cluster_slots))
        self.si_lock = k.spinlock("swap_info_struct->lock")
        self.xa_locks = k.locks("swap cache xa_lock", -(-slots // TREE_64MIB_SLOTS), SPINLOCK_IRQ)
        self.nr_swap_pages = k.var("nr_swap_pages")
        batch = max(config.swap_slot_cache, 1)
        self.cache_size = batch
        self.cached = k.bookkeeping("swap_slots_cache", k.machine.cpus * batch)
        self.cached_count = k.bookkeeping("swap_slots_cache->n_ret", k.machine.cpus)

    def zap_pte_range(self, k: KernelBuilder, first: IntLike, pages: Value, owner: Owner) -> None:
        """Unmap ``pages`` swapped-out pages whose slots follow each other (mm/memory.c)."""
        batch = k.config.swap_pte_batch
        if batch == 1:
            with k.for_range(pages) as i, k.fn("zap_pte_range"):
                self.free_swap_and_cache(k, first + i, owner)
            if k.config.swap_slot_cache:
                with k.fn("drain_slots_cache_cpu", instructions=50):
                    self._swapcache_free_entries(k, k.load(self.cached_count[k.cpu]), owner)
        else:
            done = k.local(0)
            with k.while_(lambda: done < pages), k.func(k.symbol("zap_pte_range")):
                # a batch ends with its page table, which here is also a cluster
                start = first + done
                count = k.minimum(pages - done, batch - start % batch)
                self._per_slot(k, count, "zap_pte_range")
                self.free_swap_and_cache_nr(k, start, count, owner)
                done.set(done + count)

    def free_swap_and_cache(self, k: KernelBuilder, slot: Value, owner: Owner) -> None:
        """Drop one swap entry (to 6.8)."""
        with k.fn("free_swap_and_cache"), k.fn("__swap_entry_free"):
            with k.lock(self.cluster_locks[slot // self.cluster_slots]):
                k.work(k.cycles("__swap_entry_free_locked"))
            self.free_swap_slot(k, slot, owner)

    def free_swap_slot(self, k: KernelBuilder, slot: Value, owner: Owner) -> None:
        """Free a slot whose last user has gone: into the CPU's slot cache, or at once where there is none."""
        size = k.config.swap_slot_cache
        if not size:
            one = k.local(1)
            self._swap_entries_free(k, slot, one, owner)
            return
        with k.fn("free_swap_slot"):
            count = k.load(self.cached_count[k.cpu])
            k.store(self.cached[k.cpu * size + count], slot)
            with k.if_(count == size - 1):
                self._swapcache_free_entries(k, size, owner)
            with k.else_():
                k.store(self.cached_count[k.cpu], count + 1)

    def _swapcache_free_entries(self, k: KernelBuilder, count: IntLike, owner: Owner) -> None:
        """Free all that the CPU has collected, under si->lock all along."""
        base = k.cpu * self.cache_size
        with k.fn("swapcache_free_entries"), k.lock(self.si_lock), k.for_range(count) as i:
            self.swap_entry_free(k, k.load(self.cached[base + i]), owner)
        k.store(self.cached_count[k.cpu], 0)

    def swap_entry_free(self, k: KernelBuilder, slot: Value, owner: Owner) -> None:
        """Free one slot of the batch."""
        with k.fn("swap_entry_free"):
            with k.lock(self.cluster_locks[slot // self.cluster_slots]):
                k.work(k.cycles("dec_cluster_info_page"))
            self.mm.memcontrol.mem_cgroup_uncharge_swap(k, owner.memcg, 1)
            with k.fn("swap_range_free"):
                k.atomic_add(self.nr_swap_pages, 1)
                if k.config.invalidate_under == "si_lock":
                    self.mm.zswap.zswap_invalidate(k, slot, owner)
                self._clear_shadow(k, slot, None)

    def free_swap_and_cache_nr(self, k: KernelBuilder, first: Value, count: Value, owner: Owner) -> None:
        """Drop a run of swap entries in one cluster (from 6.9)."""
        with k.fn("free_swap_and_cache_nr"):
            self._swap_entries_free(k, first, count, owner)

    def _swap_entries_free(self, k: KernelBuilder, first: Value, count: Value, owner: Owner) -> None:
        cluster = self.cluster_locks[first // self.cluster_slots]
        with k.fn("__swap_entries_free"):
            if k.config.invalidate_under == "cluster_lock":
                with k.lock(cluster):
                    self._per_slot(k, count, "__swap_entry_free_locked")
                    self.mm.memcontrol.mem_cgroup_uncharge_swap(k, owner.memcg, count)
                    with k.fn("swap_range_free"):
                        k.atomic_add(self.nr_swap_pages, count)
                        self._invalidate(k, first, count, owner)
                        self._clear_shadow(k, first, count)
                return
            with k.lock(cluster):
                self._per_slot(k, count, "__swap_entry_free_locked")
            self._invalidate(k, first, count, owner)
            with k.lock(self.si_lock), k.fn("swap_entry_range_free"):
                with k.lock(cluster):
                    self._per_slot(k, count, "dec_cluster_info_page")
                self.mm.memcontrol.mem_cgroup_uncharge_swap(k, owner.memcg, count)
                with k.fn("swap_range_free"):
                    k.atomic_add(self.nr_swap_pages, count)
                    self._clear_shadow(k, first, count)

    def _per_slot(self, k: KernelBuilder, count: Value, what: str) -> None:
        with k.for_range(count):
            k.work(k.cycles(what))

    def _invalidate(self, k: KernelBuilder, first: Value, count: Value, owner: Owner) -> None:
        with k.for_range(count) as i:
            self.mm.zswap.zswap_invalidate(k, first + i, owner)

    def _clear_shadow(self, k: KernelBuilder, first: Value, count: Value | None) -> None:
        """Where the swap cache is an xarray, remove the shadows of ``count`` slots (None: one) from it."""
        if k.config.swap_cache != "xarray":
            return
        with k.fn("clear_shadow_from_swap_cache"), k.lock(self.xa_locks[first // TREE_64MIB_SLOTS]):
            if count is None:
                k.call("xas_load")
                k.call("xas_store")
            else:
                with k.for_range(count):
                    k.call("xas_load")
                    k.call("xas_store")
