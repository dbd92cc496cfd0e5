"""What is copied is the copy's own; what cannot be copied is not used up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from tests.models import Plain, classification_rows
from trainwright import Trainer
from trainwright.proving.copies import copied
from trainwright.proving.duplicates import duplicate

LARGE = 2**16


class Remembers(Dataset[Any]):
    """Counts under a lock what it serves, in a table and in a number; reads a file."""

    def __init__(self, folder: Path) -> None:
        self.rows, self.lock, self.served = classification_rows(24), threading.Lock(), 0
        self.counts: dict[int, int] = dict.fromkeys(range(2000), 0)
        self.pixels, self.array = torch.zeros(LARGE), np.zeros(LARGE)
        (folder / "data.txt").write_text("0123456789")
        self.file = (folder / "data.txt").open()
        self.file.read(3)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            self.served += 1
            self.counts[index] += 1
            self.file.read(1)
        return self.rows[index]


class Eaten(IterableDataset[Any]):
    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return self.rows


class Averages(Trainer):
    average: torch.Tensor

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        self.average += 1
        return super().compute_loss(*args, **kwargs)


def test_large_state_of_an_optimizer_or_a_trainer_is_not_shared(make_args: Callable[..., Any], tmp_path: Path) -> None:
    model = Plain()
    optimizer = torch.optim.AdamW(model.parameters())
    state = optimizer.state[model.first.weight]
    state |= {"step": torch.ones(()), "exp_avg": torch.zeros(LARGE)}
    trainer = Averages(model, make_args(), train_dataset=classification_rows(), optimizers=(optimizer, None))
    trainer.average = torch.zeros(LARGE)
    copy = copied(trainer._setup, {}, str(tmp_path)).trainer
    copy.average += 1
    copy.optimizer.state[copy.model.first.weight]["exp_avg"] += 1
    assert trainer.average.sum() == 0
    assert state["exp_avg"].sum() == 0


@pytest.mark.parametrize("is_evaluated_on", [False, True])
def test_a_dataset_with_a_lock_is_copied_and_stays_where_it_is(
    is_evaluated_on: bool, make_args: Callable[..., Any], tmp_path: Path
) -> None:
    data = Remembers(tmp_path)
    trainer = Trainer(Plain(), make_args(), train_dataset=data, eval_dataset=data if is_evaluated_on else None)
    copy = copied(trainer._setup, {}, str(tmp_path / "copy")).trainer.train_dataset
    assert copy.lock is data.lock
    assert copy.pixels is data.pixels
    assert np.shares_memory(copy.array, data.array)
    with pytest.raises(ValueError, match="read-only"):
        copy.array[0] = 1
    proof = trainer.prove(5)
    assert proof["the batch in 2 pieces"].outcome == "pass"
    assert (data.served, sum(data.counts.values()), data.file.tell()) == (0, 0, 3)


def test_an_open_iterator_is_refused_and_not_read(make_args: Callable[..., Any]) -> None:
    rows = (row for row in classification_rows(40))
    trainer = Trainer(Plain(), make_args(max_steps=4), train_dataset=Eaten(rows))
    with pytest.raises(ValueError, match=r"open generator, which cannot be copied.*data that can be read again"):
        trainer.prove(5)
    assert sum(1 for _ in rows) == 40
    # A list's iterator can be copied, where it stands.
    listed = iter(classification_rows(40))
    trainer = Trainer(Plain(), make_args(max_steps=4), train_dataset=Eaten(listed))
    assert trainer.prove(5)["the batch in 2 pieces"].outcome == "pass"
    assert sum(1 for _ in listed) == 40


def test_what_closes_a_thing_at_its_end_is_refused(make_args: Callable[..., Any], tmp_path: Path) -> None:
    class Closes(Remembers):
        def __del__(self) -> None:
            self.file.close()

    with pytest.raises(ValueError, match=r"Closes cannot be copied .*give it a __deepcopy__"):
        Trainer(Plain(), make_args(), train_dataset=Closes(tmp_path)).prove(5)


def test_writes_into_shared_tensors_are_told(make_args: Callable[..., Any], tmp_path: Path) -> None:
    class Writes(Remembers):
        def __getitem__(self, index: int) -> Any:
            self.pixels[index] += 1
            return self.rows[index]

    proof = Trainer(Plain(), make_args(), train_dataset=Writes(tmp_path)).prove(0.01)
    assert any("writes into its own tensors" in note for note in proof.notes)

    class WritesArrays(Remembers):
        def __getitem__(self, index: int) -> Any:
            self.array[index] += 1
            return self.rows[index]

    with pytest.raises(ValueError, match=r"train_dataset writes into an array .*read-only"):
        Trainer(Plain(), make_args(), train_dataset=WritesArrays(tmp_path)).prove(0.01)


def test_a_loss_that_writes_into_shared_data_does_not_fail(make_args: Callable[..., Any], tmp_path: Path) -> None:
    class WritesLater(Averages):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            if self.args.gradient_accumulation_steps == 2:
                self.train_dataset.array[0] = 1
            return super().compute_loss(*args, **kwargs)

    trainer = WritesLater(Plain(), make_args(), train_dataset=Remembers(tmp_path))
    trainer.average = torch.zeros(())
    row = trainer.prove(600)["2 batches accumulated"]
    assert row.outcome == "not tried"
    assert "it writes into an array of the data" in (row.why or "")
    assert trainer.train_dataset.array[0] == 0


def test_references_lead_to_the_same_copy_also_in_a_circle() -> None:
    class Node:
        def __init__(self) -> None:
            self.lock, self.me, self.parts = threading.Lock(), self, [torch.ones(2)]

    node = Node()
    copy = duplicate({"a": node, "b": node}, {})
    assert copy["a"] is copy["b"]
    assert copy["a"].me is copy["a"] is not node
    assert copy["a"].parts[0] is not node.parts[0]
    assert copy["a"].lock is node.lock
