"""Integer-only exponential variates, bit-identical on every machine.

``-ln(U)`` of ``U = (1 + f) * 2**-(k + 1)`` is ``(k + 1) ln 2 - ln(1 + f)``: k is the number of leading zeros of a random
word, f the bits behind its first one, and ``ln(1 + f)`` is interpolated in a table of 1,024 intervals (error below
1.2e-7). Everything is in units of 2**-24.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache

import numpy as np
import numpy.typing as npt

SCALE_BITS = 24
TABLE_BITS = 10


@cache
def table() -> npt.NDArray[np.int64]:
    """``ln(1 + i / 1024)`` for i = 0..1024, then ``ln 2``; in units of 2**-40."""
    with localcontext() as ctx:
        ctx.prec = 40
        size = 1 << TABLE_BITS
        values = [(1 + Decimal(i) / size).ln() for i in range(size + 1)] + [Decimal(2).ln()]
        return np.array([int((v * (1 << 40)).to_integral_value()) for v in values], np.int64)
