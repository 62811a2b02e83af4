"""Random valid programs on random small machines.

They cannot hang: locks are taken in one global order (mutexes first), nobody waits for an event while holding a lock,
and a body waits only for events of bodies before it, which every one of their threads is sure to raise. With a horizon
they may consist of daemons only, which wait and loop for ever.

Hypothesis chooses the seed of an author and how many statements it may write. (Drawing every choice through hypothesis
shrinks better, but keeps the programs too small to contend for anything.) The same seed with fewer statements gives the
beginning of the same text, so that failures still shrink.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from zexp.machine import CoreCosts, Machine
from zexp.program import (
    MUTEX,
    SPINLOCK,
    SPINLOCK_IRQ,
    Array,
    Builder,
    Local,
    LockRef,
    Locks,
    PerCpu,
    PerNode,
    Program,
    Ref,
    Value,
    WaitQueue,
)
from zexp.program.isa import Op

from .machines import machine

MAX_TURNS = 48
"""Product of the trip counts of nested loops."""
ARITHMETIC = (Op.ADD, Op.SUB, Op.MUL, Op.AND, Op.OR, Op.XOR, Op.SHL, Op.SHR, Op.MIN, Op.MAX, Op.LT, Op.LE, Op.EQ, Op.NE)
CONSTANTS = (0, 1, 2, 3, 5, 63, 64, 100, -1, -2, -7, 1000, 1 << 31, -(1 << 40), (1 << 63) - 1, -(1 << 63))


@dataclass(frozen=True)
class Case:
    machine: Machine
    program: Program
    random: bool
    """It draws random numbers."""
    ends: bool
    """It has no daemons and no horizon: every thread ends."""


def random_machine(rng: np.random.Generator, wide: bool) -> Machine:
    """``wide``: more than 64 CPUs, so that the sharers of a line need several words."""
    cpus = int(rng.integers(65, 200)) if wide else int(rng.integers(1, 9))
    # Tame figures make many threads stand at the same picosecond; wild ones test the rounding.
    tame = bool(rng.integers(0, 2))
    core_of = np.arange(cpus)
    if rng.integers(0, 2):
        core_of = np.unique(rng.integers(0, cpus, cpus), return_inverse=True)[1]
    l3_of_core = rng.integers(0, rng.integers(1, 5), cpus)
    l3_of = np.unique(l3_of_core[core_of], return_inverse=True)[1]
    nodes = int(rng.integers(1, 4))
    node_of = rng.integers(0, nodes, cpus)[core_of]

    def latencies(n: int) -> npt.NDArray[np.float64]:
        numbers = rng.integers(1, 4, (n, n)) * 10.0 if tame else rng.uniform(0.0001, 200, (n, n)).round(4)
        return np.asarray(numbers, np.float64)

    latency = latencies(cpus)
    np.fill_diagonal(latency, 0)
    core = CoreCosts(
        l1_hit_cycles=4 if tame else float(rng.uniform(0.001, 9)),
        atomic_cycles=10 if tame else float(rng.uniform(0.001, 30)),
        store_buffer_entries=int(rng.integers(1, 5)),
        smt_share=1 if tame else float(rng.uniform(0.1, 1)),
        wakeup_ns=float(rng.choice((1, 100, 1500))) if tame else float(rng.uniform(0.0001, 2000)),
    )
    ghz = 1.0 if tame else float(rng.uniform(0.5, 5))
    return machine(
        latency,
        memory_ns=latencies(nodes),
        core_of=core_of.tolist(),
        l3_of=l3_of.tolist(),
        node_of=node_of.tolist(),
        ghz=ghz,
        core=core,
    )


@dataclass
class Event:
    """A counter that rises to at least ``total``, and the queue of those who wait for it."""

    queue: WaitQueue
    counter: Ref
    raises: int
    """By each thread of the body it belongs to."""
    total: int


class Author:
    """Writes one program."""

    def __init__(
        self, rng: Random, machine: Machine, size: int, random: bool, daemons: bool, horizon: bool = False
    ) -> None:
        self.rng, self.machine, self.size, self.random = rng, machine, size, random
        self.k = Builder(machine)
        self.values: list[Value] = []
        self.locals: list[Local] = []
        self.held: list[tuple[int, LockRef]] = []
        self.turns = 1
        self.left = 0
        """Statements that this body may still have."""
        self.loops: list[int] = []
        """Number of locks held when each open loop began."""
        self.frames = 0
        self.events: list[Event] = []
        self._declare()
        self._threads(daemons, horizon and self.pick(0, 1) == 0)
        if horizon:  # long horizons: most of these programs end earlier if they can
            self.k.run_until(int(2 ** self.rng.uniform(0, self.pick(9, 14))))
        self.program = self.k.finish()

    def pick(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    # ---- declarations -------------------------------------------------------------------------------------------

    def _declare(self) -> None:
        k, nodes = self.k, self.machine.nodes
        self.arrays: list[Array] = [k.var("own", 3, self.pick(0, nodes - 1)).array]
        with k.line("packed", self.pick(0, nodes - 1)):
            self.arrays.append(k.var("packed_a").array)
            self.arrays.append(k.array("packed_b", 2, init=[7, -7]))
            packed_lock = k.locks("packed_lock", 1)
        length = self.pick(1, 5)
        homes = [self.pick(0, nodes - 1) for _ in range(length)]
        self.arrays.append(k.array("array", length, per_line=self.pick(1, 3), homes=homes))
        length = self.pick(1, 3)
        self.books = [k.bookkeeping("book", length), k.bookkeeping("copy of book", length)]
        self.arrays.extend(self.books)
        self.per: list[PerCpu | PerNode] = [k.per_cpu("per_cpu", 1), k.per_node("per_node")]
        self.arrays.extend(self.per)
        # In the global order: mutexes first, because nobody may take one with a spinlock held.
        self.locks: list[Locks] = [
            k.locks("mutex", 1, MUTEX),
            k.locks("mutexes", self.pick(1, 3), MUTEX),
            k.locks("spinlock", 1, SPINLOCK, homes=[nodes - 1]),
            packed_lock,
            k.locks("spinlocks", self.pick(1, 3), SPINLOCK_IRQ),
        ]

    def _threads(self, daemons: bool, only_daemons: bool) -> None:
        k, cpus = self.k, self.machine.cpus
        number = self.pick(min(cpus, 2), min(cpus, 6))
        places = [self.pick(0, 1 << 16) for _ in range(number)]
        free = list(range(cpus))
        places = [free.pop(p % len(free)) for p in places]
        bodies = self.pick(1, min(3, number))
        body_of = [*range(bodies), *(self.pick(0, bodies - 1) for _ in range(number - bodies))]
        for b in range(bodies):
            daemon = only_daemons or (daemons and b > 0 and self.pick(0, 2) == 0)
            threads = body_of.count(b)
            raises = self.pick(0, 3)
            counter = (k.var if self.pick(0, 1) else lambda name: k.bookkeeping(name, 1)[0])(f"raised{b}")
            event = Event(k.wait_queue(f"queue{b}"), counter, raises, raises * threads)
            with k.thread(f"body{b}", daemon=daemon) as body:
                self.values, self.locals, self.held, self.loops, self.turns = [k.cpu, k.node], [], [], [], 1
                self.left = self.size
                if b == 0:
                    self.values.append(body.arg("parameter"))
                with ExitStack() as frames:
                    if self.pick(0, 3):
                        frames.enter_context(k.func(f"main{b}"))
                    for _ in range(self.pick(0, 1)):
                        self.locals.append(k.local(self.number()))
                    self._act(event)
                if daemon and self.pick(0, 1):
                    self.left = self.size
                    with k.while_(lambda: 1):
                        k.work(self.pick(1, 300))
                        self.block(3)
            self.events.append(event)
            for place, other in zip(places, body_of, strict=True):
                if other == b:
                    args = {"parameter": self.number()} if b == 0 else {}
                    k.spawn(body, place, self.pick(0, 3) * 50 if self.pick(0, 1) else 0, **args)

    def _act(self, event: Event) -> None:
        """The main part of a thread: statements, events it raises, events it waits for."""
        k = self.k
        for turn in range(event.raises):
            self.repeat()
            self.wait()
            k.atomic_add(event.counter, 1)
            if turn == event.raises - 1:
                k.wake(event.queue)
            elif self.pick(0, 1):
                k.wake(event.queue, self.pick(0, 2))
        while self.left > 0:
            self.repeat()
            self.wait()

    def wait(self) -> None:
        if self.events and self.pick(0, 1):
            k, event = self.k, self.events[self.pick(0, len(self.events) - 1)]
            wanted, worked = self.pick(0, event.total), self.pick(0, 2)

            def condition() -> Value:
                k.work(50 * worked)
                return k.load(event.counter) >= wanted

            k.wait_event(event.queue, condition)

    # ---- statements ---------------------------------------------------------------------------------------------

    @contextmanager
    def scope(self) -> Iterator[None]:
        values, own = list(self.values), list(self.locals)
        yield
        self.values, self.locals = values, own

    @contextmanager
    def loop(self, turns: int) -> Iterator[None]:
        before = self.turns
        self.turns *= max(turns, 1)
        self.loops.append(len(self.held))
        with self.scope():
            yield
        self.loops.pop()
        self.turns = before

    def block(self, most: int) -> None:
        for _ in range(self.pick(0, most)):
            if self.left > 0:
                self.statement()

    def statement(self) -> None:
        self.left -= 1
        simple = (self.compute, self.access, self.access, self.work, self.work, self.report)
        nested = (self.branch, self.repeat, self.repeat_while, self.with_lock, self.with_lock, self.with_lock,
                  self.try_lock, self.call)  # fmt: skip
        choices = simple if len(self.loops) + self.frames >= 5 else simple + nested
        choices[self.pick(0, len(choices) - 1)]()

    def number(self) -> int:
        return CONSTANTS[self.pick(0, len(CONSTANTS) - 1)]

    def value(self) -> Value | int:
        names: list[Value] = [*self.values, *self.locals]
        i = self.pick(0, len(names) + 1)
        return names[i] if i < len(names) else self.number()

    def small(self, bits: int) -> Value:
        """A staged value of 0 to 2**bits - 1."""
        return self.k.alu(Op.AND, self.value(), (1 << bits) - 1)

    def keep(self, value: Value) -> None:
        self.values.append(value)
        if len(self.values) > 8:
            del self.values[2]

    def compute(self) -> None:
        k = self.k
        what = self.pick(0, 9)
        if what < 4:
            self.keep(k.alu(ARITHMETIC[self.pick(0, len(ARITHMETIC) - 1)], self.value(), self.value()))
        elif what == 4:
            divisor = self.small(3) + 1 if self.pick(0, 1) else -(self.small(3) + 2)
            self.keep(k.alu((Op.DIV, Op.MOD)[self.pick(0, 1)], self.value(), divisor))
        elif what == 5:
            self.keep(k.bits(k.now_ns()) if self.pick(0, 1) else k.now_ns())
        elif what == 6 and self.random:
            self.keep(k.rand_int(self.small(4) + 1 if self.pick(0, 1) else 1 << 31))
        elif what == 7 and self.random:
            self.keep(k.rand_exp(self.small(10) if self.pick(0, 1) else 1 << 33))
        elif self.locals and what == 8:
            value = self.value()
            for _ in range(self.pick(0, 2)):
                value = k.local(value)  # moves that the optimiser can leave out
            self.locals[self.pick(0, len(self.locals) - 1)].set(value)
        else:
            self.locals.append(k.local(self.value()))

    def ref(self) -> Ref:
        if self.pick(0, 3) == 0:
            return self.per[self.pick(0, 1)].mine
        array = self.arrays[self.pick(0, len(self.arrays) - 1)]
        if self.pick(0, 1):
            return array[self.pick(0, len(array) - 1)]
        return array[self.k.alu(Op.MOD, self.value(), len(array))]

    def access(self) -> None:
        k, ref, what = self.k, self.ref(), self.pick(0, 7)
        if what < 2:
            self.keep(k.load(ref))
        elif what < 4:
            k.store(ref, self.value())
        elif what == 4:
            self.keep(k.atomic_add(ref, self.value()))
        elif what == 5:
            self.keep(k.compare_and_swap(ref, self.value(), self.value()))
        elif what == 6:
            source, target = self.books if self.pick(0, 1) else reversed(self.books)
            start = k.alu(Op.MOD, self.value(), len(source) + 1) if self.pick(0, 1) else self.pick(0, len(source))
            count = len(source) - start
            if self.pick(0, 1):
                k.fill(target, start, count, self.value())
            else:
                k.copy(target, source, start, count)
        else:
            array = self.arrays[self.pick(0, len(self.arrays) - 1)]
            if len(array) * self.turns <= MAX_TURNS:
                with self.loop(len(array)), k.for_each(array) as each:
                    self.keep(k.load(each))

    def work(self) -> None:
        k, what = self.k, self.pick(0, 6)
        spins = any(not ref.locks.kind.mutex for _, ref in self.held)
        if what < 2:
            k.work(self.pick(0, 40) * 10)
        elif what == 2:
            k.work(self.pick(0, 1 << 12) / 16)
        elif what == 3:
            k.work(self.small(8) - 20)
        elif not spins and (what == 5 or (self.held and what > 3)):
            k.sleep_ns(self.small(9) - 20 if self.pick(0, 1) else self.pick(0, 3) * 100)
        elif what == 4:
            k.busy_ns(self.small(7) - 20)
        else:
            k.memory_read(k.alu(Op.MOD, self.value(), self.machine.nodes), self.small(2) - 1)
            k.line_read(k.alu(Op.MOD, self.value(), self.machine.cpus), self.small(2) - 1)

    def report(self) -> None:
        if self.pick(0, 1):
            self.k.count(f"metric/{self.pick(0, 1)}", self.value())
        else:
            self.k.observe(f"histogram{self.pick(0, 1)}", self.value())

    def condition(self) -> Value:
        return self.k.alu((Op.LT, Op.EQ, Op.LE, Op.AND)[self.pick(0, 3)], self.value(), self.value())

    def branch(self) -> None:
        k = self.k
        with k.if_(self.condition()), self.scope():
            self.block(3)
            if self.loops and self.loops[-1] == len(self.held) and self.pick(0, 1):
                k.break_()
        if self.pick(0, 1):
            with k.else_(), self.scope():
                self.block(3)

    def repeat(self) -> None:
        k = self.k
        self.left -= 1
        most = 3
        if self.turns * most > MAX_TURNS:
            return
        stop = self.small(2) - 1 if self.pick(0, 3) == 0 else self.pick(0, most)
        with self.loop(most), k.for_range(stop) as i:
            self.values.append(i)
            self.block(4)

    def repeat_while(self) -> None:
        k = self.k
        turns = self.pick(0, 3)
        if self.turns * max(turns, 1) > MAX_TURNS:
            return
        left = k.local(turns)  # not among self.locals: nobody else may set it
        with self.loop(turns), k.while_(lambda: left > 0):
            left.set(left - 1)
            self.block(3)

    def with_lock(self) -> None:
        k = self.k
        order = self.pick(max((rank for rank, _ in self.held), default=-1) + 1, len(self.locks))
        if not self.held and self.pick(0, 1):
            order = 0  # the mutex everybody wants
        spins = any(not ref.locks.kind.mutex for _, ref in self.held)
        if order == len(self.locks) or (spins and self.locks[order].kind.mutex):
            return
        locks = self.locks[order]
        ref = locks[self.pick(0, len(locks) - 1) if self.pick(0, 1) else k.alu(Op.MOD, self.value(), len(locks))]
        k.acquire(ref)
        k.count(f"acquired/{locks.name}")
        self.held.append((order, ref))
        self.block(3)
        if locks.kind.mutex and self.pick(0, 2) == 0:
            k.sleep_ns(self.pick(0, 20) * 100)
            self.block(2)
        self.held.pop()
        k.release(ref)

    def try_lock(self) -> None:
        k = self.k
        order = self.pick(2, len(self.locks) - 1)
        ref = self.locks[order][self.pick(0, len(self.locks[order]) - 1)]
        if any(ref.identity() == other.identity() for _, other in self.held):
            return
        self.keep(k.is_contended(ref))
        with self.scope(), k.trylock(ref):
            k.count(f"acquired/{ref.locks.name}")
            self.held.append((order, ref))
            self.block(3)
            self.held.pop()
        if self.pick(0, 1):
            with k.else_(), self.scope():
                self.block(1)

    def call(self) -> None:
        self.frames += 1
        with self.k.func(f"function{self.pick(0, 2)}"):
            self.block(3)
        self.frames -= 1


def write(
    seed: int, size: int, wide: bool = False, random: bool = True, daemons: bool = True, horizon: bool = False
) -> Case:
    machine = random_machine(np.random.default_rng(seed), wide)
    program = Author(Random(seed), machine, size, random, daemons, horizon).program
    drawn = bool(np.isin(program.code[:, 0], (Op.RAND_INT, Op.RAND_EXP)).any())
    return Case(machine, program, drawn, not horizon and not any(t.daemon for t in program.threads))


def cases(
    wide: bool = False, random: bool = True, daemons: bool = True, horizon: bool = False
) -> st.SearchStrategy[Case]:
    seeds, sizes = st.integers(0, 1 << 32), st.integers(8, 60)
    return st.builds(write, seeds, sizes, st.just(wide), st.just(random), st.just(daemons), st.just(horizon))
