"""The flush strategies, each in a scenario that shows what it does differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel.simulate import KERNELS, POLICIES, kernel, machine
from zexp_flush import zexp_flush_strategies
from zexp_flush.strategies import MinInterval, Never, RateLimited, SkipIfOngoing, Sync, WaitIfOngoing

from zexp.engine.sim import engine
from zexp.errors import ConfigError
from zexp.kernel import FlushStrategy, KernelBuilder, KernelConfig, Policies
from zexp.kernel.cgroup import TreeConfig, build_tree
from zexp.kernel.memcontrol import VmStats
from zexp.kernel.rstat import RstatTrees
from zexp.result import LockStats, RunResult
from zexp.workload.stat_readers import StatReaders, stat_reader_code

MS = 1_000_000
SITES = ["memory_stat", "prepare_scan_control", "zswap_shrinker_count"]
TREE = TreeConfig(cgroups=20, slices=3, updates_per_s=1e9, skew=0)
"""Everything is touched and every threshold passed within 1 ms; a root flush takes some 0.7 ms on 16 CPUs."""
SMALL = TreeConfig(cgroups=20, slices=3, fanout=2, updates_per_s=1e6)
EVERY = [*KERNELS, "cloudflare_mutex"]


def readers(
    strategy: FlushStrategy,
    *,
    number: int = 1,
    rounds: int = 1,
    pause_ns: int = 0,
    start_ns: int = 100 * MS,
    apart_ns: int = 0,
    cgroup: int = 0,
    site: str = "zswap_shrinker_count",
    config: KernelConfig | None = None,
    tree: TreeConfig = TREE,
    flusher: bool = False,
    extra: Callable[[KernelBuilder, VmStats], None] | None = None,
) -> RunResult:
    """Threads that come to a call site, all of them at once or ``apart_ns`` apart, again and again."""
    strategy.validate()
    k = KernelBuilder(machine(), config or kernel("v6_12"))
    stats = VmStats(k, RstatTrees(k, build_tree(tree)).memory, strategy)
    with k.thread("reader") as thread, k.for_range(rounds):
        began = k.now_ns()
        stats.flush_at(k, site, cgroup)
        k.observe("at_site_ns", k.now_ns() - began)
        k.observe("age_ns", k.now_ns() - k.load(stats.flushed_ns[cgroup]))
        if pause_ns:
            k.sleep_ns(pause_ns)
    for i in range(number):
        k.spawn(thread, i, start_ns=start_ns + i * apart_ns)
    if flusher:
        k.spawn(stats.flush_memcg_stats_dwork(k, 0), k.machine.cpus - 1)
    if extra is not None:
        extra(k, stats)
    return engine.run(k.finish(), machine())


def count(result: RunResult, metric: str) -> int:
    return int(result.metrics.get(metric, 0))


def lock(result: RunResult) -> LockStats:
    (stats,) = [one for one in result.locks if "rstat" in one.name]
    return stats


def slowest(result: RunResult, histogram: str) -> int:
    """Upper bound of the largest value observed, a power of two."""
    return result.histograms[histogram].buckets()[-1][1]


def symbols(result: RunResult) -> set[str]:
    return {symbol for stack in result.profile.stacks for symbol in stack.stack}


def flush_ns() -> float:
    """How long a root flush takes when nobody is in the way."""
    return readers(Sync()).histograms["flush_ns/level0"].mean


# ---- one at a time ---------------------------------------------------------------------------------------------------


def test_sync_flushes_for_everybody() -> None:
    """No second look once the lock has been taken: who came in time for the threshold flushes, one after the other."""
    result = readers(Sync(), number=7)
    assert count(result, "rstat/flushes") == 7
    assert lock(result).acquisitions == 7 * machine().cpus
    assert "mem_cgroup_flush_stats" in symbols(result)


def test_sync_is_what_the_kernel_does_where_it_is_sync() -> None:
    mine = readers(Sync(sites=["zswap_shrinker_count"]), number=5, rounds=20, pause_ns=50_000)
    its = readers(Never(sites=[]), number=5, rounds=20, pause_ns=50_000)
    assert dict(mine.metrics) == dict(its.metrics)
    assert mine.sim_ns == its.sim_ns


def test_ratelimited_is_what_7_3_does() -> None:
    for start_ns, flushes in ((3_900 * MS, 0), (4_100 * MS, 3)):
        mine = readers(RateLimited(), number=3, start_ns=start_ns)
        its = readers(Never(sites=[]), number=3, start_ns=start_ns, config=kernel("v7_3"))
        assert count(mine, "rstat/flushes") == count(its, "rstat/flushes") == flushes
    assert "mem_cgroup_flush_stats_ratelimited" in symbols(mine)


def test_ratelimited_leaves_it_to_the_periodic_flusher() -> None:
    result = readers(RateLimited(), number=3, rounds=90, pause_ns=100 * MS, flusher=True)
    assert count(result, "rstat/flushes") == 4
    assert slowest(result, "at_site_ns") < flush_ns()


def test_never_leaves_it_to_the_periodic_flusher_even_if_that_is_late() -> None:
    result = readers(Never(), number=3, rounds=90, pause_ns=100 * MS, flusher=True)
    assert count(result, "rstat/flushes") == 4
    result = readers(Never(), number=3, rounds=90, pause_ns=100 * MS)
    assert count(result, "rstat/flushes") == 0
    assert lock(result).acquisitions == 0


def test_one_reader_gets_fresh_statistics_of_all_but_never_and_ratelimited() -> None:
    for strategy in zexp_flush_strategies():
        flushes = count(readers(strategy()), "rstat/flushes")
        assert flushes == (0 if strategy in (Never, RateLimited) else 1), strategy


def test_nobody_flushes_below_the_threshold() -> None:
    idle = replace(TREE, updates_per_s=1.0)
    for strategy in zexp_flush_strategies():
        result = readers(strategy(), number=5, start_ns=10_000 * MS, tree=idle)
        assert count(result, "rstat/flushes") == 0, strategy
        assert count(result, "rstat/skipped") == count(result, "rstat/waited") == 0
        assert lock(result).acquisitions == 0


# ---- skip_if_ongoing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 7])
def test_one_flushes_and_the_others_skip(number: int) -> None:
    result = readers(SkipIfOngoing(), number=number)
    assert count(result, "rstat/flushes") == 1
    assert count(result, "rstat/skipped") == number - 1
    assert lock(result).contended == 0
    assert result.histograms["at_site_ns"].count == number
    if number > 2:
        median = sorted(result.histograms["at_site_ns"].buckets())[0]
        assert median[1] < flush_ns() / 20, "who skips does not wait"


def test_whoever_comes_later_flushes_again() -> None:
    apart_ns = round(3 * flush_ns())
    result = readers(SkipIfOngoing(), number=5, apart_ns=apart_ns)
    assert count(result, "rstat/flushes") == 5
    assert count(result, "rstat/skipped") == 0


def test_skippers_go_on_with_stale_statistics() -> None:
    """Those of a run without any flush, as old as the run."""
    ages = readers(SkipIfOngoing(), number=7).histograms["age_ns"]
    assert ages.buckets()[-1] == (1 << 26, 1 << 27, 6)
    ages = readers(WaitIfOngoing(), number=7).histograms["age_ns"]
    assert ages.buckets()[-1][1] < MS


def test_skipping_ignores_flushers_that_are_not_the_strategys() -> None:
    """The flag is the strategy's: the periodic flusher does not set it."""
    result = readers(SkipIfOngoing(), start_ns=2_000 * MS + 10_000, flusher=True, config=kernel("v6_8"))
    assert count(result, "rstat/flushes") == 2
    assert count(result, "rstat/skipped") == 0


# ---- wait_if_ongoing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2, 7])
def test_one_flushes_and_the_others_wait(number: int) -> None:
    poll_ns = 1000
    result = readers(WaitIfOngoing(poll_ns=poll_ns), number=number)
    flush = result.histograms["flush_ns/level0"]
    assert flush.count == count(result, "rstat/flushes") == 1
    assert count(result, "rstat/waited") == number - 1
    assert lock(result).contended == 0
    at_site = result.histograms["at_site_ns"]
    assert at_site.count == number
    # all come and go together: the waiters leave when the flush is over, or within a look of it
    assert flush.mean < at_site.mean < flush.mean + 2 * poll_ns + 2000
    assert "flush_or_wait" in symbols(result)


def test_waiters_sleep() -> None:
    """They use next to no CPU time, unlike those who queue for a spinlock."""
    waiting = readers(WaitIfOngoing(poll_ns=50_000), number=7).profile.total_ps()
    queueing = readers(Sync(), number=7).profile.total_ps()
    assert waiting < queueing / 7


@pytest.mark.parametrize("patience_ns", [2_000, 10_000, 100_000])
def test_patience_is_limited(patience_ns: int) -> None:
    poll_ns = 1000
    result = readers(WaitIfOngoing(poll_ns=poll_ns, patience_ns=patience_ns), number=6)
    flush = result.histograms["flush_ns/level0"]
    assert flush.mean > 2 * patience_ns
    waited = (result.histograms["at_site_ns"].total - flush.mean) / 5
    assert patience_ns < waited < patience_ns + 2 * poll_ns + 2000
    assert count(result, "rstat/flushes") == 1
    assert count(result, "rstat/waited") == 5


def during_a_flush(
    flushed: int, cgroup: int, strategy: FlushStrategy | None = None, config: KernelConfig | None = None
) -> tuple[int, int]:
    """Flushes and waits, where a reader asks for ``cgroup`` soon after another began to flush ``flushed``."""

    def stage(k: KernelBuilder, stats: VmStats) -> None:
        with k.thread("other") as thread:
            stats.flush_at(k, "zswap_shrinker_count", flushed)
        k.spawn(thread, 8, start_ns=100 * MS - 20_000)

    result = readers(strategy or WaitIfOngoing(poll_ns=1000), cgroup=cgroup, extra=stage, config=config)
    return count(result, "rstat/flushes"), count(result, "rstat/waited")


def test_who_waits_for_whom() -> None:
    """Only for a flush of the cgroup or of an ancestor; not for that of a sibling, or of a part of what is wanted."""
    tree = build_tree(TREE)
    first, second = np.flatnonzero(tree.level == 1)[:2].tolist()
    inner = first + 1
    assert tree.end[inner] > inner + 1, "it has children"
    for flushed, cgroup, waits in (
        (0, 0, True), (0, first, True), (0, len(tree) - 1, True),
        (first, first, True), (first, inner, True), (first, int(tree.end[first]) - 1, True), (inner, inner + 1, True),
        (first, 0, False), (first, second, False), (second, first, False), (inner, first, False),
        (inner + 1, inner, False), (first, int(tree.end[first]), False),
    ):  # fmt: skip
        assert during_a_flush(flushed, cgroup) == ((1, 1) if waits else (2, 0)), (flushed, cgroup)


def test_where_all_flush_the_whole_tree_all_wait_for_each_other() -> None:
    whole = kernel("v6_12", flush_scope="tree")
    assert during_a_flush(1, int(build_tree(TREE).end[1]), config=whole) == (1, 1)


def test_one_flusher_is_known() -> None:
    """Who finds somebody else written there flushes unknown to the others, or is known when the lock has been taken."""
    tree = build_tree(TREE)
    first, second = np.flatnonzero(tree.level == 1)[:2].tolist()

    def others(k: KernelBuilder, stats: VmStats) -> None:
        for i, cgroup in enumerate((first, second)):
            with k.thread(f"other{i}") as thread:
                stats.flush_at(k, "zswap_shrinker_count", cgroup)
            k.spawn(thread, 8 + i, start_ns=100 * MS - 20_000 + 1000 * i)

    # the lock is dropped between CPUs: both flush by turns, and a second reader of the second cgroup finds the first
    by_turns = readers(WaitIfOngoing(poll_ns=1000), cgroup=second, extra=others)
    assert (count(by_turns, "rstat/flushes"), count(by_turns, "rstat/waited")) == (3, 0)
    # it is held: the root's flusher queues, is written there when its turn comes, and is waited for from then on
    held = kernel("v6_12", rstat_lock_drop="never")
    queueing = readers(WaitIfOngoing(poll_ns=1000), number=1, cgroup=0, extra=others, config=held)
    assert (count(queueing, "rstat/flushes"), count(queueing, "rstat/waited")) == (3, 0)
    behind_it = readers(WaitIfOngoing(poll_ns=1000), number=7, apart_ns=400_000, cgroup=0, extra=others, config=held)
    assert count(behind_it, "rstat/flushes") + count(behind_it, "rstat/waited") == 9
    assert count(behind_it, "rstat/waited") >= 1


def test_waiting_ends_with_the_flush_waited_for() -> None:
    """Also if the next one begins at once."""
    alone = readers(WaitIfOngoing(poll_ns=1000), number=2).histograms["at_site_ns"]

    def next_one(k: KernelBuilder, stats: VmStats) -> None:
        with k.thread("other") as thread, k.for_range(20):
            stats.flush_at(k, "prepare_scan_control", 0)
        k.spawn(thread, 8, start_ns=100 * MS - 20_000)

    strategy = WaitIfOngoing(poll_ns=200_000, sites=["zswap_shrinker_count", "prepare_scan_control"])
    busy = readers(strategy, extra=next_one)
    assert count(busy, "rstat/waited") == 1
    assert busy.histograms["at_site_ns"].mean < alone.mean + 2 * 200_000


def test_waiting_readers_are_not_served_in_vain() -> None:
    """All readers together flush as often as one does who never waits."""
    result = readers(WaitIfOngoing(poll_ns=1000), number=7, rounds=50, pause_ns=MS)
    assert count(result, "rstat/flushes") + count(result, "rstat/waited") <= 7 * 50
    assert count(result, "rstat/flushes") < 2 * 50
    assert lock(result).contended == 0


# ---- min_interval ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_ns", [5 * MS, 20 * MS, 70 * MS])
@pytest.mark.parametrize("number", [1, 6])
def test_the_interval_is_kept(interval_ns: int, number: int) -> None:
    """However many ask, and however often."""
    result = readers(MinInterval(interval_ns=interval_ns), number=number, rounds=300, pause_ns=MS, apart_ns=100_000)
    most = (result.sim_ns - 100 * MS) / interval_ns + 1
    assert 0.7 * most - 1 < count(result, "rstat/flushes") <= most


def test_intervals_are_a_cgroups_own() -> None:
    """A slice may be flushed although another was, but not if the root was: that flushed it as well."""
    strategy = MinInterval(interval_ns=50 * MS)

    def other(cgroup: int) -> Callable[[KernelBuilder, VmStats], None]:
        def stage(k: KernelBuilder, stats: VmStats) -> None:
            with k.thread("other") as thread:
                stats.flush_at(k, "zswap_shrinker_count", cgroup)
            k.spawn(thread, 8, start_ns=90 * MS)

        return stage

    second = 1 + build_tree(TREE).end[1] - 1
    assert count(readers(strategy, cgroup=1, extra=other(int(second))), "rstat/flushes") == 2
    assert count(readers(strategy, cgroup=1, extra=other(1)), "rstat/flushes") == 1
    assert count(readers(strategy, cgroup=1, extra=other(0)), "rstat/flushes") == 1
    assert count(readers(strategy, cgroup=0, extra=other(1)), "rstat/flushes") == 2


@pytest.mark.parametrize("drop", ["resched", "contended", "every_cpu"])
def test_the_interval_is_looked_at_again_under_the_lock(drop: str) -> None:
    """All others find that it has begun, whether the lock is held through a flush or dropped in between."""
    result = readers(MinInterval(), number=7, config=kernel("v6_12", rstat_lock_drop=drop))
    flushes, unwanted = count(result, "rstat/flushes"), count(result, "rstat/not_wanted_any_more")
    assert (flushes, unwanted) == (1, 6)
    assert lock(result).acquisitions == flushes + unwanted + count(result, "rstat/yields")
    assert lock(result).contended >= 6


def test_min_interval_skips_and_flushes_all_where_versions_do() -> None:
    """6.1 flushes the whole tree, and not while somebody else does."""
    assert (kernel("v6_1").flush_scope, kernel("v6_1").concurrent_flush) == ("tree", "skip")
    result = readers(MinInterval(), number=7, cgroup=5, config=kernel("v6_1"))
    assert result.histograms["flush_ns/level0"].count == count(result, "rstat/flushes") == 1
    assert count(result, "rstat/skipped") == 6
    assert lock(result).contended == 0


def test_a_root_flush_at_an_interval_counts_for_the_ratelimit() -> None:
    def stage(k: KernelBuilder, stats: VmStats) -> None:
        with k.thread("other") as thread:
            stats.flush_at(k, "prepare_scan_control", 0)
        k.spawn(thread, 8, start_ns=6_000 * MS)

    for start_ns, flushes in ((3_000 * MS, 1), (1_000 * MS, 2)):
        result = readers(MinInterval(), start_ns=start_ns, extra=stage, config=kernel("v7_3"))
        assert count(result, "rstat/flushes") == flushes


def test_min_interval_has_the_threshold_too() -> None:
    rare = TreeConfig(1, 0, updates_per_s=64 * 16 / 0.5)  # the threshold is reached after 0.5 s
    result = readers(MinInterval(interval_ns=MS), rounds=30, pause_ns=100 * MS, tree=rare)
    assert count(result, "rstat/flushes") == pytest.approx(3.1 / 0.55, abs=1)


# ---- sites and parameters --------------------------------------------------------------------------------------------


def test_a_strategy_decides_for_its_sites_only() -> None:
    for site in SITES:
        assert kernel("v6_8").flush_sites[site] == "sync"
        mine = readers(Never(sites=[site]), site=site, config=kernel("v6_8"))
        assert count(mine, "rstat/flushes") == 0
        others = readers(Never(sites=[s for s in SITES if s != site]), site=site, config=kernel("v6_8"))
        assert count(others, "rstat/flushes") == 1


def test_a_forced_site_has_no_threshold() -> None:
    idle = replace(TREE, updates_per_s=1.0)
    config = kernel("v6_8", flush_sites={"zswap_shrinker_count": "forced"})
    assert count(readers(Never(sites=[]), tree=idle, config=config), "rstat/flushes") == 1
    assert count(readers(Never(sites=[]), tree=idle, config=kernel("v6_8")), "rstat/flushes") == 0


@pytest.mark.parametrize("strategy", zexp_flush_strategies())
def test_the_default_site_is_zswaps(strategy: type[FlushStrategy]) -> None:
    assert strategy().sites == ["zswap_shrinker_count"]
    assert strategy().sites is not strategy().sites


@pytest.mark.parametrize("name", EVERY)
def test_every_kernel_has_the_same_sites(name: str) -> None:
    assert sorted(kernel(name).flush_sites) == SITES


def test_unknown_sites() -> None:
    with pytest.raises(ConfigError) as error:
        readers(Sync(sites=["memory_stat", "zswap_shrinker"]))
    allowed = "memory_stat, prepare_scan_control, zswap_shrinker_count"
    assert str(error.value) == (
        f"policy.flush.sites=zswap_shrinker: did you mean zswap_shrinker_count? allowed: {allowed}"
    )


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (WaitIfOngoing(poll_ns=0), "poll_ns must be 1 or more, and patience_ns at least poll_ns"),
        (WaitIfOngoing(poll_ns=-1), "poll_ns must be 1 or more, and patience_ns at least poll_ns"),
        (WaitIfOngoing(poll_ns=50, patience_ns=49), "poll_ns must be 1 or more, and patience_ns at least poll_ns"),
        (MinInterval(interval_ns=0), "interval_ns must be 1 or more"),
        (MinInterval(interval_ns=-5), "interval_ns must be 1 or more"),
    ],
)
def test_parameters_are_checked(strategy: FlushStrategy, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        strategy.validate()


def test_defaults_are_valid() -> None:
    names = []
    for strategy in zexp_flush_strategies():
        strategy().validate()
        names.append(strategy().name)
    assert names == ["sync", "ratelimited", "skip_if_ongoing", "wait_if_ongoing", "min_interval", "never"]


# ---- everywhere ------------------------------------------------------------------------------------------------------


def read(workload: StatReaders, name: str, strategy: FlushStrategy, seed: int = 0) -> RunResult:
    k = KernelBuilder(machine(), kernel(name))
    workload.stage(k, Policies(POLICIES["eager"](), strategy))
    return engine.run(k.finish(), machine(), seed=seed)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("strategy", zexp_flush_strategies())
def test_all_strategies_on_all_kernels(name: str, strategy: type[FlushStrategy]) -> None:
    workload = StatReaders(tree=SMALL, readers=5, rounds=4, period_ns=1_100 * MS)
    result = read(workload, name, strategy(sites=["memory_stat"]))
    assert result.histograms["memory_stat_read_ns"].count == 5 * 4 * SMALL.cgroups
    assert count(result, "rstat/flushes") >= 2, "the periodic flusher at least"
    assert lock(result).acquisitions == sum(
        count(result, f"rstat/{what}") for what in ("flushes", "yields", "not_wanted_any_more")
    )
    if strategy in (RateLimited, Never):
        assert count(result, "rstat/flushes") == result.sim_ns // (2_000 * MS)
    again = read(workload, name, strategy(sites=["memory_stat"]))
    assert dict(again.metrics) == dict(result.metrics)


@pytest.mark.parametrize(("target", "number"), [("root", 1), ("slices", 3), ("leaves", 11), ("all", 20)])
def test_whose_statistics_are_read(target: str, number: int) -> None:
    tree = build_tree(SMALL)
    leaves = len(tree) - len(set(tree.parent[1:].tolist()))
    assert target != "leaves" or number == leaves
    result = read(StatReaders(tree=SMALL, readers=2, rounds=3, target=target), "v6_8", Never(sites=["memory_stat"]))
    assert result.histograms["memory_stat_read_ns"].count == 2 * 3 * number


@pytest.mark.parametrize("name", ["v6_12", "v7_3"])
def test_all_three_files_are_read(name: str) -> None:
    """cpu.stat and io.stat have no threshold: every read of them flushes."""
    files = ["memory.stat", "cpu.stat", "io.stat"]
    workload = StatReaders(tree=SMALL, readers=2, rounds=3, period_ns=100 * MS, files=files)
    result = read(workload, name, Never(sites=["memory_stat"]))
    reads = 2 * 3 * SMALL.cgroups
    for file in ("memory_stat", "cpu_stat", "io_stat"):
        assert result.histograms[f"{file}_read_ns"].count == count(result, f"flush/{file}/calls") == reads
        assert count(result, f"flush/{file}/flushes") == (0 if file == "memory_stat" else reads)
    locks = {one.name: one.acquisitions for one in result.locks}
    if name == "v7_3":
        assert locks == {
            "rstat_ss_lock(memory)": 0,
            "rstat_base_lock": reads * machine().cpus,
            "rstat_ss_lock(io)": reads * machine().cpus,
        }
    else:
        assert locks == {"cgroup_rstat_lock": 2 * reads * machine().cpus}


def test_one_file() -> None:
    result = read(StatReaders(tree=SMALL, readers=1, rounds=1, files=["cpu.stat"]), "v7_3", Sync())
    assert result.histograms["cpu_stat_read_ns"].count == SMALL.cgroups
    assert "memory_stat_read_ns" not in result.histograms


def test_rounds_are_due_by_the_clock() -> None:
    """Punctual readers need two periods for three rounds; those who cannot keep up are late, not stuck."""
    period_ns = 50 * MS
    calm = read(StatReaders(tree=SMALL, readers=1, rounds=3, period_ns=period_ns), "v6_12", Sync())
    assert count(calm, "readers/late_rounds") == 0
    assert calm.histograms["reader_late_ns"].count == 3
    assert calm.histograms["reader_late_ns"].total == 0
    assert 2 * period_ns < calm.sim_ns < 2.2 * period_ns
    hurried = StatReaders(tree=replace(SMALL, updates_per_s=1e9), readers=8, rounds=5, period_ns=MS, files=["cpu.stat"])
    busy = read(hurried, "v6_12", Sync())
    assert busy.histograms["cpu_stat_read_ns"].count == 8 * 5 * SMALL.cgroups
    assert count(busy, "readers/late_rounds") == 8 * 4
    assert busy.histograms["reader_late_ns"].total > 8 * (1 + 2 + 3 + 4) * MS
    assert lock(busy).wait_ns.total > 0.5 * 8 * busy.sim_ns, "most of the time they queue"


def test_readers_without_pauses_are_never_late() -> None:
    result = read(StatReaders(tree=SMALL, readers=2, rounds=5, period_ns=0), "v6_12", Sync())
    assert "reader_late_ns" not in result.histograms
    assert result.histograms["memory_stat_read_ns"].count == 2 * 5 * SMALL.cgroups


def test_readers_that_go_on_for_ever() -> None:
    k = KernelBuilder(machine(), kernel("v6_12"))
    trees = RstatTrees(k, build_tree(SMALL))
    stats = VmStats(k, trees.memory, Sync())
    reader = stat_reader_code(k, stats, trees, [0, 1], ["memory.stat"], 10 * MS, None, daemon=True)
    k.spawn(reader, 0)
    k.run_until(100 * MS)
    result = engine.run(k.finish(), machine())
    assert result.histograms["memory_stat_read_ns"].count == 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"files": []}, r"^workload\.files=\[\]: one or more of memory\.stat, cpu\.stat, io\.stat, each once$"),
        ({"files": ["io.stat", "io.stat"]}, r"^workload\.files=.*, each once$"),
        ({"files": ["cpu.stats"]}, r"^workload\.files=cpu\.stats: did you mean cpu\.stat"),
        ({"target": "leafs"}, r"^workload\.target=leafs: allowed: root, slices, leaves, all$"),
        ({"target": "slices", "tree": TreeConfig(1, 0)}, r"^workload\.target=slices: the tree of 1 cgroups has none$"),
        ({"readers": 0}, r"^workload\.readers=0: a whole number from 1 up$"),
        ({"rounds": 0}, r"^workload\.rounds=0: a whole number from 1 up$"),
        ({"period_ns": -1}, r"^workload\.period_ns=-1: a whole number from 0 up$"),
        ({"flusher_late_ns": -1}, r"^workload\.flusher_late_ns=-1: a whole number from 0 up$"),
        ({"readers": 16}, r"^workload\.readers \+ the periodic flusher=17: laptop has 16 CPUs"),
        ({"tree": TreeConfig(cgroups=0)}, r"^workload\.tree\.cgroups=0: a whole number from 1 to 100000$"),
    ],
)
def test_workloads_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(StatReaders(**changes), "v6_8", Sync())
