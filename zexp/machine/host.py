"""This very host as a `Machine`, from sysfs and procfs.

Virtual machines and containers leave much out: cache topology, node directories, the clock. What is missing gets a
default, and `Machine.sources` says for each figure whether it was read or assumed. Latencies are never in sysfs; they
come from a measured machine of the same class.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zexp.machine.topology import RELATIONS, CoreCosts, FloatArray, IntArray, Machine, MachineError, relations

_LOCAL_DISTANCE = 10  # ACPI's SLIT: 10 is the node's own memory
_REMOTE_DISTANCE = 20  # what Linux assumes where firmware says nothing
_DEFAULT_GHZ = 2.5


@dataclass(frozen=True)
class _Class:
    """Latencies assumed for a family of processors; the presets in `conf/machine/` hold the figures' sources."""

    name: str
    line_ns: tuple[float, float, float, float, float]  # in the order of RELATIONS, without "self"
    local_memory_ns: float
    core: CoreCosts


_CHIPLET = _Class("AMD chiplet class (as epyc_9684x)", (10, 26, 105, 105, 197), 118, CoreCosts(4, 8, 64, 0.61, 2500))
_MESH = _Class("Intel mesh class (as xeon_8480_2s)", (8, 59, 59, 59, 138), 118, CoreCosts(5, 19, 112, 0.62, 2500))
_ARM = _Class("Arm mesh class (as graviton3)", (46, 46, 46, 46, 200), 120, CoreCosts(4, 20, 96, 1.0, 2500))


def read_host(sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> Machine:
    """The machine below these two mount points. CPUs are numbered from 0 in the order of Linux's online CPUs."""
    cpu_root, node_root = sysfs / "devices/system/cpu", sysfs / "devices/system/node"
    info = _cpuinfo(proc)
    sources: dict[str, str] = {}
    cpus = _online_cpus(cpu_root, info)
    core_of, l3_of, node_of, socket_of, node_ids = _places(cpus, cpu_root, node_root, sources)

    memory = _node_memory(node_ids, node_root, proc, sources)
    kept = [node for node in range(len(node_ids)) if memory[node] or node in node_of]
    node_of = np.array([kept.index(int(node)) for node in node_of], dtype=np.int32)
    distance = _distances(node_ids, node_root, sources)[np.ix_(kept, kept)]

    family = _processor_class(info)
    by_relation = np.array([0.0, *family.line_ns])
    assumed = f"assumed: {family.name}"
    for name in RELATIONS[1:]:
        sources[f"line_latency_ns.{name}"] = assumed
    sources["core"] = assumed
    sources["memory_latency_ns"] = f"{assumed}; {sources.pop('distance')}"
    return Machine(
        name="host",
        description=info.get("model name") or info.get("Processor") or "this host",
        core_of=core_of,
        l3_of=l3_of,
        node_of=node_of,
        socket_of=socket_of,
        ghz=_clock(cpus, cpu_root, info, sources),
        node_memory_bytes=memory[kept],
        line_latency_ns=by_relation[relations(core_of, l3_of, node_of, socket_of)],
        memory_latency_ns=family.local_memory_ns * distance / _LOCAL_DISTANCE,
        core=family.core,
        sources=sources,
    )


def parse_cpu_list(text: str) -> list[int]:
    """The numbers in a kernel list such as `0-3,8,10-11`, in order."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if not part:
            continue
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not found:
            raise MachineError("cpu list", text.strip(), "numbers and ranges such as 0-3,8")
        first, last = int(found[1]), int(found[2] or found[1])
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def _places(
    cpus: Sequence[int], cpu_root: Path, node_root: Path, sources: dict[str, str]
) -> tuple[IntArray, IntArray, IntArray, IntArray, list[int]]:
    """Core, L3, node and socket of each online CPU, and the node numbers Linux uses."""
    online = set(cpus)

    def leader(path: Path, cpu: int) -> int | None:
        """Lowest online CPU in a list that has to contain this one; names the thing they share."""
        text = _read(path)
        return min(online & {cpu, *parse_cpu_list(text)}) if text else None

    package = {cpu: _read_int(cpu_root / f"cpu{cpu}/topology/physical_package_id") for cpu in cpus}
    # Arm firmware without the tables says -1.
    socket = {cpu: max(number or 0, 0) for cpu, number in package.items()}
    found = all(number is not None for number in package.values())
    sources["topology.socket"] = "read: physical_package_id" if found else "assumed: one socket where none is named"

    core: dict[int, Hashable] = {}
    read = True
    for cpu in cpus:
        topology = cpu_root / f"cpu{cpu}/topology"
        first = leader(topology / "thread_siblings_list", cpu)
        number = _read_int(topology / "core_id")
        read = read and (first is not None or number is not None)
        if first is not None:
            core[cpu] = (socket[cpu], "thread", first)
        else:
            core[cpu] = (socket[cpu], "core", number) if number is not None else (socket[cpu], "cpu", cpu)
    sources["topology.core"] = "read: thread_siblings_list or core_id" if read else "assumed: one core per CPU"

    node_ids = _node_ids(node_root)
    node_by_cpu = {
        cpu: index
        for index, node in enumerate(node_ids)
        for cpu in parse_cpu_list(_read(node_root / f"node{node}/cpulist"))
    }
    sources["topology.node"] = (
        "read: node*/cpulist" if all(cpu in node_by_cpu for cpu in cpus) else "assumed: node 0 where none is named"
    )
    first_of_core = {place: cpu for cpu, place in reversed(core.items())}

    l3: dict[int, Hashable] = {}
    read = True
    for cpu in cpus:
        # A core is inside one L3 and one node: ask for its first thread, so that contradictory files cannot split it.
        first_thread = first_of_core[core[cpu]]
        level3 = _cache_list(cpu_root / f"cpu{first_thread}/cache", level=3)
        shared = leader(level3, first_thread) if level3 else None
        read = read and shared is not None
        node = node_by_cpu.get(first_thread, 0)
        l3[cpu] = (socket[cpu], "l3", shared) if shared is not None else (socket[cpu], "node", node)
    sources["topology.l3"] = "read: cache/index*/shared_cpu_list" if read else "assumed: one L3 per node and socket"

    node_of = np.array([node_by_cpu.get(first_of_core[core[cpu]], 0) for cpu in cpus], dtype=np.int32)
    return _dense(core, cpus), _dense(l3, cpus), node_of, _dense(socket, cpus), node_ids


def _dense(place: Mapping[int, Hashable], cpus: Sequence[int]) -> IntArray:
    number: dict[Hashable, int] = {}
    return np.array([number.setdefault(place[cpu], len(number)) for cpu in cpus], dtype=np.int32)


def _online_cpus(cpu_root: Path, info: Mapping[str, str]) -> list[int]:
    listed = parse_cpu_list(_read(cpu_root / "online"))
    # Kernels without hotplug have no such file; containers may have no sysfs at all.
    numbers = listed or _numbered(cpu_root, "cpu") or list(range(int(info.get("processors", 0))))
    if not numbers:
        raise MachineError("host.cpus", str(cpu_root), "a readable sysfs or /proc/cpuinfo that names a CPU")
    return numbers


def _node_ids(node_root: Path) -> list[int]:
    present = _numbered(node_root, "node")
    online = parse_cpu_list(_read(node_root / "online"))
    return [node for node in online if node in present] or present or [0]


def _node_memory(
    node_ids: Sequence[int], node_root: Path, proc: Path, sources: dict[str, str]
) -> npt.NDArray[np.int64]:
    sizes = [_kib(_read(node_root / f"node{node}/meminfo"), "MemTotal") for node in node_ids]
    total = _kib(_read(proc / "meminfo"), "MemTotal")
    sources["memory_gib"] = "read: node*/meminfo"
    if 0 < sum(sizes) < total:  # memory plugged in later may be missing from the nodes' own counts
        sizes = [size * total // sum(sizes) for size in sizes]
        sources["memory_gib"] = "read: /proc/meminfo, shared out as node*/meminfo says"
    if not any(sizes):
        sources["memory_gib"] = "read: /proc/meminfo, shared out evenly"
        if not total:
            total = 16 * 2**20
            sources["memory_gib"] = "assumed: 16 GiB"
        sizes = [total // len(node_ids)] * len(node_ids)
    return np.array(sizes, dtype=np.int64) * 1024


def _distances(node_ids: Sequence[int], node_root: Path, sources: dict[str, str]) -> FloatArray:
    words = [_read(node_root / f"node{node}/distance").split() for node in node_ids]
    rows = [[int(word) for word in row if word.isdecimal()] for row in words]
    nodes = len(node_ids)
    if all(len(row) == nodes and min(row) >= _LOCAL_DISTANCE for row in rows):
        sources["distance"] = "scaled by node*/distance as read, which tends to overstate"
        return np.array(rows, dtype=np.float64)
    sources["distance"] = "twice that for another node, also assumed"
    return np.where(np.eye(nodes, dtype=bool), float(_LOCAL_DISTANCE), float(_REMOTE_DISTANCE))


def _clock(cpus: Sequence[int], cpu_root: Path, info: Mapping[str, str], sources: dict[str, str]) -> float:
    khz = [_read_int(cpu_root / f"cpu{cpu}/cpufreq/cpuinfo_max_freq") or 0 for cpu in cpus]
    if all(khz):
        sources["ghz"] = "read: cpufreq/cpuinfo_max_freq, median"
        return float(np.median(khz)) / 1e6
    try:
        # The current clock, which may differ with every look: rounded, so that the digest does not.
        ghz = round(float(info.get("cpu MHz", "0")) / 1e3, 1)
    except ValueError:
        ghz = 0.0
    sources["ghz"] = "read: cpu MHz of /proc/cpuinfo, rounded" if ghz > 0 else f"assumed: {_DEFAULT_GHZ} GHz"
    return ghz if ghz > 0 else _DEFAULT_GHZ


def _processor_class(info: Mapping[str, str]) -> _Class:
    if info.get("vendor_id") in ("AuthenticAMD", "HygonGenuine"):
        return _CHIPLET
    return _ARM if "CPU implementer" in info else _MESH


def _cpuinfo(proc: Path) -> dict[str, str]:
    """The first value of each line of /proc/cpuinfo, and `processors`: how many it lists."""
    info: dict[str, str] = {}
    processors = 0
    for line in _read(proc / "cpuinfo").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        processors += key == "processor"
        info.setdefault(key, value)
    return {**info, "processors": str(processors)}


def _cache_list(cache: Path, level: int) -> Path | None:
    for number in _numbered(cache, "index"):
        index = cache / f"index{number}"
        if _read_int(index / "level") == level and _read(index / "type") != "Instruction":
            return index / "shared_cpu_list"
    return None


def _numbered(folder: Path, prefix: str) -> list[int]:
    """The numbers N for which `prefix`N exists in a folder, in order."""
    names = (re.fullmatch(rf"{prefix}(\d+)", path.name) for path in folder.glob(f"{prefix}*"))
    return sorted(int(name[1]) for name in names if name)


def _kib(text: str, field: str) -> int:
    found = re.search(rf"\b{field}:\s+(\d+) kB", text)
    return int(found[1]) if found else 0


def _read(path: Path) -> str:
    """The text of a file, or nothing: offline CPUs and virtual machines leave files out or unreadable."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _read_int(path: Path) -> int | None:
    try:
        return int(_read(path))
    except ValueError:
        return None
