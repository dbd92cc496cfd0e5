"""What the tests of DeepSpeed run: ``python deepspeeding.py TASK FOLDER``, alone or under torchrun."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tests.distributed.spreading import (
    RANK,
    SAVING,
    WORLD,
    Stack,
    Task,
    arguments,
    language_model,
    llama,
    logs_of,
    rows,
    weights_of,
)
from trainwright import EMACallback, Preempted, Trainer


class Busy(Stack):
    """Every layer takes part: DeepSpeed decays those that do not, torch leaves them alone."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        del self.idle


def whole_weights(trainer: Trainer) -> dict[str, Any]:
    if trainer.strategy.layout.name == "fsdp":
        return weights_of(trainer)
    with trainer.strategy.whole(trainer.model, keep=True):
        return {name: tensor.double().tolist() for name, tensor in trainer.model.state_dict().items()}


def one_run(folder: Path, count: int, *, module: bool = False, start: Any = None, **more: Any) -> dict[str, Any]:
    model = Busy(dropout=more.pop("dropout", 0.0)).float()
    trainer = Trainer(
        Task(model) if module else model,
        arguments(folder, **more),
        train_dataset=rows(count, dtype=torch.float32),
        eval_dataset=rows(5, dtype=torch.float32, seed=2),
    )
    trainer.train(resume_from_checkpoint=start)
    predicted = trainer.predict(rows(3, dtype=torch.float32, seed=3))
    trainer.save_model(str(folder / "model"))
    return {
        "weights": whole_weights(trainer),
        "logs": logs_of(trainer),
        "predictions": predicted.predictions.tolist(),
        "steps": trainer.state.global_step,
    }


def zero(stage: int, **more: Any) -> dict[str, Any]:
    """A configuration with nothing in it but "auto", as people copy it; alone, no DeepSpeed at all."""
    if WORLD == 1:
        return {}
    auto = "auto"
    section: dict[str, Any] = {"stage": stage, "reduce_bucket_size": auto, **more}
    if stage == 3:
        section |= {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": auto}
    params = {"lr": auto, "betas": auto, "eps": auto, "weight_decay": auto}
    config = {
        "train_batch_size": auto,
        "train_micro_batch_size_per_gpu": auto,
        "gradient_accumulation_steps": auto,
        "gradient_clipping": auto,
        "bf16": {"enabled": auto},
        "fp16": {"enabled": auto},
        "optimizer": {"type": "AdamW", "params": params},
        "zero_optimization": section,
    }
    return {"deepspeed": config}


def agree(folder: Path) -> dict[str, Any]:
    """Uneven last batches, one with fewer rows than processes, a Module, no clipping, batches cut further."""
    answers = {}
    for stage in (1, 2, 3):
        way = zero(stage)
        place = folder / f"stage-{stage}"
        answers[f"uneven-{stage}"] = one_run(place / "a", 37, **way)
        answers[f"few-{stage}"] = one_run(place / "b", 17, **way)
        answers[f"module-{stage}"] = one_run(place / "c", 37, module=True, **way)
        answers[f"unclipped-{stage}"] = one_run(place / "d", 32, max_grad_norm=0.0, micro_batch=3, **way)
    return answers


def offload(folder: Path) -> dict[str, Any]:
    """Optimizer state, and at stage 3 weights, in main memory; small weights that stay whole; the default."""
    kept = {"offload_optimizer": {"device": "cpu"}}
    answers = {f"offload-{stage}": one_run(folder / f"o{stage}", 37, **zero(stage, **kept)) for stage in (1, 2, 3)}
    named: dict[str, Any] = {} if WORLD == 1 else {"backend": "deepspeed"}
    answers["default"] = one_run(folder / "default", 37, **named)
    large = zero(3)
    if large:
        del large["deepspeed"]["zero_optimization"]["stage3_param_persistence_threshold"]
    answers["persistent"] = one_run(folder / "persistent", 37, **large)
    return answers


def saving(folder: Path) -> dict[str, Any]:
    """Runs that save, and runs that go on from the middle of them, with dropout; and the best model at the end."""
    answers = {}
    for stage in (1, 2, 3):
        run = folder / f"run-{stage}"
        answers[f"whole-{stage}"] = one_run(run, 37, **zero(stage), **SAVING)
        answers[f"resumed-{stage}"] = one_run(run, 37, start=str(run / "checkpoint-2"), **zero(stage), **SAVING)
    best = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "learning_rate": 0.1}
    answers["best"] = one_run(folder / "best", 37, **zero(3), **{**SAVING, **best, "dropout": 0.0})
    return answers


def begin(folder: Path) -> dict[str, Any]:
    """Alone without DeepSpeed, or in two processes with each of its stages."""
    plain = {**SAVING, "dropout": 0.0}
    return {str(stage): one_run(folder / f"{WORLD}-{stage}", 37, **zero(stage), **plain) for stage in (1, 2, 3)}


def going_on(folder: Path) -> dict[str, Any]:
    """From what DeepSpeed saved in two processes, without it; and the other way round."""
    plain = {**SAVING, "dropout": 0.0, "save_strategy": "no"}
    begun = folder.parent / "begin"
    answers = {}
    for stage in (1, 2, 3):
        saved = str(begun / f"2-{stage}" / "checkpoint-2")
        if WORLD == 1:
            answers[f"sp-{stage}"] = one_run(folder / f"sp-{stage}", 37, start=saved, **plain)
            continue
        answers[f"ddp-{stage}"] = one_run(folder / f"ddp-{stage}", 37, start=saved, backend="ddp", **plain)
        alone = str(begun / "1-1" / "checkpoint-2")
        answers[f"fsdp-{stage}"] = one_run(folder / f"fsdp-{stage}", 37, start=saved, backend="fsdp", **plain)
        answers[f"zero-{stage}"] = one_run(folder / f"zero-{stage}", 37, start=alone, **zero(stage), **plain)
    return answers


def models(folder: Path) -> dict[str, Any]:
    """A transformers model with tied weights; bf16, resumed to the last bit; a schedule of DeepSpeed's."""
    answers = {f"llama-{s}": language_model(folder / f"llama-{WORLD}-{s}", llama(), **zero(s)) for s in (2, 3)}
    answers = {name: answer["logs"] for name, answer in answers.items()}
    if WORLD == 1:
        return answers
    half: dict[str, Any] = {**SAVING, "bf16": True}
    for stage in (1, 2, 3):
        run = folder / f"half-{stage}"
        answers[f"half-{stage}"] = one_run(run, 37, **zero(stage), **half)
        answers[f"again-{stage}"] = one_run(run, 37, start=str(run / "checkpoint-2"), **zero(stage), **half)
    own = zero(2)
    params = {"total_num_steps": "auto", "warmup_num_steps": "auto", "warmup_min_lr": "auto", "warmup_max_lr": "auto"}
    own["deepspeed"]["scheduler"] = {"type": "WarmupDecayLR", "params": {**params, "warmup_type": "linear"}}
    answers["schedule"] = one_run(folder / "schedule", 37, warmup_steps=2, **own)
    return answers


class Reused(Busy):
    """Its parts run twice in a step: one after the other, with something between, or computed again."""

    way = "layer"

    def logits(self, x: Any) -> Any:
        first, second, third = self.layers
        if self.way.startswith("again"):
            # As gradient checkpointing does.
            body = lambda inner: second(first(second(first(inner))))  # noqa: E731
            x = x.requires_grad_()
            return self.head(third(checkpoint(body, x, use_reentrant=self.way == "again, nested")))
        if self.way == "pair":
            return self.head(third(second(first(x)) * second(first(x.flip(-1)))))
        return self.head(first(third(second(first(x)))))


class CallsTwice(Trainer):
    """Runs the whole model twice in a step, the second time on what came out of the first."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        steered = inputs["x"] + 0.1 * model(x=inputs["x"])["logits"].float().sum(-1, keepdim=True)
        found = model(x=steered, labels=inputs["labels"])
        return (found["loss"], found) if return_outputs else found["loss"]


def reused(folder: Path) -> dict[str, Any]:
    """Gradients of models whose parts run twice in a step, as plain SGD shows them."""
    answers: dict[str, Any] = {}
    for stage in (1, 2, 3):
        for bf16 in (False, True):
            for way in ("layer", "pair", "again", "again, nested", "model"):
                # Weights that half precision can hold: DeepSpeed begins with those.
                model = Reused().bfloat16().float()
                model.way = way
                start = {name: tensor.double().clone() for name, tensor in model.state_dict().items()}
                way_of_zero = zero(stage, **({"round_robin_gradients": True} if stage < 3 else {}))
                if way_of_zero:
                    del way_of_zero["deepspeed"]["optimizer"]
                args = arguments(
                    folder / f"{way}-{stage}-{bf16}",
                    optim="sgd",
                    weight_decay=0.0,
                    max_grad_norm=0.0,
                    max_steps=3,
                    bf16=bf16,
                    eval_strategy="no",
                    train_sampling_strategy="sequential",
                    lr_scheduler_type="constant",
                    **way_of_zero,
                )
                trainer = (CallsTwice if way == "model" else Trainer)(
                    model, args, train_dataset=rows(48, dtype=torch.float32)
                )
                trainer.train()
                moved = {n: (torch.tensor(w) - start[n]).tolist() for n, w in whole_weights(trainer).items()}
                answers[f"{way}-{stage}-{'bf16' if bf16 else 'fp32'}"] = moved
    return answers


class Broken(Busy):
    """Has a loss of NaN once, and no target at all in another step."""

    def forward(self, x: Any, labels: Any = None) -> Any:
        found = super().forward(x, labels)
        if labels is not None and self.training and (labels == 2).all():
            found["loss"] = found["loss"] * float("nan")
        return found


def bad_steps(folder: Path) -> dict[str, Any]:
    """Neither a step that is not finite nor one without a target changes anything."""
    answers = {}
    for stage in (1, 2, 3):
        data = rows(24, dtype=torch.float32)
        for row in data[8:16]:
            row["labels"] = torch.full((5,), 2)
        for row in data[16:]:
            row["labels"] = torch.full((5,), -100)
        args = arguments(
            folder / str(stage),
            eval_strategy="no",
            gradient_accumulation_steps=1,
            train_sampling_strategy="sequential",
            num_train_epochs=1,
            lr_scheduler_type="constant",
            **zero(stage),
        )
        trainer = Trainer(Broken().float(), args, train_dataset=data)
        trainer.train()
        answers[str(stage)] = {"weights": whole_weights(trainer), "steps": trainer.state.global_step}
    return answers


def alone(folder: Path) -> dict[str, Any]:
    """DeepSpeed in a single process that no launcher started."""
    return {"plain": one_run(folder / "plain", 37), "zero": one_run(folder / "zero", 37, backend="deepspeed")}


def stopped(folder: Path) -> dict[str, Any]:
    """A run whose time is up saves and leaves, with all processes; the next one goes on."""
    answers: dict[str, Any] = {}
    for stage in (1, 3):
        run = folder / f"run-{stage}"
        more: dict[str, Any] = {**SAVING, **zero(stage), "save_steps": 100}
        answers[f"whole-{stage}"] = one_run(folder / f"whole-{stage}", 37, **more)
        try:
            one_run(run, 37, **more, max_hours=1e-9)
        except Preempted as left:
            answers[f"left-{stage}"] = Path(str(left.checkpoint)).name
        answers[f"resumed-{stage}"] = one_run(run, 37, **more, resume="auto")
    return answers


def refused(folder: Path) -> dict[str, Any]:
    """What only turns out when a training begins; alone."""
    answers = {}
    cases: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
        "double": (Busy().double(), {}, {}),
        "optimizer": (Busy().float(), {"optim": "adafactor"}, {}),
        "average": (Busy().float(), {"deepspeed": {"zero_optimization": {"stage": 3}}}, {"callbacks": [EMACallback()]}),
    }
    for name, (model, more, given) in cases.items():
        args = arguments(folder / name, **{"backend": "deepspeed", "eval_strategy": "no", **more})
        try:
            Trainer(model, args, train_dataset=rows(8, dtype=torch.float32), **given).train()
        except ValueError as error:
            answers[name] = str(error)
    trainer = Trainer(
        Busy().float(),
        arguments(folder / "twice", backend="deepspeed", eval_strategy="no"),
        train_dataset=rows(8, dtype=torch.float32),
    )
    trainer.train()
    try:
        trainer.train()
    except ValueError as error:
        answers["twice"] = str(error)
    return answers


TASKS = {
    "stopped": stopped,
    "refused": refused,
    "alone": alone,
    "agree": agree,
    "offload": offload,
    "saving": saving,
    "begin": begin,
    "going_on": going_on,
    "models": models,
    "bad_steps": bad_steps,
    "reused": reused,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[2])
    for chosen in sys.argv[1].split(","):
        answers = TASKS[chosen](place / chosen)
        (place / f"{chosen}-{WORLD}-{RANK}.json").write_text(json.dumps(answers))
    sys.stdout.flush()
    os._exit(0)
