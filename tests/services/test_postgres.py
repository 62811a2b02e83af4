"""A team's store: an MLflow server over PostgreSQL, also one that dies in mid-sweep."""

from __future__ import annotations

import subprocess
import time

import pytest

from zexp.tracking import list_runs, open_store

from .conftest import POINTS, SWEEP, MlflowServer, SweepCli, assert_every_point_once, runs_of, sweep_of, wait_for

pytestmark = pytest.mark.slow


def test_sweep(run_sweep: SweepCli, mlflow_server: MlflowServer) -> None:
    sweep = run_sweep(f"tracking.store={mlflow_server.uri}")
    assert_every_point_once(runs_of(mlflow_server.uri, sweep))


@pytest.mark.parametrize("after_points", [0, 1, 7, 15])
def test_server_killed_in_mid_sweep(run_sweep: SweepCli, mlflow_server: MlflowServer, after_points: int) -> None:
    """Runs wait in the spool while the server is away, and get there once, also if `zexp sync` is asked twice."""
    cli, store = run_sweep.cli, f"tracking.store={mlflow_server.uri}"
    before = time.time() * 1000
    sweep = subprocess.Popen(
        cli.command("run", "-m", *SWEEP, store, f"name=killed_after_{after_points}"),
        cwd=cli.cwd,
        env=cli.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:

        def reached() -> bool:
            runs = list_runs(open_store(mlflow_server.uri))
            return sum(r.started_ms > before and r.status == "FINISHED" for r in runs) >= after_points

        wait_for(reached, "points before the kill", 120)
        mlflow_server.kill()
        output, _ = sweep.communicate(timeout=300)
    finally:
        sweep.kill()
        mlflow_server.start()
    for _ in range(2):
        cli.ok("sync")
    runs = runs_of(mlflow_server.uri, sweep_of(output))
    assert_every_point_once(runs)
    assert len({r.tags["config_hash"] for r in runs if r.params}) == POINTS
