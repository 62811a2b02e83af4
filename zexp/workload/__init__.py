"""What happens to the simulated machine."""

from zexp.workload.base import Load, Workload, parse_bytes, show_bytes
from zexp.workload.munmap import Munmap
from zexp.workload.stat_readers import StatReaders
from zexp.workload.swap import MeminfoReader, Mixed, Store, SwapIn, SwapOff

WORKLOADS: dict[str, type[Workload]] = {
    w.name: w for w in (Munmap, SwapIn, SwapOff, Store, MeminfoReader, Mixed, StatReaders)
}

__all__ = ["WORKLOADS", "Load", "Workload", "parse_bytes", "show_bytes"]
