"""Which code made a result: a hash of every source file of zexp, its configuration and the plugins."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from zexp import schema
from zexp.errors import ZexpError
from zexp.plugins import Registry

SUFFIXES = (".py", ".yaml")


def files(registry: Registry) -> dict[str, str]:
    """A short hash of each file, by its path below the folder its distribution is in."""
    roots = {Path(__file__).parent.parent: "zexp", schema.folder(): "conf"}
    for policy in registry.origins:
        name, source = _outermost(policy.__module__)
        if source is not None:
            file = Path(source)
            package = file.name == "__init__.py"
            roots[file.parent if package else file] = name if package else f"{name}{file.suffix}"
    found = {
        (f"{name}/{path.relative_to(root)}" if path != root else name): _hash(path)
        for root, name in roots.items()
        for path in _sources(root)
    }
    return dict(sorted(found.items()))


def _outermost(module: str) -> tuple[str, str | None]:
    """The package that a module belongs to, as a path, and its file; namespaces have none and are passed over."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        source = getattr(sys.modules.get(".".join(parts[:end])), "__file__", None)
        if source is not None:
            return "/".join(parts[:end]), str(source)
    return module, None


def identity(registry: Registry) -> str:
    """One hash of all of it."""
    return hashlib.sha256(repr(files(registry)).encode()).hexdigest()[:16]


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What has changed, a file each."""
    words = {(True, True): "changed", (True, False): "removed", (False, True): "new"}
    return [
        f"{path} {words[path in before, path in now]}"
        for path in sorted({*before, *now})
        if before.get(path) != now.get(path)
    ]


def _sources(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for path in sorted(root.rglob("*")):
        if path.suffix in SUFFIXES and path.is_file():
            yield path


@cache
def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise ZexpError(f"{path}: cannot be read ({error.strerror})") from error
