"""The reclaim storm through the real command line."""

from __future__ import annotations

import json
from pathlib import Path

import mlflow
import pytest
from workload.test_reclaim import copied

from .conftest import Cli

STORM = (
    "workload=reclaim", "machine=laptop", "machine.memory_gib=2", "kernel=v6_12", "kernel.zswap_shrinker=on",
    "workload.tree.cgroups=20", "workload.tree.slices=3", "workload.duration_s=2.2", "workload.allocated_mib_per_s=200",
)  # fmt: skip


def test_pool_and_pressure_are_metric_histories(cli: Cli) -> None:
    printed = cli.ok("run", *STORM)
    assert "contended /s" in printed or "reclaim" in printed
    (run,) = cli.runs()
    assert run.status == "FINISHED"
    client = mlflow.MlflowClient(f"sqlite:///{cli.store}/mlflow.db")
    raw = json.loads((run.artifacts / "raw" / "series.json").read_text())
    for name, points in (("pool", 5), ("zswapped", 5), ("free", 5), ("pool_limit", 5), ("psi/some", 1), ("psi/full", 1),
                         *((f"psi/slice{i}/some", 1) for i in range(3))):  # fmt: skip
        history = client.get_metric_history(run.run_id, f"series/{name}")
        assert [point.step for point in history] == [time // 1_000_000 for time in raw[name]["times_ns"]], name
        assert [point.value for point in history] == raw[name]["values"], name
        assert len(history) == points, name
    assert [point.step for point in client.get_metric_history(run.run_id, "series/pool")] == [0, 500, 1000, 1500, 2000]
    metrics = run.metrics
    assert metrics["pool/max_pct_of_limit"] == pytest.approx(
        100 * max(raw["pool"]["values"]) / raw["pool_limit"]["values"][0]
    )
    assert metrics["psi/some_pct"] == pytest.approx(raw["psi/some"]["values"][0] / 10_000)
    assert metrics["sim_ns"] == 2.2e9


def test_unreclaimable_memory_ends_and_says_so(cli: Cli) -> None:
    cli.ok("run", *STORM, "workload.unevictable_pct=100")
    (run,) = cli.runs()
    metrics = run.metrics
    assert metrics["kswapd/failures"] == 16
    assert metrics["oom_kills"] == 1
    assert metrics["reclaim/pages_per_s"] == 0


def test_a_copied_machine(cli: Cli, tmp_path: Path) -> None:
    folder = copied(tmp_path / "sys fs's cgroup")
    cli.ok("run", *STORM, f"from={folder}")
    (run,) = cli.runs()
    assert run.params["workload.folder"] == str(folder)
    assert run.metrics["measured/psi/some_pct"] == 3.25
    assert run.metrics["measured/cgroups_dying"] == 7


def test_a_kernel_without_the_shrinker(cli: Cli) -> None:
    printed = cli.ok("run", *STORM, "kernel=v6_1", "kernel.zswap_shrinker=none", "tracking.enabled=false")
    assert "kswapd" in printed


def test_mistakes(cli: Cli, tmp_path: Path) -> None:
    assert cli.mistake("run", *STORM, f"from={tmp_path}/nowhere").startswith(f"workload.folder={tmp_path}/nowhere: ")
    (tmp_path / "empty").mkdir()
    line = cli.mistake("run", *STORM, f"from={tmp_path}/empty")
    assert line.startswith(f"workload.folder={tmp_path}/empty: no memory.stat in it ")
    broken = copied(tmp_path / "broken")
    (broken / "a.slice" / "memory.stat").write_text("anon 4096\nfile many\n")
    line = cli.mistake("run", *STORM, f"from={broken}")
    assert line.startswith(f"workload.folder={broken}: a.slice/memory.stat:2: ")
    line = cli.mistake("run", *STORM, "workload.duration_s=0")
    assert line == "workload.duration_s=0.0: allowed: 0.001 to 1000"
    assert cli.runs() == []
    assert list(cli.cwd.iterdir()) == []
