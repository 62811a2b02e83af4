from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from zexp.errors import ZexpError
from zexp.tracking import Recorder, Store, TrackingError, list_runs, run_path, store_folder

from .conftest import make_info, make_result

MLFLOW_STORE = "mlflow.store.tracking.sqlalchemy_store"


def race(folder: str, number: int, start: Barrier, outcomes: Queue[tuple[str, str]]) -> None:
    assert MLFLOW_STORE in sys.modules, "all racers must be equally ready"
    start.wait(60)
    store = Store.open(folder)
    recorder = Recorder(store)
    for own in range(3):
        info = make_info(experiment="shared", name=f"{number}-{own}")
        recorder.finish(info, make_result())
    outcomes.put((store.experiment_id("shared"), store.experiment_id(f"own-{number}")))


def python(code: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def refused(folder: Path | str, *said: str, create: bool = True) -> None:
    with pytest.raises(TrackingError) as caught:
        Store.open(folder, create=create)
    message = str(caught.value)
    assert isinstance(caught.value, ZexpError)
    assert "\n" not in message
    for part in (str(folder), *said):
        assert part in message


def test_store_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert store_folder() == tmp_path / "home/.local/share/zexp"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert store_folder() == tmp_path / "data/zexp"
    monkeypatch.setenv("ZEXP_STORE", "here/../there")
    assert store_folder() == tmp_path / "there"
    monkeypatch.setenv("ZEXP_STORE", "~/s")
    assert store_folder() == tmp_path / "home/s"


def test_created_store(store: Store) -> None:
    assert store.uri == f"sqlite:////{str(store.folder).lstrip('/')}/mlflow.db"
    assert sorted(p.name for p in store.folder.iterdir()) == [".lock", "artifacts", "mlflow.db"]
    (default,) = store.client.search_experiments()
    assert default.artifact_location.startswith("file:///")
    assert "mlruns" not in default.artifact_location


def test_opening_again_is_quick_and_changes_nothing(store: Store) -> None:
    before = store.database.stat()
    started = time.perf_counter()
    for _ in range(20):
        assert Store.open(store.folder) == store
    assert (time.perf_counter() - started) / 20 < 0.05
    assert store.database.stat() == before


def test_eight_processes_race_on_a_fresh_folder(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([MLFLOW_STORE, "mlflow"])
    start, outcomes = processes.Barrier(8), processes.Queue()
    arguments = [(str(tmp_path / "not" / "yet"), number, start, outcomes) for number in range(8)]
    racers = [processes.Process(target=race, args=a) for a in arguments]
    for racer in racers:
        racer.start()
    ids = [outcomes.get(timeout=120) for _ in racers]
    for racer in racers:
        racer.join(60)
    assert [racer.exitcode for racer in racers] == [0] * 8
    assert len({shared for shared, _ in ids}) == 1
    assert len({own for _, own in ids}) == 8
    runs = list_runs(Store.open(tmp_path / "not" / "yet"))
    assert len({run.name for run in runs if run.status == "FINISHED"}) == len(runs) == 24


def test_a_creation_that_was_killed_leaves_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db.new").write_bytes(b"half a database")
    store = Store.open(tmp_path)
    assert store.experiment_id("x") == "1"
    assert not (tmp_path / "mlflow.db.new").exists()


def test_experiments(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/elsewhere.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "77")
    names = ["a", "a b", "a_b", "../up", "a/b", "ü", "0", "x" * 200]
    ids = [store.experiment_id(name) for name in names]
    assert len(set(ids)) == len(names)
    assert [Store.open(store.folder).experiment_id(name) for name in names] == ids
    locations = {store.client.get_experiment(i).artifact_location for i in ids}
    assert len(locations) == len(names)
    assert all(location.startswith(store.artifact_root.as_uri() + "/") for location in locations)
    assert not any("/../" in location for location in locations)
    assert not (tmp_path / "elsewhere.db").exists()
    for bad in ("", "  ", "x" * 300, "a\nb"):
        with pytest.raises(TrackingError, match="experiment name"):
            store.experiment_id(bad)


def test_a_deleted_experiment_is_explained(store: Store) -> None:
    store.client.delete_experiment(store.experiment_id("gone"))
    with pytest.raises(TrackingError, match="restore it"):
        Store.open(store.folder).experiment_id("gone")


def test_a_store_survives_pickling(store: Store) -> None:
    store.experiment_id("a")
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store
    assert copy.experiment_id("a") == store.experiment_id("a")


@pytest.mark.parametrize("name", ["with space", "hash#", "ü", "quote'"])
def test_unusual_folders_work(template: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(template, tmp_path / name)
    store = Store.open(tmp_path / name)
    run = store.client.create_run(store.experiment_id("e e"))
    store.client.log_text(run.info.run_id, "hello", "a.txt")
    assert list(store.artifact_root.glob("e_e*/*/artifacts/a.txt"))


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "is a file, not a folder", "--store")
    refused(tmp_path / "file" / "below", f"{tmp_path / 'file'} is a file")
    (tmp_path / "store").mkdir()
    (tmp_path / "store/artifacts").write_text("")
    refused(tmp_path / "store", "artifacts is a file")


def test_unwritable_places(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    refused("/proc/zexp", "cannot create it", "ZEXP_STORE")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != store.folder)  # root may write anywhere
    refused(store.folder, "is not writable")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != store.database)
    refused(store.folder, "read-only")
    assert Store.open(store.folder, create=False) == store


@pytest.mark.parametrize("content", [b"", b"not a database" * 99])
def test_corrupt_databases(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mlflow.db").write_bytes(content)
    refused(tmp_path, "not a usable MLflow database", "restore it from a copy")


def test_a_truncated_database(store: Store) -> None:
    store.database.write_bytes(store.database.read_bytes()[:20_000])
    refused(store.folder, "not a usable MLflow database", "malformed")


def test_a_store_of_another_mlflow(store: Store) -> None:
    with sqlite3.connect(store.database) as link:
        link.execute("UPDATE alembic_version SET version_num = 'future'")
    link.close()
    with pytest.raises(TrackingError, match=r"another version of MLflow.*mlflow db upgrade"):
        Store.open(store.folder).experiment_id("x")


@pytest.mark.parametrize("name", ["a?b", "a%20b", "a\nb"])
def test_paths_mlflow_would_misread(tmp_path: Path, name: str) -> None:
    with pytest.raises(TrackingError, match=r"^[^\n]*MLflow cannot use a path[^\n]*$"):
        Store.open(tmp_path / name)


def test_no_store_to_read(tmp_path: Path) -> None:
    refused(tmp_path / "none", "no runs yet", create=False)
    assert not (tmp_path / "none").exists()


def test_a_store_killed_in_the_middle_of_a_write_recovers(store: Store) -> None:
    code = """
import os, sqlite3, sys
link = sqlite3.connect(sys.argv[1])
link.execute("PRAGMA cache_size = 1")
link.execute("BEGIN")
link.executemany("INSERT INTO experiment_tags VALUES (?, 'v', 0)", [(str(i) * 90,) for i in range(3000)])
os.kill(os.getpid(), 9)
"""
    assert python(code, str(store.database)).returncode == -9
    assert (store.folder / "mlflow.db-journal").exists()
    assert Store.open(store.folder).experiment_id("after") == "1"


def test_the_url_of_a_run(store: Store) -> None:
    assert store.url(run_path("3", "abc")) == (
        "http://127.0.0.1:5000/#/experiments/3/runs/abc?workflowType=machine_learning"
    )


def test_importing_and_reading_need_no_mlflow(store: Store) -> None:
    code = """
import sys
import zexp.tracking, zexp.cli.show, zexp.cli.ui
store = zexp.tracking.Store.open(sys.argv[1])
assert zexp.tracking.list_runs(store) == []
print([m for m in ("mlflow", "pandas", "pyarrow", "sqlalchemy", "yaml") if m in sys.modules])
"""
    done = python(code, str(store.folder))
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_first_use_says_nothing_and_leaves_logging_alone(tmp_path: Path) -> None:
    code = """
import logging, os, sys
handler = logging.StreamHandler(sys.stdout)
logging.basicConfig(level=logging.INFO, handlers=[handler])
other = logging.getLogger("somebody.else")
other.addHandler(logging.NullHandler()); other.setLevel(logging.DEBUG)
from zexp.tracking import Store
Store.open(sys.argv[1]).experiment_id("x")
assert logging.getLogger().handlers == [handler] and logging.getLogger().level == logging.INFO
assert len(other.handlers) == 1 and other.level == logging.DEBUG and not other.disabled
assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == os.environ["DO_NOT_TRACK"] == "true"
logging.getLogger("job").info("still here")
"""
    done = python(code, str(tmp_path / "s"))
    assert (done.stdout, done.stderr, done.returncode) == ("INFO:job:still here\n", "", 0)
