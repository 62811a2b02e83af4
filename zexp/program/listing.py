"""A staged program in words: one line an instruction, indented by call depth, with what it costs on a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zexp.program import isa
from zexp.program.isa import Op

if TYPE_CHECKING:
    from zexp.machine import Machine
    from zexp.program.program import Program

_SIGNS = {
    Op.ADD: "+", Op.SUB: "-", Op.MUL: "*", Op.DIV: "//", Op.MOD: "%", Op.AND: "&", Op.OR: "|", Op.XOR: "^",
    Op.SHL: "<<", Op.SHR: ">>", Op.LT: "<", Op.LE: "<=", Op.EQ: "==", Op.NE: "!=",
}  # fmt: skip


@dataclass(frozen=True)
class ListingLine:
    """One line. ``pc`` is None for a line that opens a function."""

    comm: str
    pc: int | None
    depth: int
    text: str
    cost: str
    source: str


class Listing:
    """Words for the instructions of one program."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program, self.machine = program, machine
        self.ns_per_cycle = 1 / machine.ghz
        self.starts = {t.pc: t for t in reversed(program.threads)}
        self.targets = {int(row[isa.A]) for row in program.code if row[isa.OP] in isa.JUMPS}
        self.lock_names = [(c.base, c.length, c.name) for c in program.lock_classes]
        far = machine.line_latency_ns[~np.eye(machine.cpus, dtype=bool)]
        self.transfer = f"{far.min():.0f} to {far.max():.0f} ns if elsewhere" if far.size else "never elsewhere"

    def lines(self) -> Iterator[ListingLine]:
        """The listing, thread kind after thread kind."""
        comm = ""
        stack: tuple[str, ...] = ()
        self.constants: dict[int, int] = {}
        for pc, row in enumerate(self.program.code.tolist()):
            if pc in self.starts:
                thread = self.starts[pc]
                comm, stack = thread.comm, ()
                written = self._written(pc)
                self.constants = {
                    r: int(v)
                    for r, v in enumerate(thread.registers)
                    if r >= isa.FIRST_FREE_REGISTER and r not in written
                }
            here = self.program.stack(row[isa.FRAME]) if row[isa.FRAME] else ()
            shared = next(
                (i for i, (a, b) in enumerate(zip(stack, here, strict=False)) if a != b), min(len(stack), len(here))
            )
            for depth in range(shared, len(here)):
                yield ListingLine(comm, None, depth, f"{here[depth]}()", "", "")
            stack = here
            file, line = self.program.where[pc]
            label = "->" if pc in self.targets else "  "
            text = f"{label} {self._words(row)}"
            yield ListingLine(comm, pc, len(here), text, self._cost(row), f"{Path(file).name}:{line}")

    def _written(self, start: int) -> set[int]:
        """Registers that the code from ``start`` on writes; the others hold constants or parameters."""
        later = [pc for pc in self.starts if pc > start]
        written: set[int] = set()
        for row in self.program.code[start : min(later, default=None)].tolist():
            if row[isa.OP] in isa.WRITES_A:
                written.add(row[isa.A])
            elif row[isa.OP] == Op.LOOP:
                written.add(row[isa.B])
            elif row[isa.OP] in (Op.SPIN_TRYLOCK, Op.CONTENDED):
                written.add(row[isa.E])
        return written

    def _reg(self, register: int) -> str:
        names = {isa.ZERO: "0", isa.CPU: "cpu", isa.NODE: "node"}
        if register in names:
            return names[register]
        return str(self.constants[register]) if register in self.constants else f"r{register}"

    def _array(self, base: int, length: int) -> str:
        return next(v.name for v in self.program.variables if v.base == base and v.length >= length and v.base >= 0)

    def _cell(self, row: list[int]) -> str:
        name = self._array(row[isa.B], row[isa.D])
        return name if row[isa.D] == 1 else f"{name}[{self._reg(row[isa.C])}]"

    def _range(self, base: int, row: list[int]) -> str:
        return f"{self._array(base, row[isa.D])}[{self._reg(row[isa.C])}, {self._reg(row[isa.E])} elements]"

    def _lock(self, row: list[int]) -> str:
        _, length, name = next(c for c in self.lock_names if c[0] == row[isa.A])
        return name if length == 1 else f"{name}[{self._reg(row[isa.B])}]"

    def _words(self, row: list[int]) -> str:
        op, a, b, c, e = Op(row[isa.OP]), row[isa.A], row[isa.B], row[isa.C], row[isa.E]
        r = self._reg
        if op in _SIGNS:
            return f"{r(a)} = {r(b)} {_SIGNS[op]} {r(c)}"
        words: dict[Op, Callable[[], str]] = {
            Op.HALT: lambda: "end of thread",
            Op.WORK: lambda: "work",
            Op.WORK_R: lambda: f"work {r(a)} cycles",
            Op.BUSY_NS: lambda: f"busy {r(a)} ns",
            Op.MEMORY: lambda: f"read memory of node {r(a)}, {r(b)} x",
            Op.MOV: lambda: f"{r(a)} = {r(b)}",
            Op.MIN: lambda: f"{r(a)} = min({r(b)}, {r(c)})",
            Op.MAX: lambda: f"{r(a)} = max({r(b)}, {r(c)})",
            Op.JUMP: lambda: f"go to {a}",
            Op.JUMP_ZERO: lambda: f"if {r(b)} == 0 go to {a}",
            Op.LOOP: lambda: f"{r(b)} += 1, if {r(b)} < {r(c)} go to {a}",
            Op.LINES: lambda: f"read lines CPU {r(a)} wrote, {r(b)} x",
            Op.LOG2: lambda: f"{r(a)} = bits of {r(b)}",
            Op.CONTENDED: lambda: f"{r(e)} = somebody waits for {self._lock(row)}",
            Op.NOW_NS: lambda: f"{r(a)} = now",
            Op.RAND_INT: lambda: f"{r(a)} = random below {r(b)}",
            Op.RAND_EXP: lambda: f"{r(a)} = exponential of mean {r(b)}",
            Op.LOAD: lambda: f"{r(a)} = load {self._cell(row)}",
            Op.STORE: lambda: f"store {self._cell(row)} = {r(a)}",
            Op.ATOMIC_ADD: lambda: f"{r(a)} = atomic add {self._cell(row)} += {r(e)}",
            Op.CAS: lambda: f"{r(a)} = compare and swap {self._cell(row)}: {r(e)} -> {r(e + 1)}",
            Op.FILL: lambda: f"fill {self._range(b, row)} = {r(a)}",
            Op.COPY: lambda: f"copy {self._range(a, row)} = {self._range(b, row)}",
            Op.SPIN_LOCK: lambda: f"lock {self._lock(row)}",
            Op.SPIN_TRYLOCK: lambda: f"{r(e)} = try to lock {self._lock(row)}",
            Op.MUTEX_LOCK: lambda: f"lock mutex {self._lock(row)}",
            Op.UNLOCK: lambda: f"unlock {self._lock(row)}",
            Op.SLEEP_NS: lambda: f"sleep {r(a)} ns",
            Op.WAIT_PREPARE: lambda: f"prepare to wait in {self.program.queues[a]}",
            Op.WAIT_SLEEP: lambda: f"sleep in {self.program.queues[a]}",
            Op.WAIT_FINISH: lambda: f"leave {self.program.queues[a]}",
            Op.WAKE: lambda: f"wake {'all' if b == isa.ZERO else r(b)} in {self.program.queues[a]}",
            Op.COUNT: lambda: f"count {self.program.metrics[a]} += {r(b)}",
            Op.OBSERVE: lambda: f"observe {self.program.histograms[a][0]}: {r(b)}",
        }
        return words[op]()

    def _cost(self, row: list[int]) -> str:
        core = self.machine.core
        op, work = Op(row[isa.OP]), row[isa.WORK] / isa.WORK_UNIT
        tracked = op in (Op.LOAD, Op.STORE, Op.ATOMIC_ADD, Op.CAS) and row[isa.B] < len(self.program.cell_line)
        parts = []
        if op == Op.LOAD and tracked:
            parts.append(f"{core.l1_hit_cycles * self.ns_per_cycle:.1f} ns, {self.transfer}")
        elif op == Op.STORE and tracked:
            parts.append(f"{self.ns_per_cycle:.1f} ns, line follows in the store buffer")
        elif (op in (Op.ATOMIC_ADD, Op.CAS) and tracked) or op in (Op.SPIN_LOCK, Op.SPIN_TRYLOCK, Op.MUTEX_LOCK):
            parts.append(f"{core.atomic_cycles * self.ns_per_cycle:.1f} ns, {self.transfer}")
        elif op == Op.UNLOCK:
            parts.append(f"{self.ns_per_cycle:.1f} ns")
        elif op == Op.MEMORY:
            parts.append(
                f"{self.machine.memory_latency_ns.min():.0f} to {self.machine.memory_latency_ns.max():.0f} ns each"
            )
        if work:
            parts.append(f"{work:.4g} cycles = {work * self.ns_per_cycle:.1f} ns")
        return "; ".join(parts)
