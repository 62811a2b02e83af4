"""The staging builder: Python runs once and emits the program that an engine runs billions of times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from zexp.program import isa
from zexp.program.errors import StagingError, caller
from zexp.program.isa import Op
from zexp.program.memory import (
    MUTEX,
    SPINLOCK,
    Array,
    LockKind,
    LockRef,
    Locks,
    Memory,
    PerCpu,
    PerNode,
    Ref,
    WaitQueue,
)
from zexp.program.optimise import optimise
from zexp.program.program import Frame, Program, ThreadInfo
from zexp.program.values import IntLike, Local, Value

if TYPE_CHECKING:
    from zexp.machine import Machine

MAX_WORK_CYCLES = 1 << 28
INT64_MAX = (1 << 63) - 1

T_co = TypeVar("T_co", covariant=True)


class Indexable(Protocol[T_co]):
    """What ``for_each`` walks: staged arrays, and the kernel model's arrays of structures."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Value, /) -> T_co: ...


@dataclass(eq=False)
class Scope:
    """A region of control flow: values made in it mean nothing outside it."""

    parent: Scope | None
    breaks: list[int] | None = None
    """Of a loop: the jumps to patch to its end."""
    held: tuple[LockRef, ...] = ()
    """Locks held when it was entered."""


@dataclass(eq=False)
class Body:
    """The code of one kind of thread."""

    comm: str
    daemon: bool
    start: int
    root: Scope
    args: dict[str, int] = field(default_factory=dict)
    constants: dict[int, int] = field(default_factory=dict)
    registers: int = isa.FIRST_FREE_REGISTER
    held: list[LockRef] = field(default_factory=list)
    scope: Scope = field(init=False)
    builder: Builder | None = None

    def __post_init__(self) -> None:
        self.scope = self.root

    def new_register(self) -> int:
        """A register nothing else uses."""
        self.registers += 1
        return self.registers - 1

    def arg(self, name: str) -> Value:
        """A parameter of the thread, given a number by ``spawn``."""
        assert self.builder is not None
        if name not in self.args:
            self.args[name] = self.new_register()
        return Value(self.builder, self, self.args[name], self.root)


class Builder:
    """Builds one program: shared state, the code of its threads, and the threads themselves.

    Declarations (``var``, ``array``, ``spinlock``, ...) can stand anywhere; code only inside ``with k.thread(...)``.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.memory = Memory()
        self.code: list[list[int]] = []
        self.where: list[tuple[str, int]] = []
        self.frames: list[Frame] = [Frame(-1, "[no frame]")]
        self._frame_ids: dict[tuple[int, str], int] = {}
        self._frame = 0
        self._body: Body | None = None
        self._label = -1
        self._waiting = False
        self._else: tuple[int, Scope] | None = None
        self._bodies: list[Body] = []
        self._threads: list[tuple[Body, int, int, dict[str, int]]] = []
        self._queues: list[str] = []
        self._metrics: list[str] = []
        self._histograms: list[tuple[str, str]] = []

    # ---- declarations -------------------------------------------------------------------------------------------

    def var(self, name: str, init: int = 0, home: int = 0, beside: Ref | None = None) -> Ref:
        """A variable on a cache line of its own in the memory of node ``home``; or on the open ``line``, or on the
        line of the variable ``beside``.
        """
        outer = self.memory.shared_line
        if beside is not None:
            self._own(beside.array.builder, beside.array.name)
            if isinstance(beside.index, Value) or beside.array.base >= Memory.UNTRACKED:
                raise StagingError(f"{name}: beside must name a fixed variable that lies on a cache line")
            self.memory.shared_line = self.memory.line_of[beside.array.base + beside.index]
        try:
            return self.array(name, 1, init=[init], homes=[home])[0]
        finally:
            self.memory.shared_line = outer

    def array(
        self,
        name: str,
        length: int,
        *,
        init: Sequence[int] | npt.NDArray[np.int64] | None = None,
        per_line: int = 1,
        homes: Sequence[int] | None = None,
    ) -> Array:
        """``length`` variables, ``per_line`` neighbours to a cache line; element i lives on node ``homes[i]``."""
        values = self._init(name, length, init)
        if per_line < 1:
            raise StagingError(f"{name}: per_line={per_line} puts no element on a cache line")
        base = self.memory.declare(name, values, self._homes(name, length, homes), per_line)
        return Array(self, name, base, length)

    def bookkeeping(self, name: str, length: int, init: Sequence[int] | npt.NDArray[np.int64] | None = None) -> Array:
        """Variables whose accesses cost nothing: what the model must know, charged for elsewhere."""
        return Array(self, name, self.memory.declare_untracked(name, self._init(name, length, init)), length)

    def per_cpu(self, name: str, init: int = 0) -> PerCpu:
        """One variable a CPU; ``.mine`` is that of the running thread's CPU."""
        homes = [int(n) for n in self.machine.node_of]
        base = self.memory.declare(name, self._init(name, len(homes), [init] * len(homes)), homes, 1)
        return PerCpu(self, name, base, len(homes))

    def per_node(self, name: str, init: int = 0) -> PerNode:
        """One variable a NUMA node; ``.mine`` is that of the running thread's node."""
        nodes = self.machine.nodes
        base = self.memory.declare(name, self._init(name, nodes, [init] * nodes), list(range(nodes)), 1)
        return PerNode(self, name, base, nodes)

    @contextmanager
    def line(self, name: str, home: int = 0) -> Iterator[None]:
        """Everything declared inside shares one cache line: a struct, or false sharing on purpose."""
        if self.memory.shared_line is not None:
            raise StagingError(f"k.line({name!r}) inside another k.line")
        (node,) = self._homes(name, 1, [home])
        self.memory.shared_line = self.memory.new_line(node, len(self.memory.variables))
        try:
            yield
        finally:
            self.memory.shared_line = None

    def locks(self, name: str, length: int = 1, kind: LockKind = SPINLOCK, homes: Sequence[int] | None = None) -> Locks:
        """``length`` locks of one class, each on its own line (or all on the open ``line``)."""
        if length < 1:
            raise StagingError(f"{name}: a lock array needs at least one lock, not {length}")
        base, klass = self.memory.declare_locks(name, kind, length, self._homes(name, length, homes))
        return Locks(self, name, kind, base, length, klass)

    def spinlock(self, name: str, kind: LockKind = SPINLOCK) -> LockRef:
        """A queued spinlock: waiters spin in FIFO order."""
        return self.locks(name, 1, kind)[0]

    def mutex(self, name: str, kind: LockKind = MUTEX) -> LockRef:
        """A mutex with optimistic spinning: waiters spin in FIFO order while the owner runs, else they sleep."""
        return self.locks(name, 1, kind)[0]

    def wait_queue(self, name: str) -> WaitQueue:
        """A queue for ``wait_event`` and ``wake``."""
        self._queues.append(name)
        return WaitQueue(self, name, len(self._queues) - 1)

    def _init(self, name: str, length: int, init: object) -> npt.NDArray[np.int64]:
        if length < 1:
            raise StagingError(f"{name}: an array needs at least one element, not {length}")
        values = np.zeros(length, np.int64) if init is None else np.asarray(init)
        if len(values) != length:
            raise StagingError(f"{name}: {len(values)} initial values for {length} elements")
        if values.dtype.kind not in "iu" or int(values.max()) > INT64_MAX:
            raise StagingError(f"{name}: initial values must be ints of 64 bits, not {values.dtype}")
        return values.astype(np.int64)

    def _homes(self, name: str, length: int, homes: Sequence[int] | None) -> list[int]:
        nodes = [0] * length if homes is None else [int(home) for home in homes]
        if len(nodes) != length:
            raise StagingError(f"{name}: {len(nodes)} homes for {length} elements")
        for home in nodes:
            if not 0 <= home < self.machine.nodes:
                raise StagingError(f"{name}: home {home}: the machine has nodes 0 to {self.machine.nodes - 1}")
        return nodes

    # ---- threads ------------------------------------------------------------------------------------------------

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

    def finish(self) -> Program:
        """Freeze the program."""
        if self._body is not None:
            raise StagingError(f"finish inside the code of thread {self._body.comm!r}")
        if not any(not body.daemon for body, *_ in self._threads):
            raise StagingError("the program has no thread that ends: spawn one that is not a daemon")
        starts = sorted({body.start for body in self._bodies})
        lean, position = optimise([list(row) for row in self.code], starts)
        where = [w for i, w in enumerate(self.where) if position[i] != position[i + 1]]
        code = np.array(lean, np.int64).reshape(-1, len(isa.COLUMNS))
        code[:, isa.B] = [self.memory.settle(int(b)) for b in code[:, isa.B]]
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
            code, where, self.frames, threads, self.memory, self._queues, self._metrics, self._histograms
        )

    # ---- frames and work ----------------------------------------------------------------------------------------

    @contextmanager
    def func(self, symbol: str) -> Iterator[None]:
        """A function frame: the time of everything inside shows under ``symbol`` in the profile."""
        outer = self._frame
        self._frame = self.frame_below(outer, symbol)
        yield
        self._frame = outer

    def frame_below(self, parent: int, symbol: str) -> int:
        """The call-tree node of ``symbol`` called from ``parent``."""
        key = (parent, symbol)
        if key not in self._frame_ids:
            self._frame_ids[key] = len(self.frames)
            self.frames.append(Frame(parent, symbol))
        return self._frame_ids[key]

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

    # ---- values -------------------------------------------------------------------------------------------------

    @property
    def cpu(self) -> Value:
        """The CPU the thread runs on."""
        return self._value(isa.CPU, root=True)

    @property
    def node(self) -> Value:
        """The NUMA node the thread runs on."""
        return self._value(isa.NODE, root=True)

    def now_ns(self) -> Value:
        """The thread's time in ns since the start of the run."""
        return self._result(Op.NOW_NS)

    def local(self, init: IntLike = 0) -> Local:
        """A value that can be set again: loop state, results of branches."""
        body = self._current()
        variable = Local(self, body, body.new_register(), body.scope)
        self.move(variable, init)
        return variable

    def move(self, target: Local, value: IntLike) -> None:
        """``target.set(value)``."""
        self._emit(Op.MOV, self._reg(target), self._reg(value))

    def alu(self, op: Op, left: IntLike, right: IntLike) -> Value:
        """Arithmetic and comparisons of values; the operators of ``Value`` call it."""
        if op in (Op.DIV, Op.MOD) and type(right) is int and right > 0 and right & (right - 1) == 0:
            op, right = (Op.SHR, right.bit_length() - 1) if op == Op.DIV else (Op.AND, right - 1)
        return self._result(op, self._reg(left), self._reg(right))

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

    # ---- shared memory ------------------------------------------------------------------------------------------

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

    # ---- locks and sleeping -------------------------------------------------------------------------------------

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

    # ---- control flow -------------------------------------------------------------------------------------------

    @contextmanager
    def if_(self, condition: IntLike) -> Iterator[None]:
        """The body runs if ``condition`` is not 0. ``with k.else_():`` may follow at once."""
        skip = self._emit(Op.JUMP_ZERO, 0, self._reg(condition))
        with self._region("if_") as scope:
            yield
        self._patch(skip)
        self._else = (skip, scope)

    @contextmanager
    def else_(self) -> Iterator[None]:
        """The other branch of the ``if_`` just before."""
        if self._else is None:
            raise StagingError("k.else_() must follow a k.if_() block directly")
        skip, _ = self._else
        done = self._emit(Op.JUMP, 0)
        self._patch(skip)
        with self._region("else_"):
            yield
        self._patch(done)

    @contextmanager
    def while_(self, condition: Callable[[], IntLike]) -> Iterator[None]:
        """Repeat while ``condition()``, which is staged once and evaluated before every turn, is not 0."""
        if not callable(condition):
            raise StagingError("k.while_ needs a function, evaluated before every turn: `k.while_(lambda: value)`")
        with self._loop() as scope:
            head = len(self.code)
            assert scope.breaks is not None
            scope.breaks.append(self._emit(Op.JUMP_ZERO, 0, self._reg(condition())))
            yield
            self._emit(Op.JUMP, head)

    @contextmanager
    def for_range(self, stop: IntLike) -> Iterator[Value]:
        """``for i in range(stop)``, with a staged counter."""
        body = self._current()
        counter = self.local(0)
        if isinstance(stop, Local):  # like range(), look once
            stop = self.local(stop)
        limit = self._reg(stop)
        skip = None if isinstance(stop, int) and stop > 0 else self._emit(Op.JUMP_ZERO, 0, self._reg(counter < stop))
        with self._loop():
            head = len(self.code)
            yield Value(self, body, counter.register, body.scope)
            self._emit(Op.LOOP, head, counter.register, limit)
        if skip is not None:
            self._patch(skip)

    @contextmanager
    def for_each(self, items: Indexable[T_co]) -> Iterator[T_co]:
        """Walk an array or a list of structures."""
        with self.for_range(len(items)) as i:
            yield items[i]

    def break_(self) -> None:
        """Leave the innermost loop."""
        body = self._current()
        scope: Scope | None = body.scope
        while scope is not None and scope.breaks is None:
            scope = scope.parent
        if scope is None or scope.breaks is None:
            raise StagingError("k.break_() outside a loop")
        self._same_locks(scope, "k.break_()")
        scope.breaks.append(self._emit(Op.JUMP, 0))

    # ---- observations -------------------------------------------------------------------------------------------

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

    # ---- emission -----------------------------------------------------------------------------------------------

    def _current(self) -> Body:
        if self._body is None:
            raise StagingError("code must stand inside `with k.thread(comm):`")
        return self._body

    def _emit(self, op: Op, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, work: int = 0) -> int:
        self._current()
        self.code.append([int(op), self._frame, a, b, c, d, e, work])
        self.where.append(caller())
        self._else = None
        return len(self.code) - 1

    def _result(self, op: Op, b: int = 0, c: int = 0, d: int = 0, e: int = 0) -> Value:
        body = self._current()
        register = body.new_register()
        self._emit(op, register, b, c, d, e)
        return self._value(register)

    def _value(self, register: int, root: bool = False) -> Value:
        body = self._current()
        return Value(self, body, register, body.root if root else body.scope)

    def _reg(self, value: IntLike) -> int:
        body = self._current()
        if not isinstance(value, Value):
            number = self._number(value)
            if number == 0:
                return isa.ZERO
            if number not in body.constants:
                body.constants[number] = body.new_register()
            return body.constants[number]
        self._own(value.builder, repr(value))
        if value.body is not body:
            raise StagingError(
                f"{value!r} is used in the code of thread {body.comm!r}: share it through a variable "
                "(k.var, k.store, k.load) or a parameter (body.arg)"
            )
        scope: Scope | None = body.scope
        while scope is not None and scope is not value.scope:
            scope = scope.parent
        if scope is None:
            raise StagingError(f"{value!r} was made inside a branch or loop that has ended: keep it in a k.local()")
        return value.register

    def _number(self, value: object) -> int:
        if isinstance(value, Value):
            return int(value)  # raises
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise StagingError(f"{value!r} is neither an int nor a staged value")
        if not -INT64_MAX - 1 <= value <= INT64_MAX:
            raise StagingError(f"{value} does not fit 64 bits")
        return int(value)

    def _own(self, builder: Builder, what: str) -> None:
        if builder is not self:
            raise StagingError(f"{what} belongs to another program")

    def _cell(self, ref: Ref) -> tuple[int, int, int]:
        if not isinstance(ref, Ref):
            raise StagingError(f"{ref!r} is not a variable: name one element, e.g. array[i] or per_cpu.mine")
        self._own(ref.array.builder, ref.array.name)
        return ref.array.base, self._reg(ref.index), ref.array.length

    def _lock(self, ref: LockRef) -> tuple[int, int, int]:
        if not isinstance(ref, LockRef):
            raise StagingError(f"{ref!r} is not a lock")
        self._own(ref.locks.builder, ref.locks.name)
        return ref.locks.base, self._reg(ref.index), ref.locks.length

    def _patch(self, jump: int) -> None:
        self.code[jump][isa.A] = self._label = len(self.code)

    @contextmanager
    def _region(self, what: str, breaks: list[int] | None = None) -> Iterator[Scope]:
        body = self._current()
        scope = body.scope = Scope(body.scope, breaks, tuple(body.held))
        self._label = len(self.code)
        yield scope
        self._same_locks(scope, f"the end of k.{what}")
        assert scope.parent is not None
        body.scope = scope.parent

    @contextmanager
    def _loop(self) -> Iterator[Scope]:
        breaks: list[int] = []
        with self._region("a loop", breaks) as scope:
            yield scope
        for jump in breaks:
            self._patch(jump)
        self._label = len(self.code)

    def _same_locks(self, scope: Scope, where: str) -> None:
        held = self._current().held
        if [h.identity() for h in held] != [h.identity() for h in scope.held]:
            names = ", ".join(h.locks.name for h in held if h not in scope.held) or "none"
            before = ", ".join(h.locks.name for h in scope.held) or "none"
            raise StagingError(
                f"unbalanced lock at {where}: held there: {names}; held at its start: {before}; use `with k.lock(ref):`"
            )

    def _may_sleep(self, what: str) -> None:
        for held in self._current().held:
            if not held.locks.kind.mutex:
                raise StagingError(f"{what} while holding the spinlock {held.locks.name}")
