from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable

import pytest

from zexp.tracking import Recorder, Store, TrackingError, find_run, list_runs, load_run, run_path

from .conftest import CONFIG, make_info, make_result

Record = Callable[..., str]


def test_reading_agrees_with_mlflow(store: Store, record: Record) -> None:
    run_id = record()
    theirs, ours = store.client.get_run(run_id), load_run(store, run_id)
    assert ours.metrics == theirs.data.metrics
    assert ours.params == theirs.data.params
    assert ours.tags == theirs.data.tags
    assert (ours.run_id, ours.name, ours.status, ours.started_ms, ours.ended_ms, ours.experiment_id) == (
        run_id, theirs.info.run_name, theirs.info.status, theirs.info.start_time, theirs.info.end_time,
        theirs.info.experiment_id,
    )  # fmt: skip
    assert ours.artifact_uri == theirs.info.artifact_uri
    assert ours.config == CONFIG
    assert ours.url == store.url(run_path(ours.experiment_id, run_id))
    assert ours.profile[0]["symbol"] == "zswap_fn_00"


def test_finding(store: Store, record: Record) -> None:
    first, second = record(name="one"), record(name="two", experiment="other")
    assert find_run(store, first).run_id == first
    assert find_run(store, "one").run_id == first
    assert find_run(store, "last").run_id == second
    shortest = next(n for n in range(1, 32) if first[:n] != second[:n])
    assert find_run(store, first[:shortest]).run_id == first


def test_last_is_the_one_created_last_if_both_started_in_one_millisecond(store: Store, recorder: Recorder) -> None:
    ids = [recorder.finish(make_info(name=f"r{i}", experiment=f"e{i % 3}"), make_result()) for i in range(9)]
    with sqlite3.connect(store.database) as link:
        link.execute("UPDATE runs SET start_time = 5")
    link.close()
    assert find_run(store, "last").run_id == ids[-1]
    assert [run.run_id for run in list_runs(store)] == ids[::-1]


def test_not_found(store: Store, record: Record) -> None:
    with pytest.raises(TrackingError, match="no runs yet"):
        find_run(store, "last")
    record(name="eager-192")
    with pytest.raises(TrackingError, match="did you mean eager-192"):
        find_run(store, "eager-912")
    with pytest.raises(TrackingError, match="allowed: a run id"):
        find_run(store, "")
    with pytest.raises(TrackingError, match="allowed"):
        find_run(store, "' OR 1 --")
    second = record(name="eager-192")
    with pytest.raises(TrackingError, match=f"2 runs have that name.*latest first: {second[:12]}"):
        find_run(store, "eager-192")


def test_listing(store: Store, record: Record) -> None:
    a, b, c = record(sweep="s"), record(sweep="s", experiment="x"), record(sweep=None, experiment="x")
    assert [r.run_id for r in list_runs(store)] == [c, b, a]
    assert [r.run_id for r in list_runs(store, sweep="s")] == [b, a]
    assert [r.run_id for r in list_runs(store, experiment="x")] == [c, b]
    assert [r.run_id for r in list_runs(store, sweep="s", experiment="x")] == [b]
    assert [r.run_id for r in list_runs(store, limit=1)] == [c]
    store.client.delete_run(c)
    assert [r.run_id for r in list_runs(store)] == [b, a]


def test_a_running_run_can_be_read(store: Store) -> None:
    started = store.client.create_run(store.experiment_id("x"))
    run = load_run(store, started.info.run_id)
    assert (run.status, run.config, run.profile, run.ended_ms) == ("RUNNING", {}, [], None)


def test_damaged_and_missing_files_are_named(store: Store, record: Record) -> None:
    run = load_run(store, record())
    (run.artifacts / "functions.json").write_text("{")
    with pytest.raises(TrackingError, match=r"functions\.json is damaged"):
        load_run(store, "last")
    shutil.rmtree(run.artifacts)
    with pytest.raises(TrackingError, match="was the store moved"):
        load_run(store, "last")
