"""The plugin's own test: needs zexp and this distribution, installed or on the path, and no store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from zexp_percpu_batched import PerCpuBatched, zexp_accounting_policies

from zexp.engine.sim import run
from zexp.kernel import KernelBuilder, KernelConfig, Zswap
from zexp.machine import CoreCosts, Machine

CPUS, ZSPAGES, PAGES = 4, 50, 3


def machine() -> Machine:
    """Four cores behind one L3."""
    return Machine(
        name="four CPUs",
        description="",
        core_of=np.arange(CPUS, dtype=np.int32),
        l3_of=np.zeros(CPUS, np.int32),
        node_of=np.zeros(CPUS, np.int32),
        socket_of=np.zeros(CPUS, np.int32),
        ghz=1.0,
        node_memory_bytes=np.full(1, 1 << 30, np.int64),
        line_latency_ns=50.0 * (1 - np.eye(CPUS)),
        memory_latency_ns=np.full((1, 1), 100.0),
        core=CoreCosts(l1_hit_cycles=4, atomic_cycles=20, store_buffer_entries=8, smt_share=1, wakeup_ns=1000),
    )


@dataclass
class FakeZsmalloc:
    """What the policy asks of zsmalloc."""

    initial_pages: int = 1000


@dataclass
class FakeZswap:
    """What the policy asks of zswap."""

    zsmalloc: FakeZsmalloc


@pytest.mark.parametrize("batch", [1, 2, 7, 64, 10_000])
def test_the_error_is_bounded(batch: int) -> None:
    """Every CPU makes 50 zspages of 3 pages; a reader then asks for the size."""
    policy = PerCpuBatched(batch=batch)
    policy.validate()
    k = KernelBuilder(machine(), KernelConfig())
    zswap: Zswap = FakeZswap(FakeZsmalloc())  # type: ignore[assignment]
    policy.setup(k, zswap)
    done = k.var("done")
    with k.thread("worker") as worker:
        pages = k.local(PAGES)
        with k.for_range(ZSPAGES):
            policy.zspage_allocated(k, zswap, None, pages)  # type: ignore[arg-type]
        k.atomic_add(done, 1)
        with k.if_(k.cpu == 0):
            with k.while_(lambda: k.load(done) < CPUS):
                k.busy_ns(100)
            k.count("pages", policy.total_pages(k, zswap))
    for cpu in range(CPUS):
        k.spawn(worker, cpu)
    result = run(k.finish(), machine())

    per_cpu = ZSPAGES * PAGES
    step = -(-batch // PAGES) * PAGES  # a CPU folds when its counter reaches the batch, zspage by zspage
    assert result.metrics["pages"] == 1000 + CPUS * (per_cpu // step * step)
    assert 0 <= 1000 + CPUS * per_cpu - result.metrics["pages"] <= CPUS * (batch - 1)


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_below_one_is_refused(batch: int) -> None:
    """With a message that says what is allowed."""
    with pytest.raises(ValueError, match=f"batch={batch}: a whole number of pages from 1 up"):
        PerCpuBatched(batch=batch).validate()


def test_the_hook() -> None:
    """The entry point brings the policy."""
    assert zexp_accounting_policies() == [PerCpuBatched]
