"""``train_sampling_strategy="balanced"``: rare classes more often, by the shares that its formula gives."""

from __future__ import annotations

import collections
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.data.test_limits import trainer_of
from trainwright import TrainingArguments
from trainwright.cli.app import app
from trainwright.data.asked_order import train_order
from trainwright.data.balance import weights_by_class
from trainwright.data.order import DrawnOrder


def imbalanced(count: int = 60) -> list[dict[str, torch.Tensor]]:
    return [{"x": torch.randn(6), "labels": torch.tensor(int(row % 10 == 0))} for row in range(count)]


def drawn(data: Any, epochs: int = 60, **options: Any) -> list[int]:
    order = train_order(data, 4, TrainingArguments("unused", train_sampling_strategy="balanced", **options))
    found = []
    for epoch in range(epochs):
        order.set_epoch(epoch)
        found += list(order)
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.one_of(st.none(), st.floats(0.2, 50)))
def test_a_class_has_the_weight_of_the_formula(classes: list[int], temperature: float | None) -> None:
    weights = weights_by_class(classes, temperature)
    share = {name: classes.count(name) / len(classes) for name in classes}
    wanted = {name: 1.0 if temperature is None else math.pow(p, 1 / temperature) for name, p in share.items()}
    for name in share:
        of_class = sum(float(weight) for weight, one in zip(weights, classes, strict=True) if one == name)
        assert of_class / float(weights.sum()) == pytest.approx(wanted[name] / sum(wanted.values()))


@pytest.mark.parametrize(("temperature", "share"), [(None, 0.5), (1.0, 0.1), (2.0, 0.25)])
def test_classes_are_drawn_by_their_shares(temperature: float | None, share: float) -> None:
    rows = drawn(imbalanced(), sampling_temperature=temperature)
    assert sum(row % 10 == 0 for row in rows) / len(rows) == pytest.approx(share, abs=0.03)
    counts = collections.Counter(row for row in rows if row % 10 == 0)
    assert len(counts) == 6
    assert max(counts.values()) < 1.5 * min(counts.values())


def test_a_small_temperature_leaves_the_largest_class() -> None:
    assert weights_by_class([0] * 8 + [1] * 2, 1e-4).tolist() == [0.125] * 8 + [0.0] * 2


def test_each_epoch_draws_anew_and_the_seed_decides() -> None:
    order, same, other = (DrawnOrder(torch.ones(50), seed) for seed in (1, 1, 2))
    first = list(order)
    assert first == list(same)
    assert first != list(other)
    order.set_epoch(1)
    assert list(order) != first
    assert len(order) == len(first) == 50


def test_what_has_no_weight_is_never_drawn() -> None:
    weights = torch.tensor([0.0, 0.0, 1.0, 0.0, 2.0, 0.0])
    order = DrawnOrder(weights.repeat(200), 3)
    assert {row % 6 for row in order} == {2, 4}


def test_a_class_is_found_in_every_kind_of_data(caplog: pytest.LogCaptureFixture) -> None:
    rows = imbalanced()
    as_lists = [{"text": "a", "lang": "de" if row % 10 else "en", "label": int(row % 10 == 0)} for row in range(60)]
    hub = Dataset.from_list(as_lists)
    pairs = [(row["x"], row["labels"]) for row in rows]

    class Kept(torch.utils.data.Dataset[Any]):
        targets = tuple(int(row["labels"]) for row in rows)

        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("no sample has to be read")

    whole = drawn(rows, epochs=2)
    for data in (as_lists, hub, hub.with_transform(lambda batch: {"x": batch["text"]}), pairs, Kept()):
        assert drawn(data, epochs=2) == whole
    assert drawn(hub, epochs=2, sampling_column="lang") == whole
    assert drawn([{"source": "wiki"}, {"source": "web"}], sampling_column="source")
    assert "Reading all" not in caplog.text
    assert drawn(torch.utils.data.TensorDataset(torch.arange(60), torch.stack([row["labels"] for row in rows])), 2)
    assert "Reading all 60 samples once to learn their classes" in caplog.text


@pytest.mark.parametrize(
    ("data", "options", "problem"),
    [
        (Dataset.from_dict({"text": ["a", "b"]}), {}, "columns of the training data are text: name the one"),
        (Dataset.from_dict({"label": [0, 1]}), {"sampling_column": "lang"}, "there is no 'lang'"),
        ([{"x": 1.0}], {}, "A sample of the training data holds x: name the one"),
        ([3.0], {}, "is a float"),
        ([{"labels": 0.5}], {}, "row 0 has 0.5"),
        ([{"labels": 1}, {"labels": None}], {}, "row 1 has nothing"),
        ([{"labels": torch.tensor([1, 0])}], {}, "row 0 has tensor"),
    ],
)
def test_data_without_a_class(data: Any, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        drawn(data, **options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"sampling_temperature": 2.0}, "acts with train_sampling_strategy='balanced' alone"),
        ({"sampling_column": "lang"}, "acts with train_sampling_strategy='balanced' alone"),
        ({"train_sampling_strategy": "balanced", "sampling_temperature": 0}, "must be above 0"),
        ({"train_sampling_strategy": "balanced", "sampling_temperature": -1.0}, "must be above 0"),
        ({"train_sampling_strategy": "balanced", "sampling_temperature": math.nan}, "finite number"),
        ({"train_sampling_strategy": "balanced", "overfit_batches": 2}, "keep one of them"),
    ],
)
def test_arguments_that_cannot_act(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        TrainingArguments("unused", **options)


def test_a_stream_is_refused(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(imbalanced())

    with pytest.raises(ValueError, match="balanced needs a dataset with a length"):
        trainer_of(tmp_path, Stream(), train_sampling_strategy="balanced", max_steps=2).train()


@pytest.mark.parametrize("options", [{}, {"max_tokens_per_batch": 16, "length_column_name": "count"}])
def test_a_resumed_run_draws_what_it_would_have_drawn(tmp_path: Path, options: dict[str, Any]) -> None:
    data = [{**row, "count": 3} for row in imbalanced(40)]
    settings = {"train_sampling_strategy": "balanced", "num_train_epochs": 2, "save_strategy": "steps", **options}
    torch.manual_seed(0)
    whole = trainer_of(tmp_path / "whole", data, save_steps=7, **settings)
    whole.train()
    torch.manual_seed(0)
    again = trainer_of(tmp_path / "again", data, save_steps=7, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-7"))
    steps = [entry.get("loss") for entry in whole.state.log_history]
    assert [entry.get("loss") for entry in again.state.log_history] == steps
    assert all(map(torch.equal, whole.model.state_dict().values(), again.model.state_dict().values()))


def test_an_experiment_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{x},{y},{'rare' if x == 0 else 'often'}" for x, y in itertools.product(range(9), range(9))]
    Path("points.csv").write_text("\n".join(["x,y,kind", *rows]) + "\n")
    Path("points.yaml").write_text(
        "model: {name: mlp}\ndata: {train: points.csv, target: kind, holdout: 0.2}\n"
        "training: {num_train_epochs: 1, train_sampling_strategy: balanced, report_to: none}\n"
    )
    assert CliRunner().invoke(app, ["train", "points.yaml"]).exit_code == 0
    refused = CliRunner().invoke(app, ["train", "points.yaml", "name=other", "training.sampling_column=colour"])
    assert refused.exit_code == 2
    assert "there is no 'colour'" in refused.output
