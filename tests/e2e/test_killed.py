"""SIGKILL at random moments, 50 times: after resuming, each point is in the store once, and whole."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import secrets
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from services.conftest import MlflowServer

from zexp.tracking import RunEntry, Spool, list_runs, open_store
from zexp.tracking.spool import SUMMARY_OF

from .conftest import SMALL, Cli, Install

pytestmark = pytest.mark.slow

POINTS = 60
REFUSED = range(3, POINTS, 8)
"""Points that fail until the test lets them pass."""
PLUGIN = f"""
    import time
    from dataclasses import dataclass
    from pathlib import Path
    from zexp.hookspecs import hookimpl
    from zexp.kernel import PoolAccounting

    @dataclass
    class Picky(PoolAccounting):
        name: str = "picky"
        number: int = 0

        def entry_freed(self, k, zswap):
            if self.number in {list(REFUSED)} and Path(__file__).with_name("refuse").exists():
                raise RuntimeError(f"refused at <{{time.time_ns()}}>")
            k.call("picky_update", instructions=1)

        def total_pages(self, k, zswap):
            return k.load(zswap.stored_pages)

    @hookimpl
    def zexp_accounting_policies():
        return [Picky]
"""
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
INCOMPLETE = 3
"""The exit status of a sweep that lacks points."""
MARK = "KILLED_TEST"


class Started:
    """A sweep's process and all that it starts, known by a mark in the environment whatever their parents are later."""

    def __init__(self, cli: Cli, log: Path, *arguments: str) -> None:
        self._mark = f"{MARK}={secrets.token_hex(8)}"
        self._log = log
        environment = {**cli.environment(), **dict([self._mark.split("=")])}
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                cli.command("run", "-m", *arguments), cwd=cli.cwd, env=environment, stdout=output, stderr=output
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def sweep(self) -> str | None:
        """The sweep that it runs; said when all points are composed, and workers are about to start."""
        found = re.search(r"^sweep  (\S+): .* workers?", self.output, re.MULTILINE)
        return found and found[1]

    def begun(self, store: Path) -> bool:
        """A worker has taken a point."""
        return self.sweep is not None and any((store / "sweeps" / self.sweep / "claims").glob("*"))

    def told(self, store: Path) -> int:
        """How many points its workers have ended, well or not."""
        files = (store / "sweeps" / self.sweep / "events").glob("*.jsonl") if self.sweep else ()
        return sum(_read(str(file)).count(what) for file in files for what in (b'"finished"', b'"failed"'))

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def workers(self) -> list[int]:
        return [pid for pid in self._all() if b"popen_loky" in _read(f"/proc/{pid}/cmdline")]

    def kill_everything(self) -> None:
        while pids := self._all():
            for pid in pids:
                self.kill(pid)
        self.process.wait()

    def kill(self, pid: int) -> None:
        """By a handle that no other process can inherit, as a number may be given away anew."""
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                if self._is_ours(pid):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)

    def _all(self) -> list[int]:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal() and self._is_ours(int(name))]

    def _is_ours(self, pid: int) -> bool:
        return self._mark.encode() in _read(f"/proc/{pid}/environ").split(b"\0")


def wait(until: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not until() and time.monotonic() < end:
        time.sleep(0.01)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


@dataclass
class Sweeps:
    """Starts sweeps and resumes them, until all the killing is done."""

    cli: Cli
    refuse: Path
    place: str
    """The store: a folder, or a server's address."""
    random: random.Random
    ids: list[str] = field(default_factory=list)
    all_started: list[Started] = field(default_factory=list)
    _open: bool = False
    """The last of them lacks points that would not fail."""

    @contextmanager
    def go(self, *launcher: str) -> Iterator[Started]:
        """Resume the last sweep, or begin a new one if it has all that it can get."""
        if self._open:
            arguments: tuple[str, ...] = (f"resume={self.ids[-1]}", *launcher)
        else:
            values = f"policy.accounting.number=range(0,{POINTS})"
            arguments = (*SMALL, "policy/accounting=picky", values, f"seed={len(self.ids)}", *launcher)
            arguments = (*arguments, f"tracking.store={self.place}")
        started = Started(self.cli, self.cli.cwd.parent / f"log-{len(self.all_started)}", *arguments)
        self.all_started.append(started)
        yield started
        if new := self._known() - set(self.ids):
            (made,) = new
            self.ids.append(made)
            self._open = True
        code = started.process.poll()
        if code is not None and code >= 0 and "a worker has died" not in started.output:
            away = "does not answer" in started.output
            assert code == INCOMPLETE or (away and code in (0, 2)), f"exit status {code}\n{started.output}"
            self._open = away

    def at_random(self, started: Started) -> bool:
        """Wait for a moment while it composes, or later; False if it has ended before that."""
        # what has been reached, not how long it took, decides: else a busy machine is killed before it does anything
        phases: dict[str, tuple[Callable[[], bool], float, int]] = {
            "start": (lambda: True, 4.0, 1),
            "all are composed": (lambda: started.sweep is not None, 3.0, 1),
            f"{(least := self.random.randrange(POINTS // 3))} points": (
                lambda: started.told(self.cli.store) >= least, 0.3, 4,
            ),
            "the last point": (lambda: "points finished" in started.output, 4.0, 1),
        }  # fmt: skip
        after = self.random.choices([*phases], [weight for *_, weight in phases.values()])[0]
        reached, within, _ = phases[after]
        wait(lambda: started.ended or reached(), 120)
        moment = self.random.uniform(0, within)
        wait(lambda: started.ended, moment)
        print(f"{moment:.2f} s after {after}" + (", it had ended" if started.ended else ""))
        return not started.ended

    def finish(self) -> None:
        """Let all points pass, and resume every sweep until it is complete."""
        self.refuse.unlink()
        for sweep in self.ids:
            done = self.cli("run", "-m", f"resume={sweep}")
            assert done.returncode == 0, done.stdout + done.stderr

    def _known(self) -> set[str]:
        return {path.parent.name for path in (self.cli.store / "sweeps").glob("[!.]*/manifest.json")}


@pytest.fixture
def refuse(install: Install) -> Path:
    """A file: while it is there, some points fail."""
    file = install(PLUGIN, module="picky").with_name("refuse")
    file.touch()
    return file


@pytest.fixture
def sweeps(cli: Cli, refuse: Path) -> Iterator[Sweeps]:
    seed = int(os.environ.get("KILL_SEED") or secrets.randbits(32))
    print(f"again with KILL_SEED={seed}")
    made = Sweeps(cli, refuse, str(cli.store), random.Random(seed))
    yield made
    for started in made.all_started:
        started.kill_everything()


def check_database(file: Path) -> None:
    """SQLite finds nothing wrong, and neither do we."""
    with closing(sqlite3.connect(file)) as link:
        assert link.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert link.execute("PRAGMA foreign_key_check").fetchall() == []
        assert link.execute("SELECT run_uuid FROM runs WHERE status NOT IN ('FINISHED', 'FAILED')").fetchall() == []
        twice = "SELECT value FROM tags WHERE key = 'delivery' GROUP BY value HAVING COUNT(*) > 1"
        assert link.execute(twice).fetchall() == []
        # a delivery that is repeated adds nothing to histories; a summary's are its values of each time it was made
        twice = "SELECT run_uuid, key, step FROM metrics GROUP BY run_uuid, key, step HAVING COUNT(*) > 1"
        summaries = link.execute("SELECT run_uuid FROM tags WHERE key = ?", (SUMMARY_OF,)).fetchall()
        assert {row[0] for row in link.execute(twice)} <= {row[0] for row in summaries}


def check_points(runs: list[RunEntry]) -> None:
    """Each is there once and has finished."""
    assert sorted(int(run.params["policy.accounting.number"]) for run in runs) == list(range(POINTS))
    assert {run.status for run in runs} == {"FINISHED"}
    assert not any("error" in run.tags for run in runs)


def check_files(run: RunEntry) -> None:
    """What once failed has kept the traceback of every attempt."""
    assert json.loads((run.artifacts / "functions.json").read_text())["data"]
    assert run.metrics["sim_ns"] > 0
    found = {path.name: int(re.findall(r"<(\d+)>", path.read_text())[-1]) for path in run.artifacts.glob("traceback*")}
    failed = int(run.tags.get("attempts", "1")) - 1
    names = ["traceback.txt", *(f"traceback-{n}.txt" for n in range(2, failed + 1))][:failed]
    assert sorted(found) == sorted(names)
    assert [found[name] for name in names] == sorted(found.values()), "the first is kept, later ones are beside it"
    assert failed == 0 or int(run.params["policy.accounting.number"]) in REFUSED


def check(sweeps: Sweeps) -> int:
    """All is as it should be; how many points took several attempts."""
    store = open_store(sweeps.place)
    tried = 0
    for sweep in sweeps.ids:
        runs = list_runs(store, sweep=sweep)
        check_points(runs)
        assert len(store.with_tag(SUMMARY_OF, sweep)) == 1
        tried += sum("attempts" in run.tags for run in runs)
        if "://" not in sweeps.place:
            for run in runs:
                check_files(run)
    spool = Spool(sweeps.cli.store / "spool")
    assert [path for path in spool.folder.iterdir() if path.is_dir()] == [], "nothing is left half written"
    print(f"{len(sweeps.ids)} sweeps, {tried} points that took several attempts")
    return tried


@pytest.mark.parametrize("everything", [True, False], ids=["everything", "its own process"])
def test_a_sweep_is_killed(sweeps: Sweeps, cli: Cli, everything: bool) -> None:
    """Without its workers: what is resumed waits for them, and they end as soon as they have run their points."""
    kills = 0
    while kills < (20 if everything else 12):
        serial = everything and sweeps.random.random() >= 0.3
        with sweeps.go(*(("hydra/launcher=basic",) if serial else JOBLIB)) as started:
            kills += sweeps.at_random(started)
            if everything:
                started.kill_everything()
            else:
                started.process.kill()
                started.process.wait()
    sweeps.finish()
    check_database(cli.store / "mlflow.db")
    assert check(sweeps), "without several attempts, this has tested nothing"


def test_one_worker_is_killed(sweeps: Sweeps, cli: Cli) -> None:
    kills = 0
    while kills < 12:
        with sweeps.go(*JOBLIB) as started:
            sweeps.at_random(started)
            while not (workers := started.workers()) and not started.ended:
                time.sleep(0.01)
            if workers:
                started.kill(sweeps.random.choice(workers))
                kills += 1
            started.process.wait(300)
    sweeps.finish()
    check_database(cli.store / "mlflow.db")
    assert check(sweeps), "without several attempts, this has tested nothing"


def test_the_server_is_killed(sweeps: Sweeps, cli: Cli, tmp_path: Path) -> None:
    """Alone, or with the sweep, as when the power fails."""
    folder = tmp_path / "server"
    folder.mkdir()
    server = MlflowServer(f"sqlite:///{folder}/mlflow.db", folder)
    sweeps.place = server.uri
    try:
        server.start()
        kills = 0
        while kills < 6:
            with sweeps.go() as started:
                kills += sweeps.at_random(started)
                server.kill()
                if sweeps.random.random() < 0.5:
                    started.kill_everything()
                server.start()
                started.process.wait(300)
            if sweeps.random.random() < 0.5:
                cli.ok("sync")
        sweeps.finish()
        assert check(sweeps), "without several attempts, this has tested nothing"
    finally:
        server.kill()
    check_database(folder / "mlflow.db")


def test_workers_that_are_left_end_by_themselves(sweeps: Sweeps, cli: Cli) -> None:
    """Nobody has to resume the sweep or stop them for that."""
    with sweeps.go(*JOBLIB) as started:
        wait(lambda: started.ended or started.begun(cli.store), 60)
        started.process.kill()
        started.process.wait()
    (folder,) = (cli.store / "sweeps").iterdir()
    with open(folder / ".works", "rb+") as works:
        end = time.monotonic() + 120
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(works, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            assert time.monotonic() < end, "workers are still at work"
            time.sleep(0.05)
    assert 0 < len(list((folder / "claims").iterdir())) < POINTS
    sweeps.finish()
    check(sweeps)
