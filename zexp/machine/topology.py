"""The simulated hardware as plain arrays: who shares what, and how long it takes to reach it.

Everything a simulation needs to know about a computer is in one immutable `Machine`. It has no behaviour of its own:
the engine reads its arrays, `digest` names it in a run key, `describe` prints it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from zexp.errors import ConfigError

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float64]

RELATIONS = ("self", "smt", "same_l3", "same_node", "same_socket", "cross_socket")
"""How two logical CPUs are related, closest first; `relations` returns indices into this tuple."""

FIGURES = (
    "topology.core", "topology.l3", "topology.node", "topology.socket",
    "ghz", "memory_gib",
    "line_latency_ns.smt", "line_latency_ns.same_l3", "line_latency_ns.same_node",
    "line_latency_ns.same_socket", "line_latency_ns.cross_socket",
    "memory_latency_ns.local", "memory_latency_ns.same_socket", "memory_latency_ns.cross_socket",
    "core.l1_hit_cycles", "core.atomic_cycles", "core.store_buffer_entries", "core.smt_share", "core.wakeup_ns",
)  # fmt: skip
"""Every figure that has a source. A source may be given for one of them or for a group (`line_latency_ns`)."""


class MachineError(ConfigError, ValueError):
    """A machine that cannot exist. `key` is the dotted name of what is wrong, `allowed` what would be right."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        shown = " ".join(str(value).split())
        super().__init__(key, shown if len(shown) <= 80 else shown[:77] + "...", allowed)
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.value, self.allowed)


@dataclass(frozen=True)
class CoreCosts:
    """What one core does on its own, away from every other core.

    `l1_hit_cycles`: load that hits the first-level cache, in cycles.
    `atomic_cycles`: uncontended locked read-modify-write of a line this core already owns, in cycles.
    `store_buffer_entries`: stores that can wait for their line before the core stalls.
    `smt_share`: speed of one hardware thread relative to a whole core while its sibling is busy too, 0 to 1.
    `wakeup_ns`: from waking a sleeping thread on another, idle CPU until it runs there (interrupt and schedule).
    """

    l1_hit_cycles: float
    atomic_cycles: float
    store_buffer_entries: int
    smt_share: float
    wakeup_ns: float

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not 0 < value < float("inf"):
                raise MachineError(f"machine.core.{item.name}", value, "a number above 0")
        if self.smt_share > 1:
            raise MachineError("machine.core.smt_share", self.smt_share, "a number above 0 and at most 1")


def relations(core_of: IntArray, l3_of: IntArray, node_of: IntArray, socket_of: IntArray) -> npt.NDArray[np.int8]:
    """int8[cpus, cpus]: the closest thing each two logical CPUs share, as an index into `RELATIONS`."""

    def same(part_of: IntArray) -> npt.NDArray[np.bool_]:
        return np.equal.outer(part_of, part_of)

    relation = np.full((len(core_of), len(core_of)), RELATIONS.index("cross_socket"), dtype=np.int8)
    relation[same(socket_of)] = RELATIONS.index("same_socket")
    # A node may span sockets (AMD's NPS0): such a pair still talks across the socket link.
    relation[same(socket_of) & same(node_of)] = RELATIONS.index("same_node")
    relation[same(l3_of)] = RELATIONS.index("same_l3")
    relation[same(core_of)] = RELATIONS.index("smt")
    np.fill_diagonal(relation, RELATIONS.index("self"))
    return relation


@dataclass(frozen=True, eq=False)
class Machine:
    """One computer. Logical CPUs, cores, L3 caches, NUMA nodes and sockets are each numbered densely from 0.

    name, description: for people; not part of the digest.
    core_of, l3_of, node_of, socket_of: int32[cpus], where each logical CPU sits.
    ghz: clock of every core, in GHz.
    node_memory_bytes: int64[nodes]; 0 for a node that has only CPUs. A node that no CPU names has only memory.
    line_latency_ns: float64[cpus, cpus], one-way transfer of a modified cache line from the row's CPU to the column's,
        as core-to-core tools define it (half a compare-and-swap ping-pong); the diagonal is 0.
    memory_latency_ns: float64[nodes, nodes], a load by a CPU of the row's node from DRAM of the column's node.
    core: what a core does on its own.
    sources: where each figure comes from, by its name in `FIGURES` or by a group of them; not part of the digest.

    Arrays are copied and made read-only, so a machine can be shared between engines and threads.
    """

    name: str
    description: str
    core_of: IntArray
    l3_of: IntArray
    node_of: IntArray
    socket_of: IntArray
    ghz: float
    node_memory_bytes: npt.NDArray[np.int64]
    line_latency_ns: FloatArray
    memory_latency_ns: FloatArray
    core: CoreCosts
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("core_of", "l3_of", "node_of", "socket_of"):
            self._freeze(name, np.int32)
        self._freeze("node_memory_bytes", np.int64)
        self._freeze("line_latency_ns", np.float64)
        self._freeze("memory_latency_ns", np.float64)
        object.__setattr__(self, "sources", dict(self.sources))
        self._check_shapes()
        self._check_places()
        self._check_figures()

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor, because unpickled arrays would be writeable again.
        return type(self), tuple(getattr(self, item.name) for item in fields(self))

    @property
    def cpus(self) -> int:
        """Number of logical CPUs (hardware threads)."""
        return len(self.core_of)

    @property
    def cores(self) -> int:
        """Physical cores."""
        return int(self.core_of.max()) + 1

    @property
    def l3s(self) -> int:
        """L3 caches."""
        return int(self.l3_of.max()) + 1

    @property
    def nodes(self) -> int:
        """Number of NUMA nodes, those without CPUs or without memory included."""
        return len(self.node_memory_bytes)

    @property
    def sockets(self) -> int:
        """Sockets."""
        return int(self.socket_of.max()) + 1

    @property
    def memory_bytes(self) -> int:
        """Memory of all nodes."""
        return int(self.node_memory_bytes.sum())

    def siblings(self, cpu: int) -> tuple[int, ...]:
        """The other logical CPUs of this CPU's core, in order."""
        if not 0 <= cpu < self.cpus:
            raise MachineError("cpu", cpu, f"0 to {self.cpus - 1}")
        return tuple(int(other) for other in np.flatnonzero(self.core_of == self.core_of[cpu]) if other != cpu)

    def cpus_of_node(self, node: int) -> tuple[int, ...]:
        """The logical CPUs of a node, in order; empty for a memory-only node."""
        if not 0 <= node < self.nodes:
            raise MachineError("node", node, f"0 to {self.nodes - 1}")
        return tuple(int(cpu) for cpu in np.flatnonzero(self.node_of == node))

    def source_of(self, figure: str) -> str:
        """Where a figure of `FIGURES` comes from: its own source, else its group's."""
        return self.sources.get(figure) or self.sources.get(figure.split(".")[0]) or "not stated"

    def line_latency_by_relation(self) -> dict[str, float]:
        """Median line latency in ns for each way two CPUs of this machine are related, closest first."""
        relation = relations(self.core_of, self.l3_of, self.node_of, self.socket_of)
        return {
            name: float(np.median(self.line_latency_ns[relation == index]))
            for index, name in enumerate(RELATIONS)
            if name != "self" and (relation == index).any()
        }

    def digest(self) -> str:
        """SHA-256 (hex) over every figure that can affect a simulation. Equal digests mean equal machines."""
        sha = hashlib.sha256(b"zexp machine 1")
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray):
                sha.update(f"{item.name}{value.shape}".encode())
                sha.update(value.astype(value.dtype.newbyteorder("<")).tobytes())
        # Little-endian doubles rather than printed numbers: the same on every platform and Python version.
        sha.update(struct.pack("<6d", self.ghz, *map(float, astuple(self.core))))
        return sha.hexdigest()

    def describe(self) -> list[tuple[str, str]]:
        """Rows of (what, how much) for a list of machines."""
        latency = ", ".join(f"{name} {ns:g}" for name, ns in self.line_latency_by_relation().items())
        memory = sorted({float(ns) for ns in self.memory_latency_ns.flat})
        rows = [
            ("CPUs", f"{self.cpus} ({self.cores} cores, {self.sockets} {_plural(self.sockets, 'socket')})"),
            ("L3 caches", str(self.l3s)),
            ("NUMA nodes", str(self.nodes)),
            ("memory", f"{self.memory_bytes / 2**30:.4g} GiB"),
            ("clock", f"{self.ghz:g} GHz"),
            ("line transfer", f"{latency} ns" if latency else "none: one CPU"),
            ("DRAM load", f"{memory[0]:g} ns" if len(memory) == 1 else f"{memory[0]:g} to {memory[-1]:g} ns"),
            ("digest", self.digest()[:12]),
        ]
        return [("machine", self.name), *([("what", self.description)] if self.description else []), *rows]

    def _freeze(self, name: str, dtype: type[np.generic]) -> None:
        given = np.asarray(getattr(self, name))
        if given.dtype.kind not in ("iuf" if dtype is np.float64 else "iu"):
            raise MachineError(f"machine.{name}", given.dtype.name, f"numbers that fit {np.dtype(dtype).name}")
        array = np.array(given, dtype=dtype, order="C")
        array.setflags(write=False)
        object.__setattr__(self, name, array)

    def _check_shapes(self) -> None:
        cpus, nodes = self.core_of.size, self.node_memory_bytes.size
        if not cpus:
            raise MachineError("machine.core_of", [], "at least one CPU")
        if not nodes:
            raise MachineError("machine.node_memory_bytes", [], "at least one node")
        expected = dict.fromkeys(("core_of", "l3_of", "node_of", "socket_of"), (cpus,))
        square = {"line_latency_ns": (cpus, cpus), "memory_latency_ns": (nodes, nodes)}
        for name, shape in {**expected, "node_memory_bytes": (nodes,), **square}.items():
            if getattr(self, name).shape != shape:
                raise MachineError(f"machine.{name}", getattr(self, name).shape, f"shape {shape}")

    def _check_places(self) -> None:
        for name in ("core_of", "l3_of", "socket_of"):
            numbers = np.unique(getattr(self, name))
            if not np.array_equal(numbers, np.arange(len(numbers))):
                raise MachineError(f"machine.{name}", numbers.tolist(), "numbers from 0 with none left out")
        if self.node_of.min() < 0 or self.node_of.max() >= self.nodes:
            raise MachineError("machine.node_of", np.unique(self.node_of).tolist(), f"0 to {self.nodes - 1}")
        for inner, outer in (("core", "l3"), ("core", "node"), ("l3", "socket")):
            inner_of, outer_of = getattr(self, f"{inner}_of"), getattr(self, f"{outer}_of")
            pairs = np.unique(np.stack([inner_of, outer_of]), axis=1)
            split = pairs[0][:-1][np.diff(pairs[0]) == 0]
            if len(split):
                raise MachineError(f"machine.{inner}_of", int(split[0]), f"each {inner} inside one {outer}")

    def _check_figures(self) -> None:
        if not 0 < self.ghz < float("inf"):
            raise MachineError("machine.ghz", self.ghz, "a number above 0")
        if self.node_memory_bytes.min() < 0 or not self.memory_bytes:
            raise MachineError(
                "machine.node_memory_bytes", self.node_memory_bytes.tolist(), "0 or more each, and more than 0 in all"
            )
        for name, checked in (
            ("line_latency_ns", self.line_latency_ns[~np.eye(self.cpus, dtype=bool)]),
            ("memory_latency_ns", self.memory_latency_ns),
        ):
            bad = checked[~(np.isfinite(checked) & (checked > 0))]
            if bad.size:
                raise MachineError(f"machine.{name}", float(bad.flat[0]), "numbers above 0")
        if np.diagonal(self.line_latency_ns).any():
            raise MachineError("machine.line_latency_ns", "a diagonal that is not 0", "0 from a CPU to itself")


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else noun + "s"
