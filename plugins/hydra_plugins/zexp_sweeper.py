"""Where Hydra looks for sweepers: zexp's own, which hands every point to a launcher composed and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

# A plain mapping, as Hydra runs this file without its being a module of Python's, in which a dataclass cannot be made.
CONFIG = {
    "_target_": "hydra_plugins.zexp_sweeper.ZexpSweeper",
    "params": {},  # overrides that every sweep begins with, as of Hydra's own sweeper
    "together": [],  # lists of keys that do not multiply: each point takes the next value of all of them
}
ConfigStore.instance().store(group="hydra/sweeper", name="zexp", node=CONFIG, provider="zexp")


class ZexpSweeper(Sweeper):
    """See ``zexp.sweep``; imported only when it sweeps, as Hydra imports this module for every application."""

    def __init__(self, params: DictConfig, together: Sequence[Sequence[str]]) -> None:
        self._params, self._together = params, together

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what a launcher needs."""
        self._context, self._task, self._config = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> Any:
        """Run the sweep."""
        from zexp.cli.run import sweep

        own = [f"{key!s}={value}" for key, value in self._params.items()]
        together = OmegaConf.to_container(OmegaConf.create(list(self._together)))
        return sweep(self._context, self._task, self._config, [*own, *arguments], together)
