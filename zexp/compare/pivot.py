"""Two swept parameters against each other."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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

    def axis(key: str) -> tuple[str, ...]:
        return arms.names if key == arms.by else tuple(units.in_order(arms.column(key).tolist()))

    def matches(key: str, value: str, arm: str) -> NDArray[np.bool_]:
        """The conditions under which the arm has that value."""
        return np.full(len(arms.conditions), arm == value) if key == arms.by else arms.column(key) == value

    cells = {}
    for where in itertools.product(axis(row), axis(column)):
        parts = []
        for arm in arms.names:
            places = arms.shared(arm, metric=metric)
            places = places[(matches(row, where[0], arm) & matches(column, where[1], arm))[places]]
            parts += [arms.samples(arm, metric, places)] if len(places) else []
        if parts:
            width = max(part.shape[1] for part in parts)
            padded = [np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=np.nan) for p in parts]
            cells[where] = statistics.estimate(np.concatenate(padded))
    rest = tuple(key for key in (arms.by, *arms.keys) if key not in (row, column))
    unit = units.unit(metric, arms.workload.unit)
    return Pivot(metric, unit, row, column, axis(row), axis(column), cells, rest)
