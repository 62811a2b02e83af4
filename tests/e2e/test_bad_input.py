"""Mistakes: one clear line that names key, value and what is allowed, exit status 2, and nothing in the store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import SMALL, Cli, Install

SIZED = ("workload.total_size=1MiB",)
CHOICES = "allowed: eager, lazy, shared_atomic"


@pytest.fixture(scope="module")
def shared(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """One store for many mistakes: it must have no run after any of them."""
    folder = tmp_path_factory.mktemp("shared")
    shutil.copytree(template, folder / "store")
    (folder / "cwd").mkdir()
    (folder / "home").mkdir()
    cli = Cli(folder / "store", folder / "cwd")
    yield cli
    assert cli.runs() == []
    assert list(cli.cwd.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        # what does not exist, with near matches
        ((*SIZED, "policy/accounting=egaer"), ("policy/accounting=egaer", "did you mean eager?", CHOICES)),
        (("machine=epyc_9684",), ("machine=epyc_9684", "did you mean epyc_9684x", "allowed: epyc_7642,", "laptop")),
        (("kernel=v6_9",), ("kernel=v6_9", "did you mean v6_8", "allowed: cloudflare_mutex, v6_1, v6_12, v6_17,")),
        (("workload=unmap",), ("workload=unmap", "did you mean munmap?", "allowed: meminfo_reader, mixed, munmap")),
        (("experiment=munmap_24",), ("experiment=munmap_24", "did you mean munmap_24g?")),
        ((*SMALL, "engine=simm"), ("engine=simm", "did you mean sim?", "allowed: sim")),
        (("policy.accounting=lazy", *SMALL), ("policy/accounting=lazy", "choose one", CHOICES)),
        (("~policy/accounting", *SMALL), ("policy/accounting=None", "choose one", CHOICES)),
        # keys that do not exist
        ((*SMALL, "workload.proceses=3"), ("workload.proceses", "did you mean processes?", "compression_ratio")),
        ((*SMALL, "kernel.zpols=3"), ("kernel.zpols", "did you mean zpools")),
        ((*SMALL, "polcy/accounting=lazy"), ("polcy/accounting", "did you mean policy?")),
        ((*SMALL, "sed=3"), ("sed", "did you mean seed", "engine")),
        ((*SMALL, "policy.accounting.own_lin=true"), ("policy.accounting.own_lin", "did you mean own_line?")),
        ((*SMALL, "+workload.proceses=3"), ("workload.proceses=3", "unknown key", "did you mean processes?")),
        ((*SMALL, "+sed=3"), ("sed=3", "unknown key", "did you mean seed")),
        # names that label a choice but do not choose
        ((*SMALL, "policy.accounting.name=lazy"), ("policy.accounting.name=lazy", "policy/accounting=NAME", CHOICES)),
        ((*SMALL, "workload.name=store"), ("workload.name=store", "cannot be set", "workload=NAME")),
        # wrong types
        ((*SMALL, "workload.processes=many"), ("workload.processes=many", "Integer")),
        ((*SMALL, "workload.processes=1.5"), ("workload.processes=1.5", "Integer")),
        ((*SMALL, "workload.processes=null"), ("workload.processes=null", "not Optional")),
        ((*SMALL, "seed=x"), ("seed=x", "Integer")),
        ((*SMALL, "policy.accounting.own_line=perhaps"), ("policy.accounting.own_line=perhaps", "not a valid bool")),
        ((*SMALL, "kernel.zpools=[1]"), ("kernel.zpools=[1]",)),
        # not an override at all
        (("workload.size",), ("workload.size",)),
        (("workload.size={",), ("workload.size={",)),
        ((*SMALL, "workload.memory=${nowhere}"), ("Interpolation key 'nowhere' not found",)),
        # sizes
        (("workload.total_size=-24GiB",), ("workload.total_size=-24GiB", "above 0, like 24GiB")),
        (("workload.total_size=0",), ("workload.total_size=0", "above 0, like 24GiB")),
        (("workload.size=lots",), ("workload.size=lots", "a size like 24GiB, 512MiB or 4096")),
        (("workload.total_size=24XB",), ("workload.total_size=24XB", "a size like")),
        (("workload.size=100",), ("workload.size=100", "at least one page (4096 bytes)")),
        (("machine=laptop",), ("workload.size=None", "give either workload.size or workload.total_size")),
        ((*SMALL, "workload.size=1MiB"), ("workload.size=1MiB", "give either workload.size or workload.total_size")),
        (
            ("machine=laptop", "workload.total_size=24GiB"),
            ("workload.total_size=24GiB", "needs a pool of", "laptop lets zswap use 6.4 GiB (20 % of 32 GiB)"),
        ),
        (("workload=store", "workload.size=0"), ("workload.size=0", "above 0")),
        (("workload=mixed", "workload.store_size=-1"), ("workload.store_size=-1", "above 0")),
        # counts and choices
        ((*SMALL, "workload.processes=0"), ("workload.processes=0", "a whole number from 1 up")),
        ((*SMALL, "workload.processes=-3"), ("workload.processes=-3", "a whole number from 1 up")),
        ((*SMALL, "workload.processes=17"), ("workload.processes=17", "laptop has 16 CPUs")),
        ((*SMALL, "workload.compression_ratio=0.9"), ("workload.compression_ratio=0.9", "allowed: 1 to 128")),
        ((*SMALL, "workload.compression_ratio=nan"), ("workload.compression_ratio=nan", "allowed: 1 to 128")),
        ((*SMALL, "workload.memory=remote"), ("workload.memory=remote", "allowed: interleave, local")),
        ((*SMALL, "workload.placement=random"), ("workload.placement=random", "allowed: pack, spread")),
        ((*SMALL, "kernel.zpools=0"), ("kernel.zpools=0", "allowed: 1 to 4096")),
        ((*SMALL, "kernel.zswap_index=btree"), ("kernel.zswap_index=btree", "allowed: rbtree, xarray")),
        ((*SMALL, "kernel.costs.zs_free.instructions=-1"), ("kernel.costs.zs_free", "must not be negative")),
        ((*SMALL, "machine.ghz=0"), ("machine.ghz=0.0", "a number above 0 to 20")),
        ((*SMALL, "name="), ("experiment name ''", "1 to 256 printable characters")),
    ],
    ids=lambda value: " ".join(v for v in value if v not in SMALL),
)
def test_one_line(shared: Cli, arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    line = shared.mistake("run", *arguments)
    for part in parts:
        assert part in line


def test_unknown_command(shared: Cli) -> None:
    line = shared.mistake("rum")
    assert line == f"rum: unknown command; did you mean run? {line.partition('? ')[2]}"
    assert "explain, list, report, run, show, sync, ui" in line


def test_a_sweep_with_an_unknown_choice_runs_nothing(shared: Cli) -> None:
    line = shared.mistake("run", "-m", *SMALL, "policy/accounting=eager,lasy")
    assert "policy/accounting=lasy" in line
    assert "did you mean lazy" in line


@pytest.mark.slow
def test_a_failing_point_of_a_sweep_is_told_and_the_others_run(cli: Cli) -> None:
    done = cli("run", "-m", *SMALL, "workload.processes=1,17,2,0")
    assert done.returncode == 3
    first, second = done.stderr.splitlines()
    assert first.startswith("zexp: workload.processes=17: laptop has 16 CPUs, and each thread needs one [")
    assert second.startswith("zexp: workload.processes=0: a whole number from 1 up [")
    assert "workload.processes=17" in first.partition("[")[2], "with its overrides"
    runs = {r.params["workload.processes"]: r for r in cli.points()}
    assert {number: r.status for number, r in runs.items()} == {
        "1": "FINISHED", "17": "FAILED", "2": "FINISHED", "0": "FAILED",
    }  # fmt: skip
    assert "laptop has 16 CPUs" in (runs["17"].artifacts / "traceback.txt").read_text()
    assert len({r.tags["sweep"] for r in runs.values()}) == 1
    assert "comparison" in done.stdout
    assert "2 of 4 points finished, 2 failed" in done.stdout


# ---- plugins ---------------------------------------------------------------------------------------------------------

PLUGIN = """
    from dataclasses import dataclass
    from zexp.hookspecs import hookimpl
    from zexp.kernel import PoolAccounting

    @dataclass
    class Acme(PoolAccounting):
        name: str = "acme"
        batch: int = 3

        def validate(self):
            if self.batch < 1:
                raise ValueError("batch must be 1 or more")

        def entry_freed(self, k, zswap):
            k.call("acme_update", instructions=self.batch)

        def total_pages(self, k, zswap):
            return k.load(zswap.stored_pages)

    @hookimpl
    def zexp_accounting_policies():
        return [Acme]
"""
UPDATE = 'k.call("acme_update", instructions=self.batch)'


def broken(install: Install, cli: Cli, old: str, new: str, *arguments: str) -> tuple[str, Path]:
    assert old in PLUGIN
    file = install(PLUGIN.replace(old, new))
    line = cli.mistake("run", *SMALL, *(arguments or ("policy/accounting=acme",)))
    assert cli.runs() == []
    return line, file


@pytest.mark.slow
def test_a_sound_plugin_runs(cli: Cli, install: Install) -> None:
    install(PLUGIN)
    assert "acme_update" in cli.ok("run", *SMALL, "policy/accounting=acme", "policy.accounting.batch=4000")
    shown = cli.show()
    assert shown["config"]["policy"]["accounting"] == {"name": "acme", "batch": 4000}
    (run,) = cli.runs()
    assert run.tags["plugin.acme-policies"] == "2.5"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("from dataclasses", "import no_such_module\n    from dataclasses", "No module named 'no_such_module'"),
        ("return [Acme]", "return [Acme", "SyntaxError"),
        ("def zexp_accounting_policies", "def zexp_acounting_policies", "unknown hook 'zexp_acounting_policies'"),
        ("return [Acme]", "return [dict]", "<class 'dict'> is not a dataclass derived from"),
    ],
)
def test_a_plugin_that_cannot_be_loaded(cli: Cli, install: Install, old: str, new: str, reason: str) -> None:
    """Also if the run does not ask for it: a sweep over policies would otherwise miss some silently."""
    line, _ = broken(install, cli, old, new, "policy/accounting=lazy")
    assert line.startswith("plugin 'acme_policies' of acme-policies 2.5 cannot be loaded: ")
    assert reason in line


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("k.wrok(3)", "AttributeError: "),
        ("k.call('zs_fre')", "kernel.costs.zs_fre=missing"),
        ("k.release(k.spinlock('mine'))", "mine is released but not held"),
        ("if k.load(zswap.stored_pages) > 3: pass", "use `with k.if_(value):`"),
    ],
)
def test_a_policy_that_raises_while_it_is_staged(cli: Cli, install: Install, new: str, reason: str) -> None:
    line, file = broken(install, cli, UPDATE, new)
    assert line.startswith("policy/accounting=acme of plugin acme-policies 2.5 fails while it is staged, ")
    number = 1 + next(i for i, text in enumerate(file.read_text().splitlines()) if new in text)
    assert f"{file}:{number}: " in line
    assert reason in line


def test_a_policy_that_refuses_its_parameters(cli: Cli, install: Install) -> None:
    install(PLUGIN)
    line = cli.mistake("run", *SMALL, "policy/accounting=acme", "policy.accounting.batch=0")
    for part in ("policy.accounting", "acme-policies 2.5", "batch=0", "batch must be 1 or more"):
        assert part in line
    assert cli.runs() == []


def test_a_policy_that_fails_while_it_checks_its_parameters(cli: Cli, install: Install) -> None:
    line, file = broken(install, cli, "if self.batch < 1:", "if self.bach < 1:")
    assert line.startswith(
        f"policy/accounting=acme of plugin acme-policies 2.5 fails while it checks its parameters, {file}"
    )
    assert "has no attribute 'bach'" in line


@pytest.mark.slow
def test_a_policy_that_fails_while_it_runs(cli: Cli, install: Install) -> None:
    """The only mistake that can be found no earlier: its run is kept, marked FAILED, with the error."""
    install(PLUGIN.replace(UPDATE, "k.work(k.cpu // k.load(zswap.reached_full))"))
    line = cli.mistake("run", *SMALL, "policy/accounting=acme")
    assert "division by zero" in line
    assert "acme_policies.py" in line
    (run,) = cli.runs()
    assert run.status == "FAILED"
    assert "division by zero" in run.tags["error"]


def test_two_plugins_claim_one_name(cli: Cli, install: Install) -> None:
    install(PLUGIN)
    install(PLUGIN, module="other_policies", version="0.1")
    line = cli.mistake("run", *SMALL)
    assert line == (
        "two plugins bring a policy/accounting=acme: acme-policies 2.5 and other-policies 0.1; uninstall one"
    )
    assert cli.runs() == []


# ---- stores ----------------------------------------------------------------------------------------------------------


def test_a_store_below_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cli.store = tmp_path / "file" / "store"
    line = cli.mistake("run", *SMALL)
    assert line.startswith(f"store {cli.store}: {tmp_path / 'file'} is a file, not a folder")
    assert "ZEXP_STORE" in line
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_store_that_is_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    line = cli.mistake("run", *SMALL, f"tracking.store={tmp_path / 'file'}")
    assert f"{tmp_path / 'file'} is a file, not a folder" in line


def test_a_corrupt_store(cli: Cli) -> None:
    (cli.store / "mlflow.db").write_bytes(b"not a database" * 1000)
    for arguments in (("run", *SMALL), ("show", "last")):
        line = cli.mistake(*arguments)
        assert f"store {cli.store}: mlflow.db is not a usable MLflow database" in line
    assert (cli.store / "mlflow.db").read_bytes() == b"not a database" * 1000


def test_an_empty_database(cli: Cli) -> None:
    (cli.store / "mlflow.db").write_bytes(b"")
    assert "mlflow.db is not a usable MLflow database" in cli.mistake("run", *SMALL)


def test_no_store_is_needed_without_tracking(cli: Cli, tmp_path: Path) -> None:
    cli.store = tmp_path / "none"
    assert "munmap" in cli.ok("run", *SMALL, "tracking.enabled=false")
    assert not cli.store.exists()
