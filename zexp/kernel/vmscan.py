"""Page reclaim (mm/vmscan.c): a kswapd a node, direct reclaim, the classic LRU lists or MGLRU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zexp.kernel.builder import KernelBuilder
from zexp.kernel.lruvec import ONE
from zexp.kernel.page_alloc import MAX_RECLAIM_RETRIES
from zexp.program import IntLike, Local, Value

if TYPE_CHECKING:
    from zexp.kernel.lruvec import Lruvecs
    from zexp.kernel.memcontrol import VmStats
    from zexp.kernel.page_alloc import Zones
    from zexp.kernel.psi import Psi
    from zexp.kernel.shrinker import Shrinkers
    from zexp.kernel.zswap_shrinker import ZswapShrinker
    from zexp.program import Body

DEF_PRIORITY = 12
SWAP_CLUSTER_MAX = 32
MIN_LRU_BATCH = 64
SITE = "prepare_scan_control"


class VmScan:
    """Reclaim on all nodes."""

    def __init__(
        self,
        k: KernelBuilder,
        zones: Zones,
        lruvecs: Lruvecs,
        shrinkers: Shrinkers,
        zswap: ZswapShrinker,
        stats: VmStats,
        psi: Psi,
        reclaimed_pct: float,
    ) -> None:
        """``reclaimed_pct``: of the pages scanned, those that nobody has touched lately and so are reclaimed."""
        self.zones, self.lruvecs, self.shrinkers, self.zswap = zones, lruvecs, shrinkers, zswap
        self.stats, self.psi = stats, psi
        self.reclaimed = round(reclaimed_pct / 100 * ONE)
        self.memcgs = len(lruvecs.tree)
        nodes = zones.nodes
        self.kswapd_wait = k.wait_queue("pgdat->kswapd_wait")
        self.wanted = k.bookkeeping("kswapd is to run", nodes)
        self.active = k.bookkeeping("kswapd is running", nodes)
        self.failures = k.bookkeeping("pgdat->kswapd_failures", nodes)
        self.cursor = k.bookkeeping("where direct reclaim goes on", nodes)

    # ---- kswapd ----------------------------------------------------------------------------------------------------

    def hopeless(self, k: KernelBuilder, node: IntLike) -> Value:
        """1 if kswapd has failed so often that it is not woken any more."""
        return k.load(self.failures[node]) >= MAX_RECLAIM_RETRIES

    def wake_all_kswapds(self, k: KernelBuilder, home: IntLike) -> None:
        """Wake every kswapd of the zonelist that sleeps, unless its node is balanced or hopeless."""
        woken = k.local(0)
        with self.zones.for_each_zone(k) as position:
            node = self.zones.zone(k, home, position)
            asleep = (k.load(self.active[node]) == 0) & (k.load(self.wanted[node]) == 0)
            with k.if_(asleep & (self.zones.balanced(k, node) == 0) & (self.hopeless(k, node) == 0)):
                k.store(self.wanted[node], 1)
                woken.set(woken + 1)
        with k.if_(woken > 0):
            k.count("kswapd/woken", woken)
            k.count("kswapd/wakeups")
            k.wake(self.kswapd_wait)

    def kswapd(self, k: KernelBuilder) -> Body:
        """The daemon of the node given as ``node``."""
        with k.thread("kswapd", daemon=True) as thread, k.func("kswapd"), k.for_range(1 << 62):
            node = thread.arg("node")
            k.wait_event(self.kswapd_wait, lambda: k.load(self.wanted[node]))
            k.store(self.active[node], 1)
            k.store(self.wanted[node], 0)
            began = k.now_ns()
            # it does not sleep before its node is balanced, or it has failed too often
            with k.while_(lambda: (self.zones.balanced(k, node) == 0) & (self.hopeless(k, node) == 0)):
                self.balance_pgdat(k, node)
            k.observe("kswapd_awake_ns", k.now_ns() - began)
            k.store(self.active[node], 0)
        return thread

    def balance_pgdat(self, k: KernelBuilder, node: Value) -> None:
        """Reclaim, harder and harder, until the high watermark is free; all of it is a memory stall."""
        with k.fn("balance_pgdat"):
            self.psi.memstall_enter(k)
            priority, total = k.local(DEF_PRIORITY), k.local(0)
            goal = k.maximum(k.load(self.zones.high[node]), SWAP_CLUSTER_MAX)
            if k.config.lru_gen:
                priority.set(self._initial_priority(k, node, goal))
            with k.while_(lambda: (priority >= 1) & (self.zones.balanced(k, node) == 0)):
                reclaimed, scanned = self.shrink_node(k, node, priority)
                total.set(total + reclaimed)
                priority.set(priority - ((scanned < goal) | (reclaimed == 0)))
            with k.if_(total > 0):
                k.store(self.failures[node], 0)
            with k.else_(), k.if_(priority < 1):
                k.store(self.failures[node], k.load(self.failures[node]) + 1)
                k.count("kswapd/failures")
            self.psi.memstall_leave(k)

    # ---- direct reclaim --------------------------------------------------------------------------------------------

    def try_to_free_pages(self, k: KernelBuilder, home: IntLike) -> Value:
        """An allocating task reclaims itself, 32 pages from all nodes of its zonelist; gives what it got.

        shrink_zones() asks every node, also once there are enough: each then gives what its first memcg yields.
        """
        got = k.local(0)
        with k.fn("try_to_free_pages"):
            self.psi.memstall_enter(k)
            began = k.now_ns()
            priority = k.local(DEF_PRIORITY)
            with k.while_(lambda: (priority >= 0) & (got < SWAP_CLUSTER_MAX)):
                with self.zones.for_each_zone(k) as position:
                    node = self.zones.zone(k, home, position)
                    reclaimed, _ = self.shrink_node(k, node, priority, target=SWAP_CLUSTER_MAX - got)
                    got.set(got + reclaimed)
                    with k.if_(reclaimed > 0):
                        k.store(self.failures[node], 0)
                priority.set(priority - 1)
            k.count("direct_reclaim/calls")
            k.observe("direct_reclaim_ns", k.now_ns() - began)
            self.psi.memstall_leave(k)
        return got

    # ---- one node --------------------------------------------------------------------------------------------------

    def shrink_node(
        self, k: KernelBuilder, node: IntLike, priority: Local, target: IntLike | None = None
    ) -> tuple[Value, Value]:
        """Go over the memcgs of a node: all of them (kswapd), or until ``target`` pages are reclaimed.

        Gives the pages reclaimed and scanned.
        """
        reclaimed, scanned = k.local(0), k.local(0)
        with k.fn("shrink_node"):
            k.count("shrink_node/passes")
            if k.config.lru_gen:  # prepare_scan_control() returns before its flush
                with k.func("lru_gen_shrink_node"), k.func("shrink_many"):
                    self._shrink_many(k, node, priority, target, reclaimed, scanned)
            else:
                with k.func(SITE):
                    self.stats.flush_at(k, SITE, 0)
                with k.func("shrink_node_memcgs"):
                    self._shrink_node_memcgs(k, node, priority, target, reclaimed, scanned)
        return reclaimed, scanned

    def _shrink_node_memcgs(
        self, k: KernelBuilder, node: IntLike, priority: Local, target: IntLike | None, reclaimed: Local, scanned: Local
    ) -> None:
        if target is None:
            with k.for_range(self.memcgs) as memcg:
                self._shrink_one(k, memcg, node, priority, reclaimed, scanned)
            return
        memcg = k.local(k.load(self.cursor[node]))  # a partial walk goes on where the last one stopped
        with k.for_range(self.memcgs):
            self._shrink_one(k, memcg, node, priority, reclaimed, scanned)
            memcg.set((memcg + 1) % self.memcgs)
            with k.if_(reclaimed >= target):
                k.break_()
        k.store(self.cursor[node], memcg)

    def _shrink_many(
        self, k: KernelBuilder, node: IntLike, priority: Local, target: IntLike | None, reclaimed: Local, scanned: Local
    ) -> None:
        """MGLRU: memcgs of the oldest generation from a random bin on, until enough is free."""
        memcg = k.local(k.rand_int(self.memcgs))
        enough = k.load(self.zones.high[node]) + MIN_LRU_BATCH
        with k.for_range(self.memcgs):
            self._shrink_one(k, memcg, node, priority, reclaimed, scanned)
            memcg.set((memcg + 1) % self.memcgs)
            done = k.load(self.zones.free[node]) >= enough if target is None else reclaimed >= target
            with k.if_(done):
                k.break_()

    def _initial_priority(self, k: KernelBuilder, node: Value, goal: Value) -> Value:
        """MGLRU begins where one walk would find the goal (set_initial_priority), between 6 and 12."""
        pages = k.local(0)
        with k.for_range(self.memcgs) as memcg:
            lruvec = self.lruvecs.number(memcg, node)
            pages.set(pages + k.load(self.lruvecs.anon[lruvec]) + k.load(self.lruvecs.file[lruvec]))
        priority = k.bits(pages) - 1 - k.bits(goal - 1)
        return k.minimum(k.maximum(priority, DEF_PRIORITY // 2), DEF_PRIORITY)

    def _shrink_one(
        self, k: KernelBuilder, memcg: Value, node: IntLike, priority: Local, reclaimed: Local, scanned: Local
    ) -> None:
        with k.fn("shrink_one"):
            self.lruvecs.catch_up(k, memcg, node)
            self._shrink_lruvec(k, memcg, node, priority, reclaimed, scanned)
            self.shrinkers.shrink_slab(k, memcg, node, priority)

    def _shrink_lruvec(
        self, k: KernelBuilder, memcg: Value, node: IntLike, priority: Local, reclaimed: Local, scanned: Local
    ) -> None:
        """Scan a part of the lists, 2 to the -``priority`` of them (get_scan_count), and reclaim what is cold."""
        lists, lruvec = self.lruvecs, self.lruvecs.number(memcg, node)
        anon, file = k.load(lists.anon[lruvec]), k.load(lists.file[lruvec])
        scan_anon = (anon >> priority) * k.config.swappiness // 200
        scan_file = (file >> priority) * (200 - k.config.swappiness) // 200
        scan = scan_anon + scan_file
        with k.if_(scan > 0), k.func("shrink_lruvec"), k.func("shrink_folio_list"):
            old_anon = k.minimum(lists.part(k, scan_anon, self.reclaimed), anon)
            old_file = k.minimum(lists.part(k, scan_file, self.reclaimed), file)
            # off the lists before time passes: another thread that reclaims here must not find them again
            lists.add(k, lists.anon, lruvec, 0 - old_anon)
            lists.add(k, lists.file, lruvec, 0 - old_file)
            got = old_anon + old_file
            k.store(self.zones.free[node], k.load(self.zones.free[node]) + got)
            k.work(scan * round(k.cycles("shrink_folio_list_page")) + old_file * round(k.cycles("__remove_mapping")))
            lists.refault(k, memcg, old_file)
            self.zswap.swap_out(k, memcg, node, old_anon)
            reclaimed.set(reclaimed + got)
            scanned.set(scanned + scan)
            k.count("pgscan", scan)
            k.count("pgsteal", got)
