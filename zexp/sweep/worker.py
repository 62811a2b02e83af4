"""A worker: takes points from a sweep's folder until there are none left."""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from zexp.compose import ready
from zexp.errors import ZexpError
from zexp.sweep.folder import Event, Folder, Offer
from zexp.sweep.point import Label, Ran, run_point
from zexp.sweep.points import Composer, swept_keys
from zexp.tracking import MlflowStore, open_store
from zexp.tracking.recorder import one_line

Show = Callable[[str, Ran], None]
FEW = 4
"""So many points or fewer are printed one by one; of more, a sweep shows the progress and its tables."""


def work(path: str, show: Show) -> None:
    """Run points that the offer in this file lists until all are taken, or somebody said stop.

    ``show`` is given the name of each point that has finished, and what it gave, if the points are few. An error of a
    point is told, and does not end the worker.
    """
    folder = Folder(Path(path).parent)
    with folder.at_work():
        offer = Offer.read(Path(path))
        if offer is not None:
            _Worker(folder, offer, show).work()


class _Worker:
    def __init__(self, folder: Folder, offer: Offer, show: Show) -> None:
        self._folder, self._offer, self._show = folder, offer, show
        self._manifest = folder.manifest()
        self._composer = Composer(ready(), self._offer.code, self._manifest.fixed)
        self._again = set(self._offer.again)
        self._stores: dict[str | None, MlflowStore] = {}
        self._host = socket.gethostname()
        self._name = f"{self._host}-{os.getpid()}"

    def work(self) -> None:
        for index in self._offer.points:
            if self._host == self._offer.host and self._folder.abandoned:
                os._exit(1)  # joblib's processes would wait forever for more from one that was killed
            if self._folder.stopped:
                return
            if self._folder.claim(index):
                self._tell(index, "started")
                self._one(index)

    def _one(self, index: int) -> None:
        began = time.monotonic()
        try:
            ran = self._run(index)
        except KeyboardInterrupt:
            self._folder.stop()
            self._tell(index, "failed", "interrupted")
            raise
        except Exception as error:
            if self._offer.stop_on_failure:
                self._folder.stop()
            self._tell(index, "failed", one_line(error))
            if not self._manifest.tracked and not isinstance(error, ZexpError):
                traceback.print_exception(error)  # there is no store that would keep it
        else:
            rest = time.monotonic() - began - ran.simulated_s - ran.tracked_s
            seconds = {"compose": rest, "simulate": ran.simulated_s, "track": ran.tracked_s}
            self._tell(index, "finished", ran.waits, seconds)
            if len(self._manifest.points) <= FEW:
                self._show(self._manifest.points[index].name, ran)

    def _run(self, index: int) -> Ran:
        point = self._manifest.points[index]
        exp = self._composer.experiment(point.overrides)
        given = swept_keys([self._manifest.fixed, point.overrides])
        label = Label(point.name, point.identity, self._offer.code, tags=self._offer.tags, given=given).of_sweep(
            self._manifest.sweep, index, " ".join(self._manifest.swept), point.overrides, index not in self._again
        )
        return run_point(exp, label, self._store(exp.tracking.store) if self._manifest.tracked else None)

    def _store(self, place: str | None) -> MlflowStore:
        if place not in self._stores:
            self._stores[place] = open_store(place)
        return self._stores[place]

    def _tell(self, index: int, what: str, note: str = "", seconds: Mapping[str, float] | None = None) -> None:
        self._folder.tell(self._name, Event(index, what, note, seconds or {}))
