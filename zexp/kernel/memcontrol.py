"""Charging (mm/memcontrol.c, mm/page_counter.c): per-CPU stocks in front of hierarchical atomic counters."""

from __future__ import annotations

from zexp.kernel.builder import KernelBuilder
from zexp.program import IntLike


class MemControl:
    """A root and one cgroup a process below it, each with its counters on lines of their own."""

    def __init__(self, k: KernelBuilder, memcgs: int) -> None:
        self.memcgs = memcgs
        self.swap = k.array("memcg->swap", memcgs)
        self.root_swap = k.var("root_mem_cgroup->swap")
        self.memory = k.array("memcg->memory", memcgs)
        self.root_memory = k.var("root_mem_cgroup->memory")
        self.stocks = k.bookkeeping("obj_stock.nr_bytes", k.machine.cpus)
        """Bytes in each CPU's stock."""

    def mem_cgroup_uncharge_swap(self, k: KernelBuilder, memcg: IntLike, slots: IntLike) -> None:
        """Give back swap charge: two locked adds, the second on a line all of the machine shares."""
        with k.fn("__mem_cgroup_uncharge_swap"):
            k.call("lookup_swap_cgroup_id")
            k.call("swap_cgroup_record")
            with k.fn("page_counter_uncharge"):
                k.atomic_add(self.swap[memcg], -slots)
                k.atomic_add(self.root_swap, -slots)
            k.call("mem_cgroup_id_put_many")

    def mem_cgroup_charge_swap(self, k: KernelBuilder, memcg: IntLike) -> None:
        """Charge one swap slot."""
        with k.fn("__mem_cgroup_try_charge_swap"), k.fn("page_counter_try_charge"):
            k.atomic_add(self.swap[memcg], 1)
            k.atomic_add(self.root_swap, 1)

    def obj_cgroup_charge_zswap(self, k: KernelBuilder, memcg: IntLike, size_bytes: IntLike) -> None:
        """Charge a compressed object, from the CPU's stock if that holds enough."""
        with k.fn("obj_cgroup_charge_zswap"):
            left = k.load(self.stocks[k.cpu]) - size_bytes
            refilled = k.local(left)
            with k.if_(left < 0), k.fn("obj_cgroup_charge_pages"):
                k.atomic_add(self.memory[memcg], 1)
                k.atomic_add(self.root_memory, 1)
                refilled.set(left + 4096)
            k.store(self.stocks[k.cpu], refilled)

    def obj_cgroup_uncharge_zswap(self, k: KernelBuilder, memcg: IntLike, size_bytes: IntLike) -> None:
        """Give back a compressed object's charge: to the CPU's stock, whole pages of it to the counters."""
        with k.fn("obj_cgroup_uncharge_zswap"), k.fn("refill_obj_stock"):
            bytes_ = k.local(k.load(self.stocks[k.cpu]) + size_bytes)
            with k.if_(bytes_ > 4096):
                with k.fn("obj_cgroup_uncharge_pages"), k.fn("page_counter_uncharge"):
                    k.atomic_add(self.memory[memcg], -1)
                    k.atomic_add(self.root_memory, -1)
                bytes_.set(bytes_ - 4096)
            k.store(self.stocks[k.cpu], bytes_)
