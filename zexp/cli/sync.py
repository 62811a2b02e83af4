"""``zexp sync``: deliver runs that wait in the spool."""

from __future__ import annotations

import argparse

from zexp.sweep.conclude import conclude
from zexp.tracking import MlflowStore, Spool, UnreachableError, open_store, store_folder
from zexp.tracking.base import TrackingError


def main(argv: list[str]) -> int:
    """Deliver everything that waits; 0 if nothing is left."""
    args = _parser().parse_args(argv)
    spool = Spool((open_store(args.store).home if args.store else store_folder()) / "spool")
    left, wrong = 0, []
    places = spool.destinations()
    for uri, count in places.items():
        try:
            store = _store(uri)
            delivered = spool.deliver(store)
            print(f"{uri}: {len(delivered)} of {count} runs delivered")
            left += spool.destinations().get(uri, 0)
            for sweep, experiment in {p.tags["sweep"]: p.experiment for p in delivered if "sweep" in p.tags}.items():
                conclude(store, sweep, experiment)
        except UnreachableError as away:
            left += spool.destinations().get(uri, 0)
            print(f"{uri}: {away}; {left} runs still wait")
        except TrackingError as error:
            left += spool.destinations().get(uri, 0)
            wrong.append(str(error))
    damaged = [str(error) for error in spool.damaged()]
    print(*dict.fromkeys([*wrong, *damaged]), sep="\n", end="\n" if wrong or damaged else "")
    left += len(damaged)
    if not places and not damaged:
        print(f"no runs wait in {spool.folder}")
    return 1 if left else 0


def _store(uri: str) -> MlflowStore:
    """The store with this MLflow URI."""
    if uri.startswith("sqlite:///"):
        return open_store(uri.removeprefix("sqlite:///").removesuffix("/mlflow.db"))
    if "://" not in uri:
        raise TrackingError(f"{uri}: no store has this address")
    return open_store(uri)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="zexp sync",
        description="Deliver runs that were finished while their store did not answer. None is lost, none is doubled.",
    )
    parser.add_argument("--store", metavar="DIR", help="folder whose spool is meant (default: that of the usual store)")
    return parser
