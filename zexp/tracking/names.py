"""What MLflow accepts as names and values, and how to get there without losing or merging anything."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

MAX_NAME = 250
MAX_PARAM = 6000
MAX_TAG = 8000

KeyPath = tuple[str | int, ...]
Leaf = str | int | float | bool | None | object

_ILLEGAL = re.compile(r"[^\w.\- :]")


def flatten(config: Mapping[str, object]) -> list[tuple[KeyPath, Leaf]]:
    """Paths and values of all leaves, in order. Mapping keys are strings in a path, list indices integers.

    An empty mapping or list is a leaf.
    """
    return list(_leaves(config, ()))


def _leaves(value: object, path: KeyPath) -> Iterable[tuple[KeyPath, Leaf]]:
    items: Iterable[tuple[str | int, object]]
    if isinstance(value, Mapping):
        items = ((str(key), child) for key, child in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        items = enumerate(value)
    else:
        yield path, value
        return
    if value:
        for key, child in items:
            yield from _leaves(child, (*path, key))
    elif path:
        yield path, {} if isinstance(value, Mapping) else []


def plain(value: Leaf) -> str:
    """A leaf as a parameter value: numbers as plain numbers, None as ``null``, as YAML would have it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return encodable(str(value))


def encodable(text: str) -> str:
    """``text`` with what UTF-8 cannot encode (lone surrogates, as of an undecodable file name) written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shorten(text: str, limit: int, where: str | None) -> str:
    """``text`` if it has at most ``limit`` characters, else its beginning and a remark saying where the whole is."""
    if len(text) <= limit:
        return text
    remark = f"... ({len(text)} characters{f', whole in {where}' if where else ''})"
    return text[: limit - len(remark)] + remark


@lru_cache(maxsize=4096)  # all runs of a sweep have the same
def legal(name: str) -> str:
    """The nearest name MLflow accepts: word characters and ``_-. :`` in parts joined by single slashes."""
    parts = (_ILLEGAL.sub("_", part) for part in name.split("/"))
    # MLflow also thinks of names as paths: none may be, or begin with, one that leads elsewhere.
    cleaned = "/".join("_" * len(part) if part in (".", "..") else part for part in parts if part) or "_"
    if cleaned.startswith(".."):
        cleaned = f"__{cleaned[2:]}"
    return cleaned if len(cleaned) <= MAX_NAME else _marked(cleaned, name)


def legal_names(names: Iterable[str]) -> list[str]:
    """A distinct legal name for each of ``names``, in order.

    Those already legal keep their name. Of names that would become equal, all but the first get a short digest of the
    original appended, so that the outcome depends on the names alone.
    """
    names = list(names)
    taken = {name for name in names if legal(name) == name}
    unused = set(taken)
    out = []
    for name in names:
        if name in unused:
            unused.discard(name)
            out.append(name)
            continue
        candidate, salt = legal(name), name
        while candidate in taken:
            candidate = _marked(legal(name), salt)
            salt += "'"
        taken.add(candidate)
        out.append(candidate)
    return out


def _marked(cleaned: str, original: str) -> str:
    digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{cleaned[: MAX_NAME - 9].rstrip('/')}-{digest}"


def params(config: Mapping[str, object]) -> dict[str, str]:
    """The leaves of ``config`` as MLflow parameters, under dotted names with lists indexed like ``nodes.0``."""
    leaves = flatten(config)
    keys = legal_names(".".join(map(str, path)) for path, _ in leaves)
    values = (shorten(plain(value), MAX_PARAM, "config.yaml") for _, value in leaves)
    return dict(zip(keys, values, strict=True))


def metrics(values: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
    """``values`` as MLflow metrics, and what was left out as ``name=value``.

    MLflow would store infinity as 1.8e308 and draw it so; NaN breaks its charts. Both are left out.
    """
    kept, skipped = {}, []
    for key, (name, value) in zip(legal_names(values), values.items(), strict=True):
        number = _as_float(value)
        if math.isfinite(number):
            kept[key] = number
        else:
            skipped.append(f"{name}={number}")
    return kept, skipped


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an int beyond the range of a double
        return math.inf if value > 0 else -math.inf
