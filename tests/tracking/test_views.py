"""What the views of other sweeps than that of the pictures select; without a browser."""

from __future__ import annotations

import pytest

from zexp.tracking import RunEntry
from zexp.tracking.views import MAX_VIEW, RULE, _above, _Sweep

Point = dict[str, str]
PROCESSES = "workload.processes"
POLICY = "policy.accounting.name"


def sweep(*points: Point, swept: str = "") -> _Sweep:
    runs = [
        RunEntry(
            run_id=f"{i:032x}",
            experiment="e",
            experiment_id="1",
            name=" ".join(params.values()),
            status="FINISHED",
            started_ms=i,
            ended_ms=i,
            metrics={"time/total_ms": 1.0},
            params={"workload.name": "munmap", **params},
            tags={"sweep": "S", "swept": swept},
            artifact_uri="",
            url="",
        )
        for i, params in enumerate(points)
    ]
    return _Sweep("S", runs, None)


def compared(found: _Sweep) -> list[str]:
    return [run.name for run in found._upper_end()]


def test_without_policies_the_first_key_is_compared() -> None:
    found = sweep(*({PROCESSES: str(n)} for n in (1, 2, 4)), swept=PROCESSES)
    assert compared(found) == ["1", "2", "4"]
    assert found.numeric == [PROCESSES], "and is an axis of the charts"
    assert len(set(found.colors.values())) == 3


def test_what_follows_from_a_choice_was_not_swept() -> None:
    machines = {"a": "16", "b": "16", "c": "192"}
    points = [{POLICY: p, "machine.name": m, "machine.cpus": n} for m, n in machines.items() for p in ("eager", "lazy")]
    assert sweep(*points, swept=f"machine.name {POLICY}").swept == [POLICY, "machine.name"]


def test_of_points_that_are_no_grid_those_with_most_policies_are_compared() -> None:
    points = [{POLICY: "eager", PROCESSES: "1"}, {POLICY: "lazy", PROCESSES: "1"}, {POLICY: "lazy", PROCESSES: "9"}]
    found = sweep(*points)
    assert compared(found) == ["eager 1", "lazy 1"]
    assert found.tables_view()["searchFilter"] == f"tags.sweep = 'S' AND params.`{PROCESSES}` = '1'"


def test_one_point() -> None:
    found = sweep({PROCESSES: "1"})
    assert (found.swept, compared(found)) == ([], ["1"])


@pytest.mark.parametrize("written", ["", "Mine.\n\n- too", "Latest sweep: of an older version"])
def test_descriptions(written: str) -> None:
    ours = f"Latest sweep: new\n{RULE}"
    text = _above(written, ours)
    assert text.startswith(ours.rstrip())
    assert text.endswith(written) or written.startswith("Latest")
    assert _above(text, ours) == text


def test_a_description_that_leaves_no_room_stays() -> None:
    assert _above("x" * MAX_VIEW, "Latest sweep:") == "x" * MAX_VIEW
