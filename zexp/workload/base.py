"""What a workload is, and what they share."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from zexp.errors import ConfigError
from zexp.kernel import PAGE_BYTES, KernelBuilder, KernelConfig, Mm, Owner, Policies, PoolAccounting
from zexp.program import Body, Ref, Value

if TYPE_CHECKING:
    from zexp.machine import Machine
    from zexp.result import RunResult

UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
}


def parse_bytes(key: str, text: str) -> int:
    """``24GiB`` -> bytes; raises ``ConfigError`` naming ``key``."""
    match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([KMGT]i?)?B?\s*", str(text))
    if match is None:
        raise ConfigError(key, text, "a size like 24GiB, 512MiB or 4096")
    size = round(float(match[1]) * UNITS[match[2] or ""])
    if size <= 0:
        raise ConfigError(key, text, "a size above 0, like 24GiB")
    return size


def show_bytes(size: float) -> str:
    """A size for a person: 24 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def place(machine: Machine, how: str, count: int, key: str) -> list[int]:
    """CPUs for ``count`` threads, whole cores before second hyperthreads.

    ``spread`` deals them out over the L3 domains in turn; ``pack`` fills one L3 domain after the other.
    """
    if count > machine.cpus:
        raise ConfigError(key, count, f"{machine.name} has {machine.cpus} CPUs, and each thread needs one")
    by_l3: dict[int, list[int]] = {}
    seen: dict[int, int] = {}
    order = []
    for cpu in range(machine.cpus):
        sibling = seen.get(int(machine.core_of[cpu]), 0)
        seen[int(machine.core_of[cpu])] = sibling + 1
        rank = len(by_l3.setdefault(int(machine.l3_of[cpu]), []))
        by_l3[int(machine.l3_of[cpu])].append(cpu)
        order.append((sibling, int(machine.l3_of[cpu]), rank, cpu))
    if how == "spread":
        order.sort(key=lambda o: (o[0], o[2], o[1]))
    elif how == "pack":
        order.sort()
    else:
        raise ConfigError("workload.placement", how, "allowed: pack, spread")
    return [cpu for *_, cpu in order[:count]]


@dataclass(frozen=True)
class Headline:
    """One of the metrics by which runs of a workload are compared: a column of the table that ends a sweep."""

    title: str
    metric: str
    digits: int
    scale: float = 1.0


@dataclass
class Load:
    """What a staged workload tells the experiment about itself."""

    pages: int
    """Pages handled by ``comm``; the base of per-page figures."""
    comm: str
    """The threads whose profile is compared."""
    watch: Ref | None = None
    """A variable that shows how far the run is: it goes from ``watch_from`` to ``watch_to``."""
    watch_from: int = 0
    watch_to: int = 0
    derive: Callable[[RunResult], Mapping[str, float]] = field(default=lambda result: {})
    """Metrics that follow from the result, beside those every run has."""


def emptying(mm: Mm, pages: int, comm: str) -> Load:
    """The load of a workload that ends when its ``pages`` have left zswap."""
    return Load(pages, comm, mm.zswap.stored_pages, pages, 0)


@dataclass
class Region:
    """The memory of the processes of a workload: neighbouring runs of slots, one a process."""

    comm: str
    processes: int
    pages: int
    """In all."""
    first: int = 0
    memcg: int = 0

    def shares(self) -> list[tuple[int, int, int]]:
        """``(first slot, pages, memcg)`` of each process; the first ones take what does not divide evenly."""
        shares = []
        start = self.first
        for i in range(self.processes):
            pages = self.pages // self.processes + (i < self.pages % self.processes)
            shares.append((start, pages, self.memcg + i))
            start += pages
        return shares


@dataclass
class Workload(ABC):
    """What happens to the machine. Fields are Hydra's ``workload.FIELD``."""

    name: str = "?"
    unit: ClassVar[str] = "page"
    """What its figures are per."""
    governed_by: ClassVar[str] = "accounting"
    """The kind of policy it is about."""
    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline("time ms", "time/total_ms", 1),
        Headline("ns/page", "time/cpu_ns_per_page", 1),
        Headline("accounting %", "accounting/self_pct", 2),
        Headline("lock wait ns/page", "lock/wait_ns_per_page", 1),
        Headline("transfers /page", "line/transfers_per_page", 3),
        Headline("Mpages/s", "throughput/pages_per_s", 3, 1e-6),
    )

    @abstractmethod
    def stage(self, k: KernelBuilder, policies: Policies) -> Load:
        """Declare the memory, emit the code and spawn the threads."""


@dataclass
class PlacedWorkload(Workload):
    """A workload whose threads may run on any CPUs."""

    placement: str = "spread"
    """Which: ``spread`` over the L3 domains in turn, or ``pack`` one L3 full after the other."""


@dataclass
class ZswapWorkload(PlacedWorkload):
    """A workload whose processes have memory that goes through zswap."""

    compression_ratio: float = 3.0
    """Uncompressed over compressed size."""
    compression_spread: float = 0.5
    """Compressed sizes are spread evenly over +- this part of their mean."""
    memory: str = "local"
    """Where the processes' pages lie: on their CPU's node (``local``), or over all nodes (``interleave``)."""

    def object_bytes(self) -> float:
        """Mean size of a compressed page."""
        if not 1 <= self.compression_ratio <= 128:
            raise ConfigError("workload.compression_ratio", self.compression_ratio, "allowed: 1 to 128")
        if not 0 <= self.compression_spread <= 1:
            raise ConfigError("workload.compression_spread", self.compression_spread, "allowed: 0 to 1")
        return PAGE_BYTES / self.compression_ratio

    def check_fits(self, machine: Machine, kernel: KernelConfig, key: str, value: object, pages: int) -> None:
        """The compressed pages must fit into zswap's share of the machine's memory."""
        if self.memory not in ("local", "interleave"):
            raise ConfigError("workload.memory", self.memory, "allowed: interleave, local")
        pool = pages * self.object_bytes()
        limit = machine.memory_bytes * kernel.max_pool_percent // 100
        if pool > limit:
            raise ConfigError(
                key,
                value,
                f"{show_bytes(pages * PAGE_BYTES)} of zswapped memory needs a pool of {show_bytes(pool)}; "
                f"{machine.name} lets zswap use {show_bytes(limit)} "
                f"({kernel.max_pool_percent} % of {show_bytes(machine.memory_bytes)})",
            )

    # ---- pieces that several workloads are made of ---------------------------------------------------------------

    def owner(self, k: KernelBuilder, thread: Body) -> Owner:
        """The memory of the process being staged."""
        return Owner(thread.arg("memcg"), k.node if self.memory == "local" else None)

    def spawn(self, k: KernelBuilder, thread: Body, region: Region, cpus: list[int]) -> None:
        """One thread a process of the region, on the next CPUs of the list."""
        for first, pages, memcg in region.shares():
            k.spawn(thread, cpus.pop(0), first=first, pages=pages, memcg=memcg)


def at_least(key: str, value: int, low: int) -> None:
    """Raise ``ConfigError`` unless ``value`` is ``low`` or more."""
    if value < low:
        raise ConfigError(f"workload.{key}", value, f"a whole number from {low} up")


def between(key: str, value: float, low: float, high: float) -> None:
    """Raise ``ConfigError`` unless ``value`` is in a range."""
    if not low <= value <= high:
        raise ConfigError(f"workload.{key}", value, f"allowed: {low:g} to {high:g}")


def build_mm(
    k: KernelBuilder,
    workload: ZswapWorkload,
    accounting: PoolAccounting,
    regions: list[tuple[Region, bool]],
    *,
    dynamic: bool,
    pool_fill_percent: float = 0.0,
) -> Mm:
    """Lay regions out one after the other; ``(region, stored)``: whether its pages are in zswap at time 0."""
    limit_pages, _ = k.config.pool_limits(k.machine.memory_bytes // PAGE_BYTES)
    stored: list[np.ndarray[tuple[int], np.dtype[np.bool_]]] = []
    first = memcg = stores = 0
    for region, is_stored in regions:
        region.first, region.memcg = first, memcg
        first += region.pages
        memcg += region.processes
        stores += 0 if is_stored else region.pages
        stored.append(np.full(region.pages, is_stored))
    return Mm(
        k,
        accounting,
        stored=np.concatenate(stored),
        memcgs=memcg,
        object_bytes=workload.object_bytes(),
        object_spread=workload.compression_spread,
        stores=stores,
        other_pages=round(limit_pages * pool_fill_percent / 100),
        dynamic=dynamic,
    )


def munmap_code(k: KernelBuilder, mm: Mm, workload: ZswapWorkload) -> Body:
    """A process unmaps its memory, all of which lies in zswap."""
    with k.thread("munmap") as thread:
        first, pages = thread.arg("first"), thread.arg("pages")
        with k.func("__x64_sys_munmap"), k.func("unmap_page_range"):
            mm.swap.zap_pte_range(k, first, pages, workload.owner(k, thread))
    return thread


def swapin_page(k: KernelBuilder, mm: Mm, slot: Value, owner: Owner) -> None:
    """A fault on a swapped-out page: load it, free its slot, map it (mm/memory.c do_swap_page)."""
    with k.fn("do_swap_page"):
        mm.zswap.zswap_load(k, slot, owner)
        mm.swap.free_swap_slot(k, slot, owner)


def swapin_code(k: KernelBuilder, mm: Mm, workload: ZswapWorkload) -> Body:
    """A process touches all its swapped-out pages once."""
    with k.thread("swapin") as thread:
        first, pages = thread.arg("first"), thread.arg("pages")
        owner = workload.owner(k, thread)
        with k.func("asm_exc_page_fault"), k.for_range(pages) as i:
            began = k.now_ns()
            swapin_page(k, mm, first + i, owner)
            k.observe("swapin_ns", k.now_ns() - began)
    return thread


def store_code(k: KernelBuilder, mm: Mm, workload: ZswapWorkload) -> Body:
    """Reclaim swaps a process's pages out; what zswap does not take goes to the swap device."""
    with k.thread("store") as thread:
        first, pages = thread.arg("first"), thread.arg("pages")
        owner = workload.owner(k, thread)
        with k.func("shrink_folio_list"), k.for_range(pages) as i, k.fn("swap_writepage"):
            mm.memcontrol.mem_cgroup_charge_swap(k, owner.memcg)
            began = k.now_ns()
            with k.if_(mm.zswap.zswap_store(k, first + i, owner) == 0):
                k.call("__swap_writepage")
                k.count("swap_writepage_to_device")
            k.observe("store_ns", k.now_ns() - began)
            k.store(mm.reclaimed[owner.memcg], i + 1)
    return thread


def meminfo_code(k: KernelBuilder, mm: Mm, period_ns: int, reads: int | None) -> Body:
    """Read /proc/meminfo every ``period_ns``; ``reads`` times, or (None) as long as the others run."""
    with k.thread("meminfo_reader", daemon=reads is None) as thread, k.func("__x64_sys_read"):
        forever = 1 << 62
        with k.for_range(reads or forever):
            began = k.now_ns()
            with k.fn("meminfo_proc_show"):
                pages = mm.zswap.zswap_total_pages(k)
            k.observe("meminfo_read_ns", k.now_ns() - began)
            k.observe("meminfo_zswap_pages", pages, unit="pages")
            k.count("meminfo_reads")
            k.sleep_ns(period_ns)
    return thread
