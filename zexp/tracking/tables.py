"""The files of a run: what people look at in the UI, and the full data beside it.

All are functions of the result alone, byte for byte: no times, no order that depends on anything else.
"""
# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import heapq
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from zexp.result import FunctionRow, Log2Histogram, Profile, RunResult
from zexp.tracking import names

Cell = str | int | float | None

TOP_ROWS = 40
MIN_CHILDREN_PCT = 0.5


@dataclass(frozen=True)
class Table:
    """A small table that is logged twice: as JSON for MLflow's tables, as Markdown for its compare page."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def json(self) -> str:
        """The format of ``mlflow.log_table``: pandas' "split" orientation without an index."""
        return json.dumps({"columns": self.columns, "data": self.rows}, separators=(",", ":"), allow_nan=False)

    def markdown(self) -> str:
        """A Markdown table, numbers aligned to the right."""
        numeric = [any(isinstance(row[i], int | float) for row in self.rows) for i in range(len(self.columns))]
        lines = [self.columns, tuple("---:" if n else "---" for n in numeric), *self.rows]
        return "".join(f"| {' | '.join(map(_markdown_cell, line))} |\n" for line in lines)

    def files(self) -> dict[str, str]:
        """Both forms by file name."""
        return {f"{self.name}.json": self.json(), f"{self.name}.md": self.markdown()}


def functions_table(rows: Sequence[FunctionRow]) -> Table:
    """The perf-style table: the functions with most time of their own, and all that call for a notable share.

    MLflow's artifact view groups by the first column, the symbol, and puts the second of all runs side by side.
    """
    top = {id(row) for row in heapq.nlargest(TOP_ROWS, rows, key=lambda row: row.self_ns)}
    return Table(
        "functions",
        ("symbol", "self_pct", "children_pct", "ns_per_page", "comm", "base"),
        tuple(
            (
                row.symbol,
                round(row.self_pct, 2),
                round(row.children_pct, 2),
                None if row.ns_per_page is None else round(row.ns_per_page, 3),
                row.comm,
                row.base,
            )
            for row in rows
            if id(row) in top or row.children_pct > MIN_CHILDREN_PCT
        ),
    )


def locks_table(result: RunResult) -> Table:
    """Lock contention, most waiting first."""
    locks = sorted(result.locks, key=lambda lock: (-lock.wait_ns.total, lock.name))
    return Table(
        "locks",
        ("name", "acquisitions", "contended", "contended_pct", "wait_mean_ns", "hold_mean_ns"),
        tuple(
            (
                lock.name,
                lock.acquisitions,
                lock.contended,
                round(100 * lock.contended / lock.acquisitions, 2) if lock.acquisitions else 0.0,
                round(lock.wait_ns.mean, 2),
                round(lock.hold_ns.mean, 2),
            )
            for lock in locks
        ),
    )


def lines_table(result: RunResult) -> Table:
    """Cache-line traffic, most transfer time first."""
    lines = sorted(result.lines, key=lambda line: (-line.transfer_ns, line.name))
    return Table(
        "lines",
        ("name", "transfers", "transfer_mean_ns", "transfer_total_ms"),
        tuple(
            (
                line.name,
                line.transfers,
                round(line.transfer_ns / line.transfers, 2) if line.transfers else 0.0,
                round(line.transfer_ns / 1e6, 3),
            )
            for line in lines
        ),
    )


def replications_table(result: RunResult) -> Table:
    """Every metric of every seed; a metric that a seed does not have is null."""
    seeds = result.replications
    metrics = list(dict.fromkeys(name for one in seeds for name in one.metrics))
    rows = [(one.seed, *(_finite(one.metrics.get(name)) for name in metrics)) for one in seeds]
    return Table("replications", ("seed", *metrics), tuple(rows))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def tables(result: RunResult, rows: Sequence[FunctionRow]) -> list[Table]:
    """The tables of a run; functions first, as the UI offers the first one by default."""
    optional: list[tuple[object, Callable[[RunResult], Table]]] = [
        (result.locks, locks_table),
        (result.lines, lines_table),
    ]
    return [functions_table(rows), *(make(result) for present, make in optional if present)]


def raw_files(result: RunResult) -> dict[str, bytes | str]:
    """The full-resolution data."""
    files: dict[str, bytes | str] = {
        "raw/profile.parquet": _parquet(result.profile),
        "raw/profile.folded": result.profile.folded(),
        "raw/histograms.json": _histograms(result),
    }
    if result.series:
        named = {name: vars(series) for name, series in result.series.items()}
        files["raw/series.json"] = json.dumps(named, sort_keys=True) + "\n"
    return files


def config_yaml(config: Mapping[str, object]) -> str:
    """The resolved configuration, keys in the order they were given."""
    return "".join(_section(json.dumps({str(key): _plain(value)})) for key, value in config.items())


@lru_cache(maxsize=256)  # most sections are the same in all runs of a sweep
def _section(text: str) -> str:
    import yaml

    # libyaml's emitter, where PyYAML was built with it, is ten times as fast
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    section: str = yaml.dump(json.loads(text), Dumper=dumper, sort_keys=False, allow_unicode=True)
    return section


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(child) for child in value]
    if isinstance(value, int | float | None):
        return value
    return names.encodable(str(value))


def _parquet(profile: Profile) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    stacks = sorted(profile.stacks, key=lambda s: (s.comm, s.stack, s.self_ps))
    columns = {
        "comm": pa.array([s.comm for s in stacks], pa.string()),
        "stack": pa.array([";".join(s.stack) for s in stacks], pa.string()),
        "symbol": pa.array([s.stack[-1] if s.stack else "" for s in stacks], pa.string()),
        "self_ps": pa.array([s.self_ps for s in stacks], pa.int64()),
    }
    sink = io.BytesIO()
    parquet.write_table(pa.table(columns), sink)
    return sink.getvalue()


def _histograms(result: RunResult) -> str:
    named = dict(result.histograms)
    for lock in result.locks:
        named[f"lock/{lock.name}/wait_ns"] = lock.wait_ns
        named[f"lock/{lock.name}/hold_ns"] = lock.hold_ns
    return json.dumps({name: _histogram(named[name]) for name in sorted(named)}, indent=1) + "\n"


def _histogram(histogram: Log2Histogram) -> dict[str, object]:
    return {
        "unit": histogram.unit,
        "count": histogram.count,
        "total": histogram.total,
        "buckets": histogram.buckets(),
    }


def _markdown_cell(value: Cell) -> str:
    return "" if value is None else str(value).replace("|", r"\|").replace("<", "&lt;").replace("\n", " ")
