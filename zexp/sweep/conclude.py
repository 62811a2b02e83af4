"""What is kept of a sweep as a whole, beside its runs: a summary run, and the views of MLflow's UI."""

from __future__ import annotations

import sys

from zexp.errors import ZexpError
from zexp.tracking import MlflowStore, Recorder, UnreachableError
from zexp.tracking.views import publish


def conclude(store: MlflowStore, sweep: str, experiment: str) -> None:
    """Write both; again if need be, as after a resume. What prevents it is said, and spoils nothing."""
    from zexp.compare import summarise

    try:
        summary = summarise(store, sweep)
        Recorder(store).summary(experiment, sweep, summary.markdown, summary.metrics, summary.files())
        publish(store, sweep)
    except UnreachableError as away:
        print(f"zexp: {away}: no summary yet; `zexp sync` makes it", file=sys.stderr)
    except ZexpError as error:
        print(f"zexp: no summary: {error}", file=sys.stderr)
