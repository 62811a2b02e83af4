"""A third-party accounting policy: per-CPU counters, folded into a shared atomic in batches."""

from __future__ import annotations

from dataclasses import dataclass, field

from zexp.hookspecs import hookimpl
from zexp.kernel import KernelBuilder, Pool, PoolAccounting, Zswap
from zexp.program import Value


@hookimpl
def zexp_accounting_policies() -> list[type[PoolAccounting]]:
    """What this distribution brings."""
    return [PerCpuBatched]


@dataclass
class PerCpuBatched(PoolAccounting):
    """Count pages on the CPU that makes or frees a zspage; tell the others every ``batch`` pages.

    The size it reports is off by at most ``CPUs x (batch - 1)`` pages: what CPUs have not told yet.
    """

    name: str = "percpu_batched"
    batch: int = field(
        default=64,
        metadata={"help": "pages a CPU may be ahead or behind before it adds them to the shared counter; from 1 up"},
    )

    def validate(self) -> None:
        """A batch is at least one page."""
        if self.batch < 1:
            raise ValueError(f"batch={self.batch}: a whole number of pages from 1 up")

    def setup(self, k: KernelBuilder, zswap: Zswap) -> None:
        """The shared atomic, correct at the start, and every CPU's difference to it."""
        self.total = k.var("zswap_total_pages", init=zswap.zsmalloc.initial_pages)
        self.delta = k.per_cpu("zswap_total_pages.delta")

    def zspage_allocated(self, k: KernelBuilder, zswap: Zswap, pool: Pool, pages: Value) -> None:
        """Count up."""
        self._add(k, pages)

    def zspage_freed(self, k: KernelBuilder, zswap: Zswap, pool: Pool, pages: Value) -> None:
        """Count down."""
        self._add(k, -pages)

    def _add(self, k: KernelBuilder, pages: Value) -> None:
        """percpu_counter_add_batch(). zsmalloc's spinlock keeps others off this CPU between load and store."""
        with k.fn("zswap_pages_add_batch", instructions=12):
            delta = k.local(k.load(self.delta.mine) + pages)
            with k.if_((delta >= self.batch) | (delta <= -self.batch)):
                with k.fn("zswap_pages_fold", instructions=6):
                    k.atomic_add(self.total, delta)
                delta.set(0)
            k.store(self.delta.mine, delta)

    def total_pages(self, k: KernelBuilder, zswap: Zswap) -> Value:
        """Read the shared atomic only."""
        with k.func("zswap_total_pages"):
            return k.load(self.total)
