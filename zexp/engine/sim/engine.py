"""The sim engine: lays a program out on a machine, drives the virtual machine, reads the result off it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numba
import numpy as np

from zexp.engine.sim import state as st
from zexp.engine.sim import vm
from zexp.engine.sim.exponential import table
from zexp.errors import Interrupted, SimulationError
from zexp.program.isa import FIRST_VISIBLE, WORK_UNIT
from zexp.result import LineStats, LockStats, Log2Histogram, Profile, RunResult, StackTime, TimeSeries

if TYPE_CHECKING:
    from zexp.machine import Machine
    from zexp.program import Program, Ref
    from zexp.program.program import SeriesInfo

PS_PER_NS = 1000
FIRST_SLICE = 2_000_000
SLICE_SECONDS = 0.2
LIVELOCK_INSTRUCTIONS = 50_000_000
MASK64 = (1 << 64) - 1

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Progress:
    """How far a run has come; handed to the observer a few times a second."""

    sim_ns: float
    instructions: int
    wall_s: float
    watched: int
    """The value of the variable the caller watches; 0 if none."""


Observer = Callable[[Progress], None]


def _seed(seed: int, tid: int) -> int:
    """An independent stream for every thread of every seed."""
    z = (seed * 0xD1342543DE82EF95 + (tid + 1) * vm.GAMMA) & MASK64
    z = ((z ^ (z >> 32)) * 0xD6E8FEB86659FD93) & MASK64
    return z ^ (z >> 32)


def _bits(cpus: int, words: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    bits = np.zeros((cpus, words), np.uint64)
    for cpu in range(cpus):
        bits[cpu, cpu >> 6] = np.uint64(1) << np.uint64(cpu & 63)
    return bits


def _scale(machine: Machine, busy: set[int], cpu: int) -> int:
    """Picoseconds per 1/16 cycle in units of 2**-20; slower where the hyperthread next door has a thread too."""
    share = machine.core.smt_share if any(s in busy for s in machine.siblings(cpu)) else 1.0
    return round(1000 / machine.ghz / share / WORK_UNIT * (1 << 20))


def _cycles_ps(cycles: float, scale: int) -> int:
    return (round(cycles * WORK_UNIT) * scale) >> 20


def _horizon_ps(program: Program) -> int:
    if program.horizon_ns is None:
        return st.MAX_TIME
    if program.horizon_ns * PS_PER_NS > st.MAX_TIME:
        most = st.MAX_TIME // PS_PER_NS
        raise SimulationError(f"run_until {program.horizon_ns} ns: a run can simulate at most {most} ns")
    return program.horizon_ns * PS_PER_NS


def prepare(program: Program, machine: Machine, seed: int) -> st.State:
    """The state of the virtual machine at time 0."""
    threads, groups = program.threads, {c: i for i, c in enumerate(program.comms)}
    if len(threads) > st.MAX_THREADS:
        raise SimulationError(f"{len(threads)} threads; the simulated machine runs at most {st.MAX_THREADS}")
    if any(t.cpu >= machine.cpus for t in threads) or any(home >= machine.nodes for home in program.line_home):
        raise SimulationError(f"the program was built for a larger machine than {machine.name!r}")
    words = (machine.cpus + 63) // 64
    bits = _bits(machine.cpus, words)
    l3 = np.array([np.bitwise_or.reduce(bits[machine.l3_of == machine.l3_of[c]]) for c in range(machine.cpus)])
    lines, locks = len(program.line_home), len(program.lock_line)
    busy = {t.cpu for t in threads}
    th = np.zeros((len(threads), st.THREAD), np.int64)
    heap = np.zeros(len(threads) + 2, np.int64)
    horizon, live = _horizon_ps(program), sum(not t.daemon for t in threads)
    offset = 0
    for tid, t in enumerate(threads):
        scale = _scale(machine, busy, t.cpu)
        start = min(t.start_ns * PS_PER_NS, st.MAX_TIME)
        th[tid, [st.T_TIME, st.T_START, st.T_PC, st.T_REGISTERS]] = start, start, t.pc, offset
        th[tid, [st.T_CPU, st.T_NODE, st.T_GROUP]] = t.cpu, machine.node_of[t.cpu], groups[t.comm]
        th[tid, [st.T_STATE, st.T_DAEMON, st.T_SCALE]] = st.NEW, t.daemon, scale
        # What a thread does ahead of time must not come after the end of the run: only a daemon does not know that end.
        th[tid, st.T_ORDERED] = 0 if t.daemon and live else FIRST_VISIBLE
        th[tid, st.T_HIT] = _cycles_ps(machine.core.l1_hit_cycles, scale)
        th[tid, st.T_ATOMIC] = _cycles_ps(machine.core.atomic_cycles, scale)
        th[tid, st.T_STORE] = _cycles_ps(1, scale)
        offset += len(t.registers)
    keys = [(int(th[tid, st.T_TIME]) << st.TID_BITS) | tid for tid in range(len(threads))]
    keys.append(((horizon - 1) << st.TID_BITS) | st.NOBODY)
    heap[: len(keys)] = sorted(keys)
    scalars = np.zeros(st.SCALARS, np.int64)
    scalars[[st.G_HEAP, st.G_LIVE, st.G_CURRENT, st.G_HORIZON]] = len(keys), live, -1, horizon
    lock = np.full((locks, st.LOCK), -1, np.int64)
    mutexes = [n for n in range(locks) if program.lock_classes[program.lock_class[n]].kind.mutex]
    return st.State(
        code=np.ascontiguousarray(program.code),
        registers=np.concatenate([t.registers for t in threads]),
        cells=program.cells.copy(),
        cell_line=program.cell_line,
        line_home=program.line_home,
        line_stat=np.zeros((lines, 2), np.int64),
        excl=np.full(lines, -1, np.int64),
        owner=np.full(lines, -1, np.int64),
        line_free=np.zeros(lines, np.int64),
        sharers=np.zeros((lines, words), np.uint64),
        l3_mask=np.ascontiguousarray(l3.reshape(machine.cpus, words)),
        latency=np.ascontiguousarray(np.rint(machine.line_latency_ns.T * PS_PER_NS).astype(np.int64)),
        memory=np.rint(machine.memory_latency_ns * PS_PER_NS).astype(np.int64),
        thread=th,
        random=np.array([_seed(seed, tid) for tid in range(len(threads))], np.uint64),
        store_buffer=np.zeros((len(threads), machine.core.store_buffer_entries), np.int64),
        heap=heap,
        lock=lock,
        lock_line=program.lock_line,
        lock_class=program.lock_class,
        mutexes=np.array(mutexes, np.int64),
        lock_stat=np.zeros((len(program.lock_classes), st.LOCK_STATS), np.int64),
        queue=np.full((len(program.queues), 2), -1, np.int64),
        profile=np.zeros((len(groups), len(program.frames)), np.int64),
        metric=np.zeros((len(program.metrics), 2), np.int64),
        histogram=np.zeros((len(program.histograms), st.HISTOGRAM), np.int64),
        exponential=table(),
        scalars=scalars,
        wakeup_ps=round(machine.core.wakeup_ns * PS_PER_NS),
    )


def compile_vm(notify: Notify) -> None:
    """Load the virtual machine from its cache, or compile it and say so: it takes some seconds the first time."""
    if vm.run.nopython_signatures:
        return
    announce = threading.Timer(1.5, notify, ["compiling the simulator (first use only, about ten seconds)"])
    announce.daemon = True
    announce.start()
    try:
        state = _state_type()
        vm.run.compile((state, numba.int64))
        vm.settle.compile((state,))
    finally:
        announce.cancel()


def _state_type() -> numba.types.Type:
    i1, i2 = numba.int64[::1], numba.int64[:, ::1]
    u1, u2 = numba.uint64[::1], numba.uint64[:, ::1]
    shapes = {
        "code": i2, "line_stat": i2, "sharers": u2, "l3_mask": u2, "latency": i2, "memory": i2, "thread": i2,
        "random": u1, "store_buffer": i2, "lock": i2, "lock_stat": i2, "queue": i2, "profile": i2, "metric": i2,
        "histogram": i2, "wakeup_ps": numba.int64,
    }  # fmt: skip
    return numba.types.NamedTuple([shapes.get(f, i1) for f in st.State._fields], st.State)  # type: ignore[no-untyped-call]


def run(
    program: Program,
    machine: Machine,
    *,
    seed: int = 0,
    watch: Ref | None = None,
    observer: Observer | None = None,
    notify: Notify = lambda message: None,
) -> RunResult:
    """Run a program to its end, or to its horizon.

    ``watch`` is a variable of its own whose value the observer is told. The result's ``metrics`` hold what the program
    counted; callers add what they derive. Raises ``SimulationError`` if
    the program deadlocks, loops without time passing or indexes out of range, ``Interrupted`` on Ctrl-C.
    """
    compile_vm(notify)
    state = prepare(program, machine, seed)
    started = time.perf_counter()
    budget, standstill, last = FIRST_SLICE, 0, (-1, -1)
    try:
        while True:
            slice_started = time.perf_counter()
            status = vm.run(state, budget)
            if status != st.SLICE:
                break
            elapsed = time.perf_counter() - slice_started
            current = int(state.scalars[st.G_CURRENT])
            position = int(state.thread[:, st.T_TIME].sum()), int(state.scalars[st.G_HEAP])
            standstill = standstill + budget if position == last else 0
            last = position
            culprit = current if current >= 0 else int(state.heap[0]) & st.TID_MASK
            if standstill > LIVELOCK_INSTRUCTIONS and culprit != st.NOBODY:
                raise SimulationError(f"no time passes: endless loop in {_where(program, state, culprit)}")
            if observer is not None:
                now = int(state.thread[current, st.T_TIME]) if current >= 0 else 0
                watched = int(state.cells[watch.array.base]) if watch is not None else 0
                executed = int(state.scalars[st.G_EXECUTED])
                observer(Progress(now / PS_PER_NS, executed, time.perf_counter() - started, watched))
            budget = int(min(max(budget * SLICE_SECONDS / max(elapsed, 1e-3), FIRST_SLICE / 4), 4 * budget))
    except KeyboardInterrupt:
        raise Interrupted from None
    if status != st.DONE:
        raise SimulationError(_explain(status, program, state))
    vm.settle(state)
    return _result(program, state, time.perf_counter() - started)


def _where(program: Program, state: st.State, tid: int, back: int = 0) -> str:
    thread = program.threads[tid]
    row = min(max(int(state.thread[tid, st.T_PC]) - back, 0), len(program.where) - 1)
    file, line = program.where[row]
    stack = " > ".join(program.stack(int(program.code[row, 1])))
    return f"thread {thread.comm} on CPU {thread.cpu}, {stack} ({file}:{line})"


def _explain(status: int, program: Program, state: st.State) -> str:
    if status == st.DEADLOCK:
        stuck = [
            _where(program, state, tid, back=1)
            for tid, t in enumerate(program.threads)
            if not t.daemon and state.thread[tid, st.T_STATE] != st.HALTED
        ]
        return f"deadlock: nothing can run any more; waiting: {'; '.join(stuck[:4])}"
    what = {
        st.BAD_INDEX: "an index is outside its array",
        st.DIVISION: "division by zero",
        st.BAD_UNLOCK: "a lock is released by a thread that does not hold it",
        st.TOO_LONG: f"the simulated time passes its limit of {st.MAX_TIME // 10**12} s",
        st.BAD_BOUND: "rand_int needs a bound of 1 to 2**31, rand_exp a mean of 0 to 2**33",
    }[status]
    return f"{what}: {_where(program, state, int(state.scalars[st.G_CURRENT]), back=1)}"


def _result(program: Program, state: st.State, wall_s: float) -> RunResult:
    lines: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for line in np.nonzero(state.line_stat[:, 0])[0]:
        entry = lines[int(program.line_variable[line])]
        entry[0] += int(state.line_stat[line, 0])
        entry[1] += int(state.line_stat[line, 1])
    locks = []
    for klass, stat in zip(program.lock_classes, state.lock_stat.tolist(), strict=True):
        wait = Log2Histogram("ns", tuple(stat[st.WAIT_BUCKETS : st.HOLD_BUCKETS]), stat[st.S_WAIT_NS])
        hold = Log2Histogram("ns", tuple(stat[st.HOLD_BUCKETS :]), stat[st.S_HOLD_NS])
        locks.append(LockStats(klass.name, stat[st.S_ACQUIRED], stat[st.S_CONTENDED], wait, hold))
    profile = Profile(
        tuple(
            StackTime(comm, program.stack(int(frame)), int(state.profile[group, frame]))
            for group, comm in enumerate(program.comms)
            for frame in np.nonzero(state.profile[group])[0]
        )
    )
    return RunResult(
        engine="sim",
        sim_ns=int(state.scalars[st.G_END]) / PS_PER_NS,
        pages=None,
        metrics={name: float(state.metric[i, 0]) for i, name in enumerate(program.metrics)},
        profile=profile,
        locks=tuple(locks),
        lines=tuple(LineStats(program.variables[v].name, n, ps / PS_PER_NS) for v, (n, ps) in sorted(lines.items())),
        histograms={
            name: Log2Histogram(unit, tuple(int(n) for n in state.histogram[i, :64]), int(state.histogram[i, 64]))
            for i, (name, unit) in enumerate(program.histograms)
        },
        instructions=int(state.scalars[st.G_EXECUTED]),
        wall_s=wall_s,
        series={series.name: _time_series(series, state) for series in program.series},
    )


def _time_series(series: SeriesInfo, state: st.State) -> TimeSeries:
    recorded = int(state.cells[series.recorded])
    kept = min(recorded, series.length)
    times, values = (state.cells[base : base + kept].tolist() for base in (series.times_ns, series.values))
    return TimeSeries(series.unit, tuple(times), tuple(values), recorded - kept)
