"""The runs that are compared: of one or more sweeps, or named one by one."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from zexp.compare import units
from zexp.errors import ZexpError, near
from zexp.tracking import MlflowStore, Store, find_run, list_runs
from zexp.workload import WORKLOADS, Workload

REUSED = "sweep/"
"""Start of the tag of a run that a later sweep took over; the rest is that sweep's id."""
LATEST = "last-sweep"
SEED = "seed"
FACTS = ("machine.name", "machine.description", "kernel.name", "kernel.description", "workload.name", SEED)
"""Parameters that a page about a sweep names."""
NOT_RESULTS = ("series/", "wall_s")
_NO_DECISION = ("tracking.", "published.", "notes", "name", "seeds", "machine.sources.", "kernel.sources.")
"""Parameters that decide no result."""
_SHOWN = 5


@dataclass(frozen=True)
class Run:
    """A run as the database knows it, without the metrics that are no results and the params nobody asked for."""

    run_id: str
    name: str
    experiment: str
    status: str
    started_ms: int
    ended_ms: int | None
    artifact_uri: str
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    tags: Mapping[str, str]

    @property
    def workload(self) -> type[Workload]:
        """What it simulated; the base class if this installation does not know it."""
        return WORKLOADS.get(self.params.get("workload.name", ""), Workload)

    @property
    def seed(self) -> int:
        """Its first seed."""
        return _whole(self.tags.get("seed", ""), 0)

    @property
    def seeds(self) -> int:
        """How many seeds it ran with."""
        return _whole(self.tags.get("seeds", ""), 1)


@dataclass(frozen=True)
class RunSet:
    """Runs to compare, in the order in which they were started (of sweeps) or named."""

    store: MlflowStore
    sweeps: tuple[str, ...]
    """Their sweeps; empty if they were named one by one."""
    swept: tuple[str, ...]
    """The parameters that differ between them by intent."""
    runs: tuple[Run, ...]

    @cached_property
    def finished(self) -> tuple[Run, ...]:
        """Those that have results."""
        return tuple(run for run in self.runs if run.status == "FINISHED")

    @cached_property
    def unfinished(self) -> tuple[Run, ...]:
        """Those that have none, unless the same point was finished by another run."""
        done = {run.tags.get("config_hash", run.run_id) for run in self.finished}
        return tuple(
            run for run in self.runs if run.status != "FINISHED" and run.tags.get("config_hash", run.run_id) not in done
        )

    @cached_property
    def workload(self) -> type[Workload]:
        """The workload of all of them; the base class if they have several."""
        found = {run.workload for run in self.finished}
        return found.pop() if len(found) == 1 else Workload

    @property
    def title(self) -> str:
        """What they are."""
        what = " and ".join(self.sweeps)
        return f"sweep {what}" if len(self.sweeps) == 1 else f"sweeps {what}" if what else f"{len(self.runs)} runs"

    def values(self, key: str) -> list[str]:
        """The values of a swept parameter in all runs, finished or not; numbers in ascending order."""
        return units.in_order([run.params.get(key, "") for run in self.runs])

    def key(self, text: str, option: str) -> str:
        """The swept parameter meant by ``text``: its dotted name, its group (``policy/flush``), or an end of it."""
        dotted = text.replace("/", ".")
        wanted = [key for key in self.swept if key in (text, dotted, f"{dotted}.name")]
        wanted = wanted or [key for key in self.swept if key.endswith(f".{dotted}")]
        if len(wanted) != 1:
            if not self.swept:
                raise ZexpError(f"{option} {text}: needs a sweep, and these are single runs")
            raise ZexpError(f"{option} {text}: not swept; {near(text, self.swept)}")
        return wanted[0]

    def only(self, conditions: Sequence[str]) -> RunSet:
        """Those of which all the given ``KEY=VALUE`` hold."""
        chosen = self
        for condition in conditions:
            text, equals, value = condition.partition("=")
            if not equals:
                raise ZexpError(f"--at {condition}: must be KEY=VALUE, where KEY was swept")
            key = chosen.key(text, "--at")
            if value not in chosen.values(key):
                raise ZexpError(f"--at {condition}: no run has it; {near(value, chosen.values(key))}")
            chosen = replace(chosen, runs=tuple(run for run in chosen.runs if run.params.get(key, "") == value))
        return chosen

    def artifact(self, run: Run, name: str) -> str | None:
        """A text artifact of a run; None if it has none of that name. Raises ``ZexpError`` if it cannot be read."""
        if not isinstance(self.store, Store):
            text: str | None = self.store.artifact(run.run_id, name)  # type: ignore[attr-defined]
            return text
        parts = urlsplit(run.artifact_uri)
        if parts.scheme not in ("", "file"):
            raise ZexpError(f"run {run.run_id}: its artifacts are not local files but at {run.artifact_uri}")
        path = Path(unquote(parts.path) if parts.scheme else run.artifact_uri) / name
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ZexpError(f"run {run.run_id}: cannot read {path} ({error})") from error

    def by_seed(self, run: Run) -> dict[int, Mapping[str, float]]:
        """Metrics of each seed of a run. Raises ``ZexpError`` if its ``replications.json`` is damaged or missing."""
        text = self.artifact(run, "replications.json")
        if text is not None:
            return _replications(run, text)
        if run.seeds > 1:
            raise ZexpError(
                f"run {run.run_id}: it ran with {run.seeds} seeds but its replications.json is missing; "
                "delete the run and resume its sweep"
            )
        return {run.seed: run.metrics}


def _whole(text: str, otherwise: int) -> int:
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else otherwise


def _replications(run: Run, text: str) -> dict[int, Mapping[str, float]]:
    try:
        table = json.loads(text)
        first, *names = table["columns"]
        found: dict[int, Mapping[str, float]] = {}
        kept = [is_result(name) for name in names]
        for seed, *values in table["data"]:
            if first != "seed" or not isinstance(seed, int) or seed in found:
                raise ValueError("its first column must be `seed`, with a different whole number in each row")
            triples = zip(names, values, kept, strict=True)
            found[seed] = {name: float(v) for name, v, keep in triples if keep and v is not None and math.isfinite(v)}
        if not found:
            raise ValueError("it has no rows")
    except (ValueError, KeyError, TypeError) as error:
        what = " ".join(str(error).split()) if not isinstance(error, KeyError) else f"it has no {error}"
        raise ZexpError(
            f"run {run.run_id}: its replications.json is damaged ({what}); delete the run and resume its sweep"
        ) from error
    return found


def is_result(metric: str) -> bool:
    """Whether a metric says something about the simulated machine."""
    return not metric.startswith(NOT_RESULTS)


def load(store: MlflowStore, refs: Sequence[str]) -> RunSet:
    """The runs meant by ``refs``: sweep ids, beginnings of them, ``last-sweep``; or runs as ``zexp show`` has them.

    Raises ``ZexpError`` for what names neither, for a mixture, and if no run has finished.
    """
    known = _sweeps(store)
    sweeps = [sweep for ref in dict.fromkeys(refs) if (sweep := _sweep(store, ref, known))]
    if sweeps and len(sweeps) < len(dict.fromkeys(refs)):
        raise ZexpError(f"{' '.join(refs)}: some are sweeps and some are runs; compare sweeps, or runs, but not both")
    if sweeps:
        whole = of_sweeps(store, sweeps)
        if not whole.finished:
            states = ", ".join(sorted({run.status for run in whole.runs})) or "no runs"
            raise ZexpError(
                f"{whole.title}: no finished runs to compare ({states}); `zexp report` says why they failed"
            )
        return whole
    found = [_find(store, ref, known) for ref in dict.fromkeys(refs)]
    chosen = {run.run_id: run for run in _runs(store, found, ())}
    runs = RunSet(store, (), (), tuple(chosen[run_id] for run_id in dict.fromkeys(found)))
    for run in runs.runs:
        if run.status != "FINISHED":
            raise ZexpError(f"run {run.name} ({run.run_id[:8]}) is {run.status}: only finished runs can be compared")
    return runs


def of_sweeps(store: MlflowStore, sweeps: Sequence[str]) -> RunSet:
    """All runs of the sweeps with these ids, those that they took over from earlier ones included."""
    if isinstance(store, Store):
        marks = {sweep: _ids(store, sweep) for sweep in sweeps}
        ids = list(dict.fromkeys(run_id for found in marks.values() for run_id in found))
        tagged = _tags(store, ids, "swept")
        swept = _declared(tagged.values()) or _differing(store, ids)
        runs = _runs(store, ids, swept)
    else:
        listed = {sweep: list_runs(store, sweep=sweep) for sweep in sweeps}
        marks = {sweep: {entry.run_id for entry in entries} for sweep, entries in listed.items()}
        runs = [_trimmed(entry) for entries in listed.values() for entry in entries]
        swept = _declared(run.tags.get("swept", "") for run in runs) or _varying([run.params for run in runs])
    runs = sorted(runs, key=lambda run: run.started_ms)
    if len(sweeps) > 1:  # which sweep a run is of is what they are compared by
        swept = ["sweep", *swept]
        of = {run_id: sweep for sweep, members in marks.items() for run_id in members}
        order = {sweep: i for i, sweep in enumerate(sweeps)}
        runs = [replace(run, params={**run.params, "sweep": of[run.run_id]}) for run in runs]
        runs.sort(key=lambda run: order[run.params["sweep"]])
    if "experiment" in swept:  # a choice of Hydra's that leaves no parameter of its own
        runs = [replace(run, params={**run.params, "experiment": run.experiment}) for run in runs]
    known = {key for run in runs for key in run.params}
    return RunSet(store, tuple(sweeps), tuple(key for key in swept if key in known), tuple(runs))


def _sweeps(store: MlflowStore) -> list[str]:
    """Ids of all sweeps, latest first."""
    if not isinstance(store, Store):
        return list(dict.fromkeys(r.tags["sweep"] for r in list_runs(store) if "sweep" in r.tags))
    with store.connection() as link:
        rows = link.execute(
            "SELECT CASE t.key WHEN 'sweep' THEN t.value ELSE substr(t.key, ?) END AS id, max(r.start_time) AS latest"
            " FROM tags t JOIN runs r USING (run_uuid) WHERE r.lifecycle_stage = 'active'"
            " AND (t.key = 'sweep' OR (t.key >= ? AND t.key < 'sweep0')) GROUP BY id ORDER BY latest DESC, id DESC",
            (len(REUSED) + 1, REUSED),
        )
        return [row["id"] for row in rows]


def _sweep(store: MlflowStore, ref: str, known: Sequence[str]) -> str | None:
    """The sweep meant by ``ref``, or None if it means something else."""
    if ref in known:
        return ref
    if ref == LATEST:
        if not known:
            raise ZexpError(f"{LATEST}: no sweep yet in {_where(store)}; `zexp run -m` makes one")
        return known[0]
    matches = [sweep for sweep in known if ref and sweep.startswith(ref)]
    if len(matches) > 1:
        raise ZexpError(f"sweep {ref!r}: {len(matches)} sweeps start so; latest first: {_some(matches)}")
    return matches[0] if matches else None


def find_sweep(store: MlflowStore, ref: str) -> str:
    """The id of the sweep meant by ``ref``; raises ``ZexpError``, naming the latest, if there is none."""
    known = _sweeps(store)
    if sweep := _sweep(store, ref, known):
        return sweep
    raise ZexpError(f"no sweep {ref!r} in {_where(store)}; {_latest(known)}")


def _find(store: MlflowStore, ref: str, sweeps: Sequence[str]) -> str:
    try:
        return find_run(store, ref).run_id
    except ZexpError as error:
        raise ZexpError(f"{error}; {_latest(sweeps)}") from error


def _latest(sweeps: Sequence[str]) -> str:
    return f"sweeps, latest first: {_some(sweeps)}" if sweeps else "no sweep yet: `zexp run -m` makes one"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _where(store: MlflowStore) -> str:
    return f"store {store.folder}" if isinstance(store, Store) else str(store)


# A store has one row a run and parameter: millions for thousands of runs, so only what is needed is read.
_IN = "run_uuid IN (SELECT value FROM json_each(?))"


def _ids(store: Store, sweep: str) -> set[str]:
    with store.connection() as link:
        query = "SELECT run_uuid FROM tags WHERE (key = 'sweep' AND value = ?) OR key = ?"
        return {row["run_uuid"] for row in link.execute(query, (sweep, f"{REUSED}{sweep}"))}


def _tags(store: Store, ids: Iterable[str], key: str) -> dict[str, str]:
    with store.connection() as link:
        query = f"SELECT run_uuid, value FROM tags WHERE key = ? AND {_IN} ORDER BY rowid"
        return {row["run_uuid"]: row["value"] for row in link.execute(query, (key, json.dumps(list(ids))))}


def _runs(store: MlflowStore, ids: Sequence[str], keys: Sequence[str]) -> list[Run]:
    if not isinstance(store, Store):
        return [_trimmed(find_run(store, run_id)) for run_id in ids]
    wanted = json.dumps(list(ids))
    with store.connection() as link:
        metrics = _pairs(
            link.execute(
                f"SELECT run_uuid, key, value FROM latest_metrics WHERE {_IN} AND NOT is_nan"
                " AND key != 'wall_s' AND NOT (key >= 'series/' AND key < 'series0')",
                (wanted,),
            )
        )
        params = _pairs(
            link.execute(
                f"SELECT run_uuid, key, value FROM params WHERE key IN (SELECT value FROM json_each(?)) AND {_IN}",
                (json.dumps([*keys, *FACTS]), wanted),
            )
        )
        tags = _pairs(
            link.execute(
                f"SELECT run_uuid, key, value FROM tags WHERE {_IN}"
                " AND key NOT IN ('mlflow.note.content', 'mlflow.loggedArtifacts')",
                (wanted,),
            )
        )
        rows = link.execute(
            "SELECT r.run_uuid, r.name, r.status, r.start_time, r.end_time, r.artifact_uri, e.name AS experiment"
            f" FROM runs r JOIN experiments e USING (experiment_id) WHERE r.lifecycle_stage = 'active' AND {_IN}"
            " ORDER BY r.start_time, r.rowid",
            (wanted,),
        )
        return [
            Run(
                run_id=row["run_uuid"],
                name=row["name"] or row["run_uuid"][:8],
                experiment=row["experiment"],
                status=row["status"],
                started_ms=row["start_time"],
                ended_ms=row["end_time"],
                artifact_uri=row["artifact_uri"],
                metrics=metrics.get(row["run_uuid"], {}),
                params=params.get(row["run_uuid"], {}),
                tags=tags.get(row["run_uuid"], {}),
            )
            for row in rows
        ]


def _pairs(rows: Iterator[sqlite3.Row]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for run_id, key, value in rows:
        found.setdefault(run_id, {})[key] = value
    return found


def _trimmed(entry: Any) -> Run:
    """A run as :func:`zexp.tracking.list_runs` gives it."""
    fields = {name: getattr(entry, name) for name in Run.__dataclass_fields__}
    return Run(**{**fields, "metrics": {k: v for k, v in entry.metrics.items() if is_result(k)}})


def _declared(tags: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(key for tag in dict.fromkeys(tags) for key in tag.split()))


def _differing(store: Store, ids: Iterable[str]) -> list[str]:
    """What differs between runs whose sweep did not say what it varied."""
    wanted = json.dumps(list(ids))
    with store.connection() as link:
        keys = link.execute(
            f"SELECT key FROM params WHERE {_IN} GROUP BY key HAVING count(DISTINCT value) > 1 OR count(*) <"
            " (SELECT count(DISTINCT run_uuid) FROM params WHERE run_uuid IN (SELECT value FROM json_each(?)))",
            (wanted, wanted),
        )
        found = [row["key"] for row in keys if not row["key"].startswith(_NO_DECISION)]
        rows = link.execute(
            f"SELECT run_uuid, key, value FROM params WHERE key IN (SELECT value FROM json_each(?)) AND {_IN}",
            (json.dumps(found), wanted),
        )
        return _varying(list(_pairs(rows).values()))


def _varying(params: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys whose values differ, without those that only follow from the choice of something with a name.

    Choosing another policy or machine brings other parameters with it; those are not what was varied.
    """
    keys = [key for key in dict.fromkeys(k for one in params for k in one) if not key.startswith(_NO_DECISION)]
    varying = [key for key in keys if len({one.get(key) for one in params}) > 1]
    names = [key for key in varying if key.endswith(".name")]

    def follows(key: str, name: str) -> bool:
        of = len({one.get(name) for one in params})
        return key.startswith(name[: -len("name")]) and len({(one.get(name), one.get(key)) for one in params}) == of

    rest = [key for key in varying if key not in names and not any(follows(key, name) for name in names)]
    return [*names, *rest]
