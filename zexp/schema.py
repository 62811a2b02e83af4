"""The Hydra configuration: its schema, its folder, and the groups that plugins add."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from zexp.kernel import KernelConfig
from zexp.machine import MachineConfig
from zexp.plugins import Registry
from zexp.workload import WORKLOADS


@dataclass
class PolicyConfig:
    """The policies of a run."""

    accounting: Any = None
    flush: Any = None


@dataclass
class Tracking:
    """Where runs are logged."""

    store: str | None = None
    """A folder, or an MLflow server's http address; null: $ZEXP_STORE, else $XDG_DATA_HOME/zexp, else
    ~/.local/share/zexp."""
    enabled: bool = True
    """False: print results only."""


@dataclass
class Sweep:
    """How the points of a sweep are run; nothing of this is part of a point."""

    on_failure: str = "continue"
    """Or ``stop``: what is under way is finished, nothing more is begun."""
    rerun: bool = False
    """Also run points that the store already has, finished, of the very same configuration and code."""
    accept_changes: bool = False
    """Resume a sweep although code or plugins have changed since; its later runs say so."""
    workers: int | None = None
    """Processes (or cluster jobs) that share the points; null: as many as the launcher has places."""
    objective: str | None = None
    """For a sweeper that searches: the metric or configuration key that it is to minimise or maximise."""
    subject_to: list[str] = field(default_factory=list)
    """Bounds the search must keep, like ``staleness/error_pct<5``."""
    worker: str | None = None
    """Set for each worker by the sweep itself: the sweep's folder."""


@dataclass
class Published:
    """Figures that somebody measured, to be shown beside the simulated ones."""

    source: str = ""
    when: dict[str, Any] = field(default_factory=dict)
    """Configuration values (by dotted key) under which they can be compared."""
    by: str = "policy.accounting.name"
    """The configuration key whose value chooses the arm; several, with spaces between, make it ``value/value``."""
    self_pct: dict[str, dict[str, float]] = field(default_factory=dict)
    """Arm -> symbol -> self % of the workload's comm."""
    absent: dict[str, list[str]] = field(default_factory=dict)
    """Arm -> symbols that must not appear."""
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """Arm -> metric of a run -> value."""
    fitted: dict[str, list[str]] = field(default_factory=dict)
    """Arm -> symbols and metrics that decided a constant of the model."""
    time_ratio: dict[str, list[float]] = field(default_factory=dict)
    """``arm/arm`` -> lowest and highest ratio of run times."""


@dataclass
class Config:
    """Everything a run is made of."""

    name: str = "adhoc"
    """Name of the experiment in MLflow."""
    machine: MachineConfig = MISSING
    kernel: KernelConfig = field(default_factory=KernelConfig)
    workload: Any = None
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    engine: str = "sim"
    seed: int = 0
    seeds: int = 1
    """Replications, of seeds ``seed``, ``seed + 1``, ...: one run, whose metrics are means with intervals."""
    published: Published = field(default_factory=Published)
    tracking: Tracking = field(default_factory=Tracking)
    sweep: Sweep = field(default_factory=Sweep)
    notes: str = ""


def folder() -> Path:
    """Where the YAML files are: inside the installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent
    return here / "conf" if (here / "conf").is_dir() else here.parent / "conf"


def register(registry: Registry) -> None:
    """Make schema, workloads and the plugins' policies known to Hydra."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for name, workload in WORKLOADS.items():
        store.store(group="workload", name=name, node=workload)
    for group, policies in registry.policies.items():
        for name, policy in policies.items():
            store.store(group=f"policy/{group}", name=name, node=policy)
