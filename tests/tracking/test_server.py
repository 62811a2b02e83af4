"""An MLflow server's runs are those of its database, as the local reader sees them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from zexp.errors import ZexpError
from zexp.tracking import (
    MlflowStore,
    Recorder,
    RunEntry,
    Spool,
    Store,
    TrackingError,
    UnreachableError,
    find_run,
    list_runs,
    load_run,
    open_store,
    run_path,
)
from zexp.tracking.reader import finished_identities, reused_tag, sweep_marks
from zexp.tracking.server import Server

from .conftest import CONFIG, make_info, make_result
from .test_cli import free_port

slow = pytest.mark.slow


@contextlib.contextmanager
def serving(store: Store, log: Path) -> Iterator[str]:
    """``mlflow server`` on this store's database."""
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", store.uri, "--artifacts-destination", str(store.artifact_root)]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, stdout=out, stderr=out, cwd=log.parent, env={**os.environ, **quiet}, start_new_session=True
        )
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 120
    try:
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=2):
                break
            assert child.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(child.pid, signal.SIGKILL)  # the group of this child alone
        child.wait()


@pytest.fixture(scope="module")
def both(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Server]]:
    """A database with some runs, and a server on it."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(template, folder / "store")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ZEXP_STORE", str(folder / "home"))
        local = Store.open(folder / "store")
        fill(local)
        with serving(local, folder / "log") as address:
            server = open_store(address + "/")
            assert isinstance(server, Server)
            yield local, server


def fill(store: Store) -> None:
    """Runs of two sweeps and none, finished and not, in two experiments."""
    recorder, at = Recorder(store), 1_700_000_000_000

    def tags(identity: str, code: str = "c1") -> dict[str, str]:
        return {"identity": identity, "code": code}

    for number in range(3):
        info = make_info(name=f"point {number}", sweep="s1", key=f"s1/{number}", tags=tags(f"i{number}"))
        recorder.finish(info, make_result(), started_ms=at + number)
    failed = make_info(name="failed", sweep="s1", key="s1/3", tags=tags("i3"))
    recorder.fail(failed, ValueError("no"), started_ms=at + 3)
    other = make_info(name="other code", sweep="s2", key="s2/0", tags=tags("i0", "c2"), experiment="it's")
    recorder.finish(other, make_result(), started_ms=at + 4)
    again = make_info(name="point 0", sweep="s2", key="s2/1", tags=tags("i0"))
    latest = recorder.finish(again, make_result(), started_ms=at + 5)
    recorder.finish(make_info(name="alone", sweep=None, tags=tags("i9")), make_result(), started_ms=at + 6)
    store.client.set_tag(latest, reused_tag("s3"), "reused")
    gone = recorder.finish(make_info(name="gone", sweep="s1", key="s1/9", tags=tags("i8")), make_result())
    store.client.delete_run(gone)
    recorder.summary("accounting", "s1", "# s1", {"m": 1.0}, {"summary.md": "# s1"})


def same(local: RunEntry, remote: RunEntry, server: Server) -> None:
    theirs = {**vars(remote), "url": None}
    assert theirs == {**vars(local), "url": None}
    assert remote.url == server.url(run_path(local.experiment_id, local.run_id))


@slow
@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"sweep": "s1"},
        {"sweep": "s3"},
        {"sweep": "none"},
        {"experiment": "it's"},
        {"experiment": "none"},
        {"limit": 0},
        {"limit": 2},
        {"sweep": "s1", "limit": 2},
        {"sweep": "s2", "experiment": "it's"},
        {"experiment": "it's", "limit": 1},
        {"sweep": "s2", "experiment": "it's", "limit": 1},
    ],
    ids=str,
)
def test_lists_are_those_of_the_database(both: tuple[Store, Server], filters: dict[str, object]) -> None:
    local, server = both
    here, there = list_runs(local, **filters), list_runs(server, **filters)  # type: ignore[arg-type]
    assert [run.name for run in there] == [run.name for run in here]
    for ours, theirs in zip(here, there, strict=True):
        same(ours, theirs, server)
    assert len(list_runs(local)) == 8, "else all of this says little"


def outcome(ask: Callable[[], object]) -> object:
    """What is found, or what is said instead."""
    try:
        return ask()
    except TrackingError as error:
        return type(error), str(error)


@slow
def test_what_is_found_is_what_the_local_reader_finds(both: tuple[Store, Server]) -> None:
    local, server = both
    some = list_runs(local)[3].run_id
    for ref in ("last", "alone", some, some[:20], "point 0", "", "' OR 1", "alon", "gone"):
        here = outcome(lambda ref=ref: find_run(local, ref).run_id)  # type: ignore[misc]
        there = outcome(lambda ref=ref: find_run(server, ref).run_id)  # type: ignore[misc]
        assert str(there).replace(str(server), "STORE") == str(here).replace(str(local), "STORE"), ref
    assert find_run(server, "last").name == "alone", "no summary"


@slow
def test_loaded_runs_are_those_of_the_database(both: tuple[Store, Server]) -> None:
    local, server = both
    for name in ("alone", "failed"):
        here, there = load_run(local, name), load_run(server, name)
        same(here, there, server)
        assert there.config == CONFIG
        assert there.profile == here.profile
    assert load_run(server, "alone").profile[0]["symbol"] == "zswap_fn_00"


@slow
@pytest.mark.parametrize("sweep", ["s1", "s2", "s3", "none"])
def test_marks_are_those_of_the_database(both: tuple[Store, Server], sweep: str) -> None:
    local, server = both
    assert sweep_marks(server, sweep) == sweep_marks(local, sweep)


@slow
def test_marks_say_what_was_made_and_what_was_taken(both: tuple[Store, Server]) -> None:
    for store in both:
        points = {f"s1/{i}": "FINISHED" for i in range(3)}
        assert sweep_marks(store, "s1").by_key == {**points, "s1/3": "FAILED"}
        assert sweep_marks(store, "s3").reused == {"i0"}


@slow
def test_finished_identities_are_those_of_the_database(both: tuple[Store, Server]) -> None:
    local, server = both
    for experiment in ("accounting", "it's", "none"):
        for code in ("c1", "c2", "c3"):
            found = finished_identities(server, experiment, code)
            assert found == finished_identities(local, experiment, code), (experiment, code)
    found = finished_identities(server, "accounting", "c1")
    assert sorted(found) == ["i0", "i1", "i2", "i9"], "neither failed nor deleted ones"
    assert found["i0"] == list_runs(local, sweep="s3")[0].run_id, "the latest of several"


@slow
def test_tags_are_found(both: tuple[Store, Server]) -> None:
    local, server = both
    assert server.with_tag("delivery", "s1/3") == local.with_tag("delivery", "s1/3") != {}
    assert server.with_tag("delivery", "none") == {}


@slow
def test_a_run_that_is_sent_is_whole_and_again_changes_it_only(both: tuple[Store, Server]) -> None:
    local, server = both
    info = make_info(experiment="sent over", sweep="s9", key="s9/0")
    run_id = Recorder(server).fail(info, ValueError("first"))
    assert Recorder(server).finish(replace(info, first=False), make_result()) == run_id
    (run,) = list_runs(server, sweep="s9")
    assert (run.run_id, run.status, run.tags["attempts"]) == (run_id, "FINISHED", "2")
    assert "error" not in run.tags
    stored = load_run(server, run_id)
    assert stored.config == CONFIG
    assert stored.profile == load_run(local, "alone").profile
    assert "ValueError: first" in (server.artifact(run_id, "traceback.txt") or "")
    assert server.artifact(run_id, "none.txt") is None
    assert Spool.of(server).waiting() == []
    (entry,) = list_runs(local, sweep="s9")
    same(entry, run, server)
    for store in both:
        store.client.delete_run(run_id)


@slow
def test_nothing_is_printed(both: tuple[Store, Server], capfd: pytest.CaptureFixture[str]) -> None:
    _, server = both
    run_id = Recorder(server).finish(make_info(sweep="s8"), make_result())
    load_run(server, run_id)
    server.client.delete_run(run_id)
    assert capfd.readouterr() == ("", "")


@slow
def test_a_page_at_a_time(both: tuple[Store, Server], monkeypatch: pytest.MonkeyPatch) -> None:
    local, server = both
    monkeypatch.setattr("zexp.tracking.server.PAGE", 3)
    assert [r.run_id for r in list_runs(server)] == [r.run_id for r in list_runs(local)]
    assert len(list_runs(server, limit=4)) == 4


@slow
def test_what_the_server_refuses_is_one_line(both: tuple[Store, Server]) -> None:
    _, server = both
    with pytest.raises(TrackingError, match=rf"^server {server.uri}: [^\n]*$") as caught, server.errors():
        server.client.get_run("0" * 32)
    assert not isinstance(caught.value, UnreachableError)


# ---- without a server ----


def test_nobody_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEXP_STORE", str(tmp_path / "home"))
    address = f"http://127.0.0.1:{free_port()}"
    server = open_store(address)
    asked: list[Callable[[], object]] = [
        lambda: list_runs(server),
        lambda: find_run(server, "last"),
        lambda: sweep_marks(server, "s"),
        lambda: finished_identities(server, "e", "c"),
        lambda: server.with_tag("a", "b"),
        lambda: server.experiment_id("e"),
        lambda: Recorder(server).finish(make_info(), make_result()),
    ]
    for ask in asked:
        with pytest.raises(UnreachableError, match=rf"^server {address} does not answer \(\w+\)$"):
            ask()
    server.check("e")  # for a run that is to wait in the spool
    assert Spool.of(server).destinations() == {address: 1}
    assert Spool.of(server).folder == tmp_path / "home" / "spool"


def test_a_connection_that_breaks_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.listen(0)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")  # nobody ever answers
        server = open_store(f"http://127.0.0.1:{listener.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="does not answer"):
            list_runs(server)
        assert time.monotonic() - began < 8


@pytest.mark.parametrize(
    "address", ["ftp://host", "http://", "https:///path", "http://host?x=1", "http://host#x", "sqlite:///a.db", "://"]
)
def test_a_bad_address_is_one_line(address: str) -> None:
    with pytest.raises(ZexpError) as caught:
        open_store(address)
    assert str(caught.value).startswith(f"tracking.store={address}: neither a folder nor the address")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", ["http://[::1", "http://host:port", "http://host:99999", "http://a b"])
def test_a_malformed_address_is_one_line(address: str) -> None:
    with pytest.raises(ZexpError, match=r"^[^\n]*$"):
        open_store(address)


def test_the_same_server_is_one_store(monkeypatch: pytest.MonkeyPatch) -> None:
    one: MlflowStore = open_store("http://h:1/")
    assert one == open_store("http://h:1")
    assert one != open_store("http://h:2")
    assert one.uri == "http://h:1"
    assert str(one) == "server http://h:1"
