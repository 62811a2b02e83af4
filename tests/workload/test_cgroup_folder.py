"""A copied /sys/fs/cgroup: what is read from it, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zexp.errors import ConfigError
from zexp.kernel import PAGE_BYTES
from zexp.workload.cgroup_folder import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    CgroupFolder,
    parse_pressure,
    parse_stat,
    read_cgroup_folder,
)

KEY = "workload.folder"
EVIDENCE = Path(__file__).parents[3] / "shared" / "evidence" / "vmstat" / "down_2024_memory.stat"


def put(folder: Path, **memory: int) -> Path:
    """A cgroup's folder with a memory.stat."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.stat").write_text("".join(f"{name} {value}\n" for name, value in memory.items()))
    return folder


def read(folder: Path) -> CgroupFolder:
    return read_cgroup_folder(folder, KEY)


def refused(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(KEY)
    return message


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two slices, one of them with two services, as a machine would have them."""
    page = PAGE_BYTES
    top = put(tmp_path / "cg", anon=100 * page, file=50 * page, zswapped=30 * page, zswap=10 * page, pgfault=1000)
    (top / "cgroup.stat").write_text("nr_descendants 6\nnr_dying_descendants 2\n")
    (top / "memory.pressure").write_text(
        "some avg10=1.00 avg60=2.00 avg300=0.57 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.10 total=9\n"
    )
    put(top / "system.slice", anon=60 * page, file=20 * page, zswapped=30 * page, zswap=10 * page, pgfault=600)
    put(top / "system.slice" / "a b.service", anon=40 * page, zswapped=30 * page, zswap=10 * page, pgfault=500)
    put(top / "system.slice" / "sys-d\\x2de.mount", anon=5 * page, pgfault=50)
    put(top / "user-\N{GREEK SMALL LETTER MU}.slice", file=30 * page, pgfault=200, pgsteal_kswapd=7)
    (top / "nothing.slice" / "below").mkdir(parents=True)
    return top


def test_own_numbers_are_what_children_leave(machine: Path) -> None:
    found = read(machine)
    assert found.names == [
        "",
        "system.slice",
        "system.slice/a b.service",
        "system.slice/sys-d\\x2de.mount",
        "user-\N{GREEK SMALL LETTER MU}.slice",
    ]
    assert found.parent.tolist() == [-1, 0, 1, 1, 0]
    assert found.level.tolist() == [0, 1, 2, 2, 1]
    assert found.end.tolist() == [5, 4, 3, 4, 5]
    assert found.anon_pages.tolist() == [40, 15, 40, 5, 0]
    assert found.file_pages.tolist() == [0, 20, 0, 0, 30]
    assert found.zswapped_pages.tolist() == [0, 0, 30, 0, 0]
    assert found.zswap_bytes.tolist() == [0, 0, 10 * PAGE_BYTES, 0, 0]
    assert found.events.tolist() == [200, 50, 500, 50, 200]
    assert (found.dying, found.skipped, found.missing) == (2, 2, 0)
    assert found.psi_some_avg300_pct == 0.57


def test_traffic_follows_events(machine: Path) -> None:
    tree = read(machine).tree(1e6, 4)
    assert tree.updates_per_s == pytest.approx([1e6, 6e5, 5e5, 5e4, 2e5])
    assert tree.cpus_per_leaf == 4


def test_without_events_leaves_share_evenly(tmp_path: Path) -> None:
    top = put(tmp_path, anon=0)
    put(top / "a" / "x")
    put(top / "a")
    put(top / "b")
    assert read(top).tree(100, 0).updates_per_s == pytest.approx([100, 50, 50, 50])


def test_a_partial_copy_says_what_is_missing(tmp_path: Path) -> None:
    put(tmp_path, anon=1)
    (tmp_path / "cgroup.stat").write_text("nr_descendants 10\n")
    put(tmp_path / "a", anon=1)
    assert read(tmp_path).missing == 9


def test_a_top_without_memory_stat_has_what_is_below(tmp_path: Path) -> None:
    put(tmp_path / "a", anon=3 * PAGE_BYTES)
    found = read(tmp_path)
    assert found.names == ["", "a"]
    assert found.anon_pages.tolist() == [0, 3]


def test_not_copied_at_one_moment(tmp_path: Path) -> None:
    put(tmp_path, anon=PAGE_BYTES)
    put(tmp_path / "a", anon=4 * PAGE_BYTES)
    assert read(tmp_path).anon_pages.tolist() == [0, 4]


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[int, int]]:
    """For every cgroup but the top: its parent, and pages of its own."""
    count = draw(st.integers(1, 12))
    return [(draw(st.integers(0, i)), draw(st.integers(0, 1000))) for i in range(count)]


@given(shape=trees())
def test_any_tree(shape: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    top = tmp_path_factory.mktemp("tree")
    folders, parents, own = [top], [-1], [7]
    for i, (parent, pages) in enumerate(shape):
        folders.append(folders[parent] / f"c{i}")
        parents.append(parent)
        own.append(pages)
    total = list(own)
    for i in range(len(own) - 1, 0, -1):
        total[parents[i]] += total[i]
    for folder, pages in zip(folders, total, strict=True):
        put(folder, anon=pages * PAGE_BYTES, pgfault=pages)
    found = read(top)
    where = {str(folder.relative_to(top)).removeprefix("."): i for i, folder in enumerate(folders)}
    assert [own[where[name]] for name in found.names] == found.anon_pages.tolist()
    assert found.anon_pages.sum() == total[0]
    for i in range(1, len(found.names)):
        parent = int(found.parent[i])
        assert found.level[i] == found.level[parent] + 1
        assert parent < i < found.end[i] <= found.end[parent]
    tree = found.tree(5000.0, 0)
    assert tree.updates_per_s[0] == pytest.approx(5000)
    children = np.bincount(found.parent[1:], weights=tree.updates_per_s[1:], minlength=len(found.names))
    assert (tree.updates_per_s >= children * (1 - 1e-9)).all()


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        (b"anon 1\nfile\n", "memory.stat:2", "not a name and a whole number"),
        (b"anon -1\n", "memory.stat:1", "not a name and a whole number"),
        (b"anon 1.5\n", "memory.stat:1", "not a name and a whole number"),
        (b"anon 1\nanon 2\n", "memory.stat:2", "second time"),
        (b"anon 9223372036854775808\n", "memory.stat:1", "beyond 63 bits"),
        (b"pgfault 18446744073709551616\n", "memory.stat:1", "beyond 64 bits"),
        (b"anon 1\n\xff\xfe 2\n", "memory.stat:2", "not UTF-8"),
        (b"\x1b[31m 1\n", "memory.stat:1", "\\x1b"),
        (b"a 1\n" * (MAX_FILE_BYTES // 4 + 1), "memory.stat", "too large"),
    ],
)
def test_a_bad_memory_stat_is_named_with_its_line(tmp_path: Path, content: bytes, where: str, what: str) -> None:
    (tmp_path / "memory.stat").write_bytes(content)
    message = refused(tmp_path)
    assert where in message
    assert what in message


@pytest.mark.parametrize(
    "content", ["some avg10=1.00\n", "some avg10=0.00 avg60=0.00 avg300=100.01 total=1\n", "none\n"]
)
def test_a_bad_pressure_file(tmp_path: Path, content: str) -> None:
    put(tmp_path, anon=1)
    (tmp_path / "memory.pressure").write_text(content)
    assert "memory.pressure:1" in refused(tmp_path)


def test_no_folder_no_cgroups_no_links(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    assert "cannot be read" in refused(tmp_path / "file")
    assert "no memory.stat" in refused(tmp_path)
    (tmp_path / "memory.stat").symlink_to("/etc/hostname")
    assert "not a link" in refused(tmp_path)


def test_linked_folders_are_not_followed(tmp_path: Path) -> None:
    top = put(tmp_path / "top", anon=1)
    (top / "loop").symlink_to(top)
    assert read(top).names == [""]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "memory.stat")
    assert "no regular file" in refused(tmp_path)


def test_too_deep(tmp_path: Path) -> None:
    put(tmp_path, anon=1)
    (tmp_path / "/".join("d" * (MAX_DEPTH + 1))).mkdir(parents=True)
    assert f"{MAX_DEPTH + 1} levels" in refused(tmp_path)


def wrong(line: int, what: str) -> ConfigError:
    return ConfigError(KEY, line, what)


@given(data=st.binary(max_size=200) | st.text("anofile 0123456789\n", max_size=200).map(str.encode))
def test_parsers_return_or_refuse(data: bytes) -> None:
    for parser in (parse_stat, parse_pressure):
        try:
            parser(data, wrong)
        except ConfigError:
            continue


def test_a_real_memory_stat(tmp_path: Path) -> None:
    if not EVIDENCE.exists():
        pytest.skip(f"{EVIDENCE.name} is not beside this checkout")
    (tmp_path / "memory.stat").write_bytes(EVIDENCE.read_bytes())
    found = read(tmp_path)
    assert found.anon_pages.sum() + found.file_pages.sum() > 0
    assert found.events.sum() > 0
