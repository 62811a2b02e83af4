"""What a sweep's points are, and that composing them quickly gives what Hydra gives."""

from __future__ import annotations

from functools import cache
from typing import Any

import hydra
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from zexp import experiment
from zexp.compose import errors
from zexp.errors import ZexpError
from zexp.plugins import Registry
from zexp.sweep.points import Composer, expand, identity, parse, point_name, swept_keys

pytestmark = pytest.mark.usefixtures("composing")

SIZED = ("machine=laptop", "workload.total_size=1MiB")
FIXED = [
    *SIZED,
    "experiment=munmap_24g",
    "workload=store",
    "seed=5",
    "policy.accounting.own_line=true",
    "+published.when.seed=3",
    "published.when={a: 1}",
    "notes=${name}",
    "policy={accounting: null}",
    "++kernel.zpools=4",
]
VALUES = {
    "seed": ["0", "1", "x", "null", "007", "'2'"],
    "name": ["a", "'b c, d=e'", '"it\'s"', "${engine}", "ü", "null"],
    "notes": ["''", "'${name}'", "${workload.name}", "a\\,b", "1e3"],
    "workload.total_size": ["1MiB", "2MiB", "'3 MiB'", "null", "4096"],
    "workload.processes": ["1", "2", "true", "-1"],
    "workload.fill_percent": ["1"],
    "workload": ["munmap", "store", "{total_size: 9MiB}", "nosuch"],
    "policy/accounting": ["eager", "lazy", "shared_atomic"],
    "policy/accounting@policy.flush": ["lazy"],
    "policy/flush": ["sync", "min_interval"],
    "policy.flush": ["null", "{name: x}"],
    "policy.flush.name": ["y"],
    "policy.flush.sites": ["[memory_stat]", "[]"],
    "policy.accounting.own_line": ["true", "false"],
    "machine": ["laptop", "epyc_9684x"],
    "machine.ghz": ["3", "4.5", "fast"],
    "kernel": ["v6_8", "v6_12"],
    "kernel.zpools": ["1", "32"],
    "experiment": ["munmap_24g", "null"],
    "tracking.enabled": ["true", "off"],
    "sweep.subject_to": ["[a<1]"],
    "sweep.objective": ["m", "null"],
    "published": ["{source: s}", "null"],
    "published.source": ["s", "''"],
    "published.when.seed": ["1", "{a: 2}"],
    "hydra.verbose": ["true"],
}
Axis = tuple[str, list[str]]


@st.composite
def sweeps(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    """Fixed overrides, and points that all give values to the same keys."""
    fixed = draw(st.lists(st.sampled_from(FIXED), max_size=2, unique_by=lambda o: o.partition("=")[0]))
    keys = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3, unique=True))
    signs = [draw(st.sampled_from(["", "", "", "", "+", "++", "~"])) for _ in keys]
    points = [
        [f"{sign}{key}={draw(st.sampled_from(VALUES[key]))}" for sign, key in zip(signs, keys, strict=True)]
        for _ in range(draw(st.integers(1, 3)))
    ]
    return fixed, points


def plain(config: object) -> Any:
    return OmegaConf.to_container(config, resolve=True)


@cache
def by_hydra(overrides: tuple[str, ...]) -> Any:
    """The whole configuration, or what is wrong."""
    try:
        with errors():
            return plain(hydra.compose("config", list(overrides)))
    except ZexpError as error:
        return str(error)


def by_composer(composer: Composer, overrides: list[str]) -> Any:
    try:
        with errors():
            return plain(composer.compose(overrides))
    except ZexpError as error:
        return str(error)


# not shrunk, as each try takes a second
@settings(deadline=None, derandomize=True, database=None, max_examples=9, phases=(Phase.explicit, Phase.generate))
@example(([], [["machine=null", "seed=1"], ["machine=laptop", "seed=2"]]))
@given(sweeps())
def test_the_composer_gives_what_hydra_gives_for_every_point_whatever_came_before(
    registry: Registry, sweep: tuple[list[str], list[list[str]]]
) -> None:
    fixed, points = sweep
    composer = Composer(registry, "code", fixed)
    for overrides in [*points, *reversed(points[:-1])]:
        ours, theirs = by_composer(composer, overrides), by_hydra((*fixed, *overrides))
        # of two mistakes, Hydra may see the other one first
        assert ours == theirs or (isinstance(ours, str) and isinstance(theirs, str)), (fixed, overrides, ours, theirs)


@pytest.mark.parametrize(
    "overrides",
    [
        ["workload.total_size=1MiB", "workload={total_size: 3MiB}"],
        ["workload={total_size: 3MiB}", "workload.total_size=1MiB"],
        ["seed=1", "++seed=2"],
        ["seed=1", "~seed"],
        ["name=b", "notes=${name}"],
    ],
)
def test_of_overrides_that_touch_each_other_the_last_counts_as_with_hydra(
    registry: Registry, overrides: list[str]
) -> None:
    assert by_composer(Composer(registry, "code", []), overrides) == by_hydra(tuple(overrides))


def test_an_experiment_is_what_hydra_and_the_whole_configuration_would_make_it(registry: Registry) -> None:
    fixed = [*SIZED, "notes=${name}"]
    composer = Composer(registry, "code", fixed)
    for own in (["name=a", "workload.processes=2"], ["name=b", "workload.processes=1"]):
        quick = composer.experiment(own)
        whole = experiment.from_config(hydra.compose("config", [*fixed, *own]), registry)
        assert quick.config == whole.config
        assert quick.workload == whole.workload
        assert quick.notes == own[0].removeprefix("name=")
        assert (quick.digest(), identity(quick, "c")) == (whole.digest(), identity(whole, "c"))


def test_plain_values_do_not_make_hydra_start_over(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    composed: list[list[str]] = []
    real = hydra.compose

    def counted(name: str, overrides: list[str]) -> object:
        composed.append(overrides)
        return real(name, overrides)

    monkeypatch.setattr(hydra, "compose", counted)
    composer = Composer(registry, "code", SIZED)
    for n in (1, 2, 4):
        for policy in ("eager", "lazy"):
            composer.point([f"policy/accounting={policy}", f"workload.processes={n}"])
    assert composed == [[*SIZED, "policy/accounting=eager"], [*SIZED, "policy/accounting=lazy"]]


# ---- expanding ----


def expanded(*overrides: str, together: list[list[str]] | None = None) -> tuple[list[str], list[tuple[str, ...]]]:
    return expand(parse(overrides), together or [])


def test_the_last_key_varies_fastest_and_what_is_fixed_stays_out() -> None:
    assert expanded("a=1,2", "c=z", "b=x,y") == (
        ["c=z"],
        [("a=1", "b=x"), ("a=1", "b=y"), ("a=2", "b=x"), ("a=2", "b=y")],
    )
    assert expanded("c=z") == (["c=z"], [()])


def test_of_a_key_given_twice_the_last_counts() -> None:
    assert expanded("a=1,2", "b=1", "a=3,4", "b=2") == (["b=2"], [("a=3",), ("a=4",)])
    assert expanded("a=1,2", "a=3") == (["a=3"], [()])
    assert expanded("a=3", "a=1,2") == ([], [("a=1",), ("a=2",)])
    assert expanded("policy/flush=a,b", "policy/flush=c") == (["policy/flush=c"], [()])


@pytest.mark.parametrize(
    ("override", "points"),
    [
        ("a=range(1,4)", ["a=1", "a=2", "a=3"]),
        ("a=range(0,1,0.5)", ["a=0.0", "a=0.5"]),
        ("a=choice(x,y)", ["a=x", "a=y"]),
        ("a=sort(3,1,2)", ["a=1", "a=2", "a=3"]),
        ("a='1,2','3'", ["a='1,2'", "a='3'"]),
        ("a=[1,2],[3]", ["a=[1,2]", "a=[3]"]),
        ("a={b:1},{b:2}", ["a={b:1}", "a={b:2}"]),
        ("a=null,1.50,''", ["a=null", "a=1.5", "a=''"]),
        ("+a.b=1,2", ["+a.b=1", "+a.b=2"]),
        ("++a.b=1,2", ["++a.b=1", "++a.b=2"]),
        ("g/h@k=1,2", ["g/h@k=1", "g/h@k=2"]),
    ],
)
def test_kinds_of_sweeps(override: str, points: list[str]) -> None:
    assert expanded(override) == ([], [(point,) for point in points])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8), min_size=2, max_size=4))
@settings(deadline=None, derandomize=True, database=None, max_examples=60)
def test_quoted_texts_come_through_whole(texts: list[str]) -> None:
    from zexp.compose import quoted

    _, points = expanded(f"name={','.join(map(quoted, texts))}")
    assert [parse(point)[0].value() for point in points] == texts


def test_values_keep_their_types() -> None:
    _, points = expanded("a=${b},true,null,1e3,'1e3'")
    values = [parse(point)[0].value() for point in points]
    assert [(type(value), value) for value in values] == [
        (str, "${b}"), (bool, True), (type(None), None), (float, 1000.0), (str, "1e3"),
    ]  # fmt: skip


def test_a_glob_gives_the_choices_of_a_group() -> None:
    from hydra.core.global_hydra import GlobalHydra

    loader = GlobalHydra.instance().config_loader()
    _, points = expand(parse(["policy/accounting=glob(*)", "kernel=glob(v6_1*)"], loader))
    kernels = [f"kernel={name}" for name in ("v6_1", "v6_12", "v6_17")]
    assert points == [(f"policy/accounting={p}", k) for p in ("eager", "lazy", "shared_atomic") for k in kernels]


def test_keys_that_vary_together() -> None:
    assert expanded("a=1,2", "b=x,y", "c=3,4", together=[["c", "a"]])[1] == [
        ("c=3", "a=1", "b=x"),
        ("c=3", "a=1", "b=y"),
        ("c=4", "a=2", "b=x"),
        ("c=4", "a=2", "b=y"),
    ]
    assert len(expanded("a=1,2", "b=1,2", "c=1,2,3", "d=1,2,3", together=[["a", "b"], ["c", "d"]])[1]) == 6


@pytest.mark.parametrize(
    ("together", "said"),
    [
        ([["a", "b"]], "a has 2, b has 3"),
        ([["a", "z"]], "a has 2, z has 0"),
        ([["a", "fixed"]], "a has 2, fixed has 0"),
        ([["a", "c"], ["d", "a"]], "a can vary with one list of keys only"),
    ],
)
def test_keys_that_cannot_vary_together(together: list[list[str]], said: str) -> None:
    with pytest.raises(ZexpError, match=rf"^hydra\.sweeper\.together: .*{said}$"):
        expanded("a=1,2", "b=1,2,3", "c=1,2", "d=1,2", "fixed=1", together=together)


def test_sweeps_without_points_and_without_steps_are_named() -> None:
    with pytest.raises(ZexpError, match=r"^a=range\(3,1\): this sweep has no points"):
        expanded("a=range(3,1)", "b=1,2")
    with pytest.raises(ZexpError, match=r"empty choice"):
        expanded("a=choice()")
    with pytest.raises(ZexpError, match=r"^a=interval\(0,1\): only a search takes a range .*hydra/sweeper=optuna"):
        expanded("a=interval(0,1)")
    with pytest.raises(ZexpError, match=r"^[^\n]*$"):
        expanded("a=1,,2")


# ---- what points are called, and which are the same ----


def test_identity_is_of_what_a_run_shows(registry: Registry) -> None:
    composer = Composer(registry, "code", SIZED)

    def of(*overrides: str) -> str:
        return composer.point(overrides).identity

    same = of("seed=1", "workload.processes=2")
    assert of("workload.processes=2", "seed=1") == same
    assert of("workload.processes='2'", "seed=01") == same
    assert of("seed=1", "workload.processes=2", "tracking.store=elsewhere", "tracking.enabled=false") == same
    assert of("seed=1", "workload.processes=2", "sweep.on_failure=stop", "sweep.workers=7") == same
    others = [
        of("seed=2", "workload.processes=2"),
        of("seed=1", "workload.processes=3"),
        of("seed=1", "workload.processes=2", "policy/accounting=lazy"),
        of("seed=1", "workload.processes=2", "seeds=2"),
        of("seed=1", "workload.processes=2", "name=other"),
        of("seed=1", "workload.processes=2", "notes=other"),
        of("seed=1", "workload.processes=2", "machine.ghz=3"),
        of("seed=1", "workload.processes=2", "published.source=other"),
        Composer(registry, "other code", SIZED).point(("seed=1", "workload.processes=2")).identity,
    ]
    assert len({same, *others}) == 10


def test_names(registry: Registry) -> None:
    exp = Composer(registry, "code", SIZED).experiment([])
    assert point_name(exp, []) == "adhoc eager"
    assert point_name(exp, ["policy/accounting=lazy", "workload.processes=8", "+a.b.c=x=y", "kernel=v6_8"]) == (
        "lazy processes=8 c=x=y kernel=v6_8"
    )


def test_swept_keys_are_those_of_the_configuration() -> None:
    points = [["policy/accounting=lazy", "workload.processes=8"], ["+seed=1", "machine=laptop", "seed=2", "++a.b=3"]]
    assert swept_keys(points) == ["policy.accounting.name", "workload.processes", "seed", "machine.name", "a.b"]
    assert swept_keys([["policy/flush@policy.flush=x"]]) == ["policy.flush.name"]
    assert swept_keys([]) == []


def test_mistakes_name_the_override(registry: Registry) -> None:
    composer = Composer(registry, "code", SIZED)
    for overrides, said in (
        (["workload.processes=x"], "workload.processes=x"),
        (["workload.proceses=1"], "did you mean processes"),
        (["kernel=v6_9"], "kernel=v6_9: unknown kernel; did you mean v6_8"),
        (["machine=null"], "machine=null: a group needs the name"),
        (["~workload=3"], "~workload=3: a group needs the name"),
        (["seeds=0"], "seeds=0: a whole number from 1 up"),
    ):
        with pytest.raises(ZexpError) as caught:
            composer.point(overrides)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
    assert composer.point(["workload.processes=1"]).name == "processes=1", "a mistake leaves nothing behind"
