"""What the builder's output does not need: moves of values that have only just been computed.

``x.set(x + y)`` stages an addition into a temporary and a move; where nothing else reads the temporary, the addition can
write x itself. Costs, frames and results are unchanged, the engine only has less to do.
"""

from __future__ import annotations

from collections import Counter

from zexp.program import isa
from zexp.program.isa import Op

Code = list[list[int]]


def coalesce_moves(code: Code, starts: list[int]) -> tuple[Code, list[int]]:
    """Drop such moves from ``code``; ``starts`` are where the threads' bodies begin.

    Returns the new code and, for every old position (and one past the end), the new one.
    """
    targets = {row[isa.A] for row in code if row[isa.OP] in isa.JUMPS} | set(starts)
    bounds = [*starts, len(code)]
    dropped: set[int] = set()
    for start, end in zip(bounds, bounds[1:], strict=False):
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
