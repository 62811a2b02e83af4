"""Units of metrics and swept parameters, and numbers as people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from zexp.compare.statistics import Estimate
from zexp.errors import ConfigError
from zexp.workload import parse_bytes

_SUFFIXES = (
    (r"(^|_)pct(_|$)", "%"),
    (r"(^|_)s_per_s$", "s/s"),
    (r"(^|_)mib_per_s$", "MiB/s"),
    (r"^pages_per_s$", "{unit}s/s"),
    (r"(^|_)per_s$", "1/s"),
    (r"(^|_)ns_per_page$", "ns/{unit}"),
    (r"(^|_)per_page$", "1/{unit}"),
    (r"(^|_)(ns|ms|us|s|pages|kib|ghz)$", "{0}"),
)
_PROPER = {"kib": "KiB", "ghz": "GHz"}
_SIZE = re.compile(r"\s*\d+(\.\d+)?\s*([KMGT]i?)?B\s*")


def unit(name: str, per: str = "page") -> str:
    """The unit a metric or parameter has by its name, where ``per`` is what the workload counts; "" if it has none.

    The last part of the name that tells one counts: ``mean/flush_ns/level0`` are ns.
    """
    for part in reversed(re.split(r"[/.]", name)):
        for pattern, found in _SUFFIXES:
            if match := re.search(pattern, part):
                last = match[match.lastindex or 0]
                return found.format(_PROPER.get(last, last), unit=per)
    return ""


def axis(name: str, values: Sequence[str], per: str = "page") -> str:
    """The label of an axis along which a parameter takes ``values``: its name and unit."""
    known = "" if any(map(_SIZE.fullmatch, values)) else unit(name, per)  # 64MiB says so itself
    return f"{name} ({known})" if known else name


def numbers(values: Sequence[str]) -> list[float] | None:
    """Swept values as numbers (sizes in bytes), or None if one is something else."""
    found = [number(value) for value in values]
    return [n for n in found if n is not None] if None not in found and found else None


def number(text: str) -> float | None:
    """A finite number, or a size like 24GiB in bytes."""
    try:
        value = float(text)
    except ValueError:
        try:
            return float(parse_bytes("", text)) if _SIZE.fullmatch(text) else None
        except ConfigError:
            return None
    return value if math.isfinite(value) else None


def in_order(values: Sequence[str]) -> list[str]:
    """Distinct swept values: by size if all are numbers, else as they come."""
    distinct = list(dict.fromkeys(values))
    return sorted(distinct, key=lambda v: number(v) or 0.0) if numbers(distinct) else distinct


def plain(value: float, digits: int = 4) -> str:
    """A number with ``digits`` significant digits, none of them an exponent's between 0.0001 and 10^15."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}"
    places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text and float(value).is_integer() else text


def with_interval(estimate: Estimate) -> str:
    """``12.34 ± 0.56``: to the second digit of the interval; the mean alone if there is none."""
    half = estimate.half
    if not half or not math.isfinite(half):
        return plain(estimate.mean)
    if not 1e-4 <= max(abs(estimate.mean), half) < 1e15:
        return f"{estimate.mean:.3g} ± {half:.2g}"
    places = min(max(1 - math.floor(math.log10(half)), 0), 9)
    return f"{estimate.mean:,.{places}f} ± {half:,.{places}f}"


def percent(value: float | None, half: float | None = None) -> str:
    """``-58.2 ± 0.3 %``; of a change beyond tenfold, the factor."""
    if value is None:
        return "from 0"
    if value == 0 and not half:
        return "0 %"
    if value >= 1000:
        return f"x {plain(1 + value / 100, 3)}" + (f" ± {plain(half / 100, 2)}" if half else "")
    places = 1 if half is None or half == 0 else min(max(-math.floor(math.log10(half)), 1), 4)
    if 0 < abs(value) < 0.05 and not half:
        return f"{value:+.2g} %"
    return f"{value:+.{places}f}{f' ± {half:.{places}f}' if half else ''} %"
