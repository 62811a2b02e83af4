"""Reading runs back.

A store is a local SQLite file whose few tables have been the same for years, so it is read directly: ``zexp show``
answers in a fraction of a second, where importing MLflow alone takes two to four. A test holds this against MLflow's
own client, by which a server's runs are read.
"""
# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import difflib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from zexp.tracking.base import MlflowStore, TrackingError
from zexp.tracking.server import Server
from zexp.tracking.spool import KEY, SUMMARY_OF
from zexp.tracking.store import Store, run_path

_RUNS = """
    SELECT r.run_uuid, r.name, r.status, r.start_time, r.end_time, r.artifact_uri, r.experiment_id,
           e.name AS experiment
    FROM runs r JOIN experiments e USING (experiment_id)
    WHERE r.lifecycle_stage = 'active' AND e.lifecycle_stage = 'active'
"""
IDENTITY = "identity"
"""The tag of what a run shows: equal ones show the same."""
_TAGS = """
    SELECT r.run_uuid, r.status, wanted.value
    FROM tags wanted JOIN tags t USING (run_uuid) JOIN runs r USING (run_uuid) JOIN experiments e USING (experiment_id)
    WHERE r.lifecycle_stage = 'active' AND e.lifecycle_stage = 'active' AND wanted.key = ? AND t.key = ? AND t.value = ?
"""
# Runs that started in the same millisecond: the one created last counts as later.
_LATEST_FIRST = " ORDER BY r.start_time DESC, r.rowid DESC"


@dataclass(frozen=True)
class RunEntry:
    """A run as the database knows it."""

    run_id: str
    experiment: str
    experiment_id: str
    name: str
    status: str
    """RUNNING, FINISHED, FAILED or KILLED."""
    started_ms: int
    """Milliseconds since 1970."""
    ended_ms: int | None
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    tags: Mapping[str, str]
    artifact_uri: str
    url: str

    @property
    def artifacts(self) -> Path:
        """The folder of its artifacts."""
        parts = urlsplit(self.artifact_uri)
        if parts.scheme not in ("", "file"):
            raise TrackingError(f"run {self.run_id}: its artifacts are not local files but at {self.artifact_uri}")
        return Path(unquote(parts.path) if parts.scheme else self.artifact_uri)


@dataclass(frozen=True)
class StoredRun(RunEntry):
    """A run with the files people ask for first."""

    config: Mapping[str, Any]
    """The resolved configuration; empty if the run has none (yet)."""
    profile: list[dict[str, Any]]
    """The rows of ``functions.json``; empty if the run did not finish."""


def list_runs(
    store: MlflowStore, sweep: str | None = None, experiment: str | None = None, limit: int | None = None
) -> list[RunEntry]:
    """Runs, latest first; of one sweep (also those that it took from an earlier one) or experiment if asked."""
    if not isinstance(store, Store):
        return _listed(store, sweep, experiment, limit)
    query, values = _RUNS, []
    if sweep is not None:
        query += (
            " AND EXISTS (SELECT 1 FROM tags t WHERE t.run_uuid = r.run_uuid"
            " AND (t.key = 'sweep' AND t.value = ? OR t.key = ?))"
        )
        values += [sweep, reused_tag(sweep)]
    if experiment is not None:
        query += " AND e.name = ?"
        values.append(experiment)
    with store.connection() as link:
        rows = link.execute(f"{query}{_LATEST_FIRST} LIMIT {-1 if limit is None else int(limit)}", values)
        return [_entry(store, link, row) for row in rows.fetchall()]


def reused_tag(sweep: str) -> str:
    """The tag of a run of an earlier sweep that is also a point of this one."""
    return f"sweep/{sweep}"


def take_over(store: MlflowStore, sweep: str, run_ids: Iterable[str]) -> None:
    """Make runs of earlier sweeps points of this one as well."""
    with store.errors():
        for run_id in run_ids:
            store.client.set_tag(run_id, reused_tag(sweep), "reused")


@dataclass(frozen=True)
class Marks:
    """The points of a sweep that the store has."""

    by_key: Mapping[str, str]
    """Status of each run that the sweep made, by its key."""
    reused: frozenset[str]
    """Identities of the finished runs it took from earlier sweeps."""


def sweep_marks(store: MlflowStore, sweep: str) -> Marks:
    """What a sweep has so far; in one query, as it may have thousands of points."""
    if isinstance(store, Store):
        with store.connection() as link:
            made = link.execute(_TAGS, (KEY, "sweep", sweep)).fetchall()
            taken = link.execute(_TAGS, (IDENTITY, reused_tag(sweep), "reused")).fetchall()
        return Marks({row[2]: row[1] for row in made}, frozenset(row[2] for row in taken if row[1] == "FINISHED"))
    runs = _listed(store, sweep)
    return Marks(
        {run.tags[KEY]: run.status for run in runs if run.tags.get("sweep") == sweep and KEY in run.tags},
        frozenset(r.tags[IDENTITY] for r in runs if reused_tag(sweep) in r.tags and r.status == "FINISHED"),
    )


def finished_identities(store: MlflowStore, experiment: str, code: str) -> dict[str, str]:
    """The runs that this code has finished: id by identity, the latest of each."""
    if isinstance(store, Store):
        with store.connection() as link:
            rows = link.execute(_TAGS + " AND e.name = ? ORDER BY r.start_time", (IDENTITY, "code", code, experiment))
            return {row[2]: row[0] for row in rows if row[1] == "FINISHED"}
    assert isinstance(store, Server)
    ids = {e.experiment_id for e in store.experiments() if e.name == experiment}
    runs = [r for r in store.search(f"tags.code = '{code}'") if r.info.experiment_id in ids]
    return {r.data.tags[IDENTITY]: r.info.run_id for r in reversed(runs) if r.info.status == "FINISHED"}


def find_run(store: MlflowStore, ref: str) -> RunEntry:
    """The run meant by ``ref``: ``last`` (started, and no sweep's summary), a run id or its beginning, or a run name.

    Anything that names no run, or several, is an error that says what would.
    """
    if isinstance(store, Store):
        with store.connection() as link:
            rows = link.execute(_RUNS + _LATEST_FIRST).fetchall()
            apart = {row[0] for row in link.execute("SELECT run_uuid FROM tags WHERE key = ?", (SUMMARY_OF,))}
            known = [(row["run_uuid"], row["name"] or "", row["run_uuid"] in apart) for row in rows]
            return _entry(store, link, rows[_choose(store, ref, known)])
    runs = _listed(store)
    return runs[_choose(store, ref, [(run.run_id, run.name, SUMMARY_OF in run.tags) for run in runs])]


def _choose(store: MlflowStore, ref: str, known: list[tuple[str, str, bool]]) -> int:
    """Which of some runs (id, name and whether it is a summary, latest first) is meant."""
    runs = [(run_id, name) for run_id, name, _ in known]
    if not runs:
        raise TrackingError(f"no runs yet in {store}; `zexp run` makes one")
    if ref == "last":
        return next((i for i, (_, _, apart) in enumerate(known) if not apart), 0)
    for what, matches in (
        ("have that id", [i for i, (run_id, _) in enumerate(runs) if run_id == ref]),
        ("have that name", [i for i, (_, name) in enumerate(runs) if name == ref]),
        ("have an id that starts so", [i for i, (run_id, _) in enumerate(runs) if ref and run_id.startswith(ref)]),
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            ids = ", ".join(runs[i][0][:12] for i in matches[:5])
            more = ", ..." if len(matches) > 5 else ""
            raise TrackingError(f"run {ref!r}: {len(matches)} runs {what}; give an id, latest first: {ids}{more}")
    words = list(dict.fromkeys(name for _, name in runs)) + [run_id for run_id, _ in runs]
    close = difflib.get_close_matches(ref, words, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise TrackingError(
        f"no run {ref!r} in {store}: {hint}allowed: a run id or its beginning, a run name, or `last` "
        f"({runs[0][1]}, the latest of {len(runs)})"
    )


def load_run(store: MlflowStore, ref: str) -> StoredRun:
    """The run meant by ``ref``, as :func:`find_run` understands it, with its configuration and profile."""
    entry = find_run(store, ref)
    return StoredRun(**vars(entry), config=_config(store, entry), profile=_profile(store, entry))


def _listed(
    store: MlflowStore, sweep: str | None = None, experiment: str | None = None, limit: int | None = None
) -> list[RunEntry]:
    """The same by MLflow's client, which knows no "or"."""
    assert isinstance(store, Server)
    names = {e.experiment_id: e.name for e in store.experiments() if experiment in (None, e.name)}
    if sweep is None:
        return [_from_mlflow(store, run, names) for run in store.search("", limit, list(names))]
    found = {}
    for condition in (f"tags.sweep = '{sweep}'", f"tags.`{reused_tag(sweep)}` = 'reused'"):
        runs = store.search(condition, limit, list(names))
        found.update({run.info.run_id: _from_mlflow(store, run, names) for run in runs})
    return sorted(found.values(), key=lambda run: -run.started_ms)[:limit]


def _from_mlflow(store: Server, run: Any, experiments: Mapping[str, str]) -> RunEntry:
    info = run.info
    return RunEntry(
        run_id=info.run_id,
        experiment=experiments.get(info.experiment_id, ""),
        experiment_id=info.experiment_id,
        name=info.run_name or "",
        status=info.status,
        started_ms=info.start_time,
        ended_ms=info.end_time,
        metrics=run.data.metrics,
        params=run.data.params,
        tags=run.data.tags,
        artifact_uri=info.artifact_uri,
        url=store.url(run_path(info.experiment_id, info.run_id)),
    )


def _entry(store: Store, link: sqlite3.Connection, row: sqlite3.Row) -> RunEntry:
    run_id, experiment_id = row["run_uuid"], str(row["experiment_id"])

    def pairs(table: str) -> dict[str, Any]:
        found = link.execute(f"SELECT key, value FROM {table} WHERE run_uuid = ? ORDER BY key", (run_id,))
        return {key: value for key, value in found}

    return RunEntry(
        run_id=run_id,
        experiment=row["experiment"],
        experiment_id=experiment_id,
        name=row["name"] or "",
        status=row["status"],
        started_ms=row["start_time"],
        ended_ms=row["end_time"],
        metrics=pairs("latest_metrics"),
        params=pairs("params"),
        tags=pairs("tags"),
        artifact_uri=row["artifact_uri"],
        url=store.url(run_path(experiment_id, run_id)),
    )


def _read(store: MlflowStore, entry: RunEntry, name: str) -> str | None:
    if isinstance(store, Server):
        return store.artifact(entry.run_id, name)
    path = entry.artifacts / name
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if entry.status == "FINISHED" and not entry.artifacts.is_dir():
            raise TrackingError(
                f"run {entry.run_id}: its artifacts are missing from {entry.artifacts}; was the store moved? "
                "Its database keeps absolute paths, so it must stay where it was made"
            ) from None
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise TrackingError(f"run {entry.run_id}: cannot read {path} ({error})") from error


def _config(store: MlflowStore, entry: RunEntry) -> dict[str, Any]:
    text = _read(store, entry, "config.yaml")
    if text is None:
        return {}
    import yaml

    try:
        config = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # ten times as fast, if there
    except yaml.YAMLError as error:
        raise TrackingError(f"run {entry.run_id}: its config.yaml is damaged ({error})") from error
    return config if isinstance(config, dict) else {}


def _profile(store: MlflowStore, entry: RunEntry) -> list[dict[str, Any]]:
    text = _read(store, entry, "functions.json")
    if text is None:
        return []
    try:
        table = json.loads(text)
        return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise TrackingError(f"run {entry.run_id}: its functions.json is damaged ({error})") from error
