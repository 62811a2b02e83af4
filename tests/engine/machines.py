"""Machines for tests: built by hand, so that every number in a test can be traced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zexp.machine import CoreCosts, Machine

CORE = CoreCosts(l1_hit_cycles=4, atomic_cycles=20, store_buffer_entries=4, smt_share=0.5, wakeup_ns=1000)
FREE = CoreCosts(l1_hit_cycles=1e-9, atomic_cycles=1e-9, store_buffer_entries=64, smt_share=1, wakeup_ns=1e-9)


def machine(
    latency_ns: object,
    *,
    memory_ns: object = ((100,),),
    core_of: Sequence[int] | None = None,
    l3_of: Sequence[int] | None = None,
    node_of: Sequence[int] | None = None,
    ghz: float = 1.0,
    core: CoreCosts = CORE,
) -> Machine:
    """A machine of one socket; without more words every CPU is a core, all behind one L3 in one node."""
    latency = np.array(latency_ns, np.float64)
    memory = np.array(memory_ns, np.float64)
    cpus = len(latency)
    zeros = [0] * cpus
    return Machine(
        name="test",
        description="",
        core_of=np.array(core_of if core_of is not None else range(cpus), np.int32),
        l3_of=np.array(l3_of if l3_of is not None else zeros, np.int32),
        node_of=np.array(node_of if node_of is not None else zeros, np.int32),
        socket_of=np.array(zeros, np.int32),
        ghz=ghz,
        node_memory_bytes=np.full(len(memory), 1 << 30, np.int64),
        line_latency_ns=latency,
        memory_latency_ns=memory,
        core=core,
    )


def uniform(cpus: int, latency_ns: float = 50, memory_ns: float = 100, core: CoreCosts = CORE) -> Machine:
    """Every line takes the same time from every CPU to every other."""
    latency = np.full((cpus, cpus), latency_ns, np.float64)
    np.fill_diagonal(latency, 0)
    return machine(latency, memory_ns=[[memory_ns]], core=core)


def free(cpus: int) -> Machine:
    """Hardware that costs nothing: every latency rounds to 0 ps. What is left is pure queueing."""
    return uniform(cpus, 1e-9, 1e-9, FREE)
