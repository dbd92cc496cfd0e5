"""The kinds of runs whose checkpoints are kept. Once a release has kept one, its description here may not change.

Each is a function of ``resume`` that trains to the end in the folder ``run`` below the current one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.old_checkpoints.networks import Net, Stream, adapted, bert, fill, rows, t5, token_rows
from trainwright import (
    EarlyStoppingCallback,
    EMACallback,
    KeepBest,
    Module,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)

RUN = Path("run")
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


@dataclass
class Ended:
    """How a run ended."""

    weights: dict[str, Tensor]
    #: What was logged, by name: pairs of step and value.
    logged: dict[str, list[list[float]]] = field(default_factory=dict)


@dataclass
class Kind:
    """A run whose checkpoint is kept."""

    train: Callable[[bool], Ended]
    #: What is kept of the folder ``run``, the checkpoint last.
    keep: tuple[str, ...] = ("checkpoint-4",)
    #: Makes what is kept, where the whole run does not leave it behind.
    cut: Callable[[], None] | None = None
    #: How far the end may be from what was recorded: float64 leaves room for any order of sums.
    tolerance: float = 1e-9
    #: The same for a run from its beginning on another CPU, where weights are rounded to a grid while they train: one
    #: on a boundary falls to either side with the order of sums (0.013 between torch's AVX and plain kernels).
    from_beginning: float | None = None
    processes: int = 1


def arguments(kind: type[Any] = TrainingArguments, **more: Any) -> Any:
    given: dict[str, Any] = {
        "output_dir": str(RUN),
        "max_steps": 8,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.05,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": 4,
        "disable_tqdm": True,
        "use_cpu": True,
        "report_to": "none",
        "log_level": "error",
        "seed": 42,
    }
    return kind(**{**given, **more})


def ended(trainer: Any, **more: Tensor) -> Ended:
    logged: dict[str, list[list[float]]] = {}
    for entry in trainer.state.log_history:
        for name in ("loss", "eval_loss", "learning_rate"):
            if name in entry:
                logged.setdefault(name, []).append([entry["step"], entry[name]])
    weights = {name: _whole(t).detach().clone() for name, t in trainer.model.state_dict().items()}
    return Ended({**weights, **more}, logged)


def _whole(tensor: Any) -> Tensor:
    """All of a tensor of which each process has a part."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _trained(model: nn.Module, resume: bool, *, data: Any = None, args: Any = None, **options: Any) -> Trainer:
    data = rows() if data is None else data
    trainer = Trainer(model, args or arguments(), train_dataset=data, **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def single(resume: bool) -> Ended:
    return ended(_trained(Net(), resume))


def middle_of_an_epoch(resume: bool) -> Ended:
    """Six batches an epoch, two to a step: the fifth step is in the middle of the second epoch."""
    args = arguments(
        gradient_accumulation_steps=2,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        max_grad_norm=0.5,
        save_steps=5,
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=False,
        metric_for_best_model="loss",
        greater_is_better=False,
        weight_decay=0.01,
    )
    ema = EMACallback(0.7, start_step=2)
    callbacks = [ema, EarlyStoppingCallback(9)]
    trainer = _trained(Net(), resume, args=args, eval_dataset=rows(8, phase=5.0), callbacks=callbacks)
    return ended(trainer, **{f"average.{name}": t for name, t in ema.state_dict()["tensors"].items()})


def ddp(resume: bool) -> Ended:
    args = arguments(per_device_train_batch_size=4 // WORLD, optim="adamw_torch")
    return ended(_trained(Net(noisy=False), resume, args=args))


def fsdp(resume: bool) -> Ended:
    spread: dict[str, Any] = {"fsdp": "full_shard"} if WORLD > 1 else {}
    args = arguments(per_device_train_batch_size=4 // WORLD, optim="adamw_torch", **spread)
    return ended(_trained(Net(noisy=False), resume, args=args))


def lora(resume: bool) -> Ended:
    """Only the adapter is trained; resumed with other numbers in it."""
    trainer = _trained(adapted(0.5 if resume else 0.0), resume, data=token_rows(labels="tokens"))
    found = ended(trainer)
    return Ended({name: t for name, t in found.weights.items() if "lora_" in name}, found.logged)


PRUNED = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 2.0}
pruning_modifiers:
  - !MagnitudePruningModifier
      {params: [first.weight, last.weight], init_sparsity: 0.1, final_sparsity: 0.6, start_epoch: 0.0, end_epoch: 1.5,
       update_frequency: 0.25}
distillation_modifiers:
  - !DistillationModifier {hardness: 0.5, temperature: 2.0, start_epoch: 0.0, end_epoch: 2.0}
"""
QUANTIZED = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 2.0}
quantization_modifiers:
  - !QuantizationModifier {start_epoch: 0.25}
"""


def recipe(resume: bool) -> Ended:
    """In the middle of pruning and of distillation."""
    args = arguments(max_steps=-1, save_steps=5)
    return ended(_trained(Net(noisy=False), resume, args=args, recipe=PRUNED, teacher=Net(0.6, noisy=False)))


def quantized(resume: bool) -> Ended:
    args = arguments(max_steps=-1, save_steps=5)
    data = rows(dtype=torch.float32)
    return ended(_trained(Net(noisy=False, dtype=torch.float32), resume, data=data, args=args, recipe=QUANTIZED))


def keep_best(resume: bool) -> Ended:
    """The best evaluation is the first: its checkpoint, and the folder of KeepBest, lie behind the cut."""
    args = arguments(
        learning_rate=2.0,
        optim="sgd",
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
    )
    keep = KeepBest("eval_loss", RUN / "best")
    trainer = _trained(Net(noisy=False), resume, args=args, eval_dataset=rows(8, phase=5.0), callbacks=[keep])
    assert trainer.state.best_global_step == 2
    return ended(trainer)


def hugging_face(resume: bool) -> Ended:
    return ended(_trained(bert(), resume, data=token_rows()))


def seq2seq(resume: bool) -> Ended:
    args = arguments(Seq2SeqTrainingArguments)
    trainer = Seq2SeqTrainer(t5(), args, train_dataset=token_rows(labels="answer"))
    trainer.train(resume_from_checkpoint=resume)
    return ended(trainer)


class TwoOptimizers(Module):
    """An optimizer for each layer, with a schedule by epoch for one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Net(noisy=False)

    def training_step(self, batch: Any) -> Any:
        return F.cross_entropy(self.model.logits(batch["x"]), batch["labels"])

    def configure_optimizers(self, plan: Any) -> Any:
        first = torch.optim.SGD(self.model.first.parameters(), lr=0.1, momentum=0.9)
        last = torch.optim.Adam(self.model.last.parameters(), lr=0.05)
        return [first, last], [torch.optim.lr_scheduler.ExponentialLR(first, 0.9)]


def several_optimizers(resume: bool) -> Ended:
    return ended(_trained(TwoOptimizers(), resume))


class LBFGSModule(Module):
    """Its optimizer keeps lists of tensors and calls the model several times a step."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.model = fill(nn.Linear(3, 2).double())

    def training_step(self, batch: Any) -> Any:
        (optimizer,) = self.optimizers()

        def closure() -> Tensor:
            optimizer.zero_grad()
            # A bowl: wherever the steps go, they end nearby.
            loss = ((self.model(batch["x"]) - batch["x"][:, :2].cos()) ** 2).mean()
            self.backward(loss)
            return loss

        return optimizer.step(closure)

    def configure_optimizers(self, plan: Any) -> Any:
        return torch.optim.LBFGS(self.model.parameters(), lr=0.2, max_iter=3, history_size=4)


def lbfgs(resume: bool) -> Ended:
    return ended(_trained(LBFGSModule(), resume))


def stream(resume: bool) -> Ended:
    return ended(_trained(Net(), resume, data=Stream()))


def schedule_free(resume: bool) -> Ended:
    args = arguments(optim="schedule_free_adamw", lr_scheduler_type="constant", warmup_steps=2)
    return ended(_trained(Net(noisy=False), resume, args=args))


def bf16(resume: bool) -> Ended:
    """Sums in bfloat16 differ between processors by a hundredth; a lost optimizer state by far more."""
    data = rows(dtype=torch.float32)
    return ended(_trained(Net(noisy=False, dtype=torch.float32), resume, data=data, args=arguments(bf16=True)))


def fp16(resume: bool) -> Ended:
    """With a loss scaler."""
    data = rows(dtype=torch.float32)
    return ended(_trained(Net(noisy=False, dtype=torch.float32), resume, data=data, args=arguments(fp16=True)))


def hf_format(resume: bool) -> Ended:
    """With transformers' files beside ours."""
    return ended(_trained(Net(noisy=False), resume, args=arguments(checkpoint_format="hf")))


KINDS: dict[str, Kind] = {
    "single": Kind(single),
    "middle-of-an-epoch": Kind(middle_of_an_epoch, ("checkpoint-5",)),
    "ddp": Kind(ddp, processes=2),
    "fsdp": Kind(fsdp, processes=2),
    # Llama norms in float32.
    "lora": Kind(lora, tolerance=1e-6),
    "recipe": Kind(recipe, ("checkpoint-5",)),
    "quantized": Kind(quantized, ("checkpoint-5",), tolerance=1e-5, from_beginning=0.03),
    "keep-best": Kind(keep_best, ("best", "checkpoint-2", "checkpoint-4")),
    "hugging-face": Kind(hugging_face),
    "seq2seq": Kind(seq2seq),
    "several-optimizers": Kind(several_optimizers),
    "lbfgs": Kind(lbfgs),
    "stream": Kind(stream),
    "schedule-free": Kind(schedule_free),
    "bf16": Kind(bf16, tolerance=5e-3),
    "fp16": Kind(fp16, tolerance=5e-3),
    "hf-format": Kind(hf_format),
}
