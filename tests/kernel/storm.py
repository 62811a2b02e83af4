"""Put the parts of reclaim together on a small machine, and look at what they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from zexp_flush.strategies import Never, Sync

from zexp.kernel import FlushStrategy, KernelBuilder, KernelConfig, Policies
from zexp.kernel.cgroup import CgroupTree, TreeConfig, build_tree
from zexp.kernel.lruvec import Contents, Lruvecs
from zexp.kernel.memcontrol import VmStats
from zexp.kernel.page_alloc import Zones
from zexp.kernel.psi import Psi
from zexp.kernel.rstat import RstatTrees
from zexp.kernel.shrinker import Shrinkers
from zexp.kernel.vmscan import VmScan
from zexp.kernel.zswap_shrinker import ZswapShrinker
from zexp.machine import Machine
from zexp.program import Array, Program, Value
from zexp.result import RunResult
from zexp.workload.reclaim import Reclaim

from .simulate import POLICIES, kernel, machine, run_keeping_cells

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
MS = 1_000_000
S = 1000 * MS


@dataclass(frozen=True)
class Ran:
    """A finished run and the memory it left."""

    program: Program
    result: RunResult
    memory: Ints

    def cells(self, name: str) -> list[int]:
        """The final values of a variable or array."""
        (variable,) = [v for v in self.program.variables if v.name == name and v.base >= 0]
        values: list[int] = self.memory[variable.base : variable.base + variable.length].tolist()
        return values

    def metric(self, name: str) -> int:
        """A count; 0 if nothing was counted."""
        return int(self.result.metrics.get(name, 0))


def finish(k: KernelBuilder, seed: int = 0) -> Ran:
    """Run what has been staged."""
    program = k.finish()
    return Ran(program, *run_keeping_cells(program, k.machine, seed))


def contents(anon: Floats, file: Floats, zswapped: Floats, **changes: Any) -> Contents:
    """By cgroup, on all nodes together; nobody touches what is swapped out."""
    fields: dict[str, Any] = {
        "zswap_bytes": zswapped * 1024.0,
        "hot_share": 0.0,
        "hot_per_s": 0.0,
        "cold_per_s": 0.0,
        "object_bytes": 1024.0,
        "object_swing": 0.0,
        "swing_period_ns": 4 * S,
        "swapin_ns": 6000,
        "disk_swapin_ns": 100_000,
        "refault_share": 0.0,
    }
    return Contents(anon=anon, file=file, zswapped=zswapped, **{**fields, **changes})


@dataclass
class Parts:
    """All parts of reclaim but the workload; tests stage threads around them."""

    config: KernelConfig
    on: Machine
    tree: CgroupTree
    memory: Contents
    strategy: FlushStrategy = field(default_factory=Never)
    bound: bool = False
    reclaimed_pct: float = 50.0
    busy_pct: float = 50.0
    horizon_ns: int = S

    def __post_init__(self) -> None:
        self.k = k = KernelBuilder(self.on, self.config)
        k.run_until(self.horizon_ns)
        self.trees = RstatTrees(k, self.tree)
        self.stats = VmStats(k, self.trees.memory, self.strategy)
        self.zones = Zones(k, self.bound)
        self.psi = Psi(k, self.tree, self.busy_pct, self.horizon_ns)
        self.lruvecs = Lruvecs(k, self.tree, self.memory, self.zones, self.stats, self.psi)
        self.zswap = ZswapShrinker(k, self.lruvecs, self.stats)
        self.shrinkers = Shrinkers(k, self.lruvecs, self.zswap)
        self.vmscan = VmScan(
            k, self.zones, self.lruvecs, self.shrinkers, self.zswap, self.stats, self.psi, self.reclaimed_pct
        )

    @contextmanager
    def thread(self, cpu: int = 0, start_ns: int = 0) -> Iterator[KernelBuilder]:
        """A thread that runs the staged code once."""
        with self.k.thread(f"test{cpu}", daemon=True) as thread:
            yield self.k
        self.k.spawn(thread, cpu, start_ns)

    def set(self, array: Array, values: Any) -> None:
        """What an array holds at the start."""
        self.k.memory.initial(array)[:] = values

    def run(self, seed: int = 0) -> Ran:
        """Run it."""
        return finish(self.k, seed)


def parts(
    anon: int = 0,
    file: int = 0,
    zswapped: int = 0,
    *,
    kernel_name: str = "v6_12",
    cgroups: TreeConfig | CgroupTree | None = None,
    nodes: int = 1,
    memory_mib: int = 1024,
    kernel_changes: dict[str, Any] | None = None,
    contents_changes: dict[str, Any] | None = None,
    **changes: Any,
) -> Parts:
    """A machine with a shrinker whose cgroups each have these pages on each node; classic lists unless asked."""
    tree = cgroups if isinstance(cgroups, CgroupTree) else build_tree(cgroups or TreeConfig(3, 2, updates_per_s=1e6))
    size = np.ones(len(tree)) * nodes
    config = kernel(kernel_name, **{"zswap_shrinker": "on", "lru_gen": False, **(kernel_changes or {})})
    memory = contents(size * anon, size * file, size * zswapped, **(contents_changes or {}))
    return Parts(config, machine("laptop", memory_mib=memory_mib, nodes=nodes), tree, memory, **changes)


# ---- the whole workload ----------------------------------------------------------------------------------------------

AUDITED = (
    "anon", "file", "hot", "cold", "referenced", "disk_hot", "disk_cold", "disk_swapins", "bytes", "zswapped",
    "zswap_bytes",
)  # fmt: skip


def storm(
    workload: Reclaim,
    config: KernelConfig,
    on: Machine,
    strategy: FlushStrategy | None = None,
    seed: int = 0,
    extra: Callable[[KernelBuilder, Zones, Lruvecs, ZswapShrinker], None] | None = None,
) -> Ran:
    """Run the workload; ``extra`` stages more threads."""
    k = KernelBuilder(on, config)
    seen: list[tuple[Zones, Lruvecs, ZswapShrinker]] = []
    sampler = Reclaim._sampler

    def listening(k: KernelBuilder, zones: Zones, lruvecs: Lruvecs, zswap: ZswapShrinker, horizon_ns: int) -> Any:
        seen.append((zones, lruvecs, zswap))
        return sampler(k, zones, lruvecs, zswap, horizon_ns)

    with patch.object(Reclaim, "_sampler", staticmethod(listening)):
        workload.stage(k, Policies(POLICIES["lazy"](), strategy or Sync()))
    if extra is not None:
        extra(k, *seen[0])
    return finish(k, seed)


def auditor(cpu: int, period_ns: int) -> Callable[[KernelBuilder, Zones, Lruvecs, ZswapShrinker], None]:
    """A thread that checks, again and again, that nothing is negative, lost or counted twice.

    It looks at all at once: what it reads costs no time.
    """

    def stage(k: KernelBuilder, zones: Zones, lruvecs: Lruvecs, zswap: ZswapShrinker) -> None:
        def total(array: Array, node: Value | None = None) -> Value:
            sum_ = k.local(0)
            with k.for_range(len(array)) as i:
                here = 1 if node is None else i // len(lruvecs.tree) == node
                sum_.set(sum_ + k.load(array[i]) * here)
            return sum_

        def node_bytes(node: Value) -> Value:
            """All that has a place on a node; memcg by memcg also what was allocated and not yet attributed."""
            pages = k.local(k.load(zones.free[node]))
            pages.set(pages + total(lruvecs.anon, node) + total(lruvecs.file, node))
            pending = k.local(0)
            with k.for_range(len(lruvecs.tree)) as memcg:
                new = k.load(zones.allocated[node]) - k.load(lruvecs.seen_allocated[lruvecs.number(memcg, node)])
                pending.set(pending + new * k.load(lruvecs.share[memcg]))
            return pages * 4096 + total(lruvecs.bytes, node) + pending // 256

        at_start = k.bookkeeping("audit: bytes of a node at the start", zones.nodes)
        with k.thread("auditor", daemon=True) as thread, k.for_range(1 << 62) as turn:
            for name in AUDITED:
                negative = k.local(0)
                with k.for_each(getattr(lruvecs, name)) as element:
                    negative.set(negative + (k.load(element) < 0))
                k.count(f"audit/negative/{name}", negative)
            over = k.local(0)
            with k.for_range(len(lruvecs.hot)) as i:
                entries = k.load(lruvecs.hot[i]) + k.load(lruvecs.cold[i])
                over.set(over + (k.load(lruvecs.referenced[i]) > entries))
            k.count("audit/referenced_more_than_all", over)
            k.count("audit/entries_off", total(lruvecs.hot) + total(lruvecs.cold) != k.load(lruvecs.zswapped[0]))
            k.count("audit/bytes_off", total(lruvecs.bytes) != k.load(lruvecs.zswap_bytes[0]))
            k.count("audit/turns")
            with k.for_range(zones.nodes) as node:
                now = node_bytes(node)
                with k.if_(turn == 0):
                    k.store(at_start[node], now)
                drift = (now - k.load(at_start[node])) // 4096
                k.observe("audit/drift_pages", k.maximum(drift, 0 - drift), unit="pages")
            k.sleep_ns(k.rand_exp(period_ns))
        k.spawn(thread, cpu)

    return stage
