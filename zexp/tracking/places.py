"""Which kind of store is meant."""

from __future__ import annotations

from pathlib import Path

from zexp.tracking.base import MlflowStore
from zexp.tracking.server import Server
from zexp.tracking.store import Store


def open_store(place: Path | str | None = None, *, create: bool = True) -> MlflowStore:
    """The store at ``place``: a folder (default: :func:`store_folder`), or the address of an MLflow server.

    A folder's store is created on first use, unless ``create`` is False: then it is an error that there is none. A
    server is not asked anything yet.
    """
    return Server(str(place)) if "://" in str(place) else Store.open(place, create=create)
