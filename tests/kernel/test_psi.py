"""Memory pressure against its definition, window by window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zexp.kernel import KernelBuilder
from zexp.kernel.cgroup import CgroupTree, TreeConfig, build_tree
from zexp.kernel.psi import PSI_FREQ_NS, Psi

from .simulate import kernel, machine
from .storm import MS, Ran, finish

CPUS = 16
WORKER = 15
WINDOW_MS = 2000
SLICES = build_tree(TreeConfig(cgroups=3, slices=2, depth=1, skew=0))
"""Two cgroups below the root, on all CPUs and with the same part of their time."""
DEEP = build_tree(TreeConfig(cgroups=12, slices=2, fanout=2, cpus_per_leaf=4, skew=0))


@dataclass(frozen=True)
class Stall:
    """Of a thread on a CPU, in ms."""

    cpu: int
    begin: int
    end: int


@dataclass(frozen=True)
class Applications:
    """Stalls reported at a time, of a cgroup, in ms of CPU time and of sleep."""

    at: int
    cgroup: int
    running: int
    sleeping: int


def pressure(
    stalls: list[Stall], applications: list[Applications], busy_pct: float, windows: int, tree: CgroupTree = SLICES
) -> Ran:
    """Run threads that stall, and the worker."""
    k = KernelBuilder(machine(), kernel("v6_12"))
    horizon_ns = windows * PSI_FREQ_NS + MS
    psi = Psi(k, tree, busy_pct, horizon_ns)
    k.run_until(horizon_ns)
    k.spawn(psi.psi_avgs_work(k), WORKER)
    for cpu in sorted({stall.cpu for stall in stalls}):
        with k.thread(f"on {cpu}", daemon=True) as thread:
            now = 0
            for stall in sorted((s for s in stalls if s.cpu == cpu), key=lambda s: s.begin):
                k.sleep_ns((stall.begin - now) * MS)
                psi.memstall_enter(k)
                k.busy_ns((stall.end - stall.begin) * MS)
                psi.memstall_leave(k)
                now = stall.end
        k.spawn(thread, cpu)
    with k.thread("applications", daemon=True) as thread:
        now = 0
        for some in sorted(applications, key=lambda a: a.at):
            k.sleep_ns((some.at - now) * MS)
            psi.stalled(k, some.cgroup, some.running * MS, some.sleeping * MS)
            now = some.at
    k.spawn(thread, 14)
    return finish(k)


def expected(
    stalls: list[Stall], applications: list[Applications], busy_pct: float, windows: int
) -> tuple[list[float], list[float], list[list[tuple[float, float]]]]:
    """SOME and FULL of the system, both of the slices, in parts per million, by the definition."""
    some, full, own = [], [], [list[tuple[float, float]]() for _ in range(2)]
    busy = busy_pct / 100
    for number in range(windows):
        low, high = number * WINDOW_MS, (number + 1) * WINDOW_MS
        reported = [a for a in applications if low < a.at <= high]
        running = sum(a.running for a in reported) / CPUS
        sleeping = sum(a.sleeping for a in reported) / CPUS
        weighted_some = weighted_full = weights = 0.0
        for cpu in range(CPUS):
            mine = sum(max(min(s.end, high) - max(s.begin, low), 0) for s in stalls if s.cpu == cpu)
            nonidle = mine + (WINDOW_MS - mine) * busy
            t_some = min(mine + running + sleeping, WINDOW_MS)
            t_full = min(mine + running + sleeping * (1 - busy), WINDOW_MS)
            weighted_some += t_some * nonidle
            weighted_full += t_full * nonidle
            weights += nonidle
        some.append(1e6 * weighted_some / weights / WINDOW_MS)
        full.append(1e6 * weighted_full / weights / WINDOW_MS)
        for i in range(2):
            running = sum(a.running for a in reported if a.cgroup == 1 + i) / CPUS / WINDOW_MS
            sleeping = sum(a.sleeping for a in reported if a.cgroup == 1 + i) / CPUS / WINDOW_MS
            alone = sleeping * (1 - busy / 2)  # the other half of the CPUs' work is the other slice's
            own[i].append((1e6 * min(running + sleeping, 1), 1e6 * min(running + alone, 1)))
    return some, full, own


def series(ran: Ran, name: str) -> list[int]:
    return list(ran.result.series[name].values)


def check(stalls: list[Stall], applications: list[Applications], busy_pct: float, windows: int) -> Ran:
    ran = pressure(stalls, applications, busy_pct, windows)
    some, full, own = expected(stalls, applications, busy_pct, windows)
    assert series(ran, "psi/some") == pytest.approx(some, abs=3)
    assert series(ran, "psi/full") == pytest.approx(full, abs=3)
    for i, mine in enumerate(own):
        assert series(ran, f"psi/slice{i}/some") == pytest.approx([some for some, _ in mine], abs=3)
        assert series(ran, f"psi/slice{i}/full") == pytest.approx([full for _, full in mine], abs=3)
    times = [PSI_FREQ_NS * (1 + i) for i in range(windows)]
    assert list(ran.result.series["psi/some"].times_ns) == times
    return ran


@st.composite
def stalls_of_cpus(draw: st.DrawFn) -> list[Stall]:
    """One after the other on each of some CPUs."""
    stalls = []
    for cpu in draw(st.lists(st.integers(0, 13), max_size=4, unique=True)):
        ends = sorted(draw(st.lists(st.integers(1, 6500), min_size=2, max_size=6, unique=True)))
        stalls += [Stall(cpu, a, b) for a, b in zip(ends[::2], ends[1::2], strict=False)]
    return stalls


some_applications = st.lists(
    st.builds(Applications, st.integers(1, 5999).filter(lambda at: at % WINDOW_MS), st.integers(1, 2),
              st.integers(0, 8000), st.integers(0, 8000)),
    max_size=5, unique_by=lambda a: a.at,
)  # fmt: skip


@settings(max_examples=60)
@given(stalls=stalls_of_cpus(), applications=some_applications, busy_pct=st.sampled_from([0.1, 30.0, 61.0, 100.0]))
def test_pressure_against_the_definition(
    stalls: list[Stall], applications: list[Applications], busy_pct: float
) -> None:
    check(stalls, applications, busy_pct, windows=3)


@pytest.mark.parametrize("cpus", [1, 4, 12])
def test_a_stall_all_the_time_on_some_cpus(cpus: int) -> None:
    """On machines all of whose CPUs are busy: their part of them. On others more, as idle CPUs count less."""
    stalls = [Stall(cpu, 0, 10_000) for cpu in range(cpus)]
    busy = check(stalls, [], 100.0, windows=3)
    assert series(busy, "psi/some") == series(busy, "psi/full") == [1_000_000 * cpus // 16] * 3
    half = check(stalls, [], 50.0, windows=3)
    assert series(half, "psi/some") == [1_000_000 * cpus * 2 // (2 * cpus + 16 - cpus)] * 3
    assert series(half, "psi/slice0/some") == [0] * 3, "kswapd belongs to the root"


def test_stalls_are_cut_at_the_ends_of_windows() -> None:
    ran = check([Stall(2, 1500, 5300)], [], 100.0, windows=3)
    assert series(ran, "psi/some") == [15_625, 62_500, 40_625]
    assert series(check([Stall(2, 1500, 9000)], [], 100.0, windows=3), "psi/some") == [15_625, 62_500, 62_500]


def test_applications_stalls() -> None:
    """Decompressing is FULL; waiting for a disk is FULL only as far as nothing else could run."""
    ran = check([], [Applications(100, 1, 1600, 0), Applications(200, 2, 0, 3200)], 75.0, windows=2)
    assert series(ran, "psi/some") == [150_000, 0]
    assert series(ran, "psi/full") == [75_000, 0]
    assert series(ran, "psi/slice0/some") == [50_000, 0]
    assert series(ran, "psi/slice1/some") == [100_000, 0]
    assert series(ran, "psi/slice1/full") == [62_500, 0]


def test_pressure_is_at_most_all() -> None:
    ran = check([Stall(1, 0, 2000)], [Applications(100, 2, 10**6, 10**6)], 75.0, windows=2)
    assert series(ran, "psi/some")[0] == series(ran, "psi/full")[0] == 1_000_000
    assert series(ran, "psi/slice1/some") == [1_000_000, 0]


def test_no_stalls_no_pressure() -> None:
    ran = check([], [], 61.0, windows=4)
    assert series(ran, "psi/some") == series(ran, "psi/full") == [0] * 4


# ---- every cgroup ----------------------------------------------------------------------------------------------------


def test_a_cgroups_stalls_are_its_ancestors_too() -> None:
    """Each has them on the CPUs that its tasks run on: 4 for a leaf, more for what is above it."""
    leaf = 4
    ran = pressure([], [Applications(100, leaf, 400, 0)], 60.0, 1, DEEP)
    used, stalled_ms = DEEP.cpus_used(CPUS), 400
    assert used[leaf] == pytest.approx(4)
    assert used[0] > used[1] > used[DEEP.parent[leaf]] > 4
    found = ran.cells("some pressure of cgroup, ppm")
    above = DEEP.ancestors(leaf)
    for cgroup in range(1, len(DEEP)):
        expected = 1e6 * stalled_ms / WINDOW_MS / used[cgroup] if cgroup in above else 0
        assert found[cgroup] == pytest.approx(expected, abs=3)
    assert ran.cells("full pressure of cgroup, ppm") == found, "decompressing is FULL"
    assert series(ran, "psi/worst_cgroup/number") == [leaf]
    assert series(ran, "psi/worst_cgroup/some") == [found[leaf]]
    assert series(ran, "psi/some") == [1_000_000 * stalled_ms // WINDOW_MS // CPUS]


def test_asleep_is_full_as_long_as_no_other_task_of_the_cgroup_runs() -> None:
    """A cgroup's part of the CPU time goes by its updates; the more it has, the less of its waiting is FULL."""
    for busy_pct in (5.0, 20.0):
        ran = pressure([], [Applications(100, c, 0, 100) for c in (3, 4)], busy_pct, 1, DEEP)
        share = DEEP.updates_per_s / DEEP.updates_per_s[0]
        busy = busy_pct / 100 * CPUS * share / DEEP.cpus_used(CPUS)
        some, full = (np.array(ran.cells(f"{which} pressure of cgroup, ppm")) for which in ("some", "full"))
        assert some[1] > 0
        assert full[1:5] == pytest.approx(some[1:5] * (1 - busy[1:5]), abs=3)


def test_there_is_a_value_for_every_cgroup_and_window() -> None:
    ran = pressure([], [Applications(2100, 5, 80, 80)], 60.0, 3, DEEP)
    for level in range(1, DEEP.levels):
        for which in ("some", "full"):
            histogram = ran.result.histograms[f"psi/{which}_ppm/level{level}"]
            assert histogram.unit == "ppm"
            assert histogram.count == 3 * int((DEEP.level == level).sum())
            assert (histogram.total > 0) == (int(DEEP.level[5]) >= level)


def test_pressure_of_a_single_cgroup() -> None:
    """The system's, of which there is always one."""
    ran = pressure([], [Applications(100, 0, 1600, 0)], 60.0, 2, build_tree(TreeConfig(cgroups=1, slices=0)))
    assert series(ran, "psi/some") == [50_000, 0]
    assert not any("level" in name for name in ran.result.histograms)
    assert series(ran, "psi/worst_cgroup/some") == [0, 0]
