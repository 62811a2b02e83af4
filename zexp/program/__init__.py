"""Staging: programs written in Python, run by an engine."""

from zexp.program.builder import Builder
from zexp.program.errors import StagingError
from zexp.program.memory import (
    MUTEX,
    SPINLOCK,
    SPINLOCK_IRQ,
    Array,
    LockKind,
    LockRef,
    Locks,
    PerCpu,
    PerNode,
    Ref,
    Series,
    WaitQueue,
)
from zexp.program.program import Program
from zexp.program.staging import Body
from zexp.program.values import IntLike, Local, Value

__all__ = [
    "MUTEX",
    "SPINLOCK",
    "SPINLOCK_IRQ",
    "Array",
    "Body",
    "Builder",
    "IntLike",
    "Local",
    "LockKind",
    "LockRef",
    "Locks",
    "PerCpu",
    "PerNode",
    "Program",
    "Ref",
    "Series",
    "StagingError",
    "Value",
    "WaitQueue",
]
