"""Sum every zpool whenever an entry enters or leaves (Linux 6.1 to 6.9)."""

from __future__ import annotations

from dataclasses import dataclass, field

from zexp.kernel import KernelBuilder, PoolAccounting, Zswap
from zexp.program import Value


@dataclass
class Eager(PoolAccounting):
    """Walk all zpools at every store and every free, and keep the sum in one global variable.

    mm/zswap.c:290 of 6.8: the walk is under RCU only; the plain store of the sum goes to a line all CPUs write.
    """

    name: str = "eager"
    own_line: bool = field(
        default=True,
        metadata={"help": "zswap_pool_total_size has a cache line of its own; false: it shares zswap_stored_pages's"},
    )

    def setup(self, k: KernelBuilder, zswap: Zswap) -> None:
        """One global, correct at the start."""
        beside = None if self.own_line else zswap.stored_pages
        self.total = k.var("zswap_pool_total_size", init=zswap.zsmalloc.initial_pages, beside=beside)

    def entry_stored(self, k: KernelBuilder, zswap: Zswap) -> None:
        """zswap_store ends with an update."""
        self._update(k, zswap)

    def entry_freed(self, k: KernelBuilder, zswap: Zswap) -> None:
        """zswap_free_entry ends with an update, under the tree lock."""
        self._update(k, zswap)

    def _update(self, k: KernelBuilder, zswap: Zswap) -> None:
        with k.func("zswap_update_total_size"):
            k.store(self.total, zswap.zsmalloc.total_size())

    def total_pages(self, k: KernelBuilder, zswap: Zswap) -> Value:
        """Read the global."""
        with k.func("zswap_total_pages"):
            return k.load(self.total)
