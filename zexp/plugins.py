"""Finding plugins, checking them, and knowing afterwards who brought what."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING

import pluggy

from zexp import hookspecs
from zexp.errors import PluginError, near

if TYPE_CHECKING:
    from zexp.kernel import Policy


@dataclass(frozen=True)
class Origin:
    """The distribution something came from."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True)
class Broken:
    """A plugin that could not be loaded."""

    origin: Origin
    entry_point: str
    reason: str

    def __str__(self) -> str:
        return f"plugin {self.entry_point!r} of {self.origin} cannot be loaded: {self.reason}"


@dataclass
class Registry:
    """All that the installed plugins bring."""

    policies: dict[str, dict[str, type[Policy]]] = field(default_factory=lambda: {"accounting": {}, "flush": {}})
    """By configuration group and name."""
    origins: dict[type[Policy], Origin] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)

    def require_sound(self) -> None:
        """Raise ``PluginError`` if a plugin could not be loaded."""
        if self.broken:
            raise PluginError("; ".join(map(str, self.broken)))

    def find(self, group: str, name: str) -> type[Policy]:
        """The policy of that name; raises ``PluginError`` with near matches."""
        if name not in self.policies[group]:
            raise PluginError(f"policy/{group}={name}: unknown policy; {near(name, self.policies[group])}")
        return self.policies[group][name]


def load() -> Registry:
    """Load every plugin installed in this environment. One that fails is kept aside in ``broken``; two that claim one
    name raise ``PluginError``.
    """
    registry = Registry()
    points = sorted(metadata.entry_points(group=hookspecs.GROUP), key=lambda p: (p.dist.name if p.dist else "", p.name))
    for point in points:
        origin = Origin(point.dist.name, point.dist.version) if point.dist else Origin("unknown", "?")
        try:
            brought = _brought(point)
        except (Exception, SystemExit) as error:  # a plugin may fail in any way while it is imported
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            registry.broken.append(Broken(origin, point.name, reason))
            continue
        for group, policy in brought:
            name = _name(policy)
            other = registry.policies[group].get(name)
            if other is not None:
                raise PluginError(
                    f"two plugins bring a policy/{group}={name}: {registry.origins[other]} and {origin}; uninstall one"
                )
            registry.policies[group][name] = policy
            registry.origins[policy] = origin
    return registry


def _brought(point: metadata.EntryPoint) -> list[tuple[str, type[Policy]]]:
    """The policies of one plugin, checked, with their groups."""
    manager = pluggy.PluginManager("zexp")
    manager.add_hookspecs(hookspecs)
    manager.register(point.load(), name=point.name)
    manager.check_pending()
    answers = {
        "accounting": manager.hook.zexp_accounting_policies(),
        "flush": manager.hook.zexp_flush_strategies(),
    }
    brought = [(group, policy) for group, lists in answers.items() for policies in lists for policy in policies]
    for group, policy in brought:
        _check(group, policy)
    return brought


def _name(policy: type[Policy]) -> str:
    return str(next(f.default for f in dataclasses.fields(policy) if f.name == "name"))


def _check(group: str, policy: object) -> None:
    from zexp.kernel import KINDS

    kind = KINDS[group]
    if not (isinstance(policy, type) and issubclass(policy, kind) and dataclasses.is_dataclass(policy)):
        raise TypeError(f"{policy!r} is not a dataclass derived from zexp.kernel.{kind.__name__}")
    if "__dataclass_params__" not in vars(policy):
        raise TypeError(f"{policy.__name__} is not decorated with @dataclass")
    if not _name(policy).isidentifier():
        raise TypeError(
            f'{policy.__name__} needs a field `name: str = "..."` that is an identifier, not {_name(policy)!r}'
        )
    missing = sorted(getattr(policy, "__abstractmethods__", ()))
    if missing:
        raise TypeError(f"{policy.__name__} lacks {', '.join(missing)}")
    for method, function in inspect.getmembers(kind, inspect.isfunction):
        if method.startswith("_"):
            continue
        wanted = inspect.signature(function).parameters
        try:  # else it would fail far away from the plugin's code, in the kernel model that calls it
            inspect.signature(getattr(policy, method)).bind(*wanted)
        except TypeError as error:
            raise TypeError(f"{policy.__name__}.{method} must take ({', '.join(wanted)}): {error}") from error
    _check_fields(policy)


def _check_fields(policy: type) -> None:
    """Every field must be something the command line can set."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.structured(policy)
    except OmegaConfBaseException as error:
        raise TypeError(f"{policy.__name__}: a field that Hydra cannot set: {str(error).splitlines()[0]}") from error
