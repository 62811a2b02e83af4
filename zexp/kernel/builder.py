"""The staging builder, knowing what the functions of one kernel version are called and cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zexp.errors import ConfigError, near
from zexp.program import Builder
from zexp.program.errors import hide
from zexp.program.program import call_stack

if TYPE_CHECKING:
    from zexp.kernel.config import KernelConfig
    from zexp.machine import Machine

PAGE_BYTES = 4096
hide(__file__)


class KernelBuilder(Builder):
    """``k``: what policies and the kernel model write their functions with."""

    def __init__(self, machine: Machine, config: KernelConfig) -> None:
        super().__init__(machine)
        self.config = config
        self.accounting_stacks: set[tuple[str, ...]] = set()

    @property
    def comm(self) -> str:
        """The name of the threads whose code is being staged."""
        return self._current().comm

    def symbol(self, function: str) -> str:
        """This kernel version's name of a function of the model."""
        return self.config.symbols.get(function, function)

    def cycles(self, function: str, instructions: float | None = None) -> float:
        """Cycles of one call: ``instructions`` as given, or the kernel's cost table."""
        if instructions is not None:
            return instructions * self.config.cycles_per_instruction
        cost = self.config.costs.get(function)
        if cost is None:
            raise ConfigError(
                f"kernel.costs.{function}",
                "missing",
                f"kernel {self.config.name} has no cost for it; "
                f"give one, or k.fn({function!r}, instructions=N); {near(function, self.config.costs)}",
            )
        return cost.instructions * self.config.cycles_per_instruction + cost.stall_cycles

    @contextmanager
    def fn(self, function: str, instructions: float | None = None) -> Iterator[None]:
        """Call a kernel function: its frame, and what a call costs by the kernel's table or by ``instructions``."""
        with self.func(self.symbol(function)):
            self.work(self.cycles(function, instructions), spread=True)
            yield

    def call(self, function: str, instructions: float | None = None) -> None:
        """A function that does nothing the model looks into."""
        with self.fn(function, instructions):
            pass

    @contextmanager
    def accounting(self) -> Iterator[None]:
        """Whatever is staged inside is pool-size accounting, and counted as such in the run's metrics."""
        outer, known = self._frame, len(self.frames)
        yield
        for frame in range(known, len(self.frames)):
            if self.frames[frame].parent == outer:
                self.accounting_stacks.add(call_stack(self.frames, frame))
