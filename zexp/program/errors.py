"""Errors of staging, which name the line of the author's code."""

from __future__ import annotations

import sys
from pathlib import Path

from zexp.errors import ZexpError

_HIDDEN = [str(Path(__file__).parent)]


def hide(file: str) -> None:
    """Count ``file`` as part of the builder: its own lines are nobody's code to look at."""
    _HIDDEN.append(file)


def caller() -> tuple[str, int]:
    """File and line of the innermost frame outside the builder: the author's own code."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(tuple(_HIDDEN)) or frame.f_code.co_filename.endswith("/contextlib.py")
    ):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class StagingError(ZexpError):
    """The builder was misused. ``file`` and ``line`` are those of the author's code, and stand in the message."""

    def __init__(self, message: str, where: tuple[str, int] | None = None) -> None:
        self.file, self.line = where or caller()
        super().__init__(f"{message} ({self.file}:{self.line})")
