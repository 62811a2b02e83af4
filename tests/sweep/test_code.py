"""Which code made a result, and what has changed since."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from zexp.errors import ZexpError
from zexp.plugins import Registry
from zexp.sweep import code


def test_differences_are_told_file_by_file() -> None:
    before = {"a": "1", "b": "2", "c": "3"}
    assert code.difference(before, {"c": "3", "b": "9", "d": "4"}) == ["a removed", "b changed", "d new"]
    assert code.difference(before, dict(reversed(before.items()))) == []
    assert code.difference({}, {}) == []


def test_the_files_are_sources_and_configuration(registry: Registry) -> None:
    files = code.files(registry)
    for wanted in (
        "zexp/sweep/code.py",
        "zexp/engine/sim/vm.py",
        "conf/config.yaml",
        "conf/machine/laptop.yaml",
        "zexp_accounting/eager.py",
        "zexp_flush/strategies.py",
    ):
        assert len(files[wanted]) == 12, wanted
    assert {Path(path).suffix for path in files} == {".py", ".yaml"}
    assert not any(path.startswith("/") for path in files), "a path of one machine says nothing on another"
    assert list(files) == sorted(files)


@pytest.fixture
def plugin(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Registry]]:
    """The registry with a policy of this package, which has a second module that the policy uses."""
    package = tmp_path / "acme_tested"
    package.mkdir()
    (package / "__init__.py").write_text("from acme_tested.policy import Policy\n")
    (package / "policy.py").write_text("class Policy: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def written(helper: str) -> Registry:
        (package / "helper.py").write_text(helper)
        policy = importlib.import_module("acme_tested").Policy
        code._hash.cache_clear()  # as in a new process
        return replace(registry, origins={**registry.origins, policy: next(iter(registry.origins.values()))})

    yield written
    for name in [name for name in sys.modules if name.startswith("acme_tested")]:
        del sys.modules[name]
    code._hash.cache_clear()


def test_a_change_of_any_source_of_a_plugin_changes_the_identity(
    registry: Registry, plugin: Callable[[str], Registry]
) -> None:
    without = code.identity(registry)
    first = plugin("X = 1\n")
    files, identity = code.files(first), code.identity(first)
    assert code.difference(code.files(registry), files) == [
        f"acme_tested/{name}.py new" for name in ("__init__", "helper", "policy")
    ]
    changed = plugin("X = 2\n")
    assert code.difference(files, code.files(changed)) == ["acme_tested/helper.py changed"]
    assert len({without, identity, code.identity(changed)}) == 3
    assert code.identity(plugin("X = 1\n")) == identity


def test_a_plugin_of_one_file_does_not_drag_in_its_folder_and_may_lie_in_a_namespace(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_space").mkdir()
    for name in ("acme_single", "beside", "acme_space/inner", "acme_space/beside"):
        (tmp_path / f"{name}.py").write_text("class Policy: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    origins = dict(registry.origins)
    for name in ("acme_single", "acme_space.inner"):
        origins[importlib.import_module(name).Policy] = next(iter(registry.origins.values()))
    try:
        new = code.difference(code.files(registry), code.files(replace(registry, origins=origins)))
    finally:
        for name in ("acme_single", "acme_space.inner", "acme_space"):
            del sys.modules[name]
    assert new == ["acme_single.py new", "acme_space/inner.py new"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ZexpError, match=r"gone\.py: cannot be read \(No such file"):
        code._hash(tmp_path / "gone.py")
