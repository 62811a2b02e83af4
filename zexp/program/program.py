"""A staged program: plain, frozen data that an engine runs, the listing prints and a hash names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from zexp.program.memory import LockKind, Memory, VariableInfo

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Frame:
    """A node of the call tree."""

    parent: int
    symbol: str


def call_stack(frames: Sequence[Frame], frame: int) -> tuple[str, ...]:
    """The symbols from the outermost function to a call-tree node; node 0 is time outside all functions."""
    symbols = [frames[frame].symbol]
    while (frame := frames[frame].parent) > 0:
        symbols.append(frames[frame].symbol)
    return tuple(reversed(symbols))


@dataclass(frozen=True, eq=False)
class ThreadInfo:
    """A thread to start: one a CPU."""

    comm: str
    daemon: bool
    cpu: int
    start_ns: int
    pc: int
    registers: Ints
    """Initial register file: constants and parameters."""


@dataclass(frozen=True)
class LockClass:
    """A lock or array of locks, the unit of lock statistics."""

    name: str
    kind: LockKind
    base: int
    length: int


@dataclass(frozen=True)
class SeriesInfo:
    """A time series; the last three are the first cells of what it consists of."""

    name: str
    unit: str
    length: int
    recorded: int
    """How often something was recorded; more than ``length`` if the rest was dropped."""
    times_ns: int
    values: int


@dataclass(frozen=True, eq=False)
class Program:
    """Everything an engine needs; see ``isa`` for the code."""

    code: Ints
    """``[instructions, 8]``."""
    where: tuple[tuple[str, int], ...]
    """File and line that staged each instruction."""
    frames: tuple[Frame, ...]
    threads: tuple[ThreadInfo, ...]
    cells: Ints
    """Initial values; those below ``len(cell_line)`` lie on cache lines, the rest is bookkeeping."""
    cell_line: Ints
    line_home: Ints
    """NUMA node of each line."""
    line_variable: Ints
    """Index into ``variables`` by which traffic is reported."""
    variables: tuple[VariableInfo, ...]
    lock_line: Ints
    lock_class: Ints
    lock_classes: tuple[LockClass, ...]
    queues: tuple[str, ...]
    metrics: tuple[str, ...]
    histograms: tuple[tuple[str, str], ...]
    """name, unit."""
    series: tuple[SeriesInfo, ...]
    horizon_ns: int | None
    """When a run ends at the latest, in ns after its start."""

    @classmethod
    def freeze(
        cls,
        code: Ints,
        where: Iterable[tuple[str, int]],
        frames: Iterable[Frame],
        threads: Iterable[ThreadInfo],
        memory: Memory,
        queues: Sequence[str],
        metrics: Sequence[str],
        histograms: Sequence[tuple[str, str]],
        series: Sequence[SeriesInfo],
        horizon_ns: int | None,
    ) -> Program:
        """Turn the builder's lists into arrays."""
        return cls(
            code=code,
            where=tuple(where),
            frames=tuple(frames),
            threads=tuple(threads),
            cells=np.concatenate([np.array(memory.init_tracked, np.int64), *memory.init_untracked]),
            cell_line=np.array(memory.line_of, np.int64),
            line_home=np.array(memory.line_home, np.int64),
            line_variable=np.array(memory.line_variable, np.int64),
            variables=tuple(VariableInfo(v.name, memory.settle(v.base), v.length, v.tracked) for v in memory.variables),
            lock_line=np.array(memory.lock_line, np.int64),
            lock_class=np.array(memory.lock_class_of, np.int64),
            lock_classes=tuple(LockClass(*c) for c in memory.lock_classes),
            queues=tuple(queues),
            metrics=tuple(metrics),
            histograms=tuple(histograms),
            series=tuple(series),
            horizon_ns=horizon_ns,
        )

    @cached_property
    def comms(self) -> tuple[str, ...]:
        """Thread groups, in order of first appearance."""
        return tuple(dict.fromkeys(t.comm for t in self.threads))

    def stack(self, frame: int) -> tuple[str, ...]:
        """The call stack of a call-tree node, outermost first."""
        return call_stack(self.frames, frame)

    def digest(self) -> str:
        """SHA-256 of all that decides the outcome (not of source lines)."""
        h = hashlib.sha256()
        for array in (
            self.code, self.cells, self.cell_line, self.line_home, self.line_variable, self.lock_line, self.lock_class
        ):  # fmt: skip
            h.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
        for t in self.threads:
            h.update(f"{t.comm}|{t.daemon}|{t.cpu}|{t.start_ns}|{t.pc}".encode() + t.registers.tobytes())
        names = (self.frames, self.variables, self.lock_classes, self.queues, self.metrics, self.histograms)
        h.update(repr((*names, self.series, self.horizon_ns)).encode())
        return h.hexdigest()
