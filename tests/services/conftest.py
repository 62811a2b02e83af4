"""Services of these tests' own: Slurm, PostgreSQL with an MLflow server, a browser. `.ci/services` installs them."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from e2e.conftest import Cli, cli, template

from zexp.tracking import RunEntry, list_runs, open_store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["cli", "template"]

SWEEP = (
    "experiment=munmap_24g", "machine=laptop", "workload.total_size=4MiB", "workload.processes=1,2,3,4,5,6,7,8,9,10",
    "policy/accounting=eager,lazy",
)  # fmt: skip
POINTS = 20


def lacking(what: str) -> NoReturn:
    """Skip the test; in CI, where `.ci/services` has run, fail it."""
    reason = f"{what} is lacking; .ci/services and the extras of pyproject.toml provide it"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def program(name: str, *elsewhere: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", *elsewhere]))
    return found or lacking(name)


def module(name: str) -> None:
    try:
        import_module(name)
    except ImportError:
        lacking(name)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(ready: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"{what}: not ready after {seconds:.0f} s"
        time.sleep(0.1)


def sweep_of(output: str) -> str:
    """The id of a sweep, of what it printed."""
    return next(line.split()[1].rstrip(":") for line in output.splitlines() if line.startswith("sweep "))


def runs_of(store: str | Path, sweep: str) -> list[RunEntry]:
    return list_runs(open_store(str(store)), sweep=sweep)


def assert_every_point_once(runs: list[RunEntry]) -> None:
    assert [r.status for r in runs] == ["FINISHED"] * POINTS
    found = {(r.params["policy.accounting.name"], int(r.params["workload.processes"])) for r in runs}
    assert found == {(policy, n) for policy in ("eager", "lazy") for n in range(1, 11)}


def tables(store: str | Path, sweep: str, served_from: Path | None = None) -> dict[str, bytes]:
    """Every table of each point, and its profile by call stacks, as bytes.

    Those of a server's runs are looked up where it keeps them.
    """
    runs = runs_of(store, sweep)
    assert_every_point_once(runs)
    assert all(run.tags["sweep"] == sweep for run in runs), "run again, not taken from an earlier sweep"
    found = {}
    for run in runs:
        folder = served_from / run.artifact_uri.removeprefix("mlflow-artifacts:/") if served_from else run.artifacts
        names = ["raw/profile.folded", *(table["path"] for table in json.loads(run.tags["mlflow.loggedArtifacts"]))]
        assert {"functions.json", "locks.json", "lines.json"} < {*names}
        found.update({f"{run.name}/{name}": (folder / name).read_bytes() for name in names})
    return found


@contextmanager
def daemon(command: list[str], log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A program in the foreground of a session of its own, ended with all it started."""
    with log.open("ab") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, **options)
    try:
        yield child
    finally:
        stop(child, signal.SIGTERM)


def stop(child: subprocess.Popen[bytes], first: signal.Signals) -> None:
    for request in (first, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, request)
        with suppress(subprocess.TimeoutExpired):
            child.wait(10)


@contextmanager
def short_folder(name: str) -> Iterator[Path]:
    """A folder for sockets, whose paths must be short, open to the unprivileged users that some daemons run as."""
    folder = Path(tempfile.mkdtemp(prefix=f"zexp-{name}-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


SLURM_CONF = """
ClusterName=zexp
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
CommunicationParameters=NoInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0
# whatever memory a job asks for: the launcher's default is more than a small machine has
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=100000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="session")
def slurm() -> Iterator[dict[str, str]]:
    """A Slurm of one node with two CPUs on loopback; what must be in the environment of its commands."""
    munged, slurmctld, slurmd = map(program, ("munged", "slurmctld", "slurmd"))
    module("hydra_plugins.hydra_submitit_launcher")
    with ExitStack() as stack:
        folder = stack.enter_context(short_folder("slurm"))
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        host = socket.gethostname().partition(".")[0]
        ports = (free_port(), free_port())
        conf = folder / "slurm.conf"
        conf.write_text(SLURM_CONF.format(host=host, ports=ports, folder=folder, user=getpass.getuser()))
        environment = {"SLURM_CONF": str(conf)}
        files = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("key-file", "socket", "pid-file")]
        files += [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("log-file", "seed-file")]
        stack.enter_context(daemon([munged, "--foreground", "--force", *files], folder / "munged.out"))
        wait_for((folder / "munge.socket").exists, "munged")
        for command in ([slurmctld, "-D"], [slurmd, "-D"]):
            log = folder / f"{Path(command[0]).name}.out"
            stack.enter_context(daemon(command, log, env={**os.environ, **environment}))

        def idle() -> bool:
            ask = [program("sinfo"), "--noheader", "--format=%t"]
            done = subprocess.run(ask, env={**os.environ, **environment}, capture_output=True, text=True)
            return done.stdout.strip() == "idle"

        wait_for(idle, "Slurm")
        yield environment


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A PostgreSQL database on loopback; its address for SQLAlchemy."""
    module("psycopg2")
    installed = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    initdb, server = program("initdb", *installed), program("postgres", *installed)
    # it refuses to run as root
    user = "postgres" if os.geteuid() == 0 else getpass.getuser()
    account = pwd.getpwnam(user)
    with short_folder("postgres") as folder:
        os.chown(folder, account.pw_uid, account.pw_gid)
        data, port = folder / "data", free_port()
        options: dict[str, Any] = {"user": account.pw_uid, "group": account.pw_gid, "cwd": folder}
        make = [initdb, "--pgdata", str(data), "--auth=trust", "--username=zexp", "--no-sync", "--encoding=UTF8"]
        subprocess.run(make, check=True, capture_output=True, **options)
        run = [server, "-D", str(data), "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
        with daemon([*run, "-k", str(folder), "-c", "fsync=off"], folder / "log", **options):
            wait_for(lambda: listens(port), "PostgreSQL")
            yield f"postgresql+psycopg2://zexp@127.0.0.1:{port}/postgres"


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@dataclass
class MlflowServer:
    """A tracking server that can be killed, and started again on the same port with the same data."""

    database: str
    folder: Path
    port: int = field(default_factory=free_port)
    child: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", self.database, "--serve-artifacts"]
        command += ["--artifacts-destination", str(self.artifacts)]
        off = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.folder / "log").open("ab") as log:
            self.child = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env={**os.environ, **off}, start_new_session=True
            )
        wait_for(self._healthy, "MLflow server", 120)

    def kill(self) -> None:
        """As a machine that loses power would."""
        if self.child is not None:
            stop(self.child, signal.SIGKILL)
            self.child = None

    def _healthy(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:
            return bool(answer.status == 200)
        return False


@pytest.fixture(scope="session")
def mlflow_server(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """``mlflow server`` over PostgreSQL, its artifacts served from a folder."""
    server = MlflowServer(postgres, tmp_path_factory.mktemp("mlflow-server"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The system's Chromium, driven by Playwright."""
    module("playwright")
    path = program("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # its sandbox does not work for root in a container
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@dataclass
class SweepCli:
    """Runs the sweep of these tests."""

    cli: Cli

    def __call__(self, *arguments: str, environment: dict[str, str] | None = None) -> str:
        """The id of the sweep, which must succeed."""
        done = subprocess.run(
            self.cli.command("run", "-m", *SWEEP, *arguments),
            cwd=self.cli.cwd,
            env={**self.cli.environment(), **(environment or {})},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return sweep_of(done.stdout)


@pytest.fixture
def run_sweep(cli: Cli) -> SweepCli:
    return SweepCli(cli)
