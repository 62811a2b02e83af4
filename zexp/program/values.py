"""Values that exist only while a program runs: what the builder hands to the author."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Union

import numpy as np

from zexp.program.errors import StagingError
from zexp.program.isa import Op

if TYPE_CHECKING:
    from zexp.program.staging import Body, Scope, Staging

IntLike = Union[int, "Value"]


class Value:
    """A 64-bit integer of the running program, held in a register of the thread being staged.

    Arithmetic and comparisons emit instructions and give new values (comparisons give 0 or 1; combine them with ``&``
    and ``|``). Python cannot look at it: ``if``, ``while``, ``and``, ``or``, ``not``, ``range`` and ``int`` raise.
    """

    __slots__ = ("body", "builder", "register", "scope")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, builder: Staging, body: Body, register: int, scope: Scope) -> None:
        self.builder, self.body, self.register, self.scope = builder, body, register, scope

    def __add__(self, other: IntLike) -> Value:
        return self.builder.alu(Op.ADD, self, other)

    def __radd__(self, other: int) -> Value:
        return self.builder.alu(Op.ADD, other, self)

    def __sub__(self, other: IntLike) -> Value:
        return self.builder.alu(Op.SUB, self, other)

    def __rsub__(self, other: int) -> Value:
        return self.builder.alu(Op.SUB, other, self)

    def __mul__(self, other: IntLike) -> Value:
        return self.builder.alu(Op.MUL, self, other)

    def __rmul__(self, other: int) -> Value:
        return self.builder.alu(Op.MUL, other, self)

    def __floordiv__(self, other: IntLike) -> Value:
        return self.builder.alu(Op.DIV, self, other)

    def __rfloordiv__(self, other: int) -> Value:
        return self.builder.alu(Op.DIV, other, self)

    def __mod__(self, other: IntLike) -> Value:
        return self.builder.alu(Op.MOD, self, other)

    def __rmod__(self, other: int) -> Value:
        return self.builder.alu(Op.MOD, other, self)

    def __and__(self, other: IntLike) -> Value:
        return self.builder.alu(Op.AND, self, other)

    __rand__ = __and__

    def __or__(self, other: IntLike) -> Value:
        return self.builder.alu(Op.OR, self, other)

    __ror__ = __or__

    def __xor__(self, other: IntLike) -> Value:
        return self.builder.alu(Op.XOR, self, other)

    __rxor__ = __xor__

    __rxor__ = __xor__

    def __lshift__(self, other: IntLike) -> Value:
        return self.builder.alu(Op.SHL, self, other)

    def __rshift__(self, other: IntLike) -> Value:
        return self.builder.alu(Op.SHR, self, other)

    def __rlshift__(self, other: int) -> Value:
        return self.builder.alu(Op.SHL, other, self)

    def __rrshift__(self, other: int) -> Value:
        return self.builder.alu(Op.SHR, other, self)

    def __neg__(self) -> Value:
        return self.builder.alu(Op.SUB, 0, self)

    def __lt__(self, other: IntLike) -> Value:
        return self.builder.alu(Op.LT, self, other)

    def __le__(self, other: IntLike) -> Value:
        return self.builder.alu(Op.LE, self, other)

    def __gt__(self, other: IntLike) -> Value:
        return self.builder.alu(Op.LT, other, self)

    def __ge__(self, other: IntLike) -> Value:
        return self.builder.alu(Op.LE, other, self)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self.builder.alu(Op.EQ, self, _int_like(other))

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self.builder.alu(Op.NE, self, _int_like(other))

    def __bool__(self) -> NoReturn:
        raise StagingError(
            "a staged value has no truth while the program is being built: use `with k.if_(value):` for `if`, "
            "`with k.while_(lambda: value):` for `while`, `&` and `|` for `and` and `or`, `== 0` for `not`"
        )

    def __iter__(self) -> NoReturn:
        raise StagingError("a staged value cannot be iterated: use `with k.for_range(value) as i:`")

    def _no_int(self) -> NoReturn:
        raise StagingError(
            "a staged value is not a Python number: use `with k.for_range(value) as i:` for `range(value)`, "
            "`array[value]` of a staged array for list indexing, and `//` for division"
        )

    __index__ = __int__ = __float__ = __len__ = __round__ = _no_int

    def __truediv__(self, other: object) -> NoReturn:
        raise StagingError("staged values are integers: use `//` for `/`")

    __rtruediv__ = __truediv__

    def __repr__(self) -> str:
        return f"<staged value r{self.register} of thread {self.body.comm}>"


class Local(Value):
    """A value that can be changed: ``x = k.local(0)``, then ``x.set(x + 1)``."""

    __slots__ = ()

    def set(self, value: IntLike) -> None:
        """Assign: every later use of this local sees the new value."""
        self.builder.move(self, value)


def _int_like(other: object) -> IntLike:
    if isinstance(other, (int, Value)):
        return other
    if isinstance(other, np.integer):
        return int(other)
    raise StagingError(f"a staged value can be compared with an int or another staged value, not with {other!r}")
