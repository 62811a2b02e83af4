# mypy: disable-error-code="import-untyped"
from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from pyarrow import parquet

from zexp.cli import show
from zexp.errors import Interrupted, SimulationError
from zexp.result import Profile, StackTime, TimeSeries
from zexp.tracking import Recorder, RunInfo, Spool, Store, TrackingError, list_runs, load_run

from .conftest import CONFIG, make_info, make_result

Record = Callable[..., str]


def artifacts(store: Store, run_id: str) -> dict[str, bytes]:
    root = load_run(store, run_id).artifacts
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_what_a_run_holds(store: Store, record: Record) -> None:
    run_id = record()
    run = store.client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "eager-0"
    tags = run.data.tags
    assert {k: tags[k] for k in ("sweep", "seed", "config_hash", "machine_digest", "engine")} == {
        "sweep": "sweep-1", "seed": "7", "config_hash": "abc123", "machine_digest": "m192", "engine": "sim",
    }  # fmt: skip
    assert tags["plugin.zexp-plugins"] == "1.0"
    assert tags["plugin.third_party"] == "0.1"
    assert tags["mlflow.note.content"].startswith("# What")
    assert tags["mlflow.source.name"] == "zexp"
    assert tags["zexp_version"]
    assert tags["metrics_not_finite"] == "broken=nan, endless=inf"
    assert tags["profile_base"] == "CPU time of munmap"
    assert run.data.params == {
        "workload.name": "munmap", "workload.threads": "4", "workload.nodes.0": "0", "workload.nodes.1": "1",
        "policy.accounting": "eager", "policy.cycles_late": "2.0", "policy.limit": "null", "policy.fast": "true",
    }  # fmt: skip
    metrics = run.data.metrics
    assert metrics["lock/tree_lock/wait_ns"] == 12.5
    assert metrics["rate _"] == 3.0
    assert metrics["wall_s"] == 0.5
    assert metrics["sim_ns"] == 1_234_567.0
    shares = [name for name in metrics if name.startswith("profile/self_pct/")]
    assert len(shares) == 10
    assert metrics["profile/self_pct/zswap_fn_00"] == pytest.approx(100 * 60 / 1830, abs=0.001)


def test_shares_of_another_comm_name_it(store: Store, recorder: Recorder) -> None:
    stacks = (StackTime("busy", ("f",), 10_000_000), StackTime("kworker/u8:1", ("f<x>",), 1_000_000))
    run_id = recorder.finish(make_info(), replace(make_result(), profile=Profile(stacks)))
    shares = {k: v for k, v in load_run(store, run_id).metrics.items() if k.startswith("profile")}
    assert shares == {"profile/self_pct/f": 100.0, "profile/self_pct/kworker_u8:1/f_x_": 100.0}


def test_artifacts(store: Store, record: Record) -> None:
    files = artifacts(store, record())
    assert sorted(files) == [
        "config.yaml", "functions.json", "functions.md", "lines.json", "lines.md", "locks.json", "locks.md",
        "raw/histograms.json", "raw/profile.folded", "raw/profile.parquet",
    ]  # fmt: skip
    assert yaml.safe_load(files["config.yaml"]) == CONFIG
    table = json.loads(files["functions.json"])
    assert table["columns"] == ["symbol", "self_pct", "children_pct", "ns_per_page", "comm", "base"]
    symbols = [row[0] for row in table["data"]]
    assert {"munmap", "free_swap_and_cache", "kswapd"} <= set(symbols)  # no time of their own, but below them
    assert "zswap_fn_59" not in symbols
    assert table["data"][0] == ["zswap_fn_00", 3.28, 3.28, 60.0, "munmap", "CPU time of munmap"]
    assert files["functions.md"].decode().splitlines()[1] == "| --- | ---: | ---: | ---: | --- | --- |"
    assert "cgroup_rstat_flush&lt;locked>" in files["functions.md"].decode()
    assert json.loads(files["locks.json"])["data"] == [["tree_lock", 100, 7, 7.0, 32.0, 8.0]]
    assert json.loads(files["lines.json"])["data"] == [["zswap_pool_total_size", 40, 100.0, 0.004]]
    raw = parquet.read_table(io.BytesIO(files["raw/profile.parquet"])).to_pylist()
    assert len(raw) == 61
    assert raw[0] == {
        "comm": "kswapd0", "stack": "kswapd;cgroup_rstat_flush<locked>", "symbol": "cgroup_rstat_flush<locked>",
        "self_ps": 7_000_000,
    }  # fmt: skip
    histograms = json.loads(files["raw/histograms.json"])
    assert list(histograms) == ["flush_ns", "lock/tree_lock/hold_ns", "lock/tree_lock/wait_ns"]
    assert histograms["flush_ns"]["buckets"][0] == [0, 1, 1]


def test_no_lock_files_without_locks(store: Store, recorder: Recorder) -> None:
    run_id = recorder.finish(make_info(), replace(make_result(), locks=(), lines=(), profile=Profile(()), pages=None))
    assert not [name for name in artifacts(store, run_id) if name.startswith(("locks", "lines"))]
    assert load_run(store, run_id).profile == []


def test_identical_results_give_identical_bytes(store: Store, record: Record, recorder: Recorder) -> None:
    first = artifacts(store, record())
    result = make_result()
    info = make_info()
    shuffled = replace(result, profile=Profile(result.profile.stacks[::-1]), wall_s=9.0)
    again = recorder.finish(info, shuffled)
    assert artifacts(store, again) == first


@pytest.fixture
def fluent(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point MLflow's global state at the store: even ``MlflowClient.load_table`` searches there."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)


@pytest.mark.usefixtures("fluent")
def test_mlflow_reads_the_tables_as_its_own(store: Store, record: Record) -> None:
    runs = [record(), record(name="second")]
    experiment = store.experiment_id("accounting")
    for name, column in (("functions", "symbol"), ("locks", "name"), ("lines", "name")):
        frame = store.client.load_table(experiment, f"{name}.json", run_ids=runs, extra_columns=["run_id"])
        assert frame.columns[0] == column
        assert set(frame["run_id"]) == set(runs)
    assert len(store.client.load_table(experiment, "functions.json")) > 80  # found by the tag alone
    tag = json.loads(store.client.get_run(runs[0]).data.tags["mlflow.loggedArtifacts"])
    assert tag[0] == {"path": "functions.json", "type": "table"}


@pytest.mark.usefixtures("fluent")
def test_the_format_is_that_of_log_table(store: Store, record: Record) -> None:
    run_id = record()
    frame = store.client.load_table(store.experiment_id("accounting"), "functions.json", run_ids=[run_id])
    store.client.log_table(run_id, frame, "theirs.json")
    files = artifacts(store, run_id)
    assert json.loads(files["theirs.json"]) == json.loads(files["functions.json"])


def test_extra_files(store: Store, recorder: Recorder) -> None:
    info = make_info()
    run_id = recorder.finish(info, make_result(), {"flame.svg": "<svg/>", "raw/x/y.bin": b"\0\1"})
    files = artifacts(store, run_id)
    assert files["flame.svg"] == b"<svg/>"
    assert files["raw/x/y.bin"] == b"\0\1"
    for path in ("../up", "/abs", ""):
        with pytest.raises(TrackingError, match="relative"):
            recorder.finish(info, make_result(), {path: ""})


def test_failed_and_killed_runs(store: Store, recorder: Recorder) -> None:
    try:
        raise SimulationError("deadlock:\nall 192 CPUs\twait")
    except SimulationError as error:
        failed = recorder.fail(make_info(name="failed"), error)
    killed = recorder.fail(make_info(name="killed"), Interrupted(), "KILLED")
    foreign = recorder.fail(make_info(name="foreign"), ValueError("x" * 9000))
    assert {run.name: run.status for run in list_runs(store)} == {
        "failed": "FAILED", "killed": "KILLED", "foreign": "FAILED",
    }  # fmt: skip
    run = load_run(store, failed)
    assert run.tags["error"] == "deadlock: all 192 CPUs wait"
    assert "SimulationError" in (run.artifacts / "traceback.txt").read_text()
    assert run.config == CONFIG
    assert run.params["workload.threads"] == "4"
    assert load_run(store, killed).tags["error"] == "Interrupted"
    long = load_run(store, foreign).tags["error"]
    assert long.startswith("ValueError: xxx")
    assert long.endswith("(9012 characters, whole in traceback.txt)")


def test_a_run_that_cannot_be_written_now_is_written_later(
    store: Store, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(store, "put_files", full)
        with pytest.raises(TrackingError, match="No space left"):
            recorder.finish(make_info(), make_result())
    assert [run.status for run in list_runs(store)] == ["RUNNING"]
    assert len(Spool.of(store).deliver(store)) == 1
    assert [run.status for run in list_runs(store)] == ["FINISHED"]
    assert Spool.of(store).waiting() == []


def test_the_environment_does_not_divert_runs(
    store: Store, recorder: Recorder, record: Record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = record(name="other")
    monkeypatch.setenv("MLFLOW_RUN_ID", other)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/elsewhere.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "0")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "wrong")
    run_id = record(name="mine")
    assert run_id != other
    assert load_run(store, "mine").experiment == "accounting"
    assert not (tmp_path / "elsewhere.db").exists()


def test_nothing_is_written_to_the_current_folder(
    template: Path, record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    record()
    assert os.listdir() == []


def test_awkward_input_is_recorded(store: Store, recorder: Recorder) -> None:
    config = {"long": "x" * 7000, "a[0]": "b\ud800", "": {"..": [None, []]}, "big": list(range(300))}
    info = make_info(config=config, name="", notes="n" * 9000, sweep=None, plugins={})
    metrics = {f"m/{i}": float(i) for i in range(1500)}
    run_id = recorder.finish(info, replace(make_result(), metrics=metrics))
    run = load_run(store, run_id)
    assert run.params["big.299"] == "299"
    assert run.metrics["m/1499"] == 1499
    assert run.config["long"] == "x" * 7000
    assert run.name  # MLflow makes one up
    assert "sweep" not in run.tags
    assert run.tags["mlflow.note.content"].endswith("(9000 characters, whole in notes.md)")
    assert (run.artifacts / "notes.md").read_text() == "n" * 9000


MS = 1_000_000


def test_series(store: Store, recorder: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    series = {
        "stale": TimeSeries("pages", (0, 5 * MS, 5 * MS + 1, 7 * MS - 1), (3, 900, -2, 40), 6),
        "long": TimeSeries("ns", tuple(i * MS for i in range(2500)), tuple(range(2500))),
        "a/b%": TimeSeries("ns", (3 * MS,), (1 << 62,)),
        "a/b_": TimeSeries("ns", (3 * MS,), (5,)),
        "empty": TimeSeries("ns", (), ()),
        "sim": TimeSeries("ns", (MS,), (1,)),
    }
    result = replace(make_result(), series=series, metrics={"series/sim": 8.0})
    info = make_info()
    run_id = recorder.finish(info, result)
    start = store.client.get_run(run_id).info.start_time

    def history(key: str) -> list[tuple[int, int, float]]:
        found = store.client.get_metric_history(run_id, key)
        return sorted((m.step, m.timestamp - start, m.value) for m in found)

    # Of two values in one ms the later one, though MLflow would call the larger one the latest.
    assert history("series/stale") == [(0, 0, 3), (5, 5, -2), (6, 6, 40)]
    assert history("series/long") == [(i, i, i) for i in range(2500)]
    run = load_run(store, run_id)
    assert run.metrics["series/stale"] == 40
    assert run.metrics["series/long"] == 2499
    assert run.metrics["series/a/b_"] == 5
    assert run.metrics["series/sim"] == 8  # a metric of the run: the series gives way
    assert sorted(v for k, v in run.metrics.items() if k.startswith("series/")) == [1, 5, 8, 40, 2499, 1 << 62]
    assert run.tags["series_dropped"] == "stale=6"
    raw = json.loads((run.artifacts / "raw" / "series.json").read_text())
    assert raw["stale"] == {
        "unit": "pages", "times_ns": [0, 5 * MS, 5 * MS + 1, 7 * MS - 1], "values": [3, 900, -2, 40], "dropped": 6,
    }  # fmt: skip
    assert show.main([run_id, "--store", str(store.folder)]) == 0
    assert "series/long" in capsys.readouterr().out


def test_the_info_is_frozen() -> None:
    info: RunInfo = make_info()
    with pytest.raises(AttributeError):
        info.seed = 1  # type: ignore[misc]
