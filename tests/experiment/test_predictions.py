"""``trainwright predict``: rows that people can use, in files that programs and spreadsheets can read."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from trainwright.cli.app import app
from trainwright.experiment.prediction_files import csv_text, write_rows
from trainwright.experiment.predictions import flat, prediction_rows
from trainwright.experiment.tables import Table
from trainwright.experiment.tasks.base import Prepared
from trainwright.experiment.tasks.tabular import described_classes

EXPERIMENT = """
model: {name: mlp, task: tabular-classification, options: {width: 8, layers: 1}}
data: {train: t.csv, target: kind, holdout: 0.25, features: [a, b]}
training: {num_train_epochs: 1, per_device_train_batch_size: 8, use_cpu: true, seed: 7}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    rows = "\n".join(f"{i},{i * i % 11},{'=1+1' if i else '-x'},{'xy'[i % 2]}" for i in range(64))
    (folder / "t.csv").write_text(f"a,b,note,kind\n{rows}\n")
    (folder / "e.yaml").write_text(EXPERIMENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder / "cache"))
        done = CliRunner().invoke(app, ["train", "e.yaml"])
        assert done.exit_code == 0, done.output
    return folder


def predict(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder / "cache"))
    return CliRunner().invoke(app, ["predict", "runs/e", "--data", "t.csv", *words])


def test_every_format_says_the_same(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("p.jsonl", "p.csv", "p.parquet"):
        told = predict(trained, monkeypatch, "--output", name)
        assert f"64 predictions in {name}" in told.output, told.output
    lines = [json.loads(line) for line in (trained / "p.jsonl").read_text().splitlines()]
    first = lines[1]
    assert first["index"] == 1
    assert first["input"] == {"a": 1, "b": 1, "note": "=1+1"}
    assert first["label"] == "y"
    assert first["prediction"] == max(first["probabilities"], key=first["probabilities"].__getitem__)
    assert sum(first["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    with (trained / "p.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["a"]) for row in table] == list(range(64))
    assert table[1]["note"] == "'=1+1"
    assert table[0]["note"] == "'-x"
    parquet = datasets.Dataset.from_parquet(str(trained / "p.parquet"), cache_dir=str(trained / "cache"))
    assert parquet[1] == flat(first)


def test_fewer_batches_are_fewer_rows(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--output", "f.jsonl", "training.limit_predict_batches=1", "training.per_device_eval_batch_size=5")
    assert "5 predictions" in predict(trained, monkeypatch, *words).output
    assert json.loads((trained / "f.jsonl").read_text().splitlines()[4])["input"]["a"] == 4


def test_a_file_is_there_whole_or_not_at_all(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = predict(trained, monkeypatch, "--output", "p.xlsx")
    assert wrong.exit_code == 2
    assert ".jsonl, .csv or .parquet, not as .xlsx" in wrong.output
    file = tmp_path / "p.jsonl"
    file.write_text("kept")
    with pytest.raises(ValueError, match="JSON compliant"):
        write_rows(file, [{"index": 0}, {"index": float("nan")}], is_ours=False)
    assert file.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [file]


def test_a_named_file_is_written_where_its_link_leads(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    write_rows(tmp_path / "link.csv", [{"index": 0, "prediction": "x"}], is_ours=False)
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_bytes() == b'"index","prediction"\r\n0,"x"\r\n'


def test_images_are_known_by_their_paths(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        image.new("RGB", (4, 4)).save(tmp_path / name / "1.png")
    rows = datasets.load_dataset("imagefolder", data_dir=str(tmp_path), split="train", cache_dir=str(tmp_path / "c"))
    model: Any = None
    prepared = Prepared(
        model,
        list,
        lambda found: described_classes(found, ["cat", "dog"]),
        target="label",
        facts={"classes": ["cat", "dog"]},
    )
    found = prediction_rows(prepared, rows, [0, 0], np.zeros((2, 2)))
    assert [row["label"] for row in found] == ["cat", "dog"]
    assert [Path(row["input"]["image"]).name for row in found] == ["1.png", "1.png"]


def test_what_is_no_row_has_no_input() -> None:
    """Blocks of a text: more or fewer samples than rows."""
    model: Any = None
    prepared = Prepared(model, list, lambda found: [{"loss": float(one)} for one in found], target=None)
    rows = Table({"text": ["a", "b"]})
    assert prediction_rows(prepared, rows, [0, 0, 0], np.asarray([1.0, 2.0, np.nan])) == [
        {"index": 0, "loss": 1.0},
        {"index": 1, "loss": 2.0},
        {"index": 2, "loss": None},
    ]


@given(
    st.lists(st.text(max_size=20) | st.text(alphabet=";=+-@\t\r\n \"',a1\uff1d", max_size=12), min_size=1, max_size=5)
)
def test_no_text_is_a_formula_whatever_takes_the_file_apart(texts: list[str]) -> None:
    made = csv_text([{"index": 0, **{f"{text}{place}": text for place, text in enumerate(texts)}}])
    (_, row) = csv.reader(io.StringIO(made, newline=""))
    for cell, text in zip(row[1:], texts, strict=True):
        is_number = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", cell, re.ASCII)
        assert is_number or cell.strip(" \t\r\n\"'")[:1] not in ("=", "+", "-", "@") or "'" in cell
        assert cell.lstrip()[:1] not in tuple("=+-@\uff1d\uff0b") or is_number
        # An apostrophe here and there is all that was added.
        assert cell.replace("'", "") == text.replace("'", "").replace("\0", "")
    # A spreadsheet with other separators sees other cells.
    for piece in re.split(r"[;\t\r\n]", made):
        assert not re.match("\\s*[=@\uff1d\uff0b]", piece)
