"""How the virtual machine is compiled, and where the result is kept.

Numba names a cached function by its own file alone, but the virtual machine has others compiled into it. So the cache
lies in a folder named after all that goes in: a change of any of these files compiles anew.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

import numba

from zexp.program import isa


@cache
def cache_folder() -> str:
    """``$NUMBA_CACHE_DIR``, else ``$XDG_CACHE_HOME/zexp``, else ``~/.cache/zexp``, and below it the sources' digest."""
    sources = [*sorted(Path(__file__).parent.glob("*.py")), Path(isa.__file__)]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zexp"
    return str(Path(numba.config.CACHE_DIR or default) / f"vm-{digest}")


def _compiled(**options):
    def decorate(function):
        outer = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = cache_folder()
        try:
            return numba.njit(cache=True, error_model="numpy", **options)(function)
        finally:
            numba.config.CACHE_DIR = outer

    return decorate


jit = _compiled()
inlined = _compiled(forceinline=True)
"""For what every lock cycle goes through more than once: a call would cost half as much again."""
