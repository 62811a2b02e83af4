"""One run as a typed value, and its way from configuration to result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zexp import machine as machines
from zexp.errors import ConfigError, PluginError, ZexpError, near
from zexp.kernel import KINDS, KernelBuilder, KernelConfig, Policies, Policy
from zexp.machine import Machine
from zexp.program import Program
from zexp.result import RunResult, combine
from zexp.schema import Config, Published, Sweep, Tracking
from zexp.workload import WORKLOADS, Load, Workload

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from zexp.engine.sim.engine import Notify, Observer
    from zexp.plugins import Registry

ENGINES = ("sim",)
PS_PER_NS = 1000


@dataclass(frozen=True)
class Experiment:
    """A machine, a kernel, a workload and policies: everything that decides a result."""

    name: str
    machine: Machine
    kernel: KernelConfig
    workload: Workload
    policies: Policies
    seed: int
    seeds: int
    """Replications: of ``seed`` and those that follow."""
    published: Published
    tracking: Tracking
    sweep: Sweep
    notes: str
    config: Mapping[str, Any]
    """The resolved configuration it was made of, without how it is swept."""
    plugins: Mapping[str, str]
    """Distribution and version of the plugins used."""
    origins: tuple[str, ...]
    """The plugin of each policy."""

    @property
    def policy(self) -> Policy:
        """The policy this is about: that of the kind that governs the workload."""
        chosen: Policy = getattr(self.policies, self.workload.governed_by)
        return chosen

    def digest(self) -> str:
        """A hash of all that decides the result: two runs with one digest are the same run."""
        deciding = {k: v for k, v in self.config.items() if k in ("kernel", "workload", "policy", "engine", "seed")}
        if self.seeds > 1:
            deciding["seeds"] = self.seeds
        text = json.dumps([deciding, self.machine.digest(), dict(self.plugins)], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Section:
    """A top-level key of a configuration, in both forms that are needed of it."""

    plain: Any
    typed: Any


def sections(cfg: DictConfig, keys: Iterable[str]) -> dict[str, Section]:
    """Some top-level keys, resolved. It takes time in proportion to what is below them."""
    from omegaconf import OmegaConf

    found = {}
    for key in keys:
        value = cfg[key]
        inside = OmegaConf.is_config(value)
        plain = OmegaConf.to_container(value, resolve=True) if inside else value
        found[key] = Section(plain, OmegaConf.to_object(value) if inside else value)
    return found


def from_config(cfg: DictConfig, registry: Registry) -> Experiment:
    """Check a composed configuration and build what it names; raises ``ConfigError`` and its kin."""
    return from_sections(sections(cfg, map(str, cfg)), registry)


def from_sections(found: Mapping[str, Section], registry: Registry) -> Experiment:
    """The same, from all sections of one."""
    known = {field.name for field in dataclasses.fields(Config)}
    typed = Config(**{key: section.typed for key, section in found.items() if key in known})
    _check_keys(typed, {key: section.plain for key, section in found.items()})
    if typed.engine not in ENGINES:
        raise ConfigError("engine", typed.engine, f"unknown engine; {near(typed.engine, ENGINES)}")
    if typed.seeds < 1:
        raise ConfigError("seeds", typed.seeds, "a whole number from 1 up")
    kernel = typed.kernel
    kernel.validate()
    if not isinstance(typed.workload, Workload):
        raise ConfigError("workload", typed.workload, f"choose one; {near('', WORKLOADS)}")
    _check_name("workload.name", typed.workload, "workload", WORKLOADS)
    policies = Policies(**{group: _policy(group, getattr(typed.policy, group), registry) for group in KINDS})
    origins = [registry.origins[type(policy)] for policy in policies]
    return Experiment(
        name=typed.name,
        machine=machines.load(typed.machine),
        kernel=kernel,
        workload=typed.workload,
        policies=policies,
        seed=typed.seed,
        seeds=typed.seeds,
        published=typed.published,
        tracking=typed.tracking,
        sweep=typed.sweep,
        notes=typed.notes,
        config={key: section.plain for key, section in found.items() if key != "sweep"},
        plugins={origin.distribution: origin.version for origin in origins},
        origins=tuple(map(str, origins)),
    )


def _policy(group: str, policy: Any, registry: Registry) -> Any:
    """Check the policy chosen in a group."""
    known = registry.policies[group]
    if not isinstance(policy, KINDS[group]):
        raise ConfigError(f"policy/{group}", policy, f"choose one; {near('', known)}")
    _check_name(f"policy.{group}.name", policy, f"policy/{group}", known)
    origin = registry.origins[type(policy)]
    try:
        policy.validate()
    except ValueError as error:
        raise ConfigError(f"policy.{group} ({policy.name} of {origin})", policy, str(error)) from error
    except Exception as error:
        raise _blame(error, policy, str(origin), "it checks its parameters") from error
    return policy


def _check_keys(typed: object, config: Mapping[Any, Any], prefix: str = "") -> None:
    """``+key=value`` gets past Hydra's schema; a key that nothing reads is a mistake all the same."""
    known = {f.name for f in dataclasses.fields(typed)}  # type: ignore[arg-type]
    for key, value in config.items():
        if key not in known:
            raise ConfigError(f"{prefix}{key}", value, f"unknown key; {near(str(key), known)}")
        inner = getattr(typed, key)
        if dataclasses.is_dataclass(inner) and isinstance(value, Mapping):
            _check_keys(inner, value, f"{prefix}{key}.")


def _check_name(key: str, chosen: Any, group: str, classes: Mapping[str, type]) -> None:
    """The name of a choice is a field of it, but setting it chooses nothing."""
    if classes.get(chosen.name) is not type(chosen):
        raise ConfigError(key, chosen.name, f"cannot be set; choose with {group}=NAME, {near(chosen.name, classes)}")


@dataclass(frozen=True)
class Staged:
    """A program ready to run, and what its metrics are made of."""

    program: Program
    load: Load
    accounting_stacks: frozenset[tuple[str, ...]]


def stage(experiment: Experiment) -> Staged:
    """Stage the experiment's program. An error in a policy's code names the plugin and the line."""
    k = KernelBuilder(experiment.machine, experiment.kernel)
    try:
        load = experiment.workload.stage(k, experiment.policies)
        program = k.finish()
    except Exception as error:
        for policy, origin in zip(experiment.policies, experiment.origins, strict=True):
            blamed = _blame(error, policy, origin, "it is staged")
            if blamed is not error:
                raise blamed from error
        raise
    return Staged(program, load, frozenset(k.accounting_stacks))


def _blame(error: Exception, policy: Policy, plugin: str, when: str) -> Exception:
    """An error raised while the policy's own code ran becomes one that names its plugin, file and line."""
    import sys

    source = getattr(sys.modules.get(type(policy).__module__), "__file__", None)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == source]
    if not frames:
        return error
    group = next(group for group, kind in KINDS.items() if isinstance(policy, kind))
    what = " ".join((str(error) if isinstance(error, ZexpError) else f"{type(error).__name__}: {error}").split())
    return PluginError(
        f"policy/{group}={policy.name} of plugin {plugin} fails while {when}, "
        f"{frames[-1].filename}:{frames[-1].lineno}: {what}"
    )


def run(
    experiment: Experiment, staged: Staged, *, observer: Observer | None = None, notify: Notify = lambda message: None
) -> RunResult:
    """Run a staged experiment, once for each of its seeds, and add the metrics that follow from its result."""
    seeds = range(experiment.seed, experiment.seed + experiment.seeds)
    return combine({seed: _run(experiment, staged, seed, observer, notify) for seed in seeds})


def _run(experiment: Experiment, staged: Staged, seed: int, observer: Observer | None, notify: Notify) -> RunResult:
    from zexp.engine.sim import run as simulate

    result = simulate(
        staged.program, experiment.machine, seed=seed, watch=staged.load.watch, observer=observer, notify=notify
    )
    seen = {name: histogram for name, histogram in result.histograms.items() if histogram.count}
    result = dataclasses.replace(result, pages=staged.load.pages, histograms=seen)
    metrics = {**_metrics(result, staged), **result.metrics, **staged.load.derive(result)}
    return dataclasses.replace(result, metrics=metrics)


def _metrics(result: RunResult, staged: Staged) -> dict[str, float]:
    load, seconds = staged.load, result.sim_ns / 1e9
    cpu_ps = result.profile.total_ps(load.comm)
    accounting_ps = sum(
        s.self_ps
        for s in result.profile.stacks
        if s.comm == load.comm and any(s.stack[: len(p)] == p for p in staged.accounting_stacks)
    )
    metrics = {
        "throughput/pages_per_s": load.pages / seconds,
        "time/total_ms": result.sim_ns / 1e6,
        "time/cpu_ns_per_page": cpu_ps / PS_PER_NS / load.pages,
        "accounting/self_pct": 100 * accounting_ps / cpu_ps,
        "accounting/ns_per_page": accounting_ps / PS_PER_NS / load.pages,
        "line/transfers_per_page": sum(v.transfers for v in result.lines) / load.pages,
        "lock/wait_ns_per_page": sum(v.wait_ns.total for v in result.locks) / load.pages,
    }
    for lock in result.locks:
        if lock.contended:
            metrics[f"lock/{lock.name}/wait_ns_per_page"] = lock.wait_ns.total / load.pages
            metrics[f"lock/{lock.name}/contended_pct"] = 100 * lock.contended / lock.acquisitions
            metrics[f"lock/{lock.name}/contended_per_s"] = lock.contended / seconds
            metrics[f"lock/{lock.name}/wait_s_per_s"] = lock.wait_ns.total / 1e9 / seconds
            metrics[f"lock/{lock.name}/acquired_per_s"] = lock.acquisitions / seconds
    for line in result.lines:
        metrics[f"line/{line.name}/transfers_per_page"] = line.transfers / load.pages
    for name, histogram in result.histograms.items():
        metrics[f"mean/{name}"] = histogram.mean
    return metrics
