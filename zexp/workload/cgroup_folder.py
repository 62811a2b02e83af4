"""The cgroups of a real machine, from a folder copied from its ``/sys/fs/cgroup`` (cgroup v2).

A cgroup is a folder with a ``memory.stat``. One without (the memory controller is not enabled there) is left out with
all below it: the kernel enables a controller nowhere below a cgroup that lacks it, and what is charged there is part of
the nearest ancestor's numbers. Only the top folder's ``cgroup.stat`` and ``memory.pressure`` are read. Whoever made the
copy is not trusted: what is read is bounded, links are not followed, and what a kernel would not write is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from zexp.errors import ConfigError
from zexp.kernel import PAGE_BYTES
from zexp.kernel.cgroup import CgroupTree, Floats, Ints, TreeConfig

MAX_CGROUPS = 100_000
MAX_DEPTH = 64
MAX_ENTRIES = 256 * MAX_CGROUPS
"""Files and folders of all folders; a kernel makes less than 150 files a cgroup."""
MAX_FILE_BYTES = 256 << 10
MAX_BYTES = 1 << 30
"""Read in all; a ``memory.stat`` has 2 KiB."""

MEMORY = ("anon", "file", "zswapped", "zswap")
"""Bytes in ``memory.stat``; any other key is bytes too, or a number of events."""
EVENT = re.compile(r"(pg(?!scan_|steal_)|workingset_|pswp|swp|zswp|thp_|numa_)\w+")
"""Events since the cgroup was made. ``pgscan_*`` and ``pgsteal_*`` are left out, as other keys sum them."""
COUNTER = re.compile(r"([A-Za-z0-9_.]+) ([0-9]{1,20})")
PERCENT = r"([0-9]{1,3}\.[0-9]{2})"
PRESSURE = re.compile(rf"(some|full) avg10={PERCENT} avg60={PERCENT} avg300={PERCENT} total=[0-9]{{1,20}}")

Parsed = TypeVar("Parsed")
Wrong = Callable[[int, str], ConfigError]
"""Makes the error for a line, counted from 1, and what is wrong with it."""


@dataclass(frozen=True, eq=False)
class CgroupFolder:
    """Memory cgroups in pre-order, children sorted by name. 0 is the top folder.

    ``memory.stat`` counts a whole subtree; here "own" is what is left without the children: nothing rather than less
    than nothing if the files were not copied at one moment. Removed children stay in it.
    """

    names: list[str]
    """Path relative to the folder; empty for the top."""
    parent: Ints
    """-1 for the top."""
    level: Ints
    """0 for the top."""
    end: Ints
    """A subtree is the range from a cgroup to its ``end``."""
    anon_pages: Ints
    """Own, of 4 KiB, as the other pages."""
    file_pages: Ints
    zswapped_pages: Ints
    """Own, that zswap holds."""
    zswap_bytes: Ints
    """Own, compressed."""
    events: Floats
    """Own, since the cgroup was made: a weight for how often its statistics are updated."""
    dying: int
    """Removed cgroups that the kernel still keeps; 0 without the top's ``cgroup.stat``."""
    skipped: int
    """Folders left out, as there was no ``memory.stat`` in them or in one above."""
    missing: int
    """Cgroups that the top's ``cgroup.stat`` counts beyond the folders found: the copy is partial."""
    psi_some_avg300_pct: float | None
    """Percent of the last 300 s in which some task waited for memory; None if the machine did not measure it."""

    def tree(self, updates_per_s: float, cpus_per_leaf: int) -> CgroupTree:
        """Share ``updates_per_s``, of the machine, out by events; evenly over the leaves if there were none."""
        TreeConfig(cgroups=1, slices=0, updates_per_s=updates_per_s, cpus_per_leaf=cpus_per_leaf).validate()
        leaf = self.end == np.arange(1, len(self.names) + 1)
        own = self.events if self.events.any() else leaf.astype(float)
        rates = (own / own.sum() * updates_per_s).tolist()
        for cgroup in range(len(rates) - 1, 0, -1):
            rates[self.parent[cgroup]] += rates[cgroup]
        return CgroupTree(self.parent, self.level, self.end, np.array(rates), cpus_per_leaf)


def parse_stat(data: bytes, wrong: Wrong) -> dict[str, int]:
    """Parse a file of lines ``KEY NUMBER``."""
    counters: dict[str, int] = {}
    for number, line in enumerate(_lines(data, wrong), 1):
        match = COUNTER.fullmatch(line)
        if match is None:
            raise wrong(number, f'{_show(line)} is not a name and a whole number from 0, like "anon 4096"')
        name, value = match[1], int(match[2])
        bits = 63 if name in MEMORY else 64  # what an Ints holds, what a kernel may write
        if value >> bits:
            raise wrong(number, f"{_show(line)} is beyond {bits} bits; at most {2**bits - 1}")
        if name in counters:
            raise wrong(number, f"{_show(name)} is there a second time; each key is there once")
        counters[name] = value
    return counters


def parse_pressure(data: bytes, wrong: Wrong) -> float | None:
    """``avg300`` of the line ``some``, in percent; None if there is no such line."""
    averages: dict[str, float] = {}
    for number, line in enumerate(_lines(data, wrong), 1):
        match = PRESSURE.fullmatch(line)
        if match is None or max(map(float, match.groups()[1:])) > 100:
            right = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0"
            raise wrong(number, f'{_show(line)} is not a line like "{right}" with averages up to 100.00')
        if match[1] in averages:
            raise wrong(number, f"{match[1]} is there a second time; each line is there once")
        averages[match[1]] = float(match[4])
    return averages.get("some")


def read_cgroup_folder(folder: Path, key: str) -> CgroupFolder:
    """Read the copy; raises ``ConfigError`` naming ``key``."""
    reader = _Reader(folder, key)
    names: list[str] = []
    parent: list[int] = []
    level: list[int] = []
    totals: list[list[int]] = []  # of the subtree: MEMORY, in pages but the last, and events
    top: frozenset[str] = frozenset()
    skipped = 0
    todo = [("", -1, 0)]
    while todo:
        name, above, depth = todo.pop()
        files, folders = reader.scan(name, depth)
        here = -1
        if depth == 0 or (above >= 0 and "memory.stat" in files):
            here = len(names)
            # a top without has less than its children here, so nothing of its own
            stat = reader.parse(_join(name, "memory.stat"), parse_stat) if "memory.stat" in files else {}
            memory = [stat.get(what, 0) // (1 if what == "zswap" else PAGE_BYTES) for what in MEMORY]
            totals.append([*memory, sum(value for what, value in stat.items() if EVENT.fullmatch(what))])
            names.append(name)
            parent.append(above)
            level.append(depth)
            top = top if depth else files
        skipped += here < 0
        todo += [(_join(name, child), here, depth + 1) for child in sorted(folders, reverse=True)]
    if len(names) == 1 and "memory.stat" not in top:
        raise reader.wrong("", "no memory.stat in it nor in a folder in it; must be a copy of /sys/fs/cgroup")
    own = [list(total) for total in totals]
    end = list(range(1, len(names) + 1))
    for cgroup in range(len(names) - 1, 0, -1):
        end[parent[cgroup]] = max(end[parent[cgroup]], end[cgroup])
        own[parent[cgroup]] = [a - b for a, b in zip(own[parent[cgroup]], totals[cgroup], strict=True)]
    anon, file, zswapped, zswap, events = ([max(value, 0) for value in column] for column in zip(*own, strict=True))
    cgroup_stat = reader.parse("cgroup.stat", parse_stat) if "cgroup.stat" in top else {}
    return CgroupFolder(
        names,
        parent=np.array(parent, np.int64),
        level=np.array(level, np.int64),
        end=np.array(end, np.int64),
        anon_pages=np.array(anon, np.int64),
        file_pages=np.array(file, np.int64),
        zswapped_pages=np.array(zswapped, np.int64),
        zswap_bytes=np.array(zswap, np.int64),
        events=np.array(events, np.float64),
        dying=cgroup_stat.get("nr_dying_descendants", 0),
        skipped=skipped,
        missing=max(cgroup_stat.get("nr_descendants", 0) - (reader.cgroups - 1), 0),
        psi_some_avg300_pct=reader.parse("memory.pressure", parse_pressure) if "memory.pressure" in top else None,
    )


class _Reader:
    """Reads folders and files of the copy as long as they are bounded."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key
        self.cgroups, self.entries, self.bytes = 1, 0, 0

    def wrong(self, file: str, what: str) -> ConfigError:
        return ConfigError(self.key, _show(str(self.folder)), f"{_show(file)}: {what}" if file else what)

    def scan(self, name: str, depth: int) -> tuple[frozenset[str], list[str]]:
        """The files to read that a folder has, and the folders in it."""
        files, folders = set(), []
        try:
            with os.scandir(self.folder / name) as entries:
                for entry in entries:
                    self.entries += 1
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                        self.cgroups += 1
                        self._check_folder(_join(name, entry.name), depth + 1)
                    elif entry.name in ("memory.stat", "cgroup.stat", "memory.pressure"):
                        files.add(entry.name)
                        if not entry.is_file(follow_symlinks=False):
                            raise self.wrong(_join(name, entry.name), "no regular file; must be one, and not a link")
                    if self.entries > MAX_ENTRIES:
                        raise self.wrong(name, f"more files than cgroups have; at most {MAX_ENTRIES} in all folders")
        except (OSError, ValueError) as error:
            raise self.wrong(name, f"cannot be read ({_why(error)}); must be a folder from /sys/fs/cgroup") from None
        return frozenset(files), folders

    def _check_folder(self, name: str, depth: int) -> None:
        if self.cgroups > MAX_CGROUPS:
            raise self.wrong(name, f"too many cgroups; at most {MAX_CGROUPS}")
        if depth > MAX_DEPTH:
            raise self.wrong(name, f"{depth} levels below the top; at most {MAX_DEPTH}")
        if any(c < " " or "\x7f" <= c < "\xa0" or "\ud800" <= c < "\ue000" for c in name):
            raise self.wrong(name, "not a name; must be UTF-8 without control characters")

    def parse(self, file: str, parser: Callable[[bytes, Wrong], Parsed]) -> Parsed:
        """Read and parse a file."""
        try:
            # if it has become a link or a pipe since: fail, do not wait
            with open(os.open(self.folder / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise self.wrong(file, f"cannot be read ({_why(error)}); must be a readable file") from None
        self.bytes += len(data)
        if len(data) > MAX_FILE_BYTES or self.bytes > MAX_BYTES:
            raise self.wrong(file, f"too large; at most {MAX_FILE_BYTES} bytes, and {MAX_BYTES} in all files")
        return parser(data, lambda line, what: self.wrong(f"{file}:{line}", what))


def _lines(data: bytes, wrong: Wrong) -> list[str]:
    try:
        return data.decode().removesuffix("\n").split("\n") if data else []
    except UnicodeDecodeError as error:
        raise wrong(data.count(b"\n", 0, error.start) + 1, "not UTF-8; must be text") from None


def _join(name: str, child: str) -> str:
    return f"{name}/{child}" if name else child


def _why(error: Exception) -> str:
    return error.strerror or "?" if isinstance(error, OSError) else str(error)


def _show(text: str) -> str:
    """Show at most 80 characters on one line of a terminal."""
    text = text if len(text) <= 80 else f"{text[:77]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
