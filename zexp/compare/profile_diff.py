"""Where the time goes in one arm and not in the other, as ``perf diff`` would show it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from zexp.compare import statistics
from zexp.compare.arms import PROFILE, Arms, Places
from zexp.compare.document import Column, Grid
from zexp.compare.runset import Run, RunSet
from zexp.compare.statistics import Estimate
from zexp.errors import ZexpError
from zexp.tracking.names import legal

MOST = 20
Symbol = tuple[str, str]
"""Comm and symbol."""


@dataclass(frozen=True)
class Change:
    """A function in the baseline and in the other arms."""

    symbol: str
    comm: str
    base: float | None
    """Self %; None if the baseline's table does not have it."""
    deltas: tuple[Estimate | None, ...]
    """Points more than in the baseline, an arm each; None if neither has it."""
    missing: tuple[bool, ...]
    """Whether that arm's table does not have it."""


@dataclass(frozen=True)
class ProfileDiff:
    """The functions of all arms under one condition, those that change most first."""

    arms: tuple[str, ...]
    where: str
    """The condition in words, and how many others there are."""
    base_of: str
    """What 100 % is."""
    changes: tuple[Change, ...]

    def grid(self, everything: bool = False) -> Grid:
        """The table."""
        shown = self.changes if everything else [c for c in self.changes if _largest(c) >= 0.005][:MOST]
        columns = (
            Column(self.arms[0], "number"),
            *(Column(f"Δ {arm}", "number") for arm in self.arms[1:]),
            Column("symbol (comm)", "code"),
        )
        lines = []
        for c in shown:
            first = "" if c.base is None else f"{c.base:.2f} %"
            marks = zip(c.deltas, c.missing, strict=True)
            cells = ["" if d is None else _points(d, "new" if c.base is None else "gone" * m) for d, m in marks]
            lines.append((first, *cells, f"{c.symbol} ({c.comm})"))
        base = self.base_of or "CPU time of each row's comm"
        said = [f"Self %, and points more or less; 100 % is the {base}."]
        if self.where:
            said.append(self.where)
        if any(c.base is None or any(c.missing) for c in shown):
            said.append("new, gone: not in the other arm's table, which has its top functions.")
        if left := len(self.changes) - len(shown):
            said.append(f"{left} other function{'s' if left > 1 else ''} not shown.")
        return Grid("profile", columns, tuple(lines), " ".join(said))

    def as_json(self) -> dict[str, object]:
        """The stable JSON form."""
        rows = [
            {
                "symbol": c.symbol,
                "comm": c.comm,
                "self_pct": c.base,
                "delta": {
                    arm: None if d is None else {"mean": d.mean, "half_95": d.half}
                    for arm, d in zip(self.arms[1:], c.deltas, strict=True)
                },
            }
            for c in self.changes
        ]
        return {"baseline": self.arms[0], "where": self.where, "functions": rows}


def profile_diff(runs: RunSet, arms: Arms) -> ProfileDiff:
    """Compare the profiles of all arms under the last condition that all have; of numbers, the largest.

    Reads one ``functions.json`` an arm; raises ``ZexpError`` if one is missing or damaged.
    """
    shared = arms.shared(*arms.names)
    if not len(shared):
        raise ZexpError("--profile: there is no condition under which all arms have a finished run; choose with --at")
    last = shared[-1:]
    place = int(last[0])
    tables = [_functions(runs, arms.runs[arm, place]) for arm in arms.names]
    symbols = dict.fromkeys(symbol for table in tables for symbol in table)
    changes = [_change(arms, last, tables, symbol) for symbol in symbols]
    where = ""
    if len(shared) > 1:
        others = "1 other" if len(shared) == 2 else f"{len(shared) - 1} others"
        where = f"At {arms.describe(arms.conditions[place])}, of {others}: --at KEY=VALUE chooses."
    bases = {arms.runs[arm, place].tags.get("profile_base", "") for arm in arms.names}
    comms = {comm for comm, _ in symbols}
    base_of = bases.pop() if len(bases) == len(comms) == 1 else ""
    ordered = sorted(changes, key=lambda c: (-_largest(c), c.symbol, c.comm))
    return ProfileDiff(arms.names, where, base_of, tuple(ordered))


def _functions(runs: RunSet, run: Run) -> dict[Symbol, float]:
    text = runs.artifact(run, "functions.json")
    if text is None:
        raise ZexpError(f"run {run.run_id}: it has no functions.json, so its profile cannot be compared")
    try:
        table = json.loads(text)
        rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
        return {(row["comm"], row["symbol"]): float(row["self_pct"]) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise ZexpError(f"run {run.run_id}: its functions.json is damaged ({error})") from error


def _change(arms: Arms, places: Places, tables: list[dict[Symbol, float]], key: Symbol) -> Change:
    comm, symbol = key
    base = tables[0].get(key)
    deltas: list[Estimate | None] = []
    for arm, table in zip(arms.names[1:], tables[1:], strict=True):
        if base is None and key not in table:
            deltas.append(None)
            continue
        delta = Estimate(table.get(key, 0.0) - (base or 0.0))
        # as the recorder names them: that of the busiest comm, which comes first, goes without saying
        for part in (key, key[1:]) if comm == next(iter(table), ("",))[0] else (key,):
            metric = legal(PROFILE + "/".join(name.replace("/", "_") for name in part))
            if metric in arms.metrics and places[0] in arms.shared(arms.names[0], arm, metric=metric):
                low, high = (arms.samples(a, metric, places) for a in (arms.names[0], arm))
                found = statistics.difference(low, high, arms.same_seeds(arms.names[0], arm, places)).absolute
                delta = Estimate(delta.mean, found.error, found.freedom, found.seeds)
                break
        deltas.append(delta)
    return Change(symbol, comm, base, tuple(deltas), tuple(key not in table for table in tables[1:]))


def _largest(change: Change) -> float:
    return max((abs(d.mean) for d in change.deltas if d is not None), default=0.0)


def _points(delta: Estimate, mark: str) -> str:
    half = f" ± {delta.half:.2f}" if delta.half else ""
    return f"{mark + ' ' if mark else ''}{delta.mean:+.2f}{half}"
