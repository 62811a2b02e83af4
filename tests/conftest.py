"""What all tests need."""

from __future__ import annotations

import pytest

from zexp.engine.sim.engine import compile_vm


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """The virtual machine is in its cache, so that no test's command has to announce that it compiles."""
    compile_vm(lambda message: None)
