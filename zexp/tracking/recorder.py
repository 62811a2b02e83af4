"""Writing a run: one MLflow run for one simulation job, with as few round trips as MLflow allows."""
# mypy: allow-untyped-calls

from __future__ import annotations

import getpass
import json
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Literal

from zexp.errors import ZexpError
from zexp.result import FunctionRow, RunResult, TimeSeries
from zexp.tracking import names, tables
from zexp.tracking.store import Store, TrackingError

TOP_METRICS = 10
BATCH = 1000
"""Metrics that MLflow takes at once."""
NS_PER_MS = 1_000_000
NOTES = "mlflow.note.content"
WHOLE_TAGS = {"error": "traceback.txt", NOTES: "notes.md"}
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


class Recorder:
    """Writes runs to a store. ``start`` before the simulation, then exactly one of ``finish`` and ``fail``.

    It keeps no run of its own "active" and reads no ``MLFLOW_*`` variable, so runs may overlap.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._started: dict[str, RunInfo] = {}

    def start(self, info: RunInfo) -> str:
        """Create the run, in state RUNNING, and return its id."""
        experiment = self.store.experiment_id(info.experiment)
        with self.store.errors():
            run = self.store.client.create_run(experiment, tags=_tags(info), run_name=info.name or None)
        run_id: str = run.info.run_id
        self._started[run_id] = info
        return run_id

    def finish(
        self, run_id: str, info: RunInfo, result: RunResult, extra_files: Mapping[str, bytes | str] | None = None
    ) -> None:
        """Write everything about a run that succeeded, and set it FINISHED.

        ``extra_files`` are further artifacts by relative path. If this raises, the run is still RUNNING: call ``fail``.
        """
        rows = result.profile.functions(result.pages)
        shown = tables.tables(result, rows)
        files: dict[str, bytes | str] = {**_input_files(info), **tables.raw_files(result)}
        for table in shown:
            files.update(table.files())
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
        self._write(run_id, {**files, **(extra_files or {})}, metrics, names.params(info.config), tags)
        self._write_series(run_id, result.series, metrics)
        self._terminate(run_id, "FINISHED")

    def fail(self, run_id: str, error: BaseException, status: Literal["FAILED", "KILLED"] = "FAILED") -> None:
        """Keep the traceback and the one-line message of ``error`` with the run, and set its final status.

        The configuration is kept as well if this recorder started the run. The status is set even if the rest cannot
        be written.
        """
        files: dict[str, bytes | str] = {"traceback.txt": "".join(traceback.format_exception(error))}
        params: dict[str, str] = {}
        if info := self._started.get(run_id):
            files.update(_input_files(info))
            params = names.params(info.config)
        try:
            self._write(run_id, files, {}, params, {"error": one_line(error)})
        finally:
            self._terminate(run_id, status)

    def _write(
        self,
        run_id: str,
        files: Mapping[str, bytes | str],
        metrics: Mapping[str, float],
        params: Mapping[str, str],
        tags: Mapping[str, str],
    ) -> None:
        client = self.store.client
        from mlflow.entities import Metric, Param, RunTag

        with self.store.errors(), tempfile.TemporaryDirectory(prefix="zexp-") as spool:
            for path, content in files.items():
                _spool(Path(spool), path, content)
            client.log_artifacts(run_id, spool)
            now = int(time.time() * 1000)
            client.log_batch(
                run_id,
                [Metric(key, value, now, 0) for key, value in metrics.items()],
                [Param(key, value) for key, value in params.items()],
                [RunTag(key, value) for key, value in _legal_tags(tags).items()],
            )

    def _write_series(self, run_id: str, series: Mapping[str, TimeSeries], metrics: Mapping[str, float]) -> None:
        """Write the history of each series, with whole ms of simulated time as step, and as timestamp on that clock."""
        if not series:
            return
        client = self.store.client
        from mlflow.entities import Metric

        keys = names.legal_names([*metrics, *(f"series/{name}" for name in series)])[len(metrics) :]
        with self.store.errors():
            start_ms: int = client.get_run(run_id).info.start_time
            history = [
                Metric(key, float(value), start_ms + ms, ms)
                for key, one in zip(keys, series.values(), strict=True)
                for ms, value in _by_ms(one).items()
            ]
            for first in range(0, len(history), BATCH):
                client.log_batch(run_id, history[first : first + BATCH])

    def _terminate(self, run_id: str, status: str) -> None:
        with self.store.errors():
            self.store.client.set_terminated(run_id, status)
        self._started.pop(run_id, None)


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
        "mlflow.source.name": "zexp",
        "mlflow.source.type": "LOCAL",
        **{f"plugin.{name}": version for name, version in info.plugins.items()},
    }
    if info.sweep is not None:
        tags["sweep"] = info.sweep
    if info.notes:
        tags[NOTES] = info.notes
    if user := _user():
        tags["mlflow.user"] = user
    return _legal_tags(tags)


def _legal_tags(tags: Mapping[str, str]) -> dict[str, str]:
    values = (names.shorten(names.encodable(v), names.MAX_TAG, WHOLE_TAGS.get(k)) for k, v in tags.items())
    return dict(zip(names.legal_names(tags), values, strict=True))


def _spool(spool: Path, path: str, content: bytes | str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise TrackingError(f"artifact path {path!r}: must be relative and stay inside the run")
    target = spool.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content if isinstance(content, bytes) else names.encodable(content).encode())


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
