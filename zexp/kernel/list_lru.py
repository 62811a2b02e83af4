"""zswap's LRU (mm/list_lru.c): one lock per node up to 6.12, one per memcg and node from 6.13."""

from __future__ import annotations

from zexp.kernel.builder import KernelBuilder
from zexp.program import IntLike


class ListLru:
    """The locks in front of the lists; the order of the lists is the workload's business."""

    def __init__(self, k: KernelBuilder, memcgs: int) -> None:
        self.nodes = k.machine.nodes
        self.per_memcg = k.config.list_lru_lock == "memcg"
        self.locks = k.locks("list_lru lock", self.nodes * (memcgs if self.per_memcg else 1))

    def _lock(self, memcg: IntLike, node: IntLike) -> IntLike:
        return memcg * self.nodes + node if self.per_memcg else node

    def list_lru_add(self, k: KernelBuilder, memcg: IntLike, node: IntLike) -> None:
        """Put an entry on its list."""
        with k.fn("list_lru_add"), k.lock(self.locks[self._lock(memcg, node)]):
            k.work(k.cycles("list_add"))

    def list_lru_del(self, k: KernelBuilder, memcg: IntLike, node: IntLike) -> None:
        """Take an entry off its list."""
        with k.fn("list_lru_del"), k.lock(self.locks[self._lock(memcg, node)]):
            k.work(k.cycles("list_del"))
