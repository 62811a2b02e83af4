"""The instruction set of the staged programs.

A program is a table of instructions, one row of eight 64-bit integers each::

    op  frame  a  b  c  d  e  work

``frame`` is the call-tree node the instruction's time is charged to. Because the builder inlines every call, the call
stack at an instruction is known when it is staged: frames cost nothing at run time. ``work`` is computing that follows
the instruction in the same frame, in 1/16 cycle. ``a`` to ``e`` are register numbers, cells, lengths or targets as the
comment beside each opcode says; a *cell* ``[base + r]`` is a 64-bit variable, bounds-checked against ``length``.

Registers hold 64-bit integers and are private to a thread; constants are registers loaded when the thread starts.
"""

from __future__ import annotations

from enum import IntEnum

WORK_UNIT = 16
"""Work is kept in 1/16 cycle."""

COLUMNS = ("op", "frame", "a", "b", "c", "d", "e", "work")
OP, FRAME, A, B, C, D, E, WORK = range(8)

ZERO, CPU, NODE = range(3)
"""Registers every thread starts with: the constant 0, its CPU and its NUMA node."""
FIRST_FREE_REGISTER = 3


class Op(IntEnum):
    """Opcodes. ``r[x]`` is a register, ``m[x]`` a cell."""

    # what concerns nobody but the thread itself
    WORK = 0  #             only the work column; a = 1: the cost of a call, which may be charged with what follows
    WORK_R = 1  #           r[a] cycles
    BUSY_NS = 2  #          the CPU is busy for r[a] ns
    MEMORY = 3  #           r[b] dependent reads from the memory of node r[a], no line state kept
    MOV = 4  #              r[a] = r[b]
    ADD = 5  #              r[a] = r[b] + r[c], and so on
    SUB = 6
    MUL = 7
    DIV = 8  #              floor division; by zero is an error
    MOD = 9
    AND = 10
    OR = 11
    XOR = 12
    SHL = 13
    SHR = 14
    MIN = 15
    MAX = 16
    LT = 17  #              r[a] = r[b] < r[c]
    LE = 18
    EQ = 19
    NE = 20
    JUMP = 21  #            to a
    JUMP_ZERO = 22  #       to a if r[b] == 0
    LOOP = 23  #            r[b] += 1; to a if r[b] < r[c]
    NOW_NS = 24  #          r[a] = time
    RAND_INT = 25  #        r[a] = uniform in [0, r[b])
    RAND_EXP = 26  #        r[a] = exponential with mean r[b]
    COUNT = 27  #           metric a: sum += r[b], count += 1
    OBSERVE = 28  #         histogram a gets r[b]
    LINES = 29  #           r[b] dependent reads of lines that CPU r[a] wrote last, no line state kept
    LOG2 = 30  #            r[a] = number of bits of r[b], 0 if it is not positive
    # what others can see, and must happen in the order of time
    LOAD = 31  #            r[a] = m[b + r[c]], length d
    STORE = 32  #           m[b + r[c]] = r[a], length d
    ATOMIC_ADD = 33  #      m[b + r[c]] += r[e]; r[a] = the new value, length d
    CAS = 34  #             if m[b + r[c]] == r[e]: m = r[e + 1], r[a] = 1; else r[a] = 0; length d
    FILL = 35  #            m[b + r[c] + i] = r[a] for i below r[e], length d; bookkeeping only
    COPY = 36  #            m[a + r[c] + i] = m[b + r[c] + i] for i below r[e], length d of both; bookkeeping only
    SPIN_LOCK = 37  #       lock a + r[b], length c; slow-path frame d
    SPIN_TRYLOCK = 38  #    lock a + r[b], length c; r[e] = 1 if taken
    MUTEX_LOCK = 39  #      lock a + r[b], length c; queueing frame d, owner-spinning frame e
    UNLOCK = 40  #          lock a + r[b], length c; d = 1 for a mutex
    CONTENDED = 41  #       lock a + r[b], length c; r[e] = 1 if somebody waits for it
    SLEEP_NS = 42  #        leave the CPU for r[a] ns
    WAIT_PREPARE = 43  #    join wait queue a
    WAIT_SLEEP = 44  #      leave the CPU until woken; at once if woken since WAIT_PREPARE
    WAIT_FINISH = 45  #     leave wait queue a
    WAKE = 46  #            wake r[b] waiters of queue a, all if r[b] <= 0
    HALT = 47  #            the thread ends


FIRST_VISIBLE = Op.LOAD
"""Instructions from here on can be seen by other threads."""
ALU = frozenset(range(Op.ADD, Op.NE + 1))
JUMPS = frozenset({Op.JUMP, Op.JUMP_ZERO, Op.LOOP})
CARRIES_NO_WORK = JUMPS | {Op.HALT, Op.SPIN_LOCK, Op.MUTEX_LOCK, Op.SLEEP_NS, Op.WAIT_SLEEP}
"""Work after these is an instruction of its own: they jump or may block."""

WRITES_A = ALU | {Op.MOV, Op.NOW_NS, Op.RAND_INT, Op.RAND_EXP, Op.LOAD, Op.ATOMIC_ADD, Op.CAS, Op.LOG2}
"""Instructions whose column a is the register they write."""
ADDRESSES_A = frozenset({Op.COPY})
"""Instructions whose column a is the first cell of an array, as column b is of those that access memory."""

_READS: dict[Op, tuple[int, ...]] = {
    **{Op(op): (B, C) for op in ALU},
    Op.WORK_R: (A,),
    Op.BUSY_NS: (A,),
    Op.MEMORY: (A, B),
    Op.LINES: (A, B),
    Op.LOG2: (B,),
    Op.MOV: (B,),
    Op.JUMP_ZERO: (B,),
    Op.LOOP: (B, C),
    Op.RAND_INT: (B,),
    Op.RAND_EXP: (B,),
    Op.LOAD: (C,),
    Op.STORE: (A, C),
    Op.ATOMIC_ADD: (C, E),
    Op.CAS: (C, E),
    Op.FILL: (A, C, E),
    Op.COPY: (C, E),
    Op.SPIN_LOCK: (B,),
    Op.SPIN_TRYLOCK: (B,),
    Op.MUTEX_LOCK: (B,),
    Op.UNLOCK: (B,),
    Op.CONTENDED: (B,),
    Op.SLEEP_NS: (A,),
    Op.WAKE: (B,),
    Op.COUNT: (B,),
    Op.OBSERVE: (B,),
}


def registers_read(row: list[int]) -> list[int]:
    """The registers an instruction reads."""
    op = Op(row[OP])
    registers = [row[column] for column in _READS.get(op, ())]
    return [*registers, row[E] + 1] if op == Op.CAS else registers
