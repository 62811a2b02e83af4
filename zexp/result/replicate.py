"""Several seeds of one experiment as one result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from zexp.result.histogram import Log2Histogram
from zexp.result.profile import Profile, StackTime
from zexp.result.run_result import LineStats, LockStats, Replication, RunResult

T = TypeVar("T")


def combine(results: Mapping[int, RunResult]) -> RunResult:
    """The results of several seeds as one: metrics are means; times in the profile, counts and histograms are sums.

    A metric that a seed does not have does not count as 0: its mean is over those that have it. ``pages`` is the sum,
    so that per-page figures of the profile are means. Time series are those of the first seed. One result stays as it
    is.
    """
    every = list(results.values())
    if len(every) == 1:
        return every[0]
    first = every[0]
    return replace(
        first,
        sim_ns=sum(r.sim_ns for r in every) / len(every),
        pages=None if first.pages is None else sum(r.pages or 0 for r in every),
        metrics=_means([r.metrics for r in every]),
        profile=_profile(every),
        locks=_by_name((lock for r in every for lock in r.locks), lambda lock: lock.name, _lock),
        lines=_by_name((line for r in every for line in r.lines), lambda line: line.name, _line),
        histograms=_by_key(every),
        instructions=sum(r.instructions for r in every),
        wall_s=sum(r.wall_s for r in every),
        replications=tuple(Replication(seed, r.metrics) for seed, r in results.items()),
    )


def _means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in metrics for name in one)
    found = {name: [one[name] for one in metrics if name in one] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}


def _profile(results: Sequence[RunResult]) -> Profile:
    times: dict[tuple[str, tuple[str, ...]], int] = defaultdict(int)
    for result in results:
        for stack in result.profile.stacks:
            times[stack.comm, stack.stack] += stack.self_ps
    return Profile(tuple(StackTime(comm, stack, ps) for (comm, stack), ps in times.items()))


def _by_name(items: Iterable[T], name: Callable[[T], str], add: Callable[[T, T], T]) -> tuple[T, ...]:
    sums: dict[str, T] = {}
    for item in items:
        key = name(item)
        sums[key] = add(sums[key], item) if key in sums else item
    return tuple(sums.values())


def _by_key(results: Sequence[RunResult]) -> dict[str, Log2Histogram]:
    sums: dict[str, Log2Histogram] = {}
    for result in results:
        for name, histogram in result.histograms.items():
            sums[name] = _histogram(sums[name], histogram) if name in sums else histogram
    return sums


def _histogram(a: Log2Histogram, b: Log2Histogram) -> Log2Histogram:
    return Log2Histogram(a.unit, tuple(x + y for x, y in zip(a.counts, b.counts, strict=True)), a.total + b.total)


def _lock(a: LockStats, b: LockStats) -> LockStats:
    return LockStats(
        a.name,
        a.acquisitions + b.acquisitions,
        a.contended + b.contended,
        _histogram(a.wait_ns, b.wait_ns),
        _histogram(a.hold_ns, b.hold_ns),
    )


def _line(a: LineStats, b: LineStats) -> LineStats:
    return LineStats(a.name, a.transfers + b.transfers, a.transfer_ns + b.transfer_ns)
