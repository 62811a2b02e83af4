"""Where the time went: exact call stacks, and the perf-style table made of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

PS_PER_NS = 1000


@dataclass(frozen=True)
class StackTime:
    """CPU time spent in the innermost frame of one call stack by the threads of one comm."""

    comm: str
    stack: tuple[str, ...]
    """Outermost frame first."""
    self_ps: int


@dataclass(frozen=True)
class FunctionRow:
    """One line of a perf report: a symbol as executed by the threads of one comm."""

    symbol: str
    comm: str
    self_pct: float
    children_pct: float
    """Self plus everything called from it; a recursive symbol counts once a stack."""
    self_ns: float
    ns_per_page: float | None
    """``self_ns`` over the pages the workload handled; None where the workload has no pages."""
    base: str
    """What 100 % is."""


@dataclass(frozen=True)
class Profile:
    """The CPU time of a run by comm and call stack. Spinning is CPU time; sleeping is not."""

    stacks: tuple[StackTime, ...]

    def total_ps(self, comm: str | None = None) -> int:
        """CPU time of one comm, or of all."""
        return sum(s.self_ps for s in self.stacks if comm in (None, s.comm))

    def self_ps(self, symbol: str, comm: str | None = None) -> int:
        """Time in ``symbol`` itself."""
        return sum(s.self_ps for s in self.stacks if s.stack and s.stack[-1] == symbol and comm in (None, s.comm))

    def children_ps(self, symbol: str, comm: str | None = None) -> int:
        """Time in ``symbol`` and in all it called."""
        return sum(s.self_ps for s in self.stacks if symbol in s.stack and comm in (None, s.comm))

    def functions(self, pages: int | None = None) -> list[FunctionRow]:
        """The perf-style table, largest self share first.

        Each row's percentages are shares of the CPU time of its own comm, which ``base`` says.
        """
        own: dict[tuple[str, str], int] = defaultdict(int)
        children: dict[tuple[str, str], int] = defaultdict(int)
        total: dict[str, int] = defaultdict(int)
        for s in self.stacks:
            total[s.comm] += s.self_ps
            own[s.comm, s.stack[-1]] += s.self_ps
            for symbol in set(s.stack):
                children[s.comm, symbol] += s.self_ps
        rows = [
            FunctionRow(
                symbol=symbol,
                comm=comm,
                self_pct=100 * own[comm, symbol] / total[comm],
                children_pct=100 * below / total[comm],
                self_ns=own[comm, symbol] / PS_PER_NS,
                ns_per_page=own[comm, symbol] / PS_PER_NS / pages if pages else None,
                base=f"CPU time of {comm}",
            )
            for (comm, symbol), below in children.items()
            if below
        ]
        return sorted(rows, key=lambda r: (-total[r.comm], r.comm, -r.self_pct, -r.children_pct, r.symbol))

    def folded(self) -> str:
        """Folded stacks (``comm;frame;frame ns``), the input of flame graph tools; whole nanoseconds."""
        lines = [
            f"{';'.join((s.comm, *s.stack))} {round(s.self_ps / PS_PER_NS)}"
            for s in sorted(self.stacks, key=lambda s: (s.comm, s.stack))
            if s.self_ps >= PS_PER_NS / 2
        ]
        return "\n".join(lines) + "\n"
