"""What the pages' scripts share: running many points, keeping their figures in results.json, drawing SVG."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Point = tuple[Row, list[str]]
"""Labels of a run, and the overrides that make it."""
Job = tuple[Row, list[str], dict[str, Row]]
"""A point, and the rows that are known, by configuration hash."""


def parser(doc: str) -> argparse.ArgumentParser:
    """The options every page's script has."""
    options = argparse.ArgumentParser(description=doc.splitlines()[0])
    options.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    options.add_argument("--redraw", action="store_true", help="run nothing, use what results.json holds")
    return options


def collect(target: Path, points: Iterable[Point], figures: Callable[[Job], Row], jobs: int | None) -> None:
    """Run all points, those that ``target`` holds already excepted, and write their rows to it."""
    old = json.loads(target.read_text()) if target.exists() else []
    known = {row["config_hash"]: row for row in old}
    work = [(labels, overrides, known) for labels, overrides in points]
    rows = []
    try:
        with ProcessPoolExecutor(jobs) as pool:
            for i, row in enumerate(pool.map(figures, work)):
                rows.append(row)
                if i % 20 == 0:
                    print(f"{i + 1}/{len(work)}", file=sys.stderr, flush=True)
    finally:  # what there is need not be run again
        target.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def pyplot() -> Any:
    """Matplotlib, set up to draw the same SVG every time."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams.update({"svg.hashsalt": "zexp", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    return plt


def save(figure: Any, path: Path, title: str) -> None:
    """Title a chart, write it and close it."""
    figure.suptitle(title, x=0.02, ha="left")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot().close(figure)
