"""What every engine returns, and the tables made of it."""

from zexp.result.histogram import Log2Histogram
from zexp.result.profile import FunctionRow, Profile, StackTime
from zexp.result.replicate import combine
from zexp.result.run_result import LineStats, LockStats, Replication, RunResult, TimeSeries

__all__ = [
    "FunctionRow",
    "LineStats",
    "LockStats",
    "Log2Histogram",
    "Profile",
    "Replication",
    "RunResult",
    "StackTime",
    "TimeSeries",
    "combine",
]
