"""A slow, obvious interpreter of staged programs, against which the virtual machine is tested.

One rule: take the runnable thread with the smallest (time, number) and execute ONE instruction. Everything is a Python
object: lines have a set of sharers, locks have deques of threads, and a thread keeps the list of all it ever did
("from when to when in which frame"), which is cut at the end of the run. Times are integer picoseconds.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache

from zexp.machine import Machine
from zexp.program import Program
from zexp.program.isa import CPU, NODE, Op

BITS64 = (1 << 64) - 1


@dataclass(frozen=True)
class LockFigures:
    acquired: int
    contended: int
    wait_ns: int
    wait_buckets: tuple[int, ...]
    hold_ns: int
    hold_buckets: tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """Everything about a run that anybody can observe."""

    end_ps: int
    instructions: int
    profile: dict[tuple[str, tuple[str, ...]], int]
    metrics: dict[str, int]
    histograms: dict[str, tuple[tuple[int, ...], int]]
    locks: list[LockFigures]
    lines: dict[int, tuple[int, int]]
    """By variable: transfers and their ps."""
    off_cpu: list[int]
    cells: list[int]
    registers: list[list[int]]


def signed(number: int) -> int:
    """The 64-bit two's complement number with the same low bits."""
    number &= BITS64
    return number - (1 << 64) if number >> 63 else number


def bucket(number: int) -> int:
    return number.bit_length() if number > 0 else 0


@cache
def logarithm(numerator: int, denominator: int) -> int:
    """``ln(numerator / denominator)`` in units of 2**-40, to the nearest, by the series of the inverse tanh."""
    one = 1 << 200
    z = one * (numerator - denominator) // (numerator + denominator)
    term, total, n = z, 0, 1
    while term:
        total += term // n
        term = term * z // one * z // one
        n += 2
    return (2 * total + (1 << 159)) >> 160


class RandomStream:
    """SplitMix64, seeded for one thread of a run."""

    def __init__(self, seed: int, thread: int) -> None:
        z = (seed * 0xD1342543DE82EF95 + (thread + 1) * 0x9E3779B97F4A7C15) & BITS64
        z = ((z ^ (z >> 32)) * 0xD6E8FEB86659FD93) & BITS64
        self.position = z ^ (z >> 32)

    def word(self) -> int:
        self.position = (self.position + 0x9E3779B97F4A7C15) & BITS64
        z = self.position
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = ((z ^ (z >> shift)) * factor) & BITS64
        return z ^ (z >> 31)

    def below(self, bound: int) -> int:
        return (self.word() >> 33) * bound >> 31

    def exponential(self, mean: int) -> int:
        """``-mean * ln(U)``, U = word / 2**64, in fixed point: see exponential.py for the precision of each step."""
        word = self.word() | 1
        digits = word.bit_length()
        behind_first_one = ((word - (1 << digits - 1)) << 40) >> digits - 1
        interval, rest = divmod(behind_first_one, 1 << 30)
        low, high = logarithm(1024 + interval, 1024), logarithm(1025 + interval, 1024)
        mantissa = low + ((high - low) * rest >> 30)
        variate = ((65 - digits) * logarithm(2, 1) - mantissa) >> 16
        return (mean * variate + (1 << 23)) >> 24


class Doing(Enum):
    NOT_STARTED = auto()
    RUNNING = auto()
    SPINNING = auto()
    PARKED = auto()
    SLEEPING = auto()
    WAITING = auto()
    ENDED = auto()


@dataclass(eq=False)
class Line:
    home: int
    variable: int
    sharers: set[int] = field(default_factory=set)
    exclusive: int | None = None
    owner: int | None = None
    busy_until: int = 0
    transfers: int = 0
    transfer_ps: int = 0

    def moved(self, ps: int) -> None:
        self.transfers += 1
        self.transfer_ps += ps


@dataclass(eq=False)
class LockClassFigures:
    acquired: int = 0
    """By threads that have gone on with the lock."""
    waits: list[int] = field(default_factory=list)
    holds: list[int] = field(default_factory=list)

    def freeze(self) -> LockFigures:
        def buckets(numbers: list[int]) -> tuple[int, ...]:
            counts = Counter(bucket(n) for n in numbers)
            return tuple(counts[i] for i in range(64))

        return LockFigures(
            self.acquired, len(self.waits), sum(self.waits), buckets(self.waits), sum(self.holds), buckets(self.holds)
        )


@dataclass(eq=False)
class Lock:
    line: Line
    mutex: bool
    figures: LockClassFigures
    holder: Thread | None = None
    held_since: int = 0
    spinning: deque[Thread] = field(default_factory=deque)
    sleeping: deque[Thread] = field(default_factory=deque)
    hand_to_sleeper: bool = False


@dataclass(eq=False)
class LockWait:
    arrived: int
    queue_frame: int
    spin_frame: int | None
    """Where the first waiter of a mutex spins; None of a spinlock."""
    first_from: int | None
    """When it became the first waiter, if it is."""


@dataclass(eq=False)
class Taking:
    """A lock that a thread has been given but has not gone on with."""

    figures: LockClassFigures
    wait_ns: int | None
    """None if it did not have to wait."""

    def done(self) -> None:
        self.figures.acquired += 1
        if self.wait_ns is not None:
            self.figures.waits.append(self.wait_ns)


@dataclass(eq=False)
class Stint:
    """What a thread did from ``start`` to ``stop``: in a frame, or off the CPU (None)."""

    frame: int | None
    start: int
    stop: int


@dataclass(eq=False)
class Thread:
    number: int
    comm: str
    daemon: bool
    cpu: int
    node: int
    time: int
    pc: int
    registers: list[int]
    random: RandomStream
    ps_per_unit_2_20: int
    doing: Doing = Doing.NOT_STARTED
    stores: deque[int] = field(default_factory=deque)
    """When each buffered store completes."""
    stores_done: int = 0
    """When the youngest one does."""
    since: int = 0
    """Since when it waits."""
    wait: LockWait | None = None
    taking: Taking | None = None
    in_queue: bool = False
    woken: bool = False
    diary: list[Stint] = field(default_factory=list)

    def units(self, units: int) -> int:
        """The ps that ``units`` of 1/16 cycle take."""
        return units * self.ps_per_unit_2_20 >> 20

    def spend(self, frame: int | None, start: int, stop: int) -> None:
        assert start <= stop
        self.diary.append(Stint(frame, start, stop))

    def spin_until(self, until: int) -> None:
        """Write the spinning since ``since`` into the diary."""
        wait = self.wait
        assert wait is not None
        if wait.spin_frame is None:
            self.spend(wait.queue_frame, self.since, until)
        else:
            first = until if wait.first_from is None else min(max(wait.first_from, self.since), until)
            self.spend(wait.queue_frame, self.since, first)
            self.spend(wait.spin_frame, first, until)
        self.since = until

    def account_wait(self, until: int) -> None:
        if self.doing is Doing.SPINNING:
            self.spin_until(until)
        elif self.doing in (Doing.PARKED, Doing.SLEEPING, Doing.WAITING):
            self.spend(None, self.since, until)


class Reference:
    """One run of one program."""

    def __init__(self, program: Program, machine: Machine, seed: int) -> None:
        self.program, self.machine = program, machine
        self.code = [[int(n) for n in row] for row in program.code]
        self.cells = [int(n) for n in program.cells]
        self.lines = [
            Line(int(home), int(variable))
            for home, variable in zip(program.line_home, program.line_variable, strict=True)
        ]
        self.line_of_cell = {cell: self.lines[int(line)] for cell, line in enumerate(program.cell_line)}
        self.lock_classes = [LockClassFigures() for _ in program.lock_classes]
        self.locks = [
            Lock(self.lines[int(line)], program.lock_classes[int(klass)].kind.mutex, self.lock_classes[int(klass)])
            for line, klass in zip(program.lock_line, program.lock_class, strict=True)
        ]
        self.queues: list[deque[Thread]] = [deque() for _ in program.queues]
        self.metrics = dict.fromkeys(program.metrics, 0)
        self.observations: dict[str, list[int]] = {name: [] for name, _ in program.histograms}
        busy = {t.cpu for t in program.threads}
        self.threads = [
            Thread(
                number=number,
                comm=t.comm,
                daemon=t.daemon,
                cpu=t.cpu,
                node=int(machine.node_of[t.cpu]),
                time=t.start_ns * 1000,
                pc=t.pc,
                registers=[int(n) for n in t.registers],
                random=RandomStream(seed, number),
                ps_per_unit_2_20=self._speed(t.cpu, busy),
            )
            for number, t in enumerate(program.threads)
        ]
        for thread in self.threads:
            assert thread.registers[CPU] == thread.cpu
            assert thread.registers[NODE] == thread.node
        self.ready: dict[Thread, int] = {thread: thread.time for thread in self.threads}
        self.instructions = 0
        self.wakeup_ps = round(machine.core.wakeup_ns * 1000)

    def _speed(self, cpu: int, busy: set[int]) -> int:
        core = self.machine.core_of[cpu]
        crowded = any(other != cpu and self.machine.core_of[other] == core for other in busy)
        ps_per_cycle = 1000 / self.machine.ghz / (self.machine.core.smt_share if crowded else 1.0)
        return round(ps_per_cycle / 16 * 2**20)

    # ---- the machine --------------------------------------------------------------------------------------------

    def between(self, source: int, target: int) -> int:
        """The ps for a line to get from one CPU to another."""
        return round(float(self.machine.line_latency_ns[source, target]) * 1000)

    def dram(self, node: int, home: int) -> int:
        return round(float(self.machine.memory_latency_ns[node, home]) * 1000)

    def read_line(self, thread: Thread, line: Line, now: int) -> int:
        if thread.cpu in line.sharers:
            return now
        start = max(now, line.busy_until)
        if line.owner is None:
            ps = self.dram(thread.node, line.home)
            line.owner = line.exclusive = thread.cpu
        else:
            l3 = self.machine.l3_of
            near = [cpu for cpu in line.sharers if l3[cpu] == l3[thread.cpu]]
            ps = min((self.between(cpu, thread.cpu) for cpu in near), default=self.between(line.owner, thread.cpu))
            line.exclusive = None
        line.sharers.add(thread.cpu)
        line.moved(start + ps - now)
        return start + ps

    def own_line(self, thread: Thread, line: Line, now: int) -> int:
        if line.exclusive == thread.cpu:
            return now
        start = max(now, line.busy_until)
        if line.owner is None:
            ps = self.dram(thread.node, line.home)
        elif line.exclusive is not None:
            ps = self.between(line.exclusive, thread.cpu)
        else:
            ps = max(self.between(cpu, thread.cpu) for cpu in line.sharers)
        line.sharers = {thread.cpu}
        line.exclusive = line.owner = thread.cpu
        line.busy_until = start + ps
        if ps > 0:
            line.moved(start + ps - now)
        return start + ps

    def store_to(self, thread: Thread, line: Line, now: int) -> int:
        """Put a store into the buffer; gives when the CPU goes on."""
        while thread.stores and thread.stores[0] <= now:
            thread.stores.popleft()
        if len(thread.stores) == self.machine.core.store_buffer_entries:
            now = thread.stores.popleft()
            while thread.stores and thread.stores[0] <= now:
                thread.stores.popleft()
        thread.stores_done = self.own_line(thread, line, max(now, thread.stores_done))
        thread.stores.append(thread.stores_done)
        return now

    def locked_on(self, thread: Thread, line: Line, now: int) -> int:
        done = self.own_line(thread, line, max(now, thread.stores_done))
        done += thread.units(round(self.machine.core.atomic_cycles * 16))
        line.busy_until = done
        return done

    def store_cost(self, thread: Thread) -> int:
        return thread.units(16)

    # ---- locks --------------------------------------------------------------------------------------------------

    def left_cpu(self, owner: Thread, now: int) -> None:
        """Nobody spins on the mutexes of a thread that sleeps, nor on those of the threads that then sleep too."""
        for lock in self.locks:
            if lock.mutex and lock.holder is owner:
                while lock.spinning:
                    waiter = lock.spinning.popleft()
                    if waiter.since < now:
                        waiter.spin_until(now)
                    waiter.doing = Doing.PARKED
                    lock.sleeping.append(waiter)
                    self.left_cpu(waiter, now)

    def take(self, thread: Thread, lock: Lock, now: int, queue_frame: int, spin_frame: int | None) -> None:
        if lock.holder is None:
            lock.holder, lock.held_since = thread, now
            thread.taking = Taking(lock.figures, None)
            return
        thread.since = now
        thread.wait = LockWait(now, queue_frame, spin_frame, None if lock.spinning else now)
        if lock.mutex and lock.holder.doing not in (Doing.RUNNING, Doing.SPINNING):
            thread.doing = Doing.PARKED
            lock.sleeping.append(thread)
            self.left_cpu(thread, now)
        else:
            thread.doing = Doing.SPINNING
            lock.spinning.append(thread)

    def give(self, lock: Lock, heir: Thread, at: int) -> None:
        assert heir.wait is not None
        lock.holder, lock.held_since = heir, at
        heir.taking = Taking(lock.figures, (at - heir.wait.arrived) // 1000)
        self.ready[heir] = at

    def release(self, thread: Thread, lock: Lock, now: int) -> int:
        assert lock.holder is thread
        go_on = self.store_to(thread, lock.line, now)
        visible = thread.stores_done
        lock.figures.holds.append(max(visible - lock.held_since, 0) // 1000)
        lock.holder = None
        if lock.sleeping and (lock.hand_to_sleeper or not lock.spinning):
            lock.hand_to_sleeper = False
            heir = lock.sleeping.popleft()
            self.give(lock, heir, max(visible, heir.since) + self.wakeup_ps)
            self.left_cpu(heir, visible)
        elif lock.spinning:
            lock.hand_to_sleeper = lock.hand_to_sleeper or bool(lock.sleeping)
            heir = lock.spinning.popleft()
            at = max(visible, heir.since) + self.between(thread.cpu, heir.cpu)
            self.own_line(heir, lock.line, visible)
            lock.line.busy_until = at
            if lock.spinning:
                second = lock.spinning[0].wait
                assert second is not None
                second.first_from = at
            self.give(lock, heir, at)
        return go_on

    # ---- instructions -------------------------------------------------------------------------------------------

    def run(self, most: int = 10_000_000) -> Outcome:
        living = sum(not t.daemon for t in self.threads)
        horizon = None if self.program.horizon_ns is None else self.program.horizon_ns * 1000
        while True:
            if horizon is not None and all(time >= horizon for time in self.ready.values()):
                return self.outcome(horizon)
            thread = min(self.ready, key=lambda t: (self.ready[t], t.number))
            time = self.ready.pop(thread)
            if thread.doing is not Doing.RUNNING:
                thread.account_wait(time)
                thread.doing = Doing.RUNNING
            thread.time = time
            if thread.taking is not None:
                thread.taking.done()
                thread.taking = None
            self.instructions += 1
            assert self.instructions < most, "the program does not end"
            self.execute(thread)
            if thread.doing is Doing.RUNNING:
                self.ready[thread] = thread.time
            elif thread.doing is Doing.ENDED and not thread.daemon:
                living -= 1
                if living == 0:
                    return self.outcome(thread.time)

    def execute(self, thread: Thread) -> None:
        op, frame, a, b, c, d, e, work = self.code[thread.pc]
        thread.pc += 1
        r = thread.registers
        begin = now = thread.time

        def cell() -> int:
            assert 0 <= r[c] < d
            return b + r[c]

        def line() -> Line | None:
            return self.line_of_cell.get(cell())

        def lock() -> Lock:
            assert 0 <= r[b] < c
            return self.locks[a + r[b]]

        match Op(op):
            case Op.HALT:
                thread.doing = Doing.ENDED
            case Op.WORK:
                pass
            case Op.WORK_R:
                now += thread.units(16 * max(r[a], 0))
            case Op.BUSY_NS:
                now += 1000 * max(r[a], 0)
            case Op.MEMORY:
                now += self.dram(thread.node, r[a]) * max(r[b], 0)
            case Op.LINES:
                writer = r[a]
                now += (self.between(writer, thread.cpu) if writer != thread.cpu else 0) * max(r[b], 0)
            case Op.LOG2:
                r[a] = max(r[b], 0).bit_length()
            case Op.CONTENDED:
                r[e] = int(bool(lock().spinning or lock().sleeping))
            case Op.MOV:
                r[a] = r[b]
            case Op.ADD:
                r[a] = signed(r[b] + r[c])
            case Op.SUB:
                r[a] = signed(r[b] - r[c])
            case Op.MUL:
                r[a] = signed(r[b] * r[c])
            case Op.DIV:
                r[a] = signed(r[b] // r[c])
            case Op.MOD:
                r[a] = r[b] % r[c]
            case Op.AND:
                r[a] = r[b] & r[c]
            case Op.OR:
                r[a] = r[b] | r[c]
            case Op.XOR:
                r[a] = r[b] ^ r[c]
            case Op.SHL:
                r[a] = signed(r[b] << r[c] % 64)
            case Op.SHR:
                r[a] = r[b] >> r[c] % 64
            case Op.MIN:
                r[a] = min(r[b], r[c])
            case Op.MAX:
                r[a] = max(r[b], r[c])
            case Op.LT:
                r[a] = int(r[b] < r[c])
            case Op.LE:
                r[a] = int(r[b] <= r[c])
            case Op.EQ:
                r[a] = int(r[b] == r[c])
            case Op.NE:
                r[a] = int(r[b] != r[c])
            case Op.JUMP:
                thread.pc = a
            case Op.JUMP_ZERO:
                if r[b] == 0:
                    thread.pc = a
            case Op.LOOP:
                r[b] += 1
                if r[b] < r[c]:
                    thread.pc = a
            case Op.NOW_NS:
                r[a] = now // 1000
            case Op.RAND_INT:
                assert 1 <= r[b] <= 1 << 31
                r[a] = thread.random.below(r[b])
            case Op.RAND_EXP:
                assert 0 <= r[b] <= 1 << 33
                r[a] = thread.random.exponential(r[b])
            case Op.LOAD:
                where, loaded = line(), self.cells[cell()]
                if where is not None:
                    now = self.read_line(thread, where, now)
                    now += thread.units(round(self.machine.core.l1_hit_cycles * 16))
                r[a] = loaded
            case Op.STORE:
                self.cells[cell()] = r[a]
                where = line()
                if where is not None:
                    now = self.store_to(thread, where, now) + self.store_cost(thread)
            case Op.ATOMIC_ADD:
                where = line()
                total = self.cells[cell()] = signed(self.cells[cell()] + r[e])
                r[a] = total
                if where is not None:
                    now = self.locked_on(thread, where, now)
            case Op.CAS:
                where = line()
                same = self.cells[cell()] == r[e]
                if same:
                    self.cells[cell()] = r[e + 1]
                r[a] = int(same)
                if where is not None:
                    now = self.locked_on(thread, where, now)
            case Op.FILL | Op.COPY:
                assert r[c] >= 0
                assert r[e] >= 0
                assert r[c] + r[e] <= d
                for i in range(r[c], r[c] + r[e]):
                    if op == Op.FILL:
                        self.cells[b + i] = r[a]
                    else:
                        self.cells[a + i] = self.cells[b + i]
            case Op.SPIN_LOCK:
                now = self.locked_on(thread, lock().line, now)
                self.take(thread, lock(), now, d, None)
            case Op.MUTEX_LOCK:
                now = self.locked_on(thread, lock().line, now)
                self.take(thread, lock(), now, d, e)
            case Op.SPIN_TRYLOCK:
                wanted = lock()
                now = self.locked_on(thread, wanted.line, now)
                r[e] = int(wanted.holder is None)
                if wanted.holder is None:
                    self.take(thread, wanted, now, 0, None)
            case Op.UNLOCK:
                now = self.release(thread, lock(), now) + self.store_cost(thread)
            case Op.SLEEP_NS:
                thread.doing, thread.since = Doing.SLEEPING, now
                self.ready[thread] = now + 1000 * max(r[a], 0)
                self.left_cpu(thread, now)
            case Op.WAIT_PREPARE:
                if not thread.in_queue:
                    self.queues[a].append(thread)
                thread.in_queue, thread.woken = True, False
            case Op.WAIT_SLEEP:
                if not thread.woken:
                    thread.doing, thread.since = Doing.WAITING, now
                    self.left_cpu(thread, now)
            case Op.WAIT_FINISH:
                if thread.in_queue:
                    self.queues[a].remove(thread)
                thread.in_queue = thread.woken = False
            case Op.WAKE:
                queue = self.queues[a]
                for _ in range(len(queue) if r[b] <= 0 else min(r[b], len(queue))):
                    waiter = queue.popleft()
                    waiter.in_queue, waiter.woken = False, True
                    if waiter.doing is Doing.WAITING:
                        self.ready[waiter] = max(now + self.wakeup_ps, waiter.since)
            case Op.COUNT:
                name = self.program.metrics[a]
                self.metrics[name] = signed(self.metrics[name] + r[b])
            case Op.OBSERVE:
                self.observations[self.program.histograms[a][0]].append(r[b])
        now += thread.units(work)
        thread.spend(frame, begin, now)
        thread.time = now

    # ---- the end ------------------------------------------------------------------------------------------------

    def outcome(self, end: int) -> Outcome:
        """Complete the diaries, cut them at ``end``, add them up."""
        profile: Counter[tuple[str, tuple[str, ...]]] = Counter()
        off_cpu = []
        for thread in self.threads:
            if thread.since < end:
                thread.account_wait(end)
            off = 0
            for stint in thread.diary:
                ps = min(stint.stop, end) - min(stint.start, end)
                if stint.frame is None:
                    off += ps
                else:
                    profile[thread.comm, self.program.stack(stint.frame)] += ps
            off_cpu.append(off)
        histograms = {}
        for name, numbers in self.observations.items():
            counts = Counter(bucket(n) for n in numbers)
            histograms[name] = tuple(counts[i] for i in range(64)), signed(sum(numbers))
        traffic: dict[int, tuple[int, int]] = {}
        for line in self.lines:
            if line.transfers:
                n, ps = traffic.get(line.variable, (0, 0))
                traffic[line.variable] = n + line.transfers, ps + line.transfer_ps
        return Outcome(
            end_ps=end,
            instructions=self.instructions,
            profile={key: ps for key, ps in profile.items() if ps},
            metrics=self.metrics,
            histograms=histograms,
            locks=[klass.freeze() for klass in self.lock_classes],
            lines=traffic,
            off_cpu=off_cpu,
            cells=self.cells,
            registers=[thread.registers for thread in self.threads],
        )


def interpret(program: Program, machine: Machine, seed: int = 0) -> Outcome:
    return Reference(program, machine, seed).run()
