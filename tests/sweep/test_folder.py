"""The folder of a sweep: what is written is read back, points are given out once, one process runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zexp.errors import ZexpError
from zexp.sweep import folder as folders
from zexp.sweep.folder import Event, Folder, Listener, Manifest, Offer, new_id
from zexp.sweep.points import Point

from .conftest import make_manifest

# lone surrogates are what Python makes of arguments that are not UTF-8
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\udc80\udcff\"'\n\r\\\u2028"), max_size=12)
TUPLES = st.lists(TEXTS, max_size=3).map(tuple)
POINTS = st.builds(Point, TUPLES, TEXTS, TEXTS, TEXTS)
COMMON = settings(deadline=None, derandomize=True, database=None, max_examples=60)


@COMMON
@given(
    st.builds(
        Manifest,
        sweep=st.just("20260102-030405-abcdef"),
        arguments=TUPLES,
        fixed=TUPLES,
        swept=TUPLES,
        code=TEXTS,
        files=st.dictionaries(TEXTS, TEXTS, max_size=3),
        tracked=st.booleans(),
        points=st.lists(POINTS, max_size=3).map(tuple),
    )
)
def test_a_manifest_is_read_back_as_it_was(manifest: Manifest) -> None:
    with TemporaryDirectory() as home:
        created = Folder.create(Path(home), manifest)
        assert Folder.find(Path(home), manifest.sweep) == created
        assert created.manifest() == manifest


@COMMON
@given(st.lists(st.integers(0, 99)), st.lists(st.integers(0, 99)), TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2))
def test_an_offer_is_read_back_as_it_was(points: list[int], again: list[int], code: str, tags: dict[str, str]) -> None:
    with TemporaryDirectory() as home:
        folder = Folder.create(Path(home), make_manifest())
        folder.offer(Offer(points, again, code, tags))
        assert Offer.read(folder.offer_file) == Offer(points, again, code, tags)


def test_an_offer_that_was_withdrawn_is_none(folder: Folder) -> None:
    folder.offer(Offer([1], [], "c", {}))
    late = folder.offer_file
    folder.clear()
    folder.offer(Offer([2], [], "c", {}))
    assert Offer.read(late) is None
    assert folder.offer_file != late


def test_a_folder_appears_whole_and_never_over_another(folder: Folder) -> None:
    home = folder.path.parent.parent
    assert [p.name for p in folder.path.parent.iterdir()] == [folder.path.name], "no draft is left"
    before = folder.manifest()
    with pytest.raises(ZexpError, match=r"^[^\n]*sweeps: the sweep cannot be written there"):
        Folder.create(home, make_manifest(5))
    assert folder.manifest() == before


def test_finding(tmp_path: Path) -> None:
    with pytest.raises(ZexpError, match=r"^resume=last: no such sweep.*looked in"):
        Folder.find(tmp_path, "last")
    for sweep in ("20260102-030405-abcdef", "20260102-030405-abc000", "20260103-000000-000000"):
        Folder.create(tmp_path, make_manifest(sweep=sweep))
    (tmp_path / "sweeps" / ".20270101-000000-000000").mkdir()
    (tmp_path / "sweeps" / ".20270101-000000-000000" / "manifest.json").write_text("a draft")
    (tmp_path / "sweeps" / "20270101-000000-111111").mkdir()  # what another sweeper leaves

    def found(sweep: str) -> str:
        return Folder.find(tmp_path, sweep).path.name

    assert found("last") == "20260103-000000-000000"
    assert found("20260103") == "20260103-000000-000000"
    assert found("20260102-030405-abcdef") == "20260102-030405-abcdef"
    for bad, said in (("20260102", "2 sweeps begin so"), ("", "no such sweep"), ("2027", "no such sweep"), ("*", "no")):
        with pytest.raises(ZexpError, match=rf"^resume=\{bad}: {said}" if bad == "*" else f"^resume={bad}: {said}"):
            Folder.find(tmp_path, bad)
    with pytest.raises(ZexpError, match="did you mean 20260103-000000-000000"):
        Folder.find(tmp_path, "20260103-000000-000001")


def test_an_id_that_is_the_beginning_of_another_is_meant_itself(tmp_path: Path) -> None:
    for sweep in ("abc", "abcd"):
        Folder.create(tmp_path, make_manifest(sweep=sweep))
    assert Folder.find(tmp_path, "abc").path.name == "abc"


def test_ids_differ_and_sort_by_time() -> None:
    ids = {new_id() for _ in range(500)}
    assert len(ids) == 500
    assert all(len(i) == len("20260102-030405-abcdef") for i in ids)


def _damaged() -> dict[str, str | bytes]:
    whole = asdict(make_manifest())
    return {
        "empty": "",
        "cut off": json.dumps(whole)[:-40],
        "not UTF-8": b"\xff\xfe",
        "a list": "[]",
        "a number": "5",
        "null": "null",
        "without points": json.dumps({k: v for k, v in whole.items() if k != "points"}),
        "without code": json.dumps({k: v for k, v in whole.items() if k != "code"}),
        "a key too many": json.dumps({**whole, "more": 1}),
        "points that are none": json.dumps({**whole, "points": [1]}),
        "a point without overrides": json.dumps({**whole, "points": [{"name": "x"}]}),
        "a point of another version": json.dumps({**whole, "points": [{"overrides": [], "label": "x"}]}),
        "arguments that are none": json.dumps({**whole, "arguments": 3}),
    }


@pytest.mark.parametrize("what", _damaged())
def test_a_damaged_manifest_is_one_line(folder: Folder, what: str) -> None:
    content = _damaged()[what]
    path = folder.path / "manifest.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ZexpError, match=r"^[^\n]*manifest\.json: not a sweep's manifest \([^\n]*\)$"):
        folder.manifest()


def test_a_missing_manifest_is_one_line(folder: Folder) -> None:
    (folder.path / "manifest.json").unlink()
    with pytest.raises(ZexpError, match=r"manifest\.json: not a sweep's manifest"):
        folder.manifest()


# ---- sharing out ----


def test_every_point_is_claimed_by_exactly_one_of_many(folder: Folder) -> None:
    together = threading.Barrier(8)

    def take(_: int) -> list[int]:
        together.wait()
        return [point for point in range(200) if Folder(folder.path).claim(point)]

    with ThreadPoolExecutor(8) as pool:
        taken = [point for points in pool.map(take, range(8)) for point in points]
    assert sorted(taken) == list(range(200))
    folder.clear()
    assert folder.claim(0), "a sweep that is taken up again gives them out anew"


def test_stop_is_seen_until_it_is_cleared(folder: Folder) -> None:
    assert not folder.stopped
    folder.stop()
    folder.stop()
    assert Folder(folder.path).stopped
    folder.clear()
    assert not folder.stopped


# ---- who is at work ----

HOLD = """
import sys
from pathlib import Path
from zexp.sweep.folder import Folder
with getattr(Folder(Path(sys.argv[1])), sys.argv[2])():
    print("held", flush=True)
    sys.stdin.read()
    Path(sys.argv[1], "left").touch()
"""


def hold(folder: Folder, how: str) -> subprocess.Popen[str]:
    """Another process that runs this sweep, or works for it, until its input is closed."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder.path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_one_process_runs_a_sweep_and_if_it_is_killed_the_next_can(folder: Folder) -> None:
    first = hold(folder, "alone")
    try:
        with pytest.raises(ZexpError, match=r"^sweep 20260102-030405-abcdef is running already, in another process$"):
            folder.alone().__enter__()
        assert not folder.abandoned
    finally:
        first.kill()
        first.communicate()
    assert folder.abandoned
    with folder.alone():
        assert not Folder(folder.path).abandoned


def test_who_takes_over_stops_the_workers_that_are_left_and_waits_for_them(folder: Folder) -> None:
    folder.claim(0)
    worker = hold(folder, "at_work")

    def leave_when_stopped() -> None:
        while not folder.stopped:
            time.sleep(0.01)
        assert (folder.path / "claims" / "0").exists(), "while it works, nothing is forgotten"
        worker.communicate()

    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(leave_when_stopped)
        with folder.alone():
            assert (folder.path / "left").exists()
            assert not folder.stopped
            assert folder.claim(0)
        leaving.result()


def test_a_worker_that_does_not_end_is_named_after_a_while(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "PATIENCE_S", 0.2)
    with folder.at_work(), folder.at_work():  # workers do not exclude each other
        folder.claim(0)
        with pytest.raises(ZexpError, match=r"^sweep \S+ still has workers; stop them, or wait$"):
            folder.alone().__enter__()
        assert not folder.claim(0)
    with folder.alone():
        assert folder.claim(0)


# ---- what is told ----

EVENTS = st.lists(
    st.builds(
        Event,
        point=st.integers(0, 999),
        what=st.sampled_from(["started", "finished", "failed"]),
        note=TEXTS,
        seconds=st.dictionaries(TEXTS, st.floats(0, 1e6), max_size=2),
        at_s=st.floats(0, 2e9),
    ),
    min_size=1,
    max_size=5,
)


@COMMON
@given(EVENTS, st.data())
def test_every_line_is_heard_once_however_its_bytes_arrive(events: list[Event], data: st.DataObject) -> None:
    with TemporaryDirectory() as home:
        folder = Folder.create(Path(home), make_manifest())
        for event in events:
            folder.tell("a", event)
        path = folder.path / "events" / "a.jsonl"
        content = path.read_bytes()
        path.write_bytes(b"")
        cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
        listener, heard = Listener(folder), []
        for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
            with open(path, "ab") as file:
                file.write(content[start:end])
            heard.append(listener.news())
        assert sorted((e for news in heard for e in news), key=repr) == sorted(events, key=repr)
        for news in heard:
            assert news == sorted(news, key=lambda event: event.at_s)
        assert listener.news() == []


def test_several_tellers_are_heard_in_the_order_of_time(folder: Folder) -> None:
    listener = Listener(folder)
    assert listener.news() == []
    folder.tell("b", Event(0, "started", at_s=1.0))
    folder.tell("a", Event(1, "started", at_s=2.0))
    folder.tell("b", Event(0, "finished", at_s=3.0))
    assert [(e.point, e.what) for e in listener.news()] == [(0, "started"), (1, "started"), (0, "finished")]
    folder.tell("c", Event(2, "failed", "why\nnot", at_s=0.0))
    assert [e.note for e in listener.news()] == ["why\nnot"]


def test_an_unwritable_home_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "sweeps").write_text("in the way")
    with pytest.raises(ZexpError, match=r"^[^\n]*sweeps: the sweep cannot be written there \([^\n]+\)$"):
        Folder.create(tmp_path, make_manifest())
    assert os.listdir(tmp_path) == ["sweeps"]


def test_points_are_kept_in_order(tmp_path: Path) -> None:
    manifest = make_manifest(12)
    shuffled = replace(manifest, points=manifest.points[::-1])
    assert Folder.create(tmp_path, shuffled).manifest().points == manifest.points[::-1]
