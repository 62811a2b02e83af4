"""Sweeps as users start, resume and repeat them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]

from zexp.tracking import RunEntry, Store, list_runs

from .conftest import Cli

BASE = ("experiment=munmap_24g", "machine=laptop", "workload.total_size=2MiB")
POINTS = (*BASE, "policy/accounting=eager,lazy", "workload.processes=1,2")


def sweep_of(output: str) -> str:
    """The id that a sweep has printed."""
    found = re.search(r"^sweep  (\d{8}-\d{6}-[0-9a-f]{6})", output, re.MULTILINE)
    assert found, output
    return found[1]


def runs_of(cli: Cli, sweep: str) -> list[RunEntry]:
    return list_runs(Store.open(cli.store, create=False), sweep=sweep)


def tables(runs: list[RunEntry]) -> dict[str, bytes]:
    """The profile of each run, to the byte."""
    return {run.name: (run.artifacts / "functions.json").read_bytes() for run in runs}


@pytest.fixture(scope="module")
def shared(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """One store for all of these, as each command takes seconds."""
    folder = tmp_path_factory.mktemp("sweeps")
    shutil.copytree(template, folder / "store")
    for name in ("cwd", "home"):
        (folder / name).mkdir()
    cli = Cli(folder / "store", folder / "cwd")
    yield cli
    assert list(cli.cwd.iterdir()) == [], "nothing lies in the working directory"


@pytest.fixture(scope="module")
def swept(shared: Cli) -> tuple[str, str]:
    """A sweep that has run: its id, and what it printed."""
    output = shared.ok("run", "-m", *POINTS)
    return sweep_of(output), output


def test_a_sweep_makes_one_run_for_each_point(shared: Cli, swept: tuple[str, str]) -> None:
    sweep, output = swept
    assert "4 of 4 points finished" in output
    runs = runs_of(shared, sweep)
    assert {(run.name, run.params["policy.accounting.name"], run.params["workload.processes"]) for run in runs} == {
        (f"{policy} processes={n}", policy, n) for policy in ("eager", "lazy") for n in ("1", "2")
    }
    for run in runs:
        assert (run.status, run.experiment, run.tags["sweep"]) == ("FINISHED", "munmap_24g", sweep)
        assert run.tags["swept"] == "policy.accounting.name workload.processes"
        assert run.tags["overrides"] == f"policy/accounting={run.name.split()[0]} workload.{run.name.split()[1]}"
    assert len({run.tags["identity"] for run in runs}) == len({run.tags["delivery"] for run in runs}) == 4


def test_launchers_give_the_same_to_the_byte_and_rerun_runs_what_is_there(shared: Cli, swept: tuple[str, str]) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    output = shared.ok("run", "-m", *POINTS, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "sweep.rerun=true")
    assert "4 points, 2 workers" in output
    first, second = runs_of(shared, swept[0]), runs_of(shared, sweep_of(output))
    assert tables(second) == tables(first)
    assert len(tables(first)) == 4
    assert {run.run_id for run in first}.isdisjoint(run.run_id for run in second)
    for run in (*first, *second):
        assert {r.tags["identity"] for r in (*first, *second) if r.name == run.name} == {run.tags["identity"]}


def test_points_that_an_earlier_sweep_has_are_not_run_again(shared: Cli, swept: tuple[str, str]) -> None:
    before = len(shared.runs())
    done = shared("run", "-m", *BASE, "workload.processes=1,'1',4")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "zexp: 1 of 3 points say the same as others; each is run once",
        "zexp: 1 of 2 points are in the store already, of the same configuration and code, and not run again; "
        "sweep.rerun=true runs them",
    ]
    sweep = sweep_of(done.stdout)
    runs = runs_of(shared, sweep)
    assert "2 of 2 points finished" in done.stdout
    assert {run.params["workload.processes"] for run in runs} == {"1", "4"}
    (own,) = (run for run in runs if run.tags["sweep"] == sweep)
    assert own.name == "processes=4"
    assert len(shared.runs()) == before + 2, "the new point, and the summary"


def test_resuming_a_complete_sweep_runs_nothing(shared: Cli, swept: tuple[str, str]) -> None:
    before = {run.run_id: run.ended_ms for run in runs_of(shared, swept[0])}
    output = shared.ok("run", f"resume={swept[0]}")
    assert sweep_of(output) == swept[0]
    assert "4 of 4 points finished" in output
    assert {run.run_id: run.ended_ms for run in runs_of(shared, swept[0])} == before


def test_changed_code_is_refused_with_the_difference_or_accepted_and_said(shared: Cli) -> None:
    done = shared("run", "-m", *BASE, "workload.processes=0,2", "seed=77", "tracking.enabled=true")
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stderr == "zexp: workload.processes=0: a whole number from 1 up [workload.processes=0]\n"
    assert "1 of 2 points finished, 1 failed" in done.stdout
    sweep = sweep_of(done.stdout)
    assert f"resume it: zexp run -m resume={sweep}" in done.stdout
    path = shared.store / "sweeps" / sweep / "manifest.json"
    manifest = json.loads(path.read_text())
    files = manifest["files"]
    files["zexp/sweep/code.py"] = "0" * 12
    files["zexp/gone.py"] = "1" * 12
    del files["conf/config.yaml"]
    path.write_text(json.dumps({**manifest, "code": "other"}))

    difference = "conf/config.yaml new, zexp/gone.py removed, zexp/sweep/code.py changed"
    said = shared.mistake("run", "-m", f"resume={sweep}")
    assert said.startswith(f"resume={sweep}: the code is not what the sweep was begun with: {difference}; ")
    assert "sweep.accept_changes=true" in said

    done = shared("run", "-m", f"resume={sweep}", "sweep.accept_changes=true")
    assert done.returncode == 3
    assert f"sweep  {sweep}: 1 of 2 points, 1 worker" in done.stdout
    runs = {run.params["workload.processes"]: run for run in runs_of(shared, sweep)}
    assert sorted(runs) == ["0", "2"], "an attempt is no second run"
    assert runs["0"].status == "FAILED"
    assert runs["0"].tags["attempts"] == "2"
    assert runs["0"].tags["resumed_with"] == difference.replace(", ", "; ")
    assert "resumed_with" not in runs["2"].tags
    traces = sorted(path.name for path in runs["0"].artifacts.glob("traceback*"))
    assert traces == ["traceback-2.txt", "traceback.txt"]


def test_on_failure_stop_begins_nothing_more(shared: Cli) -> None:
    done = shared("run", "-m", *BASE, "workload.processes=0,3,5,6,7", "sweep.on_failure=stop")
    assert done.returncode == 3
    assert "0 of 5 points finished, 1 failed, 4 not run" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("-m", *BASE, "workload.processes=range(3,1)"), ("workload.processes=range(3,1): this sweep has no points",)),
        (
            ("-m", *BASE, "seed=1,2", "workload.processes=8,x,9"),
            ("workload.processes=x", "[seed=1 workload.processes=x]", "(and 1 more of 6 points; none was run)"),
        ),
        (("-m", *BASE, "seed=1,2", "machine=null"), ("machine=null: a group needs the name of one of its choices",)),
        (
            ("-m", *BASE, "seed=1,2", "hydra/sweeper=basic", "hydra/sweeper=optuna"),
            ("hydra/sweeper=basic,optuna: a sweep has one sweeper",),
        ),
        (("-m", *BASE, "seed=interval(0,9)"), ("seed=interval(0,9): only a search",)),
        (("-m", *BASE, "seed=1,2", "sweep.workers=0"), ("sweep.workers=0: a whole number from 1 up",)),
        (("-m", *BASE, "seed=1,2", "sweep.on_failure=never"), ("sweep.on_failure=never: allowed: continue, stop",)),
        pytest.param(
            ("-m", *BASE, "seed=1,2", "name='a\tb'"),
            ("experiment name", "printable characters"),
        ),
        (("-m", "resume=20990101"), ("resume=20990101: no such sweep", "sweeps)")),
    ],
    ids=str,
)
def test_mistakes_are_named_before_anything_is_written(cli: Cli, arguments: tuple[str, ...], parts: tuple[str]) -> None:
    said = cli.mistake("run", *arguments)
    for part in parts:
        assert part in said
    assert cli.runs() == []
    assert not (cli.store / "sweeps").exists()
    assert not (cli.store / "spool").exists()


def test_a_sweep_that_is_resumed_keeps_its_points(shared: Cli, swept: tuple[str, str]) -> None:
    before = len(shared.runs())
    said = shared.mistake("run", "-m", f"resume={swept[0]}", "seed=3")
    assert said.startswith("seed=3: a sweep that is resumed keeps its points; only hydra/launcher")
    assert len(shared.runs()) == before


def test_unusual_names_long_values_and_several_seeds(shared: Cli) -> None:
    source = "s" * 7000
    odd = ("name='a/b: ü (1)?'", f"published.source={source}", "+published.self_pct={e@g?:{f%x:1.5}}")
    readers = ("machine=laptop", "workload=stat_readers", "policy/flush=sync,min_interval", "seeds=3", "seed=10")
    sweep = sweep_of(shared.ok("run", "-m", *readers, *odd))
    runs = runs_of(shared, sweep)
    assert [run.experiment for run in runs] == ["a/b: ü (1)?"] * 2
    for run in runs:
        assert run.status == "FINISHED"
        shown = run.params["published.source"]
        assert len(shown) == 6000
        assert shown.endswith("... (7000 characters, whole in config.yaml)")
        assert run.params["published.self_pct.e_g_.f_x"] == "1.5"
        config = yaml.safe_load((run.artifacts / "config.yaml").read_text())
        assert config["published"]["source"] == source
        assert config["published"]["self_pct"]["e@g?"] == {"f%x": 1.5}
        assert run.tags["seeds"] == "3"
        table = json.loads((run.artifacts / "replications.json").read_text())
        rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
        times = [row["time/total_ms"] for row in rows]
        assert [row["seed"] for row in rows] == [10, 11, 12]
        assert len(set(times)) == 3
        assert run.metrics["time/total_ms"] == pytest.approx(sum(times) / 3)
    compared = shared.ok("compare", sweep)
    assert re.search(r"time/total_ms.*±", compared), compared
    assert "3 seeds; ± is a 95 % interval" in " ".join(compared.split())


def test_a_damaged_parcel_in_the_spool_holds_up_no_run(cli: Cli) -> None:
    damaged = cli.store / "spool" / "1700000000000-0123456789abcdef"
    damaged.mkdir(parents=True)
    (damaged / "parcel.json").write_text("{")
    done = cli("run", *BASE)
    assert [run.status for run in cli.runs()] == ["FINISHED"]
    assert done.returncode == 0
    assert f"{damaged}: a damaged parcel" in done.stderr
