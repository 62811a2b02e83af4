"""Where runs are kept: a local MLflow store or a server, written by a recorder, read back by run, name or ``last``.

Importing this package is cheap: MLflow, pandas and pyarrow are imported when a run is written, and not before.
Reading a local store needs none of them.
"""

from zexp.tracking.base import MlflowStore, TrackingError, UnreachableError
from zexp.tracking.places import open_store
from zexp.tracking.reader import RunEntry, StoredRun, find_run, list_runs, load_run
from zexp.tracking.recorder import Recorder, RunInfo
from zexp.tracking.spool import Spool
from zexp.tracking.store import Store, run_path, store_folder

__all__ = [
    "MlflowStore",
    "Recorder",
    "RunEntry",
    "RunInfo",
    "Spool",
    "Store",
    "StoredRun",
    "TrackingError",
    "UnreachableError",
    "find_run",
    "list_runs",
    "load_run",
    "open_store",
    "run_path",
    "store_folder",
]
