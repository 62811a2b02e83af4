"""``zexp run``: Hydra composes, the experiment is staged and run, MLflow keeps the result."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from zexp import experiment, schema
from zexp.cli import render
from zexp.cli.compose import errors, ready, spelled_out
from zexp.errors import Interrupted, ZexpError
from zexp.result.published import Outcome
from zexp.tracking import Recorder, RunInfo, Store, list_runs, load_run, run_url

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from zexp.engine.sim import Progress as SimProgress
    from zexp.plugins import Registry
    from zexp.result import RunResult

SWEEP, SWEEP_DIR, SWEPT = "ZEXP_SWEEP", "ZEXP_SWEEP_DIR", "ZEXP_SWEPT"
PROGRESS_AFTER_S = 1.5


def main(argv: list[str]) -> int:
    """Run one experiment, or (``-m``) a sweep."""
    import hydra

    registry = ready()
    argv = spelled_out(argv)
    signal.signal(signal.SIGTERM, _terminated)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us whole; we print them
    sweep = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}" if _is_sweep(argv) else None
    outcomes: list[tuple[str, Outcome]] = []
    mistakes: list[ZexpError] = []
    here = os.getpid()

    def task(cfg: DictConfig) -> None:
        try:
            _task(cfg, registry, outcomes)
        except ZexpError as error:
            if os.getpid() != here:
                raise
            mistakes.append(error)  # raised when Hydra is done, which would print a line of its own

    version = {} if _hydra_version() >= (1, 4) else {"version_base": "1.3"}
    entry = hydra.main(config_path=str(schema.folder()), config_name="config", **version)(task)
    outer = sys.argv
    # overrides last: argparse does not take options between them
    sys.argv = ["zexp run", *sorted(argv, key=lambda a: (not a.startswith("-") and "=" in a) or a.startswith("~"))]
    folder = tempfile.mkdtemp(prefix="zexp-sweep-") if sweep else ""
    try:
        if sweep:
            os.environ.update({SWEEP: sweep, SWEEP_DIR: folder, SWEPT: ",".join(_swept(argv))})
        with errors():
            entry()
        if mistakes:
            raise mistakes[0]
    finally:
        sys.argv = outer
        if sweep:
            shutil.rmtree(folder, ignore_errors=True)
            for variable in (SWEEP, SWEEP_DIR, SWEPT):
                os.environ.pop(variable, None)
            _summary(sweep, outcomes)
    return 0


def _terminated(number: int, frame: object) -> NoReturn:
    """A run that is told to end says so in the store, as with Ctrl-C."""
    raise Interrupted("terminated")


def _is_sweep(argv: list[str]) -> bool:
    return any(a in ("-m", "--multirun") for a in argv)


def _swept(argv: list[str]) -> list[str]:
    """The keys that a sweep gives several values."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with errors():
        overrides = OverridesParser.create().parse_overrides([a for a in argv if "=" in a and not a.startswith("-")])
    return [o.get_key_element() for o in overrides if o.is_sweep_override()]


def _name(exp: experiment.Experiment, overrides: list[str]) -> str:
    """What a run is called: in a sweep by what is swept, else by its experiment and policy."""
    swept = [key for key in os.environ.get(SWEPT, "").split(",") if key]
    parts = []
    for override in overrides:
        key, _, value = override.partition("=")
        if key in swept:
            parts.append(value if "/" in key else f"{key.rpartition('.')[2]}={value}")
    return " ".join(parts) or f"{exp.name} {exp.policy.name}"


def _hydra_version() -> tuple[int, int]:
    import hydra

    major, minor = hydra.__version__.split(".")[:2]
    return int(major), int(minor)


def _task(cfg: DictConfig, registry: Registry, outcomes: list[tuple[str, Outcome]]) -> None:
    """One job, in whatever process the launcher gives it. A mistake is told at once, with the job's overrides."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    given: list[str] = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)  # type: ignore[assignment]
    overrides = [o for o in given if not o.startswith(("experiment=", "tracking."))]
    try:
        with errors():
            exp = experiment.from_config(cfg, registry)
        name, outcome = run_one(exp, overrides)
    except ZexpError as error:
        where = f" [{' '.join(overrides)}]" if os.environ.get(SWEEP) else ""
        print(f"zexp: {error}{where}", file=sys.stderr, flush=True)
        error.told = True  # type: ignore[attr-defined]
        raise
    outcomes.append((name, outcome))


def run_one(exp: experiment.Experiment, overrides: list[str]) -> tuple[str, Outcome]:
    """Stage, run, log and print one experiment."""
    console = Console()
    name = _name(exp, overrides)
    store = Store.open(exp.tracking.store) if exp.tracking.enabled else None
    staged = experiment.stage(exp)
    info = RunInfo(
        experiment=exp.name,
        name=name,
        config=exp.config,
        config_hash=exp.digest(),
        machine_digest=exp.machine.digest(),
        seed=exp.seed,
        sweep=os.environ.get(SWEEP),
        plugins=exp.plugins,
        notes=exp.notes or _notes(exp),
    )
    if store is None:
        result = _run(exp, staged, console)
    else:
        recorder = Recorder(store)
        run_id = recorder.start(info)
        try:
            result = _run(exp, staged, console)
            recorder.finish(run_id, info, result)
        except KeyboardInterrupt as error:  # also outside the simulation: while it is compiled, or the result written
            recorder.fail(run_id, error, "KILLED")
            console.print(f"run {run_id} is marked KILLED in {store.folder}")
            raise
        except BaseException as error:
            recorder.fail(run_id, error)
            raise
    outcome = _outcome(exp, result)
    title = f"{name} on {exp.machine.name}, {exp.kernel.name}, {exp.workload.name}"
    render.run_tables(console, outcome, title)
    speed = result.sim_ns / 1e9 / result.wall_s if result.wall_s else 0.0
    console.print(
        f"{result.sim_ns / 1e6:,.1f} ms on the machine, simulated in {result.wall_s:.2f} s ({speed:.2f} x real time)",
        highlight=False,
    )
    if store is not None:
        url = run_url(store.experiment_id(exp.name), run_id)
        console.print(
            f"run    zexp show {run_id[:8]}\nstore  {store.uri}\nUI     zexp ui, then {url}\n",
            soft_wrap=True,
            highlight=False,
        )
    return name, outcome


def _notes(exp: experiment.Experiment) -> str:
    """The run's description in MLflow."""
    lines = [
        f"**{exp.policy.name}** {exp.workload.governed_by}; {exp.workload.name} on "
        f"{exp.machine.name} ({exp.machine.description}), {exp.kernel.description}."
    ]
    if exp.published.source:
        lines.append(f"Held against: {exp.published.source}.")
    return "\n\n".join(lines)


def _outcome(exp: experiment.Experiment, result: RunResult) -> Outcome:
    rows: list[dict[str, Any]] = [vars(row) for row in result.profile.functions(result.pages)]
    return Outcome(exp.config, result.metrics, rows)


def _run(exp: experiment.Experiment, staged: experiment.Staged, console: Console) -> RunResult:
    """Run with a progress display that appears when a run takes longer than a moment."""
    load = staged.load
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("simulating", total=abs(load.watch_to - load.watch_from) or None)

    def observe(progress: SimProgress) -> None:
        if progress.wall_s < PROGRESS_AFTER_S:
            return
        if not bar.live.is_started:
            bar.start()
        speed = progress.instructions / progress.wall_s / 1e6
        bar.update(
            task,
            completed=abs(progress.watched - load.watch_from) if load.watch else None,
            description=f"{exp.workload.name}: {progress.sim_ns / 1e9:.2f} s simulated, {speed:,.0f} M instr/s",
        )

    try:
        return experiment.run(
            exp, staged, observer=observe, notify=lambda text: print(f"zexp: {text}", file=sys.stderr)
        )
    finally:
        if bar.live.is_started:
            bar.stop()


def _summary(sweep: str, outcomes: list[tuple[str, Outcome]]) -> None:
    """The table that ends a sweep: of the runs in this process, or of those other processes wrote to the store."""
    console = Console()
    if not outcomes:
        try:
            store = Store.open(create=False)
        except ZexpError:
            return
        runs = [load_run(store, r.run_id) for r in reversed(list_runs(store, sweep=sweep)) if r.status == "FINISHED"]
        outcomes = [(r.name, Outcome(r.config, r.metrics, r.profile)) for r in runs]
    if outcomes:
        render.sweep_tables(console, outcomes, outcomes[0][1].config["published"]["source"])
        console.print(f"sweep  {sweep} (tag of every run of it)", highlight=False)
