"""Simulated figures beside published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """A finished run, as the store keeps it."""

    config: Mapping[str, Any]
    metrics: Mapping[str, float]
    profile: Sequence[Mapping[str, Any]]
    """Rows of ``functions.json``: symbol, comm, self_pct, ..."""

    def at(self, key: str) -> Any:
        """A configuration value by dotted key; None if there is none."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def self_pct(self, symbol: str) -> float:
        """Self % of a symbol in the comm the profile lists first, the workload's; 0 if it is not there."""
        main = self.profile[0]["comm"] if self.profile else None
        return sum(float(row["self_pct"]) for row in self.profile if row["symbol"] == symbol and row["comm"] == main)

    @property
    def arm(self) -> str | None:
        """The arm of the published comparison this run is, if its conditions are met and the arm is published."""
        published = self.config.get("published") or {}
        if not published.get("source") or any(self.at(k) != v for k, v in published.get("when", {}).items()):
            return None
        return "/".join(str(self.at(key)) for key in str(published["by"]).split())


@dataclass(frozen=True)
class Comparison:
    """One published figure beside the simulated one."""

    arm: str
    figure: str
    simulated: float
    published: float
    fitted: bool
    """The figure decided a constant of the model; otherwise the model predicts it."""
    is_metric: bool = False
    """``figure`` is a metric of the run; else a symbol's self %."""

    @property
    def error(self) -> float:
        """Simulated minus published, in the figure's own unit."""
        return self.simulated - self.published


def compare(run: Outcome) -> list[Comparison]:
    """Every published self % and metric of the run's arm; symbols that must be absent are published as 0."""
    arm = run.arm
    if arm is None:
        return []
    published = run.config["published"]
    fitted = published.get("fitted", {}).get(arm, [])
    rows = [
        Comparison(arm, symbol, run.self_pct(symbol), pct, symbol in fitted)
        for symbol, pct in published.get("self_pct", {}).get(arm, {}).items()
    ]
    rows += [
        Comparison(arm, symbol, run.self_pct(symbol), 0.0, False) for symbol in published.get("absent", {}).get(arm, [])
    ]
    rows += [
        Comparison(arm, metric, run.metrics.get(metric, 0.0), value, metric in fitted, is_metric=True)
        for metric, value in published.get("metrics", {}).get(arm, {}).items()
    ]
    return rows


@dataclass(frozen=True)
class RatioComparison:
    """The published ratio of two arms' run times beside the simulated one."""

    ratio: str
    simulated: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Distance to the published range; 0 inside."""
        return min(self.simulated - self.low, 0.0) + max(self.simulated - self.high, 0.0)


def compare_times(runs: Sequence[Outcome]) -> list[RatioComparison]:
    """Every published ratio of run times of which both arms are among the runs (the last of each arm counts)."""
    arms = {run.arm: run for run in runs if run.arm is not None}
    found = []
    for run in list(arms.values())[:1]:
        for ratio, (low, high) in run.config["published"].get("time_ratio", {}).items():
            upper, lower = ratio.split("/")
            if upper in arms and lower in arms:
                simulated = arms[upper].metrics["time/total_ms"] / arms[lower].metrics["time/total_ms"]
                found.append(RatioComparison(ratio, simulated, low, high))
    return found
