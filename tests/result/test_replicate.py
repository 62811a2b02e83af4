"""Several seeds as one result: what is a mean, what is a sum, and what is of the first seed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zexp.result import (
    LineStats,
    LockStats,
    Log2Histogram,
    Profile,
    Replication,
    RunResult,
    StackTime,
    TimeSeries,
    combine,
)


def histogram(*counts: int, total: int = 0) -> Log2Histogram:
    return Log2Histogram("ns", (*counts, *[0] * (64 - len(counts))), total)


def make(**changes: object) -> RunResult:
    result = RunResult(
        engine="sim",
        sim_ns=100.0,
        pages=10,
        metrics={"m": 1.0},
        profile=Profile((StackTime("p", ("f", "g"), 7),)),
        locks=(LockStats("l", 5, 2, histogram(0, 2, total=2), histogram(5)),),
        lines=(LineStats("v", 3, 30.0),),
        histograms={"h": histogram(1, 1, total=1)},
        instructions=1000,
        wall_s=0.5,
        series={"s": TimeSeries("B", (0, 1), (5, 6))},
    )
    return replace(result, **changes)  # type: ignore[arg-type]


def test_one_result_stays_as_it_is() -> None:
    one = make()
    assert combine({3: one}) is one


@settings(deadline=None, derandomize=True, database=None, max_examples=60)
@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=6), st.integers(0, 99))
def test_metrics_and_simulated_time_are_means(values: list[float], seed: int) -> None:
    results = {seed + i: make(metrics={"m": v}, sim_ns=abs(v)) for i, v in enumerate(values)}
    whole = combine(results)
    assert whole.metrics["m"] == pytest.approx(math.fsum(values) / len(values), abs=1e-6)
    assert whole.sim_ns == pytest.approx(math.fsum(map(abs, values)) / len(values))
    assert whole.replications == tuple(Replication(seed + i, {"m": v}) for i, v in enumerate(values))


def test_a_metric_that_a_seed_lacks_does_not_count_as_zero_there() -> None:
    whole = combine({0: make(metrics={"a": 2.0}), 1: make(metrics={"b": 9.0, "a": 4.0}), 2: make(metrics={"b": 1.0})})
    assert whole.metrics == {"a": 3.0, "b": 5.0}
    assert list(whole.metrics) == ["a", "b"]


def test_counts_add_up() -> None:
    whole = combine({0: make(), 1: make(pages=30, instructions=1, wall_s=0.25)})
    assert (whole.pages, whole.instructions, whole.wall_s) == (40, 1001, 0.75)
    assert combine({0: make(pages=None), 1: make(pages=None)}).pages is None


def test_the_profile_adds_up_by_comm_and_stack_so_that_figures_per_page_are_means() -> None:
    other = Profile((StackTime("q", ("f", "g"), 1), StackTime("p", ("f", "g"), 13), StackTime("p", ("f",), 20)))
    whole = combine({0: make(), 1: make(profile=other)})
    assert set(whole.profile.stacks) == {
        StackTime("p", ("f", "g"), 20),
        StackTime("q", ("f", "g"), 1),
        StackTime("p", ("f",), 20),
    }
    rows = {(row.comm, row.symbol): row for row in whole.profile.functions(whole.pages)}
    assert rows["p", "g"].self_pct == 50.0
    assert rows["p", "g"].ns_per_page == pytest.approx(20 / 1000 / 20)


def test_locks_and_lines_add_up_by_name_also_if_a_seed_lacks_one() -> None:
    late = LockStats("late", 1, 0, histogram(), histogram(1))
    same = LockStats("l", 50, 20, histogram(0, 0, 20, total=60), histogram(45, 5, total=5))
    whole = combine({0: make(), 1: make(locks=(late, same), lines=(LineStats("v", 4, 0.5), LineStats("w", 1, 1.0)))})
    assert whole.locks == (
        LockStats("l", 55, 22, histogram(0, 2, 20, total=62), histogram(50, 5, total=5)),
        late,
    )
    assert whole.lines == (LineStats("v", 7, 30.5), LineStats("w", 1, 1.0))


def test_histograms_add_up_so_that_their_mean_is_over_all_observations() -> None:
    whole = combine({0: make(), 1: make(histograms={"h": histogram(0, 0, 8, total=24), "only": histogram(1)})})
    assert whole.histograms == {"h": histogram(1, 1, 8, total=25), "only": histogram(1)}
    assert whole.histograms["h"].mean == 2.5


def test_series_are_those_of_the_first_seed() -> None:
    later = make(series={"s": TimeSeries("B", (0, 1), (7, 8)), "t": TimeSeries("B", (0,), (1,))})
    assert combine({4: make(), 5: later}).series == make().series


def test_nothing_of_the_parts_is_changed() -> None:
    parts = {0: make(), 1: make()}
    combine(parts)
    assert parts == {0: make(), 1: make()}
