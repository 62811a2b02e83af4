"""``KernelConfig``: what it refuses, and what the shipped kernels are."""

from __future__ import annotations

import math
from typing import Any

import pytest

from zexp.errors import ConfigError
from zexp.kernel import Cost, KernelConfig

from .simulate import CONF, KERNELS, kernel


def test_every_shipped_kernel_is_tested() -> None:
    assert sorted(p.stem for p in (CONF / "kernel").glob("v*.yaml")) == sorted(KERNELS)


@pytest.mark.parametrize("name", KERNELS)
def test_shipped_kernels_are_sound(name: str) -> None:
    config = kernel(name)
    assert config.name == name
    assert config.description
    assert config.sources
    assert config.costs
    free = {"free_swap_and_cache_nr", "zap_pte_range", "__cgroup_rstat_lock"}
    assert set(config.symbols) <= set(config.costs) | free, "renamed but unknown"


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("zpools", 0, "1 to 4096"),
        ("zpools", -1, "1 to 4096"),
        ("zpools", 4097, "1 to 4096"),
        ("swap_slot_cache", -1, "0 to 4096"),
        ("swap_pte_batch", 0, "1 to 512"),
        ("swap_pte_batch", 513, "1 to 512"),
        ("cluster_slots", 0, "1 to 1048576"),
        ("zsmalloc_chain", 0, "1 to"),
        ("max_pool_percent", 0, "1 to 100"),
        ("max_pool_percent", 101, "1 to 100"),
        ("accept_threshold_percent", 0, "1 to 100"),
        ("cycles_per_instruction", 0.0, "0.01 to 100"),
        ("cycles_per_instruction", math.nan, "0.01 to 100"),
        ("zswap_index", "btree", "rbtree, xarray"),
        ("zswap_tree", "64mib", "device, 64MiB"),
        ("invalidate_under", "", "si_lock, none, cluster_lock"),
        ("pool_ref", "refcount", "kref, percpu"),
        ("swap_cache", "tree", "xarray, table"),
        ("zsmalloc_lock", "zspage", "pool, migrate_lock, class"),
        ("list_lru_lock", "global", "node, memcg"),
        ("rstat_trees", "two", "one, per_subsystem"),
    ],
)
def test_a_field_out_of_range(field: str, value: Any, allowed: str) -> None:
    config = KernelConfig()
    config.validate()
    setattr(config, field, value)
    with pytest.raises(ConfigError, match=f"^kernel.{field}={value}: .*{allowed}"):
        config.validate()


def test_costs_and_the_compressor_are_not_negative() -> None:
    config = KernelConfig(costs={"zs_free": Cost(instructions=-1)})
    with pytest.raises(ConfigError, match=r"^kernel.costs.zs_free"):
        config.validate()
    config = KernelConfig(costs={"zs_free": Cost(stall_cycles=-1)})
    with pytest.raises(ConfigError, match=r"^kernel.costs.zs_free"):
        config.validate()
    config = KernelConfig()
    config.compressor.compress_cycles = -1
    with pytest.raises(ConfigError, match=r"^kernel.compressor.compress_cycles=-1"):
        config.validate()
