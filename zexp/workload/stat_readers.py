"""Monitoring agents that read cgroup statistics: each read may flush, under one lock for the whole machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from zexp.errors import ConfigError, near
from zexp.kernel import KernelBuilder, Policies
from zexp.kernel.cgroup import CgroupTree, TreeConfig, build_tree
from zexp.kernel.memcontrol import VmStats
from zexp.kernel.rstat import RstatTrees
from zexp.program import Body, IntLike
from zexp.workload.base import Headline, Load, PlacedWorkload, at_least, place

TARGETS = ("root", "slices", "leaves", "all")
FILES = {"memory.stat": "memory_stat_show", "cpu.stat": "cpu_stat_show", "io.stat": "blkcg_print_stat"}
"""What can be read, and the kernel function that prints it."""


def checked_files(key: str, files: list[str]) -> list[str]:
    """``files``, if all of them are of ``FILES``, each once; raises ``ConfigError`` naming ``key``."""
    for file in files:
        if file not in FILES:
            raise ConfigError(key, file, near(file, FILES))
    if not files or len(set(files)) < len(files):
        raise ConfigError(key, files, f"one or more of {', '.join(FILES)}, each once")
    return list(files)


def read_file(k: KernelBuilder, stats: VmStats, trees: RstatTrees, file: str, cgroup: IntLike) -> None:
    """Read one of the ``FILES`` of a cgroup: memory.stat has a threshold, the others flush at once."""
    began, site = k.now_ns(), file.replace(".", "_")
    with k.fn(FILES[file]):
        if file == "memory.stat":
            stats.flush_at(k, site, cgroup)
        else:
            rstat = trees.base if file == "cpu.stat" else trees.io
            with rstat.on_behalf_of(k, site):
                rstat.cgroup_rstat_flush(k, cgroup)
    k.observe(f"{site}_read_ns", k.now_ns() - began)


def stat_reader_code(
    k: KernelBuilder,
    stats: VmStats,
    trees: RstatTrees,
    cgroups: list[int],
    files: list[str],
    period_ns: int,
    rounds: int | None,
    daemon: bool,
) -> Body:
    """Read ``files`` of ``cgroups``, all of them every ``period_ns``, ``rounds`` times or (None) for ever.

    Rounds have due times, whatever earlier ones took: a late reader starts the next at once. With a period of 0 it
    never pauses.
    """
    targets = k.bookkeeping("cgroups to read", len(cgroups), cgroups)
    with k.thread("stat_reader", daemon=daemon) as reader, k.func("__x64_sys_read"):
        due = k.local(k.now_ns())
        with k.for_range(1 << 62 if rounds is None else rounds):
            if period_ns:
                late = k.now_ns() - due
                k.observe("reader_late_ns", k.maximum(late, 0))
                k.count("readers/late_rounds", late > 0)
                with k.if_(late < 0):
                    k.sleep_ns(-late)
                due.set(due + period_ns)
            with k.for_each(targets) as target:
                cgroup = k.load(target)
                for file in files:
                    read_file(k, stats, trees, file, cgroup)
    return reader


@dataclass
class StatReaders(PlacedWorkload):
    """Readers of memory.stat go through a part of the tree, again and again, as cadvisor does every 53 s."""

    name: str = "stat_readers"
    unit: ClassVar[str] = "read"
    governed_by: ClassVar[str] = "flush"
    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline("time ms", "time/total_ms", 1),
        Headline("ns/read", "time/cpu_ns_per_page", 1),
        Headline("flushes", "rstat/flushes", 0),
        Headline("lock wait ns/read", "lock/wait_ns_per_page", 1),
        Headline("late rounds", "readers/late_rounds", 0),
        Headline("reads/s", "throughput/pages_per_s", 1),
    )
    tree: TreeConfig = field(default_factory=lambda: TreeConfig(cpus_per_leaf=8))
    readers: int = 4
    files: list[str] = field(default_factory=lambda: ["memory.stat"])
    """What they read of each cgroup: any of ``memory.stat``, ``cpu.stat``, ``io.stat``."""
    rounds: int = 3
    """How often each reader goes through its cgroups."""
    period_ns: int = 1_000_000_000
    """From when one round is due to when the next is; 0: without a pause."""
    target: str = "all"
    """Whose files they read: of the ``root``, the ``slices`` below it, the ``leaves``, or ``all``."""
    flusher_late_ns: int = 0
    """How late the periodic flusher is, each time."""

    def stage(self, k: KernelBuilder, policies: Policies) -> Load:
        """All readers start within one period, evenly spaced."""
        for name, low in (("readers", 1), ("rounds", 1), ("period_ns", 0), ("flusher_late_ns", 0)):
            at_least(name, getattr(self, name), low)
        files = checked_files("workload.files", self.files)
        tree = build_tree(self.tree)
        cgroups = self._targets(tree)
        trees = RstatTrees(k, tree)
        stats = VmStats(k, trees.memory, policies.flush)
        cpus = place(k.machine, self.placement, self.readers + 1, "workload.readers + the periodic flusher")
        reader = stat_reader_code(k, stats, trees, cgroups, files, self.period_ns, self.rounds, daemon=False)
        for i in range(self.readers):
            k.spawn(reader, cpus.pop(0), start_ns=self.period_ns * i // self.readers)
        k.spawn(stats.flush_memcg_stats_dwork(k, self.flusher_late_ns), cpus.pop(0))
        return Load(self.readers * self.rounds * len(cgroups) * len(files), "stat_reader")

    def _targets(self, tree: CgroupTree) -> list[int]:
        if self.target not in TARGETS:
            raise ConfigError("workload.target", self.target, f"allowed: {', '.join(TARGETS)}")
        everyone = np.arange(len(tree))
        chosen = {
            "root": everyone[:1],
            "slices": everyone[tree.level == 1],
            "leaves": everyone[tree.end == everyone + 1],
            "all": everyone,
        }[self.target]
        if not len(chosen):
            raise ConfigError("workload.target", self.target, f"the tree of {len(tree)} cgroups has none")
        return [int(cgroup) for cgroup in chosen]
