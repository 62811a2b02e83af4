"""One point: staged, run, sent to the store, printed. A run that is no part of a sweep is a point as well."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from zexp import experiment
from zexp.experiment import Experiment, Staged
from zexp.result import RunResult
from zexp.result.published import Outcome
from zexp.tracking import MlflowStore, Recorder, RunInfo, UnreachableError

if TYPE_CHECKING:
    from zexp.engine.sim import Progress

Observe = Callable[["Progress", Staged], None]


@dataclass(frozen=True)
class Label:
    """How a run is to be known in the store."""

    name: str
    identity: str
    code: str
    sweep: str | None = None
    key: str = ""
    """What all attempts at this point have in common; empty outside of sweeps."""
    first: bool = True
    """There was no attempt before."""
    tags: Mapping[str, str] = field(default_factory=dict)
    given: Sequence[str] = ()
    """Configuration keys that were set for it."""

    def of_sweep(self, sweep: str, number: object, swept: str, overrides: Sequence[str], first: bool = True) -> Label:
        """The same as a point of a sweep, with a number of its own there."""
        tags = {"swept": swept, "overrides": " ".join(overrides), **self.tags}
        return replace(self, sweep=sweep, key=f"{sweep}/{number}", first=first, tags=tags)


@dataclass(frozen=True)
class Ran:
    """A point that has finished."""

    experiment: Experiment
    outcome: Outcome
    result: RunResult
    store: MlflowStore | None
    run_id: str | None = None
    """None if it is not tracked, or waits in the spool."""
    waits: str = ""
    """Why it waits there."""
    simulated_s: float = 0.0
    """Real time, staging included."""
    tracked_s: float = 0.0


def run_point(exp: Experiment, label: Label, store: MlflowStore | None, observe: Observe | None = None) -> Ran:
    """Stage and run an experiment and send the result to the store, if there is one.

    An error is sent there as well, and raised; but outside of sweeps, one that is found before anything has run leaves
    nothing behind.
    """
    recorder = None if store is None else Recorder(store)
    info = _info(exp, label)
    started_ms, began = int(time.time() * 1000), time.monotonic()
    staged = None
    try:
        staged = experiment.stage(exp)
        begun = staged
        result = experiment.run(
            exp,
            staged,
            observer=None if observe is None else lambda progress: observe(progress, begun),
            notify=lambda text: print(f"zexp: {text}", file=sys.stderr),
        )
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if recorder is not None and (staged is not None or interrupted or label.sweep is not None):
            status: Literal["FAILED", "KILLED"] = "KILLED" if interrupted else "FAILED"
            try:
                recorder.fail(info, error, started_ms=started_ms, status=status)
            except UnreachableError as away:
                error.add_note(str(away))
        raise
    rows = [vars(row) for row in result.profile.functions(result.pages)]
    outcome = Outcome(exp.config, result.metrics, rows)
    simulated = time.monotonic()
    ran = Ran(exp, outcome, result, store, simulated_s=simulated - began)
    if recorder is None:
        return ran
    try:
        ran = replace(ran, run_id=recorder.finish(info, result, started_ms=started_ms))
    except UnreachableError as away:
        ran = replace(ran, waits=str(away))
    return replace(ran, tracked_s=time.monotonic() - simulated)


def _info(exp: Experiment, label: Label) -> RunInfo:
    return RunInfo(
        experiment=exp.name,
        name=label.name,
        config=exp.config,
        config_hash=exp.digest(),
        machine_digest=exp.machine.digest(),
        seed=exp.seed,
        sweep=label.sweep,
        plugins=exp.plugins,
        notes=exp.notes or _notes(exp),
        key=label.key,
        first=label.first,
        given=label.given,
        tags={"seeds": str(exp.seeds), "identity": label.identity, "code": label.code, **label.tags},
    )


def _notes(exp: Experiment) -> str:
    """The run's description in MLflow."""
    lines = [
        f"**{exp.policy.name}** {exp.workload.governed_by}; {exp.workload.name} on "
        f"{exp.machine.name} ({exp.machine.description}), {exp.kernel.description}."
    ]
    if exp.published.source:
        lines.append(f"Held against: {exp.published.source}.")
    return "\n\n".join(lines)
