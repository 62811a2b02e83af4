"""The local MLflow store: one SQLite file and one folder of artifacts."""
# mypy: allow-untyped-calls

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from zexp.tracking.base import MlflowStore, TrackingError
from zexp.tracking.quiet import prepare_mlflow

BUSY_SECONDS = 20.0
ELSEWHERE = "choose another folder with --store or ZEXP_STORE"


def store_folder() -> Path:
    """Where runs are kept if nobody says otherwise, always absolute.

    ``$ZEXP_STORE``, else ``$XDG_DATA_HOME/zexp``, else ``~/.local/share/zexp``.
    """
    if chosen := os.environ.get("ZEXP_STORE"):
        return _absolute(Path(chosen))
    if data_home := os.environ.get("XDG_DATA_HOME"):
        return _absolute(Path(data_home) / "zexp")
    return _absolute(Path("~/.local/share/zexp"))


def run_path(experiment_id: str, run_id: str) -> str:
    """The page of a run in the MLflow UI, below the address of the server.

    The UI routes behind the ``#``, so the query belongs there too. Without it the first visit opens in GenAI mode.
    """
    return f"#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning"


def ui_url(port: int = 5000, host: str = "127.0.0.1") -> str:
    """The address of the MLflow UI, ending in a slash."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


class Store(MlflowStore):
    """A store that exists. Get one with :meth:`open`; it may be shared between threads, and pickled."""

    ui_hint = "zexp ui, then "

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __str__(self) -> str:
        return f"store {self.folder}"

    @property
    def home(self) -> Path:
        """The store's own folder."""
        return self.folder

    @classmethod
    def open(cls, folder: Path | str | None = None, *, create: bool = True) -> Store:
        """The store in ``folder`` (default: :func:`store_folder`), created on first use.

        Any number of processes may do this at the same time. A store that exists is checked in about a millisecond,
        without importing MLflow. With ``create=False`` it may be read-only, and one that does not exist is an error.
        """
        store = cls(_absolute(Path(folder)) if folder is not None else store_folder())
        _check_name(store.folder)
        if not create:
            if not os.path.exists(store.database):
                raise TrackingError(f"no runs yet: there is no store in {store.folder}; `zexp run` creates it")
            store._check_database()
            return store
        with _filesystem_errors(store.folder):
            store.artifact_root.mkdir(parents=True, exist_ok=True)
        for path in (store.folder, store.artifact_root):
            if not os.access(path, os.W_OK | os.X_OK):
                raise TrackingError(f"store {store.folder}: {path} is not writable; make it so or {ELSEWHERE}")
        if not store.database.exists():
            with store.lock():
                if not store.database.exists():
                    store._create()
        store._check_database()
        if not os.access(store.database, os.W_OK):
            raise TrackingError(f"store {store.folder}: mlflow.db is read-only; make it writable or {ELSEWHERE}")
        return store

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.folder / "mlflow.db"

    @property
    def artifact_root(self) -> Path:
        """The folder that holds one folder of runs for each experiment."""
        return self.folder / "artifacts"

    @property
    def uri(self) -> str:
        """The tracking URI, absolute."""
        return f"sqlite:///{self.database}"

    def url(self, path: str) -> str:
        """A page of the UI that ``zexp ui`` serves by default."""
        return ui_url() + path

    def artifact_location(self, experiment: str) -> str:
        """The folder of an experiment's runs, as a URI."""
        return (self.artifact_root / _folder_name(experiment)).as_uri()

    def with_tag(self, key: str, value: str) -> dict[str, str]:
        """Id and status of every run that has this tag."""
        with self.connection() as link:
            rows = link.execute(
                "SELECT r.run_uuid, r.status FROM tags t JOIN runs r USING (run_uuid) "
                "WHERE t.key = ? AND t.value = ? AND r.lifecycle_stage = 'active'",
                (key, value),
            )
            return {row[0]: row[1] for row in rows}

    def put_files(self, run_id: str, folder: Path) -> None:
        """Copy all files of a folder into the artifacts of a run, without asking MLflow thrice where they are."""
        with self.connection() as link:
            (uri,) = link.execute("SELECT artifact_uri FROM runs WHERE run_uuid = ?", (run_id,)).fetchone()
        shutil.copytree(folder, unquote(urlsplit(uri).path), dirs_exist_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude every other process from changing the shape of this store."""
        with _filesystem_errors(self.folder):
            handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with _filesystem_errors(self.folder):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)  # which unlocks

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """A read-only connection to the database, without MLflow."""
        # Opened for writing where possible: SQLite must be able to undo what a killed process left half done.
        mode = "rw" if os.access(self.database, os.W_OK) else "ro"
        address = f"file:{quote(str(self.database))}?mode={mode}"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as link:
                link.execute("PRAGMA query_only = ON")
                link.row_factory = sqlite3.Row
                yield link
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise TrackingError(
                    f"store {self.folder}: busy for more than {BUSY_SECONDS:.0f} s; try again"
                ) from error
            raise TrackingError(
                f"store {self.folder}: mlflow.db is not a usable MLflow database ({error}); "
                f"restore it from a copy, move it away to start afresh, or {ELSEWHERE}"
            ) from error

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what MLflow and the file system raise into a :class:`TrackingError` of one line."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, OSError) and not type(error).__module__.startswith(("mlflow", "sqlalchemy")):
                raise
            text = str(error)
            if "out-of-date database schema" in text or "Can't locate revision" in text:
                reason = (
                    "it was written by another version of MLflow; keep a copy, then run "
                    f"`python -m mlflow db upgrade {self.uri}`, or {ELSEWHERE}"
                )
            else:
                reason = next(iter(text.strip().splitlines()), "") or type(error).__name__
            raise TrackingError(f"store {self.folder}: {reason}") from error

    def _create(self) -> None:
        """Make the database beside its place and move it there: a file of that name is always complete."""
        prepare_mlflow()
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        draft = self.folder / "mlflow.db.new"
        with self.errors():
            draft.unlink(missing_ok=True)  # left by a process that was killed
            try:
                # The "Default" experiment gets its artifact location here: a client would put it under ./mlruns.
                made = SqlAlchemyStore(f"sqlite:///{draft}", self.artifact_root.as_uri())
                made.engine.dispose()
                os.replace(draft, self.database)
            finally:
                draft.unlink(missing_ok=True)

    def _check_database(self) -> None:
        with self.connection() as link:
            link.execute("SELECT version_num FROM alembic_version").fetchone()
            link.execute("SELECT run_uuid FROM runs LIMIT 1").fetchone()


def _absolute(path: Path) -> Path:
    with suppress(RuntimeError):  # no home directory: keep the tilde, the folder is then named in the message
        path = path.expanduser()
    return Path(os.path.abspath(path))


def _check_name(folder: Path) -> None:
    """MLflow and SQLAlchemy would quietly write to another path: they cut at ``?`` and decode ``%20``."""
    if re.search(r"[?%]", str(folder)) or not str(folder).isprintable():
        raise TrackingError(
            f"store {str(folder)!r}: MLflow cannot use a path with ?, % or control characters; {ELSEWHERE}"
        )


def _folder_name(experiment: str) -> str:
    """A file name for ``experiment``: itself where that is safe, else marked so that no two share a folder."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", experiment)[:80]
    if safe == experiment and safe.strip(".") and not safe.isdigit():
        return safe
    return f"{safe}-{hashlib.sha256(experiment.encode()).hexdigest()[:8]}"


@contextmanager
def _filesystem_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        wanted = (folder / "artifacts", folder, *folder.parents)
        blocker = next((p for p in wanted if os.path.exists(p) and not os.path.isdir(p)), None)
        why = f"{blocker} is a file, not a folder" if blocker else f"cannot create it ({error.strerror or error})"
        raise TrackingError(f"store {folder}: {why}; {ELSEWHERE}") from error
