"""The points of a sweep: expanded, composed once each, and checked before anything runs."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING

from zexp import experiment
from zexp.compose import errors
from zexp.errors import ZexpError
from zexp.experiment import Experiment, Section
from zexp.schema import Config

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

    from zexp.plugins import Registry

PLAIN = (bool, int, float, str, type(None))
GROUPS = {"machine", "kernel", "workload"}
"""Keys without a dot that are groups to choose from, and sections of a configuration."""
TOP = {field.name for field in fields(Config)} - GROUPS
"""Keys without a dot that are values, not groups to choose from."""


@dataclass(frozen=True)
class Point:
    """One set of values of what is swept."""

    overrides: tuple[str, ...]
    """Of the swept keys only, e.g. ``workload.processes=8``."""
    name: str
    experiment: str
    identity: str
    """A hash of all that its run would show: two points with one identity are the same."""


class Composer:
    """Composes configurations that differ in a few overrides, most of them without Hydra's having to start over.

    Hydra takes some 60 ms for a composition, nearly all of it for the choices of groups. So it composes once for each
    set of choices, and plain values are then set in its result, with the same call by which Hydra sets them. A test
    holds the outcome against Hydra's.
    """

    def __init__(self, registry: Registry, code: str, fixed: Sequence[str]) -> None:
        """``fixed`` are the overrides that all have in common, ``code`` says which code will run them."""
        self._registry, self._code = registry, code
        self._fixed = list(fixed)
        self._fixed_keys = [o.key_or_group for o in parse(fixed)]
        self._base = lru_cache(maxsize=16)(self._compose)
        self._unchanging = lru_cache(maxsize=16)(self._sections)
        self._parsed = lru_cache(maxsize=4096)(lambda text: parse([text])[0])

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration with these overrides as well. It is good until the next call."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        chosen, values = self._split(overrides)
        # what was set for the last point is set again: all points of a sweep set the same keys
        config = self._base(chosen, _keys(values))
        try:
            for override in values:
                OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
        except OmegaConfBaseException:
            return self._compose(tuple(overrides), ())  # which says what is wrong as Hydra does
        return config

    def experiment(self, overrides: Sequence[str]) -> Experiment:
        """The experiment with these overrides; its mistakes name them."""
        with errors():
            config = self.compose(overrides)
            chosen, values = self._split(overrides)
            kept = self._unchanging(chosen, _keys(values))
            changed = experiment.sections(config, (key for key in map(str, config) if key not in kept))
            found = {**kept, **changed}
            return experiment.from_sections({key: found[key] for key in map(str, config)}, self._registry)

    def point(self, overrides: Sequence[str]) -> Point:
        """The point with these overrides."""
        exp = self.experiment(overrides)
        return Point(tuple(overrides), point_name(exp, overrides), exp.name, identity(exp, self._code))

    def _split(self, overrides: Sequence[str]) -> tuple[tuple[str, ...], list[Override]]:
        """The overrides that Hydra has to compose, and those whose plain values can be set in what it gives."""
        parsed = [self._parsed(text) for text in overrides]
        values = [o for o in parsed if self._is_value(o)]
        ordered = [o.key_or_group for o in parsed if not self._is_value(o) and not _is_choice(o)]
        if any(_overlap(o.key_or_group, key) for o in values for key in ordered):
            return tuple(overrides), []  # which of them comes last matters
        return tuple(text for text, o in zip(overrides, parsed, strict=True) if not self._is_value(o)), values

    def _sections(self, chosen: tuple[str, ...], keys: tuple[str, ...]) -> dict[str, Section]:
        """What is the same in all points with this choice that set these keys; nothing if a value may refer to them."""
        from omegaconf import OmegaConf

        config = self._base(chosen, keys)
        if "${" in str(OmegaConf.to_container(config, resolve=False)):
            return {}
        changing = {key.partition(".")[0] for key in keys}
        return experiment.sections(config, (key for key in map(str, config) if key not in changing))

    def _compose(self, chosen: tuple[str, ...], _keys: tuple[str, ...]) -> DictConfig:
        import hydra

        with errors():
            return hydra.compose("config", [*self._fixed, *chosen])

    def _is_value(self, override: Override) -> bool:
        """Whether it only sets a plain value, of a key that no fixed override has to do with."""
        key = override.key_or_group
        return (
            ("." in key or key in TOP)
            and "/" not in key
            and not override.is_add()
            and not override.is_force_add()
            and not override.is_delete()
            and override.package is None
            and isinstance(override.value(), PLAIN)
            and not any(_overlap(key, k) for k in self._fixed_keys)
        )


def _is_choice(override: Override) -> bool:
    """Whether Hydra applies it before all values, wherever it stands."""
    return not (override.is_add() or override.is_force_add() or override.is_delete()) and (
        "/" in override.key_or_group or (override.key_or_group in GROUPS and isinstance(override.value(), str))
    )


def _overlap(a: str, b: str) -> bool:
    """Whether a key is another, or a part of it."""
    return a == b or a.startswith(f"{b}.") or b.startswith(f"{a}.")


def _keys(values: Sequence[Override]) -> tuple[str, ...]:
    return tuple(o.key_or_group for o in values)


def identity(exp: Experiment, code: str) -> str:
    """A hash of everything a run shows: its configuration but for where it is kept, the machine, code and plugins."""
    config = {k: v for k, v in exp.config.items() if k != "tracking"}
    text = json.dumps([config, exp.machine.digest(), dict(exp.plugins), code], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def point_name(exp: Experiment, overrides: Sequence[str]) -> str:
    """What a run is called: in a sweep by what is swept, else by its experiment and policy."""
    parts = []
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        parts.append(value if "/" in key else f"{key.rpartition('.')[2]}={value}")
    return " ".join(parts) or f"{exp.name} {exp.policy.name}"


def parse(overrides: Sequence[str], loader: ConfigLoader | None = None) -> list[Override]:
    """Hydra's overrides; a mistake is a ``ZexpError``."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with errors():
        return list(OverridesParser.create(config_loader=loader).parse_overrides(list(overrides)))


def expand(
    overrides: Sequence[Override], together: Sequence[Sequence[str]] = ()
) -> tuple[list[str], list[tuple[str, ...]]]:
    """The fixed overrides, and the swept ones of every point, the last key varying fastest.

    ``together`` lists keys that do not multiply: each point takes the next value of all of them.
    """
    last = {o.get_key_element(): o for o in overrides}  # of a key given twice, the last counts
    fixed = [str(o.input_line) for o in last.values() if not o.is_sweep_override()]
    swept: dict[str, list[str]] = {}
    for key, override in last.items():
        if not override.is_sweep_override():
            continue
        if not override.is_discrete_sweep():
            raise ZexpError(
                f"{override.input_line}: only a search takes a range without steps; add hydra/sweeper=optuna, or list "
                "the values"
            )
        swept[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        if not swept[key]:
            raise ZexpError(f"{override.input_line}: this sweep has no points; give at least one value")
    return fixed, [
        tuple(part for axis in point for part in axis) for point in itertools.product(*_axes(swept, together))
    ]


def _axes(swept: Mapping[str, list[str]], together: Sequence[Sequence[str]]) -> list[list[tuple[str, ...]]]:
    """What varies, axis by axis: for each a list of what its steps override."""
    bound: dict[str, Sequence[str]] = {}
    for keys in together:
        lengths = {key: len(swept.get(key, ())) for key in keys}
        if 0 in lengths.values() or len(set(lengths.values())) != 1:
            counted = ", ".join(f"{key} has {n}" for key, n in lengths.items())
            raise ZexpError(f"hydra.sweeper.together: these keys need the same number of values each: {counted}")
        for key in keys:
            if key in bound:
                raise ZexpError(f"hydra.sweeper.together: {key} can vary with one list of keys only")
            bound[key] = keys
    axes: list[list[tuple[str, ...]]] = []
    done: set[str] = set()
    for key in swept:
        if key in done:
            continue
        group = bound.get(key, [key])
        done.update(group)
        axes.append(list(zip(*(swept[k] for k in group), strict=True)))
    return axes


def swept_keys(points: Sequence[Sequence[str]]) -> list[str]:
    """The configuration keys that the points give values to; a choice by its name."""
    keys: dict[str, None] = {}
    for overrides in points:
        for override in overrides:
            key = override.lstrip("+").partition("=")[0].partition("@")[0]
            group = "/" in key or key in GROUPS
            keys[f"{key.replace('/', '.')}.name" if group else key] = None
    return list(keys)
