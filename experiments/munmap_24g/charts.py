"""Run the predictions of this page and draw its charts.

    make charts                                   or: python experiments/munmap_24g/charts.py [--size 24GiB] [--redraw]

Writes ``results.json`` (every run's figures) and ``*.svg`` beside itself; points that ``results.json`` holds already
are not run again, so remove it after a change of the model. ``--redraw`` only draws.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from zexp import experiment
from zexp.cli.compose import compose, ready

HERE = Path(__file__).parent
POLICIES = ("eager", "lazy", "shared_atomic")
COLOURS = {"eager": "#c0392b", "lazy": "#2471a3", "shared_atomic": "#1e8449"}
STYLES = {"eager": "-", "lazy": "-", "shared_atomic": "--"}
ADDED = {
    "eager": "line/zswap_pool_total_size/transfers_per_page",
    "lazy": "none",
    "shared_atomic": "line/zswap_total_pages/transfers_per_page",
}
PROCESSES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
KERNELS = {
    "v6_8": ["kernel=v6_8"],
    "v6_12": ["kernel=v6_12"],
    "v6_12, 32 zpools": ["kernel=v6_12", "kernel.zpools=32"],
    "v7_3": ["kernel=v7_3"],
}
MIXES = {
    "unmap only": [],
    "+ 12 loading": ["workload.swapin=12"],
    "+ 12 storing": ["workload.store=12"],
    "+ reader every 10 us": ["workload.meminfo_readers=1"],
    "all three": ["workload.swapin=12", "workload.store=12", "workload.meminfo_readers=1"],
}
BASE = ["experiment=munmap_24g"]
QUIET = ["workload.swapin=0", "workload.store=0", "workload.meminfo_readers=0"]
MIX = [
    "workload=mixed",
    "workload.munmap=12",
    "workload.size=128MiB",
    "workload.swapin_size=32MiB",
    "workload.store_size=16MiB",
]


def figures(job: tuple[dict[str, Any], list[str], dict[str, Any]]) -> dict[str, Any]:
    """Run one point, unless it is known; its labels and metrics."""
    labels, overrides, known = job
    registry = ready()
    exp = experiment.from_config(compose(overrides), registry)
    labels = {**labels, "config_hash": exp.digest()}
    if exp.digest() in known:
        return {**labels, "metrics": known[exp.digest()]}
    result = experiment.run(exp, experiment.stage(exp))
    return {**labels, "metrics": {k: float(f"{v:.6g}") for k, v in sorted(result.metrics.items())}}


def points(size: str) -> list[tuple[dict[str, Any], list[str]]]:
    """All runs of the page, with the overrides that make them."""
    scaling = [
        (
            {"set": "scaling", "kernel": kernel, "policy": policy, "processes": n},
            [
                *BASE,
                *overrides,
                f"policy/accounting={policy}",
                f"workload.processes={n}",
                f"workload.total_size={size}",
            ],
        )
        for kernel, overrides in KERNELS.items()
        for policy in POLICIES
        for n in PROCESSES
    ]
    mixed = [
        (
            {"set": "mixed", "kernel": kernel, "policy": policy, "mix": mix},
            [*overrides, f"policy/accounting={policy}", *MIX, *{o.split("=")[0]: o for o in [*QUIET, *extra]}.values()],
        )
        for kernel, overrides in KERNELS.items()
        for policy in POLICIES
        for mix, extra in MIXES.items()
    ]
    scales = [
        (
            {"set": "sensitivity", "policy": policy, "cycles_per_instruction": cpi},
            [*BASE, f"policy/accounting={policy}", "workload.total_size=1GiB", f"kernel.cycles_per_instruction={cpi}"],
        )
        for policy in ("eager", "lazy")
        for cpi in (0.3, 0.6, 1.2)
    ]
    lines = [
        (
            {"set": "own_line", "own_line": own, "processes": n},
            [
                *BASE, "kernel=v6_12", "kernel.zpools=32", "policy/accounting=eager",
                f"policy.accounting.own_line={own}",
                f"workload.processes={n}", f"workload.total_size={size}",
            ],
        )
        for own in ("true", "false")
        for n in (12, 48, 96)
    ]  # fmt: skip
    return [*scaling, *mixed, *scales, *lines]


def draw(results: Sequence[dict[str, Any]]) -> None:
    """The page's charts, as SVG that does not change from one drawing to the next."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams.update({"svg.hashsalt": "zexp", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    scaling = [r for r in results if r["set"] == "scaling"]

    def panel(
        name: str, title: str, metric: str | dict[str, str], unit: str, kernels: Sequence[str], scale: float = 1.0
    ) -> None:
        of = metric if isinstance(metric, dict) else dict.fromkeys(POLICIES, metric)
        figure, axes = plt.subplots(1, len(kernels), figsize=(3.2 * len(kernels), 3.0), sharey=True, squeeze=False)
        for axis, kernel in zip(axes[0], kernels, strict=True):
            for policy in POLICIES:
                rows = [r for r in scaling if r["kernel"] == kernel and r["policy"] == policy]
                axis.plot(
                    [r["processes"] for r in rows],
                    [r["metrics"].get(of[policy], 0.0) * scale for r in rows],
                    STYLES[policy], marker="o", markersize=3, color=COLOURS[policy], label=policy,
                )  # fmt: skip
            axis.set_xscale("log", base=2)
            axis.set_xticks([1, 4, 16, 64, 192], ["1", "4", "16", "64", "192"])
            axis.set_title(kernel)
            axis.set_xlabel("processes")
        axes[0][0].set_ylabel(unit)
        axes[0][0].set_ylim(bottom=0)
        figure.legend(*axes[0][0].get_legend_handles_labels(), frameon=False, ncols=3, loc="upper right")
        figure.suptitle(title, x=0.02, ha="left")
        figure.tight_layout()
        figure.savefig(HERE / f"{name}.svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)

    every = list(KERNELS)
    panel("throughput", "Unmapping zswapped memory on epyc_9684x", "throughput/pages_per_s", "M pages/s", every, 1e-6)
    panel("cpu", "CPU time a page", "time/cpu_ns_per_page", "ns", every)
    panel("lines", "Transfers of the line each design adds (lazy adds none)", ADDED, "a page", every)
    mixed = [r for r in results if r["set"] == "mixed"]
    figure, axes = plt.subplots(1, len(KERNELS), figsize=(3.2 * len(KERNELS), 3.2))
    for axis, kernel in zip(axes, KERNELS, strict=True):
        for i, policy in enumerate(POLICIES):
            rows = {
                r["mix"]: r["metrics"]["time/total_ms"] for r in mixed if (r["kernel"], r["policy"]) == (kernel, policy)
            }
            axis.bar([x + 0.27 * (i - 1) for x in range(len(MIXES))], [rows[m] for m in MIXES], 0.27,
                     color=COLOURS[policy], label=policy)  # fmt: skip
        axis.set_xticks(range(len(MIXES)), list(MIXES), rotation=40, ha="right", fontsize=7)
        axis.set_title(kernel)
    axes[0].set_ylabel("ms until all are done")
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, ncols=3, loc="upper right")
    figure.suptitle("12 processes unmap 128 MiB each, with company (scales differ)", x=0.02, ha="left")
    figure.tight_layout()
    figure.savefig(HERE / "mixed.svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def main() -> None:
    """Run, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="12GiB", help="memory unmapped by all processes together")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    parser.add_argument("--redraw", action="store_true", help="draw what results.json holds")
    args = parser.parse_args()
    target = HERE / "results.json"
    if not args.redraw:
        old = json.loads(target.read_text()) if target.exists() else []
        known = {row["config_hash"]: row["metrics"] for row in old}
        jobs = [(labels, overrides, known) for labels, overrides in points(args.size)]
        results = []
        try:
            with ProcessPoolExecutor(args.jobs) as pool:
                for i, row in enumerate(pool.map(figures, jobs)):
                    results.append(row)
                    print(f"{i + 1}/{len(jobs)}", {k: v for k, v in row.items() if k != "metrics"}, flush=True)
        finally:  # what there is need not be run again
            target.write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")
    draw(json.loads(target.read_text()))


if __name__ == "__main__":
    main()
