"""A metric against a swept parameter, a line (or a colour of bars) an arm."""
# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from zexp.compare import statistics, units
from zexp.compare.arms import Arms
from zexp.compare.statistics import Estimate
from zexp.errors import ZexpError

LOG_SPAN = 30.0
"""Swept values further apart than this factor are drawn on a logarithmic axis."""
LOG_HEIGHT = 100.0
"""So are metrics, if all are above 0."""
INK, FAINT = "#1b1f24", "#8a94a0"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#a65f99", "#c48a00", "#4c9bd5", "#7a7a7a")
"""After Okabe and Ito: apart for colour-blind eyes, and on light and dark paper."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MOST_TICKS = 9


@dataclass(frozen=True)
class Chart:
    """What is drawn."""

    title: str
    note: str
    """Under the title: what is averaged, what the bars are."""
    y_label: str
    x_label: str
    ticks: tuple[str, ...]
    positions: tuple[float, ...] | None
    """Of the ticks on a numeric axis; None for bars."""
    series: Mapping[str, tuple[Estimate | None, ...]]
    """Arm -> a value a tick."""

    @property
    def log_x(self) -> bool:
        """Whether the values of the parameter need a logarithmic axis."""
        return bool(self.positions) and _span(self.positions or ()) > LOG_SPAN

    @property
    def log_y(self) -> bool:
        """Whether the metric does. Bars have none: their length must mean something."""
        heights = [e.mean for values in self.series.values() for e in values if e is not None]
        return self.positions is not None and _span(heights) > LOG_HEIGHT


def chart(arms: Arms, metric: str, over: str | None) -> Chart:
    """The chart of a metric over one of the arms' other keys, averaged over the rest; None: a bar an arm."""
    line = arms.headline(metric)
    scale = line.scale if line else 1.0
    column = arms.column(over) if over else np.full(len(arms.conditions), "")
    ticks = units.in_order(column.tolist())
    # averaged over the same conditions for all arms where there are some, else a failed point would move a line
    shared = arms.shared(*arms.names, metric=metric)
    series: dict[str, tuple[Estimate | None, ...]] = {}
    for arm in arms.names:
        own = arms.shared(arm, metric=metric)
        values: list[Estimate | None] = []
        for tick in ticks:
            places = shared[column[shared] == tick]
            places = places if len(places) else own[column[own] == tick]
            found = statistics.estimate(arms.samples(arm, metric, places) * scale) if len(places) else None
            values.append(found)
        series[arm] = tuple(values)
    intervals = any(e.half for values in series.values() for e in values if e is not None)
    if not any(e for values in series.values() for e in values):
        raise ZexpError(f"metric {metric}: no arm has it, so there is nothing to draw")
    rest = [key for key in arms.keys if key != over]
    notes = [f"mean over {', '.join(rest)}"] if rest else []
    notes += ["bars: 95 % intervals over seeds"] if intervals else []
    unit = units.unit(metric, arms.workload.unit)
    label = line.title if line else f"{metric}, {unit}" if unit else metric
    positions = units.numbers(ticks) if over else None
    return Chart(
        title=f"{label} by {over}" if over else label,
        note="; ".join(notes),
        y_label=label,
        x_label=units.axis(over, ticks, arms.workload.unit) if over else "",
        ticks=tuple(tick or "(none)" for tick in ticks) if over else ("",),
        positions=tuple(positions) if positions is not None and len(set(positions)) == len(ticks) > 1 else None,
        series=series,
    )


def draw(chart: Chart, form: Literal["png", "svg"]) -> bytes:
    """Draw a chart. The same chart is the same file, byte for byte, with one version of Matplotlib."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    salt = hashlib.sha256(repr(chart).encode()).hexdigest()[:8]
    style: dict[Any, Any] = {
        "svg.hashsalt": salt,
        "svg.fonttype": "none" if form == "svg" else "path",
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "text.parse_math": False,  # a user's $ is a $
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(6.4, 3.7), layout="constrained")
        canvas = FigureCanvasAgg(figure) if form == "png" else FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        if form == "svg":  # lies on the page's paper
            figure.patch.set_alpha(0)
            axes.patch.set_alpha(0)
        _lines(axes, chart) if chart.positions else _bars(axes, chart)
        _finish(figure, axes, chart)
        sink = io.BytesIO()
        if form == "png":
            canvas.print_png(sink, metadata={"Software": None})  # type: ignore[union-attr]
        else:
            bare = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            canvas.print_svg(sink, metadata=bare)  # type: ignore[union-attr]
        return sink.getvalue()


def _lines(axes: Any, chart: Chart) -> None:
    assert chart.positions is not None
    for i, (arm, values) in enumerate(chart.series.items()):
        there = [(x, e) for x, e in zip(chart.positions, values, strict=True) if e is not None]
        axes.errorbar(
            [x for x, _ in there],
            [e.mean for _, e in there],
            yerr=[e.half or 0.0 for _, e in there] if any(e.half for _, e in there) else None,
            label=arm,
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
            markersize=5.5,
            # lines that lie on each other: the lower one shows as a wider rim
            markerfacecolor="none" if i % 2 else COLOURS[i % len(COLOURS)],
            linestyle=("-", "--", "-.", ":")[i % 4],
            linewidth=1.7,
            capsize=3,
        )
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
    # values beside each other share a label's room: keep those that are apart
    places = np.log(chart.positions) if chart.log_x else np.array(chart.positions)
    room = (places.max() - places.min()) / MOST_TICKS
    kept = [len(places) - 1]
    for i in range(len(places) - 2, -1, -1):
        if places[kept[-1]] - places[i] >= room:
            kept.append(i)
    axes.set_xticks([chart.positions[i] for i in kept], [chart.ticks[i] for i in kept])
    axes.minorticks_off()


def _bars(axes: Any, chart: Chart) -> None:
    width = 0.8 / len(chart.series)
    for i, (arm, values) in enumerate(chart.series.items()):
        there = [(x, e) for x, e in enumerate(values) if e is not None]
        axes.bar(
            [x + width * (i - (len(chart.series) - 1) / 2) for x, _ in there],
            [e.mean for _, e in there],
            width * 0.9,
            yerr=[e.half or 0.0 for _, e in there] if any(e.half for _, e in there) else None,
            label=arm,
            color=COLOURS[i % len(COLOURS)],
            ecolor=FAINT,
            capsize=3,
        )
    slanted = sum(map(len, chart.ticks)) > 70
    axes.set_xticks(
        range(len(chart.ticks)), chart.ticks, rotation=30 if slanted else 0, ha="right" if slanted else "center"
    )
    axes.tick_params(axis="x", length=0)


def _finish(figure: Any, axes: Any, chart: Chart) -> None:
    from matplotlib.ticker import FuncFormatter

    if not chart.log_y and all(e.mean >= 0 for values in chart.series.values() for e in values if e is not None):
        axes.set_ylim(bottom=0)  # what a line is compared with
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: units.plain(float(f"{y:.6g}"), 1 if y < 1 else 3)))
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(axis="y", color=FAINT, alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if chart.note:
        axes.set_title(chart.note, loc="right", fontsize=7.5, color=FAINT)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper left",
        ncols=min(len(labels), 4),
        frameon=False,
        handlelength=2.6,
        fontsize=9,
    )


def _span(values: Sequence[float]) -> float:
    """The largest of some values over the smallest, 1 if any is not above 0."""
    return max(values) / min(values) if values and min(values) > 0 else 1.0
