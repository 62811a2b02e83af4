"""Nothing the sanitising produces is rejected by MLflow, and nothing is lost on the way."""
# mypy: allow-untyped-calls

from __future__ import annotations

import itertools
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from zexp.tracking import names
from zexp.tracking.quiet import prepare_mlflow

prepare_mlflow()

from mlflow.utils import validation  # noqa: E402

# Any text at all, and text made of what is likely to go wrong.
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=())), st.text(st.sampled_from("ab./ :-_%[]<>@\n\ud800é"), max_size=12)
)
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT)
KEYS = st.one_of(st.sampled_from(["a", "b", "a.b", "0", ""]), TEXT)
CONFIGS = st.dictionaries(
    KEYS,
    st.recursive(
        LEAVES, lambda c: st.one_of(st.lists(c, max_size=3), st.dictionaries(KEYS, c, max_size=3)), max_leaves=9
    ),
    max_size=4,
)


def unflatten(leaves: list[tuple[names.KeyPath, Any]]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for path, value in leaves:
        node: Any = root
        for key, following in itertools.pairwise(path):
            empty: Any = [] if isinstance(following, int) else {}
            if isinstance(node, list):
                assert isinstance(key, int)
                if key == len(node):
                    node.append(empty)
                node = node[key]
            else:
                node = node.setdefault(key, empty)
        if isinstance(node, list):
            assert path[-1] == len(node)
            node.append(value)
        else:
            node[path[-1]] = value
    return root


@given(CONFIGS)
def test_flatten_round_trips(config: dict[str, Any]) -> None:
    assert repr(unflatten(names.flatten(config))) == repr(config)


@given(CONFIGS)
def test_mlflow_accepts_all_params_and_none_is_lost(config: dict[str, Any]) -> None:
    params = names.params(config)
    assert len(params) == len(names.flatten(config))
    for key, value in params.items():
        kept = validation._validate_param(key, value)
        assert (kept.key, kept.value) == (key, value)
        value.encode()


@given(st.dictionaries(TEXT, st.one_of(st.floats(), st.integers(), st.just(10**400), st.just(-(10**400)))))
def test_mlflow_accepts_all_metrics(values: dict[str, float]) -> None:
    metrics, skipped = names.metrics(values)
    assert len(metrics) + len(skipped) == len(values)
    for key, value in metrics.items():
        validation._validate_metric(key, value, 0, 0)
        assert math.isfinite(value)


@given(st.lists(TEXT, unique=True))
def test_legal_names_are_distinct_and_keep_what_is_legal(originals: list[str]) -> None:
    made = names.legal_names(originals)
    assert len(set(made)) == len(originals)
    for before, after in zip(originals, made, strict=True):
        validation._validate_param_name(after)
        assert len(after) <= names.MAX_NAME
        if names.legal(before) == before:
            assert after == before


def test_clashes_do_not_depend_on_order_for_legal_names() -> None:
    assert names.legal_names(["a[0]", "a_0_"]) == ["a_0_-" + names.legal_names(["a[0]", "a_0_"])[0][-8:], "a_0_"]


def test_dotted_keys_do_not_shadow_nested_ones() -> None:
    assert sorted(names.params({"a.b": 1, "a": {"b": 2}}).values()) == ["1", "2"]


def test_plain_values() -> None:
    config: dict[str, object] = {
        "n": None,
        "t": True,
        "i": 3,
        "f": 2.5,
        "s": "x",
        "l": [1, {"k": "v"}],
        "e": {},
        "el": [],
    }
    assert names.params(config) == {
        "n": "null", "t": "true", "i": "3", "f": "2.5", "s": "x", "l.0": "1", "l.1.k": "v", "e": "{}", "el": "[]",
    }  # fmt: skip


def test_long_values_are_shortened_visibly() -> None:
    (value,) = names.params({"k": "x" * 7000}).values()
    assert len(value) == names.MAX_PARAM
    assert value.endswith("... (7000 characters, whole in config.yaml)")
    assert names.params({"k": "x" * names.MAX_PARAM})["k"] == "x" * names.MAX_PARAM


def test_what_is_not_finite_is_named() -> None:
    assert names.metrics({"a": 1.0, "b%": math.inf, "c": math.nan}) == ({"a": 1.0}, ["b%=inf", "c=nan"])
