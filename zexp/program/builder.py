"""The staging builder: Python runs once and emits the program that an engine runs billions of times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from zexp.program import isa
from zexp.program.control import ControlFlow
from zexp.program.declarations import Declarations
from zexp.program.errors import StagingError
from zexp.program.isa import Op
from zexp.program.memory import (
    Array,
    LockRef,
    Ref,
    Series,
    WaitQueue,
)
from zexp.program.optimise import optimise
from zexp.program.program import Program, SeriesInfo, ThreadInfo
from zexp.program.staging import MAX_WORK_CYCLES, Body, Scope
from zexp.program.values import IntLike, Value


class Builder(Declarations, ControlFlow):
    """Builds one program: shared state, the code of its threads, and the threads themselves.

    Declarations (``var``, ``array``, ``spinlock``, ...) can stand anywhere; code only inside ``with k.thread(...)``.
    """

    # ---- threads ---------------------------------------------------------------------------------------------------

    @contextmanager
    def thread(self, comm: str, *, daemon: bool = False) -> Iterator[Body]:
        """The code of threads named ``comm``. A run ends when all threads that are not daemons have ended."""
        if self._body is not None:
            raise StagingError(f"k.thread({comm!r}) inside the code of thread {self._body.comm!r}")
        self._body = Body(comm, daemon, len(self.code), Scope(None), builder=self)
        self._bodies.append(self._body)
        self._label = len(self.code)
        yield self._body
        self._same_locks(self._body.root, f"the end of thread {comm!r}")
        self._emit(Op.HALT)
        self._body = None

    def spawn(self, body: Body, cpu: int, start_ns: int = 0, **args: int) -> None:
        """Start a thread of ``body`` on ``cpu`` (one thread a CPU) at ``start_ns``, with the body's parameters."""
        if body.builder is not self:
            raise StagingError(f"spawn: thread {body.comm!r} belongs to another program")
        cpu, start_ns = self._number(cpu), self._number(start_ns)
        if not 0 <= cpu < self.machine.cpus:
            raise StagingError(f"spawn on CPU {cpu}: the machine has CPUs 0 to {self.machine.cpus - 1}")
        if any(cpu == other for _, other, _, _ in self._threads):
            raise StagingError(f"spawn: CPU {cpu} already has a thread; the simulated machine runs one a CPU")
        if args.keys() != body.args.keys():
            raise StagingError(f"spawn of {body.comm!r} got {sorted(args)}, its parameters are {sorted(body.args)}")
        if start_ns < 0:
            raise StagingError(f"spawn: start_ns={start_ns} is before the start of the run")
        self._threads.append((body, cpu, start_ns, {k: self._number(v) for k, v in args.items()}))

    def run_until(self, time_ns: int) -> None:
        """The run ends ``time_ns`` after its start at the latest: nothing is executed from then on.

        Such a program needs no thread that ends. It ends then, too, if all its threads wait for ever.
        """
        time_ns = self._number(time_ns)
        if self._horizon_ns is not None:
            raise StagingError(f"run_until({time_ns}): the run already ends at {self._horizon_ns} ns")
        if time_ns <= 0:
            raise StagingError(f"run_until({time_ns}): give a positive number of ns")
        self._horizon_ns = time_ns

    def finish(self) -> Program:
        """Freeze the program."""
        if self._body is not None:
            raise StagingError(f"finish inside the code of thread {self._body.comm!r}")
        if not self._threads or (self._horizon_ns is None and all(body.daemon for body, *_ in self._threads)):
            raise StagingError("the program has no thread that ends: spawn one that is not a daemon")
        starts = sorted({body.start for body in self._bodies})
        lean, position = optimise([list(row) for row in self.code], starts)
        where = [w for i, w in enumerate(self.where) if position[i] != position[i + 1]]
        code = np.array(lean, np.int64).reshape(-1, len(isa.COLUMNS))
        code[:, isa.B] = [self.memory.settle(int(b)) for b in code[:, isa.B]]
        two_arrays = np.isin(code[:, isa.OP], list(isa.ADDRESSES_A))
        code[two_arrays, isa.A] = [self.memory.settle(int(a)) for a in code[two_arrays, isa.A]]
        threads = []
        for body, cpu, start_ns, args in self._threads:
            registers = np.zeros(body.registers, np.int64)
            registers[isa.CPU], registers[isa.NODE] = cpu, self.machine.node_of[cpu]
            for value, register in body.constants.items():
                registers[register] = value
            for name, register in body.args.items():
                registers[register] = args[name]
            threads.append(ThreadInfo(body.comm, body.daemon, cpu, start_ns, position[body.start], registers))
        return Program.freeze(
            code,
            where,
            self.frames,
            threads,
            self.memory,
            self._queues,
            self._metrics,
            self._histograms,
            [self._series_info(series) for series in self._series],
            self._horizon_ns,
        )

    def _series_info(self, series: Series) -> SeriesInfo:
        recorded, times, values = (
            self.memory.settle(array.base) for array in (series.recorded, series.times_ns, series.values)
        )
        return SeriesInfo(series.name, series.unit, len(series.values), recorded, times, values)

    # ---- work and values -------------------------------------------------------------------------------------------

    def work(self, cycles: float | Value, *, spread: bool = False) -> None:
        """Compute for ``cycles`` (a number, in 1/16 steps, or a staged integer).

        ``spread``: not before what follows in the same function, but in the course of it.
        """
        if isinstance(cycles, Value):
            self._emit(Op.WORK_R, self._reg(cycles))
            return
        if isinstance(cycles, bool) or not isinstance(cycles, (int, float, np.integer, np.floating)):
            raise StagingError(f"work of {cycles!r} cycles: give a number or a staged value")
        if not 0 <= cycles <= MAX_WORK_CYCLES:
            raise StagingError(f"work of {cycles} cycles: give 0 to {MAX_WORK_CYCLES}, or use k.busy_ns or k.sleep_ns")
        units = round(cycles * isa.WORK_UNIT)
        if units == 0:
            return
        last = self.code[-1] if self.code else None
        if (
            last is not None
            and self._label != len(self.code)
            and last[isa.FRAME] == self._frame
            and last[isa.OP] not in isa.CARRIES_NO_WORK
            and last[isa.WORK] + units <= MAX_WORK_CYCLES * isa.WORK_UNIT
        ):
            last[isa.WORK] += units
            self._else = None
        else:
            self._emit(Op.WORK, int(spread), work=units)

    def busy_ns(self, time_ns: IntLike) -> None:
        """Keep the CPU busy for a time that does not depend on its clock."""
        self._emit(Op.BUSY_NS, self._reg(time_ns))

    def memory_read(self, node: IntLike, times: IntLike = 1) -> None:
        """Dependent reads of lines nobody has cached, from the memory of ``node``: one memory latency each."""
        self._emit(Op.MEMORY, self._reg(node), self._reg(times))

    def now_ns(self) -> Value:
        """The thread's time in ns since the start of the run."""
        return self._result(Op.NOW_NS)

    def minimum(self, left: IntLike, right: IntLike) -> Value:
        """The smaller one."""
        return self.alu(Op.MIN, left, right)

    def maximum(self, left: IntLike, right: IntLike) -> Value:
        """The larger one."""
        return self.alu(Op.MAX, left, right)

    def rand_int(self, bound: IntLike) -> Value:
        """Uniform in ``[0, bound)``, bound at most 2**31; every thread draws from its own seeded stream."""
        return self._result(Op.RAND_INT, self._reg(bound))

    def rand_exp(self, mean: IntLike) -> Value:
        """Exponentially distributed with ``mean`` (at most 2**33), rounded to the nearest integer."""
        return self._result(Op.RAND_EXP, self._reg(mean))

    def line_read(self, writer: IntLike, times: IntLike = 1) -> None:
        """Dependent reads of lines that CPU ``writer`` wrote last: one line transfer each, none from the CPU itself."""
        self._emit(Op.LINES, self._reg(writer), self._reg(times))

    def bits(self, value: IntLike) -> Value:
        """Number of bits: i for values in ``[2**(i-1), 2**i)``, 0 for 0 and less."""
        return self._result(Op.LOG2, self._reg(value))

    # ---- shared memory ---------------------------------------------------------------------------------------------

    def load(self, ref: Ref) -> Value:
        """Read a variable: a cache hit, or a wait for the line."""
        base, index, length = self._cell(ref)
        return self._result(Op.LOAD, base, index, length)

    def store(self, ref: Ref, value: IntLike) -> None:
        """Write a variable through the store buffer: the CPU goes on while the line is fetched."""
        base, index, length = self._cell(ref)
        self._emit(Op.STORE, self._reg(value), base, index, length)

    def atomic_add(self, ref: Ref, value: IntLike = 1) -> Value:
        """Locked read-modify-write; gives the new value. Waits for earlier stores and for the line."""
        base, index, length = self._cell(ref)
        return self._result(Op.ATOMIC_ADD, base, index, length, self._reg(value))

    def compare_and_swap(self, ref: Ref, expected: IntLike, new: IntLike) -> Value:
        """Locked compare-and-swap; gives 1 if the variable held ``expected``."""
        base, index, length = self._cell(ref)
        body = self._current()
        old, replacement = self._reg(expected), self._reg(new)
        pair = body.new_register()
        body.new_register()
        self._emit(Op.MOV, pair, old)
        self._emit(Op.MOV, pair + 1, replacement)
        return self._result(Op.CAS, base, index, length, pair)

    def fill(self, array: Array, start: IntLike, count: IntLike, value: IntLike) -> None:
        """Set ``count`` variables of a bookkeeping array, from ``start`` on, to one value."""
        self._bulk(array, start, count)
        self._emit(Op.FILL, self._reg(value), array.base, self._reg(start), len(array), self._reg(count))

    def copy(self, target: Array, source: Array, start: IntLike, count: IntLike) -> None:
        """Copy ``count`` variables, from ``start`` on, to the same places of another bookkeeping array as long."""
        self._bulk(target, start, count)
        self._bulk(source, start, count)
        if len(target) != len(source):
            raise StagingError(f"{target.name} has {len(target)} elements and {source.name} {len(source)}")
        self._emit(Op.COPY, target.base, source.base, self._reg(start), len(source), self._reg(count))

    def _bulk(self, array: Array, start: IntLike, count: IntLike) -> None:
        """Raise unless a range may be accessed at once: such accesses cost nothing, so only of bookkeeping."""
        if not isinstance(array, Array):
            raise StagingError(f"{array!r} is not an array")
        self._own(array.builder, array.name)
        if array.tracked:
            raise StagingError(f"{array.name} lies on cache lines: access its elements one by one")
        first = 0 if isinstance(start, Value) else self._number(start)
        last = first if isinstance(count, Value) else first + self._number(count)
        if not 0 <= first <= last <= len(array):
            raise StagingError(f"{array.name}: {count} elements from {start} on are not in its {len(array)}")

    # ---- locks and sleeping ----------------------------------------------------------------------------------------

    @contextmanager
    def lock(self, ref: LockRef) -> Iterator[None]:
        """Hold a lock."""
        self.acquire(ref)
        yield
        self.release(ref)

    def acquire(self, ref: LockRef) -> None:
        """Take a lock; prefer ``with k.lock(ref):``."""
        self._lock(ref)
        kind = ref.locks.kind
        body = self._current()
        if any(h.identity() == ref.identity() for h in body.held):
            raise StagingError(f"{ref.locks.name} is taken while it is already held")
        if kind.mutex:
            self._may_sleep(f"taking the mutex {ref.locks.name}")
        with self.func(kind.acquire):
            queue = self.frame_below(self._frame, kind.queue)
            if kind.mutex:
                spin = self.frame_below(self._frame, kind.spin)
                self._emit(Op.MUTEX_LOCK, *self._lock(ref), queue, spin)
            else:
                self._emit(Op.SPIN_LOCK, *self._lock(ref), queue)
        body.held.append(ref)

    def release(self, ref: LockRef) -> None:
        """Release a lock; prefer ``with k.lock(ref):``."""
        body = self._current()
        for held in reversed(body.held):
            if held.identity() == ref.identity():
                body.held.remove(held)
                break
        else:
            raise StagingError(f"{ref.locks.name} is released but not held")
        self._emit(Op.UNLOCK, *self._lock(ref), int(ref.locks.kind.mutex))

    @contextmanager
    def trylock(self, ref: LockRef) -> Iterator[Value]:
        """``with k.trylock(ref) as taken:`` tries; the body runs only if it was taken, and releases at its end."""
        self._lock(ref)
        if ref.locks.kind.mutex:
            raise StagingError(f"trylock of the mutex {ref.locks.name}: only spinlocks have one")
        with self.func("_raw_spin_trylock"):
            body = self._current()
            taken = body.new_register()
            self._emit(Op.SPIN_TRYLOCK, *self._lock(ref), 0, taken)
        value = Value(self, body, taken, body.scope)
        with self.if_(value):
            body.held.append(ref)
            yield value
            self.release(ref)

    def is_contended(self, ref: LockRef) -> Value:
        """1 if another thread waits for the lock (spin_is_contended)."""
        body = self._current()
        waiting = body.new_register()
        self._emit(Op.CONTENDED, *self._lock(ref), 0, waiting)
        return Value(self, body, waiting, body.scope)

    def sleep_ns(self, time_ns: IntLike) -> None:
        """Leave the CPU for ``time_ns``."""
        self._may_sleep("sleeping")
        self._emit(Op.SLEEP_NS, self._reg(time_ns))

    def wait_event(self, queue: WaitQueue, condition: Callable[[], IntLike]) -> None:
        """Sleep in ``queue`` until ``condition()`` is true; no wake-up between test and sleep is lost."""
        self._may_sleep(f"waiting in {queue.name}")
        if self._waiting:
            raise StagingError(f"k.wait_event({queue.name}) inside the condition of another k.wait_event")
        self._own(queue.builder, queue.name)
        with self._loop() as scope:
            head = len(self.code)
            self._emit(Op.WAIT_PREPARE, queue.number)
            self._waiting = True
            awaited = condition()
            self._waiting = False
            with self.if_(awaited):
                assert scope.breaks is not None
                scope.breaks.append(self._emit(Op.JUMP, 0))
            self._emit(Op.WAIT_SLEEP, queue.number)
            self._emit(Op.JUMP, head)
        self._emit(Op.WAIT_FINISH, queue.number)

    def wake(self, queue: WaitQueue, count: IntLike = 0) -> None:
        """Wake the first ``count`` waiters of a queue; all of them with 0."""
        self._own(queue.builder, queue.name)
        self._emit(Op.WAKE, queue.number, self._reg(count))

    # ---- observations ----------------------------------------------------------------------------------------------

    def count(self, metric: str, value: IntLike = 1) -> None:
        """Add to a metric: the run reports the sum under this name."""
        if metric not in self._metrics:
            self._metrics.append(metric)
        self._emit(Op.COUNT, self._metrics.index(metric), self._reg(value))

    def observe(self, histogram: str, value: IntLike, unit: str = "ns") -> None:
        """Put a value into a log2 histogram."""
        names = [name for name, _ in self._histograms]
        if histogram not in names:
            names.append(histogram)
            self._histograms.append((histogram, unit))
        self._emit(Op.OBSERVE, names.index(histogram), self._reg(value))

    def record(self, series: Series, value: IntLike) -> None:
        """Append ``value`` with the present time to a series, at no cost; the run counts what does not fit.

        All threads may record into the same series: it is in the order of time.
        """
        if not isinstance(series, Series):
            raise StagingError(f"{series!r} is not a series: declare one with k.series")
        self._own(series.builder, f"series {series.name!r}")
        # This comes first for what a call may charge with the instruction that follows it: from here on no time passes.
        kept = self.local(value)
        now = self.now_ns()
        place = self.atomic_add(series.recorded[0]) - 1
        with self.if_(place < len(series.values)):
            self.store(series.times_ns[place], now)
            self.store(series.values[place], kept)
