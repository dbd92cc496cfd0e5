"""``trainer.prove()``: what holds is said to hold, in time, and the Trainer stays as it is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.models import Bare, Plain, classification_rows, tiny_llama, token_rows
from tests.proving.faulty import Tagger
from trainwright import Module, Trainer, TrainerCallback
from trainwright.proving.result import Proof

BUDGET = 600.0


class Remembering(Trainer):
    """A subclass with things of its own that a training changes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[float] = []
        self.own = torch.Generator().manual_seed(3)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        self.seen.append(float(torch.rand((), generator=self.own)))
        return loss


class Counting(Dataset[Any]):
    """Counts how often it was asked."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows, self.asked = rows, 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        return self.rows[index]


class Writes(TrainerCallback):
    """Would write a file for each step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        (self.folder / f"step-{state.global_step}").touch()


class Network(Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Bare()

    def training_step(self, batch: Any) -> Tensor:
        loss = nn.functional.cross_entropy(self.model(batch["x"]), batch["labels"])
        self.log("seen", loss)
        return loss


class OfTenTokens(Tagger):
    """Adds something to each token that has a row of its own for it."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Any = None, extra: Any = None) -> Any:
        logits = self.tags(self.words(input_ids) + extra[..., None])
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class AsksItsData(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(model, inputs, *args, **kwargs) * self.train_dataset.scale


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(classification_rows(40))


def outcomes(proof: Proof) -> dict[str, str]:
    return {row.name: row.outcome for row in proof.rows}


def test_a_good_language_model_passes_every_row_that_a_cpu_has(make_args: Callable[..., Any]) -> None:
    args = make_args(per_device_train_batch_size=6)
    proof = Trainer(tiny_llama(), args, train_dataset=token_rows(40)).prove(BUDGET, seed=3)
    assert proof.holds
    after = int(proof["resume after"].name.split()[-1])
    # An epoch of the first 16 samples has three steps.
    assert 3 < after < 7
    tried = {name for name, outcome in outcomes(proof).items() if outcome == "pass"}
    assert tried == {
        "the same steps, another seed",
        "the batch in 2 pieces",
        "micro_batch=1",
        "out of memory, then in pieces",
        "2 batches accumulated",
        "gradient checkpointing",
        "8 more pad tokens",
        "acceleration: logits",
        f"resume after step {after}",
        "2 processes (ddp)",
        "2 processes (fsdp)",
        "2 processes (tp)",
    }, str(proof)
    assert proof.format == "float64"
    # Norms and losses of transformers ask for float32: the comparison is in float64 all the same.
    assert all((proof[name].gradient or 0.0) < 1e-13 for name in tried if name.startswith(("the batch", "2 ", "8 ")))
    assert all((proof[name].weights or 0.0) <= proof[name].bounds.weights < 1e-6 for name in ("the batch", "2 batches"))  # type: ignore[union-attr]
    assert proof["acceleration: clip"].why is not None


@pytest.mark.full
@pytest.mark.filterwarnings("default")
def test_compiled_blocks_pass_too(make_args: Callable[..., Any]) -> None:
    args = make_args(per_device_train_batch_size=6)
    proof = Trainer(tiny_llama(), args, train_dataset=token_rows(40)).prove(400)
    assert proof["acceleration: blocks"].outcome == "pass", str(proof)


def test_the_trainer_stays_as_it_is(make_args: Callable[..., Any], tmp_path: Path) -> None:
    def trainer(folder: str) -> Remembering:
        rows = Counting(classification_rows(24))
        args = make_args(
            output_dir=str(tmp_path / folder), max_steps=4, per_device_train_batch_size=4, learning_rate=0.1
        )
        callback = Writes(tmp_path / folder)
        return Remembering(nn_with_dropout(), args, train_dataset=rows, callbacks=[callback])

    proven, other = trainer("proven"), trainer("other")
    before = {name: one.clone() for name, one in proven.model.state_dict().items()}
    ids = [id(parameter) for parameter in proven.model.parameters()]
    drawn = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    held = dict(vars(proven._setup))
    proof = proven.prove(BUDGET)
    assert proof.holds, str(proof)
    assert "Left out, because callbacks may write: Writes." in proof.notes
    assert vars(proven._setup) == held
    assert proven.optimizer is None
    assert proven.seen == []
    assert proven.train_dataset.asked == 0
    assert [id(parameter) for parameter in proven.model.parameters()] == ids
    assert all(torch.equal(one, before[name]) for name, one in proven.model.state_dict().items())
    assert all(parameter.grad is None for parameter in proven.model.parameters())
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == drawn[1:]  # type: ignore[index]
    assert torch.get_default_dtype() == torch.float32
    assert list((tmp_path / "proven").iterdir()) == []
    proven.train()
    other.train()
    assert proven.seen == other.seen
    assert all(torch.equal(one, other.model.state_dict()[name]) for name, one in proven.model.state_dict().items())


def nn_with_dropout() -> nn.Module:
    model = Plain()
    model.first = nn.Sequential(model.first, nn.Dropout(0.3))  # type: ignore[assignment]
    return model


@pytest.mark.slow
def test_a_trainer_can_be_proven_after_it_was_trained(make_args: Callable[..., Any]) -> None:
    optimizer = torch.optim.AdamW((model := Plain()).parameters(), lr=0.1)
    args = make_args(max_steps=3, per_device_train_batch_size=4)
    trainer = Trainer(model, args, train_dataset=classification_rows(24), optimizers=(optimizer, None))
    trainer.train()
    steps = trainer.state.global_step
    moments = [state["exp_avg"].clone() for state in optimizer.state.values()]
    proof = trainer.prove(BUDGET)
    assert proof.holds, str(proof)
    assert trainer.state.global_step == steps == 3
    assert trainer.optimizer is optimizer
    assert all(torch.equal(a, b["exp_avg"]) for a, b in zip(moments, optimizer.state.values(), strict=True))


def test_what_does_not_fit_the_budget_is_not_tried(make_args: Callable[..., Any]) -> None:
    trainer = Trainer(Plain(), make_args(), train_dataset=classification_rows())
    proof = trainer.prove(1e-3)
    assert set(outcomes(proof).values()) == {"not tried"}
    assert all(row.why is not None for row in proof.rows)
    assert proof["the batch"].why == "the rest of the budget is too short for it"
    assert proof.seconds < 5
    assert not proof.holds
    assert proof.as_dict()["holds"] is False
    assert "Nothing is proven" in str(proof)


def test_what_cannot_be_meant_is_refused(make_args: Callable[..., Any]) -> None:
    trainer = Trainer(Plain(), make_args(), train_dataset=classification_rows())
    for budget in (0, -1, float("nan"), None, "60", True):
        with pytest.raises(ValueError, match=r"budget=.* must be a number of seconds"):
            trainer.prove(budget)  # type: ignore[arg-type]
    for seed in ("a", 1.5, True, -1):
        with pytest.raises(ValueError, match=r"seed=.* must be a whole number"):
            trainer.prove(1, seed=seed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="train_dataset is empty"):
        Trainer(Plain(), make_args(), train_dataset=[]).prove(1)


def test_a_loss_that_is_no_number_is_called_so(make_args: Callable[..., Any]) -> None:
    rows = [row | {"x": row["x"] * float("nan")} for row in classification_rows()]
    with pytest.raises(ValueError, match="The loss of step 1 of a plain training is nan"):
        Trainer(Plain(), make_args(), train_dataset=rows).prove(5)


def test_what_a_callback_would_have_set_is_said(make_args: Callable[..., Any], tmp_path: Path) -> None:
    class Scaled(Plain):
        set_by_a_callback: Tensor

        def logits(self, x: Tensor) -> Tensor:
            return super().logits(x) * self.set_by_a_callback

    trainer = Trainer(Scaled(), make_args(), train_dataset=classification_rows(), callbacks=[Writes(tmp_path)])
    with pytest.raises(ValueError, match=r"no attribute 'set_by_a_callback'.*left out.*\(Writes\)"):
        trainer.prove(5)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["module", "stream", "loader"])
def test_modules_streams_and_own_loaders_are_proven_too(source: str, make_args: Callable[..., Any]) -> None:
    model = Network() if source == "module" else Plain()
    rows: Any = classification_rows(24)
    data: Any = {"module": rows, "stream": Stream(), "loader": DataLoader(rows, batch_size=6)}[source]
    args = make_args(max_steps=6, per_device_train_batch_size=6, learning_rate=0.1)
    proof = Trainer(model, args, train_dataset=data).prove(BUDGET)
    assert proof.holds, str(proof)
    passed = {name.partition(" after")[0] for name, outcome in outcomes(proof).items() if outcome == "pass"}
    assert passed >= {"micro_batch=1", "2 batches accumulated", "resume", "2 processes (ddp)"}, str(proof)
    assert bool(proof.notes) == (source == "stream")


def test_a_model_that_takes_no_padded_batch_does_not_fail(make_args: Callable[..., Any]) -> None:
    rows = [row | {"extra": torch.ones(len(row["input_ids"]))} for row in token_rows(8, longest=6)]
    proof = Trainer(OfTenTokens(), make_args(), train_dataset=rows).prove(BUDGET)
    assert proof["8 more"].outcome == "not tried"
    assert "a batch that prove padded is refused: RuntimeError" in (proof["8 more"].why or "")
    assert proof.holds, str(proof)


def test_a_loss_may_ask_the_dataset_where_it_is_cut_short(make_args: Callable[..., Any]) -> None:
    data: Any = Counting(classification_rows(64))
    data.scale = 2.0
    proof = AsksItsData(Plain(), make_args(), train_dataset=data).prove(BUDGET)
    assert proof["resume after"].outcome == "pass", str(proof)


def test_a_proof_is_json(make_args: Callable[..., Any]) -> None:
    proof = Trainer(Plain(), make_args(), train_dataset=classification_rows()).prove(BUDGET, seed=7)
    found = json.loads(json.dumps(proof.as_dict(), allow_nan=False))
    assert found["holds"] is True
    assert found["seed"] == 7
    assert list(found["rows"][0]) == [
        "name", "outcome", "why", "loss", "gradient", "weights", "bounds", "worst", "seconds"
    ]  # fmt: skip
    with pytest.raises(KeyError, match="there are the same steps"):
        proof["nothing"]
