"""What is measured: programs, and how a run of one is timed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zexp import compose, experiment
from zexp.engine.sim import engine, vm
from zexp.engine.sim import state as st
from zexp.machine import Machine
from zexp.program import Builder, Program
from zexp.result import RunResult
from zexp.workload.base import place

Ints = npt.NDArray[np.int64]

CONVOY_THREADS = 12
CRITICAL_CYCLES, OUTSIDE_CYCLES = 100, 300


def configured(*overrides: str) -> experiment.Experiment:
    """An experiment of conf/, as ``zexp run`` would make it."""
    registry = compose.ready()
    return experiment.from_config(compose.compose(list(overrides)), registry)


def server() -> Machine:
    """``epyc_9684x``: 192 CPUs, 12 L3 domains."""
    return configured("machine=epyc_9684x", "workload.total_size=4096").machine


def munmap(accounting: str, size: str, processes: int = 1) -> experiment.Experiment:
    """An arm of the 24 GiB experiment, of any size."""
    return configured(
        "experiment=munmap_24g", f"policy/accounting={accounting}", f"workload.total_size={size}",
        f"workload.processes={processes}",
    )  # fmt: skip


def convoy(machine: Machine, loops: int) -> Program:
    """Threads on different L3 domains: lock, work and count, unlock, work outside."""
    k = Builder(machine)
    lock, counter = k.spinlock("lock"), k.var("counter")
    with k.thread("worker") as worker, k.func("worker"), k.for_range(loops):
        with k.lock(lock):
            k.work(CRITICAL_CYCLES)
            k.store(counter, k.load(counter) + 1)
        k.work(OUTSIDE_CYCLES)
    for cpu in place(machine, "spread", CONVOY_THREADS, "threads"):
        k.spawn(worker, cpu)
    return k.finish()


def private(machine: Machine, cpus: int, loops: int) -> Program:
    """Every CPU adds up in its own line: nobody ever waits for another."""
    k = Builder(machine)
    mine = k.per_cpu("mine")
    with k.thread("worker") as worker, k.func("worker"), k.for_range(loops // cpus):
        k.work(20)
        k.store(mine.mine, k.load(mine.mine) + 1)
    for cpu in place(machine, "spread", cpus, "threads"):
        k.spawn(worker, cpu)
    return k.finish()


def contended(machine: Machine, cpus: int, loops: int) -> Program:
    """Every CPU adds to one atomic and reads another's line."""
    k = Builder(machine)
    shared, lines = k.var("shared"), k.per_cpu("lines")
    with k.thread("worker") as worker, k.func("worker"), k.for_range(loops // cpus) as i:
        k.work(200)
        k.atomic_add(shared)
        k.store(lines.mine, i)
        k.load(lines[(k.cpu + 1) % machine.cpus])
    for cpu in place(machine, "spread", cpus, "threads"):
        k.spawn(worker, cpu)
    return k.finish()


@dataclass(frozen=True)
class Timed:
    """One run of the virtual machine."""

    result: RunResult
    seconds: float
    end_ps: int
    state: st.State


def timed(program: Program, machine: Machine) -> Timed:
    """Run it, keeping the state, from which a comparison can read exact numbers."""
    kept: list[st.State] = []
    original = engine.prepare

    def prepare(program: Program, machine: Machine, seed: int) -> st.State:
        kept.append(original(program, machine, seed))
        return kept[0]

    engine.prepare = prepare
    try:
        result = engine.run(program, machine)
    finally:
        engine.prepare = original
    return Timed(result, result.wall_s, int(kept[0].scalars[st.G_END]), kept[0])


def best_of(times: int, program: Program, machine: Machine) -> Timed:
    """The fastest of several runs: the one the rest of the computer disturbed least."""
    return min((timed(program, machine) for _ in range(times)), key=lambda run: run.seconds)


def warm_up() -> None:
    """Load or compile the virtual machine, so that no measurement contains it."""
    engine.compile_vm(print)
    assert vm.run.nopython_signatures
