"""Runs written straight into a store's tables: thousands in a second, and with any content."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from zexp.tracking import Store


@dataclass
class Made:
    """A run to be written."""

    metrics: Mapping[str, float]
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    name: str = "made"
    status: str = "FINISHED"
    seeds: Mapping[int, Mapping[str, float | None]] = field(default_factory=dict)
    """Metrics by seed, for ``replications.json``."""
    profile: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(comm, symbol) -> self %."""
    files: Mapping[str, str] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: secrets.token_hex(16))


def fill(store: Store, runs: Iterable[Made], experiment: str = "made", start_ms: int = 1_790_000_000_000) -> list[str]:
    """Write runs, a second apart, and return their ids."""
    folder = store.artifact_root / "made"
    rows: dict[str, list[tuple[object, ...]]] = {"runs": [], "latest_metrics": [], "params": [], "tags": []}
    ids = []
    with closing(sqlite3.connect(store.database)) as link, link:
        link.execute(
            "INSERT OR IGNORE INTO experiments (name, artifact_location, lifecycle_stage) VALUES (?, ?, 'active')",
            (experiment, folder.as_uri()),
        )
        where = link.execute("SELECT experiment_id FROM experiments WHERE name = ?", (experiment,)).fetchone()[0]
        for i, run in enumerate(runs):
            run_id, start = run.run_id, start_ms + 1000 * i
            artifacts = folder / run_id / "artifacts"
            rows["runs"].append(
                ("made", run_id, run.name, run.status, start, start + 500, "active", artifacts.as_uri(), where)
            )
            rows["latest_metrics"] += [(run_id, k, v, start, 0, 0) for k, v in run.metrics.items()]
            rows["params"] += [(run_id, k, v) for k, v in run.params.items()]
            rows["tags"] += [(run_id, k, v) for k, v in run.tags.items()]
            files = dict(run.files)
            if run.seeds:
                columns = list(dict.fromkeys(name for values in run.seeds.values() for name in values))
                data = [[seed, *(values.get(c) for c in columns)] for seed, values in run.seeds.items()]
                files["replications.json"] = json.dumps({"columns": ["seed", *columns], "data": data})
            if run.profile:
                rows_of = [[symbol, comm, pct, pct, None, "CPU"] for (comm, symbol), pct in run.profile.items()]
                head = ["symbol", "comm", "self_pct", "children_pct", "ns_per_page", "base"]
                files["functions.json"] = json.dumps({"columns": head, "data": rows_of})
            if files:
                artifacts.mkdir(parents=True)
            for name, text in files.items():
                (artifacts / name).write_text(text)
            ids.append(run_id)
        columns_of = {
            "runs": "user_id, run_uuid, name, status, start_time, end_time, lifecycle_stage, artifact_uri, "
            "experiment_id",
            "latest_metrics": "run_uuid, key, value, timestamp, step, is_nan",
            "params": "run_uuid, key, value",
            "tags": "run_uuid, key, value",
        }
        for table, names in columns_of.items():
            marks = ", ".join("?" * len(names.split(",")))
            link.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows[table])
    return ids


def storm(
    sweep: str = "20261202-101010-abcdef",
    arms: Mapping[str, float] = {"sync": 1.0, "ratelimited": 0.5},
    cgroups: Sequence[str] = ("30", "300", "3000"),
    seeds: Sequence[int] = (0, 1, 2),
) -> list[Made]:
    """A sweep of flush policies over cgroups: ``rstat/wait_s_per_s`` is cgroups / 100 times the arm's factor."""
    made = []
    for arm, factor in arms.items():
        for count in cgroups:
            by_seed: dict[int, dict[str, float | None]] = {
                seed: {
                    "rstat/wait_s_per_s": float(count) / 100 * factor * (1 + 0.01 * ((seed * 7 + len(count)) % 3)),
                    "psi/some_pct": 1.0 + 0.05 * ((seed * (seed + len(arm)) + len(count)) % 5),
                    "pool/max_pct_of_limit": 24.0,
                    "kswapd/wakeups": 10.0 * factor,
                    "profile/self_pct/osq_lock": 40 * factor + 0.1 * seed,
                }
                for seed in seeds
            }
            means = {k: sum(v[k] or 0.0 for v in by_seed.values()) / len(seeds) for k in by_seed[seeds[0]]}
            made.append(
                Made(
                    metrics={**means, "wall_s": 1.0, "series/psi": 3.0},
                    params={
                        "workload.name": "reclaim",
                        "machine.name": "epyc_9684x",
                        "machine.description": "96 cores",
                        "kernel.name": "v6_12",
                        "kernel.description": "Linux 6.12",
                        "policy.flush.name": arm,
                        "workload.tree.cgroups": count,
                        "seed": "0",
                    },
                    tags={
                        "sweep": sweep,
                        "swept": "policy.flush.name workload.tree.cgroups",
                        "config_hash": f"{arm}{count}",
                        "seed": "0",
                        "seeds": str(len(seeds)),
                        "zexp_version": "0.1.0",
                        "plugin.acme": "2.5",
                        "profile_base": "CPU time of kswapd",
                    },
                    name=f"{arm} cgroups={count}",
                    seeds=by_seed if len(seeds) > 1 else {},
                    profile={
                        ("kswapd", "osq_lock"): 40 * factor,
                        ("kswapd", f"only_{arm}"): 5.0,
                        ("kswapd", "same"): 2.0,
                    },
                )
            )
    return made


def failed(sweep: str = "20261202-101010-abcdef", error: str = "a deadlock") -> Made:
    """A point of :func:`storm` that failed."""
    return Made(
        metrics={},
        params={"workload.name": "reclaim", "policy.flush.name": "sync", "workload.tree.cgroups": "9"},
        tags={"sweep": sweep, "config_hash": "failed", "error": error, "overrides": "policy/flush=sync cgroups=9"},
        name="sync cgroups=9",
        status="FAILED",
    )
