"""The listing names what instructions access."""

from __future__ import annotations

from zexp.program import Builder
from zexp.program.listing import Listing

from .conftest import small_machine


def test_bulk_accesses() -> None:
    k = Builder(small_machine())
    before, source, target = k.var("before"), k.bookkeeping("source", 6), k.bookkeeping("target", 6)
    with k.thread("t") as body:
        k.load(before)
        k.fill(source, k.cpu, 3, 7)
        k.copy(target, source, 2, k.node)
    k.spawn(body, 0)
    lines = [line for line in Listing(k.finish(), k.machine).lines() if line.pc is not None]
    assert [line.text.strip() for line in lines[1:3]] == [
        "fill source[cpu, 3 elements] = 7",
        "copy target[2, node elements] = source[2, node elements]",
    ]
    assert [line.cost for line in lines[1:3]] == ["", ""]
