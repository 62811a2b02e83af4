"""``zexp list``: what can be composed, and where it came from."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from zexp import machine as machines
from zexp import schema
from zexp.cli.render import plain_table
from zexp.compose import ready
from zexp.plugins import Registry
from zexp.workload import WORKLOADS


def main(argv: list[str]) -> int:
    """Print the choices of every configuration group."""
    parser = argparse.ArgumentParser(
        prog="zexp list",
        description="Machines, kernels, workloads and policies that can be composed, and the plugin of each policy.",
    )
    parser.add_argument("what", nargs="?", choices=["machines", "kernels", "workloads", "policies", "experiments"])
    what = parser.parse_args(argv).what
    registry = ready(strict=False)
    console = Console()
    tables: dict[str, Callable[[], RenderableType]] = {
        "experiments": _experiments,
        "machines": _machines,
        "kernels": _kernels,
        "workloads": _workloads,
        "policies": lambda: Group(_policies(registry, "accounting"), "", _policies(registry, "flush")),
    }
    for name, make in tables.items():
        if what in (None, name):
            console.print(make())
            console.print()
    for broken in registry.broken:
        console.print(f"[red]{escape(str(broken))}[/red]")
    return 0


def _table(title: str, *columns: str) -> Table:
    table = plain_table(title)
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0)
    return table


def _yaml(group: str) -> dict[str, dict[str, Any]]:
    from omegaconf import OmegaConf

    found: dict[str, dict[str, Any]] = {}
    for path in sorted((schema.folder() / group).glob("[!_]*.yaml")):
        content = OmegaConf.to_container(OmegaConf.load(path))
        assert isinstance(content, dict)
        found[path.stem] = {str(k): v for k, v in content.items()}
    return found


def _experiments() -> Table:
    table = _table("experiments (experiment=NAME)", "name", "published figures it is held against")
    for name, content in _yaml("experiment").items():
        table.add_row(name, escape(str(content.get("published", {}).get("source", ""))))
    return table


def _machines() -> Table:
    table = _table("machines (machine=NAME)", "name", "CPUs", "cores", "L3s", "nodes", "GHz", "memory", "description")
    for name, content in _yaml("machine").items():
        m = machines.load({k: v for k, v in content.items() if k != "defaults"})
        memory = f"{m.memory_bytes / 2**30:.0f} GiB"
        table.add_row(
            name, str(m.cpus), str(m.cores), str(m.l3s), str(m.nodes), f"{m.ghz:.2f}", memory, escape(m.description)
        )
    return table


def _kernels() -> Table:
    table = _table("kernels (kernel=NAME)", "name", "zpools", "description")
    for name, content in _yaml("kernel").items():
        table.add_row(name, str(content.get("zpools", "")), escape(str(content.get("description", ""))))
    return table


def _workloads() -> Table:
    table = _table("workloads (workload=NAME)", "name", "what happens", "parameters (workload.PARAMETER)")
    for name, workload in WORKLOADS.items():
        table.add_row(name, escape((workload.__doc__ or "").splitlines()[0]), escape(_parameters(workload)))
    return table


def _policies(registry: Registry, group: str) -> Table:
    table = _table(f"{group} policies (policy/{group}=NAME)", "name", "plugin", "what it does", "parameters")
    for name, policy in sorted(registry.policies[group].items()):
        doc = (policy.__doc__ or "").splitlines()[0]
        table.add_row(name, str(registry.origins[policy]), escape(doc), escape(_parameters(policy)))
    return table


def _parameters(cls: type[Any]) -> str:
    lines = []
    for field in dataclasses.fields(cls):
        if field.name != "name":
            kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", field.type)
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            text = f"{field.name}: {kind} = {default}"
            lines.append(text + (f" ({field.metadata['help']})" if "help" in field.metadata else ""))
    return "\n".join(lines)
