"""Comparing runs: metrics with verdicts, profiles, charts, tables by two parameters, and the page of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zexp.compare.arms import Arms, arrange
from zexp.compare.comparison import Pair, compare
from zexp.compare.runset import Run, RunSet, load, of_sweeps
from zexp.tracking import MlflowStore

__all__ = ["Arms", "Pair", "Run", "RunSet", "Summary", "arrange", "compare", "load", "of_sweeps", "summarise"]


@dataclass(frozen=True)
class Summary:
    """What a sweep found, to be kept with it."""

    markdown: str
    html: str
    """One file that loads nothing."""
    charts: Mapping[str, bytes]
    """PNG by file name; the first is the one that says most."""
    metrics: Mapping[str, float]
    """How many points there are, and how many of them finished and failed."""

    def files(self) -> dict[str, bytes | str]:
        """Artifacts by path. MLflow's page that compares runs shows only what is at the root, so the main chart is."""
        files: dict[str, bytes | str] = {"summary.md": self.markdown, "report.html": self.html}
        if self.charts:
            files["chart.png"] = next(iter(self.charts.values()))
        return {**files, **{f"charts/{name}": content for name, content in self.charts.items()}}


def summarise(store: MlflowStore, sweep_id: str) -> Summary:
    """The summary of a sweep, whether or not all its points finished. Raises ``ZexpError`` if its runs are damaged."""
    from zexp.compare import document, pages

    runs = of_sweeps(store, [sweep_id])
    page = pages.report(runs)
    finished, unfinished = len(runs.finished), len(runs.unfinished)
    return Summary(
        markdown=document.markdown(page),
        html=document.html(page),
        charts={f"{figure.name}.png": figure.png for figure in page.figures()},
        metrics={
            "points": float(finished + unfinished),
            "finished": float(finished),
            "failed": float(sum(run.status != "RUNNING" for run in runs.unfinished)),
        },
    )
