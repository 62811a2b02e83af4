"""What a sweeper that searches (Optuna's) is told of a point: a value to minimise or maximise, within bounds."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence

from zexp.errors import ConfigError, near
from zexp.result.published import Outcome

BOUND = re.compile(r"\s*(?P<what>[^<>=]+?)\s*(?P<how><=|>=|<|>)\s*(?P<limit>[-+.\deE]+)\s*")
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def evaluate(objective: str, subject_to: Sequence[str], outcome: Outcome, worst: float) -> float:
    """The objective's value; ``worst`` (an infinity) if a bound is broken, so that bounds do not move the optimum."""
    if all(_kept(bound, outcome) for bound in subject_to):
        return _value("sweep.objective", objective, outcome)
    return worst


def check(subject_to: Sequence[str]) -> None:
    """Raise ``ConfigError`` for a bound that cannot be read."""
    for bound in subject_to:
        _parts(bound)


def worst(direction: object) -> float:
    """The infinity that is furthest from what is looked for: ``minimize`` or ``maximize``."""
    return -math.inf if "maximize" in str(direction) else math.inf


def _kept(bound: str, outcome: Outcome) -> bool:
    what, how, limit = _parts(bound)
    return COMPARE[how](_value("sweep.subject_to", what, outcome), limit)


def _parts(bound: str) -> tuple[str, str, float]:
    match = BOUND.fullmatch(bound)
    try:
        if match is None:
            raise ValueError(bound)
        return match["what"], match["how"], float(match["limit"])
    except ValueError:
        raise ConfigError(
            "sweep.subject_to", bound, "a metric or key, then <, <=, > or >=, then a number, like 'a/b<5'"
        ) from None


def _value(key: str, what: str, outcome: Outcome) -> float:
    """A metric, or a number of the configuration."""
    if what in outcome.metrics:
        return float(outcome.metrics[what])
    configured = outcome.at(what)
    if isinstance(configured, int | float) and not isinstance(configured, bool):
        return float(configured)
    raise ConfigError(key, what, f"neither a metric nor a number of the configuration; {near(what, outcome.metrics)}")
