"""The front doors and ``trainwright train``: the same promise for what they save."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.old_checkpoints.kinds import PRUNED, RUN, Ended, Kind, arguments, ended
from tests.old_checkpoints.networks import Net, fill, rows, wave
from trainwright import Trainer, TrainingArguments
from trainwright.compat import accmt, pymarlin


def _samples() -> TensorDataset:
    x = wave((22, 3), 0.0)
    return TensorDataset(x, (x.sum(1) > 0).long())


class Accmt(accmt.AcceleratorModule):
    def __init__(self, steps: int | None = None) -> None:
        self.model: nn.Module = fill(nn.Linear(3, 2).double())
        self.steps = steps

    def step(self, batch: Any) -> Any:
        if self.steps == 0:
            raise InterruptedError
        self.steps = None if self.steps is None else self.steps - 1
        x, y = batch
        return F.cross_entropy(self.model(x), y)


def _accmt(module: Accmt, resume: bool) -> None:
    hps = {"epochs": 2, "batch_size": 4, "optim": {"type": "Adam", "lr": 0.05}, "scheduler": {"type": "LinearLR"}}
    torch.manual_seed(0)
    trainer = accmt.Trainer(
        {"hps": hps}, model_path=str(RUN / "model"), verbose=False, checkpoint_every="8 steps", resume=resume
    )
    trainer.fit(module, _samples())


def through_accmt(resume: bool) -> Ended:
    module = Accmt()
    _accmt(module, resume)
    return Ended({name: t.detach().clone() for name, t in module.model.state_dict().items()})


def cut_accmt() -> None:
    """In the middle of the second epoch; the whole run keeps only its last checkpoint."""
    with contextlib.suppress(InterruptedError):
        _accmt(Accmt(steps=8), resume=False)


class Marlin(pymarlin.ModuleInterface):
    """Counts what it has seen, in a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.seen = fill(nn.Linear(3, 2).double()), 0

    def get_optimizers_schedulers(self, estimated_global_steps_per_epoch: int, epochs: int) -> Any:
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.05)
        steps = estimated_global_steps_per_epoch * epochs
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=steps)]

    def get_train_dataloader(self, sampler: Any, batch_size: int) -> Any:
        return DataLoader(_samples(), batch_size=batch_size, sampler=sampler(_samples()))

    def get_val_dataloaders(self, sampler: Any, batch_size: int) -> Any:
        return self.get_train_dataloader(sampler, batch_size)

    def train_step(self, global_step: int, batch: Any, device: Any) -> Any:
        self.seen += len(batch[0])
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def val_step(self, global_step: int, batch: Any, device: Any) -> Any:
        return self.net(batch[0]).argmax(1), batch[1]

    def get_state(self) -> dict[str, Any]:
        return {"weights": self.state_dict(), "seen": self.seen}

    def update_state(self, state: Any) -> None:
        if state:
            self.load_state_dict(state["weights"])
            self.seen = state["seen"]


def through_pymarlin(resume: bool) -> Ended:
    kept = str(RUN / "checkpoints")
    torch.manual_seed(0)
    module = Marlin()
    args = pymarlin.TrainerArguments(
        epochs=3,
        train_batch_size=8,
        gpu_batch_size_limit=4,
        val_batch_size=8,
        use_gpu=False,
        writers=[],
        disable_tqdm=True,
        log_level="ERROR",
        checkpointer_args=pymarlin.DefaultCheckpointerArguments(
            save_dir=kept, model_state_save_dir=kept, load_dir=kept if resume else None
        ),
        writer_args=pymarlin.WriterInitArguments(tb_log_dir=str(RUN / "logs")),
    )
    trainer = pymarlin.Trainer(module, args)
    trainer.train()
    weights = {name: t.detach().clone() for name, t in module.state_dict().items()}
    return Ended({**weights, "seen": torch.tensor(module.seen)})


def through_sparseml(resume: bool) -> Ended:
    """In the middle of pruning and of distillation, by SparseML's own argument names."""
    from trainwright.compat import sparseml

    args = arguments(sparseml.TrainingArguments, max_steps=-1, save_steps=5)
    teacher = Net(0.6, noisy=False)
    trainer = sparseml.Trainer(Net(noisy=False), None, PRUNED, args=args, train_dataset=rows(), teacher=teacher)
    trainer.train(resume_from_checkpoint=str(RUN / "checkpoint-5") if resume else None)
    return ended(trainer)


def through_mindnlp(resume: bool) -> Ended:
    """A MindNLP script on torch: MindSpore has an environment of its own."""
    door = importlib.import_module("trainwright.compat.mindnlp")
    door.open_door()
    try:
        args = arguments(TrainingArguments, engine="torch")
        trainer = Trainer(Net(noisy=False), args, train_dataset=rows())
        trainer.train(resume_from_checkpoint=str(RUN / "checkpoint-4") if resume else None)
        return ended(trainer)
    finally:
        door.close()


TABLE = "a,b,kind\n" + "\n".join(f"{i},{i * i % 11},{'xy'[(i * i) % 3 % 2]}" for i in range(40))
EXPERIMENT = """
model: {name: mlp, options: {width: 4, layers: 1}}
data: {train: t.csv, target: kind, holdout: 0.25}
training: {output_dir: run, max_steps: 8, per_device_train_batch_size: 8, use_cpu: true, seed: 7, logging_steps: 1,
           learning_rate: 0.05, optim: adamw_torch, load_best_model_at_end: false}
checkpoint: {save_strategy: steps, save_steps: 4}
"""


def by_command(resume: bool) -> Ended:
    """``trainwright train`` goes on by itself where a run was stopped."""
    import json

    from safetensors.torch import load_file
    from typer.testing import CliRunner

    from trainwright.cli.app import app

    Path("t.csv").write_text(TABLE)
    Path("e.yaml").write_text(EXPERIMENT)
    done = CliRunner().invoke(app, ["train", "e.yaml"])
    assert done.exit_code == 0, done.output
    metrics = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    losses = [[entry["step"], entry["loss"]] for entry in metrics if "loss" in entry]
    return Ended(load_file(RUN / "model.safetensors"), {"loss": losses})


DOORS: dict[str, Kind] = {
    "accmt": Kind(through_accmt, ("checkpoint-model/checkpoint-8",), cut_accmt),
    "pymarlin": Kind(through_pymarlin, ("checkpoints/model_1.safetensors",)),
    "sparseml": Kind(through_sparseml, ("checkpoint-5",)),
    "mindnlp": Kind(through_mindnlp),
    "experiment": Kind(
        by_command,
        ("config.yaml", "experiment.yaml", "preprocessing.json", "metrics.jsonl", "checkpoint-4"),
        tolerance=1e-5,
    ),
}
