"""The simulated hardware: what a machine is, the presets in `conf/machine/`, and this very host."""

from zexp.machine.config import (
    CoreConfig,
    LineLatencyConfig,
    MachineConfig,
    MemoryLatencyConfig,
    TopologyConfig,
    build,
    from_mapping,
    load,
)
from zexp.machine.host import read_host
from zexp.machine.topology import FIGURES, RELATIONS, CoreCosts, Machine, MachineError, relations

__all__ = [
    "FIGURES",
    "RELATIONS",
    "CoreConfig",
    "CoreCosts",
    "LineLatencyConfig",
    "Machine",
    "MachineConfig",
    "MachineError",
    "MemoryLatencyConfig",
    "TopologyConfig",
    "build",
    "from_mapping",
    "load",
    "read_host",
    "relations",
]
