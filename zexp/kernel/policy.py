"""What a pool-size accounting policy implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zexp.kernel.builder import KernelBuilder
    from zexp.kernel.zsmalloc import Pool
    from zexp.kernel.zswap import Zswap
    from zexp.program import Value


@dataclass
class PoolAccounting(ABC):
    """How zswap knows the size of its pool.

    Subclass it as a dataclass. ``name`` is the Hydra choice ``policy/accounting=NAME``; every further field is a
    parameter ``policy.accounting.FIELD`` (give it a type, a default and ``metadata={"help": ...}``; check values in
    ``validate``). The methods *stage* code: they are called once for every place the kernel calls them from, and what
    they emit runs there. ``setup`` comes first. The ``k.fn``/``k.func`` frames a method opens are what the run reports
    as accounting.
    """

    name: str = "?"

    def validate(self) -> None:
        """Raise ``ValueError`` for a parameter out of range."""

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
