"""A sweep from its command line to its last point."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from zexp.compose import quoted, ready
from zexp.errors import ConfigError, ZexpError
from zexp.experiment import Experiment
from zexp.sweep import code as codes
from zexp.sweep.folder import Folder, Manifest, Offer, new_id
from zexp.sweep.points import Composer, Point, expand, parse, swept_keys
from zexp.sweep.watch import Watch
from zexp.tracking import MlflowStore, Spool, TrackingError, UnreachableError, open_store
from zexp.tracking.reader import finished_identities, sweep_marks, take_over

if TYPE_CHECKING:
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig

POINTS_A_JOB = 8
"""Of a cluster: starting a job takes seconds, so each gets some points."""
ON_FAILURE = ("continue", "stop")


@dataclass(frozen=True)
class Ended:
    """A sweep that has ended, well or not."""

    sweep: str
    store: MlflowStore | None
    points: tuple[Point, ...]
    finished: int
    """Now or before."""
    failed: int
    lost: int
    """Points whose worker died, or that were not begun."""
    waiting: int
    """Runs that wait in the spool."""
    seconds: Mapping[str, float]
    """Real time that this process took to ``check`` the points, and all workers together to compose, simulate, ..."""

    @property
    def complete(self) -> bool:
        """Whether every point has finished."""
        return self.finished == len(self.points)


class Sweep:
    """What Hydra hands over when it is to run several jobs, and what the user resumes, if anything."""

    def __init__(self, context: HydraContext, task: TaskFunction, config: DictConfig, resume: Folder | None) -> None:
        self._context, self._task, self._config, self._resume = context, task, config, resume
        self._registry = ready()
        self._files = codes.files(self._registry)
        self._code = codes.identity(self._registry)

    def run(self, arguments: Sequence[str], together: Sequence[Sequence[str]]) -> Ended:
        """Compose and check all points, then run those that are missing."""
        loader = self._context.config_loader
        fixed, combinations = expand(parse(arguments, loader), together)
        composer = Composer(self._registry, self._code, fixed)
        began = time.monotonic()
        points, first = self._points(composer, combinations)
        self._check_s = time.monotonic() - began
        settings = first.sweep
        if settings.on_failure not in ON_FAILURE:
            raise ConfigError("sweep.on_failure", settings.on_failure, f"allowed: {', '.join(ON_FAILURE)}")
        if settings.workers is not None and settings.workers < 1:
            raise ConfigError("sweep.workers", settings.workers, "a whole number from 1 up, or null")
        store = open_store(first.tracking.store) if first.tracking.enabled else None
        if store is None:
            with TemporaryDirectory(prefix="zexp-sweep-") as home:
                return self._all(
                    Folder.create(Path(home), self._manifest(arguments, fixed, points, False)), first, None
                )
        for name in dict.fromkeys(point.experiment for point in points):
            store.check(name)
        if self._resume is None:
            folder = Folder.create(store.home, self._manifest(arguments, fixed, points, True))
        else:
            folder = self._resume
        return self._all(folder, first, store)

    def _points(self, composer: Composer, combinations: Sequence[tuple[str, ...]]) -> tuple[list[Point], Experiment]:
        """Every point; those that cannot be composed are named before anything runs."""
        points: dict[str, Point] = {}
        wrong: list[str] = []
        for overrides in combinations:
            try:
                point = composer.point(overrides)
            except ZexpError as error:
                wrong.append(f"{error} [{' '.join(overrides)}]" if overrides else str(error))
            else:
                points.setdefault(point.identity, point)
        if wrong:
            more = f" (and {len(wrong) - 1} more of {len(combinations)} points; none was run)" if len(wrong) > 1 else ""
            raise ZexpError(f"{wrong[0]}{more}")
        if (same := len(combinations) - len(points)) > 0:
            print(
                f"zexp: {same} of {len(combinations)} points say the same as others; each is run once", file=sys.stderr
            )
        return list(points.values()), composer.experiment(combinations[0])

    def _manifest(
        self, arguments: Sequence[str], fixed: Sequence[str], points: Sequence[Point], tracked: bool
    ) -> Manifest:
        return Manifest(
            sweep=new_id(),
            arguments=tuple(arguments),
            fixed=tuple(fixed),
            swept=tuple(swept_keys([p.overrides for p in points])),
            code=self._code,
            files=self._files,
            tracked=tracked,
            points=tuple(points),
        )

    def _all(self, folder: Folder, first: Experiment, store: MlflowStore | None) -> Ended:
        manifest = folder.manifest()
        with folder.alone():
            stop = first.sweep.on_failure == "stop"
            offer = Offer([*range(len(manifest.points))], [], self._code, {}, stop)
            if self._resume is not None:
                offer = self._missing(folder, manifest, first, store, offer)
            elif store is not None and not first.sweep.rerun:
                offer = self._not_reusable(manifest, store, offer)
            done = len(manifest.points) - len(offer.points)
            with Watch(folder, manifest.points, len(offer.points), done) as watch:
                if offer.points:
                    folder.offer(offer)
                    workers = self._workers(first, len(offer.points))
                    self._announce(manifest, len(offer.points), workers, store)
                    self._launch(folder, workers)
        finished = done + watch.count("finished")
        waiting = 0
        if store is not None:
            with contextlib.suppress(UnreachableError):  # which has been said
                deliver(store)
            waiting = Spool.of(store).destinations().get(store.uri, 0)
        failed = watch.count("failed")
        lost = len(manifest.points) - finished - failed
        seconds = {"check": self._check_s, **watch.seconds}
        return Ended(manifest.sweep, store, manifest.points, finished, failed, lost, waiting, seconds)

    def _announce(self, manifest: Manifest, points: int, workers: int, store: MlflowStore | None) -> None:
        """Say what begins, and how to take it up again should it be cut off."""
        share = f"{workers} workers" if workers > 1 else "1 worker"
        of = f"{points} of {len(manifest.points)}" if points < len(manifest.points) else str(points)
        where = f", to {store.uri}" if store is not None else ""
        print(f"sweep  {manifest.sweep}: {of} points, {share}{where}", flush=True)

    def _not_reusable(self, manifest: Manifest, store: MlflowStore, offer: Offer) -> Offer:
        """Points that are finished already, as identical ones of an earlier sweep, join this one."""
        try:
            have = {}
            for name in {p.experiment for p in manifest.points}:
                have.update(finished_identities(store, name, self._code))
            reused = {i: have[p.identity] for i, p in enumerate(manifest.points) if p.identity in have}
            take_over(store, manifest.sweep, reused.values())
        except UnreachableError:
            return offer
        if reused:
            print(
                f"zexp: {len(reused)} of {len(manifest.points)} points are in the store already, of the same "
                "configuration and code, and not run again; sweep.rerun=true runs them",
                file=sys.stderr,
            )
        return replace(offer, points=[i for i in offer.points if i not in reused])

    def _missing(
        self, folder: Folder, manifest: Manifest, first: Experiment, store: MlflowStore | None, offer: Offer
    ) -> Offer:
        """What a sweep that is resumed still lacks."""
        changes = codes.difference(manifest.files, self._files)
        if changes and not first.sweep.accept_changes:
            shown = ", ".join(changes[:5]) + (f" and {len(changes) - 5} more" if len(changes) > 5 else "")
            raise ZexpError(
                f"resume={manifest.sweep}: the code is not what the sweep was begun with: {shown}; go back, start "
                "a new sweep, or accept it with sweep.accept_changes=true, which the runs will say"
            )
        assert store is not None
        deliver(store)  # first, so that what was under way counts
        marks = sweep_marks(store, manifest.sweep)
        numbers = {key.rpartition("/")[2]: status for key, status in marks.by_key.items()}
        done = {int(n) for n, status in numbers.items() if n.isdecimal() and status == "FINISHED"}
        done |= {i for i, p in enumerate(manifest.points) if p.identity in marks.reused}
        tried = [int(n) for n, status in numbers.items() if n.isdecimal() and status != "FINISHED"]
        tags = {"resumed_with": "; ".join(changes)} if changes else {}
        return replace(offer, points=[i for i in offer.points if i not in done], again=tried, tags=tags)

    def _workers(self, first: Experiment, points: int) -> int:
        """How many jobs the launcher is given."""
        launcher, asked = self._config.hydra.launcher, first.sweep.workers
        if asked is not None:
            return min(asked, points)
        if (jobs := launcher.get("n_jobs")) is not None:  # joblib
            places = (os.cpu_count() or 1) + 1 + jobs if jobs < 0 else jobs
        elif (places := launcher.get("array_parallelism")) is not None:  # submitit
            places = min(places, math.ceil(points / POINTS_A_JOB))
        else:
            places = 1 if "basic" in launcher["_target_"] else os.cpu_count() or 1
        return max(1, min(int(places), points))

    def _launch(self, folder: Folder, workers: int) -> None:
        """Have Hydra's launcher run the workers; one that dies leaves points behind, and is told."""
        from hydra.core.plugins import Plugins
        from omegaconf import open_dict

        here = str(folder.path / "jobs")
        with open_dict(self._config):
            self._config.hydra.sweep.dir = here
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=self._context, task_function=self._task, config=self._config
        )
        job = [f"sweep.worker={quoted(str(folder.offer_file))}", f"hydra.sweep.dir={quoted(here)}"]
        try:
            for returned in launcher.launch([[*job] for _ in range(workers)], initial_job_idx=0):
                returned.return_value  # noqa: B018 - raises what ended the worker
        except KeyboardInterrupt:
            folder.stop()
            raise
        except Exception as error:
            folder.stop()
            if type(error).__module__.partition(".")[0] in ("joblib", "submitit"):
                reason = next(iter(str(error).strip().splitlines()), "")
                print(f"zexp: a worker has died ({type(error).__name__}: {reason})", file=sys.stderr)
                return
            raise


def deliver(store: MlflowStore) -> int:
    """Deliver what waits in the spool; how many parcels that were.

    One that cannot be delivered is told, and no reason not to go on; raises ``UnreachableError``.
    """
    try:
        return len(Spool.of(store).deliver(store))
    except UnreachableError:
        raise
    except TrackingError as error:
        print(f"zexp: {error}", file=sys.stderr)
        return 0


def resumed(home: Path, sweep: str, given: Sequence[str]) -> tuple[Folder, list[str]]:
    """The folder of a sweep to resume, and the overrides for it: its own, and those given about how it is run."""
    folder = Folder.find(home, sweep)
    for override in given:
        if not override.lstrip("+~").startswith(("hydra/", "hydra.", "sweep.", "tracking.store=")):
            raise ZexpError(
                f"{override}: a sweep that is resumed keeps its points; only hydra/launcher, hydra.*, sweep.* and "
                "tracking.store can be given with resume="
            )
    return folder, [*folder.manifest().arguments, *given]
