"""The reclaim storm: every node allocates, every kswapd walks all cgroups, and zswap's shrinker asks for statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from zexp.errors import ConfigError
from zexp.kernel import PAGE_BYTES, KernelBuilder, Policies
from zexp.kernel.cgroup import CgroupTree, Floats, TreeConfig, build_tree
from zexp.kernel.lruvec import Contents, Lruvecs
from zexp.kernel.memcontrol import VmStats
from zexp.kernel.page_alloc import Zones
from zexp.kernel.psi import Psi
from zexp.kernel.rstat import RstatTrees
from zexp.kernel.shrinker import Shrinkers
from zexp.kernel.vmscan import VmScan
from zexp.kernel.zswap_shrinker import ZswapShrinker
from zexp.workload.base import Headline, Load, Workload, between, show_bytes
from zexp.workload.cgroup_folder import CgroupFolder, read_cgroup_folder
from zexp.workload.reclaim_metrics import reclaim_metrics
from zexp.workload.stat_readers import stat_reader_code

if TYPE_CHECKING:
    from zexp.machine import Machine
    from zexp.program import Body
    from zexp.result import RunResult

PAGES_PER_MIB = (1 << 20) // PAGE_BYTES
SAMPLE_NS = 500_000_000
"""How often the pool and free memory are recorded."""
MAX_DURATION_S = 1000


@dataclass
class Reclaim(Workload):
    """Memory is short on every node: applications allocate, kswapds reclaim, zswap takes and writes back."""

    name: str = "reclaim"
    unit: ClassVar[str] = "second"
    governed_by: ClassVar[str] = "flush"
    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline("contended /s", "rstat/contended_per_s", 1),
        Headline("wait s/s", "rstat/wait_s_per_s", 4),
        Headline("kswapd CPUs", "kswapd/cpu_s_per_s", 3),
        Headline("flush % of kswapd", "kswapd/flush_in_count_pct", 1),
        Headline("PSI some %", "psi/some_pct", 2),
        Headline("stats age ms", "staleness/age_ms", 0),
        Headline("flushes /s", "rstat/flushes_per_s", 1),
        Headline("osq_lock % of kernel", "kernel/osq_lock_pct", 2),
        Headline("estimate's error %", "staleness/error_pct", 2),
        Headline("written back /s", "zswap/written_back_per_s", 0),
        Headline("disk swap-ins /s", "swapin/disk_per_s", 0),
        Headline("pool % of limit", "pool/max_pct_of_limit", 1),
    )
    duration_s: float = 60.0
    """Simulated time."""
    tree: TreeConfig = field(default_factory=lambda: TreeConfig(cpus_per_leaf=3, updates_per_s=3e6))
    folder: str = ""
    """Take the tree and what is in memory from a copied /sys/fs/cgroup; on the command line also ``from=DIR``."""
    allocated_mib_per_s: float = 64.0
    """On each node, mostly for files that are read once."""
    allocation_kib: float = 256.0
    """Mean size of one burst of allocations."""
    bound: bool = False
    """Allocations stay on their node, as under a memory policy; else the next node with memory takes them."""
    lru_pct: float = 85.0
    """Of each node's memory: pages on LRU lists, apart from the zswap pool."""
    unevictable_pct: float = 0.0
    """Of those: pages that can never be reclaimed."""
    anon_pct: float = 40.0
    """Of the rest: anonymous pages."""
    zswapped_pct: float = 30.0
    """Of all anonymous memory: in zswap at the start."""
    compression_ratio: float = 3.0
    ratio_swing: float = 0.2
    """Compressed sizes of a cgroup's new pages are this part larger, then smaller, by turns."""
    swing_period_s: float = 4.0
    hot_pct: float = 10.0
    """Of swapped-out pages: those that will be touched soon."""
    hot_per_s: float = 0.1
    """How often each hot swapped-out page is touched."""
    cold_per_s: float = 0.0005
    reclaimed_pct: float = 50.0
    """Of the pages reclaim scans: those it can take."""
    refault_pct: float = 1.0
    """Of file pages reclaimed: those that were still needed, and are read from disk again."""
    app_kernel_cpus: float = 30.0
    """CPU seconds a second that applications spend in the kernel for other things: with the simulated threads', the
    base of whole-machine shares."""
    busy_pct: float = 61.0
    """How long each CPU is not idle, for PSI."""
    swapin_ns: int = 6_000
    """Stall of a fault on a page in zswap."""
    disk_swapin_ns: int = 100_000
    """Stall of a fault on a page on disk."""
    readers: int = 1
    """Monitoring agents that read memory.stat, cpu.stat and io.stat of all cgroups."""
    reader_period_s: float = 53.0
    flusher_late_ns: int = 0
    """How late the periodic flusher is, each time."""

    def validate(self) -> None:
        """Raise ``ConfigError`` for a value out of range."""
        for name, lowest, highest in (
            ("duration_s", 0.001, MAX_DURATION_S),
            ("allocated_mib_per_s", 0.001, 1e6),
            ("allocation_kib", 4, 1 << 20),
            ("lru_pct", 1, 95),
            ("unevictable_pct", 0, 100),
            ("anon_pct", 0, 100),
            ("zswapped_pct", 0, 99),
            ("compression_ratio", 1, 128),
            ("ratio_swing", 0, 0.9),
            ("swing_period_s", 0.001, MAX_DURATION_S),
            ("hot_pct", 0, 100),
            ("hot_per_s", 0, 1000),
            ("cold_per_s", 0, 1000),
            ("reclaimed_pct", 0, 100),
            ("refault_pct", 0, 100),
            ("app_kernel_cpus", 0, 1 << 20),
            ("busy_pct", 0.1, 100),
            ("reader_period_s", 0.001, 1e6),
            ("readers", 0, 4096),
            ("swapin_ns", 0, 1e9),
            ("disk_swapin_ns", 0, 1e9),
            ("flusher_late_ns", 0, 1e12),
        ):
            between(name, getattr(self, name), lowest, highest)

    def stage(self, k: KernelBuilder, policies: Policies) -> Load:
        """A kswapd and an application a node, the workers of the kernel, and the agents."""
        self.validate()
        horizon_ns = round(self.duration_s * 1e9)
        k.run_until(horizon_ns)
        tree, contents, measured = self._memory(k.machine)
        trees = RstatTrees(k, tree)
        stats = VmStats(k, trees.memory, policies.flush)
        zones = Zones(k, self.bound)
        psi = Psi(k, tree, self.busy_pct, horizon_ns)
        lruvecs = Lruvecs(k, tree, contents, zones, stats, psi)
        zswap = ZswapShrinker(k, lruvecs, stats)
        shrinkers = Shrinkers(k, lruvecs, zswap)
        vmscan = VmScan(k, zones, lruvecs, shrinkers, zswap, stats, psi, self.reclaimed_pct)
        cpus = _Cpus(k.machine)
        kswapd, app = vmscan.kswapd(k), self._app(k, zones, vmscan)
        for node in np.flatnonzero(k.machine.node_memory_bytes).tolist():
            k.spawn(kswapd, cpus.of_node(node, "the kswapd of each node"), node=node)
            k.spawn(app, cpus.of_node(node, "the applications of each node"), node=node)
        k.spawn(stats.flush_memcg_stats_dwork(k, self.flusher_late_ns), cpus.any("the periodic flusher"))
        k.spawn(zswap.shrink_worker(k), cpus.any("zswap's shrink worker"))
        k.spawn(psi.psi_avgs_work(k), cpus.any("the PSI worker"))
        k.spawn(self._sampler(k, zones, lruvecs, zswap, horizon_ns), cpus.any("the sampler"))
        if self.readers:
            period_ns = round(self.reader_period_s * 1e9)
            everyone = list(range(len(tree)))
            reader = stat_reader_code(
                k, stats, trees, everyone, ["memory.stat", "cpu.stat", "io.stat"], period_ns, None, daemon=True
            )
            for i in range(self.readers):
                start_ns = min(period_ns, horizon_ns) * (i + 1) // (self.readers + 1)
                k.spawn(reader, cpus.any("workload.readers"), start_ns=start_ns)

        def derive(result: RunResult) -> Mapping[str, float]:
            return {**reclaim_metrics(result, k.machine.cpus, self.app_kernel_cpus, zswap.max_pages), **measured}

        return Load(max(round(self.duration_s), 1), "kswapd", derive=derive)

    def _memory(self, machine: Machine) -> tuple[CgroupTree, Contents, Mapping[str, float]]:
        """The tree, what its cgroups have in memory at the start, and what was measured where they come from."""
        if self.folder:
            found = read_cgroup_folder(Path(self.folder), "workload.folder")
            tree = found.tree(self.tree.updates_per_s, self.tree.cpus_per_leaf)
            measured = {
                "measured/cgroups_missing": float(found.missing + found.skipped),
                "measured/cgroups_dying": float(found.dying),
            }
            if found.psi_some_avg300_pct is not None:
                measured["measured/psi/some_pct"] = found.psi_some_avg300_pct
            return tree, self._contents(*self._copied(machine, found)), measured
        tree = build_tree(self.tree)
        leaf = tree.end == np.arange(1, len(tree) + 1)
        weight = np.where(leaf, tree.updates_per_s, 0.0)
        weight /= weight.sum()
        pages = machine.memory_bytes / PAGE_BYTES * self.lru_pct / 100 * (1 - self.unevictable_pct / 100)
        anon = pages * self.anon_pct / 100
        zswapped = anon * self.zswapped_pct / (100 - self.zswapped_pct)
        pool_bytes = zswapped * PAGE_BYTES / self.compression_ratio
        left = machine.memory_bytes * (0.97 - self.lru_pct / 100)
        if pool_bytes > left:
            raise ConfigError(
                "workload.zswapped_pct",
                self.zswapped_pct,
                f"less: the pool would be {show_bytes(pool_bytes)}, and workload.lru_pct={self.lru_pct:g} leaves "
                f"{show_bytes(max(left, 0))} of {machine.name}'s memory",
            )
        return tree, self._contents(anon * weight, (pages - anon) * weight, zswapped * weight, None), {}

    def _copied(self, machine: Machine, found: CgroupFolder) -> tuple[Floats, Floats, Floats, Floats]:
        """A copied machine's memory, if this machine can hold it."""
        evictable = 1 - self.unevictable_pct / 100
        anon: Floats = np.float64(evictable) * found.anon_pages.astype(np.float64)
        file: Floats = np.float64(evictable) * found.file_pages.astype(np.float64)
        resident_bytes = float((found.anon_pages + found.file_pages).sum() * PAGE_BYTES + found.zswap_bytes.sum())
        if resident_bytes == 0:
            raise ConfigError("workload.folder", self.folder, "memory.stat files that count some anon or file memory")
        if resident_bytes > machine.memory_bytes * 0.97:
            raise ConfigError(
                "workload.folder",
                self.folder,
                f"holds {show_bytes(resident_bytes)}, and {machine.name} has {show_bytes(machine.memory_bytes)}; "
                "set machine.memory_gib to the copied machine's",
            )
        return anon, file, found.zswapped_pages.astype(np.float64), found.zswap_bytes.astype(np.float64)

    def _contents(self, anon: Floats, file: Floats, zswapped: Floats, zswap_bytes: Floats | None) -> Contents:
        object_bytes = PAGE_BYTES / self.compression_ratio
        return Contents(
            anon=anon,
            file=file,
            zswapped=zswapped,
            zswap_bytes=zswapped * object_bytes if zswap_bytes is None else zswap_bytes,
            hot_share=self.hot_pct / 100,
            hot_per_s=self.hot_per_s,
            cold_per_s=self.cold_per_s,
            object_bytes=object_bytes,
            object_swing=self.ratio_swing,
            swing_period_ns=round(self.swing_period_s * 1e9),
            swapin_ns=self.swapin_ns,
            disk_swapin_ns=self.disk_swapin_ns,
            refault_share=self.refault_pct / 100,
        )

    def _app(self, k: KernelBuilder, zones: Zones, vmscan: VmScan) -> Body:
        """All tasks of a node, as one that allocates: burst after burst, until it is killed for lack of memory."""
        pages = max(round(self.allocation_kib * 1024 / PAGE_BYTES), 1)
        gap_ns = round(pages / (self.allocated_mib_per_s * PAGES_PER_MIB) * 1e9)
        if gap_ns > 1 << 33:
            raise ConfigError("workload.allocated_mib_per_s", self.allocated_mib_per_s, "a burst every 8 s at least")
        with k.thread("app", daemon=True) as thread, k.for_range(1 << 62):
            k.sleep_ns(k.rand_exp(gap_ns))
            with k.if_(zones.alloc_pages(k, thread.arg("node"), pages, vmscan) == 0):
                k.count("oom_kills")
                k.break_()
        return thread

    @staticmethod
    def _sampler(k: KernelBuilder, zones: Zones, lruvecs: Lruvecs, zswap: ZswapShrinker, horizon_ns: int) -> Body:
        """What a monitoring system would draw: the pool against its limit, free memory."""
        samples = horizon_ns // SAMPLE_NS + 2
        pool = k.series("pool", samples, "pages")
        stored = k.series("zswapped", samples, "pages")
        free = k.series("free", samples, "pages")
        limit = k.series("pool_limit", samples, "pages")
        with k.thread("sampler", daemon=True) as thread, k.for_range(1 << 62):
            k.record(pool, lruvecs.pool_pages(k))
            k.record(stored, k.load(lruvecs.zswapped[0]))
            k.record(limit, zswap.max_pages)
            total = k.local(0)
            with k.for_each(zones.free) as node:
                total.set(total + k.load(node))
            k.record(free, total)
            k.sleep_ns(SAMPLE_NS)
        return thread


class _Cpus:
    """CPUs not given away yet."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.used = machine, set[int]()

    def of_node(self, node: int, what: str) -> int:
        """One of the node, if it has any left, else any other."""
        return self._first(list(self.machine.cpus_of_node(node)), what) if self._left(node) else self.any(what)

    def _left(self, node: int) -> bool:
        return any(cpu not in self.used for cpu in self.machine.cpus_of_node(node))

    def any(self, what: str) -> int:
        """The last one that is left: where kswapds are not."""
        return self._first(list(range(self.machine.cpus - 1, -1, -1)), what)

    def _first(self, cpus: list[int], what: str) -> int:
        for cpu in cpus:
            if cpu not in self.used:
                self.used.add(cpu)
                return cpu
        raise ConfigError(
            "machine", self.machine.name, f"its {self.machine.cpus} CPUs are too few: none is left for {what}"
        )
