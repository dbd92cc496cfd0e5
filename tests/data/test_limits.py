"""``limit_train_batches`` and its like: how many batches come, from every kind of data, and after every resume."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments


class Recording(Plain):
    """Remembers the first feature of every row that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor, labels: Any = None, **kwargs: Any) -> Any:
        if self.training:
            self.seen += x[:, 0].tolist()
        return super().forward(x, labels)


class Stream(IterableDataset[Any]):
    """No length, and no state."""

    def __iter__(self) -> Iterator[Any]:
        return iter(classification_rows(40))


class Stateful(Stream):
    """Knows how far it was read."""

    def __init__(self) -> None:
        self.start = self.now = 0

    def __iter__(self) -> Iterator[Any]:
        start, self.start = self.start, 0
        for self.now, row in enumerate(classification_rows(40)[start:], start + 1):
            yield row

    def state_dict(self) -> dict[str, int]:
        return {"now": self.now}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["now"]


def hugging_face_stream() -> Any:
    from datasets import Dataset

    rows = [{"x": row["x"].tolist(), "labels": int(row["labels"])} for row in classification_rows(40)]
    return Dataset.from_list(rows).to_iterable_dataset()


def trainer_of(folder: Path, data: Any, eval_data: Any = None, **settings: Any) -> Trainer:
    values: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "use_cpu": True,
        **settings,
    }
    return Trainer(Recording(), TrainingArguments(str(folder), **values), train_dataset=data, eval_dataset=eval_data)


def seen_by(trainer: Trainer) -> list[float]:
    model: Any = trainer.model
    return model.seen


SOURCES = {
    "rows": lambda: classification_rows(40),
    "a loader of one's own": lambda: DataLoader(classification_rows(40), batch_size=4),  # type: ignore[bad-argument-type]
    "a stream": Stream,
    "a stateful stream": Stateful,
    "a Hugging Face stream": hugging_face_stream,
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("step", [1, 3, 4])
def test_a_limited_run_resumes_exactly(kind: str, step: int, tmp_path: Path) -> None:
    """Three batches an epoch in groups of two: two steps an epoch, the second with one batch; from every place."""
    settings = {"limit_train_batches": 3, "gradient_accumulation_steps": 2, "max_steps": 6}
    whole = trainer_of(tmp_path, SOURCES[kind](), save_strategy="steps", save_steps=1, **settings)
    whole.train()
    assert len(seen_by(whole)) == 3 * 12
    assert whole.state.epoch == 3.0
    resumed = trainer_of(tmp_path, SOURCES[kind](), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    done = {1: 8, 3: 20, 4: 24}[step]
    assert seen_by(resumed) == seen_by(whole)[done:]
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name])
    losses = [[entry for entry in one.state.log_history if "loss" in entry] for one in (whole, resumed)]
    assert losses[0] == losses[1]


def test_each_epoch_of_a_shuffled_set_has_other_batches(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, classification_rows(40), limit_train_batches=0.25, num_train_epochs=2)
    trainer.train()
    assert trainer.state.global_step == 4
    first, second = seen_by(trainer)[:8], seen_by(trainer)[8:]
    assert set(first) != set(second)


@pytest.mark.parametrize("workers", [0, 1])
def test_workers_give_the_same_batches(workers: int, tmp_path: Path) -> None:
    trainer = trainer_of(
        tmp_path, classification_rows(40), limit_train_batches=2, num_train_epochs=2, dataloader_num_workers=workers
    )
    trainer.train()
    assert len(seen_by(trainer)) == 16
    assert trainer.state.global_step == 4


def test_a_budget_of_tokens_is_limited_in_every_epoch(tmp_path: Path) -> None:
    rows = [{**row, "length": 1 + index % 5} for index, row in enumerate(classification_rows(40))]
    settings = {"max_tokens_per_batch": 20, "limit_train_batches": 2, "num_train_epochs": 3}
    trainer = trainer_of(tmp_path, rows, **settings)
    trainer.train()
    assert trainer.state.global_step == 6


def test_evaluation_and_prediction_use_as_many_batches_as_they_may(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, None, limit_eval_batches=2, limit_predict_batches=0.5)
    rows = classification_rows(22)
    assert trainer.evaluate(rows)["eval_loss"] == pytest.approx(
        trainer_of(tmp_path, None).evaluate(rows[:8])["eval_loss"]
    )
    everything = trainer_of(tmp_path, None).predict(rows).predictions
    assert trainer.predict(rows).predictions.tolist() == everything[:12].tolist()
    stream = trainer_of(tmp_path, None, limit_predict_batches=2).predict(Stream())
    assert stream.predictions.shape == (8, 3)


def test_a_share_of_an_unknown_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"limit_train_batches=0\.5 is a share.*limit_train_batches=100"):
        trainer_of(tmp_path, Stream(), limit_train_batches=0.5, max_steps=3).train()
    with pytest.raises(ValueError, match=r"limit_eval_batches=0\.5 is a share"):
        trainer_of(tmp_path, None, limit_eval_batches=0.5).evaluate(Stream())


def test_a_share_of_few_batches_is_one_at_least(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, classification_rows(40), limit_train_batches=0.01, num_train_epochs=1)
    assert trainer.train().global_step == 1


class Evaluated(TrainerCallback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self.losses.append(metrics["eval_loss"])


def test_overfitting_sees_the_first_batches_again_and_again_and_is_judged_by_them(tmp_path: Path) -> None:
    rows = classification_rows(40)
    trainer = trainer_of(
        tmp_path, rows, overfit_batches=2, num_train_epochs=40, learning_rate=0.1, eval_strategy="epoch"
    )
    heard = Evaluated()
    trainer.add_callback(heard)
    trainer.train()
    expected = [float(row["x"][0]) for row in rows[:8]]
    assert seen_by(trainer) == expected * 40
    assert heard.losses[-1] < 0.05 < heard.losses[0]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(heard.losses[-2])


def test_a_stream_cannot_be_overfitted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a stream: give a dataset with an index, or use limit_train_batches"):
        trainer_of(tmp_path, Stream(), overfit_batches=2, max_steps=4).train()


def test_a_try_leaves_nothing_behind_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "run"
    trainer = trainer_of(
        folder,
        classification_rows(40),
        classification_rows(40),
        fast_dev_run=3,
        gradient_accumulation_steps=2,
        num_train_epochs=50,
        save_strategy="epoch",
        eval_strategy="epoch",
        load_best_model_at_end=True,
    )
    heard = Evaluated()
    trainer.add_callback(heard)
    with caplog.at_level(logging.WARNING, "trainwright"):
        output = trainer.train()
    assert output.global_step == 2
    assert len(seen_by(trainer)) == 12
    assert len(heard.losses) == 1
    trainer.save_model()
    assert not folder.exists()
    assert "That was a fast_dev_run: 3 batches of each kind, and nothing was kept." in caplog.text


def test_a_try_of_a_finished_run_does_not_touch_it(tmp_path: Path) -> None:
    rows = classification_rows(16)
    trainer_of(tmp_path, rows, max_steps=2, save_strategy="steps", save_steps=1).train()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    output = trainer_of(tmp_path, rows, max_steps=9, fast_dev_run=True, resume="auto").train(True)
    assert output.global_step == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
