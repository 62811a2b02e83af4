"""``zexp COMMAND``: dispatch, with every command imported only when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module, metadata

from zexp.errors import ZexpError

COMMANDS = {
    "run": "compose and run one experiment, or a sweep with -m",
    "list": "machines, kernels, workloads and policies, and which plugin each policy came from",
    "explain": "print the staged program of an experiment as a listing, with costs",
    "show": "print a run: zexp show last",
    "compare": "runs, or the arms of a sweep, beside each other: zexp compare last-sweep",
    "report": "one HTML page of a sweep, to be opened from a mail: zexp report last-sweep",
    "sync": "deliver runs that were finished while the store did not answer",
    "ui": "open MLflow's UI on the store the runs went to",
}
USER_ERROR, CRASH, INTERRUPTED = 2, 1, 130


def usage() -> str:
    """The help text."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: zexp COMMAND ...",
            "",
            "What will this memory-management policy cost on that machine, under that load?",
            "",
            *lines,
            "",
            "examples:",
            "  zexp run experiment=munmap_24g",
            "  zexp run -m experiment=munmap_24g policy/accounting=eager,lazy,shared_atomic workload.processes=1,8,64",
            "  zexp COMMAND --help",
        ]
    )


def _complete(argv: list[str]) -> int:
    """Answer Hydra's completion script (``eval "$(zexp run -sc install=bash)"``), which knows nothing of commands."""
    import os

    program, _, rest = os.environ.get("COMP_LINE", "").partition(" ")
    command, space, rest = rest.lstrip().partition(" ")
    if not space:
        print(*COMMANDS)
    elif command in ("run", "explain"):
        os.environ["COMP_LINE"] = f"{program} {rest.lstrip()}"
        return int(import_module("zexp.cli.run").main(argv))
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run a command; 0 is success, 2 a mistake in the input, 3 a sweep without all its points, 130 Ctrl-C, 1 else."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"zexp {metadata.version('zexp')}")
        return 0
    try:
        if argv[0] == "-sc":
            return _complete(argv)
        if argv[0] not in COMMANDS:
            from zexp.errors import near

            raise ZexpError(f"{argv[0]}: unknown command; {near(argv[0], COMMANDS)}")
        command = import_module(f"zexp.cli.{argv[0]}")
        return int(command.main(argv[1:]))
    except ZexpError as error:
        if not getattr(error, "told", False):
            print(f"zexp: {error}", file=sys.stderr)
        return int(getattr(error, "status", USER_ERROR))
    except KeyboardInterrupt:
        print("zexp: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return CRASH


if __name__ == "__main__":
    sys.exit(main())
