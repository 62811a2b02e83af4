"""Cgroup trees copied from a real machine: what is read, and what is refused."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zexp.errors import ConfigError
from zexp.workload import cgroup_folder
from zexp.workload.cgroup_folder import CgroupFolder, parse_pressure, parse_stat, read_cgroup_folder

KEY = "workload.cgroups"
EVIDENCE = Path(__file__).parents[2].parent / "shared" / "evidence" / "vmstat" / "down_2024_memory.stat"
PSI = """\
some avg10=1.00 avg60=2.50 avg300=12.34 total=123456
full avg10=0.00 avg60=0.00 avg300=99.00 total=1
"""


@dataclass
class Cgroup:
    """What a cgroup itself has; ``memory.stat`` gets the sums of its subtree."""

    own: dict[str, int] | None = None
    """None: it has no memory controller."""
    children: dict[str, Cgroup] = field(default_factory=dict)

    def total(self, what: str) -> int:
        return (self.own or {}).get(what, 0) + sum(child.total(what) for child in self.children.values())

    def counters(self) -> set[str]:
        return set(self.own or {}).union(*(child.counters() for child in self.children.values()))

    def write(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").write_bytes(b"\xff not read")
        if self.own is not None:
            (folder / "memory.stat").write_text(
                "".join(f"{key} {self.total(key)}\n" for key in sorted(self.counters()))
            )
        for name, child in self.children.items():
            child.write(folder / name)
        return folder


def pages(anon: int = 0, file: int = 0, zswapped: int = 0, zswap: int = 0, **events: int) -> dict[str, int]:
    """The own numbers of a cgroup, given in pages but for ``zswap``."""
    return {"anon": anon * 4096, "file": file * 4096, "zswapped": zswapped * 4096, "zswap": zswap, **events}


def machine() -> Cgroup:
    return Cgroup(
        pages(anon=1, pgfault=4),
        {
            "system.slice": Cgroup(
                pages(file=7, pgfault=6, pgscan=3, pgscan_kswapd=3, pagetables=8192, thp_fault_alloc=1),
                {
                    "dev-disk\\x2dby.mount": Cgroup(pages(anon=10, zswapped=3, zswap=5000, workingset_refault_anon=30)),
                    "a b.service": Cgroup(pages(anon=20, zswapped=4, zswap=1, zswpin=20, zswpout=30, pgsteal_direct=9)),
                    "a": Cgroup({}, {"z": Cgroup(pages(anon=5, anon_thp=4096))}),
                },
            ),
            "grüße.slice": Cgroup({}),
            "no memory": Cgroup(None, {"deep": Cgroup(None), "odd": Cgroup({"anon": 4096})}),
        },
    )


def read(folder: Path) -> CgroupFolder:
    return read_cgroup_folder(folder, KEY)


def refused(folder: Path, what: str, right: str) -> str:
    """The message of the error, of one line and printable."""
    with pytest.raises(ConfigError) as caught:
        read(folder)
    message = str(caught.value)
    assert message.startswith(f"{KEY}=")
    assert message.isprintable()
    assert what in message
    assert right in message
    return message


def test_a_machine(tmp_path: Path) -> None:
    folder = machine().write(tmp_path / "copy")
    (folder / "cgroup.stat").write_text("nr_descendants 12\nnr_dying_descendants 5\n")
    (folder / "memory.pressure").write_text(PSI)
    for deeper in ("cgroup.stat", "memory.pressure"):
        (folder / "system.slice" / deeper).write_text("is not read")
    copy = read(folder)
    assert copy.names == [
        "",
        "grüße.slice",
        "system.slice",
        "system.slice/a",
        "system.slice/a/z",
        "system.slice/a b.service",
        "system.slice/dev-disk\\x2dby.mount",
    ]
    assert copy.parent.tolist() == [-1, 0, 0, 2, 3, 2, 2]
    assert copy.level.tolist() == [0, 1, 1, 2, 3, 2, 2]
    assert copy.end.tolist() == [7, 2, 7, 5, 5, 6, 7]
    assert copy.anon_pages.tolist() == [2, 0, 0, 0, 5, 20, 10], "the top keeps what is charged below 'no memory'"
    assert copy.file_pages.tolist() == [0, 0, 7, 0, 0, 0, 0]
    assert copy.zswapped_pages.tolist() == [0, 0, 0, 0, 0, 4, 3]
    assert copy.zswap_bytes.tolist() == [0, 0, 0, 0, 0, 1, 5000]
    assert copy.events.tolist() == [4, 0, 10, 0, 0, 50, 30]
    assert (copy.dying, copy.skipped, copy.missing) == (5, 3, 12 - 9)
    assert copy.psi_some_avg300_pct == 12.34
    for values in (copy.parent, copy.level, copy.end, copy.anon_pages, copy.zswap_bytes):
        assert values.dtype == np.int64
    tree = copy.tree(940.0, 3)
    assert tree.updates_per_s == pytest.approx([940, 0, 900, 0, 0, 500, 300])
    assert tree.cpus_per_leaf == 3
    assert tree.ancestors(4) == [4, 3, 2, 0]


def test_without_events_the_leaves_are_even(tmp_path: Path) -> None:
    tree = Cgroup(pages(anon=3), {"a": Cgroup({}, {"x": Cgroup({}), "y": Cgroup({})}), "b": Cgroup({})})
    assert read(tree.write(tmp_path / "copy")).tree(30.0, 0).updates_per_s == pytest.approx([30, 20, 10, 10, 10])


def test_a_single_cgroup(tmp_path: Path) -> None:
    copy = read(Cgroup(pages(anon=3)).write(tmp_path / "copy"))
    assert (copy.names, copy.anon_pages.tolist(), copy.end.tolist()) == ([""], [3], [1])
    assert copy.tree(5.0, 0).updates_per_s.tolist() == [5]


def test_the_root_of_an_older_kernel_owns_nothing(tmp_path: Path) -> None:
    top = machine()
    top.own = None
    copy = read(top.write(tmp_path / "copy"))
    assert copy.anon_pages.tolist() == [0, 0, 0, 0, 5, 20, 10]
    assert copy.events.tolist() == [0, 0, 10, 0, 0, 50, 30]
    assert (copy.dying, copy.missing, copy.psi_some_avg300_pct) == (0, 0, None)


def test_files_of_different_moments(tmp_path: Path) -> None:
    folder = Cgroup(pages(anon=5, pgfault=5), {"a": Cgroup(pages(anon=1, pgfault=1))}).write(tmp_path / "copy")
    (folder / "a" / "memory.stat").write_text("anon 40960\npgfault 10\nzswap 7\n")
    copy = read(folder)
    assert copy.anon_pages.tolist() == [0, 10]
    assert copy.events.tolist() == [0, 10]
    assert copy.zswap_bytes.tolist() == [0, 7]


def test_a_cgroup_that_vanished_while_it_was_copied(tmp_path: Path) -> None:
    folder = Cgroup(pages(anon=5), {"a": Cgroup({})}).write(tmp_path / "copy")
    (folder / "memory.pressure").write_bytes(b"")  # a kernel without pressure refuses to be read
    copy = read(folder)
    assert (copy.anon_pages.tolist(), copy.psi_some_avg300_pct) == ([5, 0], None)


def test_numbers_as_large_as_they_get(tmp_path: Path) -> None:
    large = {"anon": 2**63 - 1, "zswap": 2**63 - 1, "pgfault": 2**64 - 1, "pgscan": 2**64 - 1, "sock": 2**64 - 1}
    folder = Cgroup(None, {name: Cgroup(large) for name in "abc"}).write(tmp_path / "copy")
    (folder / "cgroup.stat").write_text(f"nr_descendants {2**64 - 1}\nnr_dying_descendants 0\n")
    copy = read(folder)
    assert copy.zswap_bytes.tolist() == [0, *[2**63 - 1] * 3]
    assert copy.anon_pages.tolist() == [0, *[2**51 - 1] * 3]
    assert copy.events.tolist() == pytest.approx([0, *[2.0**65] * 3])
    assert copy.missing == 2**64 - 1 - 3


@pytest.mark.skipif(not EVIDENCE.exists(), reason="needs the project's evidence next to the repository")
def test_a_published_memory_stat(tmp_path: Path) -> None:
    text = EVIDENCE.read_text()
    (tmp_path / "memory.stat").write_text(text)
    copy = read(tmp_path)
    assert copy.file_pages.tolist() == [26927104 // 4096]
    assert copy.zswapped_pages.tolist() == [1458176 // 4096]
    assert copy.zswap_bytes.tolist() == [312451]
    refaults = 4031 + 9236 + 691 + 2553 + 691
    assert copy.events.tolist() == [refaults + 40473 + 20881 + 6019 + 4033 + 30578988 + 2925 + 1520 + 1141]


# ---- any tree --------------------------------------------------------------------------------------------------------

NUMBERS = st.integers(0, 1 << 40)
OWN = st.builds(pages, NUMBERS, NUMBERS, NUMBERS, NUMBERS, pgfault=NUMBERS, workingset_refault_file=NUMBERS)
NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="/"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..", "memory.stat", "cgroup.procs")
)
TREES = st.recursive(
    st.builds(Cgroup, OWN),
    lambda deeper: st.builds(Cgroup, OWN, st.dictionaries(NAMES, deeper, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=60)
@given(TREES, st.floats(1e-3, 1e10))
def test_any_tree(top: Cgroup, rate: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top.write(Path(folder))
        copy = read(Path(folder))
        assert all((Path(folder) / name).is_dir() for name in copy.names)
    own = top.own or {}
    assert copy.anon_pages.sum() == top.total("anon") // 4096
    assert copy.file_pages.sum() == top.total("file") // 4096
    assert copy.zswapped_pages.sum() == top.total("zswapped") // 4096
    assert copy.zswap_bytes.sum() == top.total("zswap")
    assert copy.events.sum() == pytest.approx(top.total("pgfault") + top.total("workingset_refault_file"))
    assert copy.anon_pages[0] == own["anon"] // 4096
    assert copy.zswap_bytes[0] == own["zswap"]
    count = len(copy.names)
    for cgroup in range(count):
        below = [c for c in range(count) if cgroup in copy.tree(rate, 0).ancestors(c)]
        assert below == list(range(cgroup, copy.end[cgroup]))
        if cgroup:
            above = copy.names[copy.parent[cgroup]]
            assert copy.names[cgroup].rpartition("/")[0] == above
            assert copy.level[cgroup] == copy.level[copy.parent[cgroup]] + 1
    rates = copy.tree(rate, 0).updates_per_s
    assert rates[0] == pytest.approx(rate)
    for cgroup in range(count):
        children = rates[copy.parent == cgroup].sum()
        assert rates[cgroup] >= children * (1 - 1e-9)
        if copy.events.any():
            mine = copy.events[cgroup] / copy.events.sum() * rate
            assert rates[cgroup] - children == pytest.approx(mine, abs=rate * 1e-9)


@pytest.mark.parametrize(
    ("rate", "cpus", "what"),
    [
        (0.0, 0, "updates_per_s"),
        (float("nan"), 0, "updates_per_s"),
        (1e11, 0, "updates_per_s"),
        (1.0, -1, "cpus_per_leaf"),
    ],
)
def test_rates_that_cannot_be(tmp_path: Path, rate: float, cpus: int, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        read(machine().write(tmp_path / "copy")).tree(rate, cpus)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        (b"anon 1\nfile -1\n", 2, "'file -1' is not a name and a whole number"),
        (b"anon 1\n\nfile 1\n", 2, "'' is not a name"),
        (b"\n", 1, "'' is not a name"),
        (b"anon 1\nzswap", 2, "'zswap' is not a name"),
        (b"anon  1\n", 1, "'anon  1' is not"),
        (b"anon 1 2\n", 1, "'anon 1 2' is not"),
        (b"anon 1\r\n", 1, "'anon 1\\r' is not"),
        (b"anon 1.5\n", 1, "'anon 1.5' is not"),
        (b"anon 0x10\n", 1, "'anon 0x10' is not"),
        (b"anon 1_0\n", 1, "'anon 1_0' is not"),
        ("anon \u0661\n".encode(), 1, "'anon \u0661' is not"),
        (b"\x1b[2J 1\n", 1, "'\\x1b[2J 1' is not"),
        (b"anon " + b"9" * 5000, 1, "...' is not a name and a whole number"),
        (b"anon 9223372036854775808\n", 1, "is beyond 63 bits; at most 9223372036854775807"),
        (b"anon 1\npgfault 18446744073709551616\n", 2, "is beyond 64 bits; at most 18446744073709551615"),
        (b"anon 1\nfile 2\nanon 1\n", 3, "'anon' is there a second time; each key is there once"),
        (b"anon 1\nfile \xff\n", 2, "not UTF-8; must be text"),
    ],
)
@pytest.mark.parametrize("file", ["memory.stat", "cgroup.stat", "a b/memory.stat"])
def test_bad_lines(tmp_path: Path, file: str, content: bytes, line: int, what: str) -> None:
    Cgroup({"anon": 0}, {"a b": Cgroup({})}).write(tmp_path)
    (tmp_path / file).write_bytes(content)
    message = refused(tmp_path, f": {file}:{line}: ", what)
    assert len(message) < len(str(tmp_path)) + 250


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        (PSI.replace("12.34", "-1.00"), 1, "is not like 'some avg10=0.00 "),
        (PSI.replace("12.34", "nan"), 1, "is not like"),
        (PSI.replace("12.34", "100.01"), 1, "averages up to 100.00"),
        (PSI.replace("99.00", "999.00"), 2, "averages up to 100.00"),
        (PSI.replace("full", "none"), 2, "is not like"),
        (PSI.replace("full", "some"), 2, "'some' is there a second time"),
        (PSI + "\n", 3, "'' is not like"),
        (PSI[:30], 1, "is not like"),
    ],
)
def test_bad_pressure(tmp_path: Path, content: str, line: int, what: str) -> None:
    Cgroup({"anon": 0}).write(tmp_path)
    (tmp_path / "memory.pressure").write_text(content)
    refused(tmp_path, f": memory.pressure:{line}: ", what)


def test_no_folder(tmp_path: Path) -> None:
    refused(tmp_path / "none", "cannot be read (No such file or directory)", "must be a copy of /sys/fs/cgroup")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "cannot be read (Not a directory)", "must be a copy of /sys/fs/cgroup")
    refused(Path("a\0b"), "a\\x00b: cannot be read (embedded null byte)", "must be a copy of /sys/fs/cgroup")
    refused(tmp_path / os.fsdecode(b"\xff\n"), "/\\udcff\\n: cannot be read", "must be a copy of /sys/fs/cgroup")


def test_no_memory_stat(tmp_path: Path) -> None:
    Cgroup(None, {"a": Cgroup(None, {"not found from above": Cgroup({"anon": 1})})}).write(tmp_path)
    refused(tmp_path, "no memory.stat in it or below", "must be a copy of /sys/fs/cgroup")


READ = ("memory.stat", "a/memory.stat", "cgroup.stat", "memory.pressure")


def link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def pipe(path: Path, target: Path) -> None:
    os.mkfifo(path)


def directory(path: Path, target: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("file", "make", "what"),
    [
        *((file, link, "Too many levels of symbolic links") for file in READ),
        *((file, pipe, "not a regular file") for file in READ),
        *((file, directory, "Is a directory") for file in ("cgroup.stat", "memory.pressure")),
    ],
)
def test_what_is_no_file(tmp_path: Path, file: str, make: Callable[[Path, Path], None], what: str) -> None:
    copy = Cgroup({"anon": 0}, {"a": Cgroup({})}).write(tmp_path / "copy")
    (tmp_path / "elsewhere").write_text("anon 4096\n")
    (copy / file).unlink(missing_ok=True)
    make(copy / file, tmp_path / "elsewhere")
    refused(copy, f": {file}: cannot be read ({what})", "must be a file, and no link")


def test_a_folder_named_as_a_file_is_a_folder(tmp_path: Path) -> None:
    copy = read(Cgroup({"anon": 4096}, {"a": Cgroup(None, {"memory.stat": Cgroup({"anon": 4096})})}).write(tmp_path))
    assert (copy.names, copy.anon_pages.tolist(), copy.skipped) == ([""], [2], 2)


def test_linked_folders_are_not_followed(tmp_path: Path) -> None:
    copy = machine().write(tmp_path / "copy")
    (copy / "loop").symlink_to(copy)
    (copy / "dangling").symlink_to(tmp_path / "none")
    (copy / "outside").symlink_to("/")
    assert len(read(copy).names) == 7
    assert read(copy).skipped == 3
    (tmp_path / "given").symlink_to(copy)
    assert len(read(tmp_path / "given").names) == 7, "the user may give a link"


@pytest.mark.parametrize("name", [b"bad\xff", b"two\nlines", b"\x1b[2J", b"\xc2\x85"])
def test_names_no_cgroup_has(tmp_path: Path, name: bytes) -> None:
    copy = Cgroup({"anon": 0}, {"a": Cgroup({})}).write(tmp_path)
    os.mkdir(os.fsencode(copy / "a") + b"/" + name)
    refused(copy, ": a/", "not a cgroup's name; must be UTF-8 without control characters")


def test_too_large_a_file(tmp_path: Path) -> None:
    lines = b"".join(b"key%d 1\n" % number for number in range(1 << 15))
    most = lines[: 256 << 10]
    Cgroup({}, {"a": Cgroup({})}).write(tmp_path)
    (tmp_path / "a" / "memory.stat").write_bytes(most[: most.rindex(b"\n") + 1])
    read(tmp_path)
    (tmp_path / "a" / "memory.stat").write_bytes(most + b"0")
    refused(tmp_path, "a/memory.stat: too large", "at most 262144 bytes")


def test_too_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cgroup({"anon": 0}, {"a": Cgroup({})}).write(tmp_path)
    monkeypatch.setattr(cgroup_folder, "MAX_BYTES", 14)
    read(tmp_path)
    (tmp_path / "cgroup.stat").write_text("nr_descendants 1\n")
    refused(tmp_path, "cgroup.stat: too large", "and 14 in all files")


def test_too_many_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine().write(tmp_path)
    monkeypatch.setattr(cgroup_folder, "MAX_CGROUPS", 10)
    assert read(tmp_path).skipped + len(read(tmp_path).names) == 10
    (tmp_path / "system.slice" / "eleventh").mkdir()
    refused(tmp_path, "too many", "at most 10 cgroups")


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cgroup({"anon": 0}, {"a": Cgroup({})}).write(tmp_path)
    monkeypatch.setattr(cgroup_folder, "MAX_ENTRIES", 5)
    read(tmp_path)
    (tmp_path / "a" / "sixth").write_text("")
    refused(tmp_path, ": a/", "at most 100000 cgroups, 5 files in all")


def test_too_deep(tmp_path: Path) -> None:
    deepest = tmp_path
    for _ in range(64):
        (deepest / "memory.stat").write_text("anon 4096\n")
        deepest = deepest / "d"
        deepest.mkdir()
    (deepest / "memory.stat").write_text("anon 4096\n")
    copy = read(tmp_path)
    assert copy.level[-1] == 64
    assert copy.anon_pages.tolist() == [*[0] * 64, 1]
    (deepest / "d").mkdir()
    refused(tmp_path, "d/d/d: too deep", "at most 64 levels below the top")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("file", ["", "memory.stat", "cgroup.stat", "a", "a/memory.stat"])
def test_unreadable(tmp_path: Path, file: str) -> None:
    copy = Cgroup({"anon": 0}, {"a": Cgroup({})}).write(tmp_path / "copy")
    (copy / "cgroup.stat").write_text("")
    (copy / file).chmod(0)
    try:
        refused(copy, f"{file}: cannot be read (Permission denied)", "must be a")
    finally:
        (copy / file).chmod(0o700)


@pytest.mark.parametrize("call", ["open", "scandir"])
def test_a_read_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fails(path: Path, *_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    Cgroup({"anon": 0}).write(tmp_path)
    monkeypatch.setattr(os, call, fails)
    refused(tmp_path, ": cannot be read (Permission denied); ", "must be a")


# ---- any content -----------------------------------------------------------------------------------------------------


def wrong(line: int, what: str) -> ConfigError:
    assert line >= 1
    assert what.isprintable()
    return ConfigError(KEY, line, what)


WORDS = ["anon", "zswap", "pgfault", " ", "\n", "-", "0", "18446744073709551615", "18446744073709551616", "\x85", "é"]
PIECES = st.lists(st.sampled_from(WORDS), max_size=12).map(lambda words: "".join(words).encode())
LINES = st.lists(st.sampled_from([*PSI.splitlines(), "some", "avg10=101.00", ""]), max_size=4)


@given(st.one_of(st.binary(max_size=200), PIECES))
def test_any_memory_stat(data: bytes) -> None:
    try:
        counters = parse_stat(data, wrong)
    except ConfigError:
        return
    assert all(0 <= value < 2**64 for value in counters.values())
    assert len(counters) == len(data.split(b"\n")) - (data.endswith(b"\n") or not data)


@given(st.one_of(st.binary(max_size=200), LINES.map("\n".join).map(str.encode), st.text().map(lambda t: t.encode())))
def test_any_memory_pressure(data: bytes) -> None:
    try:
        percent = parse_pressure(data, wrong)
    except ConfigError:
        return
    assert percent is None or 0 <= percent <= 100


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,12}", fullmatch=True), st.integers(0, 2**63 - 1)), st.booleans())
def test_what_a_kernel_writes_is_read(counters: dict[str, int], cut: bool) -> None:
    text = "".join(f"{key} {value}\n" for key, value in counters.items())
    assert parse_stat((text[:-1] if cut else text).encode(), wrong) == counters
