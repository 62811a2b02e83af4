"""Flushing cgroup statistics (kernel/cgroup/rstat.c): one lock, a walk over all possible CPUs, what each CPU touched.

Updates are not simulated one by one: millions a second would be. What a flush needs of them is how many cgroups of the
flushed subtree a CPU has touched since that CPU was flushed last, a random number whose mean and variance follow from
the update rates (``CgroupTree.updated_positions``); it is drawn when a flush gets there: first whether it touched any,
which is exact, then how many, as if normally distributed. ``tests/kernel/test_rstat.py``
holds this against a simulation update by update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from zexp.kernel.builder import KernelBuilder
from zexp.program import MUTEX, SPINLOCK_IRQ, Array, IntLike, Local, LockKind, Value

if TYPE_CHECKING:
    from zexp.kernel.cgroup import CgroupTree, Floats, Ints

OCTAVES = 44
"""Powers of two of ns that the tables of touched cgroups cover: to 4.9 hours."""
FRACTION = 256
"""Touched cgroups are counted in 1/256."""
CHANCE = 1 << 16
"""Probabilities are in 1/65,536."""
OVERLAPPING_READS = 4
"""Lines of another CPU's statistics that a core fetches at once; assumed, as in zsmalloc."""
RSTAT_MUTEX = LockKind(True, "__mutex_lock", MUTEX.queue, MUTEX.spin)


def _scaled(rows: list[Floats], unit: int) -> Ints:
    """A row a cgroup, a column a power of two, in 1/``unit``."""
    return np.rint(np.array(rows).T * unit).astype(np.int64)


class Rstat:
    """The rstat of one subsystem's tree (of all of it before 6.16)."""

    def __init__(self, k: KernelBuilder, tree: CgroupTree) -> None:
        config, cpus = k.config, k.machine.cpus
        self.tree = tree
        self.lock = k.spinlock("cgroup_rstat_lock", RSTAT_MUTEX if config.rstat_lock == "mutex" else SPINLOCK_IRQ)
        self.root_flushed = k.bookkeeping("CPU's last root flush, ns", cpus)
        self.flushed = k.bookkeeping("cgroup's last flush, ns", len(tree))
        """When each cgroup was flushed last by itself; see ``last_flush``."""
        self.parent = k.bookkeeping("parent of cgroup", len(tree), tree.parent)
        self.level = k.bookkeeping("level of cgroup", len(tree), tree.level)
        chance, mean, deviation = self._tables(cpus)
        self.chance = k.bookkeeping("chance of a touched cgroup", chance.size, chance.ravel())
        self.mean = k.bookkeeping("mean of touched cgroups", mean.size, mean.ravel())
        self.deviation = k.bookkeeping("deviation of touched cgroups", deviation.size, deviation.ravel())
        # per CPU and cgroup: the vmstats' 16 lines, and 8 of each node's lruvec
        self.lines = -(-(16 + 8 * k.machine.nodes) // OVERLAPPING_READS)
        self.items = 65 + 31 * k.machine.nodes

    def _tables(self, cpus: int) -> tuple[Ints, Ints, Ints]:
        """By cgroup and power of two of the time since the last flush.

        The chance that any of the subtree was touched, and if so, mean and deviation of how many.
        """
        chances, means, deviations = [], [], []
        for octave in range(OCTAVES):
            mean, variance = self.tree.updated_positions(cpus, float(1 << octave))
            chance = self.tree.touched(cpus, float(1 << octave))
            some = np.maximum(chance, 1e-9)
            of_some = np.maximum(mean / some, 1)
            chances.append(chance)
            means.append(of_some)
            deviations.append(np.sqrt(np.maximum((variance + mean * mean) / some - of_some * of_some, 0)))
        return _scaled(chances, CHANCE), _scaled(means, FRACTION), _scaled(deviations, FRACTION)

    def last_flush(self, k: KernelBuilder, cgroup: IntLike) -> Value:
        """When a cgroup's statistics were last brought up to date: by its own flush or by an ancestor's; ns."""
        latest, here = k.local(k.load(self.flushed[cgroup])), k.local(k.load(self.parent[cgroup]))
        with k.while_(lambda: here >= 0):
            latest.set(k.maximum(latest, k.load(self.flushed[here])))
            here.set(k.load(self.parent[here]))
        return latest

    def touched(self, k: KernelBuilder, cgroup: IntLike, since_ns: Value) -> Value:
        """Draw how many cgroups of a subtree one CPU has touched in the last ``since_ns``."""
        octave = k.minimum(k.maximum(k.bits(since_ns), 1), OCTAVES - 1)
        low = octave - 1
        row = cgroup * OCTAVES + low
        rest = ((since_ns - (1 << low)) * FRACTION) >> low  # where in the octave, in 1/256
        rest = k.minimum(k.maximum(rest, 0), FRACTION)

        def between(table: Array) -> Value:
            first = k.load(table[row])
            return first + (((k.load(table[row + 1]) - first) * rest) >> 8)

        number = k.local(0)
        with k.if_(k.rand_int(CHANCE) < between(self.chance)):
            # the sum of three uniform numbers is nearly normal; its standard deviation is half of 65,536
            noise = k.rand_int(65536) + k.rand_int(65536) + k.rand_int(65536) - 98304
            drawn = between(self.mean) + ((between(self.deviation) * noise) >> 15)
            number.set(k.maximum((drawn + k.rand_int(FRACTION)) >> 8, 1))
        return number

    def cgroup_rstat_flush(
        self, k: KernelBuilder, cgroup: IntLike, still_wanted: Callable[[], IntLike] | None = None
    ) -> None:
        """Flush a subtree: every possible CPU in turn, under the lock, which is dropped between CPUs as configured.

        ``still_wanted`` is asked when the lock has been taken; if it says 0, the flush is not done.
        """
        began = k.now_ns()
        with k.fn("cgroup_rstat_flush"), k.fn("cgroup_rstat_flush_locked"):
            self._take(k)
            if still_wanted is None:
                self._flush_all(k, cgroup, began)
            else:
                with k.if_(still_wanted()):
                    self._flush_all(k, cgroup, began)
                with k.else_():
                    k.count("rstat/not_wanted_any_more")
            k.release(self.lock)

    def _flush_all(self, k: KernelBuilder, cgroup: IntLike, began: Value) -> None:
        """With the lock held: what every possible CPU has touched. ``began`` is before the lock was taken."""
        taken = k.local(k.now_ns())
        with k.for_range(k.machine.cpus) as cpu:
            with k.fn("cgroup_rstat_updated_list"):
                k.line_read(cpu)
                now = k.now_ns()
                positions = self.touched(k, cgroup, now - self._cpu_flushed(k, cgroup, cpu))
            with k.if_(positions > 0), k.func(k.symbol("mem_cgroup_css_rstat_flush")):
                k.work(positions * round(k.cycles("css_rstat_flush_item") * self.items))
                k.line_read(cpu, positions * self.lines)
            self._note(k, cgroup, cpu, now)
            self._between_cpus(k, cpu, taken)
        k.store(self.flushed[cgroup], k.now_ns())
        k.count("rstat/flushes")
        self._observe(k, cgroup, k.now_ns() - began)

    def _cpu_flushed(self, k: KernelBuilder, cgroup: IntLike, cpu: Value) -> Value:
        """When a CPU's part of a subtree was flushed last: with the root, or with the subtree itself."""
        with_root = k.load(self.root_flushed[cpu])
        if not isinstance(cgroup, Value):
            return with_root if cgroup == 0 else k.maximum(with_root, k.load(self.flushed[cgroup]))
        latest = k.local(with_root)
        with k.if_(cgroup != 0):
            latest.set(k.maximum(latest, k.load(self.flushed[cgroup])))
        return latest

    def _note(self, k: KernelBuilder, cgroup: IntLike, cpu: Value, now: Value) -> None:
        """The root's flush is remembered CPU by CPU, as it takes milliseconds."""
        if isinstance(cgroup, Value):
            with k.if_(cgroup == 0):
                k.store(self.root_flushed[cpu], now)
        elif cgroup == 0:
            k.store(self.root_flushed[cpu], now)

    def _take(self, k: KernelBuilder) -> None:
        with k.func("__cgroup_rstat_lock"):
            k.acquire(self.lock)

    def _between_cpus(self, k: KernelBuilder, cpu: Value, taken: Local) -> None:
        """Drop the lock and take it again where this version does, but not after the last CPU."""
        drop = k.config.rstat_lock_drop
        if drop == "never":
            return
        wanted = cpu < k.machine.cpus - 1
        if drop == "contended":
            wanted = wanted & k.is_contended(self.lock)
        elif drop == "resched":
            wanted = wanted & (k.now_ns() - taken > k.config.resched_ns)
        with k.if_(wanted):
            k.release(self.lock)
            k.call("cond_resched")
            self._take(k)
            taken.set(k.now_ns())
            k.count("rstat/yields")

    def _observe(self, k: KernelBuilder, cgroup: IntLike, duration_ns: Value) -> None:
        if not isinstance(cgroup, Value):
            k.observe(f"flush_ns/level{int(self.tree.level[cgroup])}", duration_ns)
            return
        level = k.load(self.level[cgroup])
        for number in range(self.tree.levels):
            with k.if_(level == number):
                k.observe(f"flush_ns/level{number}", duration_ns)
