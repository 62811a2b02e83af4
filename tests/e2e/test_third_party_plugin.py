"""zexp as a wheel and a plugin of somebody else's, in a fresh environment without a checkout in sight."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from zexp.engine.sim.jit import cache_folder
from zexp.tracking import Store, list_runs

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugins" / "zexp-percpu-batched"
HAS_UV = importlib.util.find_spec("uv") is not None

pytestmark = pytest.mark.slow


def call(*command: object, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Fresh:
    """A virtual environment with nothing but the wheel, its dependencies and the plugin; and an empty folder."""

    python: Path
    cwd: Path
    store: Path

    def environment(self) -> dict[str, str]:
        dropped = ("ZEXP_", "HYDRA_", "MLFLOW_", "PYTHON", "VIRTUAL_ENV")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        return {
            **kept,
            "NUMBA_CACHE_DIR": str(Path(cache_folder()).parent),
            "ZEXP_STORE": str(self.store),
            "HOME": str(self.cwd.parent),
            "COLUMNS": "160",
        }

    def zexp(self, *arguments: str) -> str:
        return call(self.python.with_name("zexp"), *arguments, cwd=self.cwd, env=self.environment())

    def run_python(self, *arguments: str) -> str:
        return call(self.python, *arguments, cwd=self.cwd, env=self.environment())


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    folder = tmp_path_factory.mktemp("fresh")
    # Whatever a build leaves behind stays out of the checkout.
    plugin = shutil.copytree(PLUGIN, folder / "plugin")
    installer = ["--installer", "uv"] if HAS_UV else []
    call(sys.executable, "-m", "build", "--wheel", *installer, "--outdir", folder / "dist", ROOT, cwd=folder)
    (wheel,) = (folder / "dist").glob("zexp-*.whl")
    python = folder / "venv" / "bin" / "python"
    if HAS_UV:
        call(sys.executable, "-m", "uv", "venv", "--python", sys.executable, folder / "venv", cwd=folder)
        pip = [sys.executable, "-m", "uv", "pip", "install", "--python", python]
    else:
        call(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
        pip = [str(python), "-m", "pip", "install"]
    call(*pip, wheel, f"{plugin}[test]", cwd=folder)
    (folder / "cwd").mkdir()
    return Fresh(python, folder / "cwd", folder / "store")


def test_nothing_comes_from_the_checkout(fresh: Fresh) -> None:
    code = (
        "import json, sys, zexp, zexp_accounting, zexp_percpu_batched, zexp.schema\n"
        "files = [m.__file__ for m in (zexp, zexp_accounting, zexp_percpu_batched)]\n"
        "print(json.dumps([*files, str(zexp.schema.folder()), *sys.path]))"
    )
    *files, folder = (answer := json.loads(fresh.run_python("-c", code)))[:4]
    site = fresh.python.parents[1]
    assert all(Path(f).is_relative_to(site) for f in files)
    assert folder == str(Path(files[0]).parent / "conf")
    assert (Path(folder) / "machine" / "epyc_9684x.yaml").exists()
    assert not any(Path(p).is_relative_to(ROOT) for p in answer[4:] if p)


def test_list_says_where_each_policy_came_from(fresh: Fresh) -> None:
    lines = fresh.zexp("list").splitlines()
    (ours,) = [line for line in lines if "percpu_batched" in line and "zexp-percpu-batched" in line]
    assert "zexp-percpu-batched 0.3.0" in ours
    assert any("eager" in line and "zexp 0.1" in line for line in lines)
    assert any("batch" in line for line in lines), "its parameter is listed too"


def test_a_sweep_over_policies_of_two_distributions(fresh: Fresh) -> None:
    printed = fresh.zexp(
        "run", "-m", "workload=munmap", "workload.total_size=16MiB", "policy/accounting=eager,lazy,percpu_batched"
    )  # fmt: skip
    table = printed.partition("comparison")[2]
    for policy in ("eager", "lazy", "percpu_batched"):
        assert policy in table
    summary, *runs = list_runs(Store.open(fresh.store, create=False), limit=4)
    assert "summary_of" in summary.tags
    assert [r.params["policy.accounting.name"] for r in runs] == ["percpu_batched", "lazy", "eager"]
    assert {r.status for r in runs} == {"FINISHED"}
    assert len({r.tags["sweep"] for r in runs}) == 1
    assert runs[0].tags["plugin.zexp-percpu-batched"] == "0.3.0"
    assert runs[0].tags["zexp_version"] == "0.1.0"
    for run in runs:
        shown = json.loads(fresh.zexp("show", run.run_id, "--json"))
        assert shown["config"]["policy"]["accounting"]["name"] == run.params["policy.accounting.name"]
        symbols = {row["symbol"] for row in shown["profile"]}
        assert ("zswap_pages_add_batch" in symbols) == (run is runs[0])
    assert list(fresh.cwd.iterdir()) == []


def test_its_parameter_can_be_overridden_and_swept(fresh: Fresh) -> None:
    policy = ("policy/accounting=percpu_batched", "kernel=v7_3", "workload.total_size=32MiB", "workload.processes=8")
    fresh.zexp("run", "-m", *policy, "policy.accounting.batch=1,64")
    summary, after, before = list_runs(Store.open(fresh.store, create=False), limit=3)
    assert "summary_of" in summary.tags
    assert (before.params["policy.accounting.batch"], after.params["policy.accounting.batch"]) == ("1", "64")
    shared = "line/zswap_total_pages/transfers_per_page"
    assert before.metrics[shared] > after.metrics.get(shared, 0)
    assert before.name != after.name


def test_its_validation_reaches_the_user(fresh: Fresh) -> None:
    done = subprocess.run(
        [fresh.python.with_name("zexp"), "run", "policy/accounting=percpu_batched", "policy.accounting.batch=0"],
        cwd=fresh.cwd, env=fresh.environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    for part in ("zexp-percpu-batched 0.3.0", "batch=0", "a whole number of pages from 1 up"):
        assert part in line


def test_the_plugins_own_tests_pass(fresh: Fresh) -> None:
    tests = fresh.cwd.parent / "plugin" / "tests"
    assert "passed" in fresh.run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests))
