"""The one family of errors a user can cause."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ZexpError(Exception):
    """A mistake in the input. The command line prints its message on one line and exits with status 2."""


class ConfigError(ZexpError):
    """A configuration key holds something it cannot hold.

    The message names the key, the value and what is allowed.
    """

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(f"{key}={value}: {allowed}")
        self.key, self.value, self.allowed = key, value, allowed


class PluginError(ZexpError):
    """A plugin could not be loaded, or clashes with another."""


class SimulationError(ZexpError):
    """The staged programs did something impossible while they ran: a deadlock, an index out of range."""


class Interrupted(KeyboardInterrupt):
    """The user pressed Ctrl-C while the simulation ran."""


def near(word: str, known: Iterable[str]) -> str:
    """Say what is allowed, nearest matches first: the tail of an "unknown X" message."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{hint}allowed: {', '.join(known) or 'nothing is installed'}"
