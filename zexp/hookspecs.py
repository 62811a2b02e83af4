"""Hooks that plugins implement. A plugin is a distribution with an entry point in the group ``zexp``.

The entry point names a module (or object) whose functions marked with ``hookimpl`` are found by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from zexp.kernel import FlushStrategy, PoolAccounting

GROUP = "zexp"
hookspec = pluggy.HookspecMarker("zexp")
hookimpl = pluggy.HookimplMarker("zexp")


@hookspec
def zexp_accounting_policies() -> list[type[PoolAccounting]]:  # type: ignore[empty-body]
    """Pool-size accounting policies this plugin brings.

    Called once at start. Each class is a dataclass derived from ``zexp.kernel.PoolAccounting``; its ``name`` becomes
    the Hydra choice ``policy/accounting=NAME`` and its other fields parameters ``policy.accounting.FIELD``. A name that
    another plugin already has is an error that names both.
    """


@hookspec
def zexp_flush_strategies() -> list[type[FlushStrategy]]:  # type: ignore[empty-body]
    """Strategies for flushing cgroup statistics this plugin brings.

    As for accounting policies: dataclasses derived from ``zexp.kernel.FlushStrategy``; the Hydra choice is
    ``policy/flush=NAME``, parameters are ``policy.flush.FIELD``.
    """
