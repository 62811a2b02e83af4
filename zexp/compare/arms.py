"""Runs arranged for comparison: an arm for each policy, a condition for each combination of what else was swept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from zexp.compare import units
from zexp.compare.runset import SEED, Run, RunSet
from zexp.compare.statistics import Samples
from zexp.errors import ZexpError, near
from zexp.workload import Headline, Workload

Condition = tuple[str, ...]
PROFILE = "profile/self_pct/"
MAX_NAMED = 8
"""Metrics that an error message lists."""


@dataclass(frozen=True)
class Cell:
    """An arm under a condition: one run, or one run a seed."""

    run: Run
    """The latest, for its artifacts."""
    seeds: tuple[int, ...]
    values: Mapping[str, Samples]
    """Metric -> its value with each of the seeds, NaN where there is none."""


@dataclass(frozen=True)
class Arms:
    """Cells by arm and condition."""

    by: str
    """The parameter that tells the arms apart; "" if each is a run."""
    names: tuple[str, ...]
    """The arms, the baseline first."""
    keys: tuple[str, ...]
    """The other swept parameters, of whose values conditions consist."""
    cells: Mapping[tuple[str, Condition], Cell]
    workload: type[Workload]
    """What all simulate; the base class if that differs."""

    def shared(self, *arms: str, metric: str | None = None) -> list[Condition]:
        """Conditions that all these arms have (with that metric), in the order of :meth:`conditions`."""
        return [
            condition
            for condition in self.conditions()
            if all(
                (cell := self.cells.get((arm, condition))) and (metric is None or metric in cell.values) for arm in arms
            )
        ]

    def conditions(self) -> list[Condition]:
        """All conditions any arm has, each parameter in the order of :func:`zexp.compare.units.in_order`."""
        found = list(dict.fromkeys(condition for _, condition in self.cells))
        ranks = [{v: i for i, v in enumerate(units.in_order(column))} for column in zip(*found, strict=True)]
        return sorted(found, key=lambda c: [rank[v] for rank, v in zip(ranks, c, strict=True)])

    def samples(self, arm: str, metric: str, conditions: Sequence[Condition]) -> Samples:
        """Values of a metric: conditions x seeds, padded with NaN."""
        rows = [self.cells[arm, condition].values[metric] for condition in conditions]
        out = np.full((len(rows), max(map(len, rows))), np.nan)
        for row, values in zip(out, rows, strict=True):
            row[: len(values)] = values
        return out

    def same_seeds(self, first: str, second: str, conditions: Sequence[Condition]) -> bool:
        """Whether both arms ran with the same seeds in each of these conditions."""
        return all(self.cells[first, c].seeds == self.cells[second, c].seeds for c in conditions)

    def metrics(self) -> list[str]:
        """All metrics any cell has: the headlines of the workload first, the others by name."""
        found = {metric for cell in self.cells.values() for metric in cell.values}
        first = [line.metric for line in self.workload.headlines if line.metric in found]
        return [*first, *sorted(found.difference(first))]

    def headline(self, metric: str) -> Headline | None:
        """The headline a metric is shown as, if it is one."""
        return next((line for line in self.workload.headlines if line.metric == metric), None)

    def chosen(self, patterns: Sequence[str]) -> list[str]:
        """Metrics that match any of some shell patterns; raises ``ZexpError`` for a pattern that none matches."""
        known = self.metrics()
        for pattern in patterns:
            if not any(fnmatchcase(metric, pattern) for metric in known):
                raise ZexpError(f"metric {pattern}: no run has it; {_nearest(pattern, known)}")
        return [metric for metric in known if any(fnmatchcase(metric, pattern) for pattern in patterns)]

    def one(self, metric: str) -> str:
        """The one metric meant by a name or pattern; raises ``ZexpError`` if that is none or several."""
        found = self.chosen([metric])
        if len(found) > 1:
            kinds = {units.unit(name, self.workload.unit) or "no unit" for name in found}
            mixed = f" of different units ({', '.join(sorted(kinds))})" if len(kinds) > 1 else ""
            raise ZexpError(f"metric {metric}: matches {len(found)} metrics{mixed}; name one of {_few(found)}")
        return found[0]

    def describe(self, condition: Condition) -> str:
        """A condition in words."""
        return ", ".join(f"{key}={value}" for key, value in zip(self.keys, condition, strict=True))


def arrange(runs: RunSet, by: str | None = None, baseline: str | None = None) -> Arms:
    """Put runs into arms.

    Without ``by``, the arms of a sweep are the values of its policy key if it swept one, else of the first key swept.
    Runs that differ only in their seed are one cell. The arm that was started first is the baseline, unless another is
    named. Of several runs of the same point the latest counts. Raises ``ZexpError``.
    """
    key = _by(runs, by)
    keys = tuple(k for k in runs.swept if k not in (key, SEED))
    grouped: dict[tuple[str, Condition], dict[int, tuple[Run, Mapping[str, float]]]] = {}
    names = {} if runs.sweeps else _run_names(runs.finished)
    for run in runs.finished:
        arm = run.params.get(key, "") if key else names.get(run.run_id, runs.title)
        cell = grouped.setdefault((arm, tuple(run.params.get(k, "") for k in keys)), {})
        for seed, metrics in runs.by_seed(run).items():
            cell[seed] = run, metrics
    arms = list(dict.fromkeys(arm for arm, _ in grouped))
    if baseline is not None:
        matches = [arm for arm in arms if arm == baseline] or [arm for arm in arms if arm.startswith(baseline)]
        if len(matches) != 1:
            raise ZexpError(f"--baseline {baseline}: not one of the arms; {near(baseline, arms)}")
        arms = [matches[0], *(arm for arm in arms if arm != matches[0])]
    cells = {where: _cell(found) for where, found in grouped.items()}
    return Arms(key, tuple(arms), keys, cells, runs.workload)


def check_comparable(arms: Arms, metrics: Sequence[str] | None) -> None:
    """Raise ``ZexpError`` if runs of different workloads are compared in anything but what they share."""
    workloads = {cell.run.params.get("workload.name", ""): cell.run.workload for cell in arms.cells.values()}
    if len(workloads) < 2:
        return
    per = {workload.unit for workload in workloads.values()}
    alike = [
        metric
        for metric in arms.metrics()
        if not metric.startswith(PROFILE)
        and all(metric in cell.values for cell in arms.cells.values())
        and len({units.unit(metric, unit) for unit in per}) == 1
    ]
    named = ", ".join(sorted(workloads))
    if not metrics:
        raise ZexpError(f"runs of different workloads ({named}): choose what to compare with --metric: {_few(alike)}")
    for metric in metrics:
        if metric not in alike:
            units_of = sorted({units.unit(metric, unit) or "no unit" for unit in per})
            why = f"has mixed units ({', '.join(units_of)})" if len(units_of) > 1 else "is not in all of them"
            raise ZexpError(f"metric {metric}: {why}, as the workloads differ ({named}); shared: {_few(alike)}")


def _by(runs: RunSet, by: str | None) -> str:
    if by is not None:
        return runs.key(by, "--by")
    swept = [key for key in runs.swept if key != SEED]
    first = [key for key in swept if key == "sweep"]
    policy = [key for key in swept if re.fullmatch(r"policy\..*\.name", key)] or [
        key for key in swept if key.startswith("policy.")
    ]
    return next(iter([*first, *policy, *swept]), "")


def _run_names(runs: Sequence[Run]) -> dict[str, str]:
    """A distinct name for each run: its own, with the start of its id if others have the same."""
    named = [run.name for run in runs]
    return {run.run_id: run.name if named.count(run.name) == 1 else f"{run.name} ({run.run_id[:8]})" for run in runs}


def _cell(found: Mapping[int, tuple[Run, Mapping[str, float]]]) -> Cell:
    seeds = tuple(sorted(found))
    metrics = dict.fromkeys(metric for _, values in found.values() for metric in values)
    rows = [found[seed][1] for seed in seeds]
    values = {metric: np.array([row.get(metric, np.nan) for row in rows]) for metric in metrics}
    return Cell(max((run for run, _ in found.values()), key=lambda run: run.started_ms), seeds, values)


def _nearest(pattern: str, known: Sequence[str]) -> str:
    shown = near(pattern, known)
    hint, _, _ = shown.partition("allowed: ")
    return f"{hint}{len(known)} metrics: {_few(known)}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "") or "none"
