"""The simulated machine."""

from zexp.engine.sim.engine import Progress, run

__all__ = ["Progress", "run"]
