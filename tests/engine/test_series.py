"""Time series: what a program records in the course of time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from zexp.engine.sim import run
from zexp.program import Builder
from zexp.result import TimeSeries

from .machines import uniform


def ticks(length: int, horizon: int = 1000) -> TimeSeries:
    """The squares, at 100, 200, ... ns."""
    k = Builder(uniform(1))
    series = k.series("squares", length, "apples")
    with k.thread("t", daemon=True) as body:
        i = k.local(0)
        with k.while_(lambda: 1):
            k.work(100)
            i.set(i + 1)
            k.record(series, i * i)
    k.spawn(body, 0)
    k.run_until(horizon)
    result = run(k.finish(), uniform(1))
    assert list(result.series) == ["squares"]
    assert result.profile.total_ps() == 1000 * horizon  # recording takes no time
    return result.series["squares"]


def test_values_and_their_times() -> None:
    assert ticks(100, 500) == TimeSeries("apples", (100, 200, 300, 400), (1, 4, 9, 16), 0)
    assert ticks(4, 500).dropped == 0
    assert ticks(100, 100) == TimeSeries("apples", (), ())


def test_what_does_not_fit_is_counted() -> None:
    assert ticks(3) == TimeSeries("apples", (100, 200, 300), (1, 4, 9), 6)


def test_no_series() -> None:
    k = Builder(uniform(1))
    with k.thread("t") as body:
        k.work(1)
    k.spawn(body, 0)
    assert run(k.finish(), uniform(1)).series == {}


@given(st.lists(st.integers(1, 50), min_size=2, max_size=6), st.integers(1, 3000), st.integers(1, 200))
@settings(deadline=None, derandomize=True, database=None, max_examples=100)
def test_threads_share_a_series(work: list[int], horizon: int, length: int) -> None:
    """In order of time and nothing lost, though a call is charged with what follows it."""
    k = Builder(uniform(8))
    series = k.series("who", length, "CPU")
    with k.thread("t", daemon=True) as body:
        period = body.arg("period")
        with k.while_(lambda: 1), k.func("f"):
            k.work(7, spread=True)
            k.record(series, k.cpu)
            k.count("recorded")
            k.work(period)
    for cpu, ns in enumerate(work):
        k.spawn(body, cpu, period=ns)
    k.run_until(horizon)
    result = run(k.finish(), uniform(8))
    who = result.series["who"]
    assert list(who.times_ns) == sorted(who.times_ns)
    assert len(who.times_ns) + who.dropped == result.metrics["recorded"]
    assert len(who.times_ns) == min(length, result.metrics["recorded"])
    assert all(time < horizon for time in who.times_ns)
    for cpu, ns in enumerate(work):
        mine = [time for time, value in zip(who.times_ns, who.values, strict=True) if value == cpu]
        assert mine == [7 + i * (7 + ns) for i in range(len(mine))]
