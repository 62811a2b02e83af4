from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from zexp.result import LineStats, LockStats, Log2Histogram, Profile, RunResult, StackTime
from zexp.tracking import Recorder, RunInfo, Store

CONFIG = {
    "workload": {"name": "munmap", "threads": 4, "nodes": [0, 1]},
    "policy": {"accounting": "eager", "cycles_late": 2.0, "limit": None, "fast": True},
}


def histogram(*pairs: tuple[int, int]) -> Log2Histogram:
    counts = [0] * 64
    for bucket, count in pairs:
        counts[bucket] = count
    return Log2Histogram("ns", tuple(counts), sum(count << bucket for bucket, count in pairs))


def make_result() -> RunResult:
    stacks = [
        StackTime("munmap", ("munmap", "free_swap_and_cache", f"zswap_fn_{i:02}"), 1_000_000 * (60 - i))
        for i in range(60)
    ]
    stacks.append(StackTime("kswapd0", ("kswapd", "cgroup_rstat_flush<locked>"), 7_000_000))
    return RunResult(
        engine="sim",
        sim_ns=1_234_567.0,
        pages=1000,
        metrics={"lock/tree_lock/wait_ns": 12.5, "rate %": 3.0, "broken": float("nan"), "endless": float("inf")},
        profile=Profile(tuple(stacks)),
        locks=(LockStats("tree_lock", 100, 7, histogram((5, 7)), histogram((3, 100))),),
        lines=(LineStats("zswap_pool_total_size", 40, 4000.0),),
        histograms={"flush_ns": histogram((0, 1), (10, 3))},
        instructions=4711,
        wall_s=0.5,
    )


def make_info(**changes: object) -> RunInfo:
    info = RunInfo(
        experiment="accounting",
        name="eager-0",
        config=CONFIG,
        config_hash="abc123",
        machine_digest="m192",
        seed=7,
        sweep="sweep-1",
        plugins={"zexp-plugins": "1.0", "third@party": "0.1"},
        notes="# What\n\n| a | b |\n|---|---|\n| 1 | 2 |",
    )
    return replace(info, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store nobody writes to: creating one takes seconds, copying it does not."""
    return Store.open(tmp_path_factory.mktemp("template") / "store").folder


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Store:
    shutil.copytree(template, tmp_path / "store")
    return Store.open(tmp_path / "store")


@pytest.fixture
def recorder(store: Store) -> Recorder:
    return Recorder(store)


@pytest.fixture
def record(recorder: Recorder) -> Callable[..., str]:
    """Record one finished run."""

    def one(**changes: object) -> str:
        return recorder.finish(make_info(**changes), make_result())

    return one


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ZEXP_STORE", "XDG_DATA_HOME", "MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
