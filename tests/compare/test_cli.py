"""``zexp compare`` and ``zexp report`` from their arguments to what is printed and written."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from compare.filling import Made, failed, fill, storm
from zexp.cli.main import main
from zexp.tracking import Store

SWEEP = "20261202-101010-abcdef"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def swept(store: Store) -> list[str]:
    return fill(store, [*storm(), failed()])


def ok(capsys: Capture, *argv: str) -> str:
    assert main(list(argv)) == 0, capsys.readouterr().err
    captured = capsys.readouterr()
    assert "nan" not in captured.out
    return captured.out


def mistake(capsys: Capture, *argv: str) -> str:
    assert main(list(argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("zexp: ")


def test_sweep(swept: list[str], capsys: Capture) -> None:
    out = ok(capsys, "compare", SWEEP)
    for ref in ("last-sweep", SWEEP[:10]):
        assert ok(capsys, "compare", ref) == out
    assert "ratelimited against sync" in out
    (line,) = [line for line in out.splitlines() if line.startswith("rstat/wait_s_per_s")]
    assert line.split()[-1] == "lower"
    assert "-50.0 %" in line
    assert "Holm's correction" in out
    assert "wall_s" not in ok(capsys, "compare", SWEEP, "--all")


def test_runs(swept: list[str], capsys: Capture) -> None:
    out = ok(capsys, "compare", swept[0], swept[3][:20], "--profile", "--metric", "psi/*")
    assert "ratelimited cgroups=30 against sync cgroups=30" in out
    assert "gone -5.00" in out
    assert "rstat" not in out


def test_several_sweeps_are_arms(store: Store, swept: list[str], capsys: Capture) -> None:
    fill(store, storm(sweep="other", arms={"sync": 2.0, "ratelimited": 1.0}))
    out = ok(capsys, "compare", SWEEP, "other", "--metric", "rstat/wait_s_per_s", "--format", "json")
    found = json.loads(out)
    assert (found["by"], found["arms"]) == ("sweep", [SWEEP, "other"])
    assert found["pairs"][0]["metrics"][0]["difference_pct"]["mean"] == pytest.approx(100)


def test_formats(swept: list[str], capsys: Capture) -> None:
    assert ok(capsys, "compare", SWEEP, "--format", "html").startswith("<!DOCTYPE html>")
    assert "| `rstat/wait_s_per_s` |" in ok(capsys, "compare", SWEEP, "--format", "markdown")
    found = json.loads(ok(capsys, "compare", SWEEP, "--format", "json", "--profile"))
    assert found["profile"]["functions"][0]["symbol"] == "osq_lock"


def test_options(swept: list[str], capsys: Capture) -> None:
    assert "sync against ratelimited" in ok(capsys, "compare", SWEEP, "--baseline", "ratelimited")
    assert "300 against 30" in ok(capsys, "compare", SWEEP, "--by", "cgroups")
    assert "Means over" not in ok(capsys, "compare", SWEEP, "--at", "cgroups=30")
    out = ok(capsys, "compare", SWEEP, "--pivot", "cgroups", "policy/flush", "rstat/wait_s_per_s")
    assert ["3000", "30.30", "±", "0.75", "15.15", "±", "0.37"] in [line.split() for line in out.splitlines()]


@pytest.mark.parametrize("form", ["png", "svg"])
def test_chart(swept: list[str], capsys: Capture, tmp_path: Path, form: str) -> None:
    arguments = ["compare", SWEEP, "--chart", "psi/some_pct", "--over", "workload.tree.cgroups", "-o"]
    contents = []
    for name in ("a", "b"):
        assert f"{name}.{form}" in ok(capsys, *arguments, f"{name}.{form}")
        contents.append((tmp_path / f"{name}.{form}").read_bytes())
    assert contents[0] == contents[1]
    assert contents[0].startswith(b"\x89PNG" if form == "png" else b"<?xml")


def test_report(swept: list[str], capsys: Capture, tmp_path: Path) -> None:
    assert f"report-{SWEEP}.html" in ok(capsys, "report", "last-sweep")
    ok(capsys, "report", SWEEP, "-o", "x.html")
    assert (tmp_path / "x.html").read_text() == (tmp_path / f"report-{SWEEP}.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("compare", "20271111"), f"no run '20271111' in store * sweeps, latest first: {SWEEP}"),
        (("report", "nothing"), f"no sweep 'nothing' in store *; sweeps, latest first: {SWEEP}"),
        (("compare", SWEEP, "last"), "some are sweeps and some are runs"),
        (("compare", SWEEP, "--metric", "psi/some_pc"), "metric psi/some_pc: no run has it; did you mean psi/some_pct"),
        (("compare", SWEEP, "--by", "machine"), "--by machine: not swept; allowed: policy.flush.name, workload.tree"),
        (("compare", SWEEP, "--baseline", "lazy"), "--baseline lazy: not one of the arms; *allowed: ratelimited, sync"),
        (("compare", SWEEP, "--at", "cgroups"), "must be KEY=VALUE"),
        (("compare", SWEEP, "--at", "cgroups=31"), "--at cgroups=31: no run has it; did you mean"),
        (("compare", SWEEP, "--at", "policy/flush=sync"), "only one arm (sync)"),
        (("compare", SWEEP, "--chart", "psi/some_pct"), "-o FILE.png"),
        (("compare", SWEEP, "--chart", "psi/some_pct", "-o", "x.gif"), "must end in .png or .svg"),
        (("compare", SWEEP, "--chart", "psi/some_pct", "-o", "none/x.png"), "cannot write it (No such file"),
        (("compare", SWEEP, "--chart", "*s*", "-o", "x.png"), "of different units (%, no unit, s/s); name one of"),
        (("compare", SWEEP, "--chart", "psi/some_pct", "--over", "seed", "-o", "x.png"), "--over seed: not swept"),
        (("compare", SWEEP, "--over", "cgroups"), "--over: goes with --chart"),
        (("compare", SWEEP, "-o", "x.png"), "-o: goes with --chart"),
        (("compare", SWEEP, "--pivot", "cgroups", "cgroups", "psi/some_pct"), "rows and columns must be different"),
    ],
)  # fmt: skip
def test_mistakes(swept: list[str], capsys: Capture, arguments: tuple[str, ...], told: str) -> None:
    line = mistake(capsys, *arguments)
    for part in told.split("*" if "--chart" not in arguments else "\0"):
        assert part.strip() in line


def test_more_mistakes(store: Store, capsys: Capture) -> None:
    assert "no sweep yet" in mistake(capsys, "compare", "last-sweep")
    (lost,) = fill(store, [failed("broken")])
    assert "no finished runs to compare (FAILED)" in mistake(capsys, "compare", "broken")
    assert "is FAILED: only finished runs" in mistake(capsys, "compare", lost)
    (alone,) = fill(store, storm(sweep="s", cgroups=("30",))[:1])
    assert "only one arm" in mistake(capsys, "compare", alone)
    fill(store, storm(sweep="start-1") + storm(sweep="start-2"))
    assert "2 sweeps start so" in mistake(capsys, "compare", "start")


def test_different_workloads(store: Store, capsys: Capture) -> None:
    first, second = storm(seeds=(0,))[:2]
    first.metrics = {**first.metrics, "time/cpu_ns_per_page": 1.0}
    second = replace(second, metrics={**second.metrics, "time/cpu_ns_per_page": 2.0})
    second.params = {**second.params, "workload.name": "munmap"}
    ids = fill(store, [first, second])
    line = mistake(capsys, "compare", *ids)
    assert "different workloads (munmap, reclaim): choose what to compare with --metric: kswapd/wakeups" in line
    assert "cpu_ns_per_page" not in line
    assert "mixed units" in mistake(capsys, "compare", *ids, "--metric", "time/*")
    assert "psi/some_pct" in ok(capsys, "compare", *ids, "--metric", "psi/*")


def test_names_are_not_markup(store: Store, capsys: Capture) -> None:
    made = [replace(run, name=f"[red]{i}[/nothing]") for i, run in enumerate(storm(seeds=(0,))[:2])]
    ids = fill(store, made)
    assert "[red]1[/nothing] against [red]0[/nothing]" in ok(capsys, "compare", *ids)


def test_a_metric_of_one_side_only(store: Store, capsys: Capture) -> None:
    ids = fill(store, [Made({"a": 1.0, "b": 0.0}, name="x"), Made({"a": 1.0, "c": 2.0}, name="y")])
    out = ok(capsys, "compare", *ids, "--all")
    assert "only in x" in out
    assert "only in y" in out
    assert "equal" in out


def test_starts_fast() -> None:
    """Nothing heavy is imported before the arguments are read."""
    code = (
        "import sys, zexp.cli.compare, zexp.cli.report, zexp.compare.document, zexp.compare.pages; "
        "print([m for m in ('mlflow', 'pandas', 'matplotlib', 'scipy', 'jinja2', 'hydra') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_real_runs(store: Store, capsys: Capture, tmp_path: Path) -> None:
    arguments = ["machine=laptop", "workload.total_size=1MiB", "policy/accounting=eager,lazy", "workload.processes=1,2"]
    done = subprocess.run(
        [sys.executable, "-m", "zexp.cli.main", "run", "-m", *arguments, "seeds=2"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    out = ok(capsys, "compare", "last-sweep", "--profile")
    assert "lazy against eager" in out
    (line,) = [line for line in out.splitlines() if line.startswith("accounting/self_pct")]
    assert "lower" in line
    ok(capsys, "report", "last-sweep", "-o", "r.html")
    page = (tmp_path / "r.html").read_text()
    assert f"zexp run -m {' '.join(arguments)} seeds=2" in page
    assert "By workload.processes" in page
