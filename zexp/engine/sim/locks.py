"""Locks and wait queues of the simulated machine: FIFO queues with hand-over through the lock's cache line.

A queued spinlock's waiters spin in order of arrival. A mutex's waiters do too while its owner is on a CPU (the first in
``mutex_spin_on_owner``, the others in ``osq_lock``); when the owner goes to sleep they sleep, and are woken one by one.
A spinner steals the mutex from the sleepers once, then it is handed to the first of them (MUTEX_FLAG_HANDOFF).
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

import numpy as np

from zexp.engine.sim.caches import buffered_store, pass_on
from zexp.engine.sim.jit import inlined, jit
from zexp.engine.sim.pointers import leading_zeros
from zexp.engine.sim.state import (
    FOREVER,
    HOLD_BUCKETS,
    L_HANDOFF,
    L_HEAD,
    L_HELD_SINCE,
    L_HOLDER,
    L_SLEEP_HEAD,
    L_SLEEP_TAIL,
    L_TAIL,
    LOCK,
    LOCK_STATS,
    PARKED,
    RUNNING,
    S_ACQUIRED,
    S_CONTENDED,
    S_HOLD_NS,
    S_WAIT_NS,
    SPINNING,
    T_ARMED,
    T_ARRIVED,
    T_CPU,
    T_DRAIN,
    T_HEAD_SINCE,
    T_MUTEXES,
    T_NEXT,
    T_QUEUE_FRAME,
    T_QUEUE_NEXT,
    T_SINCE,
    T_SPIN_FRAME,
    T_STATE,
    T_TIME,
    THREAD,
    TID_BITS,
    WAIT_BUCKETS,
    WAITING,
)
from zexp.engine.sim.threads import charge_wait, heap_push


@inlined
def bit_length(value):
    """The log2 bucket of a value: 0 for 0 and less, i for [2**(i-1), 2**i)."""
    if value <= 0:
        return np.int64(0)
    return 64 - leading_zeros(np.uint64(value))


@inlined
def whole_ns(ps):
    """Whole nanoseconds in a time that is not negative: without a sign, division is cheaper."""
    return np.int64(np.uint64(ps) // np.uint64(1000))


@inlined
def append(v, table, head, tail, link, tid):
    """Put a thread at the end of the FIFO queue whose ends are ``table[head]`` and ``table[tail]``."""
    v.thread[tid * THREAD + link] = -1
    if table[head] < 0:
        table[head] = tid
    else:
        v.thread[table[tail] * THREAD + link] = tid
    table[tail] = tid


@jit
def park_spinners(v, owner, now):
    """``owner`` leaves the CPU: those who spin on its mutexes stop and sleep, and so do those who spin on theirs."""
    if v.thread[owner * THREAD + T_MUTEXES] == 0:
        return
    todo = np.empty(v.threads, np.int64)
    todo[0] = owner
    n = 1
    while n > 0:
        n -= 1
        sleeper = todo[n]
        if v.thread[sleeper * THREAD + T_MUTEXES] == 0:
            continue
        for m in range(v.mutex_count):
            lock = v.mutexes[m] * LOCK
            if v.lock[lock + L_HOLDER] != sleeper:
                continue
            tid = v.lock[lock + L_HEAD]
            while tid >= 0:
                me = tid * THREAD
                following = v.thread[me + T_NEXT]
                if now > v.thread[me + T_SINCE]:
                    charge_wait(v, tid, now)
                v.thread[me + T_STATE] = PARKED
                append(v, v.lock, lock + L_SLEEP_HEAD, lock + L_SLEEP_TAIL, T_NEXT, tid)
                todo[n] = tid
                n += 1
                tid = following
            v.lock[lock + L_HEAD] = -1


@jit
def acquire(v, tid, number, now, mutex, queue_frame, spin_frame):
    """Take a lock, or join its queue: True if the thread goes on at ``now``, the time its locked access is done."""
    lock = number * LOCK
    me = tid * THREAD
    holder = v.lock[lock + L_HOLDER]
    if holder < 0:
        v.lock[lock + L_HOLDER] = tid
        v.lock[lock + L_HELD_SINCE] = now
        v.lock_stat[v.lock_class[number] * LOCK_STATS + S_ACQUIRED] += 1
        if mutex:
            v.thread[me + T_MUTEXES] += 1
        return True
    v.thread[me + T_SINCE] = now
    v.thread[me + T_ARRIVED] = now
    v.thread[me + T_QUEUE_FRAME] = queue_frame
    v.thread[me + T_SPIN_FRAME] = spin_frame
    v.thread[me + T_HEAD_SINCE] = now if v.lock[lock + L_HEAD] < 0 else FOREVER
    state = v.thread[holder * THREAD + T_STATE]
    if mutex and state != RUNNING and state != SPINNING:
        v.thread[me + T_STATE] = PARKED
        append(v, v.lock, lock + L_SLEEP_HEAD, lock + L_SLEEP_TAIL, T_NEXT, tid)
        park_spinners(v, tid, now)
    else:
        v.thread[me + T_STATE] = SPINNING
        append(v, v.lock, lock + L_HEAD, lock + L_TAIL, T_NEXT, tid)
    return False


@inlined
def grant(v, number, tid, at, mutex):
    """Make a waiter the holder; it goes on at ``at``."""
    lock = number * LOCK
    me = tid * THREAD
    v.lock[lock + L_HOLDER] = tid
    v.lock[lock + L_HELD_SINCE] = at
    if mutex:
        v.thread[me + T_MUTEXES] += 1
    v.thread[me + T_TIME] = at
    heap_push(v, (at << TID_BITS) | tid)
    stats = v.lock_class[number] * LOCK_STATS
    wait_ns = whole_ns(at - v.thread[me + T_ARRIVED])
    v.lock_stat[stats + S_ACQUIRED] += 1
    v.lock_stat[stats + S_CONTENDED] += 1
    v.lock_stat[stats + S_WAIT_NS] += wait_ns
    v.lock_stat[stats + WAIT_BUCKETS + bit_length(wait_ns)] += 1


@inlined
def count_hold(v, number, until):
    """Put the time a lock was held into its statistics."""
    stats = v.lock_class[number] * LOCK_STATS
    hold_ns = whole_ns(max(until - v.lock[number * LOCK + L_HELD_SINCE], 0))
    v.lock_stat[stats + S_HOLD_NS] += hold_ns
    v.lock_stat[stats + HOLD_BUCKETS + bit_length(hold_ns)] += 1


@jit
def release(v, tid, number, now, mutex):
    """Release a lock and hand it to the next waiter; returns when the releasing CPU goes on."""
    lock = number * LOCK
    me = tid * THREAD
    line = v.lock_line[number]
    go_on = buffered_store(v, tid, line, now)
    done = v.thread[me + T_DRAIN]
    count_hold(v, number, done)
    v.lock[lock + L_HOLDER] = -1
    if mutex:
        v.thread[me + T_MUTEXES] -= 1
    spinner = v.lock[lock + L_HEAD]
    sleeper = v.lock[lock + L_SLEEP_HEAD]
    if sleeper >= 0 and (spinner < 0 or v.lock[lock + L_HANDOFF] == 1):
        v.lock[lock + L_HANDOFF] = 0
        v.lock[lock + L_SLEEP_HEAD] = v.thread[sleeper * THREAD + T_NEXT]
        grant(v, number, sleeper, max(done, v.thread[sleeper * THREAD + T_SINCE]) + v.wakeup_ps, mutex)
        park_spinners(v, sleeper, done)  # the new owner is still asleep: nobody spins on it
    elif spinner >= 0:
        if sleeper >= 0:
            v.lock[lock + L_HANDOFF] = 1
        heir = spinner * THREAD
        v.lock[lock + L_HEAD] = v.thread[heir + T_NEXT]
        ps = pass_on(v, line, v.thread[me + T_CPU], v.thread[heir + T_CPU])
        at = max(done, v.thread[heir + T_SINCE]) + ps
        v.line_free[line] = at
        if v.lock[lock + L_HEAD] >= 0:
            v.thread[v.lock[lock + L_HEAD] * THREAD + T_HEAD_SINCE] = at
        grant(v, number, spinner, at, mutex)
    return go_on


@jit
def leave_queue(v, tid, queue):
    """Take a thread out of the middle of a wait queue."""
    previous = np.int64(-1)
    other = v.queue[queue * 2]
    while other != tid:
        previous = other
        other = v.thread[other * THREAD + T_QUEUE_NEXT]
    following = v.thread[tid * THREAD + T_QUEUE_NEXT]
    if previous < 0:
        v.queue[queue * 2] = following
    else:
        v.thread[previous * THREAD + T_QUEUE_NEXT] = following
    if following < 0:
        v.queue[queue * 2 + 1] = previous


@jit
def wake(v, queue, count, at):
    """Wake the first ``count`` waiters of a queue, all if it is not positive; the sleeping ones go on at ``at``."""
    woken = 0
    while v.queue[queue * 2] >= 0 and (count <= 0 or woken < count):
        other = v.queue[queue * 2]
        v.queue[queue * 2] = v.thread[other * THREAD + T_QUEUE_NEXT]
        v.thread[other * THREAD + T_ARMED] = 2
        woken += 1
        if v.thread[other * THREAD + T_STATE] == WAITING:
            heap_push(v, (max(at, v.thread[other * THREAD + T_SINCE]) << TID_BITS) | other)
