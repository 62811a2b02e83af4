"""What differs between kernel versions: typed fields, filled from ``conf/kernel/*.yaml``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from zexp.errors import ConfigError

TREE_64MIB_SLOTS = 16384
"""Slots of a zswap tree where the index is split (SWAP_ADDRESS_SPACE_PAGES)."""


@dataclass
class Cost:
    """What one call of a kernel function costs beyond the shared lines and locks it touches."""

    instructions: float = 0.0
    stall_cycles: float = 0.0
    """Cycles the instructions do not explain: mispredicted or guarded branches, cache misses not modelled as lines."""
    source: str = ""


@dataclass
class Compressor:
    """Cost of the compression algorithm for one 4 KiB page."""

    name: str = "lz4"
    compress_cycles: float = 9300.0
    decompress_cycles: float = 2700.0
    source: str = ""


@dataclass
class KernelConfig:
    """One kernel. Field values by version: ``kernel-facts`` sources are named in the YAML files."""

    name: str = "?"
    description: str = ""
    zpools: int = 1
    """Zpools of a zswap pool (ZSWAP_NR_ZPOOLS)."""
    zpool_layer: bool = True
    """False from 7.x: zswap calls zsmalloc directly."""
    zswap_index: str = "xarray"
    """``rbtree`` (to 6.11) or ``xarray``."""
    zswap_tree: str = "64MiB"
    """One index and lock per swap ``device`` (to 6.8) or per ``64MiB`` of it."""
    swap_slot_cache: int = 64
    """Slots a CPU collects before it frees them in one go under si->lock; 0: none."""
    swap_pte_batch: int = 1
    """Neighbouring swap entries munmap frees in one call."""
    invalidate_under: str = "none"
    """Locks held when a freed slot's zswap entry is dropped: ``si_lock`` (slot cache, to 6.8), ``none`` (6.12), or
    ``cluster_lock`` (7.x, where si->lock is not taken at all)."""
    pool_ref: str = "percpu"
    """How an entry holds its zswap pool: ``kref``, one shared atomic, or ``percpu`` (6.10)."""
    swap_cache: str = "xarray"
    """``xarray``: freeing a slot also clears its shadow there; ``table`` (7.x): nothing to do."""
    cluster_slots: int = 512
    zsmalloc_lock: str = "pool"
    """What zs_free takes: the ``pool`` lock; ``migrate_lock`` for reading, then the class's; or the ``class`` lock."""
    zsmalloc_chain: int = 8
    """Largest number of pages in a zspage."""
    list_lru_lock: str = "node"
    """One list_lru lock per ``node`` (to 6.12), or per ``memcg`` and node."""
    exclusive_loads: bool = True
    """zswap_load frees the entry at once."""
    rstat_trees: str = "one"
    """``one`` for all statistics, or one ``per_subsystem`` (6.16 on): then memory.stat, cpu.stat and io.stat each flush
    their own, under a lock of their own."""
    rstat_lock: str = "spinlock"
    """``spinlock``, or ``mutex`` with optimistic spinning (never merged; run in production by Cloudflare)."""
    rstat_lock_drop: str = "contended"
    """When a flush drops its lock between two CPUs: ``never`` (memcg flushes of 6.1), if the scheduler wants the CPU
    (``resched``), if somebody waits for it (``contended``, preemptible kernels), or after ``every_cpu`` (6.15 on, and
    stable backports)."""
    resched_ns: int = 3_000_000
    """How long a flush runs until the scheduler wants its CPU; a time slice, assumed."""
    flush_scope: str = "subtree"
    """What mem_cgroup_flush_stats flushes: the whole ``tree`` (to 6.7) or the cgroup's ``subtree``."""
    flush_threshold: str = "memcg"
    """Whose updates must exceed 64 a CPU before a flush is worth it: ``global`` (to 6.7) or the ``memcg``'s."""
    concurrent_flush: str = "serialise"
    """What a second flusher does: queue (``serialise``) or ``skip``, with stale statistics (to 6.7)."""
    flush_sites: dict[str, str] = field(default_factory=dict)
    """How each call site flushes: ``sync``, ``ratelimited`` or ``forced``, without a threshold."""
    lru_gen: bool = False
    """Multi-generational LRU (lru_gen_enabled) instead of active and inactive lists."""
    swappiness: int = 60
    watermark_scale_factor: int = 10
    """Distance of the watermarks in 1/10,000 of a node's memory."""
    min_free_kbytes: int = 0
    """0: as the kernel chooses it."""
    zswap_shrinker: str = "off"
    """``none`` (to 6.7), or whether shrinker_enabled is ``on`` or ``off``."""
    zswap_shrinker_protection: str = "second_chance"
    """What the shrinker spares: as many entries as are ``protected`` (6.8), or each once, and one for each page that
    had to come back from the disk (``second_chance``, 6.11)."""
    shrink_worker_batch: int = 1
    """Entries the shrink worker walks in each memcg and node before it goes on to the next."""
    max_pool_percent: int = 20
    accept_threshold_percent: int = 90
    cycles_per_instruction: float = 0.6
    compressor: Compressor = field(default_factory=Compressor)
    symbols: dict[str, str] = field(default_factory=dict)
    """This version's name of a function, where it differs from the model's."""
    costs: dict[str, Cost] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def pool_limits(self, memory_pages: int) -> tuple[int, int]:
        """Pages zswap's pool may have on a machine, and how far it must shrink, once full, to be filled again."""
        most = memory_pages * self.max_pool_percent // 100
        return most, most * self.accept_threshold_percent // 100

    def validate(self) -> None:
        """Raise ``ConfigError`` for a field out of range."""
        ranges: list[tuple[str, Any, float, float]] = [
            ("zpools", self.zpools, 1, 4096),
            ("swap_slot_cache", self.swap_slot_cache, 0, 4096),
            ("swap_pte_batch", self.swap_pte_batch, 1, 512),
            ("cluster_slots", self.cluster_slots, 1, 1 << 20),
            ("zsmalloc_chain", self.zsmalloc_chain, 1, 64),
            ("swappiness", self.swappiness, 0, 200),
            ("watermark_scale_factor", self.watermark_scale_factor, 1, 3000),
            ("min_free_kbytes", self.min_free_kbytes, 0, 1 << 30),
            ("shrink_worker_batch", self.shrink_worker_batch, 1, 1 << 20),
            ("resched_ns", self.resched_ns, 1, 10**12),
            ("max_pool_percent", self.max_pool_percent, 1, 100),
            ("accept_threshold_percent", self.accept_threshold_percent, 1, 100),
            ("cycles_per_instruction", self.cycles_per_instruction, 0.01, 100),
            ("compressor.compress_cycles", self.compressor.compress_cycles, 0, 1e9),
            ("compressor.decompress_cycles", self.compressor.decompress_cycles, 0, 1e9),
        ]
        for key, value, low, high in ranges:
            if not low <= value <= high:
                raise ConfigError(f"kernel.{key}", value, f"allowed: {low} to {high}")
        choices = [
            ("zswap_index", self.zswap_index, ("rbtree", "xarray")),
            ("zswap_tree", self.zswap_tree, ("device", "64MiB")),
            ("invalidate_under", self.invalidate_under, ("si_lock", "none", "cluster_lock")),
            ("pool_ref", self.pool_ref, ("kref", "percpu")),
            ("swap_cache", self.swap_cache, ("xarray", "table")),
            ("zsmalloc_lock", self.zsmalloc_lock, ("pool", "migrate_lock", "class")),
            ("list_lru_lock", self.list_lru_lock, ("node", "memcg")),
            ("rstat_trees", self.rstat_trees, ("one", "per_subsystem")),
            ("rstat_lock", self.rstat_lock, ("spinlock", "mutex")),
            ("rstat_lock_drop", self.rstat_lock_drop, ("never", "resched", "contended", "every_cpu")),
            ("zswap_shrinker", self.zswap_shrinker, ("none", "off", "on")),
            ("zswap_shrinker_protection", self.zswap_shrinker_protection, ("protected", "second_chance")),
            ("flush_scope", self.flush_scope, ("tree", "subtree")),
            ("flush_threshold", self.flush_threshold, ("global", "memcg")),
            ("concurrent_flush", self.concurrent_flush, ("serialise", "skip")),
            *(
                (f"flush_sites.{site}", how, ("sync", "ratelimited", "forced"))
                for site, how in self.flush_sites.items()
            ),
        ]
        for key, choice, allowed in choices:
            if choice not in allowed:
                raise ConfigError(f"kernel.{key}", choice, f"allowed: {', '.join(allowed)}")
        for symbol, cost in self.costs.items():
            if cost.instructions < 0 or cost.stall_cycles < 0:
                raise ConfigError(f"kernel.costs.{symbol}", cost, "instructions and stall_cycles must not be negative")
