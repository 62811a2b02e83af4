"""``zexp ui``: the MLflow UI on the store, for this machine only."""

from __future__ import annotations

import argparse
import ipaddress
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from zexp.errors import ConfigError
from zexp.tracking import Store, list_runs
from zexp.tracking.store import ui_url

GRACE_SECONDS = 10


def main(argv: list[str]) -> int:
    """Serve the UI in the foreground until it is stopped."""
    args = _parser().parse_args(argv)
    _check_free(args.host, args.port)
    store = Store.open(args.store)
    if args.open_message:
        if not list_runs(store, limit=1):
            print(f"no runs yet in store {store.folder}; they appear in the UI as `zexp run` makes them")
        # #/experiments rather than the start page, which advertises MLflow's GenAI side.
        print(f"{ui_url(args.port, args.host)}#/experiments?workflowType=machine_learning", flush=True)
        print("ready in some 15 seconds; Ctrl-C stops it", flush=True)
    return serve(store, args.host, args.port)


def serve(store: Store, host: str, port: int) -> int:
    """Run MLflow's server as a child until it ends or we are asked to stop; return the exit status."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", store.uri, "--registry-store-uri", store.uri]
    command += ["--default-artifact-root", store.artifact_root.as_uri(), "--no-serve-artifacts"]
    command += ["--uvicorn-opts", "--log-level warning"]
    # A session of its own: Ctrl-C reaches us alone, and we stop the server with all the processes it started.
    child = subprocess.Popen(command, env=_environment(), cwd=store.folder, start_new_session=True)
    try:
        with _sigterm_as_interrupt():
            status = child.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        _stop(child)
    if status:
        print(f"the MLflow server ended with status {status}", file=sys.stderr)
    return 1 if status else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="zexp ui",
        description="Serve the MLflow UI on the store, in the foreground, for browsers on this machine.",
    )
    parser.add_argument("--port", type=_port, default=5000, metavar="N", help="TCP port (default: 5000)")
    parser.add_argument(
        "--host",
        type=_loopback,
        default="127.0.0.1",
        help="loopback address (default: 127.0.0.1); others are refused: MLflow would serve anybody, without a login",
    )
    parser.add_argument(
        "--store",
        type=Path,
        metavar="DIR",
        help="folder of the store (default: $ZEXP_STORE, else $XDG_DATA_HOME/zexp, else ~/.local/share/zexp)",
    )
    parser.add_argument(
        "--no-open-message", dest="open_message", action="store_false", help="do not print where to point a browser"
    )
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1 to 65535")
    return int(text)


def _loopback(text: str) -> str:
    address = "127.0.0.1" if text == "localhost" else text
    with suppress(ValueError):
        if ipaddress.ip_address(address).is_loopback:
            return address
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a loopback address such as 127.0.0.1; to reach the UI from elsewhere use an SSH tunnel"
    )


def _check_free(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                "--port", port, f"cannot listen on {host} ({error.strerror}); choose another port or stop what uses it"
            ) from error


def _environment() -> dict[str, str]:
    """Ours without MLflow's variables: they could divert the server to another store, address or path."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    return env | {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "PYTHONWARNINGS": "ignore",  # deprecations among its own libraries
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # seven idle processes, for GenAI evaluations only
    }


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ask all processes of the server to end, then make them."""
    for request in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, request)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C: no more patience
            child.wait(GRACE_SECONDS)
