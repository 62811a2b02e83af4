"""The other users of the counter: swapping in, swapping off, swapping out, reading /proc/meminfo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zexp.errors import ConfigError
from zexp.kernel import PAGE_BYTES, KernelBuilder, Mm, Owner, Policies
from zexp.program import Body
from zexp.workload.base import (
    Load,
    Region,
    ZswapWorkload,
    at_least,
    build_mm,
    emptying,
    meminfo_code,
    munmap_code,
    parse_bytes,
    place,
    store_code,
    swapin_code,
    swapin_page,
)


def _pages(key: str, size: str) -> int:
    pages = parse_bytes(f"workload.{key}", size) // PAGE_BYTES
    if pages < 1:
        raise ConfigError(f"workload.{key}", size, f"at least one page ({PAGE_BYTES} bytes)")
    return pages


def _zswapped(workload: SwapIn | SwapOff, k: KernelBuilder, policies: Policies) -> tuple[Region, Mm]:
    """The memory of the workload's processes, all of it in zswap at the start."""
    at_least("processes", workload.processes, 1)
    pages = _pages("size", workload.size) * workload.processes
    workload.check_fits(k.machine, k.config, "workload.size", workload.size, pages)
    region = Region(workload.name, workload.processes, pages)
    return region, build_mm(k, workload, policies.accounting, [(region, True)], dynamic=True)


@dataclass
class SwapIn(ZswapWorkload):
    """Processes fault all their zswapped memory back in."""

    name: str = "swapin"
    processes: int = 1
    size: str = "256MiB"
    """Memory of each process."""

    def stage(self, k: KernelBuilder, policies: Policies) -> Load:
        """Every process touches its pages in order."""
        region, mm = _zswapped(self, k, policies)
        self.spawn(
            k, swapin_code(k, mm, self), region, place(k.machine, self.placement, self.processes, "workload.processes")
        )
        return emptying(mm, region.pages, "swapin")


@dataclass
class SwapOff(ZswapWorkload):
    """``swapoff``: one thread reads every process's pages back."""

    name: str = "swapoff"
    processes: int = 8
    """Whose memory is read back; they do not run."""
    size: str = "64MiB"
    """Memory of each process."""

    def stage(self, k: KernelBuilder, policies: Policies) -> Load:
        """try_to_unuse goes from process to process."""
        region, mm = _zswapped(self, k, policies)
        each = region.pages // self.processes
        nodes = [
            k.machine.node_of[cpu] for cpu in place(k.machine, self.placement, min(self.processes, k.machine.cpus), "")
        ]
        homes = k.bookkeeping("home node", self.processes, [nodes[i % len(nodes)] for i in range(self.processes)])
        with (
            k.thread("swapoff") as thread,
            k.func("__x64_sys_swapoff"),
            k.func("try_to_unuse"),
            k.for_range(self.processes) as process,
        ):
            owner = Owner(process, k.load(homes[process]) if self.memory == "local" else None)
            with k.for_range(each) as i:
                swapin_page(k, mm, process * each + i, owner)
        k.spawn(thread, place(k.machine, self.placement, 1, "")[0])
        return emptying(mm, region.pages, "swapoff")


@dataclass
class Store(ZswapWorkload):
    """Processes are swapped out into zswap, up to its limit; a worker makes room by writing back."""

    name: str = "store"
    processes: int = 1
    size: str = "256MiB"
    """Memory of each process."""
    pool_fill_percent: float = 0.0
    """How full the pool is at the start, in percent of max_pool_percent, with pages nobody touches."""
    shrink_worker: bool = True

    def stage(self, k: KernelBuilder, policies: Policies) -> Load:
        """Every process is swapped out, page by page."""
        at_least("processes", self.processes, 1)
        if not 0 <= self.pool_fill_percent <= 100:
            raise ConfigError("workload.pool_fill_percent", self.pool_fill_percent, "allowed: 0 to 100")
        pages = _pages("size", self.size) * self.processes
        key = "workload.processes" + (" + shrink_worker" if self.shrink_worker else "")
        cpus = place(k.machine, self.placement, self.processes + self.shrink_worker, key)
        self.check_fits(k.machine, k.config, "workload.size", self.size, 0)
        region = Region("store", self.processes, pages)
        mm = build_mm(
            k, self, policies.accounting, [(region, False)], dynamic=True, pool_fill_percent=self.pool_fill_percent
        )
        self.spawn(k, store_code(k, mm, self), region, cpus)
        if self.shrink_worker:
            k.spawn(shrink_worker_code(k, mm, region), cpus.pop(0))
        return Load(pages, "store", mm.zswap.stored_pages, 0, pages)


@dataclass
class MeminfoReader(ZswapWorkload):
    """Readers of /proc/meminfo, with nothing else going on."""

    name: str = "meminfo_reader"
    unit: ClassVar[str] = "read"
    readers: int = 1
    reads: int = 1000
    """By each reader."""
    period_ns: int = 1_000_000

    def stage(self, k: KernelBuilder, policies: Policies) -> Load:
        """Every reader reads, and sleeps a period."""
        for field, low in (("readers", 1), ("reads", 1), ("period_ns", 0)):
            at_least(field, getattr(self, field), low)
        cpus = place(k.machine, self.placement, self.readers, "workload.readers")
        region = Region("stored", 1, 4096)
        self.check_fits(k.machine, k.config, "machine.memory_gib", k.machine.memory_bytes / (1 << 30), region.pages)
        mm = build_mm(k, self, policies.accounting, [(region, True)], dynamic=True)
        reader = meminfo_code(k, mm, self.period_ns, self.reads)
        for cpu in cpus:
            k.spawn(reader, cpu)
        return Load(self.readers * self.reads, "meminfo_reader")


@dataclass
class Mixed(ZswapWorkload):
    """Unmapping, swapping out, swapping in and reading /proc/meminfo, side by side on their own CPUs."""

    name: str = "mixed"
    munmap: int = 4
    """Processes that unmap; the run ends when they, and those that store and load, are done."""
    store: int = 4
    swapin: int = 4
    meminfo_readers: int = 1
    size: str = "64MiB"
    """Memory of each unmapping process."""
    store_size: str = "8MiB"
    """Memory of each process that is swapped out."""
    swapin_size: str = "16MiB"
    """Memory of each process that faults its memory in."""
    period_ns: int = 10_000
    """Pause between two reads of /proc/meminfo."""

    def stage(self, k: KernelBuilder, policies: Policies) -> Load:
        """All kinds start at once."""
        for field, low in (("munmap", 1), ("store", 0), ("swapin", 0), ("meminfo_readers", 0), ("period_ns", 0)):
            at_least(field, getattr(self, field), low)
        regions = [
            Region("munmap", self.munmap, _pages("size", self.size) * self.munmap),
            Region("swapin", self.swapin, _pages("swapin_size", self.swapin_size) * self.swapin),
            Region("store", self.store, _pages("store_size", self.store_size) * self.store),
        ]
        used = [r for r in regions if r.processes]
        self.check_fits(k.machine, k.config, "workload.size", self.size, sum(r.pages for r in used))
        threads = self.munmap + self.store + self.swapin + self.meminfo_readers
        cpus = place(k.machine, self.placement, threads, "workload.munmap + store + swapin + meminfo_readers")
        mm = build_mm(k, self, policies.accounting, [(r, r.comm != "store") for r in used], dynamic=True)
        codes = {"munmap": munmap_code, "swapin": swapin_code, "store": store_code}
        for region in used:
            self.spawn(k, codes[region.comm](k, mm, self), region, cpus)
        if self.meminfo_readers:
            reader = meminfo_code(k, mm, self.period_ns, None)
            for _ in range(self.meminfo_readers):
                k.spawn(reader, cpus.pop(0))
        return Load(regions[0].pages, "munmap")


def shrink_worker_code(k: KernelBuilder, mm: Mm, region: Region) -> Body:
    """Zswap's shrink_worker: woken at the limit, writes back the oldest entries of one cgroup after the other.

    A process's oldest entry is the lowest of its slots that still has one. As in the kernel, it gives up after 16
    cgroups in turn had nothing to write back.
    """
    shares = region.shares()
    oldest = k.bookkeeping("oldest slot", len(shares), [first for first, _, _ in shares])
    firsts = k.bookkeeping("first slot", len(shares), [first for first, _, _ in shares])
    with k.thread("kworker/shrink", daemon=True) as thread:
        zswap = mm.zswap
        with k.func("shrink_worker"), k.for_range(1 << 62):
            k.wait_event(mm.shrink_wait, lambda: k.load(zswap.reached_full) == 1)
            failures, memcg = k.local(0), k.local(0)
            with k.while_(lambda: (failures < 16) & (zswap.zswap_total_pages(k) > zswap.accept_pages)):
                slot = k.local(k.load(oldest[memcg]))
                end = k.load(firsts[memcg]) + k.load(mm.reclaimed[memcg])
                with k.while_(lambda: slot < end):
                    with k.if_(k.load(zswap.zsmalloc.zspage_of[slot]) >= 0):
                        k.break_()
                    slot.set(slot + 1)
                k.store(oldest[memcg], slot)
                with k.if_(slot < end):
                    home = 0 if k.machine.nodes == 1 else slot % k.machine.nodes
                    with k.fn("shrink_memcg"):
                        zswap.zswap_writeback_entry(k, slot, Owner(memcg, home))
                    failures.set(0)
                with k.else_():
                    k.call("shrink_memcg")
                    failures.set(failures + 1)
                memcg.set((memcg + 1) % len(shares))
            with k.if_(zswap.zswap_total_pages(k) <= zswap.accept_pages):
                k.store(zswap.reached_full, 0)
            with k.else_():
                k.sleep_ns(1_000_000)
    return thread
