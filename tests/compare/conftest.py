from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from zexp.tracking import Store


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store: making one takes seconds, copying it does not."""
    return Store.open(tmp_path_factory.mktemp("template") / "store").folder


@pytest.fixture
def store(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    shutil.copytree(template, tmp_path / "store")
    monkeypatch.setenv("ZEXP_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return Store.open(tmp_path / "store")
