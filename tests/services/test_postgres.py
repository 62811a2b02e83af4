"""A team's store: an MLflow server over PostgreSQL, also one that dies in mid-sweep."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from e2e.conftest import Cli

from zexp.tracking import Spool, list_runs, open_store
from zexp.tracking.spool import SUMMARY_OF

from .conftest import POINTS, SWEEP, MlflowServer, SweepCli, runs_of, sweep_of, tables, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(
    template: Path, tmp_path_factory: pytest.TempPathFactory, mlflow_server: MlflowServer
) -> dict[str, bytes]:
    """The tables of the sweep, sent to a server that is there all the time."""
    folder = tmp_path_factory.mktemp("undisturbed")
    shutil.copytree(template, folder / "store")
    for name in ("cwd", "home"):
        (folder / name).mkdir()
    sweep = SweepCli(Cli(folder / "store", folder / "cwd"))(f"tracking.store={mlflow_server.uri}")
    return tables(mlflow_server.uri, sweep, mlflow_server.artifacts)


def test_the_same_as_in_a_local_store(
    run_sweep: SweepCli, mlflow_server: MlflowServer, undisturbed: dict[str, bytes]
) -> None:
    assert tables(run_sweep.cli.store, run_sweep()) == undisturbed


@pytest.mark.parametrize(("points", "then"), [(0, "sync"), (1, "resume"), (7, "sync"), (12, "resume")])
def test_server_killed_in_mid_sweep(
    run_sweep: SweepCli, mlflow_server: MlflowServer, undisturbed: dict[str, bytes], points: int, then: str
) -> None:
    """Runs wait in the spool while the server is away, and get there once, however often they are asked for."""
    cli, store = run_sweep.cli, open_store(mlflow_server.uri)
    before = time.time() * 1000
    sweep = subprocess.Popen(
        cli.command("run", "-m", *SWEEP, f"tracking.store={store.uri}", f"name=killed_after_{points}"),
        cwd=cli.cwd,
        env=cli.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:

        def reached() -> bool:
            return sum(r.started_ms > before and r.status == "FINISHED" for r in list_runs(store)) >= points

        wait_for(reached, "points before the kill", 120)
        mlflow_server.kill()
        output, _ = sweep.communicate(timeout=300)
    finally:
        sweep.kill()
        mlflow_server.start()
    # all points were simulated, so the sweep has succeeded
    assert sweep.returncode == 0, output
    assert f"{POINTS} of {POINTS} points finished" in output
    waiting = re.search(r"(\d+) runs wait in the spool", output)
    assert waiting, output
    assert 0 < int(waiting[1]) <= POINTS - points
    assert sum(Spool(cli.store / "spool").destinations().values()) == int(waiting[1])
    sweep_id = sweep_of(output)
    for _ in range(2):
        if then == "sync":
            cli.ok("sync")
        else:
            resumed = cli.ok("run", "-m", f"resume={sweep_id}")
            assert f"{POINTS} of {POINTS} points finished" in resumed
    assert not Spool(cli.store / "spool").waiting()
    assert tables(store.uri, sweep_id, mlflow_server.artifacts) == undisturbed
    assert len({run.tags["identity"] for run in runs_of(store.uri, sweep_id)}) == POINTS
    assert len(store.with_tag(SUMMARY_OF, sweep_id)) == 1
