"""The state of a program being staged, and how instructions get into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from zexp.program import isa
from zexp.program.errors import StagingError, caller
from zexp.program.isa import Op
from zexp.program.memory import (
    LockRef,
    Memory,
    Ref,
    Series,
)
from zexp.program.program import Frame
from zexp.program.values import IntLike, Local, Value

if TYPE_CHECKING:
    from zexp.machine import Machine

MAX_WORK_CYCLES = 1 << 28
INT64_MAX = (1 << 63) - 1


@dataclass(eq=False)
class Scope:
    """A region of control flow: values made in it mean nothing outside it."""

    parent: Scope | None
    breaks: list[int] | None = None
    """Of a loop: the jumps to patch to its end."""
    held: tuple[LockRef, ...] = ()
    """Locks held when it was entered."""


@dataclass(eq=False)
class Body:
    """The code of one kind of thread."""

    comm: str
    daemon: bool
    start: int
    root: Scope
    args: dict[str, int] = field(default_factory=dict)
    constants: dict[int, int] = field(default_factory=dict)
    registers: int = isa.FIRST_FREE_REGISTER
    held: list[LockRef] = field(default_factory=list)
    scope: Scope = field(init=False)
    builder: Staging | None = None

    def __post_init__(self) -> None:
        self.scope = self.root

    def new_register(self) -> int:
        """A register nothing else uses."""
        self.registers += 1
        return self.registers - 1

    def arg(self, name: str) -> Value:
        """A parameter of the thread, given a number by ``spawn``."""
        assert self.builder is not None
        if name not in self.args:
            self.args[name] = self.new_register()
        return Value(self.builder, self, self.args[name], self.root)


class Staging:
    """What the parts of the builder share: code, frames, scopes, registers."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.memory = Memory()
        self.code: list[list[int]] = []
        self.where: list[tuple[str, int]] = []
        self.frames: list[Frame] = [Frame(-1, "[no frame]")]
        self._frame_ids: dict[tuple[int, str], int] = {}
        self._frame = 0
        self._body: Body | None = None
        self._label = -1
        self._waiting = False
        self._else: tuple[int, Scope] | None = None
        self._bodies: list[Body] = []
        self._threads: list[tuple[Body, int, int, dict[str, int]]] = []
        self._horizon_ns: int | None = None
        self._queues: list[str] = []
        self._metrics: list[str] = []
        self._histograms: list[tuple[str, str]] = []
        self._series: list[Series] = []

    @contextmanager
    def func(self, symbol: str) -> Iterator[None]:
        """A function frame: the time of everything inside shows under ``symbol`` in the profile."""
        outer = self._frame
        self._frame = self.frame_below(outer, symbol)
        yield
        self._frame = outer

    def frame_below(self, parent: int, symbol: str) -> int:
        """The call-tree node of ``symbol`` called from ``parent``."""
        key = (parent, symbol)
        if key not in self._frame_ids:
            self._frame_ids[key] = len(self.frames)
            self.frames.append(Frame(parent, symbol))
        return self._frame_ids[key]

    @property
    def cpu(self) -> Value:
        """The CPU the thread runs on."""
        return self._value(isa.CPU, root=True)

    @property
    def node(self) -> Value:
        """The NUMA node the thread runs on."""
        return self._value(isa.NODE, root=True)

    def local(self, init: IntLike = 0) -> Local:
        """A value that can be set again: loop state, results of branches."""
        body = self._current()
        variable = Local(self, body, body.new_register(), body.scope)
        self.move(variable, init)
        return variable

    def move(self, target: Local, value: IntLike) -> None:
        """``target.set(value)``."""
        self._emit(Op.MOV, self._reg(target), self._reg(value))

    def alu(self, op: Op, left: IntLike, right: IntLike) -> Value:
        """Arithmetic and comparisons of values; the operators of ``Value`` call it."""
        if op in (Op.DIV, Op.MOD) and type(right) is int and right > 0 and right & (right - 1) == 0:
            op, right = (Op.SHR, right.bit_length() - 1) if op == Op.DIV else (Op.AND, right - 1)
        return self._result(op, self._reg(left), self._reg(right))

    def _current(self) -> Body:
        if self._body is None:
            raise StagingError("code must stand inside `with k.thread(comm):`")
        return self._body

    def _emit(self, op: Op, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, work: int = 0) -> int:
        self._current()
        self.code.append([int(op), self._frame, a, b, c, d, e, work])
        self.where.append(caller())
        self._else = None
        return len(self.code) - 1

    def _result(self, op: Op, b: int = 0, c: int = 0, d: int = 0, e: int = 0) -> Value:
        body = self._current()
        register = body.new_register()
        self._emit(op, register, b, c, d, e)
        return self._value(register)

    def _value(self, register: int, root: bool = False) -> Value:
        body = self._current()
        return Value(self, body, register, body.root if root else body.scope)

    def _reg(self, value: IntLike) -> int:
        body = self._current()
        if not isinstance(value, Value):
            number = self._number(value)
            if number == 0:
                return isa.ZERO
            if number not in body.constants:
                body.constants[number] = body.new_register()
            return body.constants[number]
        self._own(value.builder, repr(value))
        if value.body is not body:
            raise StagingError(
                f"{value!r} is used in the code of thread {body.comm!r}: share it through a variable "
                "(k.var, k.store, k.load) or a parameter (body.arg)"
            )
        scope: Scope | None = body.scope
        while scope is not None and scope is not value.scope:
            scope = scope.parent
        if scope is None:
            raise StagingError(f"{value!r} was made inside a branch or loop that has ended: keep it in a k.local()")
        return value.register

    def _number(self, value: object) -> int:
        if isinstance(value, Value):
            return int(value)  # raises
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise StagingError(f"{value!r} is neither an int nor a staged value")
        if not -INT64_MAX - 1 <= value <= INT64_MAX:
            raise StagingError(f"{value} does not fit 64 bits")
        return int(value)

    def _own(self, builder: Staging, what: str) -> None:
        if builder is not self:
            raise StagingError(f"{what} belongs to another program")

    def _cell(self, ref: Ref) -> tuple[int, int, int]:
        if not isinstance(ref, Ref):
            raise StagingError(f"{ref!r} is not a variable: name one element, e.g. array[i] or per_cpu.mine")
        self._own(ref.array.builder, ref.array.name)
        return ref.array.base, self._reg(ref.index), ref.array.length

    def _lock(self, ref: LockRef) -> tuple[int, int, int]:
        if not isinstance(ref, LockRef):
            raise StagingError(f"{ref!r} is not a lock")
        self._own(ref.locks.builder, ref.locks.name)
        return ref.locks.base, self._reg(ref.index), ref.locks.length

    def _patch(self, jump: int) -> None:
        self.code[jump][isa.A] = self._label = len(self.code)

    @contextmanager
    def _region(self, what: str, breaks: list[int] | None = None) -> Iterator[Scope]:
        body = self._current()
        scope = body.scope = Scope(body.scope, breaks, tuple(body.held))
        self._label = len(self.code)
        yield scope
        self._same_locks(scope, f"the end of k.{what}")
        assert scope.parent is not None
        body.scope = scope.parent

    @contextmanager
    def _loop(self) -> Iterator[Scope]:
        breaks: list[int] = []
        with self._region("a loop", breaks) as scope:
            yield scope
        for jump in breaks:
            self._patch(jump)
        self._label = len(self.code)

    def _same_locks(self, scope: Scope, where: str) -> None:
        held = self._current().held
        if [h.identity() for h in held] != [h.identity() for h in scope.held]:
            names = ", ".join(h.locks.name for h in held if h not in scope.held) or "none"
            before = ", ".join(h.locks.name for h in scope.held) or "none"
            raise StagingError(
                f"unbalanced lock at {where}: held there: {names}; held at its start: {before}; use `with k.lock(ref):`"
            )

    def _may_sleep(self, what: str) -> None:
        for held in self._current().held:
            if not held.locks.kind.mutex:
                raise StagingError(f"{what} while holding the spinlock {held.locks.name}")
