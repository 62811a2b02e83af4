from __future__ import annotations

# mypy: disable-error-code="import-untyped"
import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from zexp.compare.statistics import by_condition, difference, estimate, hedges_g, holm, verdict

numbers = st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 6))


def arm(*rows: list[float]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.array(rows)


@st.composite
def two_arms(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    pairs = draw(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=12))
    return [a for a, _ in pairs], [b for _, b in pairs]


@given(st.lists(numbers, min_size=2, max_size=12))
def test_interval_is_students(values: list[float]) -> None:
    found = estimate(arm(values))
    assert found.half is not None
    if found.error:
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        assert found.mean - found.half == pytest.approx(low, rel=1e-6, abs=1e-6)
        assert found.mean + found.half == pytest.approx(high, rel=1e-6, abs=1e-6)


@given(two_arms())
def test_same_seeds_are_paired(arms: tuple[list[float], list[float]]) -> None:
    found = difference(arm(arms[0]), arm(arms[1]), paired=True)
    assert found.test == "paired t"
    if found.absolute.error:
        expected = stats.ttest_rel(arms[1], arms[0])
        interval = expected.confidence_interval(0.95)
        assert found.absolute.p == pytest.approx(expected.pvalue, rel=1e-4, abs=1e-9)
        assert found.absolute.half == pytest.approx((interval.high - interval.low) / 2, rel=1e-4)


@given(st.lists(numbers, min_size=2, max_size=9), st.lists(numbers, min_size=2, max_size=9))
def test_other_seeds_are_not(first: list[float], second: list[float]) -> None:
    found = difference(arm(first), arm(second), paired=False)
    assert found.test == "Welch"
    if found.absolute.error and np.ptp(first) > 1e-6 and np.ptp(second) > 1e-6:
        expected = stats.ttest_ind(second, first, equal_var=False)
        assert found.absolute.p == pytest.approx(expected.pvalue, rel=1e-4, abs=1e-9)
        assert found.absolute.freedom == pytest.approx(expected.df, rel=1e-4)


@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=4), st.data())
def test_never_nan_nor_a_warning(rows: list[list[float]], data: st.DataObject) -> None:
    base = np.array(rows)
    other = base + data.draw(st.sampled_from([0.0, 1.0, -3.0]))
    other[data.draw(st.integers(0, len(rows) - 1)), 0] = data.draw(st.sampled_from([np.nan, 0.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = difference(base, other, paired=True)
        p = found.absolute.p
        assert p is not None
        assert 0 <= p <= 1
        assert found.effect is None or math.isfinite(found.effect)
        verdict(found, p, 0.5)


def test_hedges_g_by_hand() -> None:
    # means 2 and 5, both variances 1: d = 3; J = 1 - 3 / (4 * 4 - 1) = 0.8
    assert hedges_g(arm([1, 2, 3]), arm([4, 5, 6])) == pytest.approx(2.4)
    assert hedges_g(arm([1, 1]), arm([2, 2])) is None
    assert hedges_g(arm([1.0]), arm([2.0])) is None


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), max_size=30))
def test_holm_keeps_the_order(p: list[float]) -> None:
    corrected = holm(p)
    assert all(p_i <= c <= 1 for p_i, c in zip(p, corrected, strict=True))
    for i in range(len(p)):
        for j in range(len(p)):
            assert p[i] > p[j] or corrected[i] <= corrected[j]


def test_without_spread_a_difference_is_certain() -> None:
    found = difference(arm([2, 2, 2]), arm([3, 3, 3]), paired=True)
    assert (found.absolute.half, found.absolute.p, found.effect) == (0.0, 0.0, None)
    assert found.ratio is not None
    assert (found.ratio.mean, found.ratio.half) == (50.0, 0.0)
    assert verdict(found, 0.0, 0.5) == "higher"


def test_rounding_is_no_difference() -> None:
    values = np.array([[0.1 + 0.2, 0.7, 0.3]])
    found = difference(values, np.array([[0.3, 0.7, 0.1 * 3]]), paired=True)
    assert verdict(found, found.absolute.p, 0.0) == "equal"


def test_verdicts() -> None:
    one = difference(arm([1.0]), arm([1.2]), paired=True)
    assert verdict(one, one.absolute.p, 0.5) == "1 seed"
    same = difference(arm([1.0]), arm([1.0]), paired=True)
    assert verdict(same, same.absolute.p, 0.5) == "equal"
    tiny = difference(arm([1000, 1001, 1002]), arm([1001, 1002, 1003.0001]), paired=True)
    assert tiny.absolute.p is not None
    assert tiny.absolute.p < 1e-6
    assert verdict(tiny, tiny.absolute.p, 0.5) == "no difference"
    assert verdict(tiny, tiny.absolute.p, 0.01) == "higher"
    from_nothing = difference(arm([0, 0, 0]), arm([1, 1.1, 0.9]), paired=True)
    assert from_nothing.ratio is None
    assert verdict(from_nothing, from_nothing.absolute.p, 0.5) == "higher"


def test_ratio_has_the_error_of_both_means() -> None:
    # the arm is exactly half the baseline with each seed: the ratio is certain though the difference is not
    base = arm([10, 12, 14])
    found = difference(base, base / 2, paired=True)
    assert found.absolute.half is not None
    assert found.absolute.half > 1
    assert found.ratio is not None
    assert found.ratio.mean == pytest.approx(-50)
    assert found.ratio.half == 0.0


def test_conditions_that_disagree_are_told() -> None:
    rng = np.random.default_rng(1)
    base = 10 + 0.01 * rng.standard_normal((2, 5))
    other = base * np.array([[1.2], [0.8]])
    found = by_condition(base, other, 0.5)
    assert found is not None
    low, high, mixed = found
    assert (round(low), round(high), mixed) == (-20, 20, True)
    alike = by_condition(base, base + 0.01 * rng.standard_normal((2, 5)), 0.5)
    assert alike is not None
    assert not alike[2]


@pytest.mark.parametrize("paired", [True, False])
def test_intervals_cover(paired: bool) -> None:
    rng = np.random.default_rng(7)
    covered = tests = 0
    for _ in range(1500):
        seed_effect = rng.normal(0, 2, (1, 5)) if paired else 0.0
        base = 100 + seed_effect + rng.normal(0, 1, (3, 5))
        other = 103 + seed_effect + rng.normal(0, 2, (3, 5))
        found = difference(base, other, paired).absolute
        assert found.half is not None
        covered += abs(found.mean - 3) <= found.half
        tests += 1
    assert covered / tests == pytest.approx(0.95, abs=0.02)


def test_ratio_intervals_cover() -> None:
    rng = np.random.default_rng(8)
    covered = 0
    for _ in range(1500):
        seed_effect = rng.normal(0, 2, (1, 6))
        base = 50 + seed_effect + rng.normal(0, 1, (1, 6))
        other = 25 + seed_effect + rng.normal(0, 1, (1, 6))
        ratio = difference(base, other, paired=True).ratio
        assert ratio is not None
        assert ratio.half is not None
        covered += abs(ratio.mean + 50) <= ratio.half
    assert covered / 1500 == pytest.approx(0.95, abs=0.02)


def test_no_difference_where_there_is_none() -> None:
    """Of twenty metrics without a difference, Holm lets one through in at most 5 % of comparisons."""
    rng = np.random.default_rng(9)
    wrong = single = 0
    for _ in range(400):
        found = [difference(base, other, True) for base, other in rng.normal(10, 1, (20, 2, 1, 5))]
        p = [one.absolute.p or 0.0 for one in found]
        single += sum(value < 0.05 for value in p)
        wrong += any(verdict(one, c, 0.0) != "no difference" for one, c in zip(found, holm(p), strict=True))
    assert single / 8000 == pytest.approx(0.05, abs=0.01)
    assert wrong / 400 <= 0.075
