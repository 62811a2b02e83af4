"""Hydra's composition, with its errors turned into one line each."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from zexp import plugins, schema
from zexp.errors import ZexpError, near

if TYPE_CHECKING:
    from omegaconf import DictConfig


@cache
def ready(strict: bool = True) -> plugins.Registry:
    """Load the plugins and tell Hydra what they bring; once in a process."""
    registry = plugins.load()
    if strict:
        registry.require_sound()
    schema.register(registry)
    return registry


SHORT = {"from": "workload.folder", "on_failure": "sweep.on_failure", "objective": "sweep.objective"}
"""Words of the command line that stand for configuration keys."""
LISTS = {"subject_to": "sweep.subject_to"}
"""The same, for lists: what stands between commas."""


def spelled_out(overrides: list[str]) -> list[str]:
    """The same with every short word (``from=DIR``) under its own key."""
    out = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if equals and key in SHORT:
            out.append(f"{SHORT[key]}={quoted(value)}")
        elif equals and key in LISTS:
            out.append(f"{LISTS[key]}=[{','.join(quoted(part.strip()) for part in value.split(','))}]")
        else:
            out.append(override)
    return out


def quoted(path: str) -> str:
    """A path as Hydra reads it, whatever it is made of."""
    # a backslash is one, except before a quote
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), path)
    return f"'{escaped}'"


def compose(overrides: list[str]) -> DictConfig:
    """Compose a configuration as ``zexp run`` would."""
    import hydra

    with errors(), hydra.initialize_config_dir(str(schema.folder()), version_base="1.3"):
        return hydra.compose("config", spelled_out(overrides))


@contextmanager
def errors() -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise for a wrong override into a ``ZexpError`` of one line."""
    from hydra.errors import HydraException, MissingConfigException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except MissingConfigException as error:
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        allowed = [o for o in error.options or [] if not o.startswith("_")]
        raise ZexpError(f"{group}={choice}: unknown {group}; {near(choice, allowed)}") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ZexpError(_one_line(error)) from error
    except ValueError as error:
        # the one mistake for which Hydra has no error of its own
        if not str(error).startswith("Config group override"):
            raise
        raise ZexpError(f"{_override_at(error)}a group needs the name of one of its choices") from error


def _override_at(error: Exception) -> str:
    """The override that Hydra looked at when it raised this, which it does not say."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    override = frames[-1].f_locals.get("override")
    return f"{override.input_line}: " if override is not None else ""


def _one_line(error: Exception) -> str:
    cause = error.__cause__
    text = str(error).strip().splitlines()[0]
    if cause is None:
        override = getattr(error, "override", "")
        message = " ".join(str(error).split())
        return message if not override or override in message else f"{override}: {message}"
    reason = str(cause).strip().splitlines()[0]
    parent = getattr(cause, "parent_node", None)
    key = getattr(cause, "key", None)
    hint = ""
    if parent is not None and key is not None and "not in" in reason:
        try:
            hint = "; " + near(str(key).split("/")[0], [str(k) for k in parent])
        except Exception:  # the node may be anything; the message does without
            hint = ""
    return f"{text.rstrip('.')}: {reason}{hint}"
