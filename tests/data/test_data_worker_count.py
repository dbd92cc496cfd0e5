"""``dataloader_num_workers="auto"`` and how long training waited for data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.config.stored_arguments import FILE
from trainwright.data import worker_count
from trainwright.data.worker_count import auto_workers


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)), torch.tensor(index % 2)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([])


@pytest.mark.parametrize(
    ("cores", "processes", "workers"), [(1, 1, 0), (2, 1, 1), (8, 1, 7), (64, 1, 8), (8, 4, 1), (8, 8, 0), (2, 4, 0)]
)
def test_the_cores_to_spare_load_data(
    cores: int, processes: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_count, "_cores", lambda: cores)
    monkeypatch.setitem(os.environ, "LOCAL_WORLD_SIZE", str(processes))
    assert auto_workers(Rows()) == workers


@pytest.mark.parametrize("dataset", [[1, 2], (1, 2), TensorDataset(torch.ones(3, 2)), Stream(), None])
def test_data_in_memory_and_streams_need_none(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_count, "_cores", lambda: 16)
    assert auto_workers(dataset) == 0


def train(tmp_path: Path, dataset: Any, callbacks: Any = (), **options: Any) -> Any:
    torch.manual_seed(0)
    args = TrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=4, report_to="none", save_strategy="no", **options
    )
    trainer = Trainer(torch.nn.Linear(4, 2), args, train_dataset=dataset, callbacks=list(callbacks))
    trainer.train()
    return trainer


@pytest.mark.parametrize("workers", ["auto", 0])
def test_the_number_is_kept_and_changes_no_weight(
    tmp_path: Path, workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_count, "_cores", lambda: 2)
    trainer = train(tmp_path, Rows(), dataloader_num_workers=workers)
    number = 1 if workers == "auto" else 0
    assert trainer.args.dataloader_num_workers == number
    assert f"dataloader_num_workers: {number}\n" in (tmp_path / FILE).read_text()
    plain = train(tmp_path / "plain", Rows())
    assert torch.equal(trainer.model.weight, plain.model.weight)


def test_options_of_workers_go_with_auto_that_comes_to_none(tmp_path: Path) -> None:
    dataset = TensorDataset(torch.randn(16, 4), torch.arange(16) % 2)
    trainer = train(tmp_path, dataset, dataloader_num_workers="auto", dataloader_prefetch_factor=4)
    assert trainer.args.dataloader_num_workers == 0


@pytest.mark.parametrize("word", ["automatic", "", "1.5", -1])
def test_other_words_are_refused_with_those_that_fit(word: Any) -> None:
    with pytest.raises(ValueError, match=r'dataloader_num_workers=.*(a whole number, or "auto"|at least 0)'):
        TrainingArguments("runs", dataloader_num_workers=word)


def test_a_number_may_come_as_text() -> None:
    assert TrainingArguments("runs", dataloader_num_workers="3").dataloader_num_workers == 3


def test_the_share_of_waiting_is_told_at_each_log_and_is_no_part_of_it(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Listener(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append((state.data_wait, kwargs["logs"]))

    trainer = train(tmp_path, Rows(), [Listener()], logging_steps=1)
    assert len(seen) == 4
    *during, at_the_end = [share for share, _ in seen]
    assert all(0 < share < 1 for share in during)
    # Nothing was trained between the last log and the summary.
    assert at_the_end == 0
    assert not any("data_wait" in logs for _, logs in seen)
    assert "data_wait" not in trainer.state.to_json()
