"""``zexp run`` as a user meets it: the real command line, a real store."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from zexp.cli.main import COMMANDS
from zexp.tracking import RunEntry, Store, load_run

from .conftest import SMALL, Cli

UI_LINK = re.compile(r"http://127\.0\.0\.1:5000/#/experiments/\d+/runs/([0-9a-f]{32})\?workflowType=machine_learning")
PROFILE_KEYS = ["symbol", "self_pct", "children_pct", "ns_per_page", "comm", "base"]


def artifacts(run: RunEntry) -> dict[str, bytes]:
    return {str(p.relative_to(run.artifacts)): p.read_bytes() for p in run.artifacts.rglob("*") if p.is_file()}


def test_one_run_end_to_end(cli: Cli) -> None:
    printed = cli.ok("run", *SMALL, "workload.processes=2", "policy/accounting=shared_atomic", "seed=5")
    (run,) = cli.runs()
    assert run.status == "FINISHED"
    link = UI_LINK.search(printed)
    assert link is not None, printed
    assert link[1] == run.run_id
    assert f"sqlite:///{cli.store}/mlflow.db" in printed
    assert f"zexp show {run.run_id[:8]}" in printed
    assert "zs_free" in printed or "xas_store" in printed
    assert list(cli.cwd.iterdir()) == [], "nothing is left in the working directory"

    shown = cli.show()
    assert list(shown) == ["run_id", "name", "experiment", "status", "config", "metrics", "profile"]
    assert (shown["run_id"], shown["experiment"], shown["status"]) == (run.run_id, "adhoc", "FINISHED")
    config: dict[str, Any] = shown["config"]
    assert {"machine", "kernel", "workload", "policy", "engine", "seed", "published"} <= config.keys()
    assert config["machine"]["name"] == "laptop"
    assert config["policy"]["accounting"] == {"name": "shared_atomic"}
    assert config["workload"]["processes"] == 2
    assert config["seed"] == 5
    metrics: dict[str, float] = shown["metrics"]
    for name in (
        "throughput/pages_per_s", "time/total_ms", "time/cpu_ns_per_page", "accounting/self_pct", "sim_ns", "wall_s",
        "line/transfers_per_page", "lock/wait_ns_per_page",
    ):  # fmt: skip
        assert metrics[name] >= 0, name
    assert sum(name.startswith("profile/self_pct/") for name in metrics) == 10
    assert metrics["throughput/pages_per_s"] * metrics["sim_ns"] / 1e9 == pytest.approx(256)
    profile: list[dict[str, Any]] = shown["profile"]
    assert all(list(row) == PROFILE_KEYS for row in profile)
    assert {row["comm"] for row in profile} == {"munmap"}
    assert sum(row["self_pct"] for row in profile) == pytest.approx(100, abs=0.5)
    assert max(row["children_pct"] for row in profile) == pytest.approx(100, abs=0.1)
    total = sum(row["ns_per_page"] for row in profile)
    assert total == pytest.approx(metrics["time/cpu_ns_per_page"], rel=0.01)

    assert run.tags["seed"] == "5"
    assert len(run.tags["config_hash"]) == 16
    assert run.tags["machine_digest"]
    assert "sweep" not in run.tags
    assert any(tag.startswith("plugin.zexp") for tag in run.tags)
    assert run.params["workload.total_size"] == "1MiB"
    assert {"functions.json", "functions.md", "config.yaml", "raw/profile.parquet", "raw/profile.folded"} <= set(
        artifacts(run)
    )
    assert cli.ok("show", "last").count("munmap") > 3


@pytest.mark.slow
def test_same_configuration_same_bytes(cli: Cli) -> None:
    """Two runs of one configuration, in processes of their own, and one with another seed."""
    arguments = ("run", "machine=epyc_9684x", "workload.total_size=4MiB", "workload.processes=7")
    for seed in (0, 0, 99):
        cli.ok(*arguments, f"seed={seed}")
    other, second, first = cli.runs()
    assert artifacts(first) == artifacts(second)
    assert first.tags["config_hash"] == second.tags["config_hash"] != other.tags["config_hash"]
    deterministic = {"wall_s"}
    for run in (second, other):
        assert {k: v for k, v in run.metrics.items() if k not in deterministic} == {
            k: v for k, v in first.metrics.items() if k not in deterministic
        }
    changed = {name for name, content in artifacts(other).items() if content != artifacts(first)[name]}
    assert changed == {"config.yaml"}, "a workload that draws no random numbers does not depend on the seed"


@pytest.mark.slow
def test_a_sweep_is_flat_and_tagged(cli: Cli) -> None:
    printed = cli.ok("run", "-m", *SMALL, "policy/accounting=eager,lazy", "workload.processes=1,2")
    runs = cli.points()
    assert len(runs) == 4
    assert {r.status for r in runs} == {"FINISHED"}
    (sweep,) = {r.tags["sweep"] for r in runs}
    assert f"sweep  {sweep}" in printed
    assert not any("mlflow.parentRunId" in r.tags for r in runs), "nesting hides runs in the UI"
    points = {(r.params["policy.accounting.name"], r.params["workload.processes"]) for r in runs}
    assert points == {(p, n) for p in ("eager", "lazy") for n in "12"}
    assert len({r.name for r in runs}) == 4
    assert len({r.tags["config_hash"] for r in runs}) == 4
    table = printed.partition("comparison")[2]
    for run in runs:
        assert run.name in table
    assert len(set(UI_LINK.findall(printed))) == 4
    assert list(cli.cwd.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "sweep"), [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False)])
def test_ctrl_c(cli: Cli, number: signal.Signals, sweep: bool) -> None:
    """During a long run: status 130, and the run is marked KILLED. A sweep goes no further."""
    many = ("-m", "policy/accounting=eager,lazy") if sweep else ()
    command = cli.command("run", *many, "workload.total_size=24GiB", "workload.processes=48")
    process = subprocess.Popen(
        command, cwd=cli.cwd, env=cli.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert str(cli.store) in process.stdout.readline()  # said before anything is run
        time.sleep(4)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    # Python kills itself with SIGINT at exit if the interrupt came through text it evaluated; shells show both as 130
    assert process.returncode in (130, -signal.SIGINT), out + err
    assert "Traceback" not in out + err
    assert "zexp: interrupted" in err
    (run,) = cli.runs()
    assert run.status == "KILLED"
    assert run.ended_ms is not None
    assert run.tags["error"].startswith(("Interrupted", "KeyboardInterrupt", "terminated"))
    stored = load_run(Store.open(cli.store), run.run_id)
    assert stored.config["workload"]["total_size"] == "24GiB", "what was interrupted is known"
    assert (run.artifacts / "traceback.txt").exists()


def test_a_run_without_tracking_leaves_nothing(cli: Cli) -> None:
    printed = cli.ok("run", *SMALL, "tracking.enabled=false")
    assert "xas_store" in printed
    assert "zexp ui" not in printed
    assert cli.runs() == []


@pytest.mark.slow
def test_the_store_can_be_chosen(cli: Cli, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    assert f"sqlite:///{chosen}/mlflow.db" in cli.ok("run", *SMALL, f"tracking.store={chosen}")
    assert cli.runs() == []
    assert json.loads(cli.ok("show", "last", "--json", "--store", str(chosen)))["status"] == "FINISHED"


def test_interpolation_works(cli: Cli) -> None:
    cli.ok("run", *SMALL, "seed=3", "workload.processes=${seed}", "tracking.enabled=false")


# ---- what must stay quick, and what Hydra brings ---------------------------------------------------------------------

HEAVY = ("mlflow", "numba", "hydra", "omegaconf", "numpy", "pandas", "sqlalchemy", "matplotlib", "rich")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_imports_nothing_heavy(cli: Cli, arguments: list[str]) -> None:
    code = (
        "import sys\nfrom zexp.cli.main import main\n"
        f"assert main({arguments!r}) == 0\nprint(*[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cli.cwd, env=cli.environment(), capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == ""
    if arguments != ["--version"]:
        for command in ("run", "list", "explain", "show", "ui"):
            assert f"  {command} " in done.stdout


def cpu_seconds(cli: Cli, *command: str) -> float:
    """The least CPU time of a few runs of a command: unlike the clock, it does not depend on who else is running."""
    times = []
    for _ in range(5):
        before = os.times()
        subprocess.run(command, cwd=cli.cwd, env=cli.environment(), capture_output=True, check=True)
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(times)


def test_help_costs_a_few_interpreter_starts(cli: Cli) -> None:
    bare = cpu_seconds(cli, sys.executable, "-c", "pass")
    assert cpu_seconds(cli, *cli.command("--help")) < 12 * max(bare, 0.01)


def test_run_help(cli: Cli) -> None:
    printed = cli.ok("run", "--help")
    assert "policy/accounting" in printed
    assert "eager" in printed
    assert "munmap" in printed


def test_composing_without_running(cli: Cli) -> None:
    printed = cli.ok("run", *SMALL, "--cfg", "job", "policy/accounting=lazy")
    assert re.search(r"accounting:\s+name: lazy", printed)
    assert "total_size: 1MiB" in printed
    assert cli.runs() == []


def complete(cli: Cli, line: str) -> set[str]:
    """What bash is offered for a command line, asked as the script asks that ``zexp run -sc install=bash`` prints."""
    environment = {**cli.environment(), "COMP_LINE": line, "COMP_POINT": str(len(line))}
    command = cli.command("-sc", "query=bash")
    done = subprocess.run(command, cwd=cli.cwd, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_completion(cli: Cli) -> None:
    assert "hydra_bash_completion zexp" in cli.ok("run", "-sc", "install=bash")
    assert complete(cli, "zexp ru") == set(COMMANDS)
    policies = {f"policy/accounting={n}" for n in ("eager", "lazy", "shared_atomic")}
    assert policies <= complete(cli, "zexp run policy/accounting=")
    assert policies <= complete(cli, "zexp explain -m policy/accounting=")
    assert {"machine=epyc_9684x", "machine=epyc_7642"} <= complete(cli, "zexp run machine=epyc")
    assert {"workload=munmap", "workload=store"} <= complete(cli, "zexp run policy/accounting=eager workload=")
    assert complete(cli, "zexp show la") == set()


@pytest.mark.parametrize("order", [0, 1, 2])
def test_options_and_overrides_in_any_order(cli: Cli, order: int) -> None:
    arguments = [*SMALL, "tracking.enabled=false"]
    arguments.insert(order, "-m")
    assert "comparison" in cli.ok("run", *arguments)


def test_list_shows_defaults_that_are_made_anew(cli: Cli) -> None:
    printed = cli.ok("list", "policies")
    assert "zswap_shrinker_count" in printed
    assert "_MISSING_TYPE" not in printed + cli.ok("list", "workloads")
