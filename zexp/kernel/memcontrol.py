"""mm/memcontrol.c and mm/page_counter.c: charging, and when statistics are flushed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from zexp.errors import ConfigError, near
from zexp.kernel.builder import PAGE_BYTES, KernelBuilder
from zexp.program import Array, IntLike, Value

if TYPE_CHECKING:
    from zexp.kernel.policy import FlushStrategy
    from zexp.kernel.rstat import Rstat
    from zexp.program import Body

FLUSH_TIME_NS = 2_000_000_000
"""Period of the periodic flusher."""
MEMCG_CHARGE_BATCH = 64
NEVER = 1 << 62
"""An age in ns that nothing reaches."""


class MemControl:
    """A root and one cgroup a process below it, each with its counters on lines of their own."""

    def __init__(self, k: KernelBuilder, memcgs: int) -> None:
        self.memcgs = memcgs
        self.swap = k.array("memcg->swap", memcgs)
        self.root_swap = k.var("root_mem_cgroup->swap")
        self.memory = k.array("memcg->memory", memcgs)
        self.root_memory = k.var("root_mem_cgroup->memory")
        self.stocks = k.bookkeeping("obj_stock.nr_bytes", k.machine.cpus)
        """Bytes in each CPU's stock."""

    def mem_cgroup_uncharge_swap(self, k: KernelBuilder, memcg: IntLike, slots: IntLike) -> None:
        """Give back swap charge: two locked adds, the second on a line all of the machine shares."""
        with k.fn("__mem_cgroup_uncharge_swap"):
            k.call("lookup_swap_cgroup_id")
            k.call("swap_cgroup_record")
            with k.fn("page_counter_uncharge"):
                k.atomic_add(self.swap[memcg], -slots)
                k.atomic_add(self.root_swap, -slots)
            k.call("mem_cgroup_id_put_many")

    def mem_cgroup_charge_swap(self, k: KernelBuilder, memcg: IntLike) -> None:
        """Charge one swap slot."""
        with k.fn("__mem_cgroup_try_charge_swap"), k.fn("page_counter_try_charge"):
            k.atomic_add(self.swap[memcg], 1)
            k.atomic_add(self.root_swap, 1)

    def obj_cgroup_charge_zswap(self, k: KernelBuilder, memcg: IntLike, size_bytes: IntLike) -> None:
        """Charge a compressed object, from the CPU's stock if that holds enough."""
        with k.fn("obj_cgroup_charge_zswap"):
            left = k.load(self.stocks[k.cpu]) - size_bytes
            refilled = k.local(left)
            with k.if_(left < 0), k.fn("obj_cgroup_charge_pages"):
                k.atomic_add(self.memory[memcg], 1)
                k.atomic_add(self.root_memory, 1)
                refilled.set(left + PAGE_BYTES)
            k.store(self.stocks[k.cpu], refilled)

    def obj_cgroup_uncharge_zswap(self, k: KernelBuilder, memcg: IntLike, size_bytes: IntLike) -> None:
        """Give back a compressed object's charge: to the CPU's stock, whole pages of it to the counters."""
        with k.fn("obj_cgroup_uncharge_zswap"), k.fn("refill_obj_stock"):
            bytes_ = k.local(k.load(self.stocks[k.cpu]) + size_bytes)
            with k.if_(bytes_ > PAGE_BYTES):
                with k.fn("obj_cgroup_uncharge_pages"), k.fn("page_counter_uncharge"):
                    k.atomic_add(self.memory[memcg], -1)
                    k.atomic_add(self.root_memory, -1)
                bytes_.set(bytes_ - PAGE_BYTES)
            k.store(self.stocks[k.cpu], bytes_)


class VmStats:
    """The statistics of all cgroups: how stale they are, who flushes them and when.

    How many updates wait in a cgroup is their rate times the time since its last flush: thresholds are in the tens of
    thousands, where Poisson noise is under 1 %.
    """

    def __init__(self, k: KernelBuilder, rstat: Rstat, strategy: FlushStrategy) -> None:
        self.rstat, self.strategy = rstat, strategy
        rates = np.maximum(np.rint(rstat.tree.updates_per_s), 0).astype(np.int64)
        self.updates_per_s = k.bookkeeping("updates/s of subtree", len(rates), rates)
        with np.errstate(divide="ignore"):
            ages = MEMCG_CHARGE_BATCH * k.machine.cpus * 1e9 / rstat.tree.updates_per_s
        self.need_age = k.bookkeeping(
            "age at which a flush is needed, ns", len(ages), np.minimum(ages, NEVER).astype(np.int64)
        )
        self.flushed_ns = rstat.flushed_ns
        """By cgroup: when its statistics were brought up to date."""
        self.ongoing = k.var("stats_flush_ongoing")
        self.flush_last_time = k.var("flush_last_time")
        """When the last root flush began, ns."""
        unknown = [site for site in strategy.sites if site not in k.config.flush_sites]
        if unknown:
            raise ConfigError("policy.flush.sites", unknown[0], near(unknown[0], k.config.flush_sites))
        strategy.setup(k, self)

    def flush_at(self, k: KernelBuilder, site: str, memcg: IntLike) -> None:
        """What the call site ``site`` does before it reads the statistics of ``memcg``."""
        how = {
            "sync": self.mem_cgroup_flush_stats,
            "ratelimited": self.mem_cgroup_flush_stats_ratelimited,
            "forced": self.do_flush_stats,
        }
        with self.rstat.on_behalf_of(k, site):
            if site in self.strategy.sites:
                self.strategy.flush(k, self, memcg)
            else:
                how[k.config.flush_sites[site]](k, memcg)

    def statistic(self, k: KernelBuilder, name: str, current: Array) -> Array:
        """Declare a statistic: ``current[c]`` is kept by the caller, of the subtree of cgroup ``c``.

        Returns its values as flushed last, which is what the kernel reads. Before any flush is staged.
        """
        return self.rstat.statistic(k, name, current)

    def pending_updates(self, k: KernelBuilder, memcg: IntLike) -> Value:
        """Updates in a subtree since it was flushed last."""
        age = k.now_ns() - k.load(self.flushed_ns[memcg])
        return k.load(self.updates_per_s[memcg]) * (age // 1000) // 1_000_000

    def memcg_vmstats_needs_flush(self, k: KernelBuilder, memcg: IntLike) -> Value:
        """1 if more than 64 updates a CPU wait in the cgroup (before 6.8: in the whole tree)."""
        whose = memcg if k.config.flush_threshold == "memcg" else 0
        return k.now_ns() - k.load(self.flushed_ns[whose]) > k.load(self.need_age[whose])

    def mem_cgroup_flush_stats(self, k: KernelBuilder, memcg: IntLike) -> None:
        """Flush a cgroup's subtree if enough has happened in it."""
        with k.fn("mem_cgroup_flush_stats"), k.if_(self.memcg_vmstats_needs_flush(k, memcg)):
            self.do_flush_stats(k, memcg)

    def mem_cgroup_flush_stats_ratelimited(self, k: KernelBuilder, memcg: IntLike) -> None:
        """The same, but only if the periodic flusher is a full cycle late: no root flush for two periods."""
        with k.fn("mem_cgroup_flush_stats_ratelimited"):
            late = k.now_ns() - k.load(self.flush_last_time) > 2 * FLUSH_TIME_NS
            with k.if_(late):
                self.mem_cgroup_flush_stats(k, memcg)

    def flushed_with(self, k: KernelBuilder, memcg: IntLike) -> IntLike:
        """The cgroup whose subtree is flushed when ``memcg`` needs it: itself, or (before 6.8) the root."""
        return memcg if k.config.flush_scope == "subtree" else 0

    def do_flush_stats(
        self, k: KernelBuilder, memcg: IntLike, still_wanted: Callable[[], IntLike] | None = None
    ) -> None:
        """Flush without asking; where versions skip when another flush is under way, skip.

        ``still_wanted`` is asked once the lock has been taken.
        """
        whose = self.flushed_with(k, memcg)
        if k.config.concurrent_flush == "serialise":
            self._flush(k, whose, still_wanted)
            return
        with k.if_(k.compare_and_swap(self.ongoing, 0, 1)):
            self._flush(k, whose, still_wanted)
            k.store(self.ongoing, 0)
        with k.else_():
            k.count("rstat/skipped")

    def _flush(self, k: KernelBuilder, memcg: IntLike, still_wanted: Callable[[], IntLike] | None) -> None:
        def root_flush() -> None:
            if isinstance(memcg, Value):
                with k.if_(memcg == 0):
                    k.store(self.flush_last_time, k.now_ns())
            elif memcg == 0:
                k.store(self.flush_last_time, k.now_ns())

        def wanted() -> IntLike:
            assert still_wanted is not None
            answer = still_wanted()
            with k.if_(answer):
                root_flush()
            return answer

        if still_wanted is None:
            root_flush()
        self.rstat.cgroup_rstat_flush(k, memcg, wanted if still_wanted is not None else None)

    def flush_memcg_stats_dwork(self, k: KernelBuilder, late_ns: int) -> Body:
        """The periodic flusher, a deferrable worker: ``late_ns`` after it is due, it flushes the root."""
        with (
            k.thread("kworker/flush", daemon=True) as thread,
            k.func("flush_memcg_stats_dwork"),
            k.for_range(1 << 62),
        ):
            k.sleep_ns(FLUSH_TIME_NS + late_ns)
            with self.rstat.on_behalf_of(k, "periodic"):
                self.do_flush_stats(k, 0)
        return thread
