"""Cache lines of the simulated machine, and the store buffers in front of them.

A line knows who may read it (``sharers``), who may write it without asking (``excl``) and who supplies it (``owner``),
as in a MOESI protocol. A transfer of ownership occupies the line until ``line_free``, so that concurrent ones queue; a
read waits for one under way but does not delay others. Stores drain in order through a buffer while the CPU goes on;
locked instructions wait for it, as on x86. Cache capacity is not modelled: a line stays until another CPU takes it.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

import numpy as np

from zexp.engine.sim.jit import inlined, jit
from zexp.engine.sim.pointers import trailing_zeros
from zexp.engine.sim.state import T_ATOMIC, T_BUFFER_HEAD, T_BUFFERED, T_CPU, T_DRAIN, T_NODE, THREAD


@jit
def nearest_in_l3(v, line, cpu):
    """Latency from the nearest sharer behind the same L3, or -1."""
    best = np.int64(-1)
    for w in range(v.words):
        word = v.sharers[line * v.words + w] & v.l3_mask[cpu * v.words + w]
        while word != np.uint64(0):
            ps = v.latency[cpu * v.cpus + w * 64 + trailing_zeros(word)]
            word &= word - np.uint64(1)
            if best < 0 or ps < best:
                best = ps
    return best


@jit
def evict_sharers(v, line, cpu):
    """Take the line from all that share it; latency to the farthest of them from a CPU."""
    worst = np.int64(0)
    for w in range(line * v.words, line * v.words + v.words):
        word = v.sharers[w]
        if word != np.uint64(0):
            v.sharers[w] = np.uint64(0)
            column = cpu * v.cpus + (w - line * v.words) * 64
            while word != np.uint64(0):
                worst = max(worst, v.latency[column + trailing_zeros(word)])
                word &= word - np.uint64(1)
    return worst


@jit
def fetch_shared(v, line, cpu, node, now):
    """A read by a CPU that does not share the line: when it arrives."""
    start = max(now, v.line_free[line])
    owner = v.owner[line]
    if owner < 0:
        ps = v.memory[node * v.nodes + v.line_home[line]]
        v.owner[line] = cpu
        v.excl[line] = cpu
    else:
        ps = np.int64(-1)
        if v.excl[line] < 0:
            ps = nearest_in_l3(v, line, cpu)
        if ps < 0:
            ps = v.latency[cpu * v.cpus + owner]
        v.excl[line] = -1
    v.sharers[line * v.words + (cpu >> 6)] |= np.uint64(1) << np.uint64(cpu & 63)
    v.line_stat[line * 2] += 1
    v.line_stat[line * 2 + 1] += start - now + ps
    return start + ps


@inlined
def fetch_exclusive(v, line, cpu, node, now):
    """A CPU that does not own the line asks for it: when it has it. The farthest acknowledgement decides."""
    start = max(now, v.line_free[line])
    other = v.excl[line]
    if v.owner[line] < 0:
        ps = v.memory[node * v.nodes + v.line_home[line]]
    elif other >= 0:  # nobody else shares it
        ps = v.latency[cpu * v.cpus + other]
        v.sharers[line * v.words + (other >> 6)] = np.uint64(0)
    else:
        ps = evict_sharers(v, line, cpu)
    v.sharers[line * v.words + (cpu >> 6)] = np.uint64(1) << np.uint64(cpu & 63)
    v.excl[line] = cpu
    v.owner[line] = cpu
    v.line_free[line] = start + ps
    if ps > 0:  # else it was the only sharer
        v.line_stat[line * 2] += 1
        v.line_stat[line * 2 + 1] += start - now + ps
    return start + ps


@inlined
def pass_on(v, line, owner, cpu):
    """The CPU that owns a line hands it to another: how long that takes."""
    ps = v.latency[cpu * v.cpus + owner]
    v.sharers[line * v.words + (owner >> 6)] = np.uint64(0)
    v.sharers[line * v.words + (cpu >> 6)] = np.uint64(1) << np.uint64(cpu & 63)
    v.excl[line] = cpu
    v.owner[line] = cpu
    v.line_stat[line * 2] += 1 if ps > 0 else 0
    v.line_stat[line * 2 + 1] += ps
    return ps


@jit
def buffered_store(v, tid, line, now):
    """A store that cannot complete at once. Returns when the CPU goes on; T_DRAIN is when the store is visible."""
    me = tid * THREAD
    buffer = tid * v.entries
    head = v.thread[me + T_BUFFER_HEAD]
    entries = v.thread[me + T_BUFFERED]
    go_on = now
    if entries == v.entries:  # it is full: wait for the oldest, unless that has completed
        go_on = max(now, v.store_buffer[buffer + head])
    while entries > 0 and v.store_buffer[buffer + head] <= go_on:  # forget those that have completed
        head = head + 1 if head + 1 < v.entries else 0
        entries -= 1
    cpu = v.thread[me + T_CPU]
    done = max(go_on, v.thread[me + T_DRAIN])
    if v.excl[line] != cpu:
        done = fetch_exclusive(v, line, cpu, v.thread[me + T_NODE], done)
    slot = head + entries
    v.store_buffer[buffer + (slot if slot < v.entries else slot - v.entries)] = done
    v.thread[me + T_DRAIN] = done
    v.thread[me + T_BUFFER_HEAD] = head
    v.thread[me + T_BUFFERED] = entries + 1
    return go_on


@jit
def locked_access(v, tid, line, now):
    """A locked instruction: when it is done. It waits for the store buffer and for the line."""
    me = tid * THREAD
    cpu = v.thread[me + T_CPU]
    begin = max(now, v.thread[me + T_DRAIN])
    if v.excl[line] != cpu:
        begin = fetch_exclusive(v, line, cpu, v.thread[me + T_NODE], begin)
    done = begin + v.thread[me + T_ATOMIC]
    v.line_free[line] = done
    return done
