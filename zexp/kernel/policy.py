"""What policies implement: pool-size accounting and the flushing of statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zexp.kernel.builder import KernelBuilder
    from zexp.kernel.memcontrol import VmStats
    from zexp.kernel.zsmalloc import Pool
    from zexp.kernel.zswap import Zswap
    from zexp.program import IntLike, Value


@dataclass
class Policy(ABC):  # noqa: B024 - its kinds have the abstract methods
    """What all kinds of policies have in common.

    Subclass a kind as a dataclass. ``name`` is the Hydra choice ``policy/GROUP=NAME``; every further field is a
    parameter ``policy.GROUP.FIELD`` (give it a type, a default and ``metadata={"help": ...}``; check values in
    ``validate``). The methods *stage* code: they are called once for every place the kernel calls them from, and what
    they emit runs there. ``setup`` comes first.
    """

    name: str = "?"

    def validate(self) -> None:
        """Raise ``ValueError`` for a parameter out of range."""


@dataclass
class PoolAccounting(Policy):
    """How zswap knows the size of its pool (``policy/accounting``).

    The ``k.fn``/``k.func`` frames a method opens are what the run reports as accounting.
    """

    def setup(self, k: KernelBuilder, zswap: Zswap) -> None:
        """Declare variables. Entries may exist already: ``zswap.zsmalloc.initial_pages`` pages of them."""

    def entry_stored(self, k: KernelBuilder, zswap: Zswap) -> None:
        """At the end of zswap_store, outside its locks: a page has been compressed into the pool."""

    def entry_freed(self, k: KernelBuilder, zswap: Zswap) -> None:
        """At the end of freeing an entry; under the tree lock where the index is an rbtree."""

    def zspage_allocated(self, k: KernelBuilder, zswap: Zswap, pool: Pool, pages: Value) -> None:
        """In zsmalloc, under its lock: ``pool`` has grown by a zspage of ``pages`` pages."""

    def zspage_freed(self, k: KernelBuilder, zswap: Zswap, pool: Pool, pages: Value) -> None:
        """In zsmalloc, under its lock: ``pool`` has shrunk by a zspage of ``pages`` pages."""

    @abstractmethod
    def total_pages(self, k: KernelBuilder, zswap: Zswap) -> Value:
        """The size of the pool in pages, for the limit check of every store, the shrinker and /proc/meminfo."""


@dataclass
class FlushStrategy(Policy):
    """Whether and when statistics are flushed where the kernel is about to read them (``policy/flush``)."""

    sites: list[str] = field(
        default_factory=lambda: ["zswap_shrinker_count"],
        metadata={"help": "call sites it decides for; the others do as the kernel's flush_sites say"},
    )

    def setup(self, k: KernelBuilder, stats: VmStats) -> None:
        """Declare variables."""

    @abstractmethod
    def flush(self, k: KernelBuilder, stats: VmStats, memcg: IntLike) -> None:
        """In place of the site's own flush: bring the statistics of ``memcg``'s subtree up to date, or don't."""


@dataclass
class Policies:
    """One policy of each kind."""

    accounting: PoolAccounting
    flush: FlushStrategy

    def __iter__(self) -> Iterator[Policy]:
        return iter((self.accounting, self.flush))


KINDS: dict[str, type[Policy]] = {"accounting": PoolAccounting, "flush": FlushStrategy}
"""By configuration group."""
