"""`conf/machine/*.yaml`: the presets say what they should, and mistakes are named."""

from __future__ import annotations

import copy
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]

from zexp.machine import (
    FIGURES,
    RELATIONS,
    CoreConfig,
    CoreCosts,
    Machine,
    MachineConfig,
    MachineError,
    build,
    from_mapping,
    load,
    relations,
)

CONF = Path(__file__).parents[2] / "conf" / "machine"
EVIDENCE = Path(__file__).parents[2].parent / "shared" / "evidence" / "core2core"
PRESETS = ["epyc_7642", "epyc_7742_2s", "epyc_9684x", "graviton3", "laptop", "xeon_8480_2s"]


def read(name: str) -> dict[str, Any]:
    mapping = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    assert isinstance(mapping, dict)
    return mapping


def preset(name: str) -> Machine:
    return load(read(name))


def test_all_presets_are_tested() -> None:
    assert sorted(path.stem for path in CONF.glob("*.yaml")) == sorted([*PRESETS, "host"])


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_sound(name: str) -> None:
    machine = preset(name)
    assert machine.name == name
    assert machine.description
    assert [figure for figure in FIGURES if machine.source_of(figure) == "not stated"] == []
    by_relation = list(machine.line_latency_by_relation().values())
    assert by_relation == sorted(by_relation), "sharing less cannot be faster"
    assert (np.diagonal(machine.memory_latency_ns) == machine.memory_latency_ns.min()).all()


def test_presets_differ() -> None:
    assert len({preset(name).digest() for name in PRESETS}) == len(PRESETS)


@pytest.mark.parametrize(
    ("name", "cpus", "cores", "l3s", "nodes", "sockets", "gib"),
    [
        ("epyc_9684x", 192, 96, 12, 12, 1, 384),
        ("epyc_7642", 96, 48, 16, 1, 1, 256),
        ("epyc_7742_2s", 256, 128, 32, 2, 2, 512),
        ("xeon_8480_2s", 224, 112, 2, 2, 2, 256),
        ("graviton3", 64, 64, 1, 1, 1, 256),
        ("laptop", 16, 8, 1, 1, 1, 32),
    ],
)
def test_preset_sizes(name: str, cpus: int, cores: int, l3s: int, nodes: int, sockets: int, gib: int) -> None:
    machine = preset(name)
    assert (machine.cpus, machine.cores, machine.l3s, machine.nodes, machine.sockets) == (
        cpus,
        cores,
        l3s,
        nodes,
        sockets,
    )
    assert machine.memory_bytes == gib * 2**30


def test_epyc_9684x_is_numbered_as_linux_numbers_it() -> None:
    machine = preset("epyc_9684x")
    for node in range(12):
        first = tuple(range(8 * node, 8 * node + 8))
        assert machine.cpus_of_node(node) == first + tuple(cpu + 96 for cpu in first)
    assert machine.siblings(5) == (101,)


def test_laptop_siblings_are_adjacent() -> None:
    assert preset("laptop").siblings(4) == (5,)


@pytest.mark.parametrize(
    ("csv", "sockets", "l3s", "threads", "name", "compared"),
    [
        (
            "Dual_AMD_EPYC_7742_64-Core_Processor",
            2,
            32,
            2,
            "epyc_7742_2s",
            ("smt", "same_l3", "same_node", "cross_socket"),
        ),
        # Relatives of the measured machine: only what they have in common.
        ("Dual_AMD_EPYC_7742_64-Core_Processor", 2, 32, 2, "epyc_7642", ("smt", "same_l3")),
        ("AMD_EPYC_7773X", 1, 8, 2, "epyc_9684x", ("smt", "same_l3", "same_node")),
        ("Intel_R__Xeon_R__Platinum_8375C_CPU___2.90GHz", 2, 2, 2, "xeon_8480_2s", ("smt",)),
        ("AWS_Graviton2", 1, 1, 1, "graviton3", ("same_l3",)),
    ],
)
def test_line_latencies_agree_with_measurements(
    csv: str, sockets: int, l3s: int, threads: int, name: str, compared: tuple[str, ...]
) -> None:
    path = EVIDENCE / f"{csv}.csv"
    if not path.exists():
        pytest.skip("the measurements are not part of the repository")
    measured = np.genfromtxt(path, delimiter=",")  # lower triangle
    cores = len(measured) // threads
    core_of = (np.arange(len(measured)) % cores).astype(np.int32)
    socket_of = core_of // (cores // sockets)
    relation = relations(core_of, core_of // (cores // l3s), socket_of, socket_of)
    for what in compared:
        cells = measured[(relation == RELATIONS.index(what)) & np.isfinite(measured)]
        assert read(name)["line_latency_ns"][what] == pytest.approx(np.median(cells), rel=0.15), what


def test_a_single_rome_socket_always_holds_the_line() -> None:
    """Half of the measured pairs ran at twice the latency: those in the socket that did not hold the line's memory."""
    path = EVIDENCE / "Dual_AMD_EPYC_7742_64-Core_Processor.csv"
    if not path.exists():
        pytest.skip("the measurements are not part of the repository")
    measured = np.genfromtxt(path, delimiter=",")
    core = np.arange(256) % 128
    other_l3 = np.not_equal.outer(core // 4, core // 4) & np.isfinite(measured)
    holder = np.equal.outer(core >= 64, core >= 64) & (core >= 64)
    median = np.median(measured[other_l3 & holder])
    assert read("epyc_7642")["line_latency_ns"]["same_node"] == pytest.approx(median, rel=0.15)


def change(name: str, dotted: str, value: Any) -> dict[str, Any]:
    """A preset with one key set to a value, or removed."""
    mapping = copy.deepcopy(read(name))
    *groups, last = dotted.split(".")
    group = mapping
    for part in groups:
        group = group[part]
    if value is ...:
        del group[last]
    else:
        group[last] = value
    return mapping


@pytest.mark.parametrize(
    ("dotted", "value", "message"),
    [
        ("topology.sockets", 0, "machine.topology.sockets=0: a whole number from 1 to 1024"),
        ("topology.sockets", 1.5, "machine.topology.sockets=1.5: a whole number from 1 to 1024"),
        ("topology.sockets", True, "machine.topology.sockets=True: a whole number from 1 to 1024"),
        ("topology.sockets", "two", "machine.topology.sockets=two: a whole number from 1 to 1024"),
        ("topology.sockets", 1024, "machine.topology=196608 CPUs: at most 4096 CPUs in all"),
        ("topology.threads_per_core", 9, "machine.topology.threads_per_core=9: a whole number from 1 to 8"),
        ("topology.numbering", "siblings_lats", "siblings_lats: did you mean siblings_last"),
        ("topology.socket", 1, "machine.topology.socket=(unknown key): did you mean sockets"),
        ("topology", [1], "machine.topology=[1]: a mapping"),
        ("topology", ..., "machine.topology=None: must be given, because machine.kind is 'preset'"),
        ("topology.sockets", ..., "machine.topology.sockets=None: must be given"),
        ("ghz", -1, "machine.ghz=-1: a number above 0 to 20"),
        ("ghz", float("nan"), "machine.ghz=nan: a number above 0 to 20"),
        ("ghz", 3_700_000_000, "machine.ghz=3700000000: a number above 0 to 20"),
        ("memory_gib", 0, "machine.memory_gib=0: a number above 0"),
        ("line_latency_ns.same_l3", 0, "machine.line_latency_ns.same_l3=0: a number above 0"),
        ("memory_latency_ns.local", "fast", "machine.memory_latency_ns.local=fast: a number above 0"),
        ("core.smt_share", 1.24, "machine.core.smt_share=1.24: a number above 0 to 1"),
        ("core.store_buffer_entries", 0, "machine.core.store_buffer_entries=0: a whole number from 1"),
        ("kind", "presett", "machine.kind=presett: did you mean preset?"),
        ("kind", "host", "machine.topology=(given): must be absent, because machine.kind is 'host'"),
        ("name", "", "machine.name=: a text"),
        ("name", ..., "machine.name=None: must be given"),
        ("gzh", 3, "machine.gzh=(unknown key): did you mean ghz?"),
        ("sources", {"ghz": 3}, "machine.sources={'ghz': 3}: a mapping of texts to texts"),
        ("sources", {"core.smtshare": "x"}, "machine.sources.core.smtshare=(unknown key): did you mean core.smt_share"),
    ],
)
def test_mistakes_are_named(dotted: str, value: Any, message: str) -> None:
    with pytest.raises(MachineError) as caught:
        from_mapping(change("laptop", dotted, value) if value != 1024 else change("epyc_9684x", dotted, value))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_not_a_mapping() -> None:
    with pytest.raises(MachineError, match="machine=laptop: a mapping"):
        load("laptop")  # type: ignore[arg-type]


def test_build_checks_again() -> None:
    config = from_mapping(read("laptop"))
    assert config.topology is not None
    config.topology.cores_per_l3 = 0
    with pytest.raises(MachineError, match=r"machine\.topology\.cores_per_l3=0"):
        build(config)


def test_build_refuses_a_host() -> None:
    with pytest.raises(MachineError, match=r"machine\.kind=host"):
        build(MachineConfig(name="host", kind="host"))


def test_host_entry_loads_this_computer() -> None:
    assert load(read("host")).cpus >= 1
    null = {**read("host"), "topology": None, "ghz": None, "sources": {}}
    assert from_mapping(null).kind == "host"


def test_memory_is_shared_out_evenly() -> None:
    assert set(preset("epyc_9684x").node_memory_bytes.tolist()) == {32 * 2**30}


def test_core_config_mirrors_core_costs() -> None:
    assert [(item.name, item.type) for item in fields(CoreConfig)] == [
        (item.name, item.type) for item in fields(CoreCosts)
    ]


@pytest.mark.parametrize("name", [*PRESETS, "host"])
def test_omegaconf_understands_it(name: str) -> None:
    omegaconf = pytest.importorskip("omegaconf")
    schema = omegaconf.OmegaConf.structured(MachineConfig)
    merged = omegaconf.OmegaConf.merge(schema, read(name))
    assert omegaconf.OmegaConf.to_object(merged) == from_mapping(read(name))
    if name != "host":
        omegaconf.OmegaConf.update(merged, "core.smt_share", 0.5)
        assert load(omegaconf.OmegaConf.to_object(merged)).core.smt_share == 0.5
