"""Run the predictions of this page and draw its charts.

    make charts                                   or: python experiments/munmap_24g/charts.py [--size 24GiB] [--redraw]

Writes ``results.json`` (every run's figures) and ``*.svg`` beside itself; points that ``results.json`` holds already
are not run again, so remove it after a change of the model. ``--redraw`` only draws.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from zexp import experiment
from zexp.compose import compose, ready

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from charting import Job, Point, Row, collect, parser, pyplot, save  # noqa: E402

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


def figures(job: Job) -> Row:
    """Run one point, unless it is known; its labels and metrics."""
    labels, overrides, known = job
    registry = ready()
    exp = experiment.from_config(compose(overrides), registry)
    labels = {**labels, "config_hash": exp.digest()}
    if exp.digest() in known:
        return {**labels, "metrics": known[exp.digest()]["metrics"]}
    result = experiment.run(exp, experiment.stage(exp))
    return {**labels, "metrics": {k: float(f"{v:.6g}") for k, v in sorted(result.metrics.items())}}


def points(size: str) -> list[Point]:
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


def draw(results: Sequence[Row]) -> None:
    """The page's charts."""
    plt = pyplot()
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
        save(figure, HERE / f"{name}.svg", title)

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
    save(figure, HERE / "mixed.svg", "12 processes unmap 128 MiB each, with company (scales differ)")


def main() -> None:
    """Run, write, draw."""
    options = parser(__doc__)
    options.add_argument("--size", default="12GiB", help="memory unmapped by all processes together")
    args = options.parse_args()
    target = HERE / "results.json"
    if not args.redraw:
        collect(target, points(args.size), figures, args.jobs)
    draw(json.loads(target.read_text()))


if __name__ == "__main__":
    main()
