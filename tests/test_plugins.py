"""Finding plugins, in this process: fake distributions on ``sys.path``."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from zexp import plugins
from zexp.errors import PluginError

GOOD = """
    from dataclasses import dataclass, field
    from zexp.hookspecs import hookimpl
    from zexp.kernel import PoolAccounting

    @dataclass
    class Policy(PoolAccounting):
        name: str = "{name}"
        batch: int = field(default=3, metadata={{"help": "pages"}})

        def total_pages(self, k, zswap):
            return k.load(zswap.stored_pages)

    @hookimpl
    def zexp_accounting_policies():
        return [Policy]
"""
numbers = itertools.count()
Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a distribution with one module and one entry point, as pip would leave it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(code: str, distribution: str = "acme-policies", version: str = "2.5") -> str:
        module = f"acme_plugin_{next(numbers)}"  # a fresh name: modules are imported once a process
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(code))
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[zexp]\nacme = {module}\n")
        return module

    return make


def test_the_first_party_policies_come_by_the_same_way() -> None:
    registry = plugins.load()
    assert {"eager", "lazy", "shared_atomic"} <= set(registry.policies["accounting"])
    shipped = [registry.find("accounting", n) for n in ("eager", "lazy", "shared_atomic")]
    shipped += [registry.find("flush", n) for n in ("sync", "ratelimited", "min_interval", "never")]
    assert {registry.origins[policy].distribution for policy in shipped} == {"zexp"}
    registry.require_sound()


def test_a_plugin_and_its_origin(install: Install) -> None:
    install(GOOD.format(name="acme"))
    registry = plugins.load()
    registry.require_sound()
    assert registry.find("accounting", "acme")().name == "acme"
    assert str(registry.origins[registry.find("accounting", "acme")]) == "acme-policies 2.5"


def test_unknown_names_get_near_matches() -> None:
    registry = plugins.load()
    with pytest.raises(
        PluginError, match=r"^policy/accounting=lasy: unknown policy; did you mean lazy\? allowed: eager"
    ):
        registry.find("accounting", "lasy")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("from dataclasses", "import no_such_module\n    from dataclasses"), "ModuleNotFoundError: No module named"),
        (("return [Policy]", "return [Policy"), "SyntaxError: "),
        (("from dataclasses", "raise SystemExit(3)\n    from dataclasses"), "SystemExit: 3"),
        (("def zexp_accounting_policies", "def zexp_acounting_policies"), "unknown hook 'zexp_acounting_policies'"),
        (
            ("return [Policy]", "return [int]"),
            "<class 'int'> is not a dataclass derived from zexp.kernel.PoolAccounting",
        ),
        (("return [Policy]", "return [Policy()]"), "is not a dataclass derived from"),
        (("return [Policy]", "return Policy"), "TypeError: 'ABCMeta' object is not iterable"),
        (("return [Policy]", "return 1 / 0"), "ZeroDivisionError"),
        (("def zexp_accounting_policies()", "def zexp_accounting_policies(x)"), "x"),
        (("    @dataclass\n", "\n"), "Policy is not decorated with @dataclass"),
        (('name: str = "acme"', 'name: str = "a b"'), "identifier, not 'a b'"),
        (("def total_pages", "def total_pags"), "Policy lacks total_pages"),
        (("total_pages(self, k, zswap)", "total_pages(self, k)"), "Policy.total_pages must take (self, k, zswap)"),
        (("batch: int", "batch: set[int]"), "a field that Hydra cannot set: Unexpected type annotation: set[int]"),
    ],
)
def test_a_broken_plugin_is_kept_aside_with_its_reason(install: Install, change: tuple[str, str], reason: str) -> None:
    code = GOOD.format(name="acme")
    assert change[0] in code
    install(code.replace(*change))
    registry = plugins.load()
    assert "eager" in registry.policies["accounting"], "the others still work"
    assert "acme" not in registry.policies["accounting"]
    (broken,) = registry.broken
    assert str(broken).startswith("plugin 'acme' of acme-policies 2.5 cannot be loaded: ")
    assert reason in str(broken)
    assert "\n" not in str(broken)
    with pytest.raises(PluginError, match="acme-policies"):
        registry.require_sound()


@pytest.mark.parametrize(("name", "other"), [("lazy", "zexp 0"), ("acme", "acme-policies 2.5")])
def test_two_plugins_claim_one_name(install: Install, name: str, other: str) -> None:
    install(GOOD.format(name=name))
    if name == "acme":
        install(GOOD.format(name=name), "other", "1")
    with pytest.raises(PluginError) as caught:
        plugins.load()
    text = str(caught.value)
    assert text.startswith(f"two plugins bring a policy/accounting={name}: ")
    assert other in text
    assert text.endswith("uninstall one")


def test_a_plugin_may_bring_nothing(install: Install) -> None:
    install("from zexp.hookspecs import hookimpl\n\n@hookimpl\ndef zexp_accounting_policies():\n    return []\n")
    registry = plugins.load()
    registry.require_sound()
    assert "acme-policies" not in {o.distribution for o in registry.origins.values()}
