"""Pressure stall information for memory (kernel/sched/psi.c): who waits for memory, weighted by how busy its CPU is.

A CPU is SOME while a task on it is in a memory stall, and FULL while that task is the one that runs, or nothing else
could. Every two seconds the CPUs' times are averaged, weighted by the time each was not idle. Each cgroup has pressure
of its own, of the tasks in its subtree on the CPUs they run on.

Threads the simulation knows, kswapds and those that reclaim for themselves, enter and leave stalls one by one, in the
root. The stalls of the applications' tasks, whose faults are not simulated one by one, are added up by cgroup and
spread evenly over the CPUs that its tasks run on. There they are taken to be FULL while asleep only as long as no other
task of the cgroup has the CPU; CPU time is shared out over the cgroups as the updates of their statistics are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zexp.kernel.builder import KernelBuilder
from zexp.program import IntLike, Value

if TYPE_CHECKING:
    from zexp.kernel.cgroup import CgroupTree, Floats, Ints
    from zexp.program import Body

PSI_FREQ_NS = 2_000_000_000
PPM = 1_000_000
UNIT = 4000
"""Products of two times in us are rounded to this, so that the sum over 4,096 CPUs in ppm fits 64 bits."""


class Psi:
    """Memory pressure of the system and of every cgroup.

    The run has them as series for the system (``psi/some``, ``psi/full``), the slices below the root and the cgroup
    with the most pressure, and as histograms over the cgroups of each level, one value for each two seconds.
    """

    def __init__(self, k: KernelBuilder, tree: CgroupTree, busy_pct: float, horizon_ns: int) -> None:
        """``busy_pct``: how long each CPU is not idle without the simulated threads, by tasks of all cgroups."""
        cpus, cgroups = k.machine.cpus, len(tree)
        self.tree = tree
        self.busy_ppm = round(busy_pct * 10_000)
        self.since = k.bookkeeping("in memstall since, ns", cpus, np.full(cpus, -1))
        self.memstall = k.bookkeeping("memstall of the window, ns", cpus)
        self.running = k.bookkeeping("applications' memstall on a CPU, ns", cgroups)
        self.sleeping = k.bookkeeping("applications' memstall off the CPU, ns", cgroups)
        used = tree.cpus_used(cpus)
        busy = busy_pct / 100 * cpus * tree.updates_per_s / tree.updates_per_s[0] / used
        self.idle_ppm = k.bookkeeping("cgroup's CPUs not its own", cgroups, _whole(PPM * (1 - np.minimum(busy, 1))))
        self.ppm_ns = k.bookkeeping("a millionth of cgroup's CPUs, ns", cgroups, _whole(used * PSI_FREQ_NS / PPM))
        self.parent = k.bookkeeping("parent of cgroup", cgroups, tree.parent)
        self.level = k.bookkeeping("level of cgroup", cgroups, tree.level)
        self.some_ppm = k.bookkeeping("some pressure of cgroup, ppm", cgroups)
        self.full_ppm = k.bookkeeping("full pressure of cgroup, ppm", cgroups)
        windows = horizon_ns // PSI_FREQ_NS + 1
        self.some = k.series("psi/some", windows, "ppm")
        self.full = k.series("psi/full", windows, "ppm")
        self.slices = [
            (cgroup, k.series(f"psi/slice{i}/some", windows, "ppm"), k.series(f"psi/slice{i}/full", windows, "ppm"))
            for i, cgroup in enumerate(np.flatnonzero(tree.level == 1).tolist())
        ]
        self.worst = k.series("psi/worst_cgroup/number", windows, "cgroup")
        self.worst_some = k.series("psi/worst_cgroup/some", windows, "ppm")

    def memstall_enter(self, k: KernelBuilder) -> None:
        """The running thread begins to wait for memory (psi_memstall_enter)."""
        k.store(self.since[k.cpu], k.now_ns())

    def memstall_leave(self, k: KernelBuilder) -> None:
        """It no longer does (psi_memstall_leave)."""
        waited = k.now_ns() - k.load(self.since[k.cpu])
        k.store(self.memstall[k.cpu], k.load(self.memstall[k.cpu]) + waited)
        k.store(self.since[k.cpu], -1)

    def stalled(self, k: KernelBuilder, cgroup: IntLike, running_ns: IntLike, sleeping_ns: IntLike) -> None:
        """Tasks of a cgroup have been in memory stalls: on a CPU, decompressing; or asleep, waiting for a disk."""
        k.store(self.running[cgroup], k.load(self.running[cgroup]) + running_ns)
        k.store(self.sleeping[cgroup], k.load(self.sleeping[cgroup]) + sleeping_ns)

    def psi_avgs_work(self, k: KernelBuilder) -> Body:
        """The worker that averages, every two seconds."""
        with k.thread("kworker/psi", daemon=True) as thread, k.for_range(1 << 62):
            k.sleep_ns(PSI_FREQ_NS)
            self._average_cgroups(k)
            self._average_system(k)
            k.fill(self.running, 0, len(self.tree), 0)
            k.fill(self.sleeping, 0, len(self.tree), 0)
        return thread

    def _average_cgroups(self, k: KernelBuilder) -> None:
        """The pressure of all cgroups but the root, whose stalls are those of all applications then."""
        worst, most = k.local(0), k.local(0)
        with k.for_range(len(self.tree) - 1) as i:
            cgroup = len(self.tree) - 1 - i  # pre-order backwards: children before their parents
            running, sleeping = k.load(self.running[cgroup]), k.load(self.sleeping[cgroup])
            self.stalled(k, k.load(self.parent[cgroup]), running, sleeping)
            ppm_ns, alone = k.load(self.ppm_ns[cgroup]), sleeping // 1000 * k.load(self.idle_ppm[cgroup]) // 1000
            some = k.minimum((running + sleeping) // ppm_ns, PPM)
            full = k.minimum((running + alone) // ppm_ns, PPM)
            k.store(self.some_ppm[cgroup], some)
            k.store(self.full_ppm[cgroup], full)
            level = k.load(self.level[cgroup])
            for number in range(1, self.tree.levels):
                with k.if_(level == number):
                    k.observe(f"psi/some_ppm/level{number}", some, unit="ppm")
                    k.observe(f"psi/full_ppm/level{number}", full, unit="ppm")
            with k.if_(some > most):
                most.set(some)
                worst.set(cgroup)
        for slice_, some_series, full_series in self.slices:
            k.record(some_series, k.load(self.some_ppm[slice_]))
            k.record(full_series, k.load(self.full_ppm[slice_]))
        k.record(self.worst, worst)
        k.record(self.worst_some, most)

    def _average_system(self, k: KernelBuilder) -> None:
        cpus, window_us = k.machine.cpus, PSI_FREQ_NS // 1000
        idle_ppm = PPM - self.busy_ppm
        # of the applications' stalls, each CPU has the same part
        asleep_us = k.load(self.sleeping[0]) // 1000 // cpus
        stall_us = k.load(self.running[0]) // 1000 // cpus + asleep_us
        some, full, weights = k.local(0), k.local(0), k.local(0)
        with k.for_range(cpus) as cpu:
            mine = self._take(k, cpu) // 1000
            rest = window_us - mine
            nonidle = mine + rest * self.busy_ppm // PPM
            both = k.minimum(mine + stall_us, window_us)
            # asleep is FULL only while nothing else could run there
            alone = k.minimum(mine + (stall_us - asleep_us) + asleep_us * idle_ppm // PPM, window_us)
            some.set(some + both * nonidle)
            full.set(full + alone * nonidle)
            weights.set(weights + nonidle)
        scale = k.maximum(weights * window_us // UNIT, 1)
        k.record(self.some, some // UNIT * PPM // scale)
        k.record(self.full, full // UNIT * PPM // scale)

    def _take(self, k: KernelBuilder, cpu: Value) -> Value:
        """A CPU's memstall of the window that ends now, with that of a stall still going on."""
        stalled, since, now = k.local(k.load(self.memstall[cpu])), k.load(self.since[cpu]), k.now_ns()
        with k.if_(since >= 0):
            stalled.set(stalled + now - since)
            k.store(self.since[cpu], now)
        k.store(self.memstall[cpu], 0)
        return stalled


def _whole(values: Floats) -> Ints:
    """Rounded, and at least 1."""
    numbers: Ints = np.maximum(np.rint(values), 1).astype(np.int64)
    return numbers
