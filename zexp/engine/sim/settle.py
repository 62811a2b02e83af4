"""The end of a run: it cuts through what the threads are in the middle of, and so must the accounts."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,call-arg,var-annotated"
from __future__ import annotations

from zexp.engine.sim.jit import jit
from zexp.engine.sim.locks import bit_length, whole_ns
from zexp.engine.sim.pointers import reference
from zexp.engine.sim.state import (
    G_CURRENT,
    G_END,
    HALTED,
    L_HELD_SINCE,
    L_HOLDER,
    LOCK,
    LOCK_STATS,
    NEW,
    PARKED,
    RUNNING,
    S_ACQUIRED,
    S_CONTENDED,
    S_WAIT_NS,
    SPINNING,
    T_ARRIVED,
    T_GROUP,
    T_HEAD_SINCE,
    T_LAST_FRAME,
    T_OFF_CPU,
    T_QUEUE_FRAME,
    T_SINCE,
    T_SPIN_FRAME,
    T_STATE,
    T_TIME,
    THREAD,
    WAIT_BUCKETS,
    view,
)
from zexp.engine.sim.threads import charge_wait


@jit
def uncharge_wait(v, tid, end):
    """Take back what a parked waiter's spinning was charged beyond ``end``; returns where its own time stops then."""
    me = tid * THREAD
    group = v.thread[me + T_GROUP] * v.frames
    low = max(v.thread[me + T_ARRIVED], end)
    head = min(max(v.thread[me + T_HEAD_SINCE], low), v.thread[me + T_SINCE])
    v.profile[group + v.thread[me + T_QUEUE_FRAME]] -= head - low
    v.profile[group + v.thread[me + T_SPIN_FRAME]] -= v.thread[me + T_SINCE] - head
    return low


@jit
def take_back(v, number):
    """Take the last acquisition of a lock out of its statistics."""
    lock = number * LOCK
    me = v.lock[lock + L_HOLDER] * THREAD
    stats = v.lock_class[number] * LOCK_STATS
    v.lock_stat[stats + S_ACQUIRED] -= 1
    if v.thread[me + T_STATE] != RUNNING:  # it was handed over to a waiter
        wait_ns = whole_ns(v.lock[lock + L_HELD_SINCE] - v.thread[me + T_ARRIVED])
        v.lock_stat[stats + S_CONTENDED] -= 1
        v.lock_stat[stats + S_WAIT_NS] -= wait_ns
        v.lock_stat[stats + WAIT_BUCKETS + bit_length(wait_ns)] -= 1


@jit
def settle(s):
    """At the end of a run, cut or complete the accounts of threads caught in the middle of something."""
    v = reference(view(s))
    end = v.scalars[G_END]
    for tid in range(v.threads):
        me = tid * THREAD
        state = v.thread[me + T_STATE]
        if state == HALTED or state == NEW:
            continue
        reached = v.thread[me + T_TIME] if state == RUNNING else v.thread[me + T_SINCE]
        if reached > end:  # its last instruction began before the end and reaches beyond
            if state == PARKED:  # or it did: after it the thread spun until a release visible only after the end
                reached = uncharge_wait(v, tid, end)
            v.profile[v.thread[me + T_GROUP] * v.frames + v.thread[me + T_LAST_FRAME]] -= reached - end
        elif state == SPINNING:
            charge_wait(v, tid, end)
        elif state != RUNNING:
            v.thread[me + T_OFF_CPU] += end - reached
    last = v.scalars[G_CURRENT]  # of those who do something at the end itself: the thread that ended the run, or none
    for number in range(s.lock.shape[0]):
        holder = v.lock[number * LOCK + L_HOLDER]
        since = v.lock[number * LOCK + L_HELD_SINCE]
        if holder >= 0 and (since > end or (since == end and holder > last)):  # it never went on with the lock
            take_back(v, number)
