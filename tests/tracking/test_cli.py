from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zexp.cli import show, ui
from zexp.errors import SimulationError, ZexpError
from zexp.tracking import Recorder, Store, TrackingError

from .conftest import CONFIG, make_info

Record = Callable[..., str]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_show(
    store: Store, record: Record, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    run_id = record()
    assert show.main(["last", "--store", str(store.folder), "--rows", "3"]) == 0
    out = capsys.readouterr().out
    for part in (
        run_id, "eager-0", "accounting", "FINISHED", f"runs/{run_id}?workflowType=machine_learning", "workload.nodes.0",
        "lock/tree_lock/wait_ns", "1,234,567", "zswap_fn_02", "3.28", "CPU time of munmap", "more rows: --rows",
    ):  # fmt: skip
        assert part in out
    assert "zswap_fn_03" not in out
    assert max(map(len, out.splitlines())) <= 140


def test_show_json(
    store: Store, record: Record, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = record()
    monkeypatch.setenv("ZEXP_STORE", str(store.folder))
    assert show.main([run_id[:10], "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == ["run_id", "name", "experiment", "status", "config", "metrics", "profile"]
    assert shown["config"] == CONFIG
    assert shown["profile"][0]["self_pct"] == 3.28


def test_show_a_failed_run(store: Store, recorder: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    recorder.fail(make_info(name="[odd]"), SimulationError("a [deadlock]"))
    assert show.main(["[odd]", "--store", str(store.folder)]) == 0
    assert "a [deadlock]" in capsys.readouterr().out


def test_show_mistakes(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrackingError, match="no runs yet"):
        show.main(["last", "--store", str(store.folder)])
    with pytest.raises(TrackingError, match="no runs yet"):
        show.main(["last", "--store", str(tmp_path / "none")])
    for bad in ("0", "-1", "x"):
        with pytest.raises(SystemExit):
            show.main(["last", f"--rows={bad}"])
    assert "whole number" in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["--host=0.0.0.0", "--host=example.org", "--port=0", "--port=70000", "--port=x"])
def test_ui_refuses(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        ui.main([argument])
    assert caught.value.code == 2
    assert "is not a" in capsys.readouterr().err


def test_ui_busy_port(store: Store) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ZexpError, match=f"--port={port}: cannot listen"):
            ui.main(["--port", str(port), "--store", str(store.folder)])


def get(url: str, body: dict[str, Any] | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        content: bytes = answer.read()
        return content


def session_members(leader: int) -> list[int]:
    """Processes in the session of the server, from /proc: field 6 of stat, after the name in parentheses."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(session) == leader and state != "Z":
            members.append(int(stat.parent.name))
    return members


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_ui_serves_the_store(store: Store, record: Record, tmp_path: Path, stop: signal.Signals) -> None:
    if stop is signal.SIGINT:
        run_id = record()
    port = free_port()
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/elsewhere.db",
        "MLFLOW_STATIC_PREFIX": "/elsewhere",
        "MLFLOW_RUN_ID": "0",
    }
    code = "import sys; from zexp.cli.ui import main; sys.exit(main(sys.argv[1:]))"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code, "--port", str(port), "--store", str(store.folder)],
            stdout=log, stderr=log, env=environment,
        )  # fmt: skip
    base = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                get(f"{base}/health")
                break
            except OSError:
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.3)
        (server,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        assert session_members(server)
        if stop is signal.SIGINT:
            assert b"<html" in get(f"{base}/")
            api = f"{base}/api/2.0/mlflow"
            experiment = json.loads(get(f"{api}/experiments/get-by-name?experiment_name=accounting"))["experiment"]
            runs = json.loads(get(f"{api}/runs/search", {"experiment_ids": [experiment["experiment_id"]]}))["runs"]
            assert [run["info"]["run_id"] for run in runs] == [run_id]
            files = json.loads(get(f"{api}/artifacts/list?run_id={run_id}"))["files"]
            assert "functions.json" in [file["path"] for file in files]
            table = json.loads(get(f"{base}/get-artifact?path=functions.json&run_uuid={run_id}"))
            assert table["columns"][0] == "symbol"
    finally:
        process.send_signal(stop)
        status = process.wait(40)
    log_text = (tmp_path / "log").read_text()
    assert status == 0, log_text
    assert "Traceback" not in log_text
    assert f"{base}/#/experiments?workflowType=machine_learning" in log_text
    assert ("no runs yet" in log_text) == (stop is signal.SIGTERM)
    deadline = time.monotonic() + 5
    while session_members(server) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert session_members(server) == []
    assert not (tmp_path / "elsewhere.db").exists()
