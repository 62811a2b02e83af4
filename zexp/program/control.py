"""Branches and loops of the running program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from zexp.program.errors import StagingError
from zexp.program.isa import Op
from zexp.program.staging import Scope, Staging
from zexp.program.values import IntLike, Local, Value

T_co = TypeVar("T_co", covariant=True)


class Indexable(Protocol[T_co]):
    """What ``for_each`` walks: staged arrays, and the kernel model's arrays of structures."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Value, /) -> T_co: ...


class ControlFlow(Staging):
    """The branching half of the builder."""

    @contextmanager
    def if_(self, condition: IntLike) -> Iterator[None]:
        """The body runs if ``condition`` is not 0. ``with k.else_():`` may follow at once."""
        skip = self._emit(Op.JUMP_ZERO, 0, self._reg(condition))
        with self._region("if_") as scope:
            yield
        self._patch(skip)
        self._else = (skip, scope)

    @contextmanager
    def else_(self) -> Iterator[None]:
        """The other branch of the ``if_`` just before."""
        if self._else is None:
            raise StagingError("k.else_() must follow a k.if_() block directly")
        skip, _ = self._else
        done = self._emit(Op.JUMP, 0)
        self._patch(skip)
        with self._region("else_"):
            yield
        self._patch(done)

    @contextmanager
    def while_(self, condition: Callable[[], IntLike]) -> Iterator[None]:
        """Repeat while ``condition()``, which is staged once and evaluated before every turn, is not 0."""
        if not callable(condition):
            raise StagingError("k.while_ needs a function, evaluated before every turn: `k.while_(lambda: value)`")
        with self._loop() as scope:
            head = len(self.code)
            assert scope.breaks is not None
            scope.breaks.append(self._emit(Op.JUMP_ZERO, 0, self._reg(condition())))
            yield
            self._emit(Op.JUMP, head)

    @contextmanager
    def for_range(self, stop: IntLike) -> Iterator[Value]:
        """``for i in range(stop)``, with a staged counter."""
        body = self._current()
        counter = self.local(0)
        if isinstance(stop, Local):  # like range(), look once
            stop = self.local(stop)
        limit = self._reg(stop)
        skip = None if isinstance(stop, int) and stop > 0 else self._emit(Op.JUMP_ZERO, 0, self._reg(counter < stop))
        with self._loop():
            head = len(self.code)
            yield Value(self, body, counter.register, body.scope)
            self._emit(Op.LOOP, head, counter.register, limit)
        if skip is not None:
            self._patch(skip)

    @contextmanager
    def for_each(self, items: Indexable[T_co]) -> Iterator[T_co]:
        """Walk an array or a list of structures."""
        with self.for_range(len(items)) as i:
            yield items[i]

    def break_(self) -> None:
        """Leave the innermost loop."""
        body = self._current()
        scope: Scope | None = body.scope
        while scope is not None and scope.breaks is None:
            scope = scope.parent
        if scope is None or scope.breaks is None:
            raise StagingError("k.break_() outside a loop")
        self._same_locks(scope, "k.break_()")
        scope.breaks.append(self._emit(Op.JUMP, 0))
