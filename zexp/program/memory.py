"""Shared state of a program: variables on cache lines, arrays, locks, wait queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from zexp.program.errors import StagingError
from zexp.program.values import IntLike, Value

if TYPE_CHECKING:
    from zexp.program.staging import Staging

Ints = npt.NDArray[np.int64]


def _checked(index: IntLike, name: str, length: int, what: str) -> IntLike:
    if isinstance(index, Value):
        return index
    if isinstance(index, bool) or not isinstance(index, (int, np.integer)):
        raise StagingError(f"{name}[{index!r}]: an index is an int or a staged value")
    if not 0 <= index < length:
        raise StagingError(f"{name}[{index}] is outside its {length} {what}")
    return int(index)


@dataclass(frozen=True, eq=False)
class Array:
    """``length`` variables of 64 bits; ``array[i]`` names one, for the builder's load and store."""

    builder: Staging
    name: str
    base: int
    length: int

    def __getitem__(self, index: IntLike) -> Ref:
        return Ref(self, self._checked(index))

    def __len__(self) -> int:
        return self.length

    @property
    def tracked(self) -> bool:
        """Whether it lies on cache lines, and is not bookkeeping."""
        return self.base < Memory.UNTRACKED

    def __iter__(self) -> NoReturn:
        raise StagingError(f"{self.name} cannot be iterated in Python: use `with k.for_each(array) as element:`")

    def _checked(self, index: IntLike) -> IntLike:
        return _checked(index, self.name, self.length, "elements")


@dataclass(frozen=True, eq=False)
class Ref:
    """One variable: a place to load from and store to."""

    array: Array
    index: IntLike


class PerCpu(Array):
    """One variable a CPU, each on a line of its own in the memory of the CPU's node."""

    @property
    def mine(self) -> Ref:
        """That of the CPU the staged thread runs on."""
        return Ref(self, self.builder.cpu)


class PerNode(Array):
    """One variable a NUMA node, each on a line of its own there."""

    @property
    def mine(self) -> Ref:
        """That of the node the staged thread runs on."""
        return Ref(self, self.builder.node)


@dataclass(frozen=True)
class LockKind:
    """How a lock behaves and under which symbols its time shows in a profile."""

    mutex: bool
    acquire: str
    """The frame of taking it."""
    queue: str
    """The frame of waiting in its queue, below ``acquire``."""
    spin: str
    """Mutex only: the frame of the first waiter, spinning on the running owner."""


SPINLOCK = LockKind(False, "_raw_spin_lock", "native_queued_spin_lock_slowpath", "")
SPINLOCK_IRQ = LockKind(False, "_raw_spin_lock_irq", "native_queued_spin_lock_slowpath", "")
MUTEX = LockKind(True, "__mutex_lock", "osq_lock", "mutex_spin_on_owner")


@dataclass(frozen=True, eq=False)
class Locks:
    """``length`` locks of one class; ``locks[i]`` names one."""

    builder: Staging
    name: str
    kind: LockKind
    base: int
    length: int
    klass: int
    """Index of the lock class, by which statistics are kept."""

    def __getitem__(self, index: IntLike) -> LockRef:
        return LockRef(self, _checked(index, self.name, self.length, "locks"))

    def __len__(self) -> int:
        return self.length


@dataclass(frozen=True, eq=False)
class LockRef:
    """One lock, to be taken with ``with k.lock(ref):``."""

    locks: Locks
    index: IntLike

    def identity(self) -> tuple[int, str, int]:
        """The same for two references to the same lock, as far as staging can tell."""
        staged = isinstance(self.index, Value)
        return (
            self.locks.base,
            "r" if staged else "i",
            self.index.register if isinstance(self.index, Value) else self.index,
        )


@dataclass(frozen=True, eq=False)
class WaitQueue:
    """Threads waiting for something to become true."""

    builder: Staging
    name: str
    number: int


@dataclass(frozen=True, eq=False)
class Series:
    """What ``k.record`` appends to: a value and its time, as often as there is room."""

    builder: Staging
    name: str
    unit: str
    recorded: Array
    """One element: how often something was recorded, room or not."""
    times_ns: Array
    values: Array


@dataclass(frozen=True)
class VariableInfo:
    """What the engine and the listing need to know of a declared variable or array."""

    name: str
    base: int
    length: int
    tracked: bool
    """False for bookkeeping whose accesses cost nothing."""


class Memory:
    """Lays declared state out: cells first those on cache lines, then bookkeeping.

    While declarations go on, untracked arrays are numbered from ``UNTRACKED`` up; ``freeze`` moves them behind the
    tracked cells.
    """

    UNTRACKED = 1 << 40

    def __init__(self) -> None:
        self.variables: list[VariableInfo] = []
        self.lock_classes: list[tuple[str, LockKind, int, int]] = []
        """name, kind, base, length."""
        self.line_of: list[int] = []
        self.line_home: list[int] = []
        self.line_variable: list[int] = []
        self.lock_line: list[int] = []
        self.lock_class_of: list[int] = []
        self.init_tracked: list[int] = []
        self.init_untracked: list[Ints] = []
        self.untracked = 0
        self.shared_line: int | None = None
        """The line that declarations go to while ``Builder.line`` is open."""

    def new_line(self, home: int, variable: int) -> int:
        """A fresh cache line in the memory of node ``home``."""
        self.line_home.append(home)
        self.line_variable.append(variable)
        return len(self.line_home) - 1

    def declare(self, name: str, init: Ints, homes: list[int], per_line: int) -> int:
        """Declare tracked cells, ``per_line`` to a line; ``homes[i]`` is the node of element i. Returns the base."""
        base = len(self.line_of)
        number = len(self.variables)
        line = -1
        for i, value in enumerate(init.tolist()):
            if self.shared_line is not None:
                line = self.shared_line
            elif i % per_line == 0:
                line = self.new_line(homes[i], number)
            self.line_of.append(line)
            self.init_tracked.append(value)
        self.variables.append(VariableInfo(name, base, len(init), True))
        return base

    def declare_untracked(self, name: str, init: Ints) -> int:
        """Declare bookkeeping cells; returns their provisional base."""
        base = self.UNTRACKED + self.untracked
        self.untracked += len(init)
        self.init_untracked.append(init)
        self.variables.append(VariableInfo(name, base, len(init), False))
        return base

    def initial(self, array: Array) -> Ints:
        """The values an array starts with."""
        if array.tracked:
            return np.array(self.init_tracked[array.base : array.base + array.length], np.int64)
        base = self.UNTRACKED
        for init in self.init_untracked:
            if base == array.base:
                return init
            base += len(init)
        raise StagingError(f"{array.name} belongs to another program")

    def declare_locks(self, name: str, kind: LockKind, length: int, homes: list[int]) -> tuple[int, int]:
        """Declare locks, each on a line of its own or on the open shared line; returns base and class."""
        base, klass = len(self.lock_line), len(self.lock_classes)
        number = len(self.variables)
        self.variables.append(VariableInfo(name, -1, length, True))
        for i in range(length):
            line = self.shared_line if self.shared_line is not None else self.new_line(homes[i], number)
            self.lock_line.append(line)
            self.lock_class_of.append(klass)
        self.lock_classes.append((name, kind, base, length))
        return base, klass

    def settle(self, base: int) -> int:
        """The final base of a provisional one."""
        return base if base < self.UNTRACKED else base - self.UNTRACKED + len(self.line_of)
