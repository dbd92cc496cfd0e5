"""What the tests of several processes run: ``python training.py TASK FOLDER``, alone or under torchrun."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.models import Plain, classification_rows
from trainwright import Module, Trainer, TrainerCallback, TrainingArguments
from trainwright.compat import pymarlin
from trainwright.compat.pymarlin import ModuleInterface

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))


class Numbered:
    """Rows that know their number."""

    def __init__(self, count: int) -> None:
        self.rows = classification_rows(count)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self.rows[index], "number": torch.tensor(index)}


class Recording(Plain):
    """Remembers which rows it was trained on; may run out of memory."""

    main_input_name = "x"

    def __init__(self, most_rows: int = 10**9) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.most_rows = most_rows

    def forward(self, x: Tensor, labels: Tensor | None = None, number: Tensor | None = None, **kwargs: Any) -> Any:
        if len(x) > self.most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")
        if self.training and number is not None:
            self.seen += number.tolist()
        return super().forward(x, labels)


class Noisy(Recording):
    """Draws random numbers, and writes buffers, in every step; batches must have more than one row."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(6), nn.Dropout(0.3)

    def logits(self, x: Tensor) -> Tensor:
        return super().logits(self.dropout(self.norm(x)))


class Epochs(TrainerCallback):
    """Which rows each epoch had."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        self.rows.append(model.seen)
        model.seen = []


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    values: dict[str, Any] = {
        # The same optimizer step, whether one process has the whole batch or several share it.
        "per_device_train_batch_size": 8 // WORLD,
        "per_device_eval_batch_size": 3,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        **more,
    }
    return TrainingArguments(str(folder), **values)


def result(trainer: Trainer, **more: Any) -> dict[str, Any]:
    weights = {name: value.double().tolist() for name, value in trainer.model.state_dict().items()}
    logs = [{k: v for k, v in e.items() if "runtime" not in k and "second" not in k} for e in trainer.state.log_history]
    return {"weights": weights, "logs": logs, "steps": trainer.state.global_step, **more}


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def train(folder: Path, rows: int, *, resume: bool = False, model: Any = None, **more: Any) -> dict[str, Any]:
    epochs, most = Epochs(), more.pop("most_rows", 10**9)
    trainer = Trainer(
        model or Recording(most),
        arguments(folder, eval_strategy="epoch", **more),
        train_dataset=Numbered(rows),
        eval_dataset=Numbered(11),
        compute_metrics=accuracy,
        callbacks=[epochs],
    )
    trainer.train(resume_from_checkpoint=resume)
    predicted = trainer.predict(Numbered(7))
    return result(trainer, seen=epochs.rows, predictions=predicted.predictions.tolist(), metrics=predicted.metrics)


def agree(folder: Path) -> dict[str, Any]:
    """Whole batches, a last one that is shared unevenly, one with a single row, one with fewer rows than processes."""
    counted = {"include_num_input_tokens_seen": "all"}
    return {str(rows): train(folder / str(rows), rows, **counted) for rows in (32, 41, 33, 5)}


def drop_last(folder: Path) -> dict[str, Any]:
    return {"43": train(folder / "drop", 43, dataloader_drop_last=True)}


def out_of_memory(folder: Path) -> dict[str, Any]:
    """Only one process runs out of memory, and only one does its step again."""
    return {"32": train(folder / "oom", 32, micro_batch="auto", most_rows=1 if RANK else 10**9)}


def resume(folder: Path) -> dict[str, Any]:
    saving = {"save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": False}
    whole = train(folder / "whole", 44, model=Noisy(), **saving)
    trainer = Trainer(
        Noisy(),
        arguments(folder / "whole", eval_strategy="epoch", **saving),
        train_dataset=Numbered(44),
        eval_dataset=Numbered(11),
        compute_metrics=accuracy,
    )
    trainer.train(resume_from_checkpoint=str(folder / "whole" / "checkpoint-2"))
    best = train(folder / "best", 44, **{**saving, "load_best_model_at_end": True})
    return {"whole": whole, "resumed": result(trainer), "best": best}


def limits(folder: Path) -> dict[str, Any]:
    """Three batches of two epochs, in groups of two; two of evaluation and one of prediction."""
    batches = {"limit_train_batches": 3, "limit_eval_batches": 2, "limit_predict_batches": 1}
    return {"41": train(folder / "limits", 41, per_device_eval_batch_size=4 // WORLD, **batches)}


class Counted(Module):
    """Logs in training and in validation; some targets are left out, so batches weigh differently."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Plain()

    def training_step(self, batch: Any) -> Any:
        logits = self.model.logits(batch["x"])
        kept = batch["labels"] != -100
        hits = (logits.argmax(-1) == batch["labels"])[kept]
        self.log("hits", hits.double().mean() if len(hits) else 0.0)
        if RANK == 0:
            self.log("first_rank_only", 2.0)
        loss = F.cross_entropy(logits, batch["labels"])
        return {"loss": loss, "logits": logits, "labels": batch["labels"]}

    def configure_optimizers(self, plan: Any) -> Any:
        first = torch.optim.SGD(self.model.first.parameters(), lr=0.1)
        second = torch.optim.Adam(self.model.second.parameters(), lr=0.01)
        return [first, second], [torch.optim.lr_scheduler.OneCycleLR(second, 0.01, total_steps=plan.max_steps)]


class ByHand(Counted):
    """Two optimizers, stepped by the module."""

    automatic_optimization = False

    def training_step(self, batch: Any) -> Any:
        if not self.training:
            return super().training_step(batch)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            loss = F.cross_entropy(self.model.logits(batch["x"]), batch["labels"])
            self.backward(loss)
            optimizer.step()
        return loss


class OwnStep(Trainer):
    """Scales and calls backward itself, as scripts for transformers do."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        loss = self.compute_loss(model, self._prepare_inputs(inputs)) / self.current_gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()


def gaps(count: int) -> list[dict[str, Tensor]]:
    rows = classification_rows(count)
    for index in range(0, count, 3):
        rows[index]["labels"] = torch.tensor(-100)
    return rows


def first_of_all(folder: Path) -> bool:
    """Whether the first process had done its work before this one began."""
    mark = folder / f"prepared-{WORLD}"
    with arguments(folder / "counted").main_process_first():
        if RANK == 0:
            time.sleep(0.5)
            mark.touch()
        return mark.exists()


def modules(folder: Path) -> dict[str, Any]:
    assert first_of_all(folder)
    trainer = Trainer(Counted(), arguments(folder / "counted", eval_strategy="epoch"))
    trainer.fit(train=gaps(41), val={"a": gaps(11), "b": gaps(5)})
    by_hand = Trainer(ByHand(), arguments(folder / "hand", gradient_accumulation_steps=1, num_train_epochs=1))
    # Equal parts of every batch, all with targets: a mean over processes is then the mean over the batch.
    by_hand.fit(train=classification_rows(32))
    own_step = OwnStep(Recording(), arguments(folder / "own"), train_dataset=Numbered(32))
    own_step.train()
    return {"counted": result(trainer), "by_hand": result(by_hand), "own_step": result(own_step)}


class Marlin(ModuleInterface):
    """A PyMarlin module that notes which rows it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.data = Plain(), Numbered(41)
        self.seen: list[list[int]] = []
        self.validated: dict[str, list[int]] = {}

    def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        steps = estimated_global_steps_per_epoch * epochs
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)]

    def get_train_dataloader(self, sampler: Any, batch_size: int) -> Any:
        data: Any = self.data
        return DataLoader(data, batch_size=batch_size, sampler=sampler(data))

    def get_val_dataloaders(self, sampler: Any, batch_size: int) -> Any:
        sets: dict[str, Any] = {"some": Numbered(11), "one": Numbered(1)}
        return {key: DataLoader(data, batch_size=batch_size, sampler=sampler(data)) for key, data in sets.items()}

    def train_step(self, global_step: int, batch: Any, device: Any) -> Any:
        self.seen[-1] += batch["number"].tolist()
        return self.net(batch["x"].to(device), batch["labels"].to(device))["loss"]

    def val_step(self, global_step: int, batch: Any, device: Any) -> Any:
        return self.net.logits(batch["x"].to(device)).argmax(-1), batch["number"]

    def on_begin_train_epoch(self, global_step: int, epoch: int) -> None:
        self.seen.append([])

    def on_end_val_epoch(self, global_step: int, *outputs: Any, key: str = "default") -> None:
        self.validated[key] = outputs[1].tolist()


def marlin(folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    args = pymarlin.TrainerArguments(
        epochs=2,
        train_batch_size=16,
        gpu_batch_size_limit=4,
        val_batch_size=3,
        backend="sp" if WORLD == 1 else "ddp",
        use_gpu=False,
        writers=[],
        disable_tqdm=True,
        checkpointer_args=pymarlin.DefaultCheckpointerArguments(
            save_dir=str(folder / f"saved-{WORLD}"), model_state_save_dir=str(folder / f"saved-{WORLD}")
        ),
        writer_args=pymarlin.WriterInitArguments(tb_log_dir=str(folder / "logs")),
    )
    module = Marlin()
    trainer = pymarlin.Trainer(module, args)
    sizes = (trainer.train_step_batch_size, trainer.gradient_accumulation, trainer.estimated_global_steps_per_epoch)
    trainer.train()
    outputs = trainer.validate()
    return {
        "weights": {name: value.double().tolist() for name, value in module.state_dict().items()},
        "steps": trainer.global_steps_finished,
        "rates": [group["lr"] for group in trainer.optimizers[0].param_groups],
        "sizes": sizes,
        "seen": module.seen,
        "validated": module.validated,
        "outputs": {key: [part.tolist() for part in parts] for key, parts in outputs.items()},
    }


class Slow(TrainerCallback):
    """Leaves a mark after the third step, and then takes its time."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= 3:
            self.mark.touch()
            time.sleep(0.05)


def stoppable(folder: Path) -> dict[str, Any]:
    """Slow the first time; whoever comes again goes on where it was stopped, quickly."""
    mark = folder / f"third-step-{RANK}"
    callbacks = [] if mark.exists() else [Slow(mark)]
    args = arguments(folder / "run", max_steps=60, save_strategy="steps", save_steps=1000, resume="auto")
    trainer = Trainer(Noisy(), args, train_dataset=Numbered(44), callbacks=callbacks)
    trainer.train()
    return result(trainer)


RECIPE = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 3.0}
pruning_modifiers:
  - !MovementPruningModifier
      {params: ["first.weight"], init_sparsity: 0.1, final_sparsity: 0.7, start_epoch: 0.5, end_epoch: 2.0,
       update_frequency: 0.5}
  - !OBSPruningModifier
      {params: ["second.weight"], init_sparsity: 0.0, final_sparsity: 0.5, start_epoch: 1.0, end_epoch: 2.0,
       update_frequency: 1.0, num_grads: 8, fisher_block_size: 4}
distillation_modifiers:
  - !DistillationModifier {hardness: 0.4}
  - !PerLayerDistillationModifier {gain: 0.1, student_layer_names: [first], normalize: False}
"""


def recipes(folder: Path) -> dict[str, Any]:
    trainer = Trainer(
        Recording(),
        arguments(folder / "recipe", optim="sgd", learning_rate=0.1),
        train_dataset=Numbered(32),
        recipe=RECIPE,
        teacher=Plain(seed=5),
    )
    trainer.train()
    return result(trainer)


TASKS = {
    "recipes": recipes,
    "stoppable": stoppable,
    "agree": agree,
    "modules": modules,
    "marlin": marlin,
    "drop_last": drop_last,
    "out_of_memory": out_of_memory,
    "resume": resume,
    "limits": limits,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen, place = sys.argv[1], Path(sys.argv[2])
    answers = TASKS[chosen](place)
    (place / f"{chosen}-{WORLD}-{RANK}.json").write_text(json.dumps(answers))
    # The work is done. What torch's gloo threads do while a process ends is not what is tested.
    sys.stdout.flush()
    os._exit(0)
