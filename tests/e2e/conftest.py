"""The real command line in processes of its own, with a store of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from zexp.engine.sim.jit import cache_folder
from zexp.tracking import RunEntry, Store, list_runs

SMALL = ("machine=laptop", "workload.total_size=1MiB")
"""A run of a few milliseconds."""


@dataclass
class Cli:
    """``zexp ARGUMENTS`` in an empty working directory."""

    store: Path
    cwd: Path
    extra_path: list[Path] = field(default_factory=list)
    """More folders in which Python finds distributions."""

    def environment(self) -> dict[str, str]:
        dropped = ("ZEXP_", "HYDRA_", "MLFLOW_", "PYTHON", "COLUMNS", "FORCE_COLOR", "TERM")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        home = {"ZEXP_STORE": str(self.store), "HOME": str(self.cwd.parent / "home"), "COLUMNS": "160", "TERM": "dumb"}
        home["NUMBA_CACHE_DIR"] = str(Path(cache_folder()).parent)  # else every new home would compile anew
        path = {"PYTHONPATH": os.pathsep.join(map(str, self.extra_path))} if self.extra_path else {}
        return {**kept, **home, **path}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "zexp.cli.main", *arguments]

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), cwd=self.cwd, env=self.environment(), capture_output=True, text=True, timeout=300
        )

    def ok(self, *arguments: str) -> str:
        """Run, succeed, and give what was printed."""
        done = self(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def mistake(self, *arguments: str) -> str:
        """Run, fail as a mistake in the input must, and give the one line about it."""
        done = self(*arguments)
        assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
        lines = done.stderr.splitlines()
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("zexp: ")
        assert "Traceback" not in done.stdout
        return lines[0].removeprefix("zexp: ")

    def runs(self) -> list[RunEntry]:
        """All runs in the store, latest first."""
        return list_runs(Store.open(self.store, create=False)) if self.store.exists() else []

    def points(self) -> list[RunEntry]:
        """The runs of the one sweep in the store, latest first; there is one summary of it as well."""
        (summary,) = [run for run in self.runs() if "summary_of" in run.tags]
        assert summary.status == "FINISHED"
        points = [run for run in self.runs() if run.run_id != summary.run_id]
        assert {run.tags["sweep"] for run in points} == {summary.tags["summary_of"]}
        return points

    def show(self, run: str = "last") -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.ok("show", run, "--json"))
        return shown


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store: making one takes seconds, copying it does not."""
    return Store.open(tmp_path_factory.mktemp("template") / "store").folder


@pytest.fixture
def cli(template: Path, tmp_path: Path) -> Cli:
    """The command line, with a store without runs and an empty working directory."""
    shutil.copytree(template, tmp_path / "store")
    for folder in ("cwd", "home"):
        (tmp_path / folder).mkdir()
    return Cli(tmp_path / "store", tmp_path / "cwd")


Install = Callable[..., Path]


@pytest.fixture
def install(cli: Cli, tmp_path: Path) -> Install:
    """Make a distribution as pip would leave it, without pip: a module beside its metadata."""

    def make(code: str, module: str = "acme_policies", version: str = "2.5") -> Path:
        site = tmp_path / "site"
        info = site / f"{module}-{version}.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(textwrap.dedent(code))
        name = module.replace("_", "-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[zexp]\n{module} = {module}\n")
        if site not in cli.extra_path:
            cli.extra_path.append(site)
        return site / f"{module}.py"

    return make
