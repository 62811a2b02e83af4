"""What is printed of sweeps with known numbers, character for character where it is short."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from compare.filling import Made, failed, fill, storm
from zexp.compare import arrange, charts, comparison, document, load, of_sweeps, pages, summarise, units
from zexp.compare.pivot import pivot
from zexp.compare.profile_diff import profile_diff
from zexp.compare.statistics import Estimate
from zexp.errors import ZexpError
from zexp.tracking import Store

HERE = Path(__file__).parent
SWEEP = "20261202-101010-abcdef"
NASTY = "<script>alert('a|b')</script>\" & `x` $y_z$ -->"


def test_arms_and_conditions(store: Store) -> None:
    fill(store, [*storm(), failed(), Made({}, tags={"summary_of": SWEEP})])
    runs = load(store, [SWEEP])
    arms = arrange(runs)
    assert (arms.by, arms.names, arms.keys) == (
        "policy.flush.name",
        ("sync", "ratelimited"),
        ("workload.tree.cgroups",),
    )
    assert arms.conditions == (("30",), ("300",), ("3000",))
    assert arrange(runs, baseline="rate").names == ("ratelimited", "sync")
    assert arrange(runs, by="cgroups").names == ("30", "300", "3000")
    assert len(runs.unfinished) == 1


def test_a_later_success_makes_up_for_a_failure(store: Store) -> None:
    first = failed()
    done = replace(storm()[0], tags={**first.tags, "config_hash": "failed"})
    fill(store, [first, done, *storm()[1:]])
    assert of_sweeps(store, [SWEEP]).unfinished == ()


def test_runs_taken_over_from_another_sweep_count(store: Store) -> None:
    made = storm()
    fill(store, [replace(made[0], tags={**made[0].tags, "sweep": "earlier", f"sweep/{SWEEP}": "reused"}), *made[1:]])
    assert len(load(store, [SWEEP]).finished) == 6
    assert len(load(store, ["earlier"]).finished) == 1


def test_swept_keys_are_found_where_no_tag_has_them(store: Store) -> None:
    made = storm()
    for run in made:
        run.tags = {k: v for k, v in run.tags.items() if k != "swept"}
        # comes with the choice of the policy and is no choice of its own
        extra = {"policy.flush.cycles": "2.0"} if run.params["policy.flush.name"] == "ratelimited" else {}
        run.params = {**run.params, **extra, "kernel.sources.x": run.name}
    fill(store, made)
    assert load(store, [SWEEP]).swept == ("policy.flush.name", "workload.tree.cgroups")


def test_a_swept_seed_makes_intervals(store: Store) -> None:
    made = []
    for seed in (0, 1, 2):
        for run in storm(seeds=(seed,)):
            swept = "policy.flush.name workload.tree.cgroups seed"
            tags = {**run.tags, "seed": str(seed), "swept": swept, "config_hash": run.tags["config_hash"] + str(seed)}
            made.append(replace(run, tags=tags, params={**run.params, "seed": str(seed)}))
    fill(store, made)
    together = comparison.compare(arrange(load(store, [SWEEP])))
    fill(store, storm(sweep="replicated"))
    assert together == comparison.compare(arrange(load(store, ["replicated"])))


def test_metrics_table(store: Store) -> None:
    fill(store, storm())
    arms = arrange(load(store, [SWEEP]))
    (pair,) = comparison.compare(arms)
    rows = pair.shown(["rstat/wait_s_per_s", "psi/some_pct", "pool/max_pct_of_limit"], everything=False)
    page = document.Page("t", "s", (document.Section("", (comparison.table(arms, pair, rows),)),))
    assert document.markdown(page) == (HERE / "golden_metrics.md").read_text()
    verdicts = {row.metric: row.verdict for row in pair.rows}
    assert verdicts["psi/some_pct"] == "no difference"
    assert verdicts["kswapd/wakeups"] == "lower"


def test_a_point_missing_in_one_arm_moves_no_mean(store: Store) -> None:
    fill(store, storm()[:-1])
    arms = arrange(load(store, [SWEEP]))
    (pair,) = comparison.compare(arms)
    row = next(row for row in pair.rows if row.metric == "rstat/wait_s_per_s")
    assert (pair.conditions, pair.left_out) == (2, 1)
    assert row.difference is not None
    assert row.difference.ratio is not None
    assert row.difference.ratio.mean == pytest.approx(-50)


def test_one_seed(store: Store) -> None:
    fill(store, storm(seeds=(3,)))
    (pair,) = comparison.compare(arrange(load(store, [SWEEP])))
    verdicts = {row.metric: row.verdict for row in pair.rows}
    assert verdicts["rstat/wait_s_per_s"] == "1 seed"
    assert verdicts["pool/max_pct_of_limit"] == "equal"


def test_profile_diff(store: Store) -> None:
    fill(store, storm())
    runs = load(store, [SWEEP])
    diff = profile_diff(runs, arrange(runs))
    grid = diff.grid()
    assert grid.rows == (
        ("40.00 %", "-20.00", "osq_lock (kswapd)"),
        ("", "new +5.00", "only_ratelimited (kswapd)"),
        ("5.00 %", "gone -5.00", "only_sync (kswapd)"),
    )
    assert "100 % is the CPU time of kswapd" in grid.caption
    assert "At workload.tree.cgroups=3000, of 2 others" in grid.caption


def test_pivot(store: Store) -> None:
    fill(store, storm())
    arms = arrange(load(store, [SWEEP]))
    found = pivot(arms, "workload.tree.cgroups", "policy.flush.name", "rstat/wait_s_per_s").grid()
    assert [column.name for column in found.columns] == ["workload.tree.cgroups", "sync", "ratelimited"]
    assert found.rows[0] == ("30", "0.3030 ± 0.0075", "0.1515 ± 0.0037")
    with pytest.raises(ZexpError, match="must be different"):
        pivot(arms, "policy.flush.name", "policy.flush.name", "psi/some_pct")


def test_chart(store: Store) -> None:
    fill(store, storm())
    arms = arrange(load(store, [SWEEP]))
    line = charts.chart(arms, "rstat/wait_s_per_s", "workload.tree.cgroups")
    assert (line.log_x, line.log_y, line.positions) == (True, True, (30.0, 300.0, 3000.0))
    assert line.y_label == "wait s/s"
    assert all(e is not None and e.half for values in line.series.values() for e in values)
    bars = charts.chart(arms, "psi/some_pct", None)
    assert bars.positions is None
    for one in (line, bars):
        for form in ("png", "svg"):
            assert charts.draw(one, form) == charts.draw(one, form)
    assert b"<dc:date>" not in charts.draw(line, "svg")


def test_chart_over_words_and_gaps() -> None:
    series = {NASTY: (Estimate(1.0), None), "$b$": (Estimate(2.0, 0.1, 2, 3), Estimate(0.0))}
    chart = charts.Chart("t", "", "y", "x", ("on", NASTY), None, series)
    assert not chart.log_y
    svg = document.Figure("a", chart).svg
    assert "<script" not in svg
    assert "$b$" in svg


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("time/total_ms", "ms"), ("sim_ns", "ns"), ("psi/some_pct", "%"), ("pool/max_pct_of_limit", "%"),
        ("rstat/wait_s_per_s", "s/s"), ("rstat/flushes_per_s", "1/s"), ("throughput/pages_per_s", "reads/s"),
        ("lock/x/wait_ns_per_page", "ns/read"), ("line/transfers_per_page", "1/read"), ("mean/flush_ns/level0", "ns"),
        ("profile/self_pct/osq_lock", "%"), ("instructions", ""), ("workload.duration_s", "s"),
        ("workload.allocated_mib_per_s", "MiB/s"), ("workload.processes", ""),
    ],
)  # fmt: skip
def test_units(name: str, unit: str) -> None:
    assert units.unit(name, "read") == unit


def test_numbers() -> None:
    assert units.in_order(["1GiB", "64MiB", "512KiB"]) == ["512KiB", "64MiB", "1GiB"]
    assert units.numbers(["1", "on"]) is None
    assert units.in_order(["b", "a", "b"]) == ["b", "a"]
    assert [units.plain(v) for v in (0, 1234567.0, 12.3456, 0.00012, 1e-9, 5.0)] == [
        "0", "1,234,567", "12.35", "0.0001200", "1.000e-09", "5",
    ]  # fmt: skip
    assert units.with_interval(Estimate(1234.5, 10.0, 4, 5)) == "1,234 ± 28"
    assert [units.percent(*v) for v in ((-58.21, 0.3), (0.0, None), (1900.0, None), (None, None), (0.004, None))] == [
        "-58.2 ± 0.3 %", "0 %", "x 20", "from 0", "+0.004 %",
    ]  # fmt: skip


class Checker(HTMLParser):
    """Collects what is wrong with a page: tags left open, and anything that is loaded from elsewhere."""

    VOID = ("meta", "link", "img", "br", "hr", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "data", "action", "srcset") and not str(value).startswith(("#", "data:")):
                self.wrong.append(f"<{tag} {name}={value}>")
            if name.startswith("on"):
                self.wrong.append(f"<{tag} {name}>")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")


def check(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.wrong == []
    assert checker.open == []
    assert not checker.tags & {"script", "link", "iframe", "object"}
    assert "http" not in html.replace("http-equiv", "")
    assert "url(" not in re.sub(r"url\(#\w+\)", "", html)
    return checker


def test_report_is_one_sound_page(store: Store) -> None:
    fill(store, [*storm(), failed()])
    html = document.html(pages.report(load(store, [SWEEP])))
    checker = check(html)
    assert "svg" in checker.tags
    for part in ("epyc_9684x: 96 cores", "v6_12: Linux 6.12", "acme 2.5", "6 finished, 1 failed", "a deadlock",
                 "policy/flush=sync cgroups=9", "zexp run -m", "policy/flush=sync,ratelimited"):  # fmt: skip
        assert part in html, part


def test_report_escapes_everything(store: Store) -> None:
    made = [*storm(arms={NASTY: 1.0, "ok": 2.0}), failed(error=NASTY)]
    for run in made:
        run.params = {**run.params, "machine.description": NASTY}
        run.tags = {**run.tags, "plugin.x": NASTY}
    fill(store, made, experiment=NASTY)
    summary = summarise(store, SWEEP)
    check(summary.html)
    shown = [line for line in summary.markdown.splitlines() if not line.startswith("    ")]  # the rest is code
    assert "<script" not in "\n".join(shown)
    tables = re.findall(r"(?:^\|.*\n)+", summary.markdown, re.MULTILINE)
    assert tables
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_summary(store: Store) -> None:
    fill(store, [*storm(), failed()])
    summary = summarise(store, SWEEP)
    assert summary.metrics == {"points": 7.0, "finished": 6.0, "failed": 1.0}
    files = summary.files()
    assert {"summary.md", "report.html", "chart.png"} <= set(files)
    assert files["chart.png"] == files["charts/rstat_wait_s_per_s-by-workload.tree.cgroups.png"]
    assert all(content.startswith(b"\x89PNG") for content in summary.charts.values())
    assert "charts/rstat_wait_s_per_s-by-workload.tree.cgroups.png" in summary.markdown
    assert summarise(store, SWEEP) == summary


@pytest.mark.parametrize("made", [[failed()], storm(arms={"sync": 1.0}, cgroups=("30",)), []])
def test_summary_of_hardly_anything(store: Store, made: list[Made]) -> None:
    for run in made:
        run.tags = {**run.tags, "swept": ""}
    fill(store, made)
    check(summarise(store, SWEEP).html)


def test_json_is_numbers(store: Store) -> None:
    fill(store, storm())
    (pair,) = comparison.compare(arrange(load(store, [SWEEP])))
    text = json.dumps(comparison.as_json(pair), allow_nan=False)
    row = next(row for row in json.loads(text)["metrics"] if row["metric"] == "rstat/wait_s_per_s")
    assert row["difference_pct"] == {"mean": pytest.approx(-50), "half_95": pytest.approx(0, abs=1e-9)}
    assert row["unit"] == "s/s"


def test_damaged_replications(store: Store, tmp_path: Path) -> None:
    for text, why in (
        ("{", "Expecting"),
        ('{"data": []}', "no 'columns'"),
        ('{"columns": ["seed", "a"], "data": [[0]]}', "shorter"),
        ('{"columns": ["x", "a"], "data": [[0, 1]]}', "first column must be"),
        ('{"columns": ["seed", "a"], "data": [[0, 1], [0, 2]]}', "a different whole number"),
        ('{"columns": ["seed", "a"], "data": []}', "no rows"),
        ("[]", "indices"),
    ):
        sweep = f"sweep-{len(why)}-{np.random.default_rng().integers(1 << 40)}"
        made = storm(sweep=sweep, cgroups=("30",))
        made[0] = replace(made[0], seeds={}, files={"replications.json": text})
        fill(store, made)
        with pytest.raises(ZexpError, match=rf"replications.json is damaged \(.*{why}"):
            arrange(load(store, [sweep]))


def test_missing_replications(store: Store) -> None:
    made = storm()
    made[0] = replace(made[0], seeds={})
    fill(store, made)
    with pytest.raises(ZexpError, match="ran with 3 seeds but its replications"):
        arrange(load(store, [SWEEP]))
