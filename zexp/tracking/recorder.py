"""A run as MLflow is to show it: one MLflow run for one point, with as few round trips as MLflow allows."""
# mypy: allow-untyped-calls

from __future__ import annotations

import getpass
import json
import secrets
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Literal

from zexp.errors import ZexpError
from zexp.result import FunctionRow, RunResult, TimeSeries
from zexp.tracking import names, tables
from zexp.tracking.base import MlflowStore
from zexp.tracking.spool import SUMMARY_OF, TRACEBACK, Parcel, Spool

TOP_METRICS = 10
NS_PER_MS = 1_000_000
UNSHOWN = ("kernel.costs.", "kernel.sources.", "machine.sources.", "published.", "tracking.", "notes")
"""Configuration that makes no parameters of a run, unless it was set for it."""
NOTES = "mlflow.note.content"
WHOLE_TAGS = {"error": TRACEBACK, NOTES: "notes.md"}
"""Where to find the whole of a tag that was too long for MLflow."""


@dataclass(frozen=True)
class RunInfo:
    """What is known of a run before it starts."""

    experiment: str
    name: str
    config: Mapping[str, object]
    """Fully resolved, nested, made of plain values."""
    config_hash: str
    machine_digest: str
    seed: int
    sweep: str | None
    """What all runs of a sweep have in common; they are otherwise ordinary runs."""
    plugins: Mapping[str, str]
    """Version of each distribution that took part."""
    notes: str = ""
    """Markdown, shown as the description of the run."""
    key: str = ""
    """What all attempts at this run have in common, to share one run in the store; empty if there is but this one."""
    first: bool = True
    """There was no attempt before."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Further tags."""
    given: Sequence[str] = ()
    """Configuration keys that the user has set: always parameters."""


class Recorder:
    """Sends runs to a store: each once it has ended, whole.

    It keeps no run "active" and reads no ``MLFLOW_*`` variable.
    """

    def __init__(self, store: MlflowStore) -> None:
        self.store = store
        self._spool = Spool.of(store)

    def finish(
        self,
        info: RunInfo,
        result: RunResult,
        extra_files: Mapping[str, bytes | str] | None = None,
        *,
        started_ms: int | None = None,
    ) -> str:
        """Write a run that succeeded, and return its id. ``extra_files`` are further artifacts by relative path.

        Raises :class:`UnreachableError` if the store does not answer; the run then waits in the spool.
        """
        rows = result.profile.functions(result.pages)
        shown = tables.tables(result, rows)
        files: dict[str, bytes | str] = {**_input_files(info), **tables.raw_files(result)}
        for table in shown:
            files.update(table.files())
        if result.replications:
            files["replications.json"] = tables.replications_table(result).json()
        metrics, skipped = names.metrics({**_metrics(result, rows), **result.metrics})
        tags = {
            # What mlflow.log_table would set: makes the UI's artifact view offer these files as tables.
            "mlflow.loggedArtifacts": json.dumps([{"path": f"{t.name}.json", "type": "table"} for t in shown]),
            "engine": result.engine,
        }
        if rows:
            tags["profile_base"] = rows[0].base
        if skipped:
            tags["metrics_not_finite"] = ", ".join(skipped)
        if dropped := [f"{name}={series.dropped}" for name, series in result.series.items() if series.dropped]:
            tags["series_dropped"] = ", ".join(dropped)
        parcel = self._parcel(info, "FINISHED", started_ms, metrics, tags, _series(result.series, metrics))
        return self._spool.send(self.store, parcel, {**files, **(extra_files or {})})

    def fail(
        self,
        info: RunInfo,
        error: BaseException,
        status: Literal["FAILED", "KILLED"] = "FAILED",
        *,
        started_ms: int | None = None,
    ) -> str:
        """Write a run that did not succeed: the traceback and the one-line message of ``error``, and what was tried."""
        trace = "".join(traceback.format_exception(error))
        parcel = self._parcel(info, status, started_ms, {}, {"error": one_line(error)}, [])
        return self._spool.send(self.store, parcel, {TRACEBACK: trace, **_input_files(info)})

    def summary(
        self,
        experiment: str,
        sweep: str,
        markdown: str,
        metrics: Mapping[str, float],
        files: Mapping[str, bytes | str],
    ) -> str:
        """Write the run that says what a sweep found, or anew if it is there; ``markdown`` is its description."""
        now_ms = int(time.time() * 1000)
        tags = {SUMMARY_OF: sweep, "zexp_version": _version(), NOTES: _beginning(markdown)}
        parcel = Parcel(
            uri=self.store.uri,
            experiment=experiment,
            name=f"summary of {sweep}",
            key=f"{sweep}/summary",
            status="FINISHED",
            started_ms=now_ms,
            ended_ms=now_ms,
            metrics=metrics,
            params={},
            tags=_legal_tags({**tags, **_origin()}),
            series=[],
            first=False,
        )
        return self._spool.send(self.store, parcel, files)

    def _parcel(
        self,
        info: RunInfo,
        status: str,
        started_ms: int | None,
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
        series: list[tuple[str, float, int]],
    ) -> Parcel:
        now_ms = int(time.time() * 1000)
        return Parcel(
            uri=self.store.uri,
            experiment=info.experiment,
            name=info.name,
            key=info.key or secrets.token_hex(16),
            status=status,
            started_ms=now_ms if started_ms is None else started_ms,
            ended_ms=now_ms,
            metrics=metrics,
            params=_params(info),
            tags={**_tags(info), **_legal_tags(tags)},
            series=series,
            first=info.first,
        )


def _params(info: RunInfo) -> dict[str, str]:
    """Parameters by which runs are told apart; the hundreds of others are in ``config.yaml`` like these."""
    return {
        key: value
        for key, value in names.params(info.config).items()
        if not key.startswith(UNSHOWN) or any(key == k or key.startswith(f"{k}.") for k in info.given)
    }


def _series(series: Mapping[str, TimeSeries], metrics: Mapping[str, float]) -> list[tuple[str, float, int]]:
    """The history of each series, with whole ms of simulated time as step."""
    keys = names.legal_names([*metrics, *(f"series/{name}" for name in series)])[len(metrics) :]
    return [
        (key, float(value), ms)
        for key, one in zip(keys, series.values(), strict=True)
        for ms, value in _by_ms(one).items()
    ]


def _by_ms(series: TimeSeries) -> dict[int, int]:
    """The last value of each ms: of several at the same step, MLflow would take the largest for the latest."""
    return {time // NS_PER_MS: value for time, value in zip(series.times_ns, series.values, strict=True)}


def one_line(error: BaseException) -> str:
    """The message of an error on one line, with its type unless it is one of our own."""
    message = " ".join(str(error).split())
    if isinstance(error, ZexpError) and message:
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _input_files(info: RunInfo) -> dict[str, str]:
    notes = {"notes.md": info.notes} if len(info.notes) > names.MAX_TAG else {}
    return {"config.yaml": tables.config_yaml(info.config), **notes}


def _metrics(result: RunResult, rows: Sequence[FunctionRow]) -> dict[str, float]:
    """Metrics every run has: its duration, and the functions with the largest self share.

    Rows come busiest comm first. Shares have the CPU time of a comm as base, so those of any other comm say which.
    """
    busiest = [row for row in rows if row.self_ns > 0][:TOP_METRICS]
    shares = {}
    for row in busiest:
        parts = [row.symbol] if row.comm == rows[0].comm else [row.comm, row.symbol]
        name = "/".join(part.replace("/", "_") for part in parts)
        shares[f"profile/self_pct/{name}"] = round(row.self_pct, 3)
    counted = {"instructions": float(result.instructions)} if result.instructions else {}
    return {"wall_s": result.wall_s, "sim_ns": result.sim_ns, **counted, **shares}


def _tags(info: RunInfo) -> dict[str, str]:
    tags = {
        "config_hash": info.config_hash,
        "machine_digest": info.machine_digest,
        "seed": str(info.seed),
        "zexp_version": _version(),
        **info.tags,
        **_origin(),
        **{f"plugin.{name}": version for name, version in info.plugins.items()},
    }
    if info.sweep is not None:
        tags["sweep"] = info.sweep
    if info.notes:
        tags[NOTES] = info.notes
    return _legal_tags(tags)


def _beginning(markdown: str) -> str:
    """As many whole sections as fit into a tag."""
    if len(markdown) <= names.MAX_TAG:
        return markdown
    more = "\n\nMore is in `summary.md` and `report.html`, below Artifacts."
    text = markdown[: names.MAX_TAG - len(more)]
    return text[: max(text.rfind("\n## "), 0) or len(text)].rstrip() + more


def _origin() -> dict[str, str]:
    """The tags from which MLflow shows who made a run, and by what."""
    tags = {"mlflow.source.name": "zexp", "mlflow.source.type": "LOCAL"}
    return {**tags, "mlflow.user": user} if (user := _user()) else tags


def _legal_tags(tags: Mapping[str, str]) -> dict[str, str]:
    values = (names.shorten(names.encodable(v), names.MAX_TAG, WHOLE_TAGS.get(k)) for k, v in tags.items())
    return dict(zip(names.legal_names(tags), values, strict=True))


def _version() -> str:
    try:
        return metadata.version("zexp")
    except metadata.PackageNotFoundError:  # run from a checkout
        return "unknown"


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return None
