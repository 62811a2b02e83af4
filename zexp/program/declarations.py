"""Declaring what threads share: variables and where they lie, locks, wait queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from zexp.program.errors import StagingError
from zexp.program.memory import (
    MUTEX,
    SPINLOCK,
    Array,
    LockKind,
    LockRef,
    Locks,
    PerCpu,
    PerNode,
    Ref,
    Series,
    WaitQueue,
)
from zexp.program.staging import INT64_MAX, Staging
from zexp.program.values import Value


class Declarations(Staging):
    """The declaring half of the builder."""

    def var(self, name: str, init: int = 0, home: int = 0, beside: Ref | None = None) -> Ref:
        """A variable on a cache line of its own in the memory of node ``home``; or on the open ``line``, or on the
        line of the variable ``beside``.
        """
        outer = self.memory.shared_line
        if beside is not None:
            self._own(beside.array.builder, beside.array.name)
            if isinstance(beside.index, Value) or not beside.array.tracked:
                raise StagingError(f"{name}: beside must name a fixed variable that lies on a cache line")
            self.memory.shared_line = self.memory.line_of[beside.array.base + beside.index]
        try:
            return self.array(name, 1, init=[init], homes=[home])[0]
        finally:
            self.memory.shared_line = outer

    def array(
        self,
        name: str,
        length: int,
        *,
        init: Sequence[int] | npt.NDArray[np.int64] | None = None,
        per_line: int = 1,
        homes: Sequence[int] | None = None,
    ) -> Array:
        """``length`` variables, ``per_line`` neighbours to a cache line; element i lives on node ``homes[i]``."""
        values = self._init(name, length, init)
        if per_line < 1:
            raise StagingError(f"{name}: per_line={per_line} puts no element on a cache line")
        base = self.memory.declare(name, values, self._homes(name, length, homes), per_line)
        return Array(self, name, base, length)

    def bookkeeping(self, name: str, length: int, init: Sequence[int] | npt.NDArray[np.int64] | None = None) -> Array:
        """Variables whose accesses cost nothing: what the model must know, charged for elsewhere."""
        return Array(self, name, self.memory.declare_untracked(name, self._init(name, length, init)), length)

    def per_cpu(self, name: str, init: int = 0) -> PerCpu:
        """One variable a CPU; ``.mine`` is that of the running thread's CPU."""
        homes = [int(n) for n in self.machine.node_of]
        base = self.memory.declare(name, self._init(name, len(homes), [init] * len(homes)), homes, 1)
        return PerCpu(self, name, base, len(homes))

    def per_node(self, name: str, init: int = 0) -> PerNode:
        """One variable a NUMA node; ``.mine`` is that of the running thread's node."""
        nodes = self.machine.nodes
        base = self.memory.declare(name, self._init(name, nodes, [init] * nodes), list(range(nodes)), 1)
        return PerNode(self, name, base, nodes)

    @contextmanager
    def line(self, name: str, home: int = 0) -> Iterator[None]:
        """Everything declared inside shares one cache line: a struct, or false sharing on purpose."""
        if self.memory.shared_line is not None:
            raise StagingError(f"k.line({name!r}) inside another k.line")
        (node,) = self._homes(name, 1, [home])
        self.memory.shared_line = self.memory.new_line(node, len(self.memory.variables))
        try:
            yield
        finally:
            self.memory.shared_line = None

    def locks(self, name: str, length: int = 1, kind: LockKind = SPINLOCK, homes: Sequence[int] | None = None) -> Locks:
        """``length`` locks of one class, each on its own line (or all on the open ``line``)."""
        if length < 1:
            raise StagingError(f"{name}: a lock array needs at least one lock, not {length}")
        base, klass = self.memory.declare_locks(name, kind, length, self._homes(name, length, homes))
        return Locks(self, name, kind, base, length, klass)

    def spinlock(self, name: str, kind: LockKind = SPINLOCK) -> LockRef:
        """A queued spinlock: waiters spin in FIFO order."""
        return self.locks(name, 1, kind)[0]

    def mutex(self, name: str, kind: LockKind = MUTEX) -> LockRef:
        """A mutex with optimistic spinning: waiters spin in FIFO order while the owner runs, else they sleep."""
        return self.locks(name, 1, kind)[0]

    def wait_queue(self, name: str) -> WaitQueue:
        """A queue for ``wait_event`` and ``wake``."""
        self._queues.append(name)
        return WaitQueue(self, name, len(self._queues) - 1)

    def series(self, name: str, length: int, unit: str) -> Series:
        """A time series of at most ``length`` values in ``unit``, for ``record``; the run reports it as ``name``."""
        if any(name == other.name for other in self._series):
            raise StagingError(f"series {name!r} is declared twice")
        length = self._number(length)
        recorded = self.bookkeeping(f"{name} recorded", 1)
        series = Series(
            self, name, unit, recorded, self.bookkeeping(f"{name} times", length), self.bookkeeping(name, length)
        )
        self._series.append(series)
        return series

    def _init(self, name: str, length: int, init: object) -> npt.NDArray[np.int64]:
        if length < 1:
            raise StagingError(f"{name}: an array needs at least one element, not {length}")
        values = np.zeros(length, np.int64) if init is None else np.asarray(init)
        if len(values) != length:
            raise StagingError(f"{name}: {len(values)} initial values for {length} elements")
        if values.dtype.kind not in "iu" or int(values.max()) > INT64_MAX:
            raise StagingError(f"{name}: initial values must be ints of 64 bits, not {values.dtype}")
        return values.astype(np.int64)

    def _homes(self, name: str, length: int, homes: Sequence[int] | None) -> list[int]:
        nodes = [0] * length if homes is None else [int(home) for home in homes]
        if len(nodes) != length:
            raise StagingError(f"{name}: {len(nodes)} homes for {length} elements")
        for home in nodes:
            if not 0 <= home < self.machine.nodes:
                raise StagingError(f"{name}: home {home}: the machine has nodes 0 to {self.machine.nodes - 1}")
        return nodes
