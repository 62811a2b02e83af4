"""The same sweep through every launcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import SweepCli, assert_every_point_once, runs_of

pytestmark = pytest.mark.slow


def tables(store: Path, sweep: str) -> dict[str, bytes]:
    """The profile of each point, as its bytes."""
    runs = runs_of(store, sweep)
    assert_every_point_once(runs)
    return {run.name: (run.artifacts / "functions.json").read_bytes() for run in runs if run.params}


def test_results_do_not_depend_on_the_launcher(run_sweep: SweepCli, slurm: dict[str, str]) -> None:
    store = run_sweep.cli.store
    # without a wish for memory Slurm hands out a node's all with the first job
    wishes = ("hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1", "hydra.launcher.timeout_min=5")
    on_slurm = run_sweep("hydra/launcher=submitit_slurm", *wishes, environment=slurm)
    in_processes = run_sweep("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    one_by_one = run_sweep()
    expected = tables(store, one_by_one)
    assert len(expected) == 20
    assert tables(store, on_slurm) == expected
    assert tables(store, in_processes) == expected
