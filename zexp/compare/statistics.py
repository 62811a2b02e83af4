"""Means over seeds with intervals, differences with a test, and what may be said of them.

Samples are matrices, a row a condition (a point of the sweep without its policy) and a column a seed, NaN where there
is none. Conditions were chosen, seeds are drawn: what is averaged over conditions is uncertain only by its seeds.
"""
# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float64]
"""Conditions x seeds."""
Verdict = Literal["higher", "lower", "no difference", "mixed", "equal", "1 seed"]

CONFIDENCE = 0.95
SAME = 1e-12
"""Relative: what summation in another order can change is no difference, and no spread."""


@dataclass(frozen=True)
class Estimate:
    """A mean, and how well it is known."""

    mean: float
    error: float | None = None
    """Its standard error; None if there was one seed."""
    freedom: float = 0.0
    """Degrees of freedom of the error."""
    seeds: int = 1

    @property
    def half(self) -> float | None:
        """Half the width of the 95 % interval."""
        if self.error is None:
            return None
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, (1 + CONFIDENCE) / 2)) * self.error if self.error else 0.0

    def scaled(self, factor: float) -> Estimate:
        """The same in another unit."""
        return Estimate(
            self.mean * factor, None if self.error is None else self.error * abs(factor), self.freedom, self.seeds
        )

    @property
    def p(self) -> float | None:
        """Two-sided probability of a mean this far from 0 by chance (Student's t); None if there was one seed."""
        if self.error is None:
            return None
        return float(_p(np.array([self.mean]), np.array([self.error]), np.array([self.freedom]))[0])


@dataclass(frozen=True)
class Difference:
    """What changes from the baseline to another arm."""

    absolute: Estimate
    base: float
    """The baseline's mean, over the same conditions."""
    effect: float | None
    """Hedges' g, in standard deviations of one run; None where there is no spread to measure it by."""
    test: Literal["paired t", "Welch", "none"]

    ratio: Estimate | None
    """The difference in % of the baseline's mean; None if that is 0 and the difference is not.

    Its error is that of the ratio of the two means (linearised, as for any ratio estimator), of which both are
    uncertain.
    """


def estimate(samples: Samples) -> Estimate:
    """The mean over conditions (equal weights) and seeds.

    Where every condition has every seed, the seeds' means over the conditions are the sample (n - 1 degrees of
    freedom), so a seed may do the same to all conditions. Otherwise conditions count as independent (Satterthwaite).
    """
    counts = (~np.isnan(samples)).sum(axis=1)
    seeds = int(counts.min())
    means = np.nansum(samples, axis=1) / counts
    mean = float(means.mean())
    if seeds < 2:
        return Estimate(mean)
    if not np.isnan(samples).any():
        error = float(samples.mean(axis=0).std(ddof=1)) / math.sqrt(seeds)
        return Estimate(mean, _settled(error, samples), seeds - 1, seeds)
    squares = _variances(samples) / counts / len(samples) ** 2
    total = float(squares.sum())
    return Estimate(mean, _settled(math.sqrt(total), samples), _satterthwaite(squares, counts - 1), seeds)


def difference(base: Samples, other: Samples, paired: bool) -> Difference:
    """``other - base``: by the paired t test if ``paired`` (columns are the same seeds), else by Welch's.

    Both have the same conditions in the same order. Where a metric is missing for some seeds of one arm only, Welch's.
    """
    low, high = estimate(base), estimate(other)
    alike = base.shape == other.shape and bool((np.isnan(base) == np.isnan(other)).all())
    seeds = min(low.seeds, high.seeds)

    def minus(factor: float) -> Estimate:
        """``other - factor * base``."""
        mean = high.mean - factor * low.mean
        if paired and alike:
            found = estimate(other - factor * base)
        elif low.error is not None and high.error is not None:
            squares = np.array([high.error, factor * low.error]) ** 2
            freedom = _satterthwaite(squares, np.array([high.freedom, low.freedom]))
            found = Estimate(mean, math.sqrt(float(squares.sum())), freedom, seeds)
        else:
            found = Estimate(mean)
        scale = SAME * max(abs(low.mean), abs(high.mean))
        error = 0.0 if found.error is not None and found.error <= scale else found.error
        return Estimate(0.0 if abs(mean) <= scale else mean, error, found.freedom, seeds)

    absolute = minus(1.0)
    ratio = None if absolute.mean else Estimate(0.0)
    if low.mean:
        ratio = replace(minus(high.mean / low.mean), mean=absolute.mean).scaled(100 / abs(low.mean))
    test: Literal["paired t", "Welch", "none"] = "none" if seeds < 2 else "paired t" if paired and alike else "Welch"
    return Difference(absolute, low.mean, hedges_g(base, other), test, ratio)


def hedges_g(base: Samples, other: Samples) -> float | None:
    """Standardised difference with Hedges' small-sample correction (Hedges 1981, J = 1 - 3 / (4 df - 1)).

    The standard deviation is that between seeds, pooled over conditions and arms; None if there is none.
    """
    counts = np.concatenate([(~np.isnan(s)).sum(axis=1) for s in (base, other)])
    freedom = int((counts - 1).sum())
    if counts.min() < 2:
        return None
    variances = np.concatenate([_variances(base), _variances(other)])
    spread = math.sqrt(float(((counts - 1) * variances).sum()) / freedom)
    low, high = float(np.nanmean(base, axis=1).mean()), float(np.nanmean(other, axis=1).mean())
    if spread <= SAME * max(abs(low), abs(high)) or spread == 0:
        return None
    return (1 - 3 / (4 * freedom - 1)) * (high - low) / spread


def by_condition(base: Samples, other: Samples, least: float) -> tuple[float, float, bool] | None:
    """The lowest and highest difference of any condition in %, and whether one is higher and another lower.

    The latter by a t test in each condition with Holm's correction over them, differences under ``least`` % left out.
    None if a baseline is 0 somewhere.
    """
    low, high = (np.nansum(s, axis=1) / (~np.isnan(s)).sum(axis=1) for s in (base, other))
    if (low == 0).any():
        return None
    percent = 100 * (high - low) / np.abs(low)
    mixed = False
    if base.shape == other.shape and base.shape[1] > 1 and not np.isnan(base - other).any():
        apart = other - base
        errors = apart.std(axis=1, ddof=1) / math.sqrt(apart.shape[1])
        p = _p(apart.mean(axis=1), errors, np.full(len(apart), apart.shape[1] - 1.0))
        sure = (np.array(holm(p.tolist())) < 1 - CONFIDENCE) & (np.abs(percent) >= least)
        mixed = bool((sure & (percent > 0)).any() and (sure & (percent < 0)).any())
    return float(percent.min()), float(percent.max()), mixed


def holm(p: Sequence[float]) -> list[float]:
    """P values corrected for their number (Holm 1979), in the same order."""
    out = [0.0] * len(p)
    worst = 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        worst = max(worst, min(1.0, (len(p) - rank) * p[i]))
        out[i] = worst
    return out


def verdict(found: Difference, p: float | None, least: float) -> Verdict:
    """What may be said, ``p`` being corrected for what else was looked at.

    A difference that is certain but smaller than ``least`` % of the baseline is "no difference": a simulation has
    little noise, so a few seeds prove differences that mean nothing on a real machine.
    """
    if p is None:
        return "equal" if found.absolute.mean == 0 else "1 seed"
    if found.absolute.mean == 0 and found.absolute.error == 0:
        return "equal"
    if p >= 1 - CONFIDENCE or (found.ratio is not None and abs(found.ratio.mean) < least):
        return "no difference"
    return "higher" if found.absolute.mean > 0 else "lower"


def _variances(samples: Samples) -> Samples:
    """Variance of each row over its seeds, of which there are at least two."""
    variances: Samples = np.nanvar(samples, axis=1, ddof=1)
    return variances


def _settled(error: float, samples: Samples) -> float:
    return 0.0 if error <= SAME * float(np.nanmax(np.abs(samples))) else error


def _satterthwaite(squares: Samples, freedoms: Samples) -> float:
    """Degrees of freedom of a sum of independent variances; those of the parts if all are 0."""
    weighted = float((squares**2 / freedoms).sum())
    return float(squares.sum()) ** 2 / weighted if weighted else float(freedoms.sum())


def _p(means: Samples, errors: Samples, freedoms: Samples) -> Samples:
    from scipy.special import stdtr

    # without spread, a difference is certain and none is none
    t = np.divide(-np.abs(means), errors, out=np.where(means == 0, 0.0, -np.inf), where=errors > 0)
    p: Samples = 2 * stdtr(freedoms, t)
    return p
