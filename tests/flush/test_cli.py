"""Flush strategies through the real command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.conftest import Cli

SMALL = ("machine=laptop", "workload.tree.cgroups=30", "workload.tree.slices=3", "tracking.enabled=false")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command line in an empty directory, without a store."""
    for folder in ("cwd", "home"):
        (tmp_path / folder).mkdir()
    return Cli(tmp_path / "store", tmp_path / "cwd")


def test_a_run(cli: Cli) -> None:
    printed = cli.ok(
        "run", "workload=stat_readers", "policy/flush=ratelimited", "policy.flush.sites=[memory_stat]", *SMALL
    )
    assert "stat_readers" in printed.splitlines()[0]
    assert "mem_cgroup_flush_stats_ratelimited" in printed
    assert not cli.store.exists()
    assert list(cli.cwd.iterdir()) == []


def test_an_impossible_tree(cli: Cli) -> None:
    message = cli.mistake("run", "workload=stat_readers", *SMALL, "workload.tree.cgroups=0")
    assert message == "workload.tree.cgroups=0: a whole number from 1 to 100000"


def test_an_unknown_site(cli: Cli) -> None:
    message = cli.mistake("run", "workload=stat_readers", "policy.flush.sites=[memory_stats]", *SMALL)
    assert message.startswith("policy.flush.sites=memory_stats: did you mean memory_stat? allowed: memory_stat, ")
