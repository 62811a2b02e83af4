"""Flushing cgroup statistics (kernel/cgroup/rstat.c): one lock, a walk over all possible CPUs, what each CPU touched.

Updates are not simulated one by one: millions a second would be. What a flush needs of them is how many cgroups of the
flushed subtree a CPU has touched since that CPU was flushed last, a random number whose mean and variance follow from
the update rates (``CgroupTree.updated_positions``); it is drawn when a flush gets there: first whether it touched any,
which is exact, then how many, as if normally distributed. ``tests/kernel/test_rstat.py``
holds this against a simulation update by update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from zexp.kernel.builder import KernelBuilder
from zexp.program import MUTEX, SPINLOCK_IRQ, Array, IntLike, LockKind, StagingError, Value

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
LOCKS = {
    "one": "cgroup_rstat_lock",
    "memory": "rstat_ss_lock(memory)",
    "base": "rstat_base_lock",
    "io": "rstat_ss_lock(io)",
}
"""The lock of the one tree, and those of the subsystems' (6.17 on)."""
RSTAT_MUTEX = LockKind(True, "__mutex_lock", MUTEX.queue, MUTEX.spin)
CALLBACKS = {
    "base": "cgroup_base_stat_flush",
    "memory": "mem_cgroup_css_rstat_flush",
    "io": "blkcg_rstat_flush",
}
"""By subsystem: what is called for every touched cgroup and CPU."""


def _scaled(rows: list[Floats], unit: int) -> Ints:
    """A row a cgroup, a column a power of two, in 1/``unit``."""
    return np.rint(np.array(rows).T * unit).astype(np.int64)


class Turn:
    """One flush's dealings with the lock: every acquisition is observed, by thread name and level of the cgroup."""

    def __init__(self, k: KernelBuilder, rstat: Rstat, cgroup: IntLike) -> None:
        self.lock = rstat.lock
        self.levels: list[tuple[int, Value | None]]
        if isinstance(cgroup, Value):  # histograms are chosen when staged: compare once, as observed often
            level = k.load(rstat.level[cgroup])
            self.levels = [(number, level == number) for number in range(rstat.tree.levels)]
        else:
            self.levels = [(int(rstat.tree.level[cgroup]), None)]
        self.asked, self.taken = k.local(0), k.local(0)

    def take(self, k: KernelBuilder) -> None:
        """Take the lock."""
        with k.func(k.symbol("__cgroup_rstat_lock")):
            self.asked.set(k.now_ns())
            k.acquire(self.lock)
            self.taken.set(k.now_ns())

    def give(self, k: KernelBuilder) -> None:
        """Release the lock."""
        held = k.now_ns() - self.taken
        k.release(self.lock)
        self.observe(k, {f"rstat_wait_ns/{k.comm}": self.taken - self.asked, f"rstat_hold_ns/{k.comm}": held})

    def observe(self, k: KernelBuilder, values: dict[str, Value]) -> None:
        """Put values into the histograms of the flushed cgroup's level."""
        for number, here in self.levels:
            with nullcontext() if here is None else k.if_(here):
                for name, value in values.items():
                    k.observe(f"{name}/level{number}", value)


class Rstat:
    """The cgroups some CPU has touched, for some subsystems, and the lock under which that is flushed."""

    def __init__(
        self,
        k: KernelBuilder,
        tree: CgroupTree,
        subsystems: tuple[str, ...] = ("base", "memory", "io"),
        lock: str = LOCKS["one"],
    ) -> None:
        config, cpus = k.config, k.machine.cpus
        self.tree = tree
        self.lock = k.spinlock(lock, RSTAT_MUTEX if config.rstat_lock == "mutex" else SPINLOCK_IRQ)
        self.flushed_ns = k.bookkeeping("cgroup's statistics are of, ns", len(tree))
        """By cgroup: when it was flushed last, by itself or with an ancestor."""
        self.root_flushed = k.bookkeeping("CPU's last root flush, ns", cpus)
        # a cgroup's last flush of its own was on CPU i at its beginning + i steps
        self.own_began = k.bookkeeping("cgroup's last flush of its own began, ns", len(tree))
        self.own_step = k.bookkeeping("ns a CPU it took", len(tree))
        self.end = k.bookkeeping("end of cgroup's subtree", len(tree), tree.end)
        self.level = k.bookkeeping("level of cgroup", len(tree), tree.level)
        chance, mean, deviation = self._tables(cpus)
        self.chance = k.bookkeeping("chance of a touched cgroup", chance.size, chance.ravel())
        self.mean = k.bookkeeping("mean of touched cgroups", mean.size, mean.ravel())
        self.deviation = k.bookkeeping("deviation of touched cgroups", deviation.size, deviation.ravel())
        # per CPU and cgroup: the vmstats' 16 lines, and 8 of each node's lruvec
        self.lines = -(-(16 + 8 * k.machine.nodes) // OVERLAPPING_READS) if "memory" in subsystems else 0
        items = {CALLBACKS["memory"]: 65 + 31 * k.machine.nodes}
        self.callbacks = {
            name: round(k.cycles(name) + k.cycles("css_rstat_flush_item") * items.get(name, 0))
            for name in (CALLBACKS[subsystem] for subsystem in subsystems)
        }
        """Cycles of each, for one cgroup and CPU, beyond reading the ``lines``."""
        self.site: str | None = None
        """The call site being staged."""
        self._statistics: list[tuple[Array, Array]] = []
        self._in_use = False

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

    def statistic(self, k: KernelBuilder, name: str, current: Array) -> Array:
        """Declare a statistic, ``current[c]`` being its value in the subtree of cgroup ``c``; its values as flushed."""
        if self._in_use:
            raise StagingError(f"statistic {name!r}: declare it before the first flush is staged")
        if len(current) != len(self.tree):
            raise StagingError(f"statistic {name!r} has {len(current)} values for {len(self.tree)} cgroups")
        visible = k.bookkeeping(f"{name} as flushed", len(current), k.memory.initial(current))
        self._statistics.append((current, visible))
        return visible

    def cgroup_is_descendant(self, k: KernelBuilder, cgroup: IntLike, ancestor: Value) -> Value:
        """1 if ``cgroup`` is ``ancestor`` or below it; 0 if ``ancestor`` is negative, no cgroup."""
        return (ancestor >= 0) & (ancestor <= cgroup) & (k.load(self.end[k.maximum(ancestor, 0)]) > cgroup)

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

    @contextmanager
    def on_behalf_of(self, k: KernelBuilder, site: str) -> Iterator[None]:
        """A call site: how often it is passed, and how many flushes begin in it, is counted."""
        k.count(f"flush/{site}/calls")
        outer, self.site = self.site, site
        yield
        self.site = outer

    def cgroup_rstat_flush(
        self, k: KernelBuilder, cgroup: IntLike, still_wanted: Callable[[], IntLike] | None = None
    ) -> None:
        """Flush a subtree: every possible CPU in turn, under the lock, which is dropped between CPUs as configured.

        ``still_wanted`` is asked when the lock has been taken; if it says 0, the flush is not done.
        """
        self._in_use = True
        turn = Turn(k, self, cgroup)
        one = k.config.rstat_trees == "one"
        with k.fn("cgroup_rstat_flush"), k.fn("cgroup_rstat_flush_locked") if one else nullcontext():
            turn.take(k)
            if still_wanted is None:
                self._flush_all(k, cgroup, turn)
            else:
                with k.if_(still_wanted()):
                    self._flush_all(k, cgroup, turn)
                with k.else_():
                    k.count("rstat/not_wanted_any_more")
            turn.give(k)

    def _flush_all(self, k: KernelBuilder, cgroup: IntLike, turn: Turn) -> None:
        """With the lock held: what every possible CPU has touched."""
        # counted when it begins, so that acquisitions add up in runs that end in the middle of a flush
        k.count("rstat/flushes")
        if self.site is not None:
            k.count(f"flush/{self.site}/flushes")
        own = self._last_flush_of_its_own(k, cgroup)
        began = k.now_ns()
        k.store(self.own_began[cgroup], began)
        with k.for_range(k.machine.cpus) as cpu:
            with k.fn("cgroup_rstat_updated_list"):
                k.line_read(cpu)
                if k.config.rstat_trees == "per_subsystem":
                    k.call("css_process_update_tree")
                now = k.now_ns()
                positions = self.touched(k, cgroup, now - k.maximum(k.load(self.root_flushed[cpu]), own(cpu)))
            with k.if_(positions > 0):
                self._flush_positions(k, cpu, positions)
            self._note(k, cgroup, cpu, now)
            self._between_cpus(k, cpu, turn)
        k.store(self.own_step[cgroup], (k.now_ns() - began) // k.machine.cpus)
        self._up_to_date(k, cgroup)
        # as the tracing tools have it: from the first acquisition to the last release, with the waits between
        turn.observe(k, {"flush_ns": k.now_ns() - began})

    def _flush_positions(self, k: KernelBuilder, cpu: Value, positions: Value) -> None:
        """Every touched cgroup's callbacks."""
        for callback, cycles in self.callbacks.items():
            with k.func(k.symbol(callback)):
                k.work(positions * cycles)
                if callback == CALLBACKS["memory"]:
                    k.line_read(cpu, positions * self.lines)

    def _up_to_date(self, k: KernelBuilder, cgroup: IntLike) -> None:
        """What readers see of the subtree is from now on what is true now."""
        now = k.now_ns()
        size = int(self.tree.end[cgroup]) - cgroup if isinstance(cgroup, int) else k.load(self.end[cgroup]) - cgroup
        k.fill(self.flushed_ns, cgroup, size, now)
        for current, visible in self._statistics:
            k.copy(visible, current, cgroup, size)

    def _last_flush_of_its_own(self, k: KernelBuilder, cgroup: IntLike) -> Callable[[Value], IntLike]:
        """When each CPU's part of a subtree was flushed last with the subtree itself, as a function of the CPU.

        Also while that goes on, as whoever takes the lock later stays behind. Root flushes are remembered apart.
        """
        if not isinstance(cgroup, Value) and cgroup == 0:
            return lambda cpu: 0
        apart: IntLike = cgroup != 0 if isinstance(cgroup, Value) else 1
        began = k.local(k.load(self.own_began[cgroup]) * apart)
        step = k.local(k.load(self.own_step[cgroup]) * apart)
        return lambda cpu: began + step * cpu

    def _note(self, k: KernelBuilder, cgroup: IntLike, cpu: Value, now: Value) -> None:
        """The root's flush is remembered CPU by CPU, as it takes milliseconds."""
        if isinstance(cgroup, Value):
            with k.if_(cgroup == 0):
                k.store(self.root_flushed[cpu], now)
        elif cgroup == 0:
            k.store(self.root_flushed[cpu], now)

    def _between_cpus(self, k: KernelBuilder, cpu: Value, turn: Turn) -> None:
        """Drop the lock and take it again where this version does, but not after the last CPU."""
        drop = k.config.rstat_lock_drop
        if drop == "never":
            return
        wanted = cpu < k.machine.cpus - 1
        if drop == "contended":
            wanted = wanted & k.is_contended(self.lock)
        elif drop == "resched":
            wanted = wanted & (k.now_ns() - turn.taken > k.config.resched_ns)
        with k.if_(wanted):
            turn.give(k)
            k.call("cond_resched")
            turn.take(k)
            k.count("rstat/yields")


class RstatTrees:
    """What memory.stat, cpu.stat and io.stat flush: one and the same, or (6.17 on) each its own tree and lock.

    All trees are taken to be touched alike: who charges memory on a CPU has also run there, and may have done I/O.
    """

    def __init__(self, k: KernelBuilder, tree: CgroupTree) -> None:
        self._k, self._tree = k, tree
        self._one = Rstat(k, tree) if k.config.rstat_trees == "one" else None

    @cached_property
    def memory(self) -> Rstat:
        """That of the memory controller."""
        return self._one or Rstat(self._k, self._tree, ("memory",), LOCKS["memory"])

    @cached_property
    def base(self) -> Rstat:
        """That of CPU time."""
        return self._one or Rstat(self._k, self._tree, ("base",), LOCKS["base"])

    @cached_property
    def io(self) -> Rstat:
        """That of the I/O controller."""
        return self._one or Rstat(self._k, self._tree, ("io",), LOCKS["io"])
