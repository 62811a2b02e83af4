"""What the versions do differently, seen from outside: locks taken, lines moved, names in the profile."""

from __future__ import annotations

import pytest

from zexp.kernel import KernelBuilder, Zswap
from zexp.workload.munmap import Munmap
from zexp.workload.swap import MeminfoReader, Store, SwapIn

from .simulate import KERNELS, POLICIES, STUDIED, Counting, kernel, machine, simulate

PAGES = 1000
SIZE = str(4096 * PAGES)


def clusters(first: int, pages: int, size: int = 512) -> int:
    """Neighbouring runs of slots cut at cluster boundaries."""
    return (first + pages - 1) // size - first // size + 1


@pytest.mark.parametrize(("name", "zpools"), [("v6_1", 1), ("v6_8", 32), ("v6_12", 1), ("v7_3", 1)])
def test_number_of_zpools(name: str, zpools: int) -> None:
    run = simulate(Munmap(total_size=SIZE), config=kernel(name))
    assert len(run.zswap.zsmalloc) == zpools
    assert len(run.cells("zs_pool->pages_allocated")) == zpools


@pytest.mark.parametrize("zpools", [1, 3, 32, 100])
def test_the_number_of_zpools_is_a_parameter(zpools: int) -> None:
    run = simulate(Munmap(total_size=SIZE), config=kernel("v6_8", zpools=zpools))
    assert len(run.cells("zs_pool->pages_allocated")) == zpools
    assert run.transfers("zs_pool->pages_allocated") == zpools, "one CPU fetches each line once"


@pytest.mark.parametrize("name", ["v6_1", "v6_8"])
@pytest.mark.parametrize("processes", [1, 3])
def test_slot_cache_frees_in_bursts_of_64_under_si_lock(name: str, processes: int) -> None:
    run = simulate(Munmap(total_size=SIZE, processes=processes), config=kernel(name))
    shares = [PAGES // processes + (i < PAGES % processes) for i in range(processes)]
    bursts = sum(share // 64 for share in shares) + processes  # and what is left at the end of each process
    assert run.lock("swap_info_struct->lock").acquisitions == bursts
    # the tree lock is taken inside, once a page, and the cluster's twice: to drop the reference and to free
    assert run.lock("zswap_tree->lock").acquisitions == PAGES
    assert run.lock("swap_cluster_info lock").acquisitions == 2 * PAGES


def test_the_slot_cache_size_is_a_parameter() -> None:
    run = simulate(Munmap(total_size=SIZE), config=kernel("v6_8", swap_slot_cache=10))
    assert run.lock("swap_info_struct->lock").acquisitions == PAGES // 10 + 1


@pytest.mark.parametrize("processes", [1, 3])
def test_6_12_frees_cluster_by_cluster(processes: int) -> None:
    run = simulate(Munmap(total_size=SIZE, processes=processes), config=kernel("v6_12"))
    batches, first = 0, 0
    for i in range(processes):
        pages = PAGES // processes + (i < PAGES % processes)
        batches += clusters(first, pages)
        first += pages
    assert run.lock("swap_info_struct->lock").acquisitions == batches
    assert run.lock("swap_cluster_info lock").acquisitions == 2 * batches
    assert run.lock("swap cache xa_lock").acquisitions == batches
    assert run.lock("zswap xa_lock").acquisitions == PAGES


def test_7_3_takes_no_si_lock_and_no_swap_cache_lock() -> None:
    for workload in (Munmap(total_size=SIZE), SwapIn(size=SIZE)):
        run = simulate(workload, config=kernel("v7_3"))
        assert run.lock("swap_info_struct->lock").acquisitions == 0
        assert run.lock("swap cache xa_lock").acquisitions == 0
        assert "clear_shadow_from_swap_cache" not in run.symbols()
    assert simulate(Munmap(total_size=SIZE), config=kernel("v7_3")).lock(
        "swap_cluster_info lock"
    ).acquisitions == clusters(0, PAGES)


def test_one_tree_a_device_or_one_every_64_mib() -> None:
    for name, length in (("v6_8", 1), ("v6_12", 2), ("v7_3", 2)):
        run = simulate(Munmap(total_size="80MiB"), config=kernel(name))
        assert len(run.zswap.tree_locks) == length, name


def test_list_lru_locks_are_per_memcg_in_7_3() -> None:
    on = machine(nodes=2)
    for name, length in (("v6_8", 2), ("v6_12", 2), ("v7_3", 6)):
        run = simulate(Munmap(total_size=SIZE, processes=3), config=kernel(name), on=on)
        assert len(run.zswap.mm.list_lru.locks) == length, name
        assert run.lock("list_lru lock").acquisitions == PAGES


@pytest.mark.parametrize("name", KERNELS)
def test_pages_allocated_changes_per_zspage(name: str) -> None:
    """One locked add a zspage, none a page: counted by the lines that two CPUs take from each other."""
    run = simulate(Munmap(total_size=SIZE, processes=2), config=kernel(name, zpools=1))
    zspages = run.metric("zspages_freed")
    layout_pages = run.program.cells[run.zswap.zsmalloc.pages_allocated.base]
    assert run.metric("entries_freed") == PAGES
    assert run.metric("pages_freed") == layout_pages
    assert 0 < zspages < PAGES
    assert run.transfers("zs_pool->pages_allocated") <= zspages


def test_migrate_lock_is_on_the_way_in_6_12_only() -> None:
    for name in STUDIED:
        run = simulate(Munmap(total_size=SIZE), config=kernel(name))
        names = [v.name for v in run.program.variables]
        assert ("zs_pool->migrate_lock" in names) == (name == "v6_12"), name
        if name == "v6_12":
            assert run.cells("zs_pool->migrate_lock").sum() == 0, "every reader has left"


def test_the_pool_reference_is_one_atomic_up_to_6_8() -> None:
    for name in STUDIED:
        run = simulate(Munmap(total_size=SIZE), config=kernel(name))
        assert (run.cell("zswap_pool->kref") == -PAGES) == (name in ("v6_1", "v6_8")), name


def test_symbols_are_renamed_by_version() -> None:
    expected = {
        "v6_1": {
            "zswap_frontswap_invalidate_page",
            "zswap_free_entry",
            "free_swap_and_cache",
            "swapcache_free_entries",
        },
        "v6_8": {"zswap_invalidate", "zswap_free_entry", "zswap_rb_search", "rb_erase", "zpool_free", "zs_zpool_free"},
        "v6_12": {"zswap_invalidate", "zswap_entry_free", "free_swap_and_cache_nr", "xa_erase", "zpool_free"},
        "v7_3": {"do_zap_pte_range", "zswap_entry_free", "swap_put_entries_direct", "__swap_cluster_free_entries"},
    }
    absent = {
        "v6_1": {"zswap_invalidate", "xa_erase", "free_swap_and_cache_nr"},
        "v6_8": {"zswap_frontswap_invalidate_page", "xa_erase", "zswap_entry_free"},
        "v6_12": {"zswap_free_entry", "zswap_rb_search", "free_swap_slot"},
        "v7_3": {"zpool_free", "zs_zpool_free", "zap_pte_range", "free_swap_and_cache_nr", "zswap_free_entry"},
    }
    for name in STUDIED:
        symbols = simulate(Munmap(total_size=SIZE), config=kernel(name)).symbols()
        assert expected[name] <= symbols, name
        assert not absent[name] & symbols, name


def test_store_and_meminfo_symbols_are_renamed_too() -> None:
    for name, store, check in (
        ("v6_1", "zswap_frontswap_store", "zswap_is_full"),
        ("v6_8", "zswap_store", "zswap_is_full"),
        ("v6_12", "zswap_store", "zswap_check_limits"),
    ):
        symbols = simulate(Store(size="1MiB"), config=kernel(name)).symbols("store")
        assert {store, check} <= symbols, name
    sums = {
        "v6_1": {"zpool_get_total_size", "zs_zpool_total_size"},
        "v6_12": {"zpool_get_total_pages", "zs_zpool_total_pages"},
        "v7_3": {"zs_get_total_pages"},
    }
    every = set().union(*sums.values())
    for name, expected in sums.items():
        run = simulate(MeminfoReader(reads=3), POLICIES["lazy"](), kernel(name))
        assert run.symbols() & every == expected, name


def test_loads_drop_the_entry_at_once_where_they_are_exclusive() -> None:
    """Elsewhere the entry goes when the slot is freed, out of the slot cache: later, but just as surely."""
    for name in STUDIED:
        run = simulate(SwapIn(size="1MiB"), config=kernel(name))
        invalidated = any("zswap_load" in s.stack and "zs_free" in s.stack for s in run.result.profile.stacks)
        assert invalidated == kernel(name).exclusive_loads, name


def test_a_function_without_a_cost_is_named() -> None:
    from zexp.errors import ConfigError

    def extra(k: KernelBuilder, zswap: Zswap) -> None:
        with k.thread("odd"):
            k.call("zs_fre")

    with pytest.raises(ConfigError, match=r"^kernel\.costs\.zs_fre=missing: .*did you mean zs_free"):
        simulate(Munmap(total_size=SIZE), Counting(), extra=extra)
