"""The same models as hand-written C programs: compiled here, run, and their results read."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zexp.engine.sim import state as st
from zexp.engine.sim.engine import prepare
from zexp.experiment import Experiment, Staged
from zexp.kernel import KernelBuilder
from zexp.kernel.zsmalloc import OVERLAPPING_READS
from zexp.machine import Machine
from zexp.program import Program
from zexp.program.isa import WORK_UNIT
from zexp.workload.base import Region
from zexp.workload.munmap import Munmap

from . import programs
from .programs import Ints, Timed

SOURCES = Path(__file__).parent / "native"
CACHE_SLOTS = 64
NOT_IN_TABLE = {"drain_slots_cache_cpu": 50}
"""Instructions of functions that zexp.kernel gives where it calls them."""
LAYOUT = (
    "kind of slot", "zspage of slot", "zspage->inuse", "zs_pool->pages_allocated", "class->size", "class->pages",
    "pool of kind",
)  # fmt: skip
"""The arrays that munmap.c reads, in this order."""


@dataclass(frozen=True)
class Outcome:
    """What both sides must agree on, to the last digit."""

    end_ps: int
    profile: Mapping[str, int]
    """Picoseconds by symbol."""
    locks: Mapping[str, tuple[int, ...]]
    """Acquired, contended, ns waited, ns held, 64 buckets of waits, 64 of holds."""
    lines: tuple[int, int]
    """Transfers and their picoseconds."""


@dataclass(frozen=True)
class Native:
    """One run of a C program."""

    outcome: Outcome
    seconds: float


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which("cc")


def outcome_of(program: Program, run: Timed) -> Outcome:
    """What the virtual machine says."""
    symbols = {program.stack(f)[-1] for f in range(len(program.frames))}
    profile = {s: ps for s in symbols if (ps := run.result.profile.self_ps(s))}
    locks = {c.name: tuple(stat) for c, stat in zip(program.lock_classes, run.state.lock_stat.tolist(), strict=True)}
    transfers, ps = run.state.line_stat.sum(axis=0).tolist()
    return Outcome(run.end_ps, profile, locks, (transfers, ps))


def convoy(program: Program, machine: Machine, loops: int, folder: Path) -> Native:
    """Run native/convoy.c on the machine and threads of ``program``."""
    state = prepare(program, machine, 0)
    work = {"CRITICAL_PS": programs.CRITICAL_CYCLES, "OUTSIDE_PS": programs.OUTSIDE_CYCLES}
    numbers = {name: work_ps(state, cycles) for name, cycles in work.items()} | {"LOOPS": loops}
    return _run("convoy", [*_machine(program, state), *_defines(numbers)], None, folder)


def munmap(experiment: Experiment, staged: Staged, folder: Path) -> Native:
    """Run native/munmap.c on the memory layout and the cost table of ``experiment``."""
    program, load_pages = staged.program, staged.load.pages
    k = KernelBuilder(experiment.machine, experiment.kernel)
    state = prepare(program, experiment.machine, 0)
    assert isinstance(experiment.workload, Munmap)
    first_page = [first for first, _, _ in Region("munmap", experiment.workload.processes, load_pages).shares()]
    assert not any(page % CACHE_SLOTS for page in [*first_page, load_pages]), "munmap.c wants whole slot caches"
    arrays = {v.name: program.cells[v.base : v.base + v.length] for v in program.variables if v.base >= 0}
    layout = np.concatenate([arrays[name] for name in LAYOUT])
    used = re.findall(r"(?:CALL\(|COST_)(\w+)", (SOURCES / "munmap.c").read_text())
    costs = {
        f"COST_{f}": work_ps(state, k.cycles(f, NOT_IN_TABLE.get(f))) for f in dict.fromkeys(used) if f != "function"
    }
    numbers = {
        "EAGER": int(experiment.policies.accounting.name == "eager"),
        "SLOTS": load_pages,
        "ZSPAGES": len(arrays["zspage->inuse"]),
        "ZPOOLS": experiment.kernel.zpools,
        "KINDS": len(arrays["class->size"]),
        "OVERLAPPING_READS": OVERLAPPING_READS,
    }
    constants = [
        *_machine(program, state),
        *_defines(numbers | costs),
        _array("int64_t", "first_page[THREADS + 1]", [*first_page, load_pages]),
    ]
    return _run("munmap", constants, layout, folder)


def work_ps(state: st.State, cycles: float) -> int:
    """Picoseconds of one work instruction, rounded as the virtual machine does; the same on all CPUs used."""
    (scale,) = set(state.thread[:, st.T_SCALE].tolist())
    return int((round(cycles * WORK_UNIT) * scale) >> 20)


def _machine(program: Program, state: st.State) -> list[str]:
    """The machine and the placement of the threads, as C constants."""
    assert not program.line_home.any(), "the C programs keep all lines in the memory of node 0"
    cpus, words = state.l3_mask.shape
    first = state.thread[0]
    numbers = {
        "CPUS": cpus,
        "NODES": len(state.memory),
        "WORDS": words,
        "ENTRIES": state.store_buffer.shape[1],
        "THREADS": len(state.thread),
        "HIT_PS": int(first[st.T_HIT]),
        "ATOMIC_PS": int(first[st.T_ATOMIC]),
        "STORE_PS": int(first[st.T_STORE]),
    }
    return [
        *_defines(numbers),
        _array("int64_t", "latency[CPUS][CPUS]", state.latency.ravel().tolist()),
        _array("int64_t", "memory_ps[NODES][NODES]", state.memory.ravel().tolist()),
        _array("uint64_t", "l3_mask[CPUS][WORDS]", [f"{w}u" for w in state.l3_mask.ravel().tolist()]),
        _array("int", "cpu_of_thread[THREADS]", state.thread[:, st.T_CPU].tolist()),
        _array("int", "node_of_thread[THREADS]", state.thread[:, st.T_NODE].tolist()),
    ]


def _defines(numbers: Mapping[str, int]) -> list[str]:
    return [f"#define {name} {number}" for name, number in numbers.items()]


def _array(kind: str, declaration: str, numbers: Iterable[object]) -> str:
    return f"static const {kind} {declaration} = {{{', '.join(map(str, numbers))}}};"


def _run(name: str, constants: list[str], layout: Ints | None, folder: Path) -> Native:
    """Compile a program with these constants, run it three times, read what it prints; the fastest time counts."""
    program, data = folder / name, folder / "layout.bin"
    (folder / "constants.h").write_text("\n".join(["#include <stdint.h>", *constants, ""]))
    command = ["cc", "-O2", "-o", str(program), str(SOURCES / f"{name}.c"), "-I", str(folder), "-I", str(SOURCES)]
    subprocess.run(command, check=True)
    if layout is not None:
        layout.tofile(data)
    arguments = [str(program)] if layout is None else [str(program), str(data)]
    runs = [subprocess.run(arguments, check=True, capture_output=True, text=True).stdout for _ in range(3)]
    return min((_read(run) for run in runs), key=lambda run: run.seconds)


def _read(text: str) -> Native:
    profile: dict[str, int] = defaultdict(int)
    locks: dict[str, tuple[int, ...]] = {}
    numbers: dict[str, list[str]] = {}
    for line in text.splitlines():
        kind, *words = line.split()
        if kind == "frame":
            profile[words[0]] += int(words[1])
        elif kind == "lock":
            locks[" ".join(words[132:])] = tuple(map(int, words[:132]))
        else:
            numbers[kind] = words
    transfers, ps = map(int, numbers["lines"])
    used = {symbol: ps for symbol, ps in profile.items() if ps}
    return Native(Outcome(int(numbers["end"][0]), used, locks, (transfers, ps)), float(numbers["real"][0]))
