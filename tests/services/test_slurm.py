"""The same sweep through every launcher."""

from __future__ import annotations

import os
import subprocess

import pytest

from .conftest import SweepCli, program, tables

pytestmark = pytest.mark.slow

JOBS = 3
"""Of a sweep of 20 points, at eight or fewer a job."""


def completed_jobs(slurm: dict[str, str]) -> int:
    command = [program("scontrol"), "--oneliner", "show", "jobs"]
    done = subprocess.run(command, env={**os.environ, **slurm}, capture_output=True, text=True, check=True)
    return done.stdout.count("JobState=COMPLETED")


def test_results_do_not_depend_on_the_launcher(run_sweep: SweepCli, slurm: dict[str, str]) -> None:
    store = run_sweep.cli.store
    # without a wish for memory Slurm hands out a node's all with the first job
    wishes = ("hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1", "hydra.launcher.timeout_min=5")
    again = "sweep.rerun=true"  # else the second sweep would take its points from the first
    on_slurm = run_sweep("hydra/launcher=submitit_slurm", *wishes, again, environment=slurm)
    assert completed_jobs(slurm) == JOBS
    in_processes = run_sweep("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", again)
    one_by_one = run_sweep(again)
    expected = tables(store, one_by_one)
    assert tables(store, on_slurm) == expected
    assert tables(store, in_processes) == expected
