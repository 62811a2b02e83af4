"""Pressure stall information for memory (kernel/sched/psi.c): who waits for memory, weighted by how busy its CPU is.

A CPU is SOME while a task on it is in a memory stall, and FULL while that task is the one that runs, or nothing else
could. Every two seconds the CPUs' times are averaged, weighted by the time each was not idle. Threads the simulation
knows enter and leave stalls one by one; the stalls of the applications' tasks, whose faults are not simulated one by
one, are added up and spread evenly over the CPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zexp.kernel.builder import KernelBuilder
from zexp.program import IntLike, Value

if TYPE_CHECKING:
    from zexp.program import Body

PSI_FREQ_NS = 2_000_000_000
PPM = 1_000_000
UNIT = 4000
"""Products of two times in us are rounded to this, so that the sum over 4,096 CPUs in ppm fits 64 bits."""


class Psi:
    """Memory pressure of the system and of the slices below the root."""

    def __init__(self, k: KernelBuilder, slices: int, busy_pct: float, horizon_ns: int) -> None:
        """``busy_pct``: how long each CPU is not idle without the simulated threads, by tasks of all slices."""
        cpus = k.machine.cpus
        self.busy_ppm = round(busy_pct * 10_000)
        self.since = k.bookkeeping("in memstall since, ns", cpus, np.full(cpus, -1))
        self.memstall = k.bookkeeping("memstall of the window, ns", cpus)
        self.running = k.bookkeeping("applications' memstall on a CPU, ns", slices)
        self.sleeping = k.bookkeeping("applications' memstall off the CPU, ns", slices)
        windows = horizon_ns // PSI_FREQ_NS + 1
        self.some = k.series("psi/some", windows, "ppm")
        self.full = k.series("psi/full", windows, "ppm")
        self.slices = [k.series(f"psi/slice{i}/some", windows, "ppm") for i in range(slices)]

    def memstall_enter(self, k: KernelBuilder) -> None:
        """The running thread begins to wait for memory (psi_memstall_enter)."""
        k.store(self.since[k.cpu], k.now_ns())

    def memstall_leave(self, k: KernelBuilder) -> None:
        """It no longer does (psi_memstall_leave)."""
        waited = k.now_ns() - k.load(self.since[k.cpu])
        k.store(self.memstall[k.cpu], k.load(self.memstall[k.cpu]) + waited)
        k.store(self.since[k.cpu], -1)

    def stalled(self, k: KernelBuilder, slice_: IntLike, running_ns: IntLike, sleeping_ns: IntLike) -> None:
        """Tasks of a slice have been in memory stalls: on a CPU, decompressing; or asleep, waiting for a disk."""
        k.store(self.running[slice_], k.load(self.running[slice_]) + running_ns)
        k.store(self.sleeping[slice_], k.load(self.sleeping[slice_]) + sleeping_ns)

    def psi_avgs_work(self, k: KernelBuilder) -> Body:
        """The worker that averages, every two seconds."""
        with k.thread("kworker/psi", daemon=True) as thread, k.for_range(1 << 62):
            k.sleep_ns(PSI_FREQ_NS)
            self._average(k)
        return thread

    def _average(self, k: KernelBuilder) -> None:
        cpus, window_us = k.machine.cpus, PSI_FREQ_NS // 1000
        idle_ppm = PPM - self.busy_ppm
        applications_us, asleep_us = self._slices(k, window_us)
        # of the applications' stalls, each CPU has the same part
        stall_us, asleep_us = applications_us // cpus, asleep_us // cpus
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

    def _slices(self, k: KernelBuilder, window_us: int) -> tuple[Value, Value]:
        """Record every slice's own pressure; all applications' stalls, and those of them asleep, in us."""
        stalls, asleep = k.local(0), k.local(0)
        for i, series in enumerate(self.slices):
            running, sleeping = k.load(self.running[i]) // 1000, k.load(self.sleeping[i]) // 1000
            stalls.set(stalls + running + sleeping)
            asleep.set(asleep + sleeping)
            share_ppm = (running + sleeping) * (PPM // 1000) // (k.machine.cpus * window_us // 1000)
            k.record(series, k.minimum(share_ppm, PPM))
            k.store(self.running[i], 0)
            k.store(self.sleeping[i], 0)
        return stalls, asleep
