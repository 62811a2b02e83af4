"""What is shown of a sweep while it runs."""

from __future__ import annotations

import time

import pytest

from zexp.sweep import watch as watches
from zexp.sweep.folder import Event, Folder
from zexp.sweep.watch import Watch


def watching(folder: Folder, *, to_run: int = 3, done: int = 0) -> Watch:
    return Watch(folder, folder.manifest().points, to_run, done)


def test_states_and_counts_are_those_told_last(folder: Folder) -> None:
    with watching(folder) as watch:
        for point in range(3):
            folder.tell("w", Event(point, "started"))
        folder.tell("w", Event(0, "finished", seconds={"compose": 1.0, "simulate": 2.0}))
        folder.tell("v", Event(1, "finished", seconds={"simulate": 0.5, "track": 0.25}))
        folder.tell("v", Event(2, "failed", "interrupted"))
    assert watch.states == {0: "finished", 1: "finished", 2: "failed"}
    assert [watch.count(state) for state in ("started", "finished", "failed")] == [0, 2, 1]
    assert watch.seconds == {"compose": 1.0, "simulate": 2.5, "track": 0.25}


def test_a_failure_is_said_when_it_happens_with_its_overrides(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    with watching(folder):
        folder.tell("w", Event(1, "failed", "it broke [sic]"))
        deadline, said = time.monotonic() + 10, ""
        while not said and time.monotonic() < deadline:
            time.sleep(0.02)
            said = capsys.readouterr().err
        assert said == "zexp: it broke [sic] [seed=1]\n"
    assert capsys.readouterr().err == "", "and not once more at the end"


def test_what_was_interrupted_needs_no_line(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    with watching(folder) as watch:
        folder.tell("w", Event(1, "failed", "interrupted"))
    assert watch.count("failed") == 1
    assert capsys.readouterr().err == ""


def test_runs_that_wait_are_counted_and_said_once(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    with watching(folder) as watch:
        for point in range(3):
            folder.tell("w", Event(point, "finished", "server X does not answer" if point else ""))
    assert watch.waiting == 2
    assert capsys.readouterr().err == "zexp: server X does not answer; runs wait in the spool\n"


def ended(folder: Folder, *at_s: float, to_run: int, done: int = 0) -> str:
    """How a watch describes points that ended at these times."""
    watch = watching(folder, to_run=to_run, done=done)
    for point, at in enumerate(at_s):
        folder.tell("w", Event(point, "finished", at_s=at))
    watch._listen()
    return watch._describe()


def test_the_time_left_is_told_from_the_pace(folder: Folder) -> None:
    assert ended(folder, 100.0, 110.0, 120.0, to_run=8, done=4) == "7 done, 0 failed, 0 running, 0:50 left"


def test_of_long_sweeps_in_hours(folder: Folder) -> None:
    assert ended(folder, 0.0, 3600.0, to_run=4) == "2 done, 0 failed, 0 running, 2:00:00 left"


def test_no_time_is_told_that_is_not_known(folder: Folder) -> None:
    assert ended(folder, to_run=3) == "0 done, 0 failed, 0 running"
    assert ended(folder, 5.0, to_run=3) == "1 done, 0 failed, 0 running"


def test_nor_when_nothing_is_left(folder: Folder) -> None:
    assert ended(folder, 5.0, 6.0, 7.0, to_run=3) == "3 done, 0 failed, 0 running"


def test_the_pace_is_that_of_late(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "RECENT", 2)
    assert ended(folder, 0.0, 1000.0, 1001.0, to_run=13).endswith("0:10 left")


def test_without_a_terminal_there_is_a_line_now_and_then(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watches, "LINE_EVERY_S", 0.0)
    monkeypatch.setattr(watches, "EVERY_S", 0.01)
    folder.tell("w", Event(0, "started"))
    with watching(folder, to_run=2, done=1):
        time.sleep(0.3)
    assert "zexp: 1/3 1 done, 0 failed, 1 running\n" in capsys.readouterr().err
