"""Reading runs back.

A store is a local SQLite file whose few tables have been the same for years, so it is read directly: ``zexp show``
answers in a fraction of a second, where importing MLflow alone takes two to four. A test holds this against MLflow's
own client.
"""
# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import difflib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from zexp.tracking.store import Store, TrackingError, run_url

_RUNS = """
    SELECT r.run_uuid, r.name, r.status, r.start_time, r.end_time, r.artifact_uri, r.experiment_id,
           e.name AS experiment
    FROM runs r JOIN experiments e USING (experiment_id)
    WHERE r.lifecycle_stage = 'active' AND e.lifecycle_stage = 'active'
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
    store: Store, sweep: str | None = None, experiment: str | None = None, limit: int | None = None
) -> list[RunEntry]:
    """Runs, latest first; of one sweep or experiment if asked."""
    query, values = _RUNS, []
    if sweep is not None:
        query += " AND EXISTS (SELECT 1 FROM tags t WHERE t.run_uuid = r.run_uuid AND t.key = 'sweep' AND t.value = ?)"
        values.append(sweep)
    if experiment is not None:
        query += " AND e.name = ?"
        values.append(experiment)
    with store.connection() as link:
        rows = link.execute(f"{query}{_LATEST_FIRST} LIMIT {-1 if limit is None else int(limit)}", values)
        return [_entry(link, row) for row in rows.fetchall()]


def find_run(store: Store, ref: str) -> RunEntry:
    """The run meant by ``ref``: ``last`` (started), a run id, a run name that only one run has, or the start of an id.

    Anything that names no run, or several, is an error that says what would.
    """
    with store.connection() as link:
        rows = link.execute(_RUNS + _LATEST_FIRST).fetchall()
        if not rows:
            raise TrackingError(f"no runs yet in store {store.folder}; `zexp run` makes one")
        if ref == "last":
            return _entry(link, rows[0])
        for what, matches in (
            ("have that id", [row for row in rows if row["run_uuid"] == ref]),
            ("have that name", [row for row in rows if row["name"] == ref]),
            ("have an id that starts so", [row for row in rows if ref and row["run_uuid"].startswith(ref)]),
        ):
            if len(matches) == 1:
                return _entry(link, matches[0])
            if matches:
                ids = ", ".join(row["run_uuid"][:12] for row in matches[:5])
                more = ", ..." if len(matches) > 5 else ""
                raise TrackingError(f"run {ref!r}: {len(matches)} runs {what}; give an id, latest first: {ids}{more}")
    known = list(dict.fromkeys(row["name"] for row in rows)) + [row["run_uuid"] for row in rows]
    close = difflib.get_close_matches(ref, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise TrackingError(
        f"no run {ref!r} in store {store.folder}: {hint}allowed: a run id or its beginning, a run name, or `last` "
        f"({rows[0]['name']}, the latest of {len(rows)})"
    )


def load_run(store: Store, ref: str) -> StoredRun:
    """The run meant by ``ref``, as :func:`find_run` understands it, with its configuration and profile."""
    entry = find_run(store, ref)
    return StoredRun(**vars(entry), config=_config(entry), profile=_profile(entry))


def _entry(link: sqlite3.Connection, row: sqlite3.Row) -> RunEntry:
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
        url=run_url(experiment_id, run_id),
    )


def _read(entry: RunEntry, name: str) -> str | None:
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


def _config(entry: RunEntry) -> dict[str, Any]:
    text = _read(entry, "config.yaml")
    if text is None:
        return {}
    import yaml

    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TrackingError(f"run {entry.run_id}: its config.yaml is damaged ({error})") from error
    return config if isinstance(config, dict) else {}


def _profile(entry: RunEntry) -> list[dict[str, Any]]:
    text = _read(entry, "functions.json")
    if text is None:
        return []
    try:
        table = json.loads(text)
        return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise TrackingError(f"run {entry.run_id}: its functions.json is damaged ({error})") from error
