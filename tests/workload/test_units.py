"""Sizes, placement and shares: the small functions that all workloads use."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel.simulate import machine

from zexp.errors import ConfigError
from zexp.workload import parse_bytes, show_bytes
from zexp.workload.base import UNITS, Region, place

MACHINES = ("laptop", "epyc_9684x", "epyc_7742_2s", "graviton3")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("1B", 1),
        ("24GiB", 24 << 30),
        ("24 GiB", 24 << 30),
        ("24Gi", 24 << 30),
        ("24GB", 24 * 10**9),
        ("24G", 24 * 10**9),
        ("1.5MiB", 3 << 19),
        ("0.5K", 500),
        (" 2TiB ", 2 << 40),
        ("0.0001KiB", 0),
    ],
)
def test_parse_bytes(text: str, size: int) -> None:
    if size:
        assert parse_bytes("workload.size", text) == size
    else:
        with pytest.raises(ConfigError, match="above 0"):
            parse_bytes("workload.size", text)


@pytest.mark.parametrize(
    "text", ["", "GiB", "abc", "1 GiB 2", "1e9", "0x10", "1PiB", "1gib", "--1", "nan", "inf", "1,5GiB"]
)
def test_parse_bytes_refuses_garbage(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_bytes("workload.size", text)
    assert str(caught.value) == f"workload.size={text}: a size like 24GiB, 512MiB or 4096"


@pytest.mark.parametrize("text", ["0", "0GiB", "-1", "-24GiB", "0.0"])
def test_parse_bytes_refuses_nothing_and_less(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^workload.size=.*: a size above 0, like 24GiB$"):
        parse_bytes("workload.size", text)


@given(st.integers(1, 1 << 12), st.sampled_from(sorted(UNITS)), st.sampled_from(["", "B"]), st.sampled_from(["", " "]))
def test_parse_bytes_is_exact_for_whole_numbers(number: int, unit: str, byte: str, space: str) -> None:
    assert parse_bytes("key", f"{number}{space}{unit}{byte}") == number * UNITS[unit]


@given(st.integers(1, 1 << 50))
def test_show_bytes_names_the_size(size: int) -> None:
    shown = parse_bytes("key", show_bytes(size).replace("e+", "e"))
    assert shown == pytest.approx(size, rel=1e-3)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("how", ["spread", "pack"])
def test_place(name: str, how: str) -> None:
    on = machine(name)
    everything = place(on, how, on.cpus, "key")
    assert sorted(everything) == list(range(on.cpus)), "every CPU once"
    cores = len(set(on.core_of.tolist()))
    for count in range(on.cpus + 1):
        some = place(on, how, count, "key")
        assert some == everything[:count], "more threads do not move the others"
        busiest = max(Counter(on.core_of[some].tolist()).values(), default=0)
        assert busiest <= -(-count // cores), "whole cores before second hyperthreads"


@pytest.mark.parametrize("name", MACHINES)
def test_spread_and_pack(name: str) -> None:
    on = machine(name)
    domains = len(set(on.l3_of.tolist()))
    cores = len(set(on.core_of.tolist()))
    each = cores // domains
    for count in range(1, cores + 1):
        spread = Counter(on.l3_of[place(on, "spread", count, "key")].tolist())
        assert max(spread.values()) - min(spread.values()) <= 1
        assert len(spread) == min(count, domains)
        packed = Counter(on.l3_of[place(on, "pack", count, "key")].tolist())
        assert len(packed) == -(-count // each)


def test_place_refuses() -> None:
    on = machine()
    with pytest.raises(ConfigError, match=r"^workload.processes=17: laptop has 16 CPUs"):
        place(on, "spread", 17, "workload.processes")
    with pytest.raises(ConfigError, match=r"^workload.placement=sprad: allowed: pack, spread"):
        place(on, "sprad", 3, "key")


@given(st.integers(1, 200), st.integers(0, 10_000), st.integers(0, 1000), st.integers(0, 100))
def test_shares(processes: int, pages: int, first: int, memcg: int) -> None:
    shares = Region("munmap", processes, pages, first, memcg).shares()
    assert [m for _, _, m in shares] == list(range(memcg, memcg + processes))
    assert sum(n for _, n, _ in shares) == pages
    sizes = [n for _, n, _ in shares]
    assert max(sizes) - min(sizes) <= 1
    ends = [start + n for start, n, _ in shares]
    assert [start for start, _, _ in shares] == [first, *ends[:-1]], "neighbouring runs of slots, without a gap"
