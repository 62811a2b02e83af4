"""The folder of a sweep: its manifest, which points are taken, and what workers tell of them."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from zexp.errors import ZexpError, near
from zexp.sweep.points import Point

PATIENCE_S = 60.0
"""How long to wait for the workers of a sweep whose own process is gone."""


@dataclass(frozen=True)
class Manifest:
    """What a sweep is: written once, before anything runs."""

    sweep: str
    arguments: tuple[str, ...]
    """The overrides of the command line."""
    fixed: tuple[str, ...]
    """Those of them that all points have in common."""
    swept: tuple[str, ...]
    """Configuration keys whose values differ."""
    code: str
    files: Mapping[str, str]
    """The code, file by file."""
    tracked: bool
    """The points go to a store."""
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Offer:
    """What workers are to run now."""

    points: list[int]
    again: list[int]
    """Those of them that were tried before."""
    code: str
    tags: Mapping[str, str]
    """For every run."""
    stop_on_failure: bool = False
    host: str = field(default_factory=socket.gethostname)
    """Where the sweep's own process runs."""

    @classmethod
    def read(cls, path: Path) -> Offer | None:
        """The offer in this file; None if it is over, as another process has taken the sweep up since."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None


@dataclass(frozen=True)
class Event:
    """What a worker tells: a point was ``started``, ``finished`` or ``failed``."""

    point: int
    what: str
    note: str = ""
    """The error; of a finished point, why its run waits in the spool."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Of a finished point: how long the worker took to compose, to simulate and to track it."""
    at_s: float = field(default_factory=time.time)


def new_id() -> str:
    """An id that no other sweep has, also if many begin in the same second."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class Folder:
    """The folder of one sweep."""

    path: Path

    @classmethod
    def create(cls, home: Path, manifest: Manifest) -> Folder:
        """A new one in the home of a store, complete at once."""
        try:
            (home / "sweeps").mkdir(parents=True, exist_ok=True)
            draft = home / "sweeps" / f".{manifest.sweep}"
            draft.mkdir()
            (draft / "manifest.json").write_text(json.dumps(asdict(manifest), indent=1) + "\n")
            folder = cls(home / "sweeps" / manifest.sweep)
            draft.rename(folder.path)
        except OSError as error:
            raise ZexpError(f"{home / 'sweeps'}: the sweep cannot be written there ({error.strerror})") from error
        folder.clear()
        return folder

    @classmethod
    def find(cls, home: Path, sweep: str) -> Folder:
        """That of a sweep given by its id, or the only one that begins so, or ``last``."""
        known = sorted(p.parent.name for p in (home / "sweeps").glob("[!.]*/manifest.json"))
        matches = known[-1:] if sweep == "last" else [name for name in known if sweep and name.startswith(sweep)]
        if sweep in known:
            matches = [sweep]
        if len(matches) != 1:
            why = "no such sweep; " + (near(sweep, known[-5:]) if known else "there is none yet")
            why = f"{len(matches)} sweeps begin so" if matches else why
            raise ZexpError(f"resume={sweep}: {why} (looked in {home / 'sweeps'})")
        return cls(home / "sweeps" / matches[0])

    def manifest(self) -> Manifest:
        """What the sweep is."""
        path = self.path / "manifest.json"
        try:
            data: dict[str, Any] = json.loads(path.read_text())
            points = [Point(**{**p, "overrides": tuple(p["overrides"])}) for p in data.pop("points")]
            lists = {key: tuple(data[key]) for key in ("arguments", "fixed", "swept")}
            return Manifest(**{**data, **lists, "points": tuple(points)})
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ZexpError(f"{path}: not a sweep's manifest ({error})") from error

    # ---- sharing the points out ----

    def clear(self) -> None:
        """Forget which points were taken and what was told: before workers start."""
        for name in ("claims", "events"):
            shutil.rmtree(self.path / name, ignore_errors=True)
            (self.path / name).mkdir()
        for path in self.path.glob("offer-*.json"):
            path.unlink()
        (self.path / "stop").unlink(missing_ok=True)

    def offer(self, offer: Offer) -> None:
        """Say what is to be run."""
        # in a new file: a worker of an earlier offer that is late in starting must not take this one for its own
        (self.path / f"offer-{secrets.token_hex(4)}.json").write_text(json.dumps(asdict(offer)))

    @property
    def offer_file(self) -> Path:
        """Where that is said."""
        (path,) = self.path.glob("offer-*.json")
        return path

    def claim(self, point: int) -> bool:
        """Whether this process is the first to ask for the point."""
        try:
            os.close(os.open(self.path / "claims" / str(point), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def stop(self) -> None:
        """Ask all workers to begin no further point."""
        with suppress(OSError):
            (self.path / "stop").touch()

    @property
    def stopped(self) -> bool:
        """Whether that was asked."""
        return (self.path / "stop").exists()

    # ---- what is told ----

    def tell(self, teller: str, event: Event) -> None:
        """Append to what this worker has told."""
        with open(self.path / "events" / f"{teller}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(event)) + "\n")

    # ---- who is at work ----

    @contextmanager
    def alone(self) -> Iterator[None]:
        """As the one process that runs this sweep, after workers that an earlier one left have ended."""
        with self._locked("runs", fcntl.LOCK_EX, 0.0, "is running already, in another process"):
            self.stop()  # for those that are left
            with self._locked("works", fcntl.LOCK_EX, PATIENCE_S, "still has workers; stop them, or wait"):
                self.clear()
            with self._locked("lives", fcntl.LOCK_EX, PATIENCE_S, "still has workers; stop them, or wait"):
                yield

    @property
    def abandoned(self) -> bool:
        """Whether no process runs this sweep: the one that did was killed. Not to be relied on on other machines."""
        try:
            with self._locked("lives", fcntl.LOCK_SH, 0.0, "lives"):
                return True
        except ZexpError:
            return False

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """As one of its workers."""
        with self._locked("works", fcntl.LOCK_SH, PATIENCE_S, "is being taken over"):
            yield

    @contextmanager
    def _locked(self, name: str, how: int, patience_s: float, why: str) -> Iterator[None]:
        handle = os.open(self.path / f".{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        deadline = time.monotonic() + patience_s
        try:
            while True:
                try:
                    fcntl.flock(handle, how | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise ZexpError(f"sweep {self.path.name} {why}") from None
                    time.sleep(0.1)
            yield
        finally:
            os.close(handle)


class Listener:
    """Reads what workers tell, each line once."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder.path / "events"
        self._read: dict[str, int] = {}

    def news(self) -> list[Event]:
        """What was told since the last call."""
        events = []
        for path in sorted(self._folder.glob("*.jsonl")):
            with open(path, "rb") as file:
                file.seek(self._read.get(path.name, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]  # a line may be half written
            self._read[path.name] = self._read.get(path.name, 0) + len(whole)
            events += [Event(**json.loads(line)) for line in whole.splitlines()]
        return sorted(events, key=lambda event: event.at_s)
