"""A program's digest names all that decides its outcome, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from zexp.program import MUTEX, Builder, Program
from zexp.program.memory import LockKind

from .conftest import small_machine


def build(
    *,
    work: float = 100,
    constant: int = 7,
    init: int = 1,
    home: int = 0,
    per_line: int = 1,
    cpu: int = 1,
    start_ns: int = 0,
    argument: int = 5,
    comm: str = "t",
    symbol: str = "f",
    daemon: bool = False,
    threads: int = 2,
    kind: LockKind = MUTEX,
    metric: str = "m",
    unit: str = "ns",
    variable: str = "v",
    queue: str = "q",
    turns: int = 3,
    together: bool = False,
    horizon_ns: int = 0,
    series: str = "s",
    series_unit: str = "bytes",
    room: int = 4,
) -> Program:
    k = Builder(small_machine())
    v = k.var(variable, init, home)
    array = k.array("array", 4, per_line=per_line)
    book = k.bookkeeping("book", 2)
    lock, waiters = k.locks("lock", 1, kind)[0], k.wait_queue(queue)
    k.series(series, room, series_unit)
    if horizon_ns:
        k.run_until(horizon_ns)
    if together:
        with k.line("line"):
            a, b = k.var("a"), k.var("b")
    else:
        a, b = k.var("a"), k.var("b")
    with k.thread(comm) as body, k.func(symbol):
        x = body.arg("x")
        with k.for_range(turns) as i, k.lock(lock):
            k.work(work)
            k.store(v, x + constant)
            k.store(array[i], k.load(book[0]))
        k.store(a, k.load(b))
        k.count(metric)
        k.observe("h", x, unit)
        k.wake(waiters)
    with k.thread("other", daemon=daemon) as other:
        k.work(1)
    k.spawn(body, 0, x=argument)
    if threads > 1:
        k.spawn(other, cpu, start_ns)
    return k.finish()


def test_the_same_text_has_the_same_digest() -> None:
    first = build()
    second = build()  # on another line
    assert first.digest() == second.digest()
    assert first.digest() == first.digest()
    assert len(first.digest()) == 64
    assert build(work=100.0).digest() == first.digest()
    assert build(work=100.01).digest() == first.digest()  # the same number of 1/16 cycles


def test_source_lines_are_no_part_of_it() -> None:
    def program(k: Builder, gap: str) -> Program:
        namespace: dict[str, Any] = {"k": k}
        text = f"with k.thread('t') as body:\n    k.work(5)\n{gap}    k.now_ns()\nk.spawn(body, 0)\n"
        exec(compile(text, f"file{len(gap)}.py", "exec"), namespace)
        return k.finish()

    one, two = program(Builder(small_machine()), ""), program(Builder(small_machine()), "\n\n\n")
    assert one.where != two.where
    assert one.digest() == two.digest()


CHANGES: list[dict[str, Any]] = [
    {"work": 101}, {"constant": 8}, {"init": 2}, {"home": 1}, {"per_line": 2}, {"cpu": 2}, {"start_ns": 1},
    {"argument": 6}, {"comm": "u"}, {"symbol": "g"}, {"daemon": True}, {"threads": 1},
    {"kind": LockKind(True, "__mutex_lock", "osq_lock", "elsewhere")}, {"kind": LockKind(False, "a", "b", "")},
    {"metric": "n"}, {"unit": "pages"}, {"variable": "w"}, {"queue": "r"}, {"turns": 4}, {"together": True},
    {"horizon_ns": 1}, {"horizon_ns": 2}, {"series": "t"}, {"series_unit": "pages"}, {"room": 5},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_constant_and_placement_is_part_of_it(change: dict[str, Any]) -> None:
    assert build(**change).digest() != build().digest()


def test_all_changes_have_different_digests() -> None:
    digests = [build(**change).digest() for change in CHANGES]
    assert len(set(digests)) == len(digests)
