"""MLflow as a guest: no telemetry, no chatter, nobody else's logging touched."""

from __future__ import annotations

import logging
import os


def prepare_mlflow() -> None:
    """Set up the environment MLflow reads when it is first imported. Call it before every import of MLflow.

    Only the levels of MLflow's own loggers and of alembic, which it drives, are raised; no handler is touched.
    """
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["DO_NOT_TRACK"] = "true"
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    for name in ("mlflow", "alembic"):  # in case somebody imported it before
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.WARNING))
