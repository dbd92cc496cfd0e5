"""TRL, as its documentation shows it: supervised, preference and reward training, and training on what is generated."""

from __future__ import annotations

from typing import Any

import torch
import trl
from common import given, language_model, record, reward_model, text, tokenizer
from datasets import Dataset
from transformers import TrainerCallback

ROWS = 40


class SeededSteps(TrainerCallback):
    """The same samples are generated whatever else has drawn random numbers before."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.manual_seed(1000 + state.global_step)


def data(rows: list[dict[str, Any]]) -> dict[str, Dataset]:
    return {"train_dataset": Dataset.from_list(rows), "eval_dataset": Dataset.from_list(rows[:8])}


def distinct_words(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(set(completion.split()))) for completion in completions]


def supervised(case: str, folder: str, arguments: dict[str, Any]) -> Any:
    rows, adapter = [{"text": text()} for _ in range(ROWS)], None
    if case == "sft-assistant":
        roles = ("user", "assistant")
        rows = [{"messages": [{"role": role, "content": text()} for role in roles]} for _ in range(ROWS)]
        arguments["assistant_only_loss"] = True
    if case == "sft-packing":
        arguments |= {"packing": True, "max_length": 32}
        # No epoch ends in the middle of a step: there transformers repeats samples on several processes.
        rows = [{"text": text()} for _ in range(8 * ROWS)]
    if case == "sft-lora":
        from peft import LoraConfig

        adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.0)
    return trl.SFTTrainer(
        language_model(folder),
        trl.SFTConfig(**arguments),
        processing_class=tokenizer(),
        peft_config=adapter,
        **data(rows),
    )


def build(case: str, folder: str, arguments: dict[str, Any]) -> Any:
    if case.startswith("sft"):
        return supervised(case, folder, arguments)
    pairs = [{"prompt": text(), "chosen": text(), "rejected": text()} for _ in range(ROWS)]
    if case == "dpo":
        models = {"model": language_model(folder), "ref_model": language_model(folder)}
        return trl.DPOTrainer(**models, args=trl.DPOConfig(**arguments), processing_class=tokenizer(), **data(pairs))
    if case == "kto":
        rows = [{"prompt": text(), "completion": text(), "label": bool(n % 2)} for n in range(ROWS)]
        models = {"model": language_model(folder), "ref_model": language_model(folder)}
        return trl.KTOTrainer(**models, args=trl.KTOConfig(**arguments), processing_class=tokenizer(), **data(rows))
    if case == "reward":
        return trl.RewardTrainer(
            reward_model(), args=trl.RewardConfig(**arguments), processing_class=tokenizer(), **data(pairs)
        )
    arguments = {name: value for name, value in arguments.items() if not name.startswith("eval_")}
    # Samples of one generation serve for two steps, and checkpoints come in between.
    arguments |= {"num_generations": 2, "max_completion_length": 8, "steps_per_generation": 4}
    kinds = {"grpo": (trl.GRPOTrainer, trl.GRPOConfig), "rloo": (trl.RLOOTrainer, trl.RLOOConfig)}
    trainer, config = kinds[case.partition("-")[0]]
    return trainer(
        language_model(folder),
        reward_funcs=distinct_words,
        args=config(**arguments),
        train_dataset=Dataset.from_list([{"prompt": text(4)} for _ in range(ROWS)]),
        processing_class=tokenizer(),
        callbacks=[] if case.endswith("-unseeded") else [SeededSteps()],
    )


found, arguments = given()
arguments = {"gradient_accumulation_steps": 2, "bf16": False, "gradient_checkpointing": False, **arguments}
trainer = build(found.case, found.output, arguments)
trainer.train(resume_from_checkpoint=found.resume)
record(trainer)
