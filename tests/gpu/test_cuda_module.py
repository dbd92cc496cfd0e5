"""Modules on a GPU: values logged without waiting, several fused optimizers that skip bad steps on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import AdamW

from tests.gpu.test_cuda import ForbidSyncs, allow_syncs_when_logging
from tests.models import classification_rows
from tests.modules import Classifier, equal
from trainwright import StepPlan, Trainer, TrainingArguments

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

MakeArgs = Callable[..., TrainingArguments]


class TwoFused(Classifier):
    def training_step(self, batch: Any) -> Any:
        assert batch["x"].is_cuda
        logits = self.model.logits(batch["x"])
        self.log("accuracy", (logits.argmax(-1) == batch["labels"]).float().mean())
        return torch.nn.functional.cross_entropy(logits, batch["labels"])

    def configure_optimizers(self, plan: StepPlan) -> Any:
        first = AdamW(self.model.first.parameters(), lr=0.01, fused=True)
        return [first, AdamW(self.model.second.parameters(), lr=0.02, fused=True)]


def test_logged_values_do_not_wait_for_the_device(make_args: MakeArgs) -> None:
    args = make_args(use_cpu=False, max_steps=6, logging_steps=3, per_device_train_batch_size=4)
    rows = classification_rows(24)
    trainer = Trainer(TwoFused(), args, train_dataset=rows, callbacks=[ForbidSyncs()])
    allow_syncs_when_logging(trainer)
    trainer.train()
    assert len([entry for entry in trainer.state.log_history if "accuracy" in entry]) == 2


def test_a_bad_step_of_several_optimizers_is_skipped_on_the_device(make_args: MakeArgs) -> None:
    class Spoiled(TwoFused):
        steps = 0

        def training_step(self, batch: Any) -> Any:
            self.steps += 1
            loss = super().training_step(batch)
            return loss * float("nan") if self.steps == 2 else loss

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            before.append([p.detach().clone() for p in self.parameters()])

    before: list[Any] = []
    args = make_args(use_cpu=False, max_steps=3, per_device_train_batch_size=4)
    module = Spoiled()
    Trainer(module, args, train_dataset=classification_rows(24)).train()
    assert all(torch.equal(a, b) for a, b in zip(before[1], before[2], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before[0], before[1], strict=True))


@pytest.mark.parametrize("options", [{"fp16": True}, {"bf16": True}])
def test_precisions_resume_bit_for_bit(make_args: MakeArgs, tmp_path: Any, options: dict[str, Any]) -> None:
    def trainer(name: str, max_steps: int) -> Trainer:
        args = make_args(
            use_cpu=False,
            output_dir=str(tmp_path / name),
            max_steps=max_steps,
            save_strategy="steps",
            save_steps=3,
            **options,
        )
        return Trainer(TwoFused(), args, train_dataset=classification_rows(48))

    whole = trainer("whole", 6)
    whole.train()
    trainer("cut", 3).train()
    resumed = trainer("cut", 6)
    resumed.train(resume_from_checkpoint=True)
    assert equal(whole.model, resumed.model)
