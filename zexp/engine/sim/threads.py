"""The threads of the simulated machine: which runs next, and what their waiting is charged to."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,call-arg,var-annotated"
from __future__ import annotations

from zexp.engine.sim.jit import inlined
from zexp.engine.sim.state import (
    G_HEAP,
    PARKED,
    RUNNING,
    SLEEPING,
    SPINNING,
    T_GROUP,
    T_HEAD_SINCE,
    T_OFF_CPU,
    T_QUEUE_FRAME,
    T_SINCE,
    T_SPIN_FRAME,
    T_STATE,
    T_TIME,
    THREAD,
    TID_BITS,
    TID_MASK,
    WAITING,
)


@inlined
def heap_push(v, key):
    """Add a thread to those that can run."""
    i = v.scalars[G_HEAP]
    v.scalars[G_HEAP] = i + 1
    while i > 0:
        parent = (i - 1) >> 1
        if v.heap[parent] <= key:
            break
        v.heap[i] = v.heap[parent]
        i = parent
    v.heap[i] = key


@inlined
def replace_first(v, key):
    """Put ``key`` into the heap in place of its smallest."""
    size = v.scalars[G_HEAP]
    i = 0
    child = 1
    while child < size:
        if child + 1 < size and v.heap[child + 1] < v.heap[child]:
            child += 1
        if v.heap[child] >= key:
            break
        v.heap[i] = v.heap[child]
        i = child
        child = 2 * i + 1
    v.heap[i] = key


@inlined
def time_limit(v, tid):
    """Thread ``tid`` may execute while its time is below this, which is never beyond the horizon."""
    return (v.heap[0] >> TID_BITS) + (1 if tid < (v.heap[0] & TID_MASK) else 0)


@inlined
def charge_wait(v, tid, until):
    """Charge a lock waiter's spinning up to ``until``."""
    me = tid * THREAD
    group = v.thread[me + T_GROUP] * v.frames
    since = v.thread[me + T_SINCE]
    if v.thread[me + T_SPIN_FRAME] < 0:
        v.profile[group + v.thread[me + T_QUEUE_FRAME]] += until - since
    else:
        head = min(max(v.thread[me + T_HEAD_SINCE], since), until)
        v.profile[group + v.thread[me + T_QUEUE_FRAME]] += head - since
        v.profile[group + v.thread[me + T_SPIN_FRAME]] += until - head
    v.thread[me + T_SINCE] = until


@inlined
def resume(v, tid, now):
    """A thread goes on at ``now``: account for the time it did not run."""
    me = tid * THREAD
    v.thread[me + T_TIME] = now
    state = v.thread[me + T_STATE]
    if state != RUNNING:
        if state == SPINNING:
            charge_wait(v, tid, now)
        elif state == PARKED or state == SLEEPING or state == WAITING:
            v.thread[me + T_OFF_CPU] += now - v.thread[me + T_SINCE]
        v.thread[me + T_STATE] = RUNNING
