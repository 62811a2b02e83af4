"""One atomic that the allocator keeps (considered and not taken in the discussion of commit 91cdcd8d624b)."""

from __future__ import annotations

from dataclasses import dataclass

from zexp.kernel import KernelBuilder, Pool, PoolAccounting, Zswap
from zexp.program import Value


@dataclass
class SharedAtomic(PoolAccounting):
    """zsmalloc adds to one global atomic whenever a zspage comes or goes, beside its own count per pool."""

    name: str = "shared_atomic"

    def setup(self, k: KernelBuilder, zswap: Zswap) -> None:
        """One atomic on its own line."""
        self.total = k.var("zswap_total_pages", init=zswap.zsmalloc.initial_pages)

    def zspage_allocated(self, k: KernelBuilder, zswap: Zswap, pool: Pool, pages: Value) -> None:
        """One locked add a zspage."""
        with k.fn("zswap_pages_add", instructions=4):
            k.atomic_add(self.total, pages)

    def zspage_freed(self, k: KernelBuilder, zswap: Zswap, pool: Pool, pages: Value) -> None:
        """One locked add a zspage."""
        with k.fn("zswap_pages_add", instructions=4):
            k.atomic_add(self.total, -pages)

    def total_pages(self, k: KernelBuilder, zswap: Zswap) -> Value:
        """Read the atomic."""
        with k.func("zswap_total_pages"):
            return k.load(self.total)
