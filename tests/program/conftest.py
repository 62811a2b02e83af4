from __future__ import annotations

import numpy as np
import pytest

from zexp.machine import CoreCosts, Machine
from zexp.program import Builder


def small_machine() -> Machine:
    """Four CPUs, two nodes, 1 GHz."""
    latency = np.full((4, 4), 50.0)
    np.fill_diagonal(latency, 0)
    return Machine(
        name="test",
        description="",
        core_of=np.arange(4, dtype=np.int32),
        l3_of=np.array([0, 0, 1, 1], np.int32),
        node_of=np.array([0, 0, 1, 1], np.int32),
        socket_of=np.zeros(4, np.int32),
        ghz=1.0,
        node_memory_bytes=np.full(2, 1 << 30, np.int64),
        line_latency_ns=latency,
        memory_latency_ns=np.array([[100.0, 200.0], [200.0, 100.0]]),
        core=CoreCosts(l1_hit_cycles=4, atomic_cycles=20, store_buffer_entries=4, smt_share=0.5, wakeup_ns=1000),
    )


@pytest.fixture
def k() -> Builder:
    return Builder(small_machine())
