"""What a folder of this machine and an MLflow server have in common as places where runs are kept."""
# mypy: allow-untyped-calls

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from zexp.errors import ZexpError
from zexp.tracking.quiet import prepare_mlflow

if TYPE_CHECKING:
    from mlflow import MlflowClient


class TrackingError(ZexpError):
    """The store cannot be used, or does not hold what was asked for."""


class UnreachableError(TrackingError):
    """The store may be fine, but does not answer now. What was to be written waits in the spool."""


class MlflowStore(ABC):
    """A place that MLflow's client can write to."""

    def __init__(self) -> None:
        self._experiments: dict[str, str] = {}

    @property
    @abstractmethod
    def uri(self) -> str:
        """MLflow's tracking URI, absolute."""

    @property
    @abstractmethod
    def home(self) -> Path:
        """The folder of this machine for what is not in MLflow: sweeps, and runs that could not be delivered yet."""

    @abstractmethod
    def url(self, path: str) -> str:
        """The address of a page of the UI."""

    ui_hint = ""
    """What has to be done before the UI can be opened."""

    def check(self, experiment: str) -> None:
        """Raise :class:`TrackingError` if runs of this experiment cannot go here; not if nobody answers just now."""
        with suppress(UnreachableError):
            self.experiment_id(experiment)

    @abstractmethod
    def errors(self) -> AbstractContextManager[None]:
        """Turn what MLflow raises into a :class:`TrackingError` of one line."""

    @abstractmethod
    def with_tag(self, key: str, value: str) -> dict[str, str]:
        """Id and status of every run that has this tag."""

    @cached_property
    def client(self) -> MlflowClient:
        """MLflow's client of this store, whatever the environment says. Imports MLflow."""
        prepare_mlflow()
        from mlflow import MlflowClient

        with self.errors():
            return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    def experiment_id(self, name: str) -> str:
        """The id of the experiment called ``name``, created on first use."""
        if name not in self._experiments:
            if not name.strip() or len(name) > 256 or not name.isprintable():
                raise TrackingError(f"experiment name {name!r}: must be 1 to 256 printable characters")
            self._experiments[name] = self._lookup_experiment(name) or self._create_experiment(name)
        return self._experiments[name]

    def _lookup_experiment(self, name: str) -> str | None:
        with self.errors():
            found = self.client.get_experiment_by_name(name)
        if found is None:
            return None
        if found.lifecycle_stage != "active":
            raise TrackingError(
                f"experiment {name!r} of {self} was deleted; use another name, or restore it: "
                f"MLFLOW_TRACKING_URI={self.uri} mlflow experiments restore -x {found.experiment_id}"
            )
        return str(found.experiment_id)

    def _create_experiment(self, name: str) -> str:
        with self.lock():
            if existing := self._lookup_experiment(name):
                return existing
            try:
                with self.errors():
                    return str(self.client.create_experiment(name, artifact_location=self.artifact_location(name)))
            except TrackingError:
                if existing := self._lookup_experiment(name):  # where nothing can be locked, another was faster
                    return existing
                raise

    def artifact_location(self, experiment: str) -> str | None:
        """Where the artifacts of an experiment go; None leaves it to the server."""
        return None

    def put_files(self, run_id: str, folder: Path) -> None:
        """Copy all files of a folder into the artifacts of a run, over those that are there."""
        self.client.log_artifacts(run_id, str(folder))

    def lock(self) -> AbstractContextManager[None]:
        """Exclude every other process from changing the shape of this store, where that can be done."""
        return nullcontext()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.uri == other.uri

    def __hash__(self) -> int:
        return hash(self.uri)

    def __getstate__(self) -> dict[str, object]:
        dropped = {"client", "_experiments"}
        return {**{k: v for k, v in vars(self).items() if k not in dropped}, "_experiments": {}}
