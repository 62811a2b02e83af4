"""Machines from `conf/machine/*.yaml`: typed configuration, its checks, and the step from it to a `Machine`.

The dataclasses mirror the YAML one to one and use only types that OmegaConf understands, so that Hydra can type-check
`machine.ghz=3.2` on the command line. What Hydra cannot check (ranges, missing parts) is checked here, with the dotted
name a user would write to put it right.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any, Optional

import numpy as np

from zexp.errors import near
from zexp.machine.host import read_host
from zexp.machine.topology import FIGURES, RELATIONS, CoreCosts, Machine, MachineError, relations

KINDS = ("preset", "host")
NUMBERINGS = ("siblings_last", "siblings_adjacent")
MAX_CPUS = 4096  # the latency matrix is cpus x cpus


@dataclass
class TopologyConfig:
    """A regular machine: every socket, node, L3 and core like every other.

    `numbering` says how Linux counts its logical CPUs: `siblings_last` counts every core's first thread, then every
    core's second (most x86 servers); `siblings_adjacent` counts the threads of a core one after the other.
    """

    sockets: int
    nodes_per_socket: int
    l3_per_node: int
    cores_per_l3: int
    threads_per_core: int
    numbering: str = "siblings_last"


@dataclass
class LineLatencyConfig:
    """One-way cache-line transfer in ns, by the closest thing two CPUs share."""

    smt: float
    same_l3: float
    same_node: float
    same_socket: float
    cross_socket: float


@dataclass
class MemoryLatencyConfig:
    """DRAM load in ns: own node, another node of the same socket, another socket."""

    local: float
    same_socket: float
    cross_socket: float


@dataclass
class CoreConfig:
    """`CoreCosts`, but changeable: OmegaConf makes frozen dataclasses read-only, so no override could reach it."""

    l1_hit_cycles: float
    atomic_cycles: float
    store_buffer_entries: int
    smt_share: float
    wakeup_ns: float


@dataclass
class MachineConfig:
    """One file of `conf/machine/`. A `preset` gives every figure; a `host` gives none and is read from the system."""

    # Optional[...] rather than `| None`: older OmegaConf only understands this spelling for nested dataclasses.
    name: str
    description: str = ""
    kind: str = "preset"
    topology: Optional[TopologyConfig] = None  # noqa: UP045
    ghz: Optional[float] = None  # noqa: UP045
    memory_gib: Optional[float] = None  # noqa: UP045
    line_latency_ns: Optional[LineLatencyConfig] = None  # noqa: UP045
    memory_latency_ns: Optional[MemoryLatencyConfig] = None  # noqa: UP045
    core: Optional[CoreConfig] = None  # noqa: UP045
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Limit:
    low: float
    high: float
    open_low: bool = True

    def __contains__(self, number: float) -> bool:
        above = number > self.low if self.open_low else number >= self.low
        return above and number <= self.high

    def __str__(self) -> str:
        low = f"above {self.low:g}" if self.open_low else f"from {self.low:g}"
        return f"{low} to {self.high:g}"


_ONE_TO_1024 = _Limit(1, 1024, open_low=False)
_NANOSECONDS = _Limit(0, 1e6)
# By dotted name, or by the group the name is in. Generous: they catch a wrong unit, not an unusual machine.
_LIMITS: dict[str, _Limit] = {
    "topology": _ONE_TO_1024,
    "topology.threads_per_core": _Limit(1, 8, open_low=False),
    "ghz": _Limit(0, 20),
    "memory_gib": _Limit(0, 2**20),
    "line_latency_ns": _NANOSECONDS,
    "memory_latency_ns": _NANOSECONDS,
    "core.l1_hit_cycles": _Limit(0, 1000),
    "core.atomic_cycles": _Limit(0, 1000),
    "core.store_buffer_entries": _Limit(1, 10_000, open_low=False),
    "core.smt_share": _Limit(0, 1),
    "core.wakeup_ns": _NANOSECONDS,
}
_CHOICES = {"kind": KINDS, "topology.numbering": NUMBERINGS}
_SOURCE_KEYS = sorted({*FIGURES, *(figure.split(".")[0] for figure in FIGURES)})


def from_mapping(mapping: Mapping[str, Any]) -> MachineConfig:
    """The typed configuration for what a YAML file or Hydra gives; raises `MachineError` with the dotted key."""
    config: MachineConfig = _parse(mapping, MachineConfig, "")
    for key in config.sources:
        if key not in _SOURCE_KEYS:
            raise _unknown("sources", key, _SOURCE_KEYS)
    if config.kind == "preset":
        for name in _FIGURE_FIELDS:
            if getattr(config, name) is None:
                raise MachineError(f"machine.{name}", None, "must be given, because machine.kind is 'preset'")
        assert config.topology is not None
        if (cpus := _cpus(config.topology)) > MAX_CPUS:
            raise MachineError("machine.topology", f"{cpus} CPUs", f"at most {MAX_CPUS} CPUs in all")
    else:
        for name in _FIGURE_FIELDS:
            if getattr(config, name) is not None:
                raise MachineError(
                    f"machine.{name}", "(given)", f"must be absent, because machine.kind is {config.kind!r}"
                )
    return config


def build(config: MachineConfig) -> Machine:
    """The machine a preset describes. Checks again, since Hydra overrides may have changed it since."""
    config = from_mapping(asdict(config))
    shape, line, dram = config.topology, config.line_latency_ns, config.memory_latency_ns
    if config.kind != "preset" or shape is None or line is None or dram is None or config.core is None:
        raise MachineError("machine.kind", config.kind, "'preset'; use load() for a host")
    assert config.ghz is not None
    assert config.memory_gib is not None

    cores = _cpus(shape) // shape.threads_per_core
    cpu = np.arange(_cpus(shape), dtype=np.int32)
    core_of = cpu % cores if shape.numbering == "siblings_last" else cpu // np.int32(shape.threads_per_core)
    l3_of = core_of // np.int32(shape.cores_per_l3)
    node_of = l3_of // np.int32(shape.l3_per_node)
    socket_of = node_of // np.int32(shape.nodes_per_socket)

    by_relation = np.array([0.0 if name == "self" else getattr(line, name) for name in RELATIONS])
    nodes = shape.sockets * shape.nodes_per_socket
    socket_of_node = np.arange(nodes) // shape.nodes_per_socket
    memory_latency = np.where(np.equal.outer(socket_of_node, socket_of_node), dram.same_socket, dram.cross_socket)
    np.fill_diagonal(memory_latency, dram.local)
    return Machine(
        name=config.name,
        description=config.description,
        core_of=core_of,
        l3_of=l3_of,
        node_of=node_of,
        socket_of=socket_of,
        ghz=config.ghz,
        node_memory_bytes=np.full(nodes, round(config.memory_gib * 2**30 / nodes), dtype=np.int64),
        line_latency_ns=by_relation[relations(core_of, l3_of, node_of, socket_of)],
        memory_latency_ns=memory_latency,
        core=CoreCosts(**asdict(config.core)),
        sources=config.sources,
    )


def load(config: MachineConfig | Mapping[str, Any]) -> Machine:
    """The machine of a `conf/machine/` entry, whatever its kind."""
    config = from_mapping(asdict(config) if isinstance(config, MachineConfig) else config)
    return read_host() if config.kind == "host" else build(config)


_FIGURE_FIELDS = ("topology", "ghz", "memory_gib", "line_latency_ns", "memory_latency_ns", "core")


def _cpus(shape: TopologyConfig) -> int:
    return math.prod(
        (shape.sockets, shape.nodes_per_socket, shape.l3_per_node, shape.cores_per_l3, shape.threads_per_core)
    )


def _parse(value: Any, kind: Any, key: str) -> Any:
    """`value` as `kind`, recursively; `key` is its dotted name below `machine`."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return None if value is None else _parse(value, typing.get_args(kind)[0], key)
    if is_dataclass(kind):
        return _parse_group(value, kind, key)
    name = f"machine.{key}"
    if typing.get_origin(kind) is dict:
        if not isinstance(value, Mapping) or not all(isinstance(part, str) for pair in value.items() for part in pair):
            raise MachineError(name, value, "a mapping of texts to texts")
        return dict(value)
    if kind is str:
        choices = _CHOICES.get(key)
        if not isinstance(value, str) or (not value and key == "name"):
            raise MachineError(name, value, "a text")
        if choices and value not in choices:
            raise MachineError(name, value, near(value, choices))
        return value
    limit = _LIMITS.get(key) or _LIMITS[key.split(".")[0]]
    # bool is an int in Python, but `true` is never a count.
    number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if not number or value not in limit:
        raise MachineError(name, value, f"a {'whole ' if kind is int else ''}number {limit}")
    return kind(value)


def _parse_group(value: Any, kind: Any, key: str) -> Any:
    if not isinstance(value, Mapping):
        raise MachineError(f"machine.{key}" if key else "machine", value, "a mapping")
    hints = typing.get_type_hints(kind)
    for given in value:
        if given not in hints:
            raise _unknown(key, given, hints)
    parsed = {}
    for item in fields(kind):
        path = f"{key}.{item.name}" if key else item.name
        if item.name in value:
            parsed[item.name] = _parse(value[item.name], hints[item.name], path)
        elif item.default is MISSING and item.default_factory is MISSING:
            raise MachineError(f"machine.{path}", None, "must be given")
    return kind(**parsed)


def _unknown(group: str, key: object, known: Collection[str]) -> MachineError:
    where = f"machine.{group}" if group else "machine"
    return MachineError(f"{where}.{key}", "(unknown key)", near(str(key), known))
