"""First-party accounting policies: what Linux did, what it does, and what was considered in between."""

from zexp.hookspecs import hookimpl
from zexp.kernel import PoolAccounting
from zexp_accounting.eager import Eager
from zexp_accounting.lazy import Lazy
from zexp_accounting.shared_atomic import SharedAtomic


@hookimpl
def zexp_accounting_policies() -> list[type[PoolAccounting]]:
    """The three designs."""
    return [Eager, Lazy, SharedAtomic]
