# mypy: disable-error-code="no-untyped-call"
"""Runs on their way: none is lost and none is doubled, whatever happens to the process or the store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zexp.tracking import Spool, Store, TrackingError, UnreachableError, list_runs
from zexp.tracking import spool as spools
from zexp.tracking.spool import Parcel

FILES: dict[str, bytes | str] = {"a.txt": "ä", "deep/er/b.bin": b"\x00\xff"}
SERIES = [("series/s", float(ms * ms), ms) for ms in range(7)]
TRACE: dict[str, bytes | str] = {"traceback.txt": "first", "config.yaml": "seed: 1"}


def make_parcel(store: Store, **changes: Any) -> Parcel:
    parcel = Parcel(
        uri=store.uri,
        experiment="e",
        name="n",
        key="sweep-1/0",
        status="FINISHED",
        started_ms=1_700_000_000_000,
        ended_ms=1_700_000_001_000,
        metrics={"m": 1.5, "x/y": -2.0},
        params={"p": "1", "q": "ü"},
        tags={"sweep": "sweep-1", "identity": "i"},
        series=SERIES,
    )
    return replace(parcel, **changes)


def everything(store: Store) -> list[tuple[Any, ...]]:
    """All that a store says of its runs, but for their ids."""
    found: list[tuple[Any, ...]] = []
    for run in list_runs(store):
        with store.connection() as link:
            rows = link.execute(
                "SELECT key, value, timestamp, step FROM metrics WHERE run_uuid = ? ORDER BY key, step, timestamp",
                (run.run_id,),
            )
            metrics = [tuple(row) for row in rows]
        files = {str(p.relative_to(run.artifacts)): p.read_bytes() for p in run.artifacts.rglob("*") if p.is_file()}
        tags = {key: value for key, value in run.tags.items() if key != "parcel"}
        found.append((run.name, run.experiment, run.status, run.started_ms, run.ended_ms, run.params, tags, metrics))
        found.append((sorted(files.items()),))
    return found


@pytest.fixture
def spool(store: Store, monkeypatch: pytest.MonkeyPatch) -> Spool:
    monkeypatch.setattr(spools, "BATCH", 3)  # so that a small run takes several requests
    return Spool.of(store)


def assert_empty(spool: Spool) -> None:
    assert spool.waiting() == []
    assert spool.destinations() == {}
    assert [p.name for p in spool.folder.iterdir() if p.is_dir()] == []


class Away:
    """A client whose n-th request fails: before it arrives, or, with ``answer_lost``, after it has done its work."""

    REQUESTS = ("get_experiment_by_name", "create_run", "log_batch", "set_terminated", "get_run", "delete_tag")

    def __init__(self, client: Any, fails_at: int, answer_lost: bool) -> None:
        self.client, self.fails_at, self.answer_lost, self.requests = client, fails_at, answer_lost, 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.client, name)
        return self.counted(real) if name in self.REQUESTS else real

    def counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def request(*args: Any, **kwargs: Any) -> Any:
            self.requests += 1
            fails = self.requests == self.fails_at
            if fails and not self.answer_lost:
                raise UnreachableError("away")
            answer = real(*args, **kwargs)
            if fails:
                raise UnreachableError("away")
            return answer

        return request


def cut_off(store: Store, fails_at: int, answer_lost: bool) -> Away:
    """The same store, whose requests and copying of files fail at this step."""
    away = Away(store.client, fails_at, answer_lost)
    vars(store)["client"] = away
    vars(store)["put_files"] = away.counted(store.put_files)
    return away


def test_what_is_sent_is_in_the_store_and_nowhere_else(store: Store, spool: Spool) -> None:
    run_id = spool.send(store, make_parcel(store), FILES)
    (run,) = list_runs(store)
    assert (run.run_id, run.name, run.experiment, run.status) == (run_id, "n", "e", "FINISHED")
    assert (run.started_ms, run.ended_ms) == (1_700_000_000_000, 1_700_000_001_000)
    assert run.metrics == {"m": 1.5, "x/y": -2.0, "series/s": 36.0}
    assert run.params == {"p": "1", "q": "ü"}
    assert run.tags["delivery"] == "sweep-1/0"
    assert (run.artifacts / "a.txt").read_bytes() == "ä".encode()
    assert (run.artifacts / "deep/er/b.bin").read_bytes() == b"\x00\xff"
    history = store.client.get_metric_history(run_id, "series/s")
    assert sorted((m.step, m.value, m.timestamp) for m in history) == [
        (ms, float(ms * ms), 1_700_000_000_000 + ms) for ms in range(7)
    ]
    assert_empty(spool)


STEPS = range(1, 10)


@pytest.fixture(scope="module")
def clean(template: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """What a delivery leaves that nothing disturbs."""
    folder = tmp_path_factory.mktemp("clean") / "store"
    shutil.copytree(template, folder)
    store = Store.open(folder)
    Spool.of(store).send(store, make_parcel(store), FILES)
    return everything(store)


@pytest.mark.parametrize("answer_lost", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_delivery_that_is_cut_off_goes_on_where_it_was(
    store: Store, spool: Spool, clean: list[tuple[Any, ...]], step: int, answer_lost: bool
) -> None:
    away = cut_off(store, step, answer_lost)
    # experiment looked up, looked up again under the lock, run, files, 9 metrics in 3 batches, end
    with pytest.raises(UnreachableError) if step <= 8 else nullcontext():
        spool.send(store, make_parcel(store), FILES)
    assert away.requests == min(step, 8)
    again = Store.open(store.folder)
    assert spool.destinations() == ({store.uri: 1} if step <= 8 else {})
    assert len(spool.deliver(again)) == (1 if step <= 8 else 0)
    assert everything(again) == clean
    assert_empty(spool)
    assert spool.deliver(again) == []


def test_two_deliveries_cut_off_at_different_steps(store: Store, spool: Spool, clean: list[tuple[Any, ...]]) -> None:
    for step in (6, 3, 5, 7):
        other = Store.open(store.folder)
        cut_off(other, step, step % 2 == 0)
        with pytest.raises(UnreachableError):
            spool.deliver(other) if spool.waiting() else spool.send(other, make_parcel(store), FILES)
        assert len(spool.waiting()) == 1
    assert len(spool.deliver(store)) == 1
    assert everything(store) == clean


def test_a_parcel_that_was_delivered_already_changes_nothing(
    store: Store, spool: Spool, tmp_path: Path, clean: list[tuple[Any, ...]]
) -> None:
    """As when the process is killed before it removes the parcel."""
    away = cut_off(store, 3, False)
    with pytest.raises(UnreachableError):
        spool.send(store, make_parcel(store), FILES)
    assert away.requests == 3
    (kept,) = spool.waiting()
    shutil.copytree(kept, tmp_path / "copy")
    again = Store.open(store.folder)
    spool.deliver(again)
    shutil.copytree(tmp_path / "copy", kept)
    spool.deliver(again)
    assert everything(again) == clean
    assert_empty(spool)


def test_a_half_written_draft_is_no_parcel_and_goes(store: Store, spool: Spool) -> None:
    draft = spool.folder / ".0123456789abcdef"
    (draft / "files").mkdir(parents=True)
    (draft / "parcel.json").write_text("{")
    assert spool.waiting() == []
    assert spool.deliver(store) == []
    assert not draft.exists()


# ---- attempts ----


def failed(store: Store, number: int, **changes: Any) -> Parcel:
    tags = {"sweep": "sweep-1", "error": f"error {number}"}
    ended = 1_700_000_000_000 + number
    changes = {"first": number == 1, "started_ms": ended - 1, "ended_ms": ended, **changes}
    return make_parcel(store, status="FAILED", metrics={}, series=[], tags=tags, **changes)


def test_attempts_share_a_run_which_keeps_every_traceback(store: Store, spool: Spool) -> None:
    ids = {spool.send(store, failed(store, 1), TRACE)}
    ids.add(spool.send(store, failed(store, 2), {**TRACE, "traceback.txt": "second"}))
    ids.add(spool.send(store, failed(store, 3), {**TRACE, "traceback.txt": "third"}))
    (run,) = list_runs(store)
    assert ids == {run.run_id}
    assert (run.status, run.tags["attempts"], run.tags["error"]) == ("FAILED", "3", "error 3")
    kept = {path.name: path.read_text() for path in run.artifacts.glob("traceback*")}
    assert kept == {"traceback.txt": "first", "traceback-2.txt": "second", "traceback-3.txt": "third"}
    spool.send(store, make_parcel(store, first=False), FILES)
    (run,) = list_runs(store)
    assert (run.run_id in ids, run.status, run.tags["attempts"]) == (True, "FINISHED", "4")
    assert "error" not in run.tags
    assert run.metrics["m"] == 1.5
    assert (run.artifacts / "traceback.txt").read_text() == "first"


@pytest.mark.parametrize("step", range(1, 8))
@pytest.mark.parametrize("answer_lost", [False, True])
def test_a_second_attempt_that_is_cut_off_is_still_the_second(
    store: Store, spool: Spool, step: int, answer_lost: bool
) -> None:
    spool.send(store, failed(store, 1), TRACE)
    other = Store.open(store.folder)
    away = cut_off(other, step, answer_lost)
    second: dict[str, bytes | str] = {**TRACE, "traceback.txt": "second"}
    # experiment, tags of the run, number of the attempt, files, parameters, end
    if step <= 6:
        with pytest.raises(UnreachableError):
            spool.send(other, failed(store, 2), second)
        assert away.requests == step
        spool.deliver(store)
    else:
        spool.send(other, failed(store, 2), second)
    (run,) = list_runs(store)
    assert (run.status, run.tags["attempts"], run.tags["error"]) == ("FAILED", "2", "error 2")
    kept = {path.name: path.read_text() for path in run.artifacts.glob("traceback*")}
    assert kept == {"traceback.txt": "first", "traceback-2.txt": "second"}
    assert_empty(spool)


def test_a_parameter_that_has_changed_since_an_earlier_attempt_is_said(store: Store, spool: Spool) -> None:
    """MLflow refuses to change one, and the parcel would wait for ever."""
    spool.send(store, failed(store, 1), TRACE)
    spool.send(store, make_parcel(store, first=False, params={"p": "2", "q": "ü", "new": "3"}), FILES)
    (run,) = list_runs(store)
    assert (run.status, run.tags["changed_params"]) == ("FINISHED", "p=2")
    assert run.params == {"p": "1", "q": "ü", "new": "3"}
    assert_empty(spool)


def test_runs_without_a_key_in_common_are_runs_of_their_own(store: Store, spool: Spool) -> None:
    for number in range(3):
        spool.send(store, make_parcel(store, key=f"k{number}", first=number > 0), FILES)
    assert len(list_runs(store)) == 3


# ---- what waits ----


def keep(store: Store, spool: Spool, parcel: Parcel) -> Path:
    """A parcel that could not be delivered."""
    before = set(spool.waiting())
    other = Store.open(store.folder)
    cut_off(other, 1, False)
    with pytest.raises(UnreachableError):
        spool.send(other, parcel, FILES)
    (kept,) = set(spool.waiting()) - before
    return kept


def test_a_store_that_does_not_answer_leaves_the_parcel_whole(store: Store, spool: Spool) -> None:
    kept = keep(store, spool, make_parcel(store))
    assert list_runs(store) == []
    assert sorted(p.name for p in kept.iterdir()) == ["files", "parcel.json", "tried"]
    assert (kept / "files/deep/er/b.bin").read_bytes() == b"\x00\xff"
    assert Parcel(**json.loads((kept / "parcel.json").read_text())).params == {"p": "1", "q": "ü"}


def test_the_parcels_of_other_stores_stay_untouched(store: Store, spool: Spool) -> None:
    elsewhere = keep(store, spool, make_parcel(store, uri="http://127.0.0.1:1", key="other"))
    before = sorted((str(p), p.stat().st_mtime_ns) for p in elsewhere.rglob("*"))
    keep(store, spool, make_parcel(store))
    assert spool.destinations() == {"http://127.0.0.1:1": 1, store.uri: 1}
    assert [parcel.key for parcel in spool.deliver(store)] == ["sweep-1/0"]
    assert spool.waiting() == [elsewhere]
    assert sorted((str(p), p.stat().st_mtime_ns) for p in elsewhere.rglob("*")) == before
    assert len(list_runs(store)) == 1


def test_parcels_are_delivered_oldest_first(store: Store, spool: Spool) -> None:
    for started in (3000, 1000, 2000):
        keep(store, spool, make_parcel(store, key=f"k{started}", started_ms=started))
    assert [parcel.started_ms for parcel in spool.deliver(store)] == [1000, 2000, 3000]


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "3", '{"uri": "x"}', '{"more": 1}', b"\xff"])
def test_a_damaged_parcel_is_named_and_holds_up_no_other(store: Store, spool: Spool, content: str | bytes) -> None:
    damaged = keep(store, spool, make_parcel(store, key="damaged", started_ms=1))
    keep(store, spool, make_parcel(store))
    (damaged / "parcel.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TrackingError, match=rf"^{damaged}: a damaged parcel \([^\n]*\); look at its files"):
        spool.deliver(store)
    assert [run.tags["delivery"] for run in list_runs(store)] == ["sweep-1/0"]
    assert spool.waiting() == [damaged]


def test_a_mistake_in_one_parcel_holds_up_no_other(store: Store, spool: Spool) -> None:
    with pytest.raises(TrackingError, match="experiment name"):
        spool.send(store, make_parcel(store, key="bad", started_ms=1, experiment="\n"), FILES)
    keep(store, spool, make_parcel(store))
    with pytest.raises(TrackingError, match="experiment name"):
        spool.deliver(store)
    assert len(list_runs(store)) == len(spool.waiting()) == 1


def test_a_store_that_is_away_is_not_asked_for_every_parcel(store: Store, spool: Spool) -> None:
    for number in range(3):
        keep(store, spool, make_parcel(store, key=f"k{number}"))
    other = Store.open(store.folder)
    away = cut_off(other, 1, False)
    with pytest.raises(UnreachableError):
        spool.deliver(other)
    assert away.requests == 1
    assert len(spool.waiting()) == 3


@pytest.mark.parametrize("path", ["", "/etc/x", "../x", "a/../../x", "a/..", "."])
def test_files_stay_inside_the_run(store: Store, spool: Spool, path: str) -> None:
    with pytest.raises(TrackingError, match="artifact path"):
        spool.send(store, make_parcel(store), {"ok.txt": "", path: "out"})
    assert spool.deliver(store) == []
    assert_empty(spool)
    assert list_runs(store) == []
    assert not list(store.folder.parent.rglob("x"))


def test_a_spool_that_cannot_be_written_is_one_line(store: Store) -> None:
    spool = Spool.of(store)
    spool.folder.write_text("in the way")
    with pytest.raises(TrackingError, match=r"^store [^\n]*: the run cannot be written to [^\n]*spool \([^\n]*\)$"):
        spool.send(store, make_parcel(store), FILES)
    assert list_runs(store) == []


def test_nothing_waits_where_there_is_no_spool(store: Store) -> None:
    spool = Spool.of(store)
    assert (spool.waiting(), spool.destinations(), spool.deliver(store)) == ([], {}, [])
