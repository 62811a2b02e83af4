"""The tree of cgroups: its shape, its traffic, and how much of it a CPU touches in a while."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zexp.errors import ConfigError
from zexp.kernel.cgroup import CgroupTree, TreeConfig, build_tree


@st.composite
def configs(draw: st.DrawFn) -> TreeConfig:
    """Trees that can be."""
    cgroups = draw(st.integers(1, 200))
    return TreeConfig(
        cgroups=cgroups,
        slices=draw(st.integers(1, cgroups - 1)) if cgroups > 1 else 0,
        fanout=draw(st.integers(0, 12)),
        updates_per_s=draw(st.floats(1e-3, 1e10)),
        skew=draw(st.floats(0, 10)),
        depth=draw(st.integers(2, 7)),
    )


def leaves(tree: CgroupTree) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which cgroups are nobody's parent."""
    leaf = np.ones(len(tree), bool)
    leaf[tree.parent[1:]] = False
    return leaf


def descendants(tree: CgroupTree, cgroup: int) -> list[int]:
    """A subtree, found by asking every cgroup for its ancestors."""
    return [other for other in range(len(tree)) if cgroup in tree.ancestors(other)]


@given(configs())
def test_cgroups_stand_in_pre_order(config: TreeConfig) -> None:
    tree = build_tree(config)
    assert tree.parent[0] == -1
    assert tree.level[0] == 0
    assert (tree.parent[1:] < np.arange(1, len(tree))).all(), "parents come first"
    for cgroup in range(1, len(tree)):
        parent = int(tree.parent[cgroup])
        assert tree.level[cgroup] == tree.level[parent] + 1
        # the one before it is its parent, or in the subtree of a sibling
        assert parent in tree.ancestors(cgroup - 1)
    assert tree.levels == max(len(tree.ancestors(cgroup)) for cgroup in range(len(tree)))


@given(configs(), st.integers(0, 20), st.integers(1, 64))
def test_cpus_used(config: TreeConfig, cpus_per_leaf: int, cpus: int) -> None:
    """A CPU is spared by a subtree if each of its leaves is elsewhere."""
    tree = build_tree(replace(config, cpus_per_leaf=cpus_per_leaf))
    used = tree.cpus_used(cpus)
    elsewhere = 1 - min(cpus_per_leaf or cpus, cpus) / cpus
    for cgroup in range(len(tree)):
        below = sum(bool(leaves(tree)[other]) for other in descendants(tree, cgroup))
        assert used[cgroup] == pytest.approx(cpus * (1 - elsewhere**below))


@given(configs())
def test_a_subtree_is_the_range_to_its_end(config: TreeConfig) -> None:
    tree = build_tree(config)
    for cgroup in range(0, len(tree), 1 + len(tree) // 20):
        assert descendants(tree, cgroup) == list(range(cgroup, int(tree.end[cgroup])))


@given(configs())
def test_counts_are_as_configured(config: TreeConfig) -> None:
    tree = build_tree(config)
    children = np.bincount(tree.parent[1:], minlength=len(tree)) if len(tree) > 1 else np.zeros(1, int)
    assert len(tree) == config.cgroups == len(tree.level) == len(tree.end) == len(tree.updates_per_s)
    assert (tree.level == 1).sum() == config.slices == children[0]
    assert tree.levels <= config.depth + 1
    assert (children[tree.level == config.depth] == 0).all()
    between = (tree.level > 1) & (tree.level < config.depth)
    for slice_ in np.flatnonzero(tree.level == 1):
        last = tree.ancestors(int(tree.end[slice_]) - 1)
        for inner in np.flatnonzero(
            between & (np.arange(len(tree)) >= slice_) & (np.arange(len(tree)) < tree.end[slice_])
        ):
            assert children[inner] == config.fanout or inner in last, "only the last may have fewer"
            assert children[inner] <= config.fanout
    sizes = [int(tree.end[s] - s) for s in np.flatnonzero(tree.level == 1)]
    assert all(first >= later for first, later in pairwise(sizes)), "the first slice is the largest"


@given(configs())
def test_all_traffic_is_in_the_leaves(config: TreeConfig) -> None:
    tree = build_tree(config)
    assert tree.updates_per_s[0] == pytest.approx(config.updates_per_s, rel=1e-9)
    own = np.where(leaves(tree), tree.updates_per_s, 0.0)
    assert (own >= 0).all()
    for cgroup in range(0, len(tree), 1 + len(tree) // 20):
        total = own[descendants(tree, cgroup)].sum()
        assert tree.updates_per_s[cgroup] == pytest.approx(total, rel=1e-9, abs=1e-12 * config.updates_per_s)


@given(configs())
def test_traffic_is_shared_out_by_zipfs_law(config: TreeConfig) -> None:
    tree = build_tree(config)
    own = np.sort(tree.updates_per_s[leaves(tree)])[::-1]
    weights = np.arange(1, len(own) + 1.0) ** -config.skew
    assert own == pytest.approx(
        config.updates_per_s * weights / weights.sum(), rel=1e-6, abs=1e-9 * config.updates_per_s
    )


def test_one_tree_is_one_tree() -> None:
    first, second = build_tree(TreeConfig()), build_tree(TreeConfig())
    for name in ("parent", "level", "end", "updates_per_s"):
        assert (getattr(first, name) == getattr(second, name)).all()
    assert len(first) == 650
    assert first.levels == 4


@pytest.mark.parametrize(
    ("depth", "cgroups", "by_level"),
    [(1, 18, [1, 17]), (2, 650, [1, 17, 632]), (3, 650, [1, 17, 164, 468]), (4, 650, [1, 17, 60, 150, 422])],
)
def test_depth(depth: int, cgroups: int, by_level: list[int]) -> None:
    tree = build_tree(TreeConfig(cgroups=cgroups, depth=depth))
    assert np.bincount(tree.level).tolist() == by_level


@pytest.mark.parametrize(
    ("changes", "key", "value", "allowed"),
    [
        ({"cgroups": 0}, "cgroups", 0, "a whole number from 1 to 100000"),
        ({"cgroups": -5}, "cgroups", -5, "a whole number from 1 to 100000"),
        ({"cgroups": 100_001}, "cgroups", 100_001, "a whole number from 1 to 100000"),
        ({"slices": -1}, "slices", -1, "a whole number from 0 to 100000"),
        ({"fanout": -1}, "fanout", -1, "a whole number from 0 to 100000"),
        ({"depth": 0}, "depth", 0, "a whole number from 1 to 32"),
        ({"depth": 33}, "depth", 33, "a whole number from 1 to 32"),
        ({"depth": 1}, "depth", 1, "at least 2 to hold 632 cgroups below the slices"),
        ({"cgroups": 10}, "slices", 17, "at most 9, the cgroups below the root"),
        ({"cgroups": 1, "slices": 1}, "slices", 1, "at most 0, the cgroups below the root"),
        ({"slices": 0}, "slices", 0, "at least 1 to hold 649 cgroups"),
        ({"updates_per_s": 0.0}, "updates_per_s", 0.0, "above 0, at most 1e10"),
        ({"updates_per_s": -1.0}, "updates_per_s", -1.0, "above 0, at most 1e10"),
        ({"updates_per_s": math.inf}, "updates_per_s", math.inf, "above 0, at most 1e10"),
        ({"updates_per_s": math.nan}, "updates_per_s", math.nan, "above 0, at most 1e10"),
        ({"skew": -0.5}, "skew", -0.5, "0 to 10"),
        ({"skew": 11.0}, "skew", 11.0, "0 to 10"),
        ({"skew": math.nan}, "skew", math.nan, "0 to 10"),
    ],
)
def test_impossible_trees(changes: dict[str, Any], key: str, value: float, allowed: str) -> None:
    config = replace(TreeConfig(), **changes)
    with pytest.raises(ConfigError) as error:
        build_tree(config)
    assert str(error.value) == f"workload.tree.{key}={value}: {allowed}"


def test_the_key_of_an_impossible_tree_can_be_given() -> None:
    with pytest.raises(ConfigError, match=r"^here\.cgroups=0: "):
        TreeConfig(cgroups=0).validate("here")


@given(configs(), st.integers(1, 256), st.floats(1, 1e12))
def test_touched_positions_against_direct_sums(config: TreeConfig, cpus: int, delta_ns: float) -> None:
    tree = build_tree(replace(config, cgroups=min(config.cgroups, 40), slices=min(config.slices, 5)))
    mean, variance = tree.updated_positions(cpus, delta_ns)
    chance = [-math.expm1(-rate / cpus * delta_ns / 1e9) for rate in tree.updates_per_s.tolist()]
    for cgroup in range(len(tree)):
        subtree = range(cgroup, int(tree.end[cgroup]))
        assert mean[cgroup] == pytest.approx(sum(chance[i] for i in subtree), abs=1e-9)
        covariances = 0.0
        for i in subtree:
            for j in subtree:
                # touching a cgroup touches its ancestors; two that are neither's ancestor have nothing in common
                if i in tree.ancestors(j) or j in tree.ancestors(i):
                    covariances += chance[max(i, j)] * (1 - chance[min(i, j)])
        assert variance[cgroup] == pytest.approx(covariances, abs=1e-9)


@given(configs(), st.integers(1, 256))
def test_touched_positions_at_the_limits(config: TreeConfig, cpus: int) -> None:
    tree = build_tree(replace(config, skew=min(config.skew, 1.0)))
    mean, variance = tree.updated_positions(cpus, 0.0)
    assert (mean == 0).all()
    assert (variance == 0).all()
    mean, variance = tree.updated_positions(cpus, 1e24)
    assert mean == pytest.approx(tree.end - np.arange(len(tree)))
    assert variance == pytest.approx(np.zeros(len(tree)), abs=1e-6)


@given(configs(), st.integers(1, 256), st.floats(1, 1e12))
def test_more_time_and_larger_subtrees_have_more_touched_positions(
    config: TreeConfig, cpus: int, delta_ns: float
) -> None:
    tree = build_tree(config)
    mean, _ = tree.updated_positions(cpus, delta_ns)
    later, _ = tree.updated_positions(cpus, 2 * delta_ns)
    assert (later >= mean - 1e-9).all()
    assert (mean[tree.parent[1:]] >= mean[1:] - 1e-9).all()


@pytest.mark.parametrize("cpus_per_leaf", [1, 3, 12])
def test_leaves_that_keep_to_a_few_cpus(cpus_per_leaf: int) -> None:
    """Against a count: every leaf picks its CPUs, updates are drawn on each, ancestors go with their leaves."""
    tree = build_tree(TreeConfig(60, 4, 3, 2e6, skew=1.0, cpus_per_leaf=cpus_per_leaf))
    cpus, delta_ns, trials = 12, 50_000, 1500
    generator = np.random.default_rng(1)
    leaves = np.flatnonzero(tree.end == np.arange(1, len(tree) + 1))
    counts = np.zeros(len(tree))
    for _ in range(trials):
        touched = np.zeros((len(tree), cpus), bool)
        for leaf in leaves:
            chosen = generator.permutation(cpus)[:cpus_per_leaf]
            updates = generator.poisson(tree.updates_per_s[leaf] / cpus_per_leaf * delta_ns * 1e-9, len(chosen))
            for cgroup in tree.ancestors(int(leaf)):
                touched[cgroup, chosen[updates > 0]] = True
        for cgroup in (0, 1, 2):
            counts[cgroup] += touched[cgroup : tree.end[cgroup]].sum() / cpus
    mean, _ = tree.updated_positions(cpus, delta_ns)
    for cgroup in (0, 1, 2):
        assert counts[cgroup] / trials == pytest.approx(mean[cgroup], rel=0.03)
