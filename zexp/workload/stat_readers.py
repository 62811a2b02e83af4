"""Monitoring agents that read cgroup statistics: each read may flush, under one lock for the whole machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from zexp.errors import ConfigError
from zexp.kernel import KernelBuilder, Policies
from zexp.kernel.cgroup import CgroupTree, TreeConfig, build_tree
from zexp.kernel.memcontrol import VmStats
from zexp.kernel.rstat import Rstat
from zexp.workload.base import Load, Workload, at_least, place

TARGETS = ("root", "slices", "leaves", "all")


@dataclass
class StatReaders(Workload):
    """Readers of memory.stat go through a part of the tree, again and again, as cadvisor does every 53 s."""

    name: str = "stat_readers"
    unit: ClassVar[str] = "read"
    governed_by: ClassVar[str] = "flush"
    tree: TreeConfig = field(default_factory=lambda: TreeConfig(cpus_per_leaf=8))
    readers: int = 4
    rounds: int = 3
    """How often each reader goes through its cgroups."""
    period_ns: int = 1_000_000_000
    """Pause between two rounds."""
    target: str = "all"
    """Whose memory.stat they read: of the ``root``, the ``slices`` below it, the ``leaves``, or ``all``."""
    flusher_late_ns: int = 0
    """How late the periodic flusher is, each time."""

    def stage(self, k: KernelBuilder, policies: Policies) -> Load:
        """All readers start within one period, evenly spaced."""
        for name, low in (("readers", 1), ("rounds", 1), ("period_ns", 0), ("flusher_late_ns", 0)):
            at_least(name, getattr(self, name), low)
        tree = build_tree(self.tree)
        cgroups = self._targets(tree)
        stats = VmStats(k, Rstat(k, tree), policies.flush)
        cpus = place(k.machine, self.placement, self.readers + 1, "workload.readers + the periodic flusher")
        targets = k.bookkeeping("cgroups to read", len(cgroups), cgroups)
        with k.thread("stat_reader") as reader, k.func("__x64_sys_read"), k.for_range(self.rounds):
            with k.for_each(targets) as target:
                began = k.now_ns()
                with k.fn("memory_stat_show"):
                    stats.flush_at(k, "memory_stat", k.load(target))
                k.observe("memory_stat_read_ns", k.now_ns() - began)
            k.sleep_ns(self.period_ns)
        for i in range(self.readers):
            k.spawn(reader, cpus.pop(0), start_ns=self.period_ns * i // self.readers)
        k.spawn(stats.flush_memcg_stats_dwork(k, self.flusher_late_ns), cpus.pop(0))
        return Load(self.readers * self.rounds * len(cgroups), "stat_reader")

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
