"""PEFT with transformers' own Trainer: one adapter, or two of which both, or only the second, are trained."""

from __future__ import annotations

from typing import Any

import torch
from common import given, language_model, record, text, tokenizer
from peft import LoraConfig, PeftMixedModel, PeftModel, get_peft_model
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments


def adapter(rank: int) -> LoraConfig:
    return LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.0)


def build(case: str, folder: str, arguments: dict[str, Any]) -> Any:
    torch.manual_seed(1)
    model: PeftModel | PeftMixedModel = get_peft_model(language_model(folder), adapter(4))
    if case != "one-adapter":
        model.add_adapter("second", adapter(2))
        if case == "second-of-two":
            model.set_adapter("second")
        else:
            model.base_model.set_adapter(["default", "second"])
    words = tokenizer()
    rows = [dict(words(text())) for _ in range(40)]
    collator = DataCollatorForLanguageModeling(words, mlm=False)
    args = TrainingArguments(**arguments)
    return Trainer(model, args, collator, train_dataset=rows, eval_dataset=rows[:8], processing_class=words)


found, arguments = given()
trainer = build(found.case, found.output, arguments | {"gradient_accumulation_steps": 2})
trainer.train(resume_from_checkpoint=found.resume)
record(trainer)
