"""Runs on their way to a store: written here first, whole and at once, then delivered and removed.

So a run that was simulated is never lost: not when the server is away, not when the process is killed while it writes.
Delivering may be repeated, as every run has a key that its copy in the store carries as a tag.
"""
# mypy: allow-untyped-calls

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from zexp.tracking import names
from zexp.tracking.base import MlflowStore, TrackingError, UnreachableError

if TYPE_CHECKING:
    from mlflow import MlflowClient

KEY = "delivery"
"""The tag by which a delivered run is found again."""
SUMMARY_OF = "summary_of"
"""The tag of a run that is about a whole sweep, and no point of it."""
BATCH = 1000
"""Metrics that MLflow takes at once."""
TRACEBACK = "traceback.txt"
CHANGED = "changed_params"
"""The tag with parameters that are not what they were at an earlier attempt, which the run shows."""
PARCEL = "parcel.json"


@dataclass(frozen=True)
class Parcel:
    """All of a run that goes to a store, but for its files."""

    uri: str
    experiment: str
    name: str
    key: str
    """Of all attempts at one thing: they share one run in the store."""
    status: str
    """FINISHED, FAILED or KILLED."""
    started_ms: int
    ended_ms: int
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    tags: Mapping[str, str]
    series: list[tuple[str, float, int]]
    """Name, value and whole ms of simulated time."""
    first: bool = True
    """No run of this key can be in the store yet."""


@dataclass(frozen=True)
class Spool:
    """The folder of the parcels of a home."""

    folder: Path

    @classmethod
    def of(cls, store: MlflowStore) -> Spool:
        """The spool in the home of a store."""
        return cls(store.home / "spool")

    def send(self, store: MlflowStore, parcel: Parcel, files: Mapping[str, bytes | str]) -> str:
        """Keep a parcel, then deliver it; the id of its run. If that fails, it stays here for a later time."""
        draft = self.folder / f".{secrets.token_hex(8)}"
        try:
            with ExitStack() as hand:
                self.folder.mkdir(parents=True, exist_ok=True)
                with self._locked("drafts", fcntl.LOCK_SH):
                    (draft / "files").mkdir(parents=True)
                    for path, content in files.items():
                        _write(draft / "files", path, content)
                    (draft / PARCEL).write_text(json.dumps(asdict(parcel)))
                    hand.enter_context(_held(draft))
                    kept = self.folder / f"{parcel.started_ms:013}-{draft.name[1:]}"
                    draft.rename(kept)  # from here on it survives whatever happens
                return self._deliver(store, kept, parcel)
        except OSError as error:
            raise TrackingError(f"{store}: the run cannot be written to {self.folder} ({error.strerror})") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def waiting(self) -> list[Path]:
        """What is here, oldest first."""
        return sorted(p for p in self.folder.glob("[0-9]*") if p.is_dir()) if self.folder.is_dir() else []

    def deliver(self, store: MlflowStore) -> list[Parcel]:
        """Deliver what waits for this store, and give what that was.

        When it returns, nothing waits that was here before, also not in the hands of another living process. Stops
        when the store does not answer. Of other errors it raises the first, after all else is delivered.
        """
        self._tidy()
        delivered, wrong = [], None
        for kept in self.waiting():
            try:
                parcel = _read(kept)
                if parcel is None or parcel.uri != store.uri:
                    continue
                with _held(kept) as there:
                    if there:
                        self._deliver(store, kept, parcel)
                        delivered.append(parcel)
            except UnreachableError:
                raise
            except TrackingError as error:
                wrong = wrong or error
        if wrong is not None:
            raise wrong
        return delivered

    def destinations(self) -> dict[str, int]:
        """How many parcels wait for which store."""
        found: dict[str, int] = {}
        for kept in self.waiting():
            with suppress(TrackingError):
                parcel = _read(kept)
                if parcel is not None:
                    found[parcel.uri] = found.get(parcel.uri, 0) + 1
        return found

    def damaged(self) -> list[TrackingError]:
        """What is wrong with each parcel that cannot be delivered."""
        found = []
        for kept in self.waiting():
            try:
                _read(kept)
            except TrackingError as error:
                found.append(error)
        return found

    def _tidy(self) -> None:
        """Remove what killed processes have left, half written or half removed; later if anybody writes just now."""
        with suppress(OSError), self._locked("drafts", fcntl.LOCK_EX | fcntl.LOCK_NB):
            for left in self.folder.glob(".*"):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def _locked(self, name: str, how: int) -> Iterator[None]:
        handle = os.open(self.folder / f".{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, how)
            yield
        finally:
            os.close(handle)

    def _deliver(self, store: MlflowStore, kept: Path, parcel: Parcel) -> str:
        """Write a parcel's run; every step may have been done before. Who comes here holds the parcel."""
        tried = kept / "tried"
        again = not parcel.first or tried.exists()
        tried.touch()
        # one at a time looks whether there is a run with its key, and makes it if not
        with self._locked("again", fcntl.LOCK_EX) if again else nullcontext():
            run_id = _write_run(store, kept, parcel, store.with_tag(KEY, parcel.key) if again else {})
        # gone at once for whoever looks at the spool, then bit by bit
        done = kept.rename(kept.with_name(f".{kept.name}"))
        shutil.rmtree(done, ignore_errors=True)
        return run_id


def _read(kept: Path) -> Parcel | None:
    try:
        return Parcel(**json.loads((kept / PARCEL).read_text()))
    except FileNotFoundError:
        return None  # another process has just delivered it
    except (ValueError, TypeError) as error:
        raise TrackingError(f"{kept}: a damaged parcel ({error}); look at its files, then remove the folder") from error


@contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Keep a parcel in hand, once nobody else does; False if it is gone by then. A killed process lets go."""
    try:
        # a file opened for writing, not the folder: only so does the lock hold across the machines of a cluster
        handle = os.open(folder / PARCEL, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):  # delivered, or of another user
        yield False
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield (folder / PARCEL).exists()
    finally:
        os.close(handle)


def _write(root: Path, path: str, content: bytes | str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise TrackingError(f"artifact path {path!r}: must be relative and stay inside the run")
    target = root.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content if isinstance(content, bytes) else names.encodable(content).encode())


def _write_run(store: MlflowStore, kept: Path, parcel: Parcel, before: Mapping[str, str]) -> str:
    """The id of the run; it is the one that is there ``before``, if any."""
    experiment = store.experiment_id(parcel.experiment)
    client = store.client
    from mlflow.entities import Metric, Param, RunTag

    metrics = [Metric(key, value, parcel.ended_ms, 0) for key, value in parcel.metrics.items()]
    metrics += [Metric(key, value, parcel.started_ms + ms, ms) for key, value, ms in parcel.series]
    params = [Param(key, value) for key, value in parcel.params.items()]
    tags = [RunTag(key, value) for key, value in parcel.tags.items()]
    with store.errors():
        if before:
            run_id = next(iter(before))
            has = _attempt(client, run_id, kept, parcel)
            if changed := {p.key: p.value for p in params if has.get(p.key, p.value) != p.value}:
                # as after changes of the code that were accepted: MLflow's parameters are for ever
                params = [p for p in params if p.key not in changed]
                text = "; ".join(f"{key}={value}" for key, value in changed.items())
                tags.append(RunTag(CHANGED, names.shorten(text, names.MAX_TAG, "config.yaml")))
        else:
            marks = {KEY: parcel.key, "parcel": kept.name, **parcel.tags}
            made = client.create_run(experiment, parcel.started_ms, marks, parcel.name or None)
            run_id, tags = made.info.run_id, []
        store.put_files(run_id, kept / "files")
        client.log_batch(run_id, metrics[:BATCH], params, tags)
        for first in range(BATCH, len(metrics), BATCH):
            client.log_batch(run_id, metrics[first : first + BATCH])
        client.set_terminated(run_id, parcel.status, parcel.ended_ms)
    return str(run_id)


def _attempt(client: MlflowClient, run_id: str, kept: Path, parcel: Parcel) -> Mapping[str, str]:
    """The run is there already. Of an earlier attempt, it keeps the traceback; a new one goes beside that.

    Or it is the beginning of this very delivery, which was cut off. Gives the parameters that it has.
    """
    from mlflow.entities import RunTag

    data = client.get_run(run_id).data
    tags = data.tags
    number = int(tags.get("attempts", "1"))
    if tags.get("parcel") != kept.name:
        number += 1
        client.log_batch(run_id, tags=[RunTag("attempts", str(number)), RunTag("parcel", kept.name)])
    latest = kept / "files" / TRACEBACK
    if number > 1 and latest.exists():
        latest.rename(latest.with_name(f"traceback-{number}.txt"))
    if parcel.status == "FINISHED" and "error" in tags:
        client.delete_tag(run_id, "error")
    params: Mapping[str, str] = data.params
    return params
