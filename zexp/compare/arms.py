"""Runs arranged for comparison: an arm for each policy, a condition for each combination of what else was swept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from zexp.compare import units
from zexp.compare.runset import SEED, Run, RunSet
from zexp.compare.statistics import Samples
from zexp.errors import ZexpError, near
from zexp.workload import Headline, Workload

Condition = tuple[str, ...]
PROFILE = "profile/self_pct/"
NO_SEED = np.iinfo(np.int64).min
MAX_NAMED = 8
"""Metrics that an error message lists."""


Places = NDArray[np.intp]
"""Indices of conditions."""


@dataclass(frozen=True)
class Arms:
    """The values of all metrics by arm, condition and seed."""

    by: str
    """The parameter that tells the arms apart; "" if each is a run."""
    names: tuple[str, ...]
    """The arms, the baseline first."""
    keys: tuple[str, ...]
    """The other swept parameters, of whose values conditions consist."""
    conditions: tuple[Condition, ...]
    """All that any arm has, each parameter in the order of :func:`zexp.compare.units.in_order`."""
    metrics: tuple[str, ...]
    """All that any run has: the headlines of the workload first, the others by name."""
    values: Mapping[str, NDArray[np.float64]]
    """Arm -> metrics x conditions x seeds (in ascending order of each condition's), NaN where there is none."""
    seeds: Mapping[str, NDArray[np.int64]]
    """Arm -> conditions x seeds, ``NO_SEED`` where there are no more."""
    runs: Mapping[tuple[str, int], Run]
    """Arm and index of the condition -> its latest run, for its artifacts."""
    workload: type[Workload]
    """What all simulate; the base class if that differs."""

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {metric: i for i, metric in enumerate(self.metrics)}

    @cached_property
    def _present(self) -> dict[str, NDArray[np.bool_]]:
        """Arm -> metrics x conditions: whether there is a value."""
        return {arm: np.logical_or.reduce(np.isfinite(values), axis=2) for arm, values in self.values.items()}

    def shared(self, *arms: str, metric: str | None = None) -> Places:
        """Indices of the conditions under which all these arms have a run (with that metric)."""
        found = np.ones(len(self.conditions), bool)
        for arm in arms:
            found &= self._present[arm][self._rows[metric]] if metric else self.seeds[arm][:, 0] != NO_SEED
        return np.flatnonzero(found)

    def samples(self, arm: str, metric: str, places: Places) -> Samples:
        """Values of a metric under some conditions: conditions x seeds, padded with NaN."""
        values = self.values[arm][self._rows[metric], places]
        kept: Samples = values[:, ~np.isnan(values).all(axis=0)]
        return kept

    def same_seeds(self, first: str, second: str, places: Places) -> bool:
        """Whether both arms ran with the same seeds under each of these conditions."""
        return np.array_equal(self.seeds[first][places], self.seeds[second][places])

    def fewest_seeds(self, arms: Sequence[str], places: Places) -> int:
        """The number of seeds of the condition that has fewest; 0 without conditions."""
        counts = [(self.seeds[arm][places] != NO_SEED).sum(axis=1) for arm in arms]
        return int(np.min(counts)) if len(places) else 0

    def column(self, key: str) -> NDArray[np.str_]:
        """The value of one of ``keys`` in each condition."""
        return np.array([condition[self.keys.index(key)] for condition in self.conditions])

    def headline(self, metric: str) -> Headline | None:
        """The headline a metric is shown as, if it is one."""
        return next((line for line in self.workload.headlines if line.metric == metric), None)

    def chosen(self, patterns: Sequence[str]) -> list[str]:
        """Metrics that match any of some shell patterns; raises ``ZexpError`` for a pattern that none matches."""
        known = self.metrics
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
    found: dict[tuple[str, Condition], dict[int, Mapping[str, float]]] = {}
    latest: dict[tuple[str, Condition], Run] = {}
    names = {} if runs.sweeps else _run_names(runs.finished)
    for run in runs.finished:
        arm = run.params.get(key, "") if key else names.get(run.run_id, runs.title)
        where = arm, tuple(run.params.get(k, "") for k in keys)
        found.setdefault(where, {}).update(runs.by_seed(run))
        latest[where] = run
    arms = _arm_names([arm for arm, _ in found], baseline)
    conditions = _ordered([condition for _, condition in found])
    place = {condition: i for i, condition in enumerate(conditions)}
    metrics = _metrics(runs.workload, found.values())
    slots = max((len(by_seed) for by_seed in found.values()), default=0)
    values = {arm: np.full((len(metrics), len(conditions), slots), np.nan) for arm in arms}
    seeds = {arm: np.full((len(conditions), slots), NO_SEED) for arm in arms}
    for (arm, condition), by_seed in found.items():
        for slot, (seed, measured) in enumerate(sorted(by_seed.items())):
            seeds[arm][place[condition], slot] = seed
            values[arm][:, place[condition], slot] = [measured.get(metric, np.nan) for metric in metrics]
    at = {(arm, place[condition]): run for (arm, condition), run in latest.items()}
    return Arms(key, arms, keys, conditions, metrics, values, seeds, at, runs.workload)


def _arm_names(found: Sequence[str], baseline: str | None) -> tuple[str, ...]:
    arms = list(dict.fromkeys(found))
    if baseline is not None:
        matches = [arm for arm in arms if arm == baseline] or [arm for arm in arms if arm.startswith(baseline)]
        if len(matches) != 1:
            raise ZexpError(f"--baseline {baseline}: not one of the arms; {near(baseline, arms)}")
        arms = [matches[0], *(arm for arm in arms if arm != matches[0])]
    return tuple(arms)


def _ordered(found: Sequence[Condition]) -> tuple[Condition, ...]:
    distinct = list(dict.fromkeys(found))
    ranks = [{v: i for i, v in enumerate(units.in_order(column))} for column in zip(*distinct, strict=True)]
    return tuple(sorted(distinct, key=lambda c: [rank[v] for rank, v in zip(ranks, c, strict=True)]))


def _metrics(workload: type[Workload], found: Iterable[Mapping[int, Mapping[str, float]]]) -> tuple[str, ...]:
    known = {metric for by_seed in found for measured in by_seed.values() for metric in measured}
    first = [line.metric for line in workload.headlines if line.metric in known]
    return (*first, *sorted(known.difference(first)))


def check_comparable(arms: Arms, metrics: Sequence[str] | None) -> None:
    """Raise ``ZexpError`` if runs of different workloads are compared in anything but what they share."""
    workloads = {run.params.get("workload.name", ""): run.workload for run in arms.runs.values()}
    if len(workloads) < 2:
        return
    per = {workload.unit for workload in workloads.values()}
    alike = [
        metric
        for metric in arms.metrics
        if not metric.startswith(PROFILE)
        and all(len(arms.shared(arm, metric=metric)) == len(arms.shared(arm)) for arm in arms.names)
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


def _nearest(pattern: str, known: Sequence[str]) -> str:
    shown = near(pattern, known)
    hint, _, _ = shown.partition("allowed: ")
    return f"{hint}{len(known)} metrics: {_few(known)}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "") or "none"
