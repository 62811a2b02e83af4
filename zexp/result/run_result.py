"""The one value every engine returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zexp.result.histogram import Log2Histogram
from zexp.result.profile import Profile


@dataclass(frozen=True)
class LockStats:
    """What a lock-contention tool would report of one lock (or array of locks)."""

    name: str
    acquisitions: int
    """Those whose thread went on with the lock before the run ended."""
    contended: int
    """Acquisitions that had to wait."""
    wait_ns: Log2Histogram
    """Waiting time of the contended acquisitions."""
    hold_ns: Log2Histogram


@dataclass(frozen=True)
class LineStats:
    """Cache-line traffic of one variable (or array), as ``perf c2c`` would group it."""

    name: str
    transfers: int
    """Accesses that had to fetch the line, or its ownership, from another cache or from memory."""
    transfer_ns: float


@dataclass(frozen=True)
class TimeSeries:
    """Values the program recorded in the course of time."""

    unit: str
    """Of the values."""
    times_ns: tuple[int, ...]
    """Since the start of the run, ascending."""
    values: tuple[int, ...]
    dropped: int = 0
    """Later values, for which the program had declared no room."""


@dataclass(frozen=True)
class Replication:
    """What one of several seeds gave."""

    seed: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class RunResult:
    """The outcome of one run. Everything but ``wall_s`` is a function of configuration and seed alone."""

    engine: str
    sim_ns: float
    """Time the workload took on the machine it ran on."""
    pages: int | None
    """Pages the workload handled, the base of every per-page figure."""
    metrics: Mapping[str, float]
    """Flat names with ``/`` as separator, e.g. ``lock/tree_lock/wait_ns``."""
    profile: Profile
    locks: tuple[LockStats, ...]
    lines: tuple[LineStats, ...]
    histograms: Mapping[str, Log2Histogram]
    instructions: int
    """Instructions the engine executed; 0 where an engine cannot say."""
    wall_s: float
    """Real seconds the engine took."""
    series: Mapping[str, TimeSeries] = field(default_factory=dict)
    replications: tuple[Replication, ...] = ()
    """If this is the mean over several seeds: what each gave."""
