"""Adapters (PEFT) of any name and number: what is trained resumes bit for bit, also what lies beside the adapters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.models import tiny_llama, token_rows
from trainwright import KeepBest, Trainer, TrainerCallback, TrainingArguments
from trainwright.checkpoint.adapters import BESIDE, load_adapters
from trainwright.checkpoint.manifest import read_manifest

Make = Callable[..., TrainingArguments]


def lora(*modules: str, **options: Any) -> peft.LoraConfig:
    return peft.LoraConfig(r=2, target_modules=list(modules), task_type="CAUSAL_LM", lora_dropout=0.1, **options)


def named(name: str) -> Callable[[], Any]:
    return lambda: peft.get_peft_model(tiny_llama(), lora("q_proj"), adapter_name=name)


def several() -> Any:
    """Two adapters, one of them frozen, and neither called "default"."""
    model: Any = peft.get_peft_model(tiny_llama(), lora("q_proj"), adapter_name="first")
    model.add_adapter("second", lora("v_proj", "q_proj"))
    model.set_adapter("second")
    return model


def both_trained() -> Any:
    model: Any = peft.get_peft_model(tiny_llama(), lora("q_proj"))
    model.add_adapter("model", lora("v_proj"))
    model.base_model.set_adapter(["default", "model"])
    return model


def with_head() -> Any:
    return peft.get_peft_model(tiny_llama(), lora("q_proj", modules_to_save=["lm_head"]), adapter_name="lora+v1")


def unfrozen_beside() -> Any:
    """A layer that the script unfroze itself, of which PEFT writes nothing."""
    model: Any = peft.get_peft_model(tiny_llama(), lora("q_proj"))
    model.get_base_model().model.norm.weight.requires_grad_(True)
    return model


def with_statistics() -> Any:
    """A buffer of the base model that training changes."""
    base = tiny_llama()
    base.model.norm = nn.Sequential(base.model.norm, Centering())
    return peft.get_peft_model(base, lora("q_proj"))


class Centering(nn.Module):
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(x.detach().mean(), alpha=0.1)
        return x - self.mean


def dora() -> Any:
    return peft.get_peft_model(tiny_llama(), lora("q_proj", use_dora=True), adapter_name="deux")


def prompt() -> Any:
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    return peft.get_peft_model(tiny_llama(), config)


def by_transformers() -> Any:
    """transformers' own way to put adapters on a model; it writes only the active one."""
    model: Any = tiny_llama()
    model.add_adapter(lora("v_proj"), adapter_name="other")
    model.add_adapter(lora("q_proj"), adapter_name="mine")
    model.set_adapter("mine")
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "lora+v1": named("lora+v1"),
    "self_attn": named("self_attn"),
    "größe": named("größe"),
    "several": several,
    "both trained": both_trained,
    "with head": with_head,
    "unfrozen beside": unfrozen_beside,
    "with statistics": with_statistics,
    "dora": dora,
    "prompt tuning": prompt,
    "by transformers": by_transformers,
}


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


def run(make_args: Make, folder: Path, make: Callable[[], Any], seed: int = 0, **options: Any) -> Trainer:
    args = make_args(
        output_dir=str(folder),
        max_steps=4,
        save_strategy="steps",
        save_steps=2,
        learning_rate=1e-1,
        resume="auto",
        per_device_train_batch_size=4,
    )
    torch.manual_seed(seed)
    trainer = Trainer(make(), args, train_dataset=token_rows(16), **options)
    trainer.train()
    return trainer


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Already found a `peft_config`")
@pytest.mark.parametrize("kind", MODELS)
def test_a_resume_is_bit_equal(make_args: Make, tmp_path: Path, kind: str) -> None:
    make = MODELS[kind]
    whole = run(make_args, tmp_path / "whole", make).model.state_dict()
    before = run(make_args, tmp_path / "cut", make, callbacks=[StopAt(2)]).model.state_dict()
    resumed = run(make_args, tmp_path / "cut", make)
    assert resumed._present_run().first_step == 2
    assert any(not torch.equal(tensor, whole[name]) for name, tensor in before.items())
    for name, tensor in resumed.model.state_dict().items():
        assert torch.equal(tensor, whole[name]), name


def test_frozen_adapters_come_back_too(make_args: Make, tmp_path: Path) -> None:
    """They were made at random, and are random again where the model is built anew."""
    first = run(make_args, tmp_path / "run", several).model.state_dict()
    torch.manual_seed(77)
    model = several()
    load_adapters(model, tmp_path / "run/checkpoint-4")
    assert all(torch.equal(tensor, first[name]) for name, tensor in model.state_dict().items() if "lora_" in name)


@pytest.mark.slow
def test_nothing_is_stored_twice(make_args: Make, tmp_path: Path) -> None:
    run(make_args, tmp_path / "plain", named("mine"))
    assert BESIDE not in read_manifest(tmp_path / "plain/checkpoint-4")["files"]
    run(make_args, tmp_path / "beside", unfrozen_beside)
    assert list(load_file(tmp_path / "beside/checkpoint-4" / BESIDE)) == ["base_model.model.model.norm.weight"]


def test_other_adapters_are_refused_by_name(make_args: Make, tmp_path: Path) -> None:
    run(make_args, tmp_path / "run", named("mine"), callbacks=[StopAt(2)])
    with pytest.raises(ValueError, match=r"no model\.safetensors|under the same names"):
        run(make_args, tmp_path / "run", named("yours"))


def test_the_best_model_may_have_adapters_of_any_name(make_args: Make, tmp_path: Path) -> None:
    keep = KeepBest("train_loss", tmp_path / "best", every="2 steps")
    run(make_args, tmp_path / "run", several, callbacks=[keep])
    assert keep.best is not None
    again = peft.PeftModel.from_pretrained(tiny_llama(), str(tmp_path / "best/second"), adapter_name="second")
    own = {name.replace(".second", ""): tensor for name, tensor in again.state_dict().items()}
    stored = load_file(tmp_path / "best/second/adapter_model.safetensors")
    assert all(torch.equal(tensor, own[name]) for name, tensor in stored.items())
