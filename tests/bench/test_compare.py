"""What comparing thousands of runs costs."""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from compare.filling import Made, fill

from zexp.tracking import Store
from zexp.workload import WORKLOADS

from .conftest import REPORT

pytestmark = pytest.mark.bench

POLICIES = ("sync", "ratelimited", "skip_if_ongoing", "never")
RUNS, METRICS, PARAMS, SEEDS = 5000, 60, 400, 3


def runs(seeds: int) -> list[Made]:
    """A sweep of four policies, 25 numbers of cgroups and 50 of nodes, with all the parameters real runs have."""
    chance = random.Random(0)
    headlines = [line.metric for line in WORKLOADS["reclaim"].headlines]
    metrics = headlines + [f"lock/lock{i}/wait_ns" for i in range(METRICS - len(headlines))]
    fixed = {f"kernel.costs.function{i}.instructions": "40.0" for i in range(PARAMS)}
    made = []
    for policy, cgroups, nodes in itertools.product(POLICIES, range(25), range(50)):
        by_seed = {seed: {m: chance.gauss(100, 1) for m in metrics} for seed in range(seeds)}
        made.append(
            Made(
                metrics={m: sum(values[m] for values in by_seed.values()) / seeds for m in metrics},
                params={
                    **fixed,
                    "workload.name": "reclaim",
                    "policy.flush.name": policy,
                    "workload.tree.cgroups": str(10 * cgroups),
                    "machine.nodes": str(nodes),
                },
                tags={
                    "sweep": "big",
                    "swept": "policy.flush.name workload.tree.cgroups machine.nodes",
                    "seeds": str(seeds),
                },
                seeds={seed: dict(values) for seed, values in by_seed.items()} if seeds > 1 else {},
            )
        )
    return made


@pytest.mark.parametrize("seeds", [1, SEEDS])
def test_compare_5000_runs(seeds: int, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    fill(store, runs(seeds))
    for command, limit in (("compare", 5.0), ("report", 15.0)):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "zexp.cli.main", command, "big"],
            env={**os.environ, "ZEXP_STORE": str(store.folder)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        took = time.perf_counter() - started
        assert done.returncode == 0, done.stderr
        what = f"zexp {command} of {RUNS} runs, {METRICS} metrics, {seeds} seeds"
        REPORT.add(what, f"{took:.1f} s", f"{limit:.0f} s", took / limit, "asked: at most 1")
        assert took < 2 * limit, "far beyond what noise explains"


def test_ui_of_5000_runs(tmp_path: Path) -> None:
    """What MLflow's page of runs asks the server for, with the filter and order of a sweep's view."""
    store = Store.open(tmp_path / "store")
    fill(store, runs(1))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "zexp.cli.main", "ui", "--port", str(port), "--store", str(store.folder)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(600):
                with suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5):
                    break
                time.sleep(0.2)
            asked = {
                "experiment_ids": ["1"], "filter": "tags.sweep = 'big'", "max_results": 100,
                "order_by": ["attributes.start_time ASC"],
            }  # fmt: skip
            took = []
            for _ in range(3):
                started = time.perf_counter()
                request = urllib.request.Request(
                    f"{address}/ajax-api/2.0/mlflow/runs/search",
                    json.dumps(asked).encode(),
                    {"Content-Type": "application/json"},
                )
                with urllib.request.urlopen(request, timeout=60) as answer:
                    assert len(json.load(answer)["runs"]) == 100
                took.append(time.perf_counter() - started)
        finally:
            server.terminate()
    REPORT.add(
        f"MLflow's table of {RUNS} runs: first request", f"{took[0]:.1f} s", "5 s", took[0] / 5.0, "asked: at most 1"
    )
    REPORT.add("the same, later", f"{min(took):.1f} s", "5 s", min(took) / 5.0, "asked: at most 1")
    assert min(took) < 10, "far beyond what noise explains"
