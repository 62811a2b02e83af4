"""A sweep of 1,000 short points: how long it takes, and what for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zexp.tracking import list_runs, open_store

pytestmark = pytest.mark.bench
POINTS = 1000
ALLOWED_S = 100
"""What the issue of sweeps allows for all of it on two quiet cores; printed beside what it took."""


def test_a_thousand_points(tmp_path: Path) -> None:
    sizes = ",".join(f"{256 + 4 * i}KiB" for i in range(POINTS // 2))
    command = [str(Path(sys.executable).parent / "zexp"), "run", "-m", "experiment=munmap_24g", "machine=laptop"]
    command += [f"workload.total_size={sizes}", "policy/accounting=eager,lazy", "hydra/launcher=joblib"]
    store = tmp_path / "store"
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "hydra.launcher.n_jobs=2"],
        env={**os.environ, "ZEXP_STORE": str(store)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    took = time.perf_counter() - began
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    runs = [run for run in list_runs(open_store(store)) if "sweep" in run.tags]
    assert [run.status for run in runs] == ["FINISHED"] * POINTS
    simulated = sorted(run.metrics["wall_s"] for run in runs)
    spent = re.search(r"time of this process.*: (.*)", done.stdout)
    assert spent is not None
    print(f"\n{POINTS} points, joblib with 2 processes, SQLite: {took:.1f} s (aim: {ALLOWED_S} s)")
    print(f"simulating takes {1000 * simulated[POINTS // 2]:.1f} ms a point, at most {1000 * simulated[-1]:.1f} ms")
    print(f"spent: {spent[1]}")
