"""What the sweep's own process shows while workers work: how far it is, and each failure when it happens."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from zexp.sweep.folder import Event, Folder, Listener
from zexp.sweep.points import Point

EVERY_S = 0.25
SHOWN_AFTER_S = 1.5
LINE_EVERY_S = 60.0
"""Where there is no terminal to draw on."""
RECENT = 200
"""Points from whose pace the time left is told."""


class Watch:
    """Follows a sweep in a thread of its own, as a context manager."""

    def __init__(self, folder: Folder, points: Sequence[Point], to_run: int, done_before: int):
        self._points, self._listener = points, Listener(folder)
        self._total, self._before = to_run + done_before, done_before
        self.states: dict[int, str] = {}
        """By point: started, finished or failed."""
        self.waiting = 0
        """Finished points whose runs wait in the spool."""
        self.seconds: dict[str, float] = {}
        """What the workers' time went to, all of them together."""
        self._finished_at: list[float] = []
        self._console = Console(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=self._total, completed=done_before)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="sweep-watch")
        self._began = self._last_line = time.monotonic()

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        if self._bar.live.is_started:
            self._bar.stop()
        self._listen()  # what was told last

    def count(self, state: str) -> int:
        """How many points are in this state."""
        return sum(1 for s in self.states.values() if s == state)

    def _follow(self) -> None:
        while not self._over.wait(EVERY_S):
            self._listen()
            now = time.monotonic()
            if self._console.is_terminal:
                if now - self._began > SHOWN_AFTER_S and not self._bar.live.is_started:
                    self._bar.start()
                self._bar.update(self._task, completed=self._before + self._ended(), description=self._describe())
            elif now - self._last_line > LINE_EVERY_S:
                self._last_line = now
                print(f"zexp: {self._before + self._ended()}/{self._total} {self._describe()}", file=sys.stderr)

    def _ended(self) -> int:
        return self.count("finished") + self.count("failed")

    def _describe(self) -> str:
        counts = f"{self._before + self.count('finished')} done, {self.count('failed')} failed"
        return f"{counts}, {self.count('started')} running{self._left()}"

    def _left(self) -> str:
        recent = self._finished_at[-RECENT:]
        remaining = self._total - self._before - self._ended()
        if len(recent) < 2 or recent[-1] <= recent[0] or not remaining:
            return ""
        seconds = round(remaining * (recent[-1] - recent[0]) / (len(recent) - 1))
        hours, rest = divmod(seconds, 3600)
        return f", {hours}:{rest // 60:02}:{rest % 60:02} left" if hours else f", {rest // 60}:{rest % 60:02} left"

    def _listen(self) -> None:
        for event in self._listener.news():
            self.states[event.point] = event.what
            if event.what != "started":
                self._finished_at.append(event.at_s)
            for what, seconds in event.seconds.items():
                self.seconds[what] = self.seconds.get(what, 0.0) + seconds
            if event.what == "failed":
                self._failed(event)
            elif event.what == "finished" and event.note:
                if not self.waiting:
                    self._say(f"{event.note}; runs wait in the spool")
                self.waiting += 1

    def _failed(self, event: Event) -> None:
        if event.note != "interrupted":
            self._say(f"{event.note} [{' '.join(self._points[event.point].overrides)}]")

    def _say(self, text: str) -> None:
        """Above the bar, on one line whatever its length."""
        if self._bar.live.is_started:
            self._bar.console.print(f"zexp: {text}", soft_wrap=True, markup=False, highlight=False)
        else:
            print(f"zexp: {text}", file=sys.stderr, flush=True)
