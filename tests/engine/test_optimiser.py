"""What the builder leaves out must not be missed: programs mean the same with and without its optimiser."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zexp.program import Builder, Program, builder

from .machines import free
from .observed import simulate
from .programs import write
from .reference import Outcome


def literally(code: list[list[int]], starts: list[int]) -> tuple[list[list[int]], list[int]]:
    return code, list(range(len(code) + 1))


def essence(outcome: Outcome) -> Outcome:
    """Without what an optimiser is for."""
    return replace(outcome, instructions=0, registers=[])


@given(st.integers(0, 1 << 32), st.integers(8, 60))
@settings(deadline=None, max_examples=300, derandomize=True, database=None)
def test_random_programs_mean_the_same_unoptimised(seed: int, size: int) -> None:
    lean = write(seed, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "optimise", literally)
        literal = write(seed, size)
    assert len(lean.program.code) <= len(literal.program.code)
    assert len(lean.program.where) == len(lean.program.code)
    got, expected = simulate(lean.program, lean.machine, 5), simulate(literal.program, literal.machine, 5)
    assert essence(got) == essence(expected)
    assert got.instructions <= expected.instructions


def chain() -> Program:
    k = Builder(free(1))
    result = k.bookkeeping("result", 1)
    with k.thread("t") as body:
        x = k.local(k.cpu + 5)
        y = k.local(x)
        z = k.local(y)
        k.store(result[0], z)
    k.spawn(body, 0)
    return k.finish()


def test_a_chain_of_moves() -> None:
    assert simulate(chain(), free(1)).cells == [5]
