"""Staged arithmetic is Python's arithmetic, wrapped to 64 bits."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zexp.engine.sim import state as sim
from zexp.engine.sim import vm
from zexp.engine.sim.engine import prepare
from zexp.program import Builder, IntLike, Value

from .conftest import small_machine

MACHINE = small_machine()
LOW, HIGH = -(1 << 63), (1 << 63) - 1
EDGES = st.sampled_from([0, 1, -1, 2, -2, 3, -3, 7, 8, -8, 63, 64, -64, 1 << 32, LOW, LOW + 1, HIGH, HIGH - 1])
NUMBERS = st.one_of(EDGES, st.integers(-100, 100), st.integers(LOW, HIGH))

Operation = Callable[[int, int], int]


def signed(number: int) -> int:
    return (number - LOW) % (1 << 64) + LOW


OPERATORS: dict[str, Operation] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<<": operator.lshift,
    ">>": operator.rshift,
}


def evaluate(expressions: Callable[[Builder, Value, Value], list[IntLike]], a: int, b: int) -> list[int]:
    """The staged expressions of two parameters, evaluated by the virtual machine."""
    k = Builder(MACHINE)
    results = k.bookkeeping("results", 200)
    with k.thread("t") as body:
        values = expressions(k, body.arg("a"), body.arg("b"))
        for i, value in enumerate(values):
            k.store(results[i], value)
    k.spawn(body, 0, a=a, b=b)
    state = prepare(k.finish(), MACHINE, 0)
    assert vm.run(state, 1 << 40) == sim.DONE
    assert state.scalars[sim.G_END] == 0  # computing in registers takes no time
    cells: list[int] = state.cells[: len(values)].tolist()
    return cells


def defined(name: str, right: int) -> bool:
    return right != 0 if name in ("//", "%") else 0 <= right < 64 if name in ("<<", ">>") else True


@given(NUMBERS, NUMBERS)
@example(LOW, -1)
@settings(deadline=None, max_examples=300, derandomize=True, database=None)
def test_operators(a: int, b: int) -> None:
    names = [name for name in OPERATORS if defined(name, b)]

    def expressions(k: Builder, x: Value, y: Value) -> list[IntLike]:
        made: list[IntLike] = []
        for name in names:
            function = OPERATORS[name]
            made += [function(x, y), function(x, b), function(a, y)]  # type: ignore[arg-type]
        return made

    got = evaluate(expressions, a, b)
    expected = [signed(int(OPERATORS[name](a, b))) for name in names for _ in range(3)]
    assert dict(zip([f"{n} {i}" for n in names for i in range(3)], got, strict=True)) == dict(
        zip([f"{n} {i}" for n in names for i in range(3)], expected, strict=True)
    )


@given(NUMBERS, NUMBERS)
@settings(deadline=None, max_examples=100, derandomize=True, database=None)
def test_functions(a: int, b: int) -> None:
    got = evaluate(lambda k, x, y: [k.minimum(x, y), k.maximum(x, b), -x, k.minimum(a, y), x, k.local(y)], a, b)
    assert got == [min(a, b), max(a, b), signed(-a), min(a, b), a, b]


@given(NUMBERS, st.integers(0, 62))
@settings(deadline=None, max_examples=100, derandomize=True, database=None)
def test_division_by_powers_of_two(a: int, bits: int) -> None:
    """The builder makes shifts and masks of them."""
    assert evaluate(lambda k, x, y: [x // (1 << bits), x % (1 << bits)], a, 0) == [a >> bits, a & (1 << bits) - 1]


@pytest.mark.parametrize(
    ("a", "b", "quotient", "remainder"),
    [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (-8, 2, -4, 0), (1, -5, -1, -4)],
)
def test_floor_division_of_negative_numbers(a: int, b: int, quotient: int, remainder: int) -> None:
    assert evaluate(lambda k, x, y: [x // y, x % y], a, b) == [quotient, remainder]


def test_shifts_use_the_low_six_bits_of_the_count() -> None:
    """As on x86-64."""
    assert evaluate(lambda k, x, y: [x << y, x >> y, x << 64, x >> -1], -5, 65) == [-10, -3, -5, -1]


def test_control_flow_is_pythons() -> None:
    """Loops, branches and locals, against the same text in Python."""
    k = Builder(MACHINE)
    results = k.bookkeeping("results", 5)
    with k.thread("t") as body:
        n = body.arg("n")
        total, turns, gcd = k.local(0), k.local(0), k.local(0)
        with k.for_range(n) as i:
            with k.if_(i % 3 == 0):
                total.set(total + i)
            with k.else_(), k.for_range(i) as j:
                with k.if_(j > 5):
                    k.break_()
                total.set(total - j)
        x, y = k.local(1071), k.local(462)
        with k.while_(lambda: y != 0):
            rest = x % y
            x.set(y)
            y.set(rest)
            turns.set(turns + 1)
        gcd.set(x)
        with k.for_range(n - 1000):
            total.set(-1)  # never
        for at, value in enumerate((total, turns, gcd, n)):
            k.store(results[at], value)
        with k.for_each(results) as each:
            k.store(each, k.load(each) + 1)
    k.spawn(body, 0, n=20)
    state = prepare(k.finish(), MACHINE, 0)
    assert vm.run(state, 1 << 40) == sim.DONE
    total_ = 0
    for i_ in range(20):
        if i_ % 3 == 0:
            total_ += i_
        else:
            for j_ in range(i_):
                if j_ > 5:
                    break
                total_ -= j_
    assert state.cells.tolist() == [total_ + 1, 3 + 1, 21 + 1, 20 + 1, 1]
