"""Reading a computer from sysfs: this one, and made-up ones with the oddities real ones have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zexp.machine import FIGURES, MachineError, read_host
from zexp.machine.host import parse_cpu_list

AMD = "processor : 0\nvendor_id : AuthenticAMD\nmodel name : AMD EPYC\ncpu MHz : 2500.5\n\nprocessor : 1\n"


def write(root: Path, files: Mapping[str, object]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def cpu_files(
    cpu: int, package: int, core: int, siblings: str, l3: str | None = None, khz: int | None = None
) -> dict[str, object]:
    base = f"devices/system/cpu/cpu{cpu}"
    files: dict[str, object] = {
        f"{base}/topology/physical_package_id": package,
        f"{base}/topology/core_id": core,
        f"{base}/topology/thread_siblings_list": siblings,
        f"{base}/cache/index0/level": 1,
        f"{base}/cache/index0/type": "Data",
        f"{base}/cache/index0/shared_cpu_list": siblings,
    }
    if l3:
        files |= {
            f"{base}/cache/index3/level": 3,
            f"{base}/cache/index3/type": "Unified",
            f"{base}/cache/index3/shared_cpu_list": l3,
        }
    if khz:
        files[f"{base}/cpufreq/cpuinfo_max_freq"] = khz
    return files


def node_files(node: int, cpus: str, kib: int, distance: str) -> dict[str, object]:
    base = f"devices/system/node/node{node}"
    return {
        f"{base}/cpulist": cpus,
        f"{base}/meminfo": f"Node {node} MemTotal:  {kib} kB\nNode {node} MemFree: 1 kB",
        f"{base}/distance": distance,
    }


def test_this_computer() -> None:
    machine = read_host()
    assert machine.cpus >= 1
    assert machine.memory_bytes > 0
    assert machine.core_of.tolist() == read_host().core_of.tolist()
    assert [figure for figure in FIGURES if machine.source_of(figure) == "not stated"] == []


def test_interleaved_numbering_offline_cpus_and_odd_nodes(tmp_path: Path) -> None:
    """Even CPUs in socket 0, odd in socket 1, CPU 3 offline; node 2 has no memory, node 4 no CPU, node 5 neither."""
    sysfs, proc = tmp_path / "sys", tmp_path / "proc"
    write(proc, {"cpuinfo": "processor : 0\nvendor_id : GenuineIntel\nmodel name : Xeon"})
    write(sysfs, {"devices/system/cpu/online": "0-2,4-7", "devices/system/node/online": "0,2,4-5"})
    for cpu in (0, 1, 2, 4, 5, 6, 7):
        # Core ids repeat in each package; siblings are cpu and cpu + 4. The lists still name the offline CPU.
        low = cpu % 4
        l3 = "0,2,4,6" if cpu % 2 == 0 else "1,3,5,7"
        write(sysfs, cpu_files(cpu, cpu % 2, low // 2, f"{low},{low + 4}", l3, khz=3_000_000 + cpu))
    write(sysfs, node_files(0, "0,2,4,6", 1000, "10 21 17 30"))
    write(sysfs, node_files(2, "1,3,5,7", 0, "21 10 28 30"))
    write(sysfs, node_files(4, "", 500, "17 28 10 30"))
    write(sysfs, node_files(5, "", 0, "30 30 30 10"))

    machine = read_host(sysfs, proc)
    online = [0, 1, 2, 4, 5, 6, 7]
    assert machine.cpus == 7
    assert machine.cores == 4
    assert machine.socket_of.tolist() == [cpu % 2 for cpu in online]
    assert machine.l3_of.tolist() == [cpu % 2 for cpu in online]
    assert machine.siblings(online.index(0)) == (online.index(4),)
    assert machine.siblings(online.index(7)) == ()
    assert machine.nodes == 3
    assert machine.node_of.tolist() == [cpu % 2 for cpu in online]
    assert machine.node_memory_bytes.tolist() == [1000 * 1024, 0, 500 * 1024]
    assert machine.cpus_of_node(2) == ()
    local = machine.memory_latency_ns[0, 0]
    assert np.allclose(machine.memory_latency_ns / local * 10, [[10, 21, 17], [21, 10, 28], [17, 28, 10]])
    assert machine.ghz == pytest.approx(3.000004)
    assert machine.line_latency_by_relation() == {"smt": 8, "same_l3": 59, "cross_socket": 138}
    assert all(machine.source_of(f"topology.{part}").startswith("read") for part in ("core", "l3", "node", "socket"))
    assert "as read" in machine.source_of("memory_latency_ns.local")
    assert machine.source_of("core.smt_share").startswith("assumed")


def test_virtual_machine_without_l3_nodes_or_clock(tmp_path: Path) -> None:
    sysfs, proc = tmp_path / "sys", tmp_path / "proc"
    write(proc, {"cpuinfo": "processor : 0\nCPU implementer : 0x41", "meminfo": "MemTotal: 2048 kB"})
    write(sysfs, {"devices/system/cpu/online": "0-1"})
    write(sysfs, cpu_files(0, -1, 0, "0") | cpu_files(1, -1, 1, "1"))
    machine = read_host(sysfs, proc)
    assert (machine.cpus, machine.cores, machine.l3s, machine.nodes, machine.sockets) == (2, 2, 1, 1, 1)
    assert machine.memory_bytes == 2048 * 1024
    assert machine.ghz == 2.5
    assert machine.core.smt_share == 1.0
    for figure in ("topology.l3", "topology.node", "ghz"):
        assert machine.source_of(figure).startswith("assumed"), figure


def test_no_sysfs_at_all(tmp_path: Path) -> None:
    write(tmp_path, {"cpuinfo": AMD})
    machine = read_host(tmp_path / "nowhere", tmp_path)
    assert (machine.cpus, machine.cores, machine.nodes) == (2, 2, 1)
    assert machine.ghz == 2.5
    assert machine.description == "AMD EPYC"
    assert machine.source_of("memory_gib") == "assumed: 16 GiB"
    assert machine.source_of("topology.core").startswith("assumed")


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"host\.cpus"):
        read_host(tmp_path, tmp_path)


def test_no_online_file_and_core_ids_only(tmp_path: Path) -> None:
    for cpu in range(4):
        base = f"devices/system/cpu/cpu{cpu}/topology"
        write(tmp_path, {f"{base}/core_id": cpu % 2, f"{base}/physical_package_id": 0})
    write(tmp_path, {"cpuinfo": AMD})
    machine = read_host(tmp_path, tmp_path)
    assert machine.siblings(0) == (2,)


def test_one_l3_reported_across_sockets_is_split(tmp_path: Path) -> None:
    """Hypervisors often make every virtual CPU a socket and copy the host's cache lists."""
    write(tmp_path, {"cpuinfo": AMD, "devices/system/cpu/online": "0-1"})
    write(tmp_path, cpu_files(0, 0, 0, "0", "0-1") | cpu_files(1, 1, 0, "1", "0-1"))
    machine = read_host(tmp_path, tmp_path)
    assert (machine.sockets, machine.l3s) == (2, 2)


def test_distances_that_do_not_fit_are_replaced(tmp_path: Path) -> None:
    write(tmp_path, {"cpuinfo": AMD, "devices/system/cpu/online": "0-1"})
    write(tmp_path, cpu_files(0, 0, 0, "0") | cpu_files(1, 0, 1, "1"))
    write(tmp_path, node_files(0, "0", 10, "10") | node_files(1, "1", 10, "what"))
    machine = read_host(tmp_path, tmp_path)
    assert np.allclose(machine.memory_latency_ns / machine.memory_latency_ns[0, 0], [[1, 2], [2, 1]])


@given(st.sets(st.integers(0, 300), min_size=1))
def test_cpu_lists(numbers: set[int]) -> None:
    assert parse_cpu_list(",".join(map(str, sorted(numbers)))) == sorted(numbers)
    low = min(numbers)
    assert parse_cpu_list(f"{low}-{low + 3}\n") == [low, low + 1, low + 2, low + 3]


def test_malformed_cpu_list() -> None:
    assert parse_cpu_list("") == []
    with pytest.raises(MachineError, match="numbers and ranges"):
        parse_cpu_list("0-x")
