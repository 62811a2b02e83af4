"""An MLflow tracking server, for teams: the same runs, over HTTP."""
# mypy: allow-untyped-calls

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from zexp.tracking.base import MlflowStore, TrackingError, UnreachableError
from zexp.tracking.quiet import prepare_mlflow
from zexp.tracking.store import store_folder

SECONDS = "30"
"""How long to wait for an answer."""
PAGE = 1000
"""Runs that a server gives at once."""


class Server(MlflowStore):
    """A server at an ``http(s)://`` address. Nothing is asked of it before it is needed."""

    def __init__(self, address: str) -> None:
        super().__init__()
        if not _is_address(address):
            raise TrackingError(
                f"tracking.store={address}: neither a folder nor the address of an MLflow server, like "
                "http://127.0.0.1:5000"
            )
        self._address = address.rstrip("/")
        # A request that is repeated behind our back may create a run twice: what fails waits in the spool instead.
        os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", SECONDS)

    def __str__(self) -> str:
        return f"server {self._address}"

    @property
    def uri(self) -> str:
        """Its address."""
        return self._address

    @property
    def home(self) -> Path:
        """The default store's folder, as the server has none here."""
        return store_folder()

    def url(self, path: str) -> str:
        """A page of its UI."""
        return f"{self._address}/{path}"

    def with_tag(self, key: str, value: str) -> dict[str, str]:
        """Id and status of every run that has this tag."""
        # neither keys nor values that zexp asks for have a quote
        return {run.info.run_id: run.info.status for run in self.search(f"tags.`{key}` = '{value}'")}

    def experiments(self) -> list[Any]:
        """MLflow's experiments."""
        with self.errors():
            return list(self.client.search_experiments(max_results=1000))

    def search(
        self, condition: str = "", limit: int | None = None, experiments: list[str] | None = None
    ) -> Iterator[Any]:
        """MLflow's runs of some experiments (ids) or all, latest first, page by page."""
        if experiments is None:
            experiments = [e.experiment_id for e in self.experiments()]
        token, left = None, limit
        while experiments and left != 0:
            wanted = PAGE if left is None else min(left, PAGE)
            with self.errors():
                page = self.client.search_runs(
                    experiments, condition, max_results=wanted, order_by=["start_time DESC"], page_token=token
                )
            yield from page
            left = None if left is None else left - len(page)
            token = page.token
            if not token:
                return

    def artifact(self, run_id: str, name: str) -> str | None:
        """A text file at the root of a run's artifacts; None if there is none."""
        with self.errors(), TemporaryDirectory(prefix="zexp-") as folder:
            if name not in {file.path for file in self.client.list_artifacts(run_id)}:
                return None
            return Path(self.client.download_artifacts(run_id, name, folder)).read_text(encoding="utf-8")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what MLflow and the network raise into a :class:`TrackingError` of one line."""
        prepare_mlflow()
        from mlflow.exceptions import MlflowException
        from requests import RequestException

        try:
            yield
        except (MlflowException, RequestException, OSError) as error:
            reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
            if _is_about_the_way(error):
                raise UnreachableError(f"{self} does not answer ({type(_root(error)).__name__})") from error
            raise TrackingError(f"{self}: {reason}") from error


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - raises if it is none
    except ValueError:
        return False
    whole = parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.fragment
    return bool(whole) and not any(character.isspace() for character in text)


def _root(error: BaseException) -> BaseException:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def _is_about_the_way(error: BaseException) -> bool:
    """Whether the request never reached a healthy server: nobody there, a broken connection, a gateway's answer."""
    status = getattr(error, "get_http_status_code", lambda: 0)()
    text = str(error)
    return (
        isinstance(error, OSError)
        or "Max retries exceeded" in text
        or "Connection" in text
        or "timed out" in text.lower()
        or (status >= 500 and "INTERNAL_ERROR" in getattr(error, "error_code", "") and "API request" in text)
    )
