"""Run workloads on small machines in this process, and look at everything afterwards."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import yaml  # type: ignore[import-untyped,unused-ignore]
from zexp_accounting.eager import Eager
from zexp_accounting.lazy import Lazy
from zexp_accounting.shared_atomic import SharedAtomic
from zexp_flush.strategies import Sync

from zexp import machine as machines
from zexp.compose import compose, ready
from zexp.engine.sim import engine
from zexp.kernel import KernelBuilder, KernelConfig, Policies, Pool, PoolAccounting, Zswap
from zexp.machine import Machine
from zexp.program import Program, Value
from zexp.result import LockStats, RunResult
from zexp.workload import Load, Workload

CONF = Path(__file__).parents[2] / "conf"
KERNELS = ("v6_1", "v6_5", "v6_8", "v6_12", "v6_17", "v7_2", "v7_3")
STUDIED = ("v6_1", "v6_8", "v6_12", "v7_3")
"""Those whose munmap path was read line by line; the others are derived from them."""
POLICIES: dict[str, type[PoolAccounting]] = {"eager": Eager, "lazy": Lazy, "shared_atomic": SharedAtomic}


@functools.cache
def _kernel(name: str) -> KernelConfig:
    from omegaconf import OmegaConf

    ready()
    config = OmegaConf.to_object(compose([f"kernel={name}", "machine=laptop"]).kernel)
    assert isinstance(config, KernelConfig)
    return config


def kernel(name: str, **changes: Any) -> KernelConfig:
    """A kernel of ``conf/kernel``, with some fields changed."""
    config = copy.deepcopy(_kernel(name))
    for key, value in changes.items():
        assert hasattr(config, key), key
        setattr(config, key, value)
    config.validate()
    return config


@functools.cache
def _preset(name: str) -> dict[str, Any]:
    mapping: dict[str, Any] = yaml.safe_load((CONF / "machine" / f"{name}.yaml").read_text())
    return mapping


@functools.cache
def machine(name: str = "laptop", memory_mib: int | None = None, nodes: int | None = None) -> Machine:
    """A preset, with another amount of memory, or cut into more nodes."""
    mapping = copy.deepcopy(_preset(name))
    if memory_mib is not None:
        mapping["memory_gib"] = memory_mib / 1024
    if nodes is not None:
        mapping["topology"] |= {"nodes_per_socket": nodes, "cores_per_l3": mapping["topology"]["cores_per_l3"] // nodes}
    return machines.load(mapping)


@dataclass
class Counting(PoolAccounting):
    """Watches instead of accounting: counts every call, and the largest size the pool had."""

    name: str = "counting"

    def setup(self, k: KernelBuilder, zswap: Zswap) -> None:
        self.now = k.bookkeeping("true size", 1, [zswap.zsmalloc.initial_pages])
        self.largest = k.bookkeeping("largest size", k.machine.cpus)

    def entry_stored(self, k: KernelBuilder, zswap: Zswap) -> None:
        k.count("entries_stored")

    def entry_freed(self, k: KernelBuilder, zswap: Zswap) -> None:
        k.count("entries_freed")

    def zspage_allocated(self, k: KernelBuilder, zswap: Zswap, pool: Pool, pages: Value) -> None:
        k.count("zspages_allocated")
        k.count("pages_allocated", pages)
        size = k.atomic_add(self.now[0], pages)
        k.store(self.largest[k.cpu], k.maximum(k.load(self.largest[k.cpu]), size))

    def zspage_freed(self, k: KernelBuilder, zswap: Zswap, pool: Pool, pages: Value) -> None:
        k.count("zspages_freed")
        k.count("pages_freed", pages)
        k.atomic_add(self.now[0], -pages)

    def total_pages(self, k: KernelBuilder, zswap: Zswap) -> Value:
        k.count("total_pages_asked")
        return k.load(self.now[0])


@dataclass(frozen=True)
class Simulated:
    """A finished run: what it reports, and the memory it left."""

    load: Load
    zswap: Zswap
    program: Program
    result: RunResult
    memory: npt.NDArray[np.int64]

    def cells(self, name: str) -> npt.NDArray[np.int64]:
        """The final values of a variable or array."""
        (variable,) = [v for v in self.program.variables if v.name == name and v.base >= 0]
        return self.memory[variable.base : variable.base + variable.length]

    def cell(self, name: str) -> int:
        """The final value of a variable."""
        (value,) = self.cells(name)
        return int(value)

    def metric(self, name: str) -> int:
        """A count; 0 if nothing was counted."""
        return int(self.result.metrics.get(name, 0))

    def lock(self, name: str) -> LockStats:
        """The statistics of a lock."""
        (lock,) = [lock for lock in self.result.locks if lock.name == name]
        return lock

    def transfers(self, name: str) -> int:
        """How often a line of a variable moved."""
        return sum(line.transfers for line in self.result.lines if line.name == name)

    def symbols(self, comm: str | None = None) -> set[str]:
        """All functions in the profile."""
        return {s for stack in self.result.profile.stacks if comm in (None, stack.comm) for s in stack.stack}


Extra = Callable[[KernelBuilder, Zswap], None]


def simulate(
    workload: Workload,
    policy: PoolAccounting | None = None,
    config: KernelConfig | None = None,
    on: Machine | None = None,
    *,
    seed: int = 0,
    extra: Extra | None = None,
) -> Simulated:
    """Stage and run; ``extra`` stages more threads after the workload's."""
    policy, config, on = policy or Counting(), config or kernel("v6_8"), on or machine()
    k = KernelBuilder(on, config)
    seen: list[Zswap] = []
    setup = policy.setup

    def listening(k: KernelBuilder, zswap: Zswap) -> None:
        seen.append(zswap)
        setup(k, zswap)

    with patch.object(policy, "setup", listening):
        load = workload.stage(k, Policies(policy, Sync()))
    (zswap,) = seen
    if extra is not None:
        extra(k, zswap)
    program = k.finish()
    return Simulated(load, zswap, program, *run_keeping_cells(program, on, seed))


def run_keeping_cells(program: Program, on: Machine, seed: int) -> tuple[RunResult, npt.NDArray[np.int64]]:
    """Run a program; its result, and what its variables held at the end."""
    states: list[Any] = []
    prepare = engine.prepare

    def keeping(*args: Any, **kwargs: Any) -> Any:
        states.append(prepare(*args, **kwargs))
        return states[-1]

    with patch.object(engine, "prepare", keeping):
        result = engine.run(program, on, seed=seed)
    return result, states[-1].cells


def auditor(k: KernelBuilder, zswap: Zswap) -> None:
    """A thread that asks for the size of the pool when the last entry has gone, and a while has passed."""
    with k.thread("auditor") as thread:
        with k.while_(lambda: k.load(zswap.stored_pages) > 0):
            k.sleep_ns(10_000)
        k.sleep_ns(1_000_000)
        k.count("audit/total_pages", zswap.zswap_total_pages(k))
    k.spawn(thread, k.machine.cpus - 1)
