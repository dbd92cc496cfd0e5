"""The same script under transformers' Trainer and ours."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import trainwright
from tests.models import sentence_rows, tiny_bert, tiny_llama

COMMON: dict[str, Any] = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 5,
    "learning_rate": 3e-3,
    "weight_decay": 0.01,
    "warmup_steps": 3,
    "logging_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "save_strategy": "steps",
    "save_steps": 4,
    "save_total_limit": 2,
    "disable_tqdm": True,
    "use_cpu": True,
    "report_to": "none",
    "load_best_model_at_end": True,
    "logging_first_step": True,
}


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


class Counter(transformers.TrainerCallback):
    """Written for transformers; runs on both."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_train_begin(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        assert {"model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader"} <= set(kwargs)
        self.events.append("train_begin")

    def on_epoch_begin(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.events.append("epoch_begin")

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.events.append(f"step {state.global_step} {state.epoch:.4f}")

    def on_evaluate(self, args, state, control, metrics, **kwargs):  # type: ignore[no-untyped-def]
        self.events.append("evaluate")

    def on_save(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.events.append("save")

    def on_log(self, args, state, control, logs, **kwargs):  # type: ignore[no-untyped-def]
        self.events.append("log " + ",".join(sorted(logs)))

    def on_train_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.events.append("train_end")


def run_both(model: nn.Module, rows: list[Any], folder: Path, metrics: Any = None, **kwargs: Any) -> list[Any]:
    results = []
    libraries: list[Any] = [transformers, trainwright]
    for library in libraries:
        args = library.TrainingArguments(output_dir=str(folder / library.__name__), **{**COMMON, **kwargs})
        counter = Counter()
        trainer = library.Trainer(
            copy.deepcopy(model),
            args,
            train_dataset=rows,
            eval_dataset=rows[:7],
            compute_metrics=metrics,
            callbacks=[counter],
        )
        output = trainer.train()
        results.append((trainer, output, counter))
    return results


CASES = {
    "bert": (tiny_bert, accuracy),
    "llama": (tiny_llama, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sampling", ["sequential", "random"])
def test_same_run(tmp_path: Path, name: str, sampling: str) -> None:
    make_model, metrics = CASES[name]
    rows = sentence_rows(18)
    if name == "llama":
        rows = [{**row, "labels": row["input_ids"]} for row in rows]
    (hf, hf_output, hf_count), (ours, output, count) = run_both(
        make_model(), rows, tmp_path, metrics, train_sampling_strategy=sampling
    )
    assert count.events == hf_count.events
    assert output.global_step == hf_output.global_step
    assert output.training_loss == pytest.approx(hf_output.training_loss, rel=1e-6)
    # HF's PrinterCallback takes total_flos out of the very dict that train() returns.
    assert set(output.metrics) == {*hf_output.metrics, "total_flos"}
    assert len(ours.state.log_history) == len(hf.state.log_history)
    for mine, theirs in zip(ours.state.log_history, hf.state.log_history, strict=True):
        assert set(mine) == set(theirs)
        for key in ("loss", "grad_norm", "learning_rate", "epoch", "eval_accuracy", "step"):
            if key in theirs:
                assert mine[key] == pytest.approx(theirs[key], rel=1e-6, abs=1e-9), (key, theirs)
    kept = [sorted(p.name for p in Path(t.args.output_dir).glob("checkpoint-*")) for t in (hf, ours)]
    assert kept[0] == kept[1]
    assert Path(ours.state.best_model_checkpoint).name == Path(hf.state.best_model_checkpoint).name
    for (key, mine), theirs in zip(ours.model.state_dict().items(), hf.model.state_dict().values(), strict=True):
        assert mine.numpy() == pytest.approx(theirs.numpy(), rel=1e-4, abs=1e-6), key


def test_a_transformers_arguments_object_is_accepted(tmp_path: Path) -> None:
    args: Any = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, use_cpu=True, save_strategy="no", disable_tqdm=True
    )
    trainer = trainwright.Trainer(tiny_bert(), args, train_dataset=sentence_rows(8))
    assert trainer.train().global_step == 2
    assert trainer.args.per_device_train_batch_size == args.per_device_train_batch_size


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [True, "auto"])
def test_a_folder_of_transformers_is_resumed_from_and_nothing_in_it_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Any
) -> None:
    settings: dict[str, Any] = {"save_steps": 1, "use_cpu": True, "disable_tqdm": True, "report_to": "none"}
    hf_args = transformers.TrainingArguments(str(tmp_path), max_steps=1, **settings)
    rows: Any = sentence_rows(8)
    transformers.Trainer(tiny_bert(), hf_args, train_dataset=rows).train()
    read, load = [], torch.load

    def only_weights(path: Any, *words: Any, **named: Any) -> Any:
        read.append((Path(getattr(path, "name", path)).name, named.get("weights_only")))
        return load(path, *words, **named)

    monkeypatch.setattr(torch, "load", only_weights)
    args = trainwright.TrainingArguments(str(tmp_path), max_steps=2, **settings)
    trainer = trainwright.Trainer(tiny_bert(), args, train_dataset=rows)
    trainer.train(resume_from_checkpoint=wanted)
    assert trainer._present_run().first_step == 1
    assert {safely for _, safely in read} == {True}
    assert "training_args.bin" not in {name for name, _ in read}


def test_the_checkpoint_opens_with_from_pretrained(tmp_path: Path) -> None:
    args = trainwright.TrainingArguments(str(tmp_path), max_steps=2, save_steps=2, use_cpu=True, disable_tqdm=True)
    trainer = trainwright.Trainer(tiny_bert(), args, train_dataset=sentence_rows(8))
    trainer.train()
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "checkpoint-2")
    for name, value in trainer.model.state_dict().items():
        assert value.equal(again.state_dict()[name]), name
