"""``zexp explain``: the staged program as a listing, with costs."""

from __future__ import annotations

import argparse
import sys

from zexp import experiment
from zexp.compose import compose, ready
from zexp.program.listing import Listing


def main(argv: list[str]) -> int:
    """Compose, stage and print; nothing is run."""
    parser = argparse.ArgumentParser(
        prog="zexp explain",
        description="Print the staged program of an experiment, with what each instruction costs on its machine.",
        epilog="example: zexp explain experiment=munmap_24g policy/accounting=eager",
    )
    parser.add_argument("overrides", nargs="*", help="as for zexp run")
    args = parser.parse_args(argv)
    registry = ready()
    exp = experiment.from_config(compose(args.overrides), registry)
    staged = experiment.stage(exp)
    listing = Listing(staged.program, exp.machine)
    lines = list(listing.lines())
    text_width = max(len(line.text) + 2 * line.depth for line in lines)
    cost_width = max(len(line.cost) for line in lines)
    out = sys.stdout
    out.write(f"{exp.workload.name} under {exp.policy.name} on {exp.machine.name}, {exp.kernel.name}\n")
    out.write(f"program {staged.program.digest()[:16]}, {len(staged.program.code)} instructions\n")
    out.write("cost: on a line the CPU has; shared lines and contended locks cost more, as the run finds out\n")
    comm = None
    for line in lines:
        if line.comm != comm:
            comm = line.comm
            cpus = [t.cpu for t in staged.program.threads if t.comm == comm]
            shown = ", ".join(map(str, cpus[:8])) + (f", ... ({len(cpus)} CPUs)" if len(cpus) > 8 else "")
            out.write(f"\nthread {comm} on CPU {shown}\n")
        number = f"{line.pc:5d}" if line.pc is not None else "     "
        text = f"{'  ' * line.depth}{line.text}"
        out.write(f"{number} {text:<{text_width}}  {line.cost:<{cost_width}}  {line.source}".rstrip() + "\n")
    return 0
