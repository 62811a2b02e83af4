"""The `Machine` itself: its counts, its checks, its digest."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zexp.errors import ConfigError
from zexp.machine import (
    RELATIONS,
    CoreConfig,
    CoreCosts,
    LineLatencyConfig,
    Machine,
    MachineConfig,
    MachineError,
    MemoryLatencyConfig,
    TopologyConfig,
    build,
    relations,
)

LINE = LineLatencyConfig(smt=10, same_l3=20, same_node=50, same_socket=100, cross_socket=200)


def config(
    sockets: int = 2, nodes: int = 2, l3s: int = 2, cores: int = 2, threads: int = 2, **rest: Any
) -> MachineConfig:
    return MachineConfig(
        name="test",
        topology=TopologyConfig(sockets, nodes, l3s, cores, threads, rest.pop("numbering", "siblings_last")),
        **{
            "ghz": 3.0,
            "memory_gib": 64.0,
            "line_latency_ns": LINE,
            "memory_latency_ns": MemoryLatencyConfig(100, 120, 200),
            "core": CoreConfig(4, 8, 64, 0.6, 2500),
            **rest,
        },
    )


@pytest.fixture
def machine() -> Machine:
    return build(config())


shapes = st.builds(
    config,
    *[st.integers(1, 3)] * 4,
    threads=st.integers(1, 4),
    numbering=st.sampled_from(["siblings_last", "siblings_adjacent"]),
)


@given(shapes)
def test_every_cpu_has_one_place_and_every_place_its_cpus(shape: MachineConfig) -> None:
    machine, top = build(shape), shape.topology
    assert top is not None
    assert machine.sockets == top.sockets
    assert machine.nodes == machine.sockets * top.nodes_per_socket
    assert machine.l3s == machine.nodes * top.l3_per_node
    assert machine.cores == machine.l3s * top.cores_per_l3
    assert machine.cpus == machine.cores * top.threads_per_core
    for part, count in (("core", machine.cores), ("l3", machine.l3s), ("node", machine.nodes)):
        members = np.bincount(getattr(machine, f"{part}_of"))
        assert members.tolist() == [machine.cpus // count] * count
    by_node = [machine.cpus_of_node(node) for node in range(machine.nodes)]
    assert sorted(sum(by_node, ())) == list(range(machine.cpus))


@given(shapes)
def test_siblings_are_the_other_threads_of_the_core(shape: MachineConfig) -> None:
    machine = build(shape)
    for cpu in range(machine.cpus):
        siblings = machine.siblings(cpu)
        assert cpu not in siblings
        assert len(siblings) == machine.cpus // machine.cores - 1
        assert all(cpu in machine.siblings(sibling) for sibling in siblings)


@given(shapes)
def test_a_line_costs_what_the_closest_shared_thing_costs(shape: MachineConfig) -> None:
    machine = build(shape)
    for a in range(machine.cpus):
        for b in range(machine.cpus):
            expected = (
                0.0 if a == b
                else LINE.smt if machine.core_of[a] == machine.core_of[b]
                else LINE.same_l3 if machine.l3_of[a] == machine.l3_of[b]
                else LINE.same_node if machine.node_of[a] == machine.node_of[b]
                else LINE.same_socket if machine.socket_of[a] == machine.socket_of[b]
                else LINE.cross_socket
            )  # fmt: skip
            assert machine.line_latency_ns[a, b] == expected


@given(shapes)
def test_digest_is_stable_and_pickling_keeps_it(shape: MachineConfig) -> None:
    machine = build(shape)
    again = pickle.loads(pickle.dumps(machine))
    assert machine.digest() == build(shape).digest() == again.digest()
    assert not again.core_of.flags.writeable


def test_digest_is_the_same_on_every_platform() -> None:
    """Changes only when the meaning of a figure changes; then bump the version in its prefix."""
    assert build(config()).digest() == "853623e17d1b043c3681d448ea6b51adad3ff58bbe6939c3ee28e61325311d2b"


def test_digest_sees_every_figure(machine: Machine) -> None:
    changed = [
        replace(machine, ghz=3.1),
        replace(machine, core_of=machine.core_of[::-1]),
        replace(machine, node_memory_bytes=machine.node_memory_bytes + 1),
        replace(machine, line_latency_ns=machine.line_latency_ns * 1.01),
        replace(machine, memory_latency_ns=machine.memory_latency_ns * 1.01),
        *(
            replace(machine, core=replace(machine.core, **{item.name: getattr(machine.core, item.name) / 2}))
            for item in fields(CoreCosts)
        ),
        build(config(numbering="siblings_adjacent")),
        build(config(sockets=1, nodes=4)),
    ]
    digests = {machine.digest(), *(other.digest() for other in changed)}
    assert len(digests) == len(changed) + 1


def test_digest_ignores_words(machine: Machine) -> None:
    renamed = replace(machine, name="other", description="other", sources={"ghz": "other"})
    assert renamed.digest() == machine.digest()


def test_arrays_are_copies_and_read_only(machine: Machine) -> None:
    mine = np.array(machine.core_of)
    copied = replace(machine, core_of=mine)
    mine[:] = 0
    assert copied.digest() == machine.digest()
    for item in fields(Machine):
        value = getattr(machine, item.name)
        if isinstance(value, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                value.flat[0] = 1


def test_relations_of_a_node_that_spans_sockets() -> None:
    two = np.arange(2, dtype=np.int32)
    relation = relations(two, two, np.zeros(2, dtype=np.int32), two)
    assert RELATIONS[relation[0, 1]] == "cross_socket"


def test_describe(machine: Machine) -> None:
    rows = dict(replace(machine, description="words").describe())
    assert rows["CPUs"] == "32 (16 cores, 2 sockets)"
    assert rows["memory"] == "64 GiB"
    assert rows["what"] == "words"
    assert rows["line transfer"] == "smt 10, same_l3 20, same_node 50, same_socket 100, cross_socket 200 ns"
    assert rows["DRAM load"] == "100 to 200 ns"
    lone = dict(build(config(1, 1, 1, 1, 1)).describe())
    assert lone["line transfer"] == "none: one CPU"
    assert lone["CPUs"] == "1 (1 cores, 1 socket)"


def test_source_of(machine: Machine) -> None:
    sourced = replace(machine, sources={"core": "group", "core.smt_share": "own"})
    assert sourced.source_of("core.smt_share") == "own"
    assert sourced.source_of("core.wakeup_ns") == "group"
    assert sourced.source_of("ghz") == "not stated"


def _with(array: np.ndarray[Any, Any], where: Any, value: float) -> np.ndarray[Any, Any]:
    array = np.array(array)
    array[where] = value
    return array


BROKEN: list[tuple[str, Any]] = [
    ("machine.core_of", lambda m: {"core_of": []}),
    ("machine.core_of", lambda m: {"core_of": m.core_of * 1.5}),
    ("machine.core_of", lambda m: {"core_of": m.core_of * 2}),
    ("machine.core_of", lambda m: {"core_of": np.arange(m.cpus) // 8}),
    ("machine.l3_of", lambda m: {"l3_of": m.l3_of[:-1]}),
    ("machine.l3_of", lambda m: {"socket_of": np.arange(m.cpus) % 2, "core_of": np.arange(m.cpus)}),
    ("machine.node_of", lambda m: {"node_of": m.node_of + 1}),
    ("machine.node_of", lambda m: {"node_of": m.node_of - 1}),
    ("machine.core_of", lambda m: {"node_of": np.arange(m.cpus) // 8}),
    ("machine.ghz", lambda m: {"ghz": 0.0}),
    ("machine.ghz", lambda m: {"ghz": float("nan")}),
    ("machine.node_memory_bytes", lambda m: {"node_memory_bytes": []}),
    ("machine.node_memory_bytes", lambda m: {"node_memory_bytes": m.node_memory_bytes * 0}),
    ("machine.node_memory_bytes", lambda m: {"node_memory_bytes": _with(m.node_memory_bytes, 0, -1)}),
    ("machine.line_latency_ns", lambda m: {"line_latency_ns": _with(m.line_latency_ns, (0, 1), 0)}),
    ("machine.line_latency_ns", lambda m: {"line_latency_ns": _with(m.line_latency_ns, (0, 0), 1)}),
    ("machine.line_latency_ns", lambda m: {"line_latency_ns": m.line_latency_ns[:2]}),
    ("machine.memory_latency_ns", lambda m: {"memory_latency_ns": _with(m.memory_latency_ns, (0, 1), np.inf)}),
    ("machine.memory_latency_ns", lambda m: {"memory_latency_ns": [[1.0]]}),
]


@pytest.mark.parametrize(("key", "change"), BROKEN)
def test_impossible_machines_are_refused(machine: Machine, key: str, change: Any) -> None:
    with pytest.raises(MachineError) as caught:
        replace(machine, **change(machine))
    assert caught.value.key == key
    assert caught.value.allowed
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [item.name for item in fields(CoreCosts)])
def test_core_costs_are_above_zero(name: str) -> None:
    with pytest.raises(MachineError, match=rf"machine\.core\.{name}"):
        replace(CoreCosts(4, 8, 64, 0.6, 2500), **{name: 0})


def test_smt_share_is_a_share() -> None:
    with pytest.raises(MachineError, match="at most 1"):
        CoreCosts(4, 8, 64, 1.2, 2500)


@pytest.mark.parametrize("number", [-1, 10_000])
def test_questions_about_cpus_and_nodes_that_are_not_there(machine: Machine, number: int) -> None:
    with pytest.raises(MachineError, match="0 to 31"):
        machine.siblings(number)
    with pytest.raises(MachineError, match="0 to 3"):
        machine.cpus_of_node(number)


def test_error_is_one_line_typed_and_picklable() -> None:
    error = MachineError("machine.x", "a\nb" * 99, "c")
    assert isinstance(error, ConfigError)
    assert isinstance(error, ValueError)
    assert "\n" not in str(error)
    assert len(str(error)) < 120
    again = pickle.loads(pickle.dumps(error))
    assert (again.key, again.value, again.allowed) == (error.key, error.value, error.allowed)
