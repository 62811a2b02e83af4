"""The same sweep through every launcher."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import POINTS, SweepCli, assert_every_point_once, runs_of

pytestmark = pytest.mark.slow


def tables(store: Path, sweep: str) -> dict[str, bytes]:
    """Every table of each point, and its profile by call stacks, as bytes."""
    runs = [run for run in runs_of(store, sweep) if run.params]
    assert_every_point_once(runs)
    assert all(run.tags["sweep"] == sweep for run in runs), "run again, not taken from an earlier sweep"
    found = {}
    for run in runs:
        names = ["raw/profile.folded", *(table["path"] for table in json.loads(run.tags["mlflow.loggedArtifacts"]))]
        assert "functions.json" in names
        found.update({f"{run.name}/{name}": (run.artifacts / name).read_bytes() for name in names})
    return found


def test_results_do_not_depend_on_the_launcher(run_sweep: SweepCli, slurm: dict[str, str]) -> None:
    store = run_sweep.cli.store
    # without a wish for memory Slurm hands out a node's all with the first job
    wishes = ("hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1", "hydra.launcher.timeout_min=5")
    again = "sweep.rerun=true"
    on_slurm = run_sweep("hydra/launcher=submitit_slurm", *wishes, again, environment=slurm)
    in_processes = run_sweep("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", again)
    one_by_one = run_sweep(again)
    expected = tables(store, one_by_one)
    assert len(expected) >= 2 * POINTS
    assert tables(store, on_slurm) == expected
    assert tables(store, in_processes) == expected
