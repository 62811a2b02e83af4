"""``zexp run``: Hydra composes, the experiment is staged and run, MLflow keeps the result."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from zexp import experiment, schema
from zexp.cli import render
from zexp.compose import errors, quoted, ready, spelled_out
from zexp.errors import Interrupted, ZexpError
from zexp.result.published import Outcome
from zexp.sweep import code as codes
from zexp.sweep import foreign, search
from zexp.sweep.conclude import conclude
from zexp.sweep.folder import Folder
from zexp.sweep.launch import Ended, Sweep, deliver, resumed
from zexp.sweep.point import Label, Ran, run_point
from zexp.sweep.points import Point, identity, point_name, swept_keys
from zexp.sweep.worker import work
from zexp.tracking import MlflowStore, Spool, UnreachableError, list_runs, load_run, open_store, run_path, store_folder

if TYPE_CHECKING:
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig

    from zexp.engine.sim import Progress as SimProgress

PROGRESS_AFTER_S = 1.5
MAX_LISTED = 40
"""Rows of the table that ends a sweep."""
_resume: list[Folder] = []
"""The sweep that the command line resumes, if it does."""
_mistakes: list[ZexpError] = []
"""Of jobs in this process: raised when Hydra is done, which would print a line of its own."""
_shown: list[tuple[str, Outcome]] = []
"""Points that this process has printed: all there is for the last table if nothing is tracked."""
_main_process = -1


class PointsMissingError(ZexpError):
    """A sweep has ended without all its points; everything has been said."""

    told = True
    status = 3


def main(argv: list[str]) -> int:
    """Run one experiment, or (``-m``) a sweep."""
    import hydra

    global _main_process
    _main_process = os.getpid()
    ready()
    argv = _with_resume(spelled_out(argv))
    signal.signal(signal.SIGTERM, _terminated)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us whole; we print them
    version = {} if _hydra_version() >= (1, 4) else {"version_base": "1.3"}
    entry = hydra.main(config_path=str(schema.folder()), config_name="config", **version)(task)
    outer = sys.argv
    # overrides last: argparse does not take options between them
    sys.argv = ["zexp run", *sorted(argv, key=_is_override)]
    try:
        sweeper = foreign.chosen(argv)
        if sweeper is None or not _is_sweep(argv):
            _hydra(entry)
        elif _resume:
            raise ZexpError(f"hydra/sweeper={sweeper}: only sweeps of zexp's own sweeper can be resumed")
        else:
            _foreign_sweep(entry, argv)
    finally:
        sys.argv = outer
        _resume.clear()
        _mistakes.clear()
        _shown.clear()
    return 0


def _hydra(entry: Callable[[], None]) -> None:
    with errors():
        entry()
    if _mistakes:
        raise _mistakes[0]


def task(cfg: DictConfig) -> float | None:
    """What Hydra is given to run, in whatever process its launcher chooses."""
    if cfg.sweep.worker is not None:
        work(cfg.sweep.worker, _show)
        return None
    try:
        return _one(cfg)
    except ZexpError as error:
        if os.getpid() != _main_process or foreign.current():
            raise  # to whoever launched it, or the sweeper, which decides whether to go on
        _mistakes.append(error)
        return None


def _foreign_sweep(entry: Callable[[], None], argv: list[str]) -> None:
    """A sweep of another sweeper than zexp's: its jobs are runs of their own that say what they belong to."""
    overrides = [a for a in argv if _is_override(a)]
    with foreign.announced(overrides, _home(overrides)) as (sweep_id, folder):
        if not any(o.startswith("hydra.sweep.dir=") for o in overrides):
            sys.argv.append(f"hydra.sweep.dir={quoted(str(folder))}")
        try:
            _hydra(entry)
        except ZexpError as error:
            if "could not be converted to Integer" in str(error) and "interval" in " ".join(overrides):
                raise ZexpError(f"{error}; for whole numbers write int(interval(FROM, TO))") from error
            raise
    console = Console()
    try:
        store = open_store(_place(overrides), create=False)
        outcomes = _outcomes(store, sweep_id)
    except ZexpError:  # nothing was tracked
        outcomes = []
    _tables(console, outcomes, 0)
    if found := foreign.found(folder):
        console.print(f"best   {found}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"sweep  {sweep_id} (tag of every run of it)", highlight=False)
    if outcomes:
        conclude(store, sweep_id, str(outcomes[0][1].config["name"]))
        console.print(f"       zexp compare {sweep_id}\n       zexp report {sweep_id}", highlight=False)


def sweep(
    context: HydraContext, task: TaskFunction, config: DictConfig, arguments: Sequence[str], together: Any
) -> None:
    """What zexp's sweeper does: run the points, then show them side by side."""
    ended = Sweep(context, task, config, _resume[0] if _resume else None).run(arguments, together)
    _summary(ended)
    if ended.store is not None and len(ended.points) > 1:
        conclude(ended.store, ended.sweep, ended.points[0].experiment)
    if not ended.complete:
        raise PointsMissingError(f"{len(ended.points) - ended.finished} points are missing")


def _terminated(number: int, frame: object) -> NoReturn:
    """A run that is told to end says so in the store, as with Ctrl-C."""
    raise Interrupted("terminated")


def _is_override(argument: str) -> bool:
    return (not argument.startswith("-") and "=" in argument) or argument.startswith("~")


def _is_sweep(argv: list[str]) -> bool:
    return any(a in ("-m", "--multirun") for a in argv)


def _with_resume(argv: list[str]) -> list[str]:
    """``resume=SWEEP`` replaced by the command line that the sweep was begun with."""
    asked = [a.partition("=")[2] for a in argv if a.startswith("resume=")]
    if not asked:
        return argv
    if len(asked) > 1:
        raise ZexpError(f"resume={','.join(asked)}: one sweep at a time")
    given = [a for a in argv if _is_override(a) and not a.startswith("resume=")]
    folder, overrides = resumed(_home(given), asked[0], given)
    _resume.append(folder)
    options = [a for a in argv if not _is_override(a)]
    return [*options, *([] if _is_sweep(argv) else ["-m"]), *overrides]


def _place(overrides: Sequence[str]) -> str | None:
    """The store that a command line names."""
    return next((o.partition("=")[2] for o in overrides if o.startswith("tracking.store=")), None)


def _home(overrides: Sequence[str]) -> Path:
    """The folder of that store for what is not in MLflow."""
    place = _place(overrides)
    return open_store(place).home if place else store_folder()


def _hydra_version() -> tuple[int, int]:
    import hydra

    major, minor = hydra.__version__.split(".")[:2]
    return int(major), int(minor)


def _one(cfg: DictConfig) -> float | None:
    """A run of its own, or a job of another sweeper than zexp's."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    registry = ready()
    given: list[str] = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)  # type: ignore[assignment]
    sweep_id, swept = foreign.current() or (None, [])
    direction = HydraConfig.get().sweeper.get("direction") if sweep_id is not None else None
    overrides = [o for o in given if swept_keys([[o]])[0] in swept]
    store = None
    try:
        with errors():
            exp = experiment.from_config(cfg, registry)
        search.check(exp.sweep.subject_to)
        foreign.require_objective(exp, direction)
        code = codes.identity(registry)
        label = Label(point_name(exp, overrides), identity(exp, code), code, given=swept_keys([given]))
        if sweep_id is not None:
            label = label.of_sweep(sweep_id, label.identity, " ".join(swept), overrides)
        store = open_store(exp.tracking.store) if exp.tracking.enabled else None
        if store is not None:
            store.check(exp.name)
            _deliver_leftovers(store)
            if sweep_id is None:
                print(f"store  {store.uri}", flush=True)
        outcome = None
        if store is not None and sweep_id is not None and not exp.sweep.rerun:
            outcome = foreign.known(store, exp, label.identity, code, sweep_id)
        if outcome is None:
            bar = _Bar(exp)
            with bar:
                ran = run_point(exp, label, store, bar.observe)
            outcome = ran.outcome
            _show(label.name, ran)
        else:
            print(f"zexp: {label.name}: finished before, and not run again", file=sys.stderr)
    except ZexpError as error:
        if sweep_id is not None:
            print(f"zexp: {error} [{' '.join(overrides)}]", file=sys.stderr, flush=True)
            error.told = True  # type: ignore[attr-defined]
        raise
    except KeyboardInterrupt:
        if store is not None:
            print("what had been run is in the store, marked KILLED: zexp show last")
        raise
    if exp.sweep.objective is None:
        return None
    return search.evaluate(exp.sweep.objective, exp.sweep.subject_to, outcome, search.worst(direction))


def _deliver_leftovers(store: MlflowStore) -> None:
    """What an earlier process left in the spool, as it was killed or the server was away."""
    with suppress(UnreachableError):  # this run will say so itself
        if count := deliver(store):
            print(f"zexp: {count} runs that waited in the spool are now in the store", file=sys.stderr)


def _show(name: str, ran: Ran) -> None:
    """Print a run that has finished."""
    _shown.append((name, ran.outcome))
    console, exp, result = Console(), ran.experiment, ran.result
    render.run_tables(console, ran.outcome, f"{name} on {exp.machine.name}, {exp.kernel.name}, {exp.workload.name}")
    speed = exp.seeds * result.sim_ns / 1e9 / result.wall_s if result.wall_s else 0.0
    each = f", each of {exp.seeds} seeds" if exp.seeds > 1 else ""
    console.print(
        f"{result.sim_ns / 1e6:,.1f} ms on the machine{each}, simulated in {result.wall_s:.2f} s "
        f"({speed:.2f} x real time)",
        highlight=False,
    )
    if ran.store is None:
        return
    if ran.run_id is None:
        console.print(f"{ran.waits}: the run waits in {Spool.of(ran.store).folder}; `zexp sync` delivers it\n")
        return
    url = ran.store.url(run_path(ran.store.experiment_id(exp.name), ran.run_id))
    console.print(
        f"run    zexp show {ran.run_id[:8]}\nUI     {ran.store.ui_hint}{url}\n",
        soft_wrap=True,
        highlight=False,
    )


class _Bar:
    """A progress display that appears when a run takes longer than a moment."""

    def __init__(self, exp: experiment.Experiment) -> None:
        self._exp = exp
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("simulating", total=None)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        if self._bar.live.is_started:
            self._bar.stop()

    def observe(self, progress: SimProgress, staged: experiment.Staged) -> None:
        """Show how far a simulation is: by what its workload counts, else by the time it is to cover."""
        if progress.wall_s < PROGRESS_AFTER_S:
            return
        if not self._bar.live.is_started:
            self._bar.start()
        load, horizon_ns = staged.load, staged.program.horizon_ns
        total, done = abs(load.watch_to - load.watch_from), float(abs(progress.watched - load.watch_from))
        if not load.watch and horizon_ns:
            total, done = horizon_ns, progress.sim_ns
        speed = progress.instructions / progress.wall_s / 1e6
        self._bar.update(
            self._task,
            total=total or None,
            completed=done if total else None,
            description=f"{self._exp.workload.name}: {progress.sim_ns / 1e9:.2f} s simulated, {speed:,.0f} M instr/s",
        )


def _outcomes(store: MlflowStore, sweep_id: str, points: Sequence[Point] = ()) -> list[tuple[str, Outcome]]:
    """The finished runs of a sweep, as its points are ordered and called; without any, as they began."""
    listed = [r for r in reversed(list_runs(store, sweep=sweep_id)) if r.status == "FINISHED"]
    place = {point.identity: (i, point.name) for i, point in enumerate(points)}
    known = [(*place.get(run.tags.get("identity", ""), (len(place), run.name)), run) for run in listed]
    known.sort(key=lambda entry: entry[0])
    loaded = [(name, load_run(store, run.run_id)) for _, name, run in known[:MAX_LISTED]]
    return [(name, Outcome(run.config, run.metrics, run.profile)) for name, run in loaded]


def _summary(ended: Ended) -> None:
    """What ends a sweep: its runs side by side, and what is missing."""
    console = Console()
    outcomes = list(_shown)
    if ended.store is not None:
        try:
            outcomes = _outcomes(ended.store, ended.sweep, ended.points)
        except UnreachableError as away:
            console.print(f"{away}: no table", highlight=False)
    _tables(console, outcomes, ended.finished)
    counts = [f"{ended.finished} of {len(ended.points)} points finished"]
    counts += [f"{ended.failed} failed"] if ended.failed else []
    counts += [f"{ended.lost} not run"] if ended.lost else []
    lines = [f"sweep  {ended.sweep} (tag of every run of it): {', '.join(counts)}"]
    if len(ended.points) > MAX_LISTED:
        spent = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in ended.seconds.items())
        lines.append(f"       time of this process and of all workers together: {spent}")
    if ended.waiting:
        lines.append(f"       {ended.waiting} runs wait in the spool; they are delivered with: zexp sync")
    if ended.store is not None:
        more = [f"resume it: zexp run -m resume={ended.sweep}"] if not ended.complete else []
        lines += [f"       {line}" for line in (*more, f"zexp compare {ended.sweep}", f"zexp report {ended.sweep}")]
    console.print("\n".join(lines), soft_wrap=True, highlight=False)


def _tables(console: Console, outcomes: Sequence[tuple[str, Outcome]], finished: int) -> None:
    if outcomes:
        render.sweep_tables(console, outcomes, outcomes[0][1].config["published"]["source"])
        if finished > len(outcomes):
            console.print(f"the first {len(outcomes)} of {finished} points", style="dim")
