"""Every metric of an arm beside the baseline's, with a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zexp.compare import statistics, units
from zexp.compare.arms import PROFILE, Arms
from zexp.compare.document import Column, Grid
from zexp.compare.statistics import Difference, Estimate

LEAST_PCT = 0.5
"""Below this a certain difference is none: the model's own constants are not known better, and nobody would patch a
kernel for it."""
MOST = 10
"""Metrics shown beside the headlines unless all are asked for."""
IN_WORDS = {
    "no difference": "no difference beyond chance",
    "equal": "exactly equal",
    "1 seed": "one seed: cannot say",
    "mixed": "higher or lower, by condition",
}


@dataclass(frozen=True)
class Row:
    """One metric."""

    metric: str
    unit: str
    base: Estimate | None
    """Over the conditions in which both arms have the metric; None if there are none."""
    other: Estimate | None
    difference: Difference | None
    p: float | None
    """Corrected; None with one seed."""
    verdict: str
    span: tuple[float, float] | None
    """Lowest and highest difference of any condition, in %."""
    conditions: int
    """In which both arms have it."""

    @property
    def size(self) -> float:
        """How much the means differ, from 0 to 1, whatever their unit."""
        if self.base is None or self.other is None:
            return 0.0
        total = abs(self.base.mean) + abs(self.other.mean)
        return abs(self.other.mean - self.base.mean) / total if total else 0.0

    @property
    def change(self) -> str:
        """The difference with its interval, in % where that can be said."""
        if self.difference is None:
            return ""
        if self.difference.ratio is None:
            return f"{'+' if self.difference.absolute.mean > 0 else ''}{units.with_interval(self.difference.absolute)}"
        return units.percent(self.difference.ratio.mean, self.difference.ratio.half)


@dataclass(frozen=True)
class Pair:
    """An arm beside the baseline."""

    base: str
    other: str
    rows: tuple[Row, ...]
    """All metrics compared, headlines first."""
    conditions: int
    left_out: int
    """Conditions in which one of the two has no finished run."""
    seeds: int
    """The fewest seeds of any condition."""
    least: float

    def shown(self, headlines: Sequence[str], everything: bool) -> list[Row]:
        """The headlines, then those that differ most and for certain; or all of them."""
        first = [row for row in self.rows if row.metric in headlines]
        rest = [row for row in self.rows if row.metric not in headlines]
        if everything:
            return [*first, *rest]
        rest = [row for row in rest if not row.metric.startswith(PROFILE) and row.size]
        if self.seeds > 1:
            rest = [row for row in rest if row.verdict not in ("no difference", "equal")]
        return [*first, *sorted(rest, key=lambda row: (-row.size, row.metric))[:MOST]]


def compare(arms: Arms, metrics: Sequence[str] | None = None, least: float = LEAST_PCT) -> list[Pair]:
    """Compare every arm with the baseline, in ``metrics`` or all.

    Holm's correction counts the metrics of one pair of arms, so that its verdicts do not depend on what other arms
    there are. The headlines were chosen before the runs were made and are corrected among themselves; so are the rest.
    """
    base = arms.names[0]
    return [_pair(arms, base, other, arms.metrics if metrics is None else metrics, least) for other in arms.names[1:]]


def _pair(arms: Arms, base: str, other: str, metrics: Sequence[str], least: float) -> Pair:
    shared = arms.shared(base, other)
    counts: dict[str, int] = {}
    found: dict[str, tuple[Estimate, Estimate, Difference, tuple[float, float, bool] | None]] = {}
    for metric in metrics:
        conditions = arms.shared(base, other, metric=metric)
        if not len(conditions):
            continue
        low, high = (arms.samples(arm, metric, conditions) for arm in (base, other))
        counts[metric] = len(low)
        apart = statistics.difference(low, high, arms.same_seeds(base, other, conditions))
        spans = statistics.by_condition(low, high, least) if len(low) > 1 else None
        found[metric] = statistics.estimate(low), statistics.estimate(high), apart, spans
    corrected: dict[str, float] = {}
    for wanted in (True, False):
        family = {
            metric: p
            for metric, (_, _, apart, _) in found.items()
            if (arms.headline(metric) is not None) is wanted and (p := apart.absolute.p) is not None
        }
        corrected.update(zip(family, statistics.holm(list(family.values())), strict=True))
    rows = []
    for metric in metrics:
        unit = units.unit(metric, arms.workload.unit)
        if metric not in found:
            has = [arm for arm in (base, other) if len(arms.shared(arm, metric=metric))]
            if has:
                rows.append(Row(metric, unit, None, None, None, None, f"only in {' and '.join(has)}", None, 0))
            continue
        low_mean, high_mean, apart, spans = found[metric]
        verdict: str = statistics.verdict(apart, corrected.get(metric), least)
        if spans and spans[2]:
            verdict = "mixed"
        span = spans[:2] if spans else None
        rows.append(Row(metric, unit, low_mean, high_mean, apart, corrected.get(metric), verdict, span, counts[metric]))
    seeds = arms.fewest_seeds((base, other), shared)
    return Pair(base, other, tuple(rows), len(shared), len(arms.conditions) - len(shared), seeds, least)


def table(arms: Arms, pair: Pair, rows: Sequence[Row]) -> Grid:
    """The table of a pair of arms."""
    columns = [
        Column("metric", "code"),
        Column("unit"),
        Column(pair.base, "number"),
        Column(pair.other, "number"),
        Column("difference", "number"),
    ]
    several = pair.conditions > 1
    if several:
        columns.append(Column("by condition", "number"))
    if pair.seeds > 1:
        columns.append(Column("Hedges' g", "number"))
    columns.append(Column("verdict", "verdict"))
    lines = []
    for row in rows:
        cells = [row.metric, row.unit]
        cells += ["" if e is None else units.with_interval(e) for e in (row.base, row.other)]
        cells.append(row.change)
        if several:
            cells.append(by_condition(pair, row))
        if pair.seeds > 1:
            cells.append(_effect(row))
        lines.append((*cells, row.verdict))
    return Grid(f"{pair.other} against {pair.base}", tuple(columns), tuple(lines), caption(arms, pair, len(rows)))


def caption(arms: Arms, pair: Pair, shown: int) -> str:
    """What the numbers of a table are."""
    said = []
    if pair.conditions > 1:
        said.append(f"Means over {pair.conditions} conditions ({', '.join(arms.keys)}), which both arms have.")
    if pair.left_out:
        counted = "1 condition" if pair.left_out == 1 else f"{pair.left_out} conditions"
        said.append(f"{counted} left out: without a finished run of both arms.")
    if pair.seeds > 1:
        test = " and ".join(sorted({row.difference.test for row in pair.rows if row.difference} - {"none"}))
        lines = sum(arms.headline(row.metric) is not None for row in pair.rows)
        counted = f"{lines} headlines among themselves, {len(pair.rows) - lines} other metrics among themselves"
        said.append(
            f"{pair.seeds} seeds; ± is a 95 % interval of each metric alone; {test} test; "
            f"verdicts at 5 % after Holm's correction ({counted}); differences under {pair.least:g} % are none."
        )
    else:
        said.append(
            "One seed an arm: the simulation is deterministic, so these differences are exact for this seed, "
            "but nothing says what another seed would give."
        )
    if left := len(pair.rows) - shown:
        said.append(f"{left} other metric{'s' if left > 1 else ''} not shown.")
    return " ".join(said)


def by_condition(pair: Pair, row: Row) -> str:
    """How the difference varies with the condition, or in how few conditions there is one."""
    few = f"in {row.conditions} of {pair.conditions} only" if 0 < row.conditions < pair.conditions else ""
    return ", ".join(filter(None, (" to ".join(map(units.percent, row.span or ())), few)))


def _effect(row: Row) -> str:
    if row.difference is None:
        return ""
    if row.difference.effect is not None:
        return f"{row.difference.effect:+.3g}"
    return "exact" if row.difference.absolute.mean and row.difference.absolute.error == 0 else ""


def as_json(pair: Pair) -> dict[str, object]:
    """The stable JSON form of a pair; numbers unrounded."""

    def one(estimate: Estimate | None) -> dict[str, float | None] | None:
        return None if estimate is None else {"mean": estimate.mean, "half_95": estimate.half}

    rows = [
        {
            "metric": row.metric,
            "unit": row.unit,
            "baseline": one(row.base),
            "other": one(row.other),
            "difference": one(row.difference.absolute) if row.difference else None,
            "difference_pct": one(row.difference.ratio) if row.difference else None,
            "hedges_g": row.difference.effect if row.difference else None,
            "test": row.difference.test if row.difference else None,
            "p_holm": row.p,
            "verdict": row.verdict,
            "by_condition_pct": list(row.span) if row.span else None,
        }
        for row in pair.rows
    ]
    return {
        "baseline": pair.base,
        "other": pair.other,
        "conditions": pair.conditions,
        "conditions_left_out": pair.left_out,
        "seeds": pair.seeds,
        "metrics": rows,
    }
