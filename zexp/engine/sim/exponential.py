"""Random numbers: a stream a thread, and integer-only exponential variates, bit-identical on every machine.

``-ln(U)`` of ``U = (1 + f) * 2**-(k + 1)`` is ``(k + 1) ln 2 - ln(1 + f)``: k is the number of leading zeros of a
random word, f the bits behind its first one, and ``ln(1 + f)`` is interpolated in a table of 1,024 intervals (error
below 1.2e-7). Everything is in units of 2**-24.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,call-arg,var-annotated"
from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache

import numpy as np
import numpy.typing as npt

from zexp.engine.sim.jit import jit
from zexp.engine.sim.pointers import leading_zeros

GAMMA = 0x9E3779B97F4A7C15
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


@jit
def next_random(v, tid):
    """SplitMix64, one stream a thread."""
    v.random[tid] += np.uint64(GAMMA)
    z = v.random[tid]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@jit
def exponential(v, tid, mean):
    """An exponential variate."""
    z = next_random(v, tid) | np.uint64(1)
    k = leading_zeros(z)
    fraction = np.int64((z << np.uint64(k + 1)) >> np.uint64(24))  # 40 bits
    i = fraction >> 30
    low = v.exponential[i]
    ln = low + (((v.exponential[i + 1] - low) * (fraction & ((1 << 30) - 1))) >> 30)
    variate = ((k + 1) * v.exponential[1025] - ln) >> 16
    return (mean * variate + (1 << 23)) >> 24
