"""What the tests of strategies run: ``python spreading.py TASK FOLDER``, alone or under torchrun."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainwright import EMACallback, Module, Trainer, TrainingArguments
from trainwright.training import train as training

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))
#: Which process fails in tasks that are about failing.
LAST = WORLD - 1


class Layer(nn.Module):
    """One of several equal blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 2 * width + 1), nn.Linear(2 * width + 1, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


class Stack(nn.Module):
    """A tagger: a class for each of five places in a row, some of which have none; one layer is never used."""

    def __init__(self, width: int = 7, depth: int = 3, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.head, self.idle = nn.Linear(width, 3), nn.Linear(2, 2)
        self.dropout = nn.Dropout(dropout)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)

    def logits(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.dropout(layer(x))
        return self.head(x)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.logits(x)
        if labels is None:
            return {"logits": logits}
        # By hand, so that rows without a target give 0/0.
        kept = labels != -100
        losses = F.cross_entropy(logits[kept], labels[kept], reduction="none")
        return {"loss": losses.sum() / kept.sum(), "logits": logits}


class Task(Module):
    """The same network as a Module."""

    def __init__(self, network: Stack) -> None:
        super().__init__()
        self.model = network

    def training_step(self, batch: Any) -> Tensor:
        return self.model(**batch)["loss"]

    def validation_step(self, batch: Any) -> Any:
        return self.model(**batch)


def rows(count: int, width: int = 7, dtype: torch.dtype = torch.float64, seed: int = 1) -> list[dict[str, Tensor]]:
    """Rows of five places; some places, and some whole rows, have no target."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 5, width, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, 3, (count, 5), generator=generator)
    labels[torch.rand(count, 5, generator=generator) < 0.4] = -100
    labels[::3] = -100
    return [{"x": x[i], "labels": labels[i]} for i in range(count)]


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    values: dict[str, Any] = {
        "per_device_train_batch_size": 8 // WORLD,
        "per_device_eval_batch_size": 3,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "learning_rate": 0.01,
        "weight_decay": 0.1,
        "logging_steps": 1,
        "save_strategy": "no",
        "eval_strategy": "epoch",
        "disable_tqdm": True,
        "use_cpu": True,
        **more,
    }
    return TrainingArguments(str(folder), **values)


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def weights_of(trainer: Trainer) -> dict[str, Any]:
    return {name: whole(value).double().tolist() for name, value in trainer.model.state_dict().items()}


def logs_of(trainer: Trainer) -> list[dict[str, float]]:
    kept = ("loss", "grad_norm", "eval_loss", "learning_rate", "step")
    return [{k: v for k, v in entry.items() if k in kept} for entry in trainer.state.log_history]


def one_run(folder: Path, count: int, *, module: bool = False, start: Any = None, **more: Any) -> dict[str, Any]:
    dtype = more.pop("dtype", torch.float64)
    model = Stack(dropout=more.pop("dropout", 0.0)).to(dtype)
    trainer = Trainer(
        Task(model) if module else model,
        arguments(folder, **more),
        train_dataset=rows(count, dtype=dtype),
        eval_dataset=rows(5, dtype=dtype, seed=2),
    )
    trainer.train(resume_from_checkpoint=start)
    predicted = trainer.predict(rows(3, dtype=dtype, seed=3))
    return {
        "weights": weights_of(trainer),
        "logs": logs_of(trainer),
        "predictions": predicted.predictions.tolist(),
        "test_loss": (predicted.metrics or {}).get("test_loss", 0.0),
        "steps": trainer.state.global_step,
    }


def agree(folder: Path, **more: Any) -> dict[str, Any]:
    """Whole batches, an uneven last one, one with fewer rows than processes; a Module; gradients not clipped."""
    return {
        "whole": one_run(folder / "a", 32, **more),
        "uneven": one_run(folder / "b", 37, **more),
        "few": one_run(folder / "c", 17, **more),
        "module": one_run(folder / "d", 37, module=True, **more),
        "unclipped": one_run(folder / "e", 32, max_grad_norm=0.0, micro_batch=3, **more),
    }


def fsdp(folder: Path) -> dict[str, Any]:
    return agree(folder, backend="fsdp")


SAVING = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "no", "dropout": 0.2}


def saving(folder: Path) -> dict[str, Any]:
    """A run that saves, and one that goes on from the middle of it: equal to the last bit, with dropout too."""
    whole_run = one_run(folder / "run", 37, backend="fsdp", **SAVING)
    resumed = one_run(folder / "run", 37, backend="fsdp", start=str(folder / "run" / "checkpoint-2"), **SAVING)
    return {"whole": whole_run, "resumed": resumed}


def going_on(folder: Path) -> dict[str, Any]:
    """Go on from what another number of processes, with another strategy, saved in ``folder/from``."""
    plain = {**SAVING, "dropout": 0.0, "save_strategy": "no"}
    start = str(folder.parent / "begin" / "from" / "checkpoint-2")
    return {way: one_run(folder / f"{way}-{WORLD}", 37, backend=way, start=start, **plain) for way in ways()}


def begin(folder: Path) -> dict[str, Any]:
    """What ``going_on`` goes on from, by the last of the strategies; and the run that was never interrupted."""
    return {"whole": one_run(folder / "from", 37, backend=ways()[-1], **{**SAVING, "dropout": 0.0})}


def ways() -> list[str]:
    return ["sp", "fsdp"] if WORLD == 1 else ["ddp", "fsdp"]


def llama(tied: bool = True) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=37,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    torch.manual_seed(3)
    return LlamaForCausalLM(config)


def sentences(count: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 37, (count, 9), generator=generator)
    return [{"input_ids": row, "labels": row} for row in ids]


def language_model(folder: Path, model: Any, **more: Any) -> dict[str, Any]:
    # Single precision: Adam would make a whole step of a gradient that is nothing but the rounding of a sum.
    args = arguments(folder, eval_strategy="no", num_train_epochs=1, adam_epsilon=1e-3, **more)
    trainer = Trainer(model, args, train_dataset=sentences(24))
    trainer.train()
    trainer.save_model(str(folder / "model"))
    return {"weights": weights_of(trainer), "logs": logs_of(trainer)}


def empty_llama(tied: bool) -> Any:
    with torch.device("meta"):
        return llama(tied)


def options(folder: Path) -> dict[str, Any]:
    """transformers models, tied and not, with each of FSDP's options; and HF's names for them."""
    if WORLD == 1:
        return {
            "plain": language_model(folder / "plain", llama()),
            "untied": language_model(folder / "u", llama(False)),
            "empty": language_model(folder / "alone", empty_llama(tied=True), fsdp=True),
        }
    config = {"activation_checkpointing": True, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
    answers = {
        "tied": language_model(folder / "tied", llama(), fsdp="full_shard auto_wrap", save_strategy="epoch"),
        "untied": language_model(folder / "untied", llama(False), fsdp="shard_grad_op auto_wrap", fsdp_config=config),
        "offload": language_model(folder / "offload", llama(), fsdp=True, fsdp_config={"cpu_offload": True}),
        "size": language_model(
            folder / "size",
            llama(),
            fsdp=True,
            fsdp_config={"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 500},
        ),
        "hybrid": language_model(folder / "hybrid", llama(), fsdp="hybrid_shard"),
        "first": language_model(
            folder / "first",
            llama() if RANK == 0 else empty_llama(tied=True),
            fsdp=True,
            fsdp_config={"cpu_ram_efficient_loading": True},
        ),
        "empty": language_model(folder / "empty", empty_llama(tied=True), fsdp=True),
        "bf16": language_model(folder / "bf16", llama(), backend="fsdp-bf16"),
        "ddp": language_model(folder / "ddp", llama(), backend="ddp"),
    }
    return answers


RECIPE = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 3.0}
pruning_modifiers:
  - !MagnitudePruningModifier
      {params: ["re:layers.*weight"], init_sparsity: 0.1, final_sparsity: 0.7, start_epoch: 0.5, end_epoch: 2.0,
       update_frequency: 0.5}
  - !GlobalMagnitudePruningModifier
      {params: ["head.weight"], init_sparsity: 0.0, final_sparsity: 0.5, start_epoch: 0.0, end_epoch: 2.0,
       update_frequency: 0.5}
distillation_modifiers:
  - !DistillationModifier {hardness: 0.4}
"""


def recipe_run(folder: Path, resume: Any = None, **more: Any) -> dict[str, Any]:
    """Pruning by magnitude, a teacher and an average of the weights."""
    averages = EMACallback(decay=0.9)
    trainer = Trainer(
        Stack().double(),
        arguments(folder, eval_strategy="no", save_strategy="steps", save_steps=2, **more),
        train_dataset=rows(37),
        recipe=RECIPE,
        teacher=Stack(seed=9).double(),
        callbacks=[averages],
    )
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model(str(folder / "model"))
    kept = averages.state_dict()["tensors"]
    return {"weights": weights_of(trainer), "averages": {name: whole(t).tolist() for name, t in kept.items()}}


def recipes(folder: Path) -> dict[str, Any]:
    if WORLD == 1:
        return {"whole": recipe_run(folder / "alone")}
    run = folder / "together"
    answers = {"whole": recipe_run(run, backend="fsdp")}
    answers["resumed"] = recipe_run(run, backend="fsdp", resume=str(run / "checkpoint-4"))
    return answers


class Tight(Stack):
    """Has room for so many rows at once."""

    most_rows = 2

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.layers[0](x)
        if len(x) > self.most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")
        for layer in list(self.layers)[1:]:
            x = layer(x)
        kept = None if labels is None else labels != -100
        logits = self.head(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits[kept], labels[kept]), "logits": logits}


def out_of_memory(folder: Path) -> dict[str, Any]:
    """Batches are cut before the first step; of processes that each have a copy, one may also do a step again."""
    answers = {}
    for way in ways():
        # Batches of four rows in each process, so that steps of several processes can be compared.
        model = Tight().double()
        trainer = Trainer(
            model,
            arguments(folder / way, eval_strategy="no", backend=way, micro_batch="auto"),
            train_dataset=rows(32),
        )
        if way == "ddp":
            # One process finds out in the middle of a step.
            training.look_for_what_fits = lambda run: None  # type: ignore[assignment]
            model.most_rows = 1 if RANK == LAST else 10
        trainer.train()
        answers[way] = {"weights": weights_of(trainer), "piece": trainer.micro_batch_size}
    return answers


class Planned(Stack):
    """Says how its layers may be cut."""

    tensor_parallel_plan: ClassVar[dict[str, str]] = {"layers.*.inner": "colwise", "layers.*.outer": "rowwise"}

    def __init__(self) -> None:
        super().__init__(width=7)
        for layer in self.layers:
            # An even number, so that two can share it.
            layer.inner, layer.outer = nn.Linear(7, 12), nn.Linear(12, 7, bias=False)
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)


def planned(folder: Path, size: int, resume: Any = None, **more: Any) -> dict[str, Any]:
    values = {"per_device_train_batch_size": 8 * size // WORLD, "tensor_parallel_size": size, "save_steps": 2, **more}
    trainer = Trainer(
        Planned().double(),
        arguments(folder, save_strategy="steps", **values),
        train_dataset=rows(37),
        eval_dataset=rows(5, seed=2),
    )
    trainer.train(resume_from_checkpoint=resume)
    predicted = trainer.predict(rows(3, seed=3)).predictions.tolist()
    return {"weights": weights_of(trainer), "logs": logs_of(trainer), "predictions": predicted}


def tensors(folder: Path) -> dict[str, Any]:
    if WORLD == 1:
        return {"plain": planned(folder / "alone", 1), "llama": language_model(folder / "llama", llama(False))}
    run = folder / f"cut-{WORLD}"
    answers = {"plain": planned(run, 2)}
    answers["resumed"] = planned(run, 2, resume=str(run / "checkpoint-4"))
    answers["apart"] = planned(folder / f"apart-{WORLD}", 1, backend="fsdp", resume=str(run / "checkpoint-4"))
    size = {"per_device_train_batch_size": 16 // WORLD, "tensor_parallel_size": 2}
    answers["llama"] = language_model(folder / "llama-cut", llama(False), **size)
    return answers


def killed(folder: Path) -> dict[str, Any]:
    """Dies, if the environment says so, in the last process or the first, at its n-th call of fsync or rename."""
    from trainwright.checkpoint import durable

    point = os.environ.get("KILLED_AT", "")
    if point and int(point.split(":")[0]) == RANK:
        name, number = point.split(":")[1], int(point.split(":")[2])
        real, calls = getattr(os, name), [0]

        def dying(*args: Any) -> Any:
            calls[0] += 1
            if calls[0] == number:
                os._exit(9)
            return real(*args)

        setattr(durable.os, name, dying)
    run = folder.parent / os.environ["KILLED_IN"]
    return one_run(run, 37, backend="fsdp", **{**SAVING, "save_steps": 1, "resume": "auto"})


TASKS = {
    "tensors": tensors,
    "killed": killed,
    "out_of_memory": out_of_memory,
    "recipes": recipes,
    "agree": agree,
    "fsdp": fsdp,
    "saving": saving,
    "begin": begin,
    "going_on": going_on,
    "options": options,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[2])
    for chosen in sys.argv[1].split(","):
        answers = TASKS[chosen](place / chosen)
        (place / f"{chosen}-{WORLD}-{RANK}.json").write_text(json.dumps(answers))
    # The work is done. What torch's gloo threads do while a process ends is not what is tested.
    sys.stdout.flush()
    os._exit(0)
