"""Batches that do not fit: the step is undone and done again in pieces, and nothing else changes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models import Plain, classification_rows
from tests.unprepared import Unprepared
from trainwright import Trainer, TrainerCallback, TrainingArguments

Make = Callable[..., TrainingArguments]


class Failing(Plain):
    """Runs out of memory where it is told to; counts rows, and draws a random number for each, in the forward pass."""

    counted: Tensor
    drawn: Tensor

    def __init__(self, fails: Callable[[int, int], bool], *, in_backward: bool = False) -> None:
        super().__init__()
        self.register_buffer("counted", torch.zeros((), dtype=torch.long))
        self.register_buffer("drawn", torch.zeros((), dtype=torch.float64))
        self.fails, self.in_backward, self.calls = fails, in_backward, 0

    def forward(self, x: Tensor, labels: Tensor | None = None, **kwargs: Any) -> dict[str, Tensor]:
        self.calls += 1
        if self.training:
            self.counted += len(x)
            self.drawn += sum(random.random() for _ in range(len(x)))
        fails = self.fails(self.calls, len(x))
        if fails and not self.in_backward:
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")
        logits = self.logits(x)
        if fails:
            logits.register_hook(_out_of_memory)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits} if labels is not None else {"logits": logits}


def _out_of_memory(gradient: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory (injected)")


class Heard(TrainerCallback):
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append("begin")

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append("substep")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append("end")


class Popping(Trainer):
    """Takes the labels out of the batch, as many a script does."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs["logits"], labels)
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("micro_batch", ["auto", 2])
def test_a_loss_may_take_its_labels_out_of_the_batch(micro_batch: Any, make_args: Make) -> None:
    args = make_args(max_steps=3, per_device_train_batch_size=8, micro_batch=micro_batch, learning_rate=0.01)
    found = []
    for fails in (lambda call, rows: False, lambda call, rows: call == 2 and rows > 4):
        torch.manual_seed(0)
        trainer = Popping(Failing(fails), args, train_dataset=classification_rows(24))
        assert trainer.train().global_step == 3
        found.append({name: one.clone() for name, one in trainer.model.state_dict().items() if "weight" in name})
    for name, one in found[0].items():
        torch.testing.assert_close(found[1][name], one, rtol=1e-5, atol=1e-7)


ROWS = 44


def options(**more: Any) -> dict[str, Any]:
    return {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "include_num_input_tokens_seen": "no",
        **more,
    }


def trained(make_args: Make, model: Plain, **more: Any) -> tuple[Trainer, Heard]:
    heard = Heard()
    trainer = Trainer(model, make_args(**options(**more)), train_dataset=classification_rows(ROWS), callbacks=[heard])
    trainer.train()
    return trainer, heard


def never(call: int, rows: int) -> bool:
    return False


def assert_same_run(one: Trainer, other: Trainer) -> None:
    for (name, a), b in zip(one.model.state_dict().items(), other.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
    first, second = one.state.log_history, other.state.log_history
    assert [entry["step"] for entry in first] == [entry["step"] for entry in second]
    for a, b in zip(first[:-1], second[:-1], strict=True):
        assert a["learning_rate"] == b["learning_rate"]
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-6)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("in_backward", [pytest.param(False, marks=pytest.mark.full), True])
def test_an_error_at_any_call_leaves_no_trace(make_args: Make, in_backward: bool) -> None:
    """Every call of the first three steps fails once; weights, buffers, random numbers and events are as without."""
    whole, events = trained(make_args, Failing(never))
    calls = whole.model.calls
    assert calls == 12
    for k in range(1, 7):
        model = Failing(lambda call, rows, k=k: call == k, in_backward=in_backward)
        # Without the look before the first step, so that it is the step that fails.
        trainer = Unprepared(model, make_args(**options(micro_batch="auto")), train_dataset=classification_rows(ROWS))
        heard = Heard()
        trainer.add_callback(heard)
        trainer.train()
        assert model.calls > calls
        assert heard.events == events.events
        assert int(model.counted) == 2 * ROWS
        torch.testing.assert_close(model.drawn, whole.model.drawn, rtol=1e-12, atol=0)
        assert_same_run(trainer, whole)


@pytest.mark.slow
@pytest.mark.parametrize("largest", [7, 3, 1])
def test_batches_that_never_fit_run_in_pieces_from_the_first_step(
    make_args: Make, largest: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole, _ = trained(make_args, Failing(never))
    with caplog.at_level("INFO"):
        trainer, _ = trained(make_args, Failing(lambda call, rows: rows > largest), micro_batch="auto")
    assert_same_run(trainer, whole)
    assert trainer.model.state_dict()["counted"].item() == 2 * ROWS
    # Found before the first step, said once, shown with every log, and no step had to be done again.
    assert "does not fit into memory: it runs in" in caplog.text
    assert "is done again" not in caplog.text
    assert {entry["micro_batch"] for entry in trainer.state.log_history if "loss" in entry} == {
        max(size for size in (8, 4, 2, 1) if size <= largest)
    }
    events = [
        json.loads(line) for line in (Path(str(trainer.args.output_dir)) / "events.jsonl").read_text().splitlines()
    ]
    assert "cut" in {event["kind"] for event in events}


@pytest.mark.slow
def test_the_look_before_the_first_step_takes_the_longest_samples(make_args: Make) -> None:
    datasets = pytest.importorskip("datasets")
    lengths = [3, 9, 2, 7, 5, 8, 1, 4]
    data = datasets.Dataset.from_dict({"input_ids": [[1] * n for n in lengths], "labels": [0] * 8, "length": lengths})
    seen: list[tuple[int, ...]] = []

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 2)

        def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
            seen.append(tuple(input_ids.shape))
            return {"loss": F.cross_entropy(self.table(input_ids).mean(1), labels)}

    def padded(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
        longest = max(len(sample["input_ids"]) for sample in samples)
        ids = [sample["input_ids"] + [0] * (longest - len(sample["input_ids"])) for sample in samples]
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor([sample["labels"] for sample in samples])}

    args = make_args(per_device_train_batch_size=2, max_steps=1, micro_batch="auto")
    Trainer(Words(), args, train_dataset=data, data_collator=padded).train()
    assert seen[:3] == [(1, 9), (2, 9), (2, seen[2][1])]


def test_an_int_cuts_every_batch(make_args: Make) -> None:
    sizes: list[int] = []

    def note(call: int, rows: int) -> bool:
        sizes.append(rows)
        return False

    whole, _ = trained(make_args, Failing(never))
    trainer, _ = trained(make_args, Failing(note), micro_batch=3)
    assert_same_run(trainer, whole)
    assert max(sizes) == 3


@pytest.mark.slow
def test_evaluation_is_cut_on_its_own(make_args: Make) -> None:
    rows = classification_rows(21)

    def predictions(model: Plain, **more: Any) -> Any:
        trainer = Trainer(model, make_args(per_device_eval_batch_size=8, **more), compute_metrics=_accuracy)
        return trainer.predict(rows)

    expected = predictions(Failing(never))
    cut = predictions(Failing(lambda call, rows: rows > 3), micro_batch="auto")
    assert cut.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], abs=1e-6)
    assert cut.metrics["test_accuracy"] == expected.metrics["test_accuracy"]
    torch.testing.assert_close(torch.tensor(cut.predictions), torch.tensor(expected.predictions))
    with pytest.raises(torch.OutOfMemoryError):
        predictions(Failing(lambda call, rows: rows > 3))


def _accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_cut_it_had(make_args: Make) -> None:
    """Where pieces end decides how sums are rounded, so bit-equal needs the same cut."""
    more = {"micro_batch": "auto", "save_strategy": "steps", "save_steps": 2}

    def fails(call: int, rows: int) -> bool:
        return rows > 2

    whole, _ = trained(make_args, Failing(fails), **more)
    checkpoint = Path(str(whole.args.output_dir)) / "checkpoint-2"
    state = json.loads((checkpoint / "training_state.json").read_text())
    assert state["micro_batch"]["parts"] == 4
    tried: list[int] = []

    def note(call: int, rows: int) -> bool:
        tried.append(rows)
        return rows > 2

    trainer = Trainer(Failing(note), make_args(**options(**more)), train_dataset=classification_rows(ROWS))
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert max(tried) == 2
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[name]), name


@pytest.mark.slow
def test_a_rare_long_batch_does_not_slow_down_the_rest_of_the_run(make_args: Make) -> None:
    more = {"max_steps": 60, "gradient_accumulation_steps": 1, "num_train_epochs": 99}
    whole, _ = trained(make_args, Failing(never), **more)
    model = Failing(lambda call, rows: call == 3)
    args = make_args(**options(micro_batch="auto", **more))
    trainer = Unprepared(model, args, train_dataset=classification_rows(ROWS))
    trainer.train()
    sizes = {entry["step"]: entry["micro_batch"] for entry in trainer.state.log_history if "loss" in entry}
    assert [sizes[step] for step in (1, 2, 3, 51, 52, 60)] == [8, 8, 4, 4, 8, 8]
    assert_same_run(trainer, whole)


@pytest.mark.slow
def test_one_sample_that_does_not_fit_is_said(make_args: Make) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        trained(make_args, Failing(lambda call, rows: call > 1), micro_batch="auto")
    args = make_args(**options(micro_batch="auto"))
    trainer = Unprepared(Failing(lambda call, rows: True), args, train_dataset=classification_rows(8))
    with pytest.raises(torch.OutOfMemoryError) as error:
        trainer.train()
    assert "one sample at a time" in "".join(error.value.__notes__)


@pytest.mark.slow
def test_what_cannot_be_cut_is_refused_by_its_name(make_args: Make) -> None:
    def packed(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        rows = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
        return rows | {"cu_seq_lens": torch.tensor([0, 3, 7, 9, 12])}

    args = make_args(**options(micro_batch="auto"))
    model = Failing(lambda call, rows: rows > 2)
    trainer = Trainer(model, args, train_dataset=classification_rows(ROWS), data_collator=packed)
    with pytest.raises(ValueError, match="'cu_seq_lens' has the shape"):
        trainer.train()
    # As long as it fits, nobody has to cut it.
    trainer = Trainer(Failing(never), args, train_dataset=classification_rows(ROWS), data_collator=packed)
    assert trainer.train().global_step == 6


@pytest.mark.slow
def test_other_errors_are_not_taken_for_it(make_args: Make) -> None:
    class Wrong(Plain):
        def forward(self, x: Tensor, labels: Tensor | None = None, **kwargs: Any) -> dict[str, Tensor]:
            raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        trained(make_args, Wrong(), micro_batch="auto")


@pytest.mark.slow
def test_batchnorm_and_dropout_are_noted_once(make_args: Make, caplog: pytest.LogCaptureFixture) -> None:
    class Normed(Failing):
        def __init__(self) -> None:
            super().__init__(lambda call, rows: rows > 2)
            self.extra = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.1))

    trained(make_args, Normed(), micro_batch="auto")
    noted = [record for record in caplog.records if "BatchNorm takes its statistics from each piece" in record.message]
    assert len(noted) == 1
    assert "dropout" in noted[0].message


@pytest.mark.slow
def test_auto_find_batch_size_is_the_same_thing(make_args: Make) -> None:
    whole, _ = trained(make_args, Failing(never))
    trainer, _ = trained(make_args, Failing(lambda call, rows: rows > 4), auto_find_batch_size=True)
    assert_same_run(trainer, whole)
