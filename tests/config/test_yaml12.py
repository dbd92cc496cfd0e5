"""YAML as YAML 1.2 reads it: what numbers are, where things stand, and what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainwright.config.errors import ConfigError
from trainwright.config.yaml12 import DEEPEST, read_yaml, write_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("+3", 3),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("2:4", "2:4"),
        ("1:30:00", "1:30:00"),
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("2026-11-15", "2026-11-15"),
        ("1_000", "1_000"),
        ("'1e-4'", "1e-4"),
        ("!!str 12", "12"),
        ("[1, a: 2]", [1, {"a": 2}]),
    ],
)
def test_plain_values(text: str, value: Any) -> None:
    assert read_yaml(f"key: {text}").data == {"key": value}


def test_not_a_number() -> None:
    assert math.isnan(read_yaml(".nan").data)


def test_lines_of_keys_and_items() -> None:
    document = read_yaml("a:\n  b: 1\n\n  c:\n  - x\n  - y: 2\n", "file.yaml")
    places: list[tuple[Any, ...]] = [("a",), ("a", "b"), ("a", "c", 1, "y"), ("a", "c", "nothing here")]
    assert [document.where(place) for place in places] == ["file.yaml:1", "file.yaml:2", "file.yaml:6", "file.yaml:4"]


def test_merging_keeps_what_is_written_nearer() -> None:
    text = "base: &b {x: 1, y: 2}\nother: {<<: *b, y: 3}"
    assert read_yaml(text).data["other"] == {"x": 1, "y": 3}


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{this}: &{this} [{', '.join(['*' + before] * 9)}]\n" for before, this in zip("abcdef", "bcdefg", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "aliases unfold to more than"),
        ("a: &a [*a]", "an alias stands inside what it stands for"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), f"more than {DEEPEST} levels"),
        ("[" * 5000, f"more than {DEEPEST} levels"),
        ("x: !!python/object/apply:os.system [ls]", r"x\.yaml:1: the tag !!python"),
        ("x: !Thing 3", "without a tag"),
        ("a: 1\nb: 2\na: 3", r"x\.yaml:3: 'a' is there twice, first on line 1"),
        ("a: [1, 2", r"x\.yaml:1:"),
        ("a: b: c", r"x\.yaml:1: mapping values are not allowed here"),
        ("? [1, 2]\n: 3", "a key must be one word"),
        ("a: *nothing", "undefined alias"),
        ("a: 1\n--- \nb: 2", "document"),
    ],
)
def test_refusals_name_the_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_yaml(text, "x.yaml")


# Line ends of all kinds are one line end to YAML.
words = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=12)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_json_is_yaml(value: Any) -> None:
    assert read_yaml(json.dumps(value)).data == value


@given(plain)
def test_what_is_written_comes_back(value: Any) -> None:
    assert read_yaml(write_yaml(value)).data == value


@pytest.mark.parametrize(
    "text", ["1e5", "no", "2:4", "1_000", "0x10", "2026-11-15", "null", "~", "<<", "1e-4", "=", ""]
)
def test_text_that_looks_like_something_else_stays_text(text: str) -> None:
    assert read_yaml(write_yaml({"key": text})).data == {"key": text}
    assert yaml.safe_load(write_yaml({"key": text})) == {"key": text}
