"""Where runs are kept: a local MLflow store, written by a recorder, read back by run, name or ``last``.

Importing this package is cheap: MLflow, pandas and pyarrow are imported when a run is written, and not before.
Reading needs none of them.
"""

from zexp.tracking.reader import RunEntry, StoredRun, find_run, list_runs, load_run
from zexp.tracking.recorder import Recorder, RunInfo
from zexp.tracking.store import Store, TrackingError, run_url, store_folder

__all__ = [
    "Recorder",
    "RunEntry",
    "RunInfo",
    "Store",
    "StoredRun",
    "TrackingError",
    "find_run",
    "list_runs",
    "load_run",
    "run_url",
    "store_folder",
]
