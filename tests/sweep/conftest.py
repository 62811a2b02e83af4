from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hydra
import pytest

from zexp import schema
from zexp.compose import ready
from zexp.plugins import Registry
from zexp.sweep.folder import Folder, Manifest
from zexp.sweep.points import Point


@pytest.fixture(scope="session")
def registry() -> Registry:
    return ready()


@pytest.fixture(scope="module")
def composing(registry: Registry) -> Iterator[None]:
    """Hydra knows the configuration's folder, as it does while it sweeps."""
    with hydra.initialize_config_dir(str(schema.folder()), version_base="1.3"):
        yield


def make_manifest(points: int = 3, **changes: object) -> Manifest:
    made = tuple(Point((f"seed={i}",), f"seed={i}", "adhoc", f"id{i}") for i in range(points))
    given: dict[str, object] = {
        "sweep": "20260102-030405-abcdef",
        "arguments": ("machine=laptop", "seed=0,1,2"),
        "fixed": ("machine=laptop",),
        "swept": ("seed",),
        "code": "c0de",
        "files": {"zexp/a.py": "1234"},
        "tracked": True,
        "points": made,
    }
    return Manifest(**{**given, **changes})  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """That of a sweep of three points."""
    return Folder.create(tmp_path, make_manifest())
