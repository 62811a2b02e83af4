"""What MLflow's UI shows of a sweep, without a click: views stored where the UI itself keeps those people share.

MLflow keeps a shared view as an experiment tag, ``mlflow.sharedViewState.KEY``, and opens it with
``?viewStateShareKey=KEY``: columns, filter, order and charts. A UI that no longer understands the tag opens the
experiment's plain page.
"""
# mypy: allow-untyped-calls

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote, urlencode

from zexp.tracking.base import MlflowStore
from zexp.tracking.reader import RunEntry, list_runs, reused_tag
from zexp.tracking.recorder import NOTES
from zexp.tracking.spool import SUMMARY_OF
from zexp.workload import WORKLOADS
from zexp.workload.base import Headline

VIEW = "mlflow.sharedViewState."
COLOR = "mlflow.runColor"
FIRST = "Latest sweep:"
"""How a description of ours begins."""
RULE = "\n---\n"
"""What ends it; below is what people write."""

MAX_VIEW = 5000
"""Characters of an experiment's tag that every MLflow since 3.0 accepts."""
KEPT_SWEEPS = 10
"""Sweeps of an experiment whose views are kept."""
LOADED = 100
"""Runs that the UI loads, and so draws, before it is asked for more."""
COMPARED = 10
AXES = 3
PALETTE = ("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#17becf", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22")
NO_ARM = "#000000"
"""The colour of a sweep's summary."""


def publish(store: MlflowStore, sweep_id: str) -> dict[str, str]:
    """Write the views of a sweep into its experiment; give their addresses in the UI, from the ``#`` on, by label.

    Doing it again changes nothing. A sweep over several experiments has its views in that of its first run. What people
    have written into the experiment's description stays.
    """
    runs = [run for run in reversed(list_runs(store, sweep=sweep_id)) if run.status == "FINISHED"]
    runs = [run for run in runs if run.experiment_id == runs[0].experiment_id]
    if not runs:
        return {}
    sweep = _Sweep(sweep_id, runs, next(iter(store.with_tag(SUMMARY_OF, sweep_id)), None))
    links = sweep.links()
    with store.errors():
        client, experiment = store.client, runs[0].experiment_id
        known: dict[str, str] = client.get_experiment(experiment).tags
        tags = {
            f"{VIEW}{sweep.key}": _packed(sweep.view()),
            f"{VIEW}{sweep.key}-tables": _packed(sweep.tables_view()),
            NOTES: _above(known.get(NOTES, ""), sweep.note(links)),
        }
        for key, value in tags.items():
            if known.get(key) != value:
                client.set_experiment_tag(experiment, key, value)
        others = sorted(key for key in known if key.startswith(f"{VIEW}zexp-") and key not in tags)
        for key in others[: -2 * (KEPT_SWEEPS - 1)]:
            client.delete_experiment_tag(experiment, key)
        for run in sweep.unmarked():
            client.set_tag(run.run_id, reused_tag(sweep_id), "run")
        for run in runs[:LOADED]:
            if run.tags.get(COLOR) != (color := sweep.colors[sweep.arm(run)]):
                client.set_tag(run.run_id, COLOR, color)
        if sweep.summary:
            client.set_tag(sweep.summary, COLOR, NO_ARM)
    return links


class _Sweep:
    """What the finished runs of a sweep, first started first, have to show."""

    def __init__(self, sweep_id: str, runs: Sequence[RunEntry], summary: str | None) -> None:
        self.id, self.runs, self.summary = sweep_id, runs, summary
        self.key = f"zexp-{sweep_id}"
        self.experiment = runs[0].experiment_id
        workload = WORKLOADS.get(runs[0].params.get("workload.name", ""))
        self.headlines: list[Headline] = [
            line for line in (workload.headlines if workload else ()) if any(line.metric in run.metrics for run in runs)
        ]
        self.reused = any(reused_tag(sweep_id) in run.tags for run in runs)
        self.swept = _swept(runs)
        policies = [key for key in self.swept if key.startswith("policy.")]
        named = [key for key in policies if key.endswith(".name")]
        self.named = bool(named)
        self.by = named or policies[:1] or self.swept[:1]
        self.axes = [key for key in self.swept if key not in self.by]
        numeric = [key for key in self.swept if key not in named and key != "seed"]
        self.numeric = [key for key in numeric if all(_number(run.params[key]) is not None for run in runs)][:AXES]
        arms = dict.fromkeys(self.arm(run) for run in runs)
        colors = PALETTE if len(arms) <= len(PALETTE) else PALETTE[:1] * len(arms)
        self.colors = dict(zip(arms, colors, strict=False))

    def arm(self, run: RunEntry) -> str:
        """What is compared, as `zexp compare` does: the policies of a run if they differ, else the first key swept."""
        return " ".join(run.params[key] for key in self.by)

    def unmarked(self) -> list[RunEntry]:
        """Runs that lack the tag by which the views find them, as they do if others are of an earlier sweep."""
        return [run for run in self.runs if reused_tag(self.id) not in run.tags] if self.reused else []

    def links(self) -> dict[str, str]:
        """Addresses of the views by label."""
        report = (
            f"#/experiments/{self.experiment}/runs/{self.summary}/artifacts/report.html?workflowType=machine_learning"
        )
        return {
            **({"summary": report} if self.summary else {}),
            "runs": self._link("TABLE", self.key),
            "charts": self._link("CHART", self.key),
            "tables": self._link("ARTIFACT", f"{self.key}-tables"),
            "compare": self._compare_link(),
        }

    def view(self) -> dict[str, object]:
        """Columns and charts: what was swept and the headlines, for all runs of the sweep."""
        columns = [f"params.`{key}`" for key in self.swept]
        columns += [f"metrics.`{line.metric}`" for line in self.headlines]
        sections = [{"uuid": f"by-{key}", "name": f"By {key}"} for key in self.numeric] or [
            {"uuid": "runs", "name": "Run by run"}
        ]
        return {
            **self._facets(self._condition()),
            "selectedColumns": columns,
            "columnOrder": ["attributes.`Run Name`", *columns],
            "columnWidths": {"attributes.`Run Name`": 220, **{key: _width(key) for key in columns}},
            "runsHiddenMode": "SHOW_ALL",
            # of three charts beside each other the headings would be cut off
            "compareRunSections": [{**one, "display": True, "isReordered": True, "columns": 2} for one in sections],
            "compareRunCharts": list(self._charts()),
            # Without it the UI would put a chart of every metric below ours.
            "isAccordionReordered": True,
        }

    def tables_view(self) -> dict[str, object]:
        """One run for each policy: the tables of those at the upper end of what was swept stand side by side."""
        shown = self._upper_end()
        fixed = {key: shown[0].params[key] for key in self.axes}
        conditions = [self._condition(), *(f"params.`{key}` = {_quoted(value)}" for key, value in fixed.items())]
        facets = self._facets(" AND ".join(conditions))
        return {**self.view(), **facets, "runsHiddenMode": "FIRST_10_RUNS", "compareRunCharts": []}

    def note(self, links: Mapping[str, str]) -> str:
        """The experiment's description, in Markdown."""
        arms = ", ".join(f"**{arm}**" for arm in self.colors) if self.named else ""
        swept = ", ".join(f"`{key}`" for key in self.swept) or "nothing"
        found = f"[what was found]({links['summary']}) | " if "summary" in links else ""
        return (
            # first, as the UI shows one line of it until it is opened
            f"{FIRST} {found}[all runs]({links['runs']}) | [charts]({links['charts']}) | "
            f"[profiles side by side]({links['tables']}) | [compare runs]({links['compare']})\n\n"
            f"Simulated by zexp: what memory-management policies cost. Each run is one simulation; "
            f"its `functions` table is the profile.\n\n"
            f"Sweep `{self.id}`: {len(self.runs)} runs{f' of {arms}' if arms else ''}, over {swept}.\n\n"
            + (
                f"The charts draw the first {LOADED} runs; `zexp report` draws all.\n\n"
                if len(self.runs) > LOADED
                else ""
            )
            + f"What you write below this line stays.\n{RULE}"
        )

    def _condition(self) -> str:
        return f"tags.`{reused_tag(self.id)}` LIKE '%'" if self.reused else f"tags.sweep = '{self.id}'"

    def _facets(self, condition: str) -> dict[str, object]:
        return {"searchFilter": condition, "orderByKey": "attributes.start_time", "orderByAsc": True}

    def _charts(self) -> Iterable[dict[str, object]]:
        """A chart of each headline: over each swept number a point for each run, else a bar for each run."""
        for axis in self.numeric:
            for line in self.headlines:
                yield {
                    "uuid": f"{line.metric} by {axis}",
                    "type": "SCATTER",
                    "metricSectionId": f"by-{axis}",
                    "displayName": f"{line.metric} by {axis}",
                    "runsCountToCompare": LOADED,
                    "xaxis": {"key": axis, "type": "PARAM"},
                    "yaxis": {"key": line.metric, "type": "METRIC"},
                }
        if not self.numeric:
            for line in self.headlines:
                yield {
                    "uuid": line.metric,
                    "type": "BAR",
                    "metricSectionId": "runs",
                    "displayName": line.metric,
                    "runsCountToCompare": LOADED,
                    "metricKey": line.metric,
                }

    def _upper_end(self) -> list[RunEntry]:
        """A run of each arm at one point of what else was swept: one that most arms have, with the largest numbers."""
        places: dict[tuple[tuple[float, str], ...], dict[str, RunEntry]] = {}
        for run in self.runs:
            place = tuple((_number(run.params[key]) or 0.0, run.params[key]) for key in self.axes)
            places.setdefault(place, {})[self.arm(run)] = run
        return list(max(places.items(), key=lambda entry: (len(entry[1]), entry[0]))[1].values())

    def _link(self, mode: str, key: str) -> str:
        query = {"compareRunsMode": mode, "viewStateShareKey": key, "workflowType": "machine_learning"}
        return f"#/experiments/{self.experiment}/runs?{urlencode(query)}"

    def _compare_link(self) -> str:
        ids = json.dumps([run.run_id for run in self._upper_end()[:COMPARED]], separators=(",", ":"))
        experiments = json.dumps([self.experiment])
        return f"#/compare-runs?runs={quote(ids)}&experiments={quote(experiments)}&workflowType=machine_learning"


def _swept(runs: Sequence[RunEntry]) -> list[str]:
    """The parameters that were varied, policies first; of those that only vary together, one.

    Runs say what their sweep varied; without that, it is whatever they all have, with different values.
    """
    declared = list(dict.fromkeys(key for run in runs for key in run.tags.get("swept", "").split()))
    keys = set.intersection(*(set(run.params) for run in runs))
    if declared:
        keys = {key for key in keys if key in declared or key.startswith(tuple(f"{one}." for one in declared))}

    def order(key: str) -> tuple[bool, bool, int, bool, str]:
        policy, name = key.startswith("policy."), key.endswith(".name")
        place = declared.index(key) if key in declared else len(declared)
        return not policy, policy and not name, place, not name, key

    partitions: dict[tuple[int, ...], str] = {}
    for key in sorted(keys, key=order):
        numbers: dict[str, int] = {}
        partition = tuple(numbers.setdefault(run.params[key], len(numbers)) for run in runs)
        if len(numbers) > 1:
            partitions.setdefault(partition, key)
    return list(partitions.values())


def _above(written: str, ours: str) -> str:
    """A description with our part on top of what people have written; theirs alone if it leaves no room."""
    _, _, kept = written.partition(RULE) if written.startswith(FIRST) else ("", "", f"\n{written}")
    text = f"{ours}{kept}".rstrip()
    return text if len(text) <= MAX_VIEW else written


def _quoted(value: str) -> str:
    """A string in MLflow's filter language, which escapes nothing."""
    return f'"{value}"' if "'" in value else f"'{value}'"


def _width(column: str) -> int:
    """Pixels for a heading, by experience."""
    return max(90, 8 * len(column.partition("`")[2]) + 20)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _packed(view: Mapping[str, object]) -> str:
    """A view as the UI stores it; one that is too large without its charts, which the UI then makes up itself."""
    text = f"deflate;{base64.b64encode(zlib.compress(json.dumps(view).encode(), 9)).decode()}"
    if len(text) > MAX_VIEW:
        return _packed({key: value for key, value in view.items() if not key.startswith("compareRun")})
    return text
