"""Sweeps of another sweeper than zexp's own, such as Optuna's search. Its jobs may run in whatever process."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from zexp.errors import ConfigError, ZexpError
from zexp.experiment import Experiment
from zexp.result.published import Outcome
from zexp.sweep.folder import new_id
from zexp.sweep.points import parse, swept_keys
from zexp.tracking import MlflowStore, UnreachableError, load_run
from zexp.tracking.reader import finished_identities, take_over

SWEEP, SWEPT = "ZEXP_SWEEP", "ZEXP_SWEPT"
"""For its jobs: the sweep's id, and the keys it varies."""
RESULTS = "optimization_results.yaml"
"""Where sweepers that search leave what they found, in the sweep's folder."""


def chosen(arguments: Sequence[str]) -> str | None:
    """The sweeper that a command line chooses instead of zexp's own."""
    sweepers = [a.partition("=")[2] for a in arguments if a.startswith("hydra/sweeper=")]
    if len(sweepers) > 1 or any("," in name for name in sweepers):
        raise ZexpError(f"hydra/sweeper={','.join(sweepers)}: a sweep has one sweeper; choose one of them")
    return sweepers[0] if sweepers and sweepers != ["zexp"] else None


@contextmanager
def announced(overrides: Sequence[str], home: Path) -> Iterator[tuple[str, Path]]:
    """Tell the jobs of a sweep what they belong to: an id, and a folder for what the sweeper itself leaves."""
    swept = swept_keys([[str(o.input_line) for o in parse(overrides) if o.is_sweep_override()]])
    sweep = new_id()
    os.environ.update({SWEEP: sweep, SWEPT: " ".join(swept)})
    try:
        yield sweep, home / "sweeps" / sweep
    finally:
        for variable in (SWEEP, SWEPT):
            os.environ.pop(variable, None)


def current() -> tuple[str, list[str]] | None:
    """The sweep that this job is of, and the keys it varies."""
    sweep = os.environ.get(SWEEP)
    return None if sweep is None else (sweep, os.environ.get(SWEPT, "").split())


def require_objective(exp: Experiment, direction: object) -> None:
    """Raise ``ConfigError`` if a sweeper that looks for an optimum was not told of what."""
    if direction is not None and exp.sweep.objective is None:
        raise ConfigError(
            "sweep.objective",
            None,
            "a search needs to know what for: objective=METRIC, a metric or a configuration key",
        )


def known(store: MlflowStore, exp: Experiment, identity: str, code: str, sweep: str) -> Outcome | None:
    """The outcome of an identical point that is finished already, which joins this sweep."""
    try:
        run_id = finished_identities(store, exp.name, code).get(identity)
        if run_id is None:
            return None
        take_over(store, sweep, [run_id])
        run = load_run(store, run_id)
    except UnreachableError:
        return None
    return Outcome(run.config, run.metrics, run.profile)


def found(folder: Path) -> str | None:
    """What a search has found, in a line; None if the sweeper was none that searches."""
    import yaml

    try:
        results = yaml.safe_load((folder / RESULTS).read_text(encoding="utf-8"))
        values, best = results["best_params"], float(results["best_value"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return None
    if not math.isfinite(best):
        return "no point keeps the bounds"
    return f"{' '.join(f'{key}={value}' for key, value in values.items())}: {best:g}"
