"""YAML as YAML 1.2 reads it: what numbers are, where things stand, and what is refused."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainwright.config.errors import ConfigError
from trainwright.config.yaml12 import DEEPEST, LARGEST_FILE, MOST_VALUES, read_text_file, read_yaml, write_yaml


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


# Large files: what is too large says so at once, what is not is read as a small one is.

TOO_MANY = {
    "a list": "a: [" + "1, " * 530_000 + "1]",
    "items": "a:\n" + "- 1\n" * 400_000,
    "keys": "".join(f"k{i}: {i}\n" for i in range(100_000)),
    "JSON": json.dumps({"a": [{"b": i, "c": "text"} for i in range(50_000)]}),
    "anchors": "".join(f"k{i}: &a{i} 1\n" for i in range(80_000)),
}


@pytest.mark.parametrize("text", TOO_MANY.values(), ids=TOO_MANY)
def test_too_many_values_are_named_within_a_second(text: str) -> None:
    begin = time.monotonic()
    with pytest.raises(ConfigError, match=r"x\.yaml:\d+: more than 50,000 values in one file\.$"):
        read_yaml(text, "x.yaml")
    # It took 24 seconds, and blamed aliases.
    assert time.monotonic() - begin < 10


LARGE = {
    "a list": ("a: [" + "1, " * (MOST_VALUES - 3) + "1e-4]", [1] * (MOST_VALUES - 3) + [1e-4]),
    "text": ('a: "' + "x" * 1_600_000 + '"', "x" * 1_600_000),
    "lines": ("a: |\n" + "  no: 1e5\n" * 150_000, "no: 1e5\n" * 150_000),
    "comments": ("# more\n" * 200_000 + "a: 2:4", "2:4"),
    "blanks": ("\n" * 1_000_000 + "a: no", "no"),
    "JSON with halves of characters": (
        json.dumps({"a": "\U0001f600" + "x" * 30_000}),
        "\U0001f600" + "x" * 30_000,
    ),
}


@pytest.mark.parametrize(("text", "value"), LARGE.values(), ids=LARGE)
def test_a_large_file_is_read(text: str, value: Any) -> None:
    document = read_yaml(text, "x.yaml")
    assert document.data == {"a": value}
    line = next(number for number, written in enumerate(text.splitlines(), 1) if written.startswith(("a:", "{")))
    assert document.where(("a",)) == f"x.yaml:{line}"


FILLING = "# filling\n" * 3_000


@pytest.mark.slow
@given(plain)
def test_a_large_file_means_what_a_small_one_means(value: Any) -> None:
    """They are read by two readers."""
    for text in (write_yaml({"key": value}), json.dumps({"key": value}, ensure_ascii=False)):
        small, large = read_yaml(text), read_yaml(FILLING + text)
        assert large.data == small.data == {"key": value}
        assert {place: line - 3_000 for place, line in large.lines.items()} == small.lines


@pytest.mark.parametrize(
    "text", ["!Prune {to: 0.9}", "- !Prune\n  to: 0.9\n- !Prune\n", "a: !Prune\n", "a: [1e-4, no, 2:4, ~, .inf, 0o17]"]
)
def test_names_and_numbers_in_a_large_file(text: str) -> None:
    assert read_yaml(FILLING + text, tagged=True).data == read_yaml(text, tagged=True).data


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILLING + "a: [1", r"x\.yaml:300\d: did not find expected"),
        (FILLING + "a: 1\na: 2", r"x\.yaml:3002: 'a' is there twice, first on line 3001"),
        (FILLING + "[" * 40, r"x\.yaml:3001: more than 32 levels"),
        (FILLING + "---\na: 1\n---\nb: 1", r"x\.yaml:3003: more than one document"),
        (FILLING + BOMB, "aliases unfold to more than"),
        ("---\n" * 400_000, r"x\.yaml:2: more than one document"),
        ("a: " + "1" * 1_600_000, "a number of 1600000 digits is too long"),
        ("a: !" + "x" * 1_600_000 + " 1", r"^x\.yaml:1: !x+ \[\.\.\.\] .*without a tag\.$"),
        ("a: \0", r"^x\.yaml: unacceptable character #x0000: special characters are not allowed\.$"),
        (FILLING + "a: \0", r"^x\.yaml: unacceptable character #x0000: control characters are not allowed\.$"),
        ("x" * (LARGEST_FILE + 1), "larger than 2 MB"),
        ("\ud800", r"^x\.yaml: unacceptable character"),
        (FILLING + "a: \ud800", r"^x\.yaml: .*surrogates not allowed\.$"),
    ],
    ids=range(13),
)
def test_refusals_are_one_line_whatever_the_size(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_yaml(text, "x.yaml")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1100


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_text_in_another_encoding_is_named(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "x.yaml").write_bytes("größe: 1\n".encode(encoding))
    with pytest.raises(ConfigError, match=r"UTF-8|special characters are not allowed"):
        read_yaml(read_text_file(tmp_path / "x.yaml"), "x.yaml")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes("\ufeffa: 1\r\nb: 2\r\n".encode())
    assert read_yaml(read_text_file(tmp_path / "x.yaml")).data == {"a": 1, "b": 2}


@pytest.mark.timeout(20)
def test_a_pipe_or_a_device_is_no_configuration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.yaml")
    for path in (tmp_path / "x.yaml", tmp_path, "/dev/zero"):
        with pytest.raises(ConfigError, match="a folder, a pipe or a device"):
            read_text_file(path)


def test_a_pipe_of_the_shell_is_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"a: 1")
    os.close(writer)
    assert read_text_file(f"/dev/fd/{reader}") == "a: 1"
    os.close(reader)
