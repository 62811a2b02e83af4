"""What a sweep found, as a page a colleague can read who did not run it."""

from __future__ import annotations

import datetime
import re
import shlex
from collections.abc import Sequence

from zexp.compare import charts, comparison, statistics, units
from zexp.compare.arms import Arms, arrange
from zexp.compare.comparison import Pair
from zexp.compare.document import Block, Column, Commands, Figure, Grid, Page, Points, Section
from zexp.compare.pivot import pivot
from zexp.compare.profile_diff import profile_diff
from zexp.compare.runset import SEED, Run, RunSet
from zexp.errors import ZexpError
from zexp.workload import Headline

MOST_ARMS = 12
MOST_SAID = 5
"""Headlines in a sentence."""
MOST_CHARTS = 6
"""Headlines drawn over each parameter."""
MOST_PIVOTS = 3
"""Headlines tabled over each parameter."""
MOST_VALUES = 40
"""Of a parameter, in a table."""
MOST_FAILURES = 50


def report(runs: RunSet) -> Page:
    """The page of a sweep. It also has one if no point finished: then it says why."""
    sections = []
    if runs.finished:
        arms = arrange(runs)
        pairs = comparison.compare(arms)[:MOST_ARMS]
        sections += [_findings(arms, pairs), *_charts(arms), *_pivots(arms), *_profile(runs, arms)]
        sections += [Section("All differences", tuple(_details(arms, pairs)), folded=True)] if pairs else []
    sections.insert(1 if runs.finished else 0, Section("What was run", (_facts(runs),)))
    if runs.unfinished:
        sections.append(_failures(runs))
    sections.append(Section("How to reproduce", (Commands(tuple(_commands(runs))),)))
    experiments = sorted({run.experiment for run in runs.runs}) or ["nothing"]
    return Page(", ".join(experiments), _subtitle(runs), tuple(sections))


def _subtitle(runs: RunSet) -> str:
    swept = [key for key in runs.swept if key != SEED]
    what = f"by {', '.join(swept)}; " if swept else ""
    when = f", {_day(runs.runs[0].started_ms)}" if runs.runs else ""
    return f"{what}zexp {runs.title}{when}"


def _findings(arms: Arms, pairs: Sequence[Pair]) -> Section:
    """A sentence an arm, then the headlines with the verdict in words."""
    blocks: list[Block] = []
    if pairs:
        blocks.append(Points(tuple(_in_short(arms, pair) for pair in pairs)))
    for pair in pairs:
        rows = []
        for row in pair.rows:
            line = arms.headline(row.metric)
            if line is None or row.base is None or row.other is None:
                continue
            means = (units.with_interval(e.scaled(line.scale)) for e in (row.base, row.other))
            span = comparison.by_condition(pair, row)
            said = comparison.IN_WORDS.get(row.verdict, row.verdict)
            rows.append((line.title, *means, row.change, *([span] if pair.conditions > 1 else []), said))
        columns = [Column("headline"), *(Column(arm, "number") for arm in (pair.base, pair.other))]
        columns.append(Column("difference", "number"))
        columns += [Column("by condition", "number")] if pair.conditions > 1 else []
        columns.append(Column("verdict", "verdict"))
        title = f"{pair.other} against {pair.base}"
        blocks.append(Grid(title, tuple(columns), tuple(rows), comparison.caption(arms, pair, len(pair.rows))))
    if not pairs:
        blocks.append("There is one arm only, so nothing is compared.")
        blocks.append(_means(arms))
    elif len(arms.names) - 1 > len(pairs):
        blocks.append(f"The first {len(pairs)} of {len(arms.names) - 1} arms beside the baseline are shown.")
    return Section("What was found", tuple(blocks))


def _in_short(arms: Arms, pair: Pair) -> str:
    """The headlines that differ, in the order the workload has them: the first matter most."""
    said = []
    for row in pair.rows:
        if (line := arms.headline(row.metric)) and row.verdict in ("higher", "lower", "mixed", "1 seed"):
            verdict = {"mixed": "higher or lower by condition, ", "1 seed": ""}.get(row.verdict, f"{row.verdict}, ")
            said.append(f"{line.title} ({verdict}{row.change})")
    more = f", and {len(said) - MOST_SAID} more" if len(said) > MOST_SAID else ""
    doubt = "; one seed, so what another would give is not known" if pair.seeds < 2 else ""
    return f"{pair.other} against {pair.base}: {', '.join(said[:MOST_SAID]) or 'no headline differs'}{more}{doubt}."


def _means(arms: Arms) -> Grid:
    rows = []
    for line in _headlines(arms):
        found = _baseline_mean(arms, line)
        if found:
            rows.append((line.title, found))
    return Grid("", (Column("headline"), Column(arms.names[0], "number")), tuple(rows))


def _baseline_mean(arms: Arms, line: Headline) -> str:
    """The baseline's mean of a headline over all its conditions; "" if it has none."""
    conditions = arms.shared(arms.names[0], metric=line.metric)
    if not len(conditions):
        return ""
    return units.with_interval(
        statistics.estimate(arms.samples(arms.names[0], line.metric, conditions)).scaled(line.scale)
    )


def _facts(runs: RunSet) -> Grid:
    rows = []
    for title, key, more in (
        ("machine", "machine.name", "machine.description"),
        ("kernel", "kernel.name", "kernel.description"),
    ):
        if key not in runs.swept:
            rows += [(title, _named(run, key, more)) for run in runs.runs[:1]]
    if runs.runs and "workload.name" not in runs.swept:
        what = (runs.workload.__doc__ or "").strip().splitlines()
        name = runs.runs[0].params.get("workload.name", "")
        rows.append(("workload", f"{name}: {what[0]}" if what and runs.finished else name))
    for key in (key for key in runs.swept if key != SEED):
        values = runs.values(key)
        shown = ", ".join(value or "(none)" for value in values[:MOST_VALUES])
        rows.append((f"swept {key}", shown + (", ..." if len(values) > MOST_VALUES else "")))
    seeds = sorted({(run.seed, run.seeds) for run in runs.runs})
    shown = ", ".join(str(first) if count == 1 else f"{first} to {first + count - 1}" for first, count in seeds)
    rows.append(("seeds", shown))
    states = [run.status.lower() for run in (*runs.finished, *runs.unfinished)]
    rows.append(("points", ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))))
    if versions := sorted({f"{k.removeprefix('plugin.')} {v}" for run in runs.runs for k, v in _versions(run)}):
        rows.append(("code", ", ".join(versions)))
    if runs.runs:
        ended = max((run.ended_ms or run.started_ms) for run in runs.runs)
        rows.append(
            ("run", f"{_day(runs.runs[0].started_ms, '%Y-%m-%d %H:%M')} to {_day(ended, '%Y-%m-%d %H:%M')} UTC")
        )
    return Grid("", (Column(""), Column("")), tuple(rows))


def _named(run: Run, key: str, more: str) -> str:
    return ": ".join(filter(None, (run.params.get(key, ""), run.params.get(more, ""))))


def _versions(run: Run) -> list[tuple[str, str]]:
    plugins = [(key, value) for key, value in run.tags.items() if key.startswith("plugin.") and key != "plugin.zexp"]
    return [("zexp", run.tags.get("zexp_version", "unknown")), *plugins]


def _day(ms: int, form: str = "%Y-%m-%d") -> str:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime(form)


def _headlines(arms: Arms) -> list[Headline]:
    """The headlines that are not 0 everywhere."""
    return [
        line
        for line in arms.workload.headlines
        if line.metric in arms.metrics
        and any(arms.samples(arm, line.metric, arms.shared(arm, metric=line.metric)).any() for arm in arms.names)
    ]


def _charts(arms: Arms) -> list[Section]:
    """The headlines over each parameter that takes numbers, or a bar an arm if there is none."""
    numeric = [key for key in arms.keys if units.numbers(_values(arms, key))]
    found = []
    axes: list[str | None] = [*numeric] if numeric else [next(iter(arms.keys), None)]
    for over in axes:
        drawn = [line for line in _headlines(arms)[:MOST_CHARTS] if len(arms.shared(*arms.names, metric=line.metric))]
        figures = tuple(
            Figure(slug(line.metric, over), charts.chart(arms, line.metric, over))
            for line in drawn
            if len(arms.names) <= MOST_ARMS
        )
        if figures:
            found.append(Section(f"By {over}" if over else f"By {arms.by}", figures))
    return found


def slug(metric: str, over: str | None) -> str:
    """A file name for a chart."""
    return re.sub(r"[^\w.-]+", "_", f"{metric}-by-{over}" if over else metric)


def _values(arms: Arms, key: str) -> list[str]:
    return list(dict.fromkeys(arms.column(key).tolist()))


def _pivots(arms: Arms) -> list[Section]:
    grids = [
        pivot(arms, key, arms.by, line.metric).grid()
        for key in arms.keys
        if len(_values(arms, key)) <= MOST_VALUES and len(arms.names) <= MOST_ARMS
        for line in _headlines(arms)[:MOST_PIVOTS]
    ]
    return [Section("In numbers", tuple(grids))] if grids else []


def _profile(runs: RunSet, arms: Arms) -> list[Section]:
    """Where the time went; the report does without if a run has no profile."""
    if not 1 < len(arms.names) <= MOST_ARMS:
        return []
    try:
        grid = profile_diff(runs, arms).grid()
    except ZexpError as error:
        return [Section("Where the time goes", (str(error),))]
    return [Section("Where the time goes", (grid,))]


def _details(arms: Arms, pairs: Sequence[Pair]) -> list[Grid]:
    names = [line.metric for line in arms.workload.headlines]
    return [comparison.table(arms, pair, pair.shown(names, everything=False)) for pair in pairs]


def _failures(runs: RunSet) -> Section:
    rows = [(_overrides(runs, run), run.status.lower(), run.tags.get("error", "")) for run in runs.unfinished]
    columns = (Column("overrides", "code"), Column("status"), Column("error"))
    left = len(rows) - MOST_FAILURES
    more = f"{left} more are not shown." if left > 0 else ""
    return Section("Points without a result", (Grid("", columns, tuple(rows[:MOST_FAILURES]), more),))


def _overrides(runs: RunSet, run: Run) -> str:
    return run.tags.get("overrides") or " ".join(f"{_override(k)}={run.params.get(k, '')}" for k in runs.swept)


def _override(key: str) -> str:
    """What sets a configuration key on the command line: a choice is made by its group."""
    group = key.removesuffix(".name")
    return group.replace(".", "/") if group != key else key


def _commands(runs: RunSet) -> list[str]:
    lines = []
    for sweep in runs.sweeps:
        lines += [shlex.join(["zexp", "run", "-m", *(_arguments(runs, sweep) or _guessed(runs))])]
        lines += [f"zexp compare {shlex.quote(sweep)} --profile", f"zexp report {shlex.quote(sweep)}"]
        lines += [f"zexp run -m resume={shlex.quote(sweep)}"] if runs.unfinished else []
    return lines


def _arguments(runs: RunSet, sweep: str) -> list[str]:
    """The command line of a sweep, if this machine still has its manifest."""
    from zexp.sweep.folder import Folder

    try:
        return list(Folder.find(runs.store.home, sweep).manifest().arguments)
    except ZexpError:
        return []


def _guessed(runs: RunSet) -> list[str]:
    """One that gives the same keys the same values."""
    keys = [key for key in ("machine.name", "kernel.name", "workload.name") if key not in runs.swept]
    fixed = [f"{_override(key)}={run.params[key]}" for run in runs.runs[:1] for key in keys if key in run.params]
    return fixed + [f"{_override(key)}={','.join(runs.values(key))}" for key in runs.swept if key != "sweep"]
