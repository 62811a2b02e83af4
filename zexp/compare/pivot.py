"""Two swept parameters against each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zexp.compare import statistics, units
from zexp.compare.arms import Arms
from zexp.compare.document import Column, Grid
from zexp.compare.statistics import Estimate
from zexp.errors import ZexpError


@dataclass(frozen=True)
class Pivot:
    """Means of a metric by the values of two parameters."""

    metric: str
    unit: str
    row: str
    column: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: dict[tuple[str, str], Estimate]
    rest: tuple[str, ...]
    """The other swept parameters, over whose values each cell is a mean."""

    def grid(self) -> Grid:
        """The table; an empty cell had no finished run."""
        head = (Column(self.row), *(Column(value or "(none)", "number") for value in self.columns))
        lines = []
        for row in self.rows:
            cells = (self.cells.get((row, column)) for column in self.columns)
            lines.append((row, *("" if e is None else units.with_interval(e) for e in cells)))
        said = [f"Means over {', '.join(self.rest)}."] if self.rest else []
        said += ["± is a 95 % interval over seeds."] if any(e.half for e in self.cells.values()) else []
        unit = f", {self.unit}" if self.unit else ""
        title = f"{self.metric}{unit}, by {self.row} and {self.column}"
        return Grid(title, head, tuple(lines), " ".join(said))

    def as_json(self) -> dict[str, object]:
        """The stable JSON form."""
        cells = [
            {self.row: row, self.column: column, "mean": e.mean, "half_95": e.half}
            for (row, column), e in self.cells.items()
        ]
        return {"metric": self.metric, "unit": self.unit, "row": self.row, "column": self.column, "cells": cells}


def pivot(arms: Arms, row: str, column: str, metric: str) -> Pivot:
    """The means of ``metric`` by two different swept parameters, of which one may be that of the arms."""
    if row == column:
        raise ZexpError(f"--pivot {row} {column}: rows and columns must be different parameters")
    keys = (arms.by, *arms.keys)
    at_row, at_column = keys.index(row), keys.index(column)
    grouped: dict[tuple[str, str], list[tuple[str, tuple[str, ...]]]] = {}
    for arm in arms.names:
        for condition in arms.shared(arm, metric=metric):
            values = (arm, *condition)
            grouped.setdefault((values[at_row], values[at_column]), []).append((arm, condition))
    cells = {}
    for where, members in grouped.items():
        rows = [arms.cells[member].values[metric] for member in members]
        samples = np.full((len(rows), max(map(len, rows))), np.nan)
        for out, values_of in zip(samples, rows, strict=True):
            out[: len(values_of)] = values_of
        samples = samples[~np.isnan(samples).all(axis=1)]
        if len(samples):
            cells[where] = statistics.estimate(samples)

    def ordered(at: int) -> tuple[str, ...]:
        if at == 0:
            return arms.names
        return tuple(units.in_order([condition[at - 1] for condition in arms.conditions()]))

    rest = tuple(key for key in keys if key not in (row, column))
    unit = units.unit(metric, arms.workload.unit)
    return Pivot(metric, unit, row, column, ordered(at_row), ordered(at_column), cells, rest)
