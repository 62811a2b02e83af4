"""First-party flush strategies: what Linux does, and what people argued about."""

from zexp.hookspecs import hookimpl
from zexp.kernel import FlushStrategy
from zexp_flush.strategies import MinInterval, Never, RateLimited, SkipIfOngoing, Sync, WaitIfOngoing


@hookimpl
def zexp_flush_strategies() -> list[type[FlushStrategy]]:
    """Six strategies."""
    return [Sync, RateLimited, SkipIfOngoing, WaitIfOngoing, MinInterval, Never]
