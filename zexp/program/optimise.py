"""What the builder's output does not need, taken out before an engine sees it.

* Moves of values that have only just been computed: ``x.set(x + y)`` stages an addition into a temporary and a move;
  where nothing else reads the temporary, the addition can write x itself.
* The cost of a call as an instruction of its own: it is charged with the first thing the function does.

Costs and frames stay what they are; the engine only has less to do.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from zexp.program import isa
from zexp.program.isa import Op

Code = list[list[int]]


def optimise(code: Code, starts: list[int]) -> tuple[Code, list[int]]:
    """Take it out of ``code``, whose rows may be changed; ``starts`` are where the threads' bodies begin.

    Returns the new code and, for every old position (and one past the end), the new one.
    """
    targets = {row[isa.A] for row in code if row[isa.OP] in isa.JUMPS} | set(starts)
    dropped = _coalesce_moves(code, starts, targets)
    dropped |= _absorb_calls(code, targets)
    position: list[int] = []
    kept: Code = []
    for i, row in enumerate(code):
        position.append(len(kept))
        if i not in dropped:
            kept.append(row)
    position.append(len(kept))
    for row in kept:
        if row[isa.OP] in isa.JUMPS:
            row[isa.A] = position[row[isa.A]]
    return kept, position


def _coalesce_moves(code: Code, starts: list[int], targets: set[int]) -> set[int]:
    dropped: set[int] = set()
    for start, end in pairwise([*starts, len(code)]):
        reads = Counter(register for row in code[start:end] for register in isa.registers_read(row))
        row = code[start]
        for i in range(start, end - 1):
            if i not in dropped:  # else the next move may follow on the same row
                row = code[i]
            move = code[i + 1]
            if (
                move[isa.OP] == Op.MOV
                and row[isa.OP] in isa.WRITES_A
                and row[isa.A] == move[isa.B]
                and reads[row[isa.A]] == 1
                and i + 1 not in targets
                and row[isa.FRAME] == move[isa.FRAME]
            ):
                row[isa.A] = move[isa.A]
                row[isa.WORK] += move[isa.WORK]
                dropped.add(i + 1)
    return dropped


def _absorb_calls(code: Code, targets: set[int]) -> set[int]:
    dropped: set[int] = set()
    for i, (row, following) in enumerate(pairwise(code)):
        if (
            row[isa.OP] == Op.WORK
            and row[isa.A] == 1
            and following[isa.FRAME] == row[isa.FRAME]
            and following[isa.OP] not in isa.CARRIES_NO_WORK
            and i + 1 not in targets
        ):
            following[isa.WORK] += row[isa.WORK]
            dropped.add(i)
    return dropped
