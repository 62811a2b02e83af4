"""The virtual machine: one compiled loop that interprets staged programs on a simulated machine.

The rule is one line long: *the runnable thread with the smallest (time, number) executes its next instruction*. A
thread therefore keeps running, without touching the heap of the others, until its time passes that of the next one;
and beyond that as long as it does what no other thread can see. (Not a daemon, if others may end the run meanwhile.)
Nothing is executed from the horizon on, if the program has one: that is when the run ends at the latest.
Time is in integer picoseconds. ``isa.py`` says what each instruction does, ``caches.py`` and ``locks.py`` what shared
state costs, ``threads.py`` who runs next.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

import numpy as np

from zexp.engine.sim.caches import buffered_store, fetch_shared, locked_access
from zexp.engine.sim.exponential import GAMMA, exponential, next_random
from zexp.engine.sim.jit import jit
from zexp.engine.sim.locks import acquire, append, bit_length, count_hold, leave_queue, park_spinners, release, wake
from zexp.engine.sim.pointers import reference
from zexp.engine.sim.settle import settle
from zexp.engine.sim.state import (
    BAD_BOUND,
    BAD_INDEX,
    BAD_UNLOCK,
    DEADLOCK,
    DIVISION,
    DONE,
    G_CURRENT,
    G_END,
    G_EXECUTED,
    G_HEAP,
    G_HORIZON,
    G_LIVE,
    HALTED,
    HISTOGRAM,
    L_HEAD,
    L_HELD_SINCE,
    L_HOLDER,
    L_SLEEP_HEAD,
    LOCK,
    LOCK_STATS,
    MAX_TIME,
    NOBODY,
    S_ACQUIRED,
    SLEEPING,
    SLICE,
    T_ARMED,
    T_ATOMIC,
    T_CPU,
    T_DAEMON,
    T_DRAIN,
    T_GROUP,
    T_HIT,
    T_LAST_FRAME,
    T_NODE,
    T_ORDERED,
    T_PC,
    T_QUEUE_NEXT,
    T_REGISTERS,
    T_SCALE,
    T_SINCE,
    T_STATE,
    T_STORE,
    T_TIME,
    THREAD,
    TID_BITS,
    TID_MASK,
    TOO_LONG,
    WAITING,
    view,
)
from zexp.engine.sim.threads import heap_push, replace_first, resume, time_limit
from zexp.program.isa import Op

__all__ = ["GAMMA", "run", "settle"]

# Compiled code wants plain numbers.
WORK, WORK_R, BUSY_NS, MEMORY, MOV = range(Op.WORK, Op.MOV + 1)
ADD, SUB, MUL, DIV, MOD, AND, OR, XOR, SHL, SHR, MIN, MAX, LT, LE, EQ, NE = range(Op.ADD, Op.NE + 1)
JUMP, JUMP_ZERO, LOOP, NOW_NS, RAND_INT, RAND_EXP, COUNT, OBSERVE, LINES, LOG2 = range(Op.JUMP, Op.LOG2 + 1)
LOAD, STORE, ATOMIC_ADD, CAS, FILL, COPY = range(Op.LOAD, Op.COPY + 1)
SPIN_LOCK, SPIN_TRYLOCK, MUTEX_LOCK, UNLOCK, CONTENDED = range(Op.SPIN_LOCK, Op.CONTENDED + 1)
SLEEP_NS, WAIT_PREPARE, WAIT_SLEEP, WAIT_FINISH, WAKE, HALT = range(Op.SLEEP_NS, Op.HALT + 1)

# Values of a time limit that no time is below.
GONE, PAUSED = -1, -2
"""It left the CPU, or spins; the budget is used up."""


@jit
def outside(index, length):
    """Whether an index is negative or too large."""
    return np.uint64(index) >= np.uint64(length)


@jit
def run(s, budget):
    """Execute about ``budget`` instructions; returns why it stopped."""
    v = reference(view(s))
    code, registers, cells, profile = v.code, v.registers, v.cells, v.profile
    tid = v.scalars[G_CURRENT]
    horizon = v.scalars[G_HORIZON]
    left = budget
    status = SLICE
    while True:  # one turn a switch to another thread
        if tid < 0:
            size = v.scalars[G_HEAP] - 1
            key = v.heap[0]
            v.scalars[G_HEAP] = size
            replace_first(v, v.heap[size])
            tid = key & TID_MASK
            if tid == NOBODY:
                if horizon < MAX_TIME:
                    v.scalars[G_END] = horizon
                    status = DONE
                    tid = np.int64(-1)
                elif size > 0:
                    status = TOO_LONG
                    tid = v.heap[0] & TID_MASK
                else:
                    status = DEADLOCK
                    tid = np.int64(-1)
                break
            resume(v, tid, key >> TID_BITS)
        me = tid * THREAD
        t = v.thread[me + T_TIME]
        r = v.thread[me + T_REGISTERS]
        cpu = v.thread[me + T_CPU]
        word = cpu >> 6
        bit = np.uint64(1) << np.uint64(cpu & 63)
        scale = v.thread[me + T_SCALE]
        group = v.thread[me + T_GROUP] * v.frames
        frame = v.thread[me + T_LAST_FRAME]
        charged = t  # the profile has the time up to here
        first = v.thread[me + T_PC] * 8  # of the instructions executed since the last jump
        following = first
        limit = time_limit(v, tid)
        ordered = v.thread[me + T_ORDERED]
        while True:
            row = following
            op = code[row]
            if t >= limit and (op >= ordered or limit < 0 or t >= horizon):
                break
            following = row + 8
            if code[row + 1] != frame:
                profile[group + frame] += t - charged
                charged = t
                frame = code[row + 1]
            a = code[row + 2]
            b = code[row + 3]
            c = code[row + 4]
            if op == LOAD:
                i = registers[r + c]
                if outside(i, code[row + 5]):
                    status = BAD_INDEX
                    break
                cell = b + i
                registers[r + a] = cells[cell]
                if cell < v.tracked:
                    line = v.cell_line[cell]
                    if v.sharers[line * v.words + word] & bit == np.uint64(0):
                        t = fetch_shared(v, line, cpu, v.thread[me + T_NODE], t)
                    t += v.thread[me + T_HIT]
            elif op == LOOP:
                i = registers[r + b] + 1
                registers[r + b] = i
                if i < registers[r + c]:
                    left -= (following - first) >> 3
                    first = following = a * 8
                    if left <= 0:
                        limit = np.int64(PAUSED)
            elif op == ADD:
                registers[r + a] = registers[r + b] + registers[r + c]
            elif op == WORK:
                pass
            elif op == STORE:
                i = registers[r + c]
                if outside(i, code[row + 5]):
                    status = BAD_INDEX
                    break
                cell = b + i
                cells[cell] = registers[r + a]
                if cell < v.tracked:
                    line = v.cell_line[cell]
                    if v.excl[line] != cpu or v.thread[me + T_DRAIN] > t:
                        t = buffered_store(v, tid, line, t)
                    t += v.thread[me + T_STORE]
            elif op == MOV:
                registers[r + a] = registers[r + b]
            elif op == SUB:
                registers[r + a] = registers[r + b] - registers[r + c]
            elif op == MUL:
                registers[r + a] = registers[r + b] * registers[r + c]
            elif op == DIV or op == MOD:
                divisor = registers[r + c]
                if divisor == 0:
                    status = DIVISION
                    break
                if op == DIV and divisor == -1:  # the one that may overflow: like the others, it wraps
                    registers[r + a] = 0 - registers[r + b]
                elif op == DIV:
                    registers[r + a] = registers[r + b] // divisor
                else:
                    registers[r + a] = registers[r + b] % divisor
            elif op == AND:
                registers[r + a] = registers[r + b] & registers[r + c]
            elif op == OR:
                registers[r + a] = registers[r + b] | registers[r + c]
            elif op == XOR:
                registers[r + a] = registers[r + b] ^ registers[r + c]
            elif op == SHL:
                registers[r + a] = registers[r + b] << (registers[r + c] & 63)
            elif op == SHR:
                registers[r + a] = registers[r + b] >> (registers[r + c] & 63)
            elif op == MIN:
                registers[r + a] = min(registers[r + b], registers[r + c])
            elif op == MAX:
                registers[r + a] = max(registers[r + b], registers[r + c])
            elif op == LT:
                registers[r + a] = 1 if registers[r + b] < registers[r + c] else 0
            elif op == LE:
                registers[r + a] = 1 if registers[r + b] <= registers[r + c] else 0
            elif op == EQ:
                registers[r + a] = 1 if registers[r + b] == registers[r + c] else 0
            elif op == NE:
                registers[r + a] = 1 if registers[r + b] != registers[r + c] else 0
            elif op == JUMP or op == JUMP_ZERO:
                if op == JUMP or registers[r + b] == 0:
                    left -= (following - first) >> 3
                    first = following = a * 8
                    if left <= 0:
                        limit = np.int64(PAUSED)
            elif op == WORK_R:
                cycles = min(max(registers[r + a], 0), 1 << 47)
                t += (cycles >> 16) * scale + (((cycles & 0xFFFF) * 16 * scale) >> 20)
            elif op == BUSY_NS:
                t += min(max(registers[r + a], 0), MAX_TIME) * 1000
            elif op == MEMORY:
                home = registers[r + a]
                if outside(home, v.nodes):
                    status = BAD_INDEX
                    break
                ps = v.memory[v.thread[me + T_NODE] * v.nodes + home]
                times = max(registers[r + b], 0)
                t += MAX_TIME if times > 1 << 20 and times > MAX_TIME // max(ps, 1) else times * ps
            elif op == LINES:
                writer = registers[r + a]
                if outside(writer, v.cpus):
                    status = BAD_INDEX
                    break
                ps = v.latency[cpu * v.cpus + writer]
                times = max(registers[r + b], 0)
                t += MAX_TIME if times > 1 << 20 and times > MAX_TIME // max(ps, 1) else times * ps
            elif op == LOG2:
                registers[r + a] = bit_length(registers[r + b])
            elif op == NOW_NS:
                registers[r + a] = t // 1000
            elif op == RAND_INT:
                bound = registers[r + b]
                if bound < 1 or bound > 1 << 31:
                    status = BAD_BOUND
                    break
                registers[r + a] = (np.int64(next_random(v, tid) >> np.uint64(33)) * bound) >> 31
            elif op == RAND_EXP:
                bound = registers[r + b]
                if bound < 0 or bound > 1 << 33:
                    status = BAD_BOUND
                    break
                registers[r + a] = exponential(v, tid, bound)
            elif op == ATOMIC_ADD or op == CAS:
                i = registers[r + c]
                if outside(i, code[row + 5]):
                    status = BAD_INDEX
                    break
                cell = b + i
                e = r + code[row + 6]
                if op == ATOMIC_ADD:
                    cells[cell] += registers[e]
                    registers[r + a] = cells[cell]
                elif cells[cell] == registers[e]:
                    cells[cell] = registers[e + 1]
                    registers[r + a] = 1
                else:
                    registers[r + a] = 0
                if cell < v.tracked:
                    line = v.cell_line[cell]
                    if v.excl[line] == cpu:
                        t = max(t, v.thread[me + T_DRAIN]) + v.thread[me + T_ATOMIC]
                        v.line_free[line] = t
                    else:
                        t = locked_access(v, tid, line, t)
            elif op == FILL or op == COPY:
                i = registers[r + c]
                length = code[row + 5]
                count = registers[r + code[row + 6]]
                if outside(i, length + 1) or outside(count, length - i + 1):
                    status = BAD_INDEX
                    break
                if op == FILL:
                    value = registers[r + a]
                    for cell in range(b + i, b + i + count):
                        cells[cell] = value
                else:
                    for cell in range(i, i + count):
                        cells[a + cell] = cells[b + cell]
            elif op == SPIN_LOCK or op == MUTEX_LOCK:
                i = registers[r + b]
                if outside(i, c):
                    status = BAD_INDEX
                    break
                number = a + i
                line = v.lock_line[number]
                if v.excl[line] == cpu:
                    t = max(t, v.thread[me + T_DRAIN]) + v.thread[me + T_ATOMIC]
                    v.line_free[line] = t
                else:
                    t = locked_access(v, tid, line, t)
                lock = number * LOCK
                if op == SPIN_LOCK and v.lock[lock + L_HOLDER] < 0:
                    v.lock[lock + L_HOLDER] = tid
                    v.lock[lock + L_HELD_SINCE] = t
                    v.lock_stat[v.lock_class[number] * LOCK_STATS + S_ACQUIRED] += 1
                else:
                    mutex = op == MUTEX_LOCK
                    spin_frame = code[row + 6] if mutex else np.int64(-1)
                    if not acquire(v, tid, number, t, mutex, code[row + 5], spin_frame):
                        limit = np.int64(GONE)
            elif op == SPIN_TRYLOCK:
                i = registers[r + b]
                if outside(i, c):
                    status = BAD_INDEX
                    break
                t = locked_access(v, tid, v.lock_line[a + i], t)
                free = v.lock[(a + i) * LOCK + L_HOLDER] < 0
                registers[r + code[row + 6]] = 1 if free else 0
                if free:
                    acquire(v, tid, a + i, t, False, 0, -1)
            elif op == UNLOCK:
                i = registers[r + b]
                if outside(i, c):
                    status = BAD_INDEX
                    break
                number = a + i
                lock = number * LOCK
                if v.lock[lock + L_HOLDER] != tid:
                    status = BAD_UNLOCK
                    break
                mutex = code[row + 5] == 1
                if (
                    mutex
                    or v.lock[lock + L_HEAD] >= 0
                    or v.excl[v.lock_line[number]] != cpu
                    or v.thread[me + T_DRAIN] > t
                ):
                    t = release(v, tid, number, t, mutex)
                    limit = time_limit(v, tid)
                else:
                    count_hold(v, number, t)
                    v.lock[lock + L_HOLDER] = -1
                t += v.thread[me + T_STORE]
            elif op == CONTENDED:
                i = registers[r + b]
                if outside(i, c):
                    status = BAD_INDEX
                    break
                lock = (a + i) * LOCK
                waiting = v.lock[lock + L_HEAD] >= 0 or v.lock[lock + L_SLEEP_HEAD] >= 0
                registers[r + code[row + 6]] = 1 if waiting else 0
            elif op == SLEEP_NS:
                v.thread[me + T_SINCE] = t
                v.thread[me + T_STATE] = SLEEPING
                until = min(t + min(max(registers[r + a], 0), MAX_TIME) * 1000, MAX_TIME)
                heap_push(v, (until << TID_BITS) | tid)
                park_spinners(v, tid, t)
                limit = np.int64(GONE)
            elif op == WAIT_PREPARE:
                if v.thread[me + T_ARMED] != 1:
                    v.thread[me + T_ARMED] = 1
                    append(v, v.queue, a * 2, a * 2 + 1, T_QUEUE_NEXT, tid)
            elif op == WAIT_SLEEP:
                if v.thread[me + T_ARMED] == 1:
                    v.thread[me + T_SINCE] = t
                    v.thread[me + T_STATE] = WAITING
                    park_spinners(v, tid, t)
                    limit = np.int64(GONE)
            elif op == WAIT_FINISH:
                if v.thread[me + T_ARMED] == 1:
                    leave_queue(v, tid, a)
                v.thread[me + T_ARMED] = 0
            elif op == WAKE:
                wake(v, a, registers[r + b], t + v.wakeup_ps)
                limit = time_limit(v, tid)
            elif op == COUNT:
                v.metric[a * 2] += registers[r + b]
                v.metric[a * 2 + 1] += 1
            elif op == OBSERVE:
                v.histogram[a * HISTOGRAM + bit_length(registers[r + b])] += 1
                v.histogram[a * HISTOGRAM + 64] += registers[r + b]
            elif op == HALT:
                v.thread[me + T_STATE] = HALTED
                limit = np.int64(GONE)
                if v.thread[me + T_DAEMON] == 0:
                    v.scalars[G_LIVE] -= 1
                    if v.scalars[G_LIVE] == 0:
                        v.scalars[G_END] = t
                        status = DONE
            t += (code[row + 7] * scale) >> 20
        profile[group + frame] += t - charged
        left -= (following - first) >> 3
        v.thread[me + T_TIME] = t
        v.thread[me + T_PC] = following >> 3
        v.thread[me + T_LAST_FRAME] = frame
        if status != SLICE:
            break
        if limit == GONE:
            tid = np.int64(-1)
        elif t >= horizon:  # it never runs again
            if horizon == MAX_TIME:
                status = TOO_LONG
                break
            tid = np.int64(-1)
        elif limit != PAUSED:
            key = v.heap[0]
            replace_first(v, (t << TID_BITS) | tid)
            tid = key & TID_MASK
            resume(v, tid, key >> TID_BITS)
        if left <= 0:
            break
    v.scalars[G_EXECUTED] += budget - left
    v.scalars[G_CURRENT] = tid
    return status
