"""What the virtual machine reads and writes: plain arrays, so that it can stop and go on at any instruction."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zexp.engine.sim.jit import jit
from zexp.engine.sim.pointers import int64_pointer, uint64_pointer

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

TID_BITS = 12
TID_MASK = (1 << TID_BITS) - 1
MAX_THREADS = TID_MASK
NOBODY = TID_MASK
"""Its entry in the heap is the last before the horizon: who meets it knows that nothing can run any more."""
FOREVER = 1 << 62
MAX_TIME = 1 << 50
"""A run that gets here (1,126 s) has failed: keys of the heap must fit 64 bits, with a margin for what is under way."""

# why run() stopped
SLICE, DONE, DEADLOCK, BAD_INDEX, DIVISION, BAD_UNLOCK, BAD_BOUND, TOO_LONG = range(8)

# Thread states. SPINNING: in a lock queue, on the CPU. PARKED: asleep on a mutex. WAITING: asleep in a wait queue.
RUNNING, SPINNING, PARKED, SLEEPING, WAITING, HALTED, NEW = range(7)

# Columns of a thread's row.
(
    T_TIME,  # ps
    T_PC,
    T_REGISTERS,  # offset of its register file
    T_CPU,
    T_NODE,
    T_GROUP,  # comm
    T_STATE,
    T_DAEMON,
    T_START,  # ps
    T_SCALE,  # ps per 1/16 cycle, times 2**20
    T_HIT,  # ps of a cache hit
    T_STORE,  # ps of issuing a store
    T_ATOMIC,  # ps of a locked instruction on a line it owns
    T_DRAIN,  # ps when its store buffer will be empty
    T_BUFFER_HEAD,
    T_BUFFERED,  # stores in the buffer
    T_NEXT,  # next in a lock's queue
    T_QUEUE_NEXT,  # next in a wait queue
    T_SINCE,  # ps since when it waits or sleeps, not accounted yet
    T_ARRIVED,  # ps when it joined the lock's queue
    T_HEAD_SINCE,  # ps since when it is first in a mutex's queue
    T_QUEUE_FRAME,
    T_SPIN_FRAME,  # -1: a spinlock
    T_LAST_FRAME,
    T_ARMED,  # wait queue: 0 not in one, 1 in one, 2 woken
    T_MUTEXES,  # held
    T_OFF_CPU,  # ps asleep
    T_ORDERED,  # opcodes from here on it executes in the order of time, others when it likes
) = range(28)
THREAD = 32

# Columns of a lock's row; queues link thread numbers.
L_HOLDER, L_HEAD, L_TAIL, L_SLEEP_HEAD, L_SLEEP_TAIL, L_HELD_SINCE, L_HANDOFF = range(7)
LOCK = 8

# Columns of a lock class's statistics: four sums, 64 wait buckets, 64 hold buckets.
S_ACQUIRED, S_CONTENDED, S_WAIT_NS, S_HOLD_NS = range(4)
WAIT_BUCKETS, HOLD_BUCKETS, LOCK_STATS = 4, 68, 132

HISTOGRAM = 65
"""64 buckets and the total."""

# Scalars.
(
    G_HEAP,  # entries
    G_LIVE,  # threads that are no daemons and have not ended
    G_EXECUTED,  # instructions
    G_CURRENT,  # thread, or -1; at the end of a run the one that ended it, -1: the horizon did
    G_END,  # ps
    G_HORIZON,  # ps; nothing is executed from then on. MAX_TIME: there is none
) = range(6)
SCALARS = 6


class State(NamedTuple):
    """The arrays, as Python sees them."""

    code: Ints  # [instructions, 8]
    registers: Ints  # all threads' register files, one after the other
    cells: Ints
    cell_line: Ints  # of the cells that lie on lines
    line_home: Ints  # node
    line_stat: Ints  # [lines, 2] transfers and their ps
    excl: Ints  # [lines] the CPU that may write without asking, or -1
    owner: Ints  # [lines] the CPU that supplies the data, or -1: only memory has it
    line_free: Ints  # [lines] ps when the last transfer of ownership is over
    sharers: Words  # [lines, words] CPUs that may read
    l3_mask: Words  # [cpus, words] CPUs behind the same L3
    latency: Ints  # [cpus, cpus] ps: to the row's CPU from the column's
    memory: Ints  # [nodes, nodes] ps
    thread: Ints  # [threads, THREAD]
    random: Words  # [threads]
    store_buffer: Ints  # [threads, entries] ps of completion
    heap: Ints  # of (ps << TID_BITS | thread): all that can run but the current one
    lock: Ints  # [locks, LOCK]
    lock_line: Ints
    lock_class: Ints
    mutexes: Ints  # the locks that are mutexes
    lock_stat: Ints  # [classes, LOCK_STATS]
    queue: Ints  # [wait queues, 2] head and tail
    profile: Ints  # [comms, frames] ps
    metric: Ints  # [metrics, 2] sum and count
    histogram: Ints  # [histograms, HISTOGRAM]
    exponential: Ints
    scalars: Ints
    wakeup_ps: int


class View(NamedTuple):
    """The same, as the compiled code sees it: addresses and widths."""

    code: Any
    registers: Any
    cells: Any
    cell_line: Any
    line_home: Any
    line_stat: Any
    excl: Any
    owner: Any
    line_free: Any
    sharers: Any
    l3_mask: Any
    latency: Any
    memory: Any
    thread: Any
    random: Any
    store_buffer: Any
    heap: Any
    lock: Any
    lock_line: Any
    lock_class: Any
    mutexes: Any
    lock_stat: Any
    queue: Any
    profile: Any
    metric: Any
    histogram: Any
    exponential: Any
    scalars: Any
    wakeup_ps: int
    words: int
    cpus: int
    nodes: int
    threads: int
    entries: int
    frames: int
    tracked: int
    mutex_count: int


@jit
def view(s):
    """The addresses of a state's arrays; valid while the caller keeps them alive."""
    return View(
        int64_pointer(s.code.ctypes.data),
        int64_pointer(s.registers.ctypes.data),
        int64_pointer(s.cells.ctypes.data),
        int64_pointer(s.cell_line.ctypes.data),
        int64_pointer(s.line_home.ctypes.data),
        int64_pointer(s.line_stat.ctypes.data),
        int64_pointer(s.excl.ctypes.data),
        int64_pointer(s.owner.ctypes.data),
        int64_pointer(s.line_free.ctypes.data),
        uint64_pointer(s.sharers.ctypes.data),
        uint64_pointer(s.l3_mask.ctypes.data),
        int64_pointer(s.latency.ctypes.data),
        int64_pointer(s.memory.ctypes.data),
        int64_pointer(s.thread.ctypes.data),
        uint64_pointer(s.random.ctypes.data),
        int64_pointer(s.store_buffer.ctypes.data),
        int64_pointer(s.heap.ctypes.data),
        int64_pointer(s.lock.ctypes.data),
        int64_pointer(s.lock_line.ctypes.data),
        int64_pointer(s.lock_class.ctypes.data),
        int64_pointer(s.mutexes.ctypes.data),
        int64_pointer(s.lock_stat.ctypes.data),
        int64_pointer(s.queue.ctypes.data),
        int64_pointer(s.profile.ctypes.data),
        int64_pointer(s.metric.ctypes.data),
        int64_pointer(s.histogram.ctypes.data),
        int64_pointer(s.exponential.ctypes.data),
        int64_pointer(s.scalars.ctypes.data),
        s.wakeup_ps,
        s.sharers.shape[1],
        s.latency.shape[0],
        s.memory.shape[0],
        s.thread.shape[0],
        s.store_buffer.shape[1],
        s.profile.shape[1],
        s.cell_line.shape[0],
        s.mutexes.shape[0],
    )
