"""Flush now, flush rarely, or let somebody else's flush do."""

from __future__ import annotations

from dataclasses import dataclass, field

from zexp.kernel import FlushStrategy, KernelBuilder
from zexp.kernel.memcontrol import VmStats
from zexp.program import IntLike, Value

NOBODY = -1
"""No cgroup."""


@dataclass
class Sync(FlushStrategy):
    """Flush whenever the threshold is passed (zswap_shrinker_count from 6.8 to 7.2)."""

    name: str = "sync"

    def flush(self, k: KernelBuilder, stats: VmStats, memcg: IntLike) -> None:
        """mem_cgroup_flush_stats()."""
        stats.mem_cgroup_flush_stats(k, memcg)


@dataclass
class RateLimited(FlushStrategy):
    """Flush only if the periodic flusher is a full cycle late (zswap_shrinker_count from 7.3)."""

    name: str = "ratelimited"

    def flush(self, k: KernelBuilder, stats: VmStats, memcg: IntLike) -> None:
        """mem_cgroup_flush_stats_ratelimited()."""
        stats.mem_cgroup_flush_stats_ratelimited(k, memcg)


@dataclass
class Never(FlushStrategy):
    """Live with what the periodic flusher leaves."""

    name: str = "never"

    def flush(self, k: KernelBuilder, stats: VmStats, memcg: IntLike) -> None:
        """Nothing."""


@dataclass
class SkipIfOngoing(FlushStrategy):
    """Flush unless another such flush is under way; then go on with stale statistics (6.5's rule)."""

    name: str = "skip_if_ongoing"

    def setup(self, k: KernelBuilder, stats: VmStats) -> None:
        """One flag for the machine."""
        self.ongoing = k.var("flush_ongoing")

    def flush(self, k: KernelBuilder, stats: VmStats, memcg: IntLike) -> None:
        """Past the threshold, whoever sets the flag flushes."""
        with k.func("flush_unless_ongoing"), k.if_(stats.memcg_vmstats_needs_flush(k, memcg)):
            with k.if_(k.compare_and_swap(self.ongoing, 0, 1)):
                stats.do_flush_stats(k, memcg)
                k.store(self.ongoing, 0)
            with k.else_():
                k.count("rstat/skipped")


@dataclass
class WaitIfOngoing(FlushStrategy):
    """If a flush of the cgroup or an ancestor is under way, wait for it, but not for long, instead of flushing again.

    As proposed in 2024 ("cgroup/rstat: avoid flushing if there is an ongoing overlapping flush", not merged): one
    ongoing flusher is known, ``cgrp_rstat_ongoing_flusher``. Whoever finds nobody there, on arrival or when the lock
    has been taken, writes itself; who is not below the one that is written there flushes unknown to the others. The
    proposal covered every flush of the machine, a strategy those of its ``sites``.
    """

    name: str = "wait_if_ongoing"
    poll_ns: int = field(default=50_000, metadata={"help": "how often to look whether it is over"})
    patience_ns: int = field(default=100_000_000, metadata={"help": "how long to wait at most"})

    def validate(self) -> None:
        """Both times must be positive."""
        if self.poll_ns < 1 or self.patience_ns < self.poll_ns:
            raise ValueError("poll_ns must be 1 or more, and patience_ns at least poll_ns")

    def setup(self, k: KernelBuilder, stats: VmStats) -> None:
        """The flusher that is known, and how many known ones have finished."""
        self.ongoing = k.var("cgrp_rstat_ongoing_flusher", init=NOBODY)
        self.done = k.var("flush_done")

    def flush(self, k: KernelBuilder, stats: VmStats, memcg: IntLike) -> None:
        """Past the threshold: whom the ongoing flush covers sleeps until that is done, anybody else flushes."""
        whose = stats.flushed_with(k, memcg)
        with k.func("flush_or_wait"), k.if_(stats.memcg_vmstats_needs_flush(k, memcg)):
            known = k.local(k.compare_and_swap(self.ongoing, NOBODY, whose))

            def record() -> int:
                known.set(known | k.compare_and_swap(self.ongoing, NOBODY, whose))
                return 1

            done, ongoing = k.load(self.done), k.load(self.ongoing)
            with k.if_((known == 0) & stats.rstat.cgroup_is_descendant(k, whose, ongoing)):
                k.count("rstat/waited")
                until = k.now_ns() + self.patience_ns
                # it is over when the count moves: the next flush may have begun by then
                with k.while_(lambda: (k.load(self.done) == done) & (k.now_ns() < until)):
                    k.sleep_ns(self.poll_ns)
            with k.else_():
                stats.do_flush_stats(k, memcg, still_wanted=record)
                with k.if_(known):
                    k.store(self.ongoing, NOBODY)
                    k.store(self.done, k.load(self.done) + 1)


@dataclass
class MinInterval(FlushStrategy):
    """Flush a cgroup at most every so often; who had to queue for the lock looks again before flushing."""

    name: str = "min_interval"
    interval_ns: int = field(default=50_000_000, metadata={"help": "shortest time between two flushes of a cgroup"})

    def validate(self) -> None:
        """The interval must be positive."""
        if self.interval_ns < 1:
            raise ValueError("interval_ns must be 1 or more")

    def setup(self, k: KernelBuilder, stats: VmStats) -> None:
        """When a flush of each cgroup began: where the lock is dropped between CPUs, others come in before it ends."""
        self.began = k.bookkeeping("cgroup's last flush began, ns", len(stats.rstat.tree))

    def flush(self, k: KernelBuilder, stats: VmStats, memcg: IntLike) -> None:
        """Past the threshold and the interval; a flusher that waited for the lock finds the interval has begun anew."""
        whose = stats.flushed_with(k, memcg)

        def due() -> Value:
            latest = k.maximum(k.load(stats.flushed_ns[whose]), k.load(self.began[whose]))
            return k.now_ns() - latest >= self.interval_ns

        def begin() -> Value:
            wanted = due()
            with k.if_(wanted):
                k.store(self.began[whose], k.now_ns())
            return wanted

        with k.func("flush_at_interval"), k.if_(stats.memcg_vmstats_needs_flush(k, memcg) & due()):
            stats.do_flush_stats(k, memcg, still_wanted=begin)
