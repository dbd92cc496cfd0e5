"""Recipes on a GPU: exact zeros in every precision, nothing that waits for the device, compiled models, 2:4."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.models import Plain, classification_rows, tiny_llama, token_rows
from trainwright import EMACallback, Trainer, TrainerCallback, TrainingArguments

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
MakeArgs = Callable[..., TrainingArguments]

RECIPE = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 4.0}
pruning_modifiers:
  - !GMPruningModifier
      {params: __ALL_PRUNABLE__, init_sparsity: 0.1, final_sparsity: 0.75, start_epoch: 0.5, end_epoch: 2.0,
       update_frequency: 0.5}
distillation_modifiers:
  - !DistillationModifier {hardness: 0.5}
"""


@pytest.fixture(autouse=True)
def _sync_mode_is_reset() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


def zeros_are(model: nn.Module, share: float) -> None:
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            assert abs(int((parameter == 0).sum()) - share * parameter.numel()) <= 1, name


@pytest.mark.parametrize(
    "options",
    [{}, {"bf16": True}, {"fp16": True}, {"torch_compile": True}, {"gradient_accumulation_steps": 2}],
    ids=lambda options: "-".join(options) or "fp32",
)
def test_zeros_are_exact_in_every_precision(make_args: MakeArgs, options: dict[str, Any]) -> None:
    model = Plain(width=64).float()
    args = make_args(use_cpu=False, per_device_train_batch_size=8, learning_rate=1e-2, **options)
    rows = classification_rows(64, width=64)
    Trainer(model, args, train_dataset=rows, recipe=RECIPE, teacher="self").train()
    zeros_are(model, 0.75)


def test_no_step_between_updates_waits_for_the_device(make_args: MakeArgs) -> None:
    class ForbidSyncs(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # After the last update of the masks, before the end.
            if state.global_step == 18:
                torch.cuda.set_sync_debug_mode("error")

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 30:
                torch.cuda.set_sync_debug_mode("default")

    args = make_args(use_cpu=False, per_device_train_batch_size=8, logging_strategy="no")
    model, rows = Plain(width=64).float(), classification_rows(64, width=64)
    callbacks = [EMACallback(0.9), ForbidSyncs()]
    Trainer(model, args, train_dataset=rows, recipe=RECIPE, teacher="self", callbacks=callbacks).train()
    zeros_are(model, 0.75)


@pytest.mark.parametrize("stop", [5, 21])
def test_resume_is_bit_equal(make_args: MakeArgs, tmp_path: Path, stop: int) -> None:
    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == stop:
                control.should_save = control.should_training_stop = True

    def run(folder: str, resume: bool = False, **options: Any) -> nn.Module:
        model = tiny_llama()
        args = make_args(use_cpu=False, output_dir=str(tmp_path / folder), per_device_train_batch_size=2, bf16=True)
        trainer = Trainer(model, args, train_dataset=token_rows(16), recipe=RECIPE, teacher="self", **options)
        trainer.train(resume_from_checkpoint=resume or None)
        return model

    whole = run("whole")
    run("parts", callbacks=[Stop()])
    parts = run("parts", resume=True)
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(one, other)


def test_second_order_pruning(make_args: MakeArgs) -> None:
    recipe = """
pruning_modifiers:
  - !OBSPruningModifier
      {params: ["first.weight"], init_sparsity: 0.0, final_sparsity: 0.5, start_epoch: 0, end_epoch: 2,
       update_frequency: 1, num_grads: 16, fisher_block_size: 8}
"""
    model = Plain(width=64).float()
    args = make_args(use_cpu=False, per_device_train_batch_size=8, fp16=True)
    Trainer(model, args, train_dataset=classification_rows(64, width=64), recipe=recipe).train()
    assert abs(int((model.first.weight == 0).sum()) - 256) <= 1


@pytest.mark.parametrize("scheme", ["W8A8", "W4A16", "FP8", "FP8_DYNAMIC", "default"])
@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"torch_compile": True}], ids=lambda o: "-".join(o) or "fp32")
def test_quantized_training(make_args: MakeArgs, scheme: str, options: dict[str, Any]) -> None:
    pytest.importorskip("torchao")
    recipe = f"""
training_modifiers:
  - !EpochRangeModifier {{start_epoch: 0.0, end_epoch: 3.0}}
pruning_modifiers:
  - !MagnitudePruningModifier
      {{params: ["first.weight"], init_sparsity: 0.5, final_sparsity: 0.5, start_epoch: 0, end_epoch: 1}}
quantization_modifiers:
  - !QuantizationModifier
      {{start_epoch: 1.0, scheme: {scheme}, ignore: [second], disable_quantization_observer_epoch: 2.0}}
"""
    model = Plain(width=128).float()
    args = make_args(use_cpu=False, per_device_train_batch_size=8, learning_rate=1e-2, **options)
    rows = classification_rows(64, width=128)
    trainer = Trainer(model, args, train_dataset=rows, recipe=recipe)
    before = Trainer(Plain(width=128).float(), args, train_dataset=rows).evaluate(rows)["eval_loss"]
    trainer.train()
    assert trainer.evaluate(rows)["eval_loss"] < before
    assert int((model.first.weight == 0).sum()) == 512


def test_two_of_four_in_torch(make_args: MakeArgs) -> None:
    """Half the weights of every group of four gone: torch's sparse kernels give what the dense ones do."""
    from trainwright.recipes.export.semi_structured import to_semi_structured

    recipe = """
pruning_modifiers:
  - !MagnitudePruningModifier
      {params: ["first.weight"], init_sparsity: 0.0, final_sparsity: 0.5, start_epoch: 0, end_epoch: 1,
       update_frequency: 0.25, mask_type: "2:4"}
"""

    class Wide(Plain):
        def __init__(self) -> None:
            super().__init__(width=256)
            self.first, self.second = nn.Linear(256, 128), nn.Linear(128, 3)

    model = Wide().float()
    args = make_args(use_cpu=False, per_device_train_batch_size=8, num_train_epochs=1)
    Trainer(model, args, train_dataset=classification_rows(64, width=256), recipe=recipe).train()
    model.half().eval()
    x = torch.randn(128, 256, device="cuda", dtype=torch.float16)
    with torch.inference_mode():
        expected = model.first(x)
        to_semi_structured(model)
        torch.testing.assert_close(model.first(x), expected, rtol=1e-2, atol=1e-2)
