"""Size classes and the layout of the pool at the start."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zexp.kernel import PAGE_BYTES
from zexp.kernel.zsmalloc import HANDLE_BYTES, Layout, SizeClass, lay_out, scatter, size_classes

CHAINS = st.integers(1, 16)


def class_of(size: int, chain: int) -> SizeClass:
    return next(c for c in size_classes(chain) if c.size >= size)


@pytest.mark.parametrize(
    ("size", "chain", "expected"),
    [
        # by hand: the chain length n up to `chain` with the least n * 4096 % size
        (32, 8, SizeClass(32, 1, 128)),
        (4096, 8, SizeClass(4096, 1, 1)),
        (2048, 8, SizeClass(2048, 1, 2)),
        (1024, 4, SizeClass(1024, 1, 4)),
        (48, 4, SizeClass(48, 3, 256)),
        # Documentation/mm/zsmalloc.rst: classes of 1568 to 1632 bytes are one: 5 objects in 2 pages
        (1568, 4, SizeClass(1632, 2, 5)),
        (1632, 4, SizeClass(1632, 2, 5)),
        # and the largest class that is not "huge" is 3264 bytes with chains of 4
        (3264, 4, SizeClass(3264, 4, 5)),
        (3265, 4, SizeClass(4096, 1, 1)),
        # 3 objects of 1360 bytes fill a page; the next class up to 1424 puts 23 into 8 pages (32768 / 23 = 1424.7)
        (1360, 8, SizeClass(1360, 1, 3)),
        (1366, 8, SizeClass(1424, 8, 23)),
    ],
)
def test_size_class_by_hand(size: int, chain: int, expected: SizeClass) -> None:
    assert class_of(size, chain) == expected


@pytest.mark.parametrize(("chain", "watermark"), [(4, 3264), (5, 3408), (6, 3504), (8, 3632), (16, 3840)])
def test_huge_watermark(chain: int, watermark: int) -> None:
    """The largest class below a page: ``n + 1`` objects in ``n`` pages are at most this large."""
    assert size_classes(chain)[-2].size == watermark


@given(CHAINS)
def test_size_classes(chain: int) -> None:
    classes = size_classes(chain)
    sizes = [c.size for c in classes]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == PAGE_BYTES
    for smaller, larger in itertools.pairwise(classes):
        assert (smaller.pages, smaller.objects) != (larger.pages, larger.objects), "neighbours alike are one class"
    for c in classes:
        assert c.size % 16 == 0
        assert 1 <= c.pages <= chain
        assert c.objects == c.pages * PAGE_BYTES // c.size >= 1
        waste = c.pages * PAGE_BYTES % c.size
        assert all(waste <= n * PAGE_BYTES % c.size for n in range(1, chain + 1))
        assert all(waste < n * PAGE_BYTES % c.size for n in range(1, c.pages)), "the shortest such chain"


@given(st.integers(1, PAGE_BYTES), CHAINS)
def test_every_size_has_a_class(size: int, chain: int) -> None:
    assert class_of(size, chain).size >= size


@pytest.mark.parametrize("bound", [1, 2, 7, 32, 100])
def test_scatter_is_even(bound: int) -> None:
    count = 100_000
    hits = np.bincount(scatter(np.arange(count, dtype=np.uint64), bound), minlength=bound)
    assert len(hits) == bound
    # far more even than random numbers would be: a multiplicative hash by the golden ratio
    assert abs(hits - count / bound).max() <= max(4, 0.01 * count / bound)


@given(st.integers(0, 1 << 40), st.integers(1, 4096))
def test_scatter_stays_in_range(first: int, bound: int) -> None:
    where = scatter(np.arange(first, first + 50, dtype=np.uint64), bound)
    assert ((where >= 0) & (where < bound)).all()


def objects_by_kind(layout: Layout, pools: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.tile(np.array([c.objects for c in layout.classes]), pools)


@given(
    data=st.data(),
    slots=st.integers(1, 400),
    size=st.floats(1, PAGE_BYTES),
    spread=st.floats(0, 1),
    pools=st.sampled_from([1, 2, 5, 32]),
    chain=st.sampled_from([1, 4, 8]),
    other=st.integers(0, 100),
)
def test_layout(
    data: st.DataObject, slots: int, size: float, spread: float, pools: int, chain: int, other: int
) -> None:
    stored = np.array(data.draw(st.lists(st.booleans(), min_size=slots, max_size=slots)))
    layout = lay_out(stored, size, spread, pools, chain, other)
    classes = len(layout.classes)
    objects = objects_by_kind(layout, pools)
    assert len(layout.kind_of) == len(layout.zspage_of) == slots
    assert ((layout.kind_of >= 0) & (layout.kind_of < pools * classes)).all()
    assert ((layout.zspage_of >= 0) == stored).all(), "a slot has a zspage if and only if it is stored"
    assert (np.bincount(layout.zspage_of[stored], minlength=len(layout.inuse)) == layout.inuse).all()
    assert (layout.inuse >= 1).all()
    pages = np.zeros(pools, np.int64)
    for kind in range(pools * classes):
        mine = np.unique(layout.zspage_of[stored & (layout.kind_of == kind)])
        used = layout.inuse[mine]
        assert (used <= objects[kind]).all()
        assert (used < objects[kind]).sum() <= 1, "only the last zspage of a kind has room"
        others = layout.kind_of[stored & np.isin(layout.zspage_of, mine)]
        assert (others == kind).all(), "a zspage holds one size class of one pool"
        pages[kind // classes] += len(mine) * layout.classes[kind % classes].pages
    assert layout.pages_allocated.sum() == pages.sum() + other
    assert (np.abs(layout.pages_allocated - pages - other / pools) < 1).all(), "other pages are dealt out evenly"


@given(st.floats(1.0, 128.0), st.sampled_from([1, 8]))
def test_without_spread_there_is_one_class(ratio: float, chain: int) -> None:
    size = PAGE_BYTES / ratio
    layout = lay_out(np.ones(200, np.bool_), size, 0.0, 4, chain)
    assert layout.classes == [class_of(min(round(size) + HANDLE_BYTES, PAGE_BYTES), chain)]


def test_sizes_are_spread_around_their_mean_and_independent_of_the_pool() -> None:
    layout = lay_out(np.ones(50_000, np.bool_), 1400, 0.5, 8, 8)
    sizes = np.array([c.size for c in layout.classes])[layout.kind_of % len(layout.classes)]
    assert 1400 < sizes.mean() < 1440, "a class is a little larger than what it holds"
    assert sizes.min() == class_of(700 + HANDLE_BYTES, 8).size
    assert sizes.max() == class_of(2100 + HANDLE_BYTES, 8).size
    pools = layout.kind_of // len(layout.classes)
    means = [sizes[pools == pool].mean() for pool in range(8)]
    assert max(means) - min(means) < 20
