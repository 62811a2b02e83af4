"""Sum the zpools when somebody asks (Linux 6.10 on, commit 91cdcd8d624b)."""

from __future__ import annotations

from dataclasses import dataclass

from zexp.kernel import KernelBuilder, PoolAccounting, Zswap
from zexp.program import Value


@dataclass
class Lazy(PoolAccounting):
    """Do nothing when entries come and go; walk all zpools for the limit check of each store, and for readers."""

    name: str = "lazy"

    def total_pages(self, k: KernelBuilder, zswap: Zswap) -> Value:
        """zswap_total_pages(): the sum, on demand."""
        with k.func("zswap_total_pages"):
            return zswap.zsmalloc.total_size()
