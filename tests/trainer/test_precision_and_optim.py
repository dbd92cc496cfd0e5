"""Number formats, seeds, optimizers, and what a run reports about itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models import Plain, classification_rows, sentence_rows, tiny_bert, tiny_gpt2, token_rows
from trainwright import Trainer, TrainerCallback, TrainerState, TrainingArguments

Make = Callable[..., TrainingArguments]
ROWS = classification_rows(16)
DEFAULTS: dict[str, Any] = {"max_steps": 4, "learning_rate": 1e-2, "per_device_train_batch_size": 4, "logging_steps": 1}


def train(make_args: Make, model: nn.Module | None = None, rows: Any = None, **kwargs: Any) -> Trainer:
    callbacks = kwargs.pop("callbacks", None)
    trainer = Trainer(
        Plain().float() if model is None else model,
        make_args(
            **{"max_steps": 4, "learning_rate": 1e-2, "per_device_train_batch_size": 4, "logging_steps": 1, **kwargs}
        ),
        train_dataset=ROWS if rows is None else rows,
        callbacks=callbacks,
    )
    trainer.train()
    return trainer


def logged(trainer: Trainer, name: str) -> list[Any]:
    return [log[name] for log in trainer.state.log_history if name in log]


class SeesTypes(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def logits(self, x: Tensor) -> Tensor:
        logits = super().logits(x)
        self.seen.add(logits.dtype)
        return logits


@pytest.mark.parametrize(
    ("flags", "dtype"), [({}, torch.float32), ({"bf16": True}, torch.bfloat16), ({"fp16": True}, torch.float16)]
)
def test_forward_runs_in_the_chosen_format_and_weights_stay_in_full(
    make_args: Make, flags: dict[str, bool], dtype: torch.dtype
) -> None:
    model = SeesTypes().float()
    trainer = train(make_args, model, **flags)
    assert model.seen == {dtype}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    full = train(make_args)
    assert logged(trainer, "loss") == pytest.approx(logged(full, "loss"), rel=2e-2)
    assert logged(trainer, "loss")[-1] != logged(trainer, "loss")[0]
    trainer.evaluate(ROWS)
    assert model.seen == {dtype}


class Overflows(Plain):
    """Multiplies its loss so far that the second step's scaled gradients leave float16's range."""

    calls = 0

    def forward(self, x: Tensor, labels: Tensor | None = None, **kwargs: Any) -> dict[str, Tensor]:
        out = super().forward(x, labels)
        self.calls += 1
        return {**out, "loss": out["loss"] * (torch.tensor(math.inf) if self.calls == 2 else 1.0)}


class Weights(TrainerCallback):
    def __init__(self) -> None:
        self.after: list[Tensor] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.after.append(model.first.weight.detach().clone())


def test_an_overflowing_fp16_step_is_skipped_and_the_schedule_waits(make_args: Make) -> None:
    weights = Weights()
    trainer = train(make_args, Overflows().float(), fp16=True, lr_scheduler_type="linear", callbacks=[weights])
    assert torch.equal(weights.after[1], weights.after[0])
    assert not torch.equal(weights.after[2], weights.after[1])
    assert logged(trainer, "learning_rate") == pytest.approx([1e-2, 0.75e-2, 0.75e-2, 0.5e-2])
    assert trainer.state.global_step == 4
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_an_fp16_step_without_a_target_changes_nothing(make_args: Make) -> None:
    rows = token_rows(4)
    rows[1]["labels"] = torch.full_like(rows[1]["labels"], -100)
    trainer = train(
        make_args, tiny_gpt2(), rows, fp16=True, per_device_train_batch_size=1, train_sampling_strategy="sequential"
    )
    assert trainer.state.global_step == 4
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


@pytest.mark.parametrize("flag", ["bf16_full_eval", "fp16_full_eval"])
def test_half_precision_evaluation_leaves_the_weights_alone(make_args: Make, flag: str) -> None:
    model = tiny_bert()
    rows = sentence_rows(8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    output = Trainer(model, make_args(**{flag: True})).predict(rows)
    full = Trainer(model, make_args()).predict(rows)
    assert output.predictions == pytest.approx(full.predictions, abs=2e-2)
    assert (output.predictions != full.predictions).any()
    for name, value in model.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name]), name


def dropping() -> nn.Module:
    model = Plain().float()
    model.first.register_forward_hook(lambda module, args, output: F.dropout(output, 0.5, module.training))
    return model


@pytest.mark.parametrize("full", [False, True])
def test_the_same_seed_gives_the_same_run_and_another_one_another(make_args: Make, full: bool) -> None:
    runs = [
        train(make_args, dropping(), seed=seed, full_determinism=full).model.state_dict()["first.weight"]
        for seed in (3, 3, 4)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert torch.are_deterministic_algorithms_enabled() is full


def test_gradients_are_clipped_and_the_norm_before_is_logged(make_args: Make) -> None:
    common = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_steps": 1}
    before = Plain().float().state_dict()

    def moved(limit: float) -> tuple[float, float]:
        trainer = train(make_args, max_grad_norm=limit, **common)
        after = trainer.model.state_dict()
        total = math.sqrt(sum(float((after[name] - before[name]).pow(2).sum()) for name in before))
        return total, logged(trainer, "grad_norm")[0]

    free, norm = moved(0.0)
    assert free == pytest.approx(norm, rel=1e-5)
    clipped, same_norm = moved(0.1)
    assert same_norm == pytest.approx(norm, rel=1e-6)
    assert clipped == pytest.approx(0.1, rel=1e-4)


class MeanOfWords(nn.Module):
    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(20, 4, sparse=sparse), nn.Linear(4, 3)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(self.head(self.words(x).mean(1)), labels)}


def test_sparse_gradients_are_clipped_like_others(make_args: Make) -> None:
    torch.manual_seed(1)
    rows = [{"x": torch.randint(0, 20, (5,)), "labels": torch.tensor(number % 3)} for number in range(16)]
    options: dict[str, Any] = {"optim": "sgd", "max_grad_norm": 0.1, "gradient_accumulation_steps": 2}
    sparse, dense = (train(make_args, MeanOfWords(sparse=kind), rows, **options) for kind in (True, False))
    assert logged(sparse, "grad_norm") == pytest.approx(logged(dense, "grad_norm"))
    for ours, expected in zip(sparse.model.parameters(), dense.model.parameters(), strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.slow
@pytest.mark.parametrize("optim", ["auto", "muon", "adafactor", "adamw_torch_fused", "rmsprop", "adagrad"])
def test_optimizers_by_name_learn(make_args: Make, optim: str) -> None:
    model = tiny_bert() if optim == "muon" else None
    rows = sentence_rows(16) if optim == "muon" else None
    trainer = train(make_args, model, rows, optim=optim, max_steps=30, learning_rate=2e-2)
    losses = logged(trainer, "loss")
    assert sum(losses[-5:]) < sum(losses[:5])
    if optim == "auto":
        assert type(trainer.optimizer) is torch.optim.AdamW
        assert trainer.optimizer.defaults["fused"] or trainer.optimizer.defaults["foreach"]


def test_schedule_free_evaluates_and_saves_the_averaged_weights(make_args: Make) -> None:
    args = {
        "optim": "schedule_free_adamw", "lr_scheduler_type": "constant", "max_steps": 6, "eval_strategy": "steps",
        "eval_steps": 3, "save_strategy": "steps", "save_steps": 3, "load_best_model_at_end": True,
        "learning_rate": 5e-2, "metric_for_best_model": "loss", "greater_is_better": True,
    }  # fmt: skip

    class InTrainMode(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
            assert optimizer.param_groups[0]["train_mode"]

    model = Plain().float()
    trainer = Trainer(model, make_args(**args), train_dataset=ROWS, eval_dataset=ROWS, callbacks=[InTrainMode()])
    trainer.train()
    assert trainer.state.best_global_step == 3
    # The checkpoint holds the weights that were evaluated, not those where gradients are taken, and so does the model.
    for _ in range(2):
        assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric, rel=1e-6)
    assert not trainer.optimizer.param_groups[0]["train_mode"]


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


@pytest.mark.slow
@pytest.mark.parametrize("optim", ["schedule_free_adamw", "muon", "adafactor"])
def test_resume_is_exact(make_args: Make, optim: str) -> None:
    scheduler = "constant" if optim.startswith("schedule_free") else "linear"
    common = {"optim": optim, "lr_scheduler_type": scheduler, "max_steps": 8, "save_strategy": "steps", "save_steps": 4}
    rows = sentence_rows(16)
    whole = train(make_args, tiny_bert(), rows, **common).model.state_dict()
    args = make_args(learning_rate=1e-2, per_device_train_batch_size=4, logging_steps=1, **common)
    first = train(make_args, tiny_bert(), rows, callbacks=[StopAt(4)], **common)
    assert first.state.global_step == 4
    resumed = Trainer(tiny_bert(seed=2), args, train_dataset=rows)
    resumed.train(resume_from_checkpoint=f"{args.output_dir}/checkpoint-4")
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, whole[name]), name


def test_fractions_of_the_run_are_resolved(make_args: Make) -> None:
    trainer = train(make_args, max_steps=20, logging_steps=0.1, warmup_steps=0.1)
    steps = [log["step"] for log in trainer.state.log_history if "loss" in log]
    assert steps == list(range(2, 21, 2))
    rates = logged(train(make_args, max_steps=20, logging_steps=1, warmup_steps=0.1), "learning_rate")
    assert rates[:3] == pytest.approx([0.0, 0.5e-2, 1e-2])
    assert rates[3] < rates[2]


@pytest.mark.slow
def test_memory_metrics_have_transformers_keys(make_args: Make) -> None:
    trainer = Trainer(Plain().float(), make_args(max_steps=1, skip_memory_metrics=False), train_dataset=ROWS)
    metrics = trainer.train().metrics
    for stage in ("init", "train"):
        assert {f"{stage}_mem_cpu_alloc_delta", f"{stage}_mem_cpu_peaked_delta"} <= set(metrics)
    assert metrics["before_init_mem_cpu"] > 2**20
    evaluated = trainer.evaluate(ROWS)
    assert {"eval_mem_cpu_alloc_delta", "eval_mem_cpu_peaked_delta"} <= set(evaluated)
    assert "init_mem_cpu_alloc_delta" not in evaluated
    predicted = trainer.predict(ROWS).metrics
    assert predicted is not None
    assert "test_mem_cpu_alloc_delta" in predicted
    assert not any("mem" in name for name in train(make_args).evaluate(ROWS))


def test_profile_writes_a_trace_of_the_steps_asked_for(
    make_args: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(make_args, profile="steps 2-3")
    folder = tmp_path / "run" / "profile"
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    updates = [event for event in events if str(event.get("name", "")).startswith("Optimizer.step")]
    assert len(updates) == 2
    assert "aten::" in (folder / "summary.txt").read_text()
    said = (folder / "summary.md").read_text()
    assert said.startswith("# Profile of steps 2 to 3\n\n2 steps took ")
    assert "Most of the work: " in said
    assert "| matrix multiplication | aten::addmm | " in said
    assert "Profile of steps 2 to 3 (" in capsys.readouterr().out


def test_a_profile_longer_than_the_run_is_still_written(make_args: Make, tmp_path: Path) -> None:
    train(make_args, profile="steps 3-90")
    assert (tmp_path / "run" / "profile" / "trace.json").stat().st_size > 0


def test_the_cache_is_emptied_at_the_interval(make_args: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[int] = []
    state = TrainerState()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator.memory, "empty_cache", lambda: emptied.append(state.global_step))
    trainer = Trainer(Plain().float(), make_args(torch_empty_cache_steps=2))
    for step in range(1, 6):
        state.global_step = step
        trainer.callback_handler.call_event("on_step_end", trainer.args, state, trainer.control)
    assert emptied == [2, 4]


def test_tokens_are_counted_with_and_without_padding(make_args: Make) -> None:
    rows = token_rows(8)
    common = {"max_steps": 2, "per_device_train_batch_size": 4, "train_sampling_strategy": "sequential"}
    everything = train(make_args, tiny_gpt2(), rows, include_num_input_tokens_seen="all", **common)
    assert everything.state.num_input_tokens_seen == 8 * 12
    assert logged(everything, "num_input_tokens_seen")[:2] == [48, 96]
    real = train(make_args, tiny_gpt2(), rows, include_num_input_tokens_seen="non_padding", **common)
    assert real.state.num_input_tokens_seen == sum(int(row["attention_mask"].sum()) for row in rows)
    assert "num_input_tokens_seen" not in train(make_args, tiny_gpt2(), rows, **common).state.log_history[0]


def test_operations_are_counted_as_transformers_estimates_them(make_args: Make) -> None:
    model = tiny_gpt2()
    trainer = train(make_args, model, token_rows(8), max_steps=3)
    expected = 6 * model.num_parameters(exclude_embeddings=True) * 3 * 4 * 12
    assert trainer.state.total_flos == expected > 0
    assert logged(trainer, "total_flos") == [expected]


class SometimesNaN(Plain):
    """NaN losses at the given calls, without harm to the weights."""

    def __init__(self, bad: set[int]) -> None:
        super().__init__()
        self.bad, self.calls = bad, 0

    def forward(self, x: Tensor, labels: Tensor | None = None, **kwargs: Any) -> dict[str, Tensor]:
        out = super().forward(x, labels)
        self.calls += 1
        return {**out, "loss": out["loss"] + math.nan} if self.calls in self.bad else out


@pytest.mark.parametrize("skip", [True, False])
def test_a_nan_loss_is_never_logged_as_zero(make_args: Make, skip: bool) -> None:
    common: dict[str, Any] = {"logging_steps": 2, "learning_rate": 0.0, "optim": "sgd", "max_grad_norm": 0.0}
    common |= {"logging_nan_inf_filter": skip, "per_device_train_batch_size": 16}
    good = logged(train(make_args, **common), "loss")[0]

    class Spared(SometimesNaN):
        def forward(self, x: Tensor, labels: Tensor | None = None, **kwargs: Any) -> dict[str, Tensor]:
            out = super().forward(x, labels)
            for parameter in self.parameters():
                parameter.register_hook(torch.nan_to_num)
            return out

    first, second = logged(train(make_args, Spared({1, 3, 4}).float(), **common), "loss")
    assert first == pytest.approx(good, rel=1e-5) if skip else math.isnan(first)
    assert math.isnan(second)


def test_a_second_training_reports_its_own_loss(make_args: Make) -> None:
    trainer = train(make_args, max_steps=40, learning_rate=5e-2)
    first = logged(trainer, "loss")
    again = trainer.train().training_loss
    assert again == pytest.approx(sum(logged(trainer, "loss")) / 40, rel=1e-5)
    assert again < sum(first) / 40
