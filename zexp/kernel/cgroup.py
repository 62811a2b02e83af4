"""A tree of cgroups and how often each is updated: what rstat, memcontrol and kswapd walk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zexp.errors import ConfigError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass
class TreeConfig:
    """Shape and traffic of a tree: a root, slices below it, services below them, and children of those."""

    cgroups: int = 650
    """In all, with the root."""
    slices: int = 17
    """Below the root. The first holds most of the others, the second fewer, and so on."""
    fanout: int = 3
    """Children of a service, and of each of those, as deep as the tree goes."""
    updates_per_s: float = 2e6
    """Calls of memcg_rstat_updated on the whole machine, shared out over its CPUs evenly."""
    skew: float = 1.0
    """Exponent of Zipf's law by which the traffic is shared out over the leaves; 0: evenly."""
    cpus_per_leaf: int = 0
    """On how many CPUs, any of them, the tasks of a leaf run; 0: on all."""
    depth: int = 3
    """Levels below the root; with 1 there are only slices, with 2 services without children."""

    def validate(self, key: str = "workload.tree") -> None:
        """Raise ``ConfigError`` for a tree that cannot be."""
        for name, low, high in (
            ("cgroups", 1, 100_000),
            ("slices", 0, 100_000),
            ("fanout", 0, 100_000),
            ("cpus_per_leaf", 0, 1 << 20),
            ("depth", 1, 32),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{key}.{name}", value, f"a whole number from {low} to {high}")
        if self.slices > self.cgroups - 1:
            raise ConfigError(f"{key}.slices", self.slices, f"at most {self.cgroups - 1}, the cgroups below the root")
        if self.slices == 0 and self.cgroups > 1:
            raise ConfigError(f"{key}.slices", self.slices, f"at least 1 to hold {self.cgroups - 1} cgroups")
        below = self.cgroups - 1 - self.slices
        if self.depth == 1 and below:
            raise ConfigError(f"{key}.depth", self.depth, f"at least 2 to hold {below} cgroups below the slices")
        if not 0 < self.updates_per_s <= 1e10:
            raise ConfigError(f"{key}.updates_per_s", self.updates_per_s, "above 0, at most 1e10")
        if not 0 <= self.skew <= 10:
            raise ConfigError(f"{key}.skew", self.skew, "0 to 10")


@dataclass(frozen=True, eq=False)
class CgroupTree:
    """Cgroups in pre-order, so that a subtree is the range from a cgroup to its ``end``. 0 is the root."""

    parent: Ints
    """-1 for the root."""
    level: Ints
    """0 for the root."""
    end: Ints
    updates_per_s: Floats
    """In each cgroup's subtree, on all CPUs together."""
    cpus_per_leaf: int
    """0: all."""

    def __len__(self) -> int:
        return len(self.parent)

    @property
    def levels(self) -> int:
        """Number of levels."""
        return int(self.level.max()) + 1

    def ancestors(self, cgroup: int) -> list[int]:
        """From the cgroup itself up to the root."""
        path = [cgroup]
        while self.parent[path[-1]] >= 0:
            path.append(int(self.parent[path[-1]]))
        return path

    def cpus_used(self, cpus: int) -> Floats:
        """On how many of ``cpus``, on average, the tasks of each cgroup's subtree run."""
        leaf = self.end == np.arange(1, len(self) + 1)
        before = np.concatenate([[0], np.cumsum(leaf)])
        spared = 1 - min(self.cpus_per_leaf or cpus, cpus) / cpus
        leaves: Floats = (before[self.end] - before[:-1]).astype(np.float64)
        return cpus * (1 - np.power(spared, leaves))

    def updated_positions(self, cpus: int, delta_ns: float) -> tuple[Floats, Floats]:
        """Mean and variance, for each cgroup, of how many cgroups of its subtree one CPU has touched in ``delta_ns``.

        Leaves are independent of each other. An ancestor is touched whenever a descendant is, so their covariance is
        ``P(descendant) (1 - P(ancestor))``.
        """
        touched = self.touched(cpus, delta_ns)
        spared = np.zeros(len(self))  # sum of 1 - P over the ancestors
        for level in range(1, self.levels):
            (at,) = np.nonzero(self.level == level)
            spared[at] = spared[self.parent[at]] + 1 - touched[self.parent[at]]
        sums = np.concatenate([[0.0], np.cumsum(touched)])
        squares = np.concatenate([[0.0], np.cumsum(touched * (1 - touched + 2 * spared))])
        mean = sums[self.end] - sums[:-1]
        return mean, np.maximum(squares[self.end] - squares[:-1] - 2 * spared * mean, 0)

    def touched(self, cpus: int, delta_ns: float) -> Floats:
        """Probability, for each cgroup, that one CPU has touched it in ``delta_ns``.

        A leaf is touched if the CPU is one of those its tasks run on and something happened there; any other cgroup if
        one of its leaves is.
        """
        used = min(self.cpus_per_leaf or cpus, cpus)
        leaf = self.end == np.arange(1, len(self) + 1)
        alone = used / cpus * -np.expm1(-self.updates_per_s / used * delta_ns * 1e-9)
        with np.errstate(divide="ignore"):
            spared = np.where(leaf, np.log1p(-np.minimum(alone, 1)), 0.0)
        spared[np.isinf(spared)] = -1e3  # surely touched; sums must stay finite
        sums = np.concatenate([[0.0], np.cumsum(spared)])
        return np.where(leaf, alone, -np.expm1(sums[self.end] - sums[:-1]))


def build_tree(config: TreeConfig) -> CgroupTree:
    """Lay a tree out."""
    config.validate()
    below = config.cgroups - 1 - config.slices
    weights = 1 / np.arange(1, config.slices + 1) ** 2 if config.slices else np.zeros(0)
    shares = np.floor(below * weights / weights.sum()).astype(int) if config.slices else np.zeros(0, int)
    if config.slices:
        shares[0] += below - shares.sum()
    parent, level = [-1], [0]
    for members in shares.tolist():
        slice_ = len(parent)
        parent.append(0)
        level.append(1)
        # where the next cgroup may go, deepest last, each with its room for children
        open_ = [[slice_, members]]
        for _ in range(members):
            while open_[-1][1] == 0 or len(open_) == config.depth:
                open_.pop()
            open_[-1][1] -= 1
            open_.append([len(parent), config.fanout])
            parent.append(open_[-2][0])
            level.append(len(open_))
    parents, count = np.array(parent, np.int64), len(parent)
    end = np.arange(1, count + 1)
    for cgroup in range(count - 1, 0, -1):
        end[parents[cgroup]] = max(end[parents[cgroup]], end[cgroup])
    leaf = end == np.arange(1, count + 1)
    rank = np.empty(int(leaf.sum()))
    # which leaves are busy has nothing to do with where they stand
    rank[np.argsort((np.arange(len(rank)) * 0x9E3779B1) & 0xFFFFFFFF, kind="stable")] = np.arange(1, len(rank) + 1)
    own = np.zeros(count)
    own[leaf] = rank**-config.skew
    own *= config.updates_per_s / own.sum()
    sums = np.concatenate([[0.0], np.cumsum(own)])
    rates = sums[end] - sums[np.arange(count)]
    return CgroupTree(parents, np.array(level, np.int64), end, rates, config.cpus_per_leaf)
