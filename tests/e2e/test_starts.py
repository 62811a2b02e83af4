"""Many processes that start at once, where nothing exists yet."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from zexp.sweep.folder import Folder, Manifest, new_id
from zexp.tracking import Store, list_runs

from .conftest import SMALL, Cli

SINGLE, SWEEPS, POINTS = 4, 4, 3


@pytest.mark.slow
def test_eight_processes_on_a_store_that_does_not_exist(tmp_path: Path) -> None:
    """No error, one store, all runs; and no two sweeps share a folder."""
    for name in ("cwd", "home"):
        (tmp_path / name).mkdir()
    cli = Cli(tmp_path / "not" / "yet", tmp_path / "cwd")
    commands = [cli.command("run", *SMALL, f"seed={n}", f"name=single_{n % 2}") for n in range(SINGLE)]
    swept = f"workload.processes=range(1,{POINTS + 1})"
    commands += [cli.command("run", "-m", *SMALL, swept, f"seed={n}", f"name=sweep_{n % 2}") for n in range(SWEEPS)]
    started = [
        subprocess.Popen(
            command,
            cwd=cli.cwd,
            env=cli.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        ended = [(process.communicate(timeout=300), process.returncode) for process in started]
    finally:
        for process in started:
            process.kill()
    for (_, errors), status in ended:
        # said whenever loading the simulator takes long, as it may where so many start
        said = [line for line in errors.splitlines() if not line.startswith("zexp: compiling the simulator")]
        assert (status, said) == (0, [])
    store = Store.open(cli.store, create=False)
    runs = list_runs(store)
    of_sweeps = [run for run in runs if "sweep" in run.tags]
    points = [run for run in runs if "policy.accounting.name" in run.params]
    assert len(points) == SINGLE + SWEEPS * POINTS
    assert {run.status for run in runs} == {"FINISHED"}
    assert {run.params["seed"] for run in points if run not in of_sweeps} == {str(n) for n in range(SINGLE)}
    sweeps = {run.tags["sweep"] for run in of_sweeps}
    assert sweeps == {path.name for path in (cli.store / "sweeps").iterdir()}
    assert len(sweeps) == SWEEPS
    for sweep in sweeps:
        found = [run for run in of_sweeps if run.tags["sweep"] == sweep]
        assert len({run.params["seed"] for run in found}) == 1
        assert sorted(run.params["workload.processes"] for run in found) == [str(n + 1) for n in range(POINTS)]
    with closing(sqlite3.connect(store.database)) as link:
        assert link.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = [row[0] for row in link.execute("SELECT name FROM experiments")]
    assert sorted(names) == ["Default", "single_0", "single_1", "sweep_0", "sweep_1"]
    assert [path.name for path in (cli.store / "spool").iterdir() if path.is_dir()] == []
    assert list(cli.cwd.iterdir()) == []
    assert not list((tmp_path / "not").rglob("mlflow.db?*")), "no draft of the database is left"


def test_same_second_starts_never_share_a_folder(tmp_path: Path) -> None:
    """Each of many ids of one second is new; and a folder that is there is not taken for one's own."""

    def manifest(sweep: str) -> Manifest:
        return Manifest(sweep, (), (), (), code="", files={}, tracked=True, points=())

    ids = [new_id() for _ in range(20)]
    folders = {Folder.create(tmp_path, manifest(sweep)).path for sweep in ids}
    assert len(folders) == len(ids)
    for sweep in ids:
        with pytest.raises(Exception, match="cannot be written"):
            Folder.create(tmp_path, manifest(sweep))
