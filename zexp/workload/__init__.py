"""What happens to the simulated machine."""

from zexp.workload.base import Headline, Load, Workload, parse_bytes, show_bytes
from zexp.workload.munmap import Munmap
from zexp.workload.reclaim import Reclaim
from zexp.workload.stat_readers import StatReaders
from zexp.workload.swap import MeminfoReader, Mixed, Store, SwapIn, SwapOff

WORKLOADS: dict[str, type[Workload]] = {
    w.name: w for w in (Munmap, SwapIn, SwapOff, Store, MeminfoReader, Mixed, StatReaders, Reclaim)
}

__all__ = ["WORKLOADS", "Headline", "Load", "Workload", "parse_bytes", "show_bytes"]
