"""All runs of the page: their labels, and the overrides that make them."""

from __future__ import annotations

from charting import Point

BASE = "experiment=zswap_shrinker_flush"
SEEDS = (0, 1, 2, 3, 4)
STRATEGIES = ("sync", "ratelimited", "skip_if_ongoing", "wait_if_ongoing", "min_interval", "never")
ARMS = {
    "shrinker off": ["kernel.zswap_shrinker=off", "policy/flush=sync"],
    "sync": ["kernel.zswap_shrinker=on", "policy/flush=sync"],
    "ratelimited": ["kernel.zswap_shrinker=on", "policy/flush=ratelimited"],
}
ALLOCATED = 53.76 * 12
"""MiB/s on the whole machine, as fitted for 12 nodes."""
UPDATES = 3e6 / 192
"""Statistics updates a second and CPU."""
NODES = {1: (12, 8), 2: (6, 8), 4: (3, 8), 6: (2, 8), 12: (1, 8), 24: (1, 4)}
"""Of the same 96 cores: L3 domains a node, and cores of each."""
CGROUPS = (10, 30, 100, 300, 650, 1000, 2000, 5000, 10_000)
CPUS = (8, 16, 32, 64, 128, 192, 256, 384, 512)
KERNELS = ("v6_1", "v6_5", "v6_8", "v6_12", "v6_17", "v7_2", "v7_3", "cloudflare_mutex")
RECLAIM_SITES = {
    "v6_1": "prepare_scan_control",
    "v6_5": "prepare_scan_control",
    "v6_8": "prepare_scan_control,zswap_shrinker_count",
}
"""Where kernels flush at once while they reclaim, for which a strategy decides; others: for zswap's count."""
LATE = ["workload.flusher_late_ns=20000000000"]
SWINGS = [
    "workload.ratio_swing=0.6",
    "workload.swing_period_s=2",
    "workload.hot_pct=90",
    "workload.hot_per_s=0.02",
]
"""Every cgroup's compressibility doubles and halves within two seconds, and most of what is written back is missed."""
SCENARIOS = {
    "as published": [],
    "fast changes": SWINGS,
    "flusher 20 s late": LATE,
    "late, fast, MGLRU": [*LATE, *SWINGS, "kernel.lru_gen=true"],
}
STALLS = {
    "all": [],
    "none of zswap": ["workload.swapin_ns=0"],
    "none of the disk": ["workload.disk_swapin_ns=0"],
    "neither": ["workload.swapin_ns=0", "workload.disk_swapin_ns=0"],
}
"""How long tasks wait for swapped-out pages changes nothing but the pressure, so these runs take it apart."""
ASSUMED = {
    "as it is": [],
    "not bound to nodes": ["workload.bound=false"],
    "rescheduled after 0.5 ms": ["kernel.resched_ns=500000"],
    "rescheduled after 3 ms": ["kernel.resched_ns=3000000"],
    "2 CPUs a leaf": ["workload.tree.cpus_per_leaf=2"],
    "4 CPUs a leaf": ["workload.tree.cpus_per_leaf=4"],
    "2 M updates/s": ["workload.tree.updates_per_s=2e6"],
    "4 M updates/s": ["workload.tree.updates_per_s=4e6"],
}


def machine_of_nodes(nodes: int) -> list[str]:
    """The 9684X cut into another number of nodes; the allocations of the whole machine stay."""
    l3, cores = NODES[nodes]
    return [
        f"machine.topology.nodes_per_socket={nodes}",
        f"machine.topology.l3_per_node={l3}",
        f"machine.topology.cores_per_l3={cores}",
        f"workload.allocated_mib_per_s={ALLOCATED / nodes:.2f}",
    ]


def machine_of_cpus(cpus: int) -> list[str]:
    """Nodes of 16 CPUs like the 9684X's, with their share of memory, allocations and updates."""
    nodes = max(cpus // 16, 1)
    return [
        f"machine.topology.nodes_per_socket={nodes}",
        f"machine.topology.cores_per_l3={min(cpus // 2, 8)}",
        f"machine.memory_gib={2 * cpus}",
        f"workload.tree.updates_per_s={UPDATES * cpus:.0f}",
        f"workload.allocated_mib_per_s={ALLOCATED / 192 * cpus / nodes:.2f}",
    ]


def tree_of(cgroups: int) -> list[str]:
    """A tree of another size, with the same traffic."""
    return [f"workload.tree.cgroups={cgroups}", f"workload.tree.slices={min(17, cgroups // 3)}"]


def shrinker_of(kernel: str) -> str:
    """On, where there is one."""
    return f"kernel.zswap_shrinker={'none' if kernel in ('v6_1', 'v6_5') else 'on'}"


def points() -> list[Point]:
    """Every run of the page."""
    arms: list[Point] = [
        ({"set": "arms", "arm": arm, "seed": seed}, [BASE, *overrides, f"seed={seed}"])
        for arm, overrides in ARMS.items()
        for seed in SEEDS
    ]
    scaling: list[Point] = [
        (
            {"set": "scaling", "axis": axis, "value": value, "strategy": strategy},
            [BASE, *overrides, f"policy/flush={strategy}", "workload.duration_s=30"],
        )
        for axis, value, overrides in (
            *(("nodes", n, machine_of_nodes(n)) for n in NODES),
            *(("cgroups", n, tree_of(n)) for n in CGROUPS),
            *(("CPUs", n, machine_of_cpus(n)) for n in CPUS),
        )
        for strategy in STRATEGIES
    ]
    kernels: list[Point] = [
        (
            {"set": "kernels", "kernel": kernel, "lru": lru, "seed": seed},
            [
                BASE,
                f"kernel={kernel}",
                f"kernel.lru_gen={'true' if lru == 'MGLRU' else 'false'}",
                "policy.flush.sites=[]",  # every site as this kernel has it
                shrinker_of(kernel),
                f"seed={seed}",
            ],
        )
        for kernel in KERNELS
        for lru in ("classic", "MGLRU")
        for seed in SEEDS[:3]
    ]
    kernel_strategies: list[Point] = [
        (
            {"set": "kernel strategies", "kernel": kernel, "strategy": strategy, "seed": seed},
            [
                BASE,
                f"kernel={kernel}",
                "kernel.lru_gen=false",
                f"policy/flush={strategy}",
                f"policy.flush.sites=[{RECLAIM_SITES.get(kernel, 'zswap_shrinker_count')}]",
                shrinker_of(kernel),
                f"seed={seed}",
            ],
        )
        for kernel in KERNELS
        for strategy in STRATEGIES
        for seed in SEEDS[:3]
    ]
    strategies: list[Point] = [
        (
            {"set": "scenarios", "scenario": scenario, "strategy": strategy, "seed": seed},
            [BASE, *overrides, f"policy/flush={strategy}", f"seed={seed}"],
        )
        for scenario, overrides in SCENARIOS.items()
        for strategy in STRATEGIES
        for seed in SEEDS
    ]
    pressure: list[Point] = [
        (
            {"set": "pressure", "arm": arm, "stalls": stalls, "seed": seed},
            [BASE, *ARMS[arm], *overrides, f"seed={seed}"],
        )
        for arm in ("shrinker off", "ratelimited")
        for stalls, overrides in STALLS.items()
        for seed in SEEDS
    ]
    assumed: list[Point] = [
        ({"set": "assumed", "change": change, "seed": seed}, [BASE, *overrides, f"seed={seed}"])
        for change, overrides in ASSUMED.items()
        for seed in SEEDS[:3]
    ]
    return [*arms, *scaling, *kernels, *kernel_strategies, *strategies, *pressure, *assumed]
