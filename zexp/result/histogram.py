"""Power-of-two histograms, as bpftrace's hist() and bcc print them."""

from __future__ import annotations

from dataclasses import dataclass

BUCKETS = 64


@dataclass(frozen=True)
class Log2Histogram:
    """Counts by power of two.

    ``counts[i]`` holds the observations in ``[2**(i-1), 2**i)`` of ``unit``; ``counts[0]`` those of zero or less.
    """

    unit: str
    counts: tuple[int, ...]
    total: int
    """Sum of the observations, in ``unit``."""

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean observation in ``unit``; 0 of an empty histogram."""
        return self.total / self.count if self.count else 0.0

    def buckets(self) -> list[tuple[int, int, int]]:
        """``(low, high, count)`` of every bucket from the first to the last that is not empty; high is exclusive."""
        filled = [i for i, n in enumerate(self.counts) if n]
        if not filled:
            return []
        return [(0 if i == 0 else 1 << (i - 1), 1 << i, self.counts[i]) for i in range(filled[0], filled[-1] + 1)]
