"""The cgroups of a real machine, from a folder copied from its ``/sys/fs/cgroup`` (cgroup v2).

A cgroup is a folder with a ``memory.stat``. One without (the memory controller is not enabled there) is left out with
all below it: the kernel enables a controller nowhere below a cgroup that lacks it, and what is charged there is part of
the nearest ancestor's numbers. Only the top folder's ``cgroup.stat`` and ``memory.pressure`` are read. Whoever made the
copy is not trusted: what is read is bounded, links are not followed, and what a kernel would not write is an error.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zexp.errors import ConfigError
from zexp.kernel import PAGE_BYTES
from zexp.kernel.cgroup import CgroupTree, Floats, Ints, TreeConfig

MAX_CGROUPS, MAX_DEPTH, MAX_FILE_BYTES = 100_000, 64, 256 << 10
MAX_ENTRIES, MAX_BYTES = 256 * MAX_CGROUPS, 1 << 30
"""In all; a kernel makes less than 150 files a cgroup, and a ``memory.stat`` has 2 KiB."""
MEMORY = ("anon", "file", "zswapped", "zswap")  # bytes in memory.stat
EVENT = re.compile(r"(pg(?!scan_|steal_)|workingset_|pswp|swp|zswp|thp_|numa_)\w+")
"""Counted since the cgroup was made. Without ``pgscan_*`` and ``pgsteal_*``: ``pgscan`` and ``pgsteal`` sum them."""
COUNTER = re.compile(r"([A-Za-z0-9_.]+) ([0-9]{1,20})")
PERCENT = r"([0-9]{1,3}\.[0-9]{2})"
PRESSURE = re.compile(rf"(some|full) avg10={PERCENT} avg60={PERCENT} avg300={PERCENT} total=[0-9]{{1,20}}")
Wrong = Callable[[int, str], ConfigError]  # of a line, counted from 1, and what is wrong with it


@dataclass(frozen=True, eq=False)
class CgroupFolder:
    """Memory cgroups in pre-order, children sorted by name: ``parent``, ``level`` and ``end`` as in ``CgroupTree``.

    ``memory.stat`` counts a whole subtree; "own" is what is left without the children: nothing rather than less than
    nothing if the files were not copied at one moment. What removed children counted stays in it.
    """

    names: list[str]
    """Path relative to the folder; empty for the top."""
    parent: Ints
    level: Ints
    end: Ints
    anon_pages: Ints
    """Own, of 4 KiB, as the other pages."""
    file_pages: Ints
    zswapped_pages: Ints
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
        own = self.events if self.events.any() else (self.end == np.arange(1, len(self.names) + 1)).astype(float)
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
            raise wrong(number, f"'{_show(line)}' is not a name and a whole number from 0, like 'anon 4096'")
        name, value = match[1], int(match[2])
        bits = 63 if name in MEMORY else 64  # what an Ints holds, what a kernel may write
        if value >> bits:
            raise wrong(number, f"'{_show(line)}' is beyond {bits} bits; at most {2**bits - 1}")
        if name in counters:
            raise wrong(number, f"'{_show(name)}' is there a second time; each key is there once")
        counters[name] = value
    return counters


def parse_pressure(data: bytes, wrong: Wrong) -> float | None:
    """``avg300`` of the line ``some``, in percent; None if there is no such line."""
    averages: dict[str, float] = {}
    for number, line in enumerate(_lines(data, wrong), 1):
        match = PRESSURE.fullmatch(line)
        if match is None or max(map(float, match.groups()[1:])) > 100:
            right = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0"
            raise wrong(number, f"'{_show(line)}' is not like '{right}', averages up to 100.00")
        if match[1] in averages:
            raise wrong(number, f"'{match[1]}' is there a second time; each line is there once")
        averages[match[1]] = float(match[4])
    return averages.get("some")


def read_cgroup_folder(folder: Path, key: str) -> CgroupFolder:
    """Read the copy; raises ``ConfigError`` naming ``key``."""
    reader = _Reader(folder, key)
    names: list[str] = []
    rows: list[list[int]] = []  # parent, level, and of the subtree: MEMORY, in pages but the last, and events
    todo = [("", -1, 0)]
    while todo:
        name, above, depth = todo.pop()
        has_stat, folders = reader.scan(name, depth)
        here = len(names) if depth == 0 or (has_stat and above >= 0) else -1
        if here >= 0:
            found = parse_stat(*reader.read(os.path.join(name, "memory.stat")))  # a top may lack it, and owns nothing
            memory = [found.get(what, 0) // (1 if what == "zswap" else PAGE_BYTES) for what in MEMORY]
            names.append(name)
            rows.append([above, depth, *memory, sum(count for what, count in found.items() if EVENT.fullmatch(what))])
        todo += [(os.path.join(name, child), here, depth + 1) for child in sorted(folders, reverse=True)]
    if not reader.bytes:
        raise reader.wrong("", "no memory.stat in it or below that says anything; must be a copy of /sys/fs/cgroup")
    totals, end = np.array(rows, object), np.arange(1, len(names) + 1)  # Python's integers, which never overflow
    (parent, level), own = totals.T[:2].astype(np.int64), totals.T[2:].copy()
    for cgroup in range(len(names) - 1, 0, -1):
        above = rows[cgroup][0]
        end[above] = max(end[above], end[cgroup])
        own[:, above] -= totals[cgroup, 2:]
    anon, file, zswapped, zswap = np.maximum(own[:4], 0).astype(np.int64)
    events = np.maximum(own[4], 0).astype(np.float64)
    found = parse_stat(*reader.read("cgroup.stat"))
    dying, skipped = found.get("nr_dying_descendants", 0), reader.cgroups - len(names)
    missing = max(found.get("nr_descendants", 0) - (reader.cgroups - 1), 0)
    psi = parse_pressure(*reader.read("memory.pressure"))
    return CgroupFolder(names, parent, level, end, anon, file, zswapped, zswap, events, dying, skipped, missing, psi)


class _Reader:
    """Reads folders and files of the copy as long as they are within bounds."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key
        self.cgroups, self.entries, self.bytes = 1, 0, 0

    def wrong(self, file: str, what: str) -> ConfigError:
        return ConfigError(self.key, _show(str(self.folder), 4096), f"{_show(file, 4096)}: {what}" if file else what)

    def scan(self, name: str, depth: int) -> tuple[bool, list[str]]:
        """Whether a folder has a ``memory.stat``, and the folders in it."""
        has_stat, folders = False, []
        try:
            with os.scandir(self.folder / name) as entries:
                for entry in entries:
                    path, is_dir = os.path.join(name, entry.name), entry.is_dir(follow_symlinks=False)
                    self.cgroups, self.entries = self.cgroups + is_dir, self.entries + 1
                    if self.cgroups > MAX_CGROUPS or self.entries > MAX_ENTRIES:
                        raise self.wrong(path, f"too many; at most {MAX_CGROUPS} cgroups, {MAX_ENTRIES} files in all")
                    if is_dir and depth == MAX_DEPTH:
                        raise self.wrong(path, f"too deep; at most {MAX_DEPTH} levels below the top")
                    if is_dir and re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", entry.name):
                        raise self.wrong(path, "not a cgroup's name; must be UTF-8 without control characters")
                    if is_dir:
                        folders.append(entry.name)
                    has_stat |= entry.name == "memory.stat" and not is_dir
        except (OSError, ValueError) as error:
            raise self.wrong(name, f"cannot be read ({error.args[-1]}); must be a copy of /sys/fs/cgroup") from None
        return has_stat, folders

    def read(self, file: str) -> tuple[bytes, Wrong]:
        """What is in a file, nothing if there is none, and how to complain about it."""
        flags = os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe is not waited for
        try:
            with open(self.folder / file, "rb", opener=lambda path, mode: os.open(path, mode | flags)) as stream:
                if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                    raise OSError(0, "not a regular file")
                data = stream.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise self.wrong(file, f"cannot be read ({error.strerror}); must be a file, and no link") from None
        self.bytes += len(data)
        if len(data) > MAX_FILE_BYTES or self.bytes > MAX_BYTES:
            raise self.wrong(file, f"too large; at most {MAX_FILE_BYTES} bytes, and {MAX_BYTES} in all files")
        return data, lambda line, what: self.wrong(f"{file}:{line}", what)


def _lines(data: bytes, wrong: Wrong) -> list[str]:
    try:
        return data.decode().removesuffix("\n").split("\n") if data else []
    except UnicodeDecodeError as error:
        raise wrong(data.count(b"\n", 0, error.start) + 1, "not UTF-8; must be text") from None


def _show(text: str, most: int = 80) -> str:
    """Show text on one line of a terminal, whatever is in it."""
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
