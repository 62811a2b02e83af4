"""``python -m tests.bench``: run the benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main([str(Path(__file__).parent), "-m", "bench", *sys.argv[1:]]))
