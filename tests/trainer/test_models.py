"""Every shape of model and batch that people bring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from tests.acceleration.networks import llama
from tests.models import Bare, Plain, classification_rows, sentence_rows, tiny_bert, tiny_gpt2, token_rows
from trainwright import Trainer, TrainingArguments
from trainwright.engines.torch.acceleration.blocks import compilations

ROWS = classification_rows(16)


class ReturnsTuple(Plain):
    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:  # type: ignore[override]
        logits = self.logits(x)
        return (F.cross_entropy(logits, labels), logits) if labels is not None else (logits,)


class ReturnsScalar(Plain):
    def forward(self, x: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        return F.cross_entropy(self.logits(x), labels)


@dataclass
class Out:
    loss: Tensor | None
    logits: Tensor


class ReturnsDataclass(Plain):
    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:  # type: ignore[override]
        logits = self.logits(x)
        return Out(None if labels is None else F.cross_entropy(logits, labels), logits)


class ReturnsLogitsDict(Plain):
    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        return {"logits": self.logits(x)}


def weights_after(model: nn.Module, args: TrainingArguments, **kwargs: Any) -> dict[str, Tensor]:
    settings: dict[str, Any] = {"train_dataset": ROWS, **kwargs}
    Trainer(model, args, **settings).train()
    return model.state_dict()


@pytest.mark.parametrize("kind", [Bare, ReturnsTuple, ReturnsScalar, ReturnsDataclass, ReturnsLogitsDict])
def test_every_kind_of_output_trains_alike(make_args: Callable[..., TrainingArguments], kind: type[Plain]) -> None:
    args = make_args(max_steps=5, learning_rate=1e-2, per_device_train_batch_size=4)
    expected = weights_after(Plain().float(), args)
    for name, value in weights_after(kind().float(), args).items():
        torch.testing.assert_close(value, expected[name], msg=f"{kind.__name__} {name}")


@pytest.mark.parametrize("kind", [Plain, Bare, ReturnsTuple, ReturnsDataclass, ReturnsLogitsDict])
def test_every_kind_of_output_predicts_alike(make_args: Callable[..., TrainingArguments], kind: type[Plain]) -> None:
    model = kind().float()
    output = Trainer(model, make_args(per_device_eval_batch_size=5)).predict(ROWS)
    expected = model.logits(torch.stack([row["x"] for row in ROWS])).detach().numpy()
    assert output.predictions == pytest.approx(expected, abs=1e-6)
    assert output.label_ids.tolist() == [int(row["labels"]) for row in ROWS]
    assert output.metrics is not None
    assert "test_loss" in output.metrics


def test_pairs_of_tensors_are_a_dataset(make_args: Callable[..., TrainingArguments]) -> None:
    pairs = TensorDataset(torch.stack([row["x"] for row in ROWS]), torch.stack([row["labels"] for row in ROWS]))
    args = make_args(max_steps=5, learning_rate=1e-2, per_device_train_batch_size=4)
    expected = weights_after(Bare().float(), args)
    for name, value in weights_after(Bare().float(), args, train_dataset=pairs).items():
        torch.testing.assert_close(value, expected[name], msg=name)
    assert Trainer(Bare().float(), make_args()).predict(pairs).predictions.shape == (16, 3)


def test_a_model_without_a_loss_and_labels_says_what_is_missing(make_args: Callable[..., TrainingArguments]) -> None:
    rows = [{"x": row["x"]} for row in ROWS]
    with pytest.raises(ValueError, match="compute_loss_func"):
        Trainer(Bare().float(), make_args(max_steps=1), train_dataset=rows).train()


@pytest.mark.slow
def test_regression_with_real_labels(make_args: Callable[..., TrainingArguments]) -> None:
    rows = [{"x": row["x"], "labels": row["x"][:1]} for row in ROWS]
    model = Bare(6, 1).float()
    args = make_args(num_train_epochs=150, learning_rate=1e-2, per_device_train_batch_size=8)
    assert Trainer(model, args, train_dataset=rows, eval_dataset=rows).train().training_loss < 0.2


def test_label_smoothing_is_torchs(make_args: Callable[..., TrainingArguments]) -> None:
    args = make_args(max_steps=1, label_smoothing_factor=0.2, per_device_train_batch_size=16, logging_steps=1)
    model = tiny_bert()
    rows = sentence_rows(16)
    batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    labels = batch.pop("labels")
    expected = F.cross_entropy(model(**batch).logits, labels, label_smoothing=0.2).item()
    trainer = Trainer(model, args, train_dataset=rows)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-5)


def test_label_smoothing_shifts_for_a_causal_model(make_args: Callable[..., TrainingArguments]) -> None:
    model, rows = tiny_gpt2(), token_rows(8)
    batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    labels = batch.pop("labels")
    logits = model(**batch).logits[:, :-1].reshape(-1, 32)
    expected = F.cross_entropy(logits, labels[:, 1:].reshape(-1), label_smoothing=0.1).item()
    trainer = Trainer(model, make_args(label_smoothing_factor=0.1), eval_dataset=rows)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


def test_gradient_checkpointing_gives_the_same_gradients_with_less_saved(
    make_args: Callable[..., TrainingArguments],
) -> None:
    rows = token_rows(8)

    def run(checkpointing: bool) -> tuple[dict[str, Tensor], int]:
        saved = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal saved
            saved += tensor.numel() * tensor.element_size()
            return tensor

        model = tiny_gpt2()
        args = make_args(
            max_steps=2, gradient_checkpointing=checkpointing, per_device_train_batch_size=8, learning_rate=1e-2
        )
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            Trainer(model, args, train_dataset=rows).train()
        return model.state_dict(), saved

    (plain, kept), (checkpointed, kept_less) = run(False), run(True)
    for name, value in plain.items():
        torch.testing.assert_close(checkpointed[name], value, msg=name)
    assert kept_less < 0.5 * kept


def test_gradient_checkpointing_is_refused_where_the_model_cannot(make_args: Callable[..., TrainingArguments]) -> None:
    trainer = Trainer(Plain().float(), make_args(max_steps=1, gradient_checkpointing=True), train_dataset=ROWS)
    with pytest.raises(ValueError, match="gradient_checkpointing_enable"):
        trainer.train()


def test_neftune_is_noise_in_training_only_and_gone_afterwards(make_args: Callable[..., TrainingArguments]) -> None:
    rows = token_rows(8)
    model = tiny_gpt2()
    quiet = Trainer(model, make_args(), eval_dataset=rows).evaluate()["eval_loss"]
    args = make_args(
        max_steps=1, neftune_noise_alpha=5.0, learning_rate=0.0, logging_steps=1, per_device_train_batch_size=8
    )
    trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] != pytest.approx(quiet, rel=1e-4)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(quiet, rel=1e-6)
    assert not model.get_input_embeddings()._forward_hooks
    with pytest.raises(ValueError, match="get_input_embeddings"):
        Trainer(Plain().float(), args, train_dataset=ROWS).train()


@pytest.mark.slow
def test_torch_compile_trains_and_saves_the_plain_model(make_args: Callable[..., TrainingArguments]) -> None:
    args = make_args(
        max_steps=3, torch_compile=True, torch_compile_backend="aot_eager", learning_rate=1e-2, save_strategy="steps"
    )
    plain = weights_after(Plain().float(), make_args(max_steps=3, learning_rate=1e-2))
    trainer = Trainer(Plain().float(), args, train_dataset=ROWS)
    trainer.train()
    for name, value in trainer.model.state_dict().items():
        assert "_orig_mod" not in name
        torch.testing.assert_close(value, plain[name], msg=name)


@pytest.mark.full
@pytest.mark.filterwarnings("default")
def test_torch_compile_does_not_compile_again_for_each_length(make_args: Callable[..., TrainingArguments]) -> None:
    """Once for the first batch, once for any length, once for the smaller last batch of an epoch."""

    def texts(count: int) -> list[dict[str, Any]]:
        lengths = [2 + (number * 37) % 61 for number in range(count)]
        return [{"input_ids": list(range(3, 3 + length)), "labels": list(range(3, 3 + length))} for length in lengths]

    def padded(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        longest = max(len(sample["input_ids"]) for sample in samples)
        rows = [sample["input_ids"] + [0] * (longest - len(sample["input_ids"])) for sample in samples]
        ids = torch.tensor(rows)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}

    torch.compiler.reset()
    before = compilations()
    args = make_args(max_steps=45, per_device_train_batch_size=4, torch_compile=True, torch_compile_backend="aot_eager")
    Trainer(llama(), args, train_dataset=texts(163), data_collator=padded).train()
    assert compilations() - before <= 3


def test_model_init_makes_a_new_model_for_each_training(make_args: Callable[..., TrainingArguments]) -> None:
    trainer = Trainer(
        model_init=lambda: Plain().float(), args=make_args(max_steps=3, learning_rate=1e-2), train_dataset=ROWS
    )
    trainer.train()
    first = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, first[name]), name


def test_overflow_watch_names_the_module(make_args: Callable[..., TrainingArguments]) -> None:
    model = Plain().float()
    with torch.no_grad():
        model.second.weight.fill_(float("inf"))
    args = make_args(max_steps=1, debug="underflow_overflow")
    with pytest.raises(ValueError, match="second"):
        Trainer(model, args, train_dataset=ROWS).train()


@pytest.mark.slow
def test_two_trainers_do_not_disturb_each_other(make_args: Callable[..., TrainingArguments], tmp_path: Any) -> None:
    def build(name: str, rate: float) -> Trainer:
        args = make_args(max_steps=6, learning_rate=rate, output_dir=str(tmp_path / name))
        return Trainer(Plain().float(), args, train_dataset=ROWS)

    alone = []
    for name, rate in (("a", 1e-2), ("b", 1e-3)):
        trainer = build(name, rate)
        trainer.train()
        alone.append(trainer.model.state_dict())
    one, other = build("c", 1e-2), build("d", 1e-3)
    one.train()
    other.train()
    for together, expected in zip((one, other), alone, strict=True):
        for name, value in together.model.state_dict().items():
            assert torch.equal(value, expected[name])


def test_an_ensemble_is_a_model(make_args: Callable[..., TrainingArguments]) -> None:
    class Ensemble(nn.Module):
        """Members see the same batch; predictions are averaged."""

        def __init__(self) -> None:
            super().__init__()
            self.members = nn.ModuleList(Bare(seed=seed).float() for seed in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([member(x) for member in self.members]).mean(0)

    model = Ensemble()
    trainer = Trainer(model, make_args(num_train_epochs=30, learning_rate=3e-2), train_dataset=ROWS, eval_dataset=ROWS)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.5 * before
