"""The experiment's claims: which constants were fitted, and that the rest follows."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from zexp import experiment
from zexp.compose import compose, ready
from zexp.experiment import Experiment
from zexp.result.published import Outcome, compare, compare_times

HERE = Path(__file__).parents[1] / "experiments" / "munmap_24g"
SIZE = "workload.total_size=1GiB"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arm(policy: str, *overrides: str) -> tuple[Experiment, Outcome]:
    registry = ready()
    cfg = compose(["experiment=munmap_24g", f"policy/accounting={policy}", SIZE, *overrides])
    exp = experiment.from_config(cfg, registry)
    result = experiment.run(exp, experiment.stage(exp))
    return exp, Outcome(exp.config, result.metrics, [vars(r) for r in result.profile.functions(result.pages)])


def test_the_stalls_in_conf_are_the_fit() -> None:
    exp, _ = arm("eager")
    for symbol, stall in script("fit").fit().items():
        assert exp.kernel.costs[symbol].stall_cycles == pytest.approx(stall, abs=0.06)


def test_published_figures_within_a_point_and_the_ratio_inside() -> None:
    outcomes = [arm(policy)[1] for policy in ("eager", "lazy")]
    figures = [c for outcome in outcomes for c in compare(outcome)]
    assert {(c.arm, c.figure) for c in figures if not c.fitted} >= {
        ("eager", "obj_cgroup_uncharge_zswap"),
        ("eager", "xas_store"),
        ("lazy", "__slab_free"),
        ("lazy", "obj_cgroup_uncharge_zswap"),
        ("lazy", "xas_store"),
        ("lazy", "zs_zpool_total_size"),
    }
    assert len(figures) == 12
    for c in figures:
        assert abs(c.error) < 1.0, c
    (ratio,) = compare_times(outcomes)
    assert ratio.error == 0.0, ratio


def test_figures_are_compared_only_under_the_published_conditions() -> None:
    assert compare(arm("eager", "workload.processes=2")[1]) == []
    assert compare(arm("eager", "machine=laptop")[1]) == []
    assert compare(arm("shared_atomic")[1]) == []


def test_every_page_is_simulated() -> None:
    registry = ready()
    cfg = compose(["experiment=munmap_24g"])
    staged = experiment.stage(experiment.from_config(cfg, registry))
    assert staged.load.pages == 6_291_456
    assert int(staged.program.threads[0].registers.max()) == 6_291_456, "the thread walks all of them"
