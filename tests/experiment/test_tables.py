"""Files read without the package datasets: what comes out is what that package reads."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright.config.errors import ConfigError
from trainwright.experiment.builtin_data import digits
from trainwright.experiment.tables import Table, read_table

# Words that mean something to one reader or another.
WORDS = st.sampled_from(
    [
        *("", "NA", "null", "None", "nan", "inf", "-inf", "Infinity", "True", "FALSE", "true", "yes"),
        *("0", "1", "-7", "+3", "007", " 4", "4 ", "2.5", ".5", "1e3", "1E-3", "1e400", "-0.0", "0x10", "1_000", "1,5"),
        *("9223372036854775807", "-9223372036854775808", "18446744073709551615", "\uff11"),
        *("a", "ü", "a b", 'say "x"', "2024-01-31", "line\nbreak"),
    ]
)


def theirs(kind: str, path: Path, **options: Any) -> list[dict[str, Any]]:
    table = datasets.load_dataset(kind, data_files=[str(path)], split="train", cache_dir=str(path.parent), **options)
    return list(table)


def bits(rows: Any) -> list[list[tuple[str, Any]]]:
    """Rows such that equal means the same type and the same bits."""

    def one(value: Any) -> Any:
        if isinstance(value, dict):
            return sorted((name, one(inner)) for name, inner in value.items())
        return struct.pack("d", value) if isinstance(value, float) and not math.isnan(value) else repr(value)

    return [[(name, one(value)) for name, value in row.items()] for row in rows]


def written(folder: Path, rows: Sequence[Sequence[str]], delimiter: str = ",") -> Path:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator="\n").writerows(rows)
    # Its name is new: what datasets has read before, it reads from its cache.
    path = folder / f"t{len(list(folder.iterdir()))}.csv"
    path.write_text(out.getvalue(), encoding="utf-8", newline="")
    return path


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_csv_file_has_the_values_that_datasets_reads(data: st.DataObject, tmp_path: Path) -> None:
    width, height = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 8))
    # Mostly one kind of value in a column, as tables have it.
    kinds = [data.draw(st.lists(WORDS, min_size=1, max_size=3)) for _ in range(width)]
    rows = [[data.draw(st.sampled_from(kinds[place])) for place in range(width)] for _ in range(height)]
    path = written(tmp_path, [[f"c{place}" for place in range(width)], *rows])
    assert bits(read_table([str(path)], "csv", {})) == bits(theirs("csv", path))


def test_whole_numbers_beyond_64_bits_are_what_datasets_makes_of_them(tmp_path: Path) -> None:
    """Which depends on what else is in the column, and on what comes first."""
    words = ["18446744073709551615", "9223372036854775807", "-9223372036854775808", "", "-7", "-0.0", "2.5", "a"]
    columns = list(itertools.product(words, repeat=3))
    header = [f"c{place}" for place in range(len(columns))]
    path = written(tmp_path, [header, *zip(*columns, strict=True)])
    assert bits(read_table([str(path)], "csv", {})) == bits(theirs("csv", path))


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    columns=st.lists(st.sampled_from(["int", "float", "text", "bool", "list", "object"]), min_size=1, max_size=4),
    data=st.data(),
)
def test_json_lines_have_the_values_that_datasets_reads(
    columns: list[str], data: st.DataObject, tmp_path: Path
) -> None:
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "int": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(allow_nan=False, allow_infinity=False),
        # A text that looks like a moment is read as one by datasets, and as the text it is by us.
        "text": st.text(st.characters(codec="utf-8", exclude_categories=["Nd", "Cs"]), max_size=8),
        "bool": st.booleans(),
        "list": st.lists(st.integers(0, 9), min_size=1, max_size=3),
        "object": st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.text("xyz", min_size=1, max_size=3)}),
    }
    height = data.draw(st.integers(1, 6))
    made = [{f"c{n}": data.draw(kinds[kind]) for n, kind in enumerate(columns)} for _ in range(height)]
    path = tmp_path / f"t{len(list(tmp_path.iterdir()))}.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made), encoding="utf-8", newline="")
    assert bits(read_table([str(path)], "json", {})) == bits(theirs("json", path))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("\ufeffa,b\r\n1,x\r\n2,y\r\n", {}),
        ("a,b\n1,x\n\n2,y", {}),
        ("a\tb\n1\tx, y\n2\ty\n", {"delimiter": "\t"}),
        ("a;b\n1,5;x\n2,5;y\n", {"sep": ";"}),
        ('a,b\n1,"two\nlines"\n2,"a ""quoted"" word"\n', {}),
        ("a,b,a\n1,2,3\n4,5,6\n", {}),
        (",b\n1,2\n4,5\n", {}),
        ("a,b\n1\n2,y\n", {}),
        ("a,b\n1,\n,2\n", {}),
    ],
)
def test_what_spreadsheets_write(text: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8", newline="")
    assert bits(read_table([str(path)], "csv", options)) == bits(theirs("csv", path, **options))


@pytest.mark.parametrize("text", ["one\ntwo\n", "one\r\n\r\ntwo", "ü\n"])
def test_lines_of_a_text(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text(text, encoding="utf-8", newline="")
    assert list(read_table([str(path)], "text", {})) == theirs("text", path)


def test_a_json_file_that_is_one_list(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"a": 1, "b": None}, {"a": 2.5, "b": "x"}], indent=1))
    assert bits(read_table([str(path)], "json", {})) == bits(theirs("json", path))


def test_a_field_of_any_length(tmp_path: Path) -> None:
    path = written(tmp_path, [["a", "b"], ["1", "long " * 100_000]])
    assert bits(read_table([str(path)], "csv", {})) == bits(theirs("csv", path))


def test_several_files_are_one_table(tmp_path: Path) -> None:
    """A column's type is that of all files together."""
    one = written(tmp_path, [["a", "b"], ["1", "x"]])
    two = written(tmp_path, [["a", "b"], ["2.5", "y"]])
    assert list(read_table([str(one), str(two)], "csv", {})) == [{"a": 1.0, "b": "x"}, {"a": 2.5, "b": "y"}]


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(rows=st.integers(2, 300), share=st.floats(0.01, 0.99), seed=st.integers(0, 2**32 - 1))
def test_the_same_rows_are_held_out(rows: int, share: float, seed: int) -> None:
    whole = {"row": list(range(rows))}
    try:
        expected: Any = datasets.Dataset.from_dict(whole).train_test_split(test_size=share, seed=seed)
    except ValueError:
        return  # nothing would be left to train
    found = Table(whole).train_test_split(test_size=share, seed=seed)
    for part in ("train", "test"):
        assert list(found[part]["row"]) == list(expected[part]["row"])


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("csv", b"a,b\n1,2\n1,2,3\n", r"t:3: 3 fields, and the first line has 2\."),
        ("csv", b'a,b\n1,"2\n', r"t:2: unexpected end of data"),
        ("csv", b"a,b\n1,\xfc\n", r"t: byte 6 shows that it is not in UTF-8. Save it as UTF-8, or name its encoding"),
        ("csv", b"a,b\n1,\0\n", r"t has zero bytes"),
        ("csv", b"a,b\n", r"t: it has no rows"),
        ("csv", b"", r"no rows"),
        ("json", b'{"a": 1}\n{"a": }\n', r"t:2: this is not JSON"),
        ("json", b"[" * 100_000, r"t: this is not JSON"),
        ("json", b'{"a": 1}\n7\n', r"t:2: a row is an object"),
        ("json", b'{"a": 1}\n{"a": "x"}\n', r"t: a: the column holds values of several kinds \(int, str\)"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(kind: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_table([str(path)], kind, {})


def test_options_of_datasets_that_are_not_known_here_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [["a", "b"], ["1", "2"]])
    with pytest.raises(ConfigError, match=r"skiprows needs the package datasets: pip install 'trainwright\[hf\]'"):
        read_table([str(path)], "csv", {"skiprows": 1})


def test_the_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    theirs: Any = load_digits()
    pixels, labels = digits()
    assert torch.equal(pixels, torch.tensor(theirs.images, dtype=torch.float32).unsqueeze(1) / 16)
    assert torch.equal(labels, torch.tensor(theirs.target))
