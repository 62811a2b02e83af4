"""Unmap zswapped memory: the workload of the pool-size accounting finding."""

from __future__ import annotations

from dataclasses import dataclass

from zexp.errors import ConfigError
from zexp.kernel import PAGE_BYTES, KernelBuilder, Policies
from zexp.workload.base import (
    Load,
    Region,
    ZswapWorkload,
    at_least,
    build_mm,
    emptying,
    munmap_code,
    parse_bytes,
    place,
)


@dataclass
class Munmap(ZswapWorkload):
    """Processes unmap memory that lies in zswap, all at once."""

    name: str = "munmap"
    processes: int = 1
    size: str | None = None
    """Memory of each process, e.g. ``1GiB``; or give total_size."""
    total_size: str | None = None
    """Memory of all processes together; or give size."""

    def pages(self) -> tuple[str, str, int]:
        """The key and value that say how much memory, and how many pages that is in all."""
        if (self.size is None) == (self.total_size is None):
            raise ConfigError("workload.size", self.size, "give either workload.size or workload.total_size")
        at_least("processes", self.processes, 1)
        if self.size is not None:
            return "workload.size", self.size, parse_bytes("workload.size", self.size) // PAGE_BYTES * self.processes
        assert self.total_size is not None
        pages = parse_bytes("workload.total_size", self.total_size) // PAGE_BYTES
        return "workload.total_size", self.total_size, pages

    def stage(self, k: KernelBuilder, policies: Policies) -> Load:
        """Every process unmaps its share."""
        key, value, pages = self.pages()
        if pages < self.processes:
            raise ConfigError(key, value, f"at least one page ({PAGE_BYTES} bytes) a process")
        self.check_fits(k.machine, k.config, key, value, pages)
        cpus = place(k.machine, self.placement, self.processes, "workload.processes")
        region = Region("munmap", self.processes, pages)
        mm = build_mm(k, self, policies.accounting, [(region, True)], dynamic=False)
        self.spawn(k, munmap_code(k, mm, self), region, cpus)
        return emptying(mm, pages, "munmap")
