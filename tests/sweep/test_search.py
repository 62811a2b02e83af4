"""What a search is told of a point."""

from __future__ import annotations

import math

import pytest

from zexp.errors import ConfigError
from zexp.result.published import Outcome
from zexp.sweep.search import check, evaluate, worst

OUTCOME = Outcome(
    {"workload": {"processes": 8, "bound": True, "name": "x"}, "seed": 3},
    {"time/total_ms": 12.5, "rate %": 5.0, "seed": 99.0, "a": -1.0},
    [],
)


def value(objective: str, *bounds: str) -> float:
    return evaluate(objective, bounds, OUTCOME, math.inf)


def test_an_objective_is_a_metric_or_a_number_of_the_configuration() -> None:
    assert value("time/total_ms") == 12.5
    assert value("workload.processes") == 8.0
    assert value("seed") == 99.0, "a metric before a key"


@pytest.mark.parametrize(
    ("bound", "kept"),
    [
        ("rate %<5", False),
        ("rate %<=5", True),
        ("rate %>5", False),
        ("rate %>=5", True),
        ("  rate %  <  5.1  ", True),
        ("rate %<.5e1", False),
        ("rate %<5e0", False),
        ("rate %<+6", True),
        ("a>-2", True),
        ("a>=-1e-3", False),
        ("workload.processes<8", False),
        ("workload.processes<=8", True),
    ],
)
def test_a_point_that_breaks_a_bound_is_worth_the_worst(bound: str, kept: bool) -> None:
    check([bound])
    assert value("time/total_ms", bound) == (12.5 if kept else math.inf)


def test_all_bounds_must_be_kept() -> None:
    assert value("time/total_ms", "a<0", "rate %<6") == 12.5
    assert value("time/total_ms", "a<0", "rate %<5") == math.inf
    assert evaluate("time/total_ms", ["a>0"], OUTCOME, -math.inf) == -math.inf


@pytest.mark.parametrize(
    "bound", ["", "a", "a=5", "<5", "a<", "a<b", "a<5ms", "a<1<2", "a=<5", "a<--5", "a<e", "a<1.2.3"]
)
def test_bounds_that_cannot_be_read_are_named(bound: str) -> None:
    for ask in (lambda: check(["a<5", bound]), lambda: value("a", bound)):
        with pytest.raises(ConfigError) as caught:
            ask()
        assert str(caught.value).startswith(f"sweep.subject_to={bound}: a metric or key, then <")


@pytest.mark.parametrize(
    "what", ["time/totl_ms", "workload", "workload.name", "workload.bound", "workload.processes.x"]
)
def test_what_is_no_number_is_named(what: str) -> None:
    with pytest.raises(ConfigError, match=rf"^sweep\.objective={what}: neither a metric nor a number"):
        value(what)
    with pytest.raises(ConfigError, match=rf"^sweep\.subject_to={what}: neither a metric nor a number"):
        value("a", f"{what}<5")
    with pytest.raises(ConfigError, match="did you mean time/total_ms"):
        value("time/totl_ms")


def test_the_worst_is_away_from_what_is_looked_for() -> None:
    class Direction:  # as Optuna's enumeration prints itself
        def __str__(self) -> str:
            return "Direction.maximize"

    assert worst("minimize") == math.inf
    assert worst("maximize") == worst(Direction()) == -math.inf
    assert worst(None) == math.inf
