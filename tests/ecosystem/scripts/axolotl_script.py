"""axolotl's Trainers, without its command and its builders: rows one by one or packed, and preferences."""

from __future__ import annotations

import os
import random
from typing import Any

from axolotl.core import training_args
from axolotl.core.trainers import base
from axolotl.core.trainers import trl as preferences
from axolotl.core.trainers.dpo.args import AxolotlDPOConfig
from axolotl.core.trainers.dpo.trainer import AxolotlDPOTrainer
from common import WORDS, given, language_model, record, reward_model, stand_in, text, tokenizer
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq

ROWS = 40


def data(rows: list[dict[str, Any]]) -> dict[str, Dataset]:
    return {"train_dataset": Dataset.from_list(rows), "eval_dataset": Dataset.from_list(rows[:8])}


def tokens(case: str) -> list[dict[str, Any]]:
    """Rows as axolotl keeps them once they are tokenized; packed ones need to know where each begins."""
    rows = []
    for _ in range(ROWS):
        ids = [random.randrange(9, 9 + len(WORDS)) for _ in range(random.randrange(4, 12))]
        row = {"input_ids": ids, "labels": list(ids), "attention_mask": [1] * len(ids)}
        if case == "sft-packing":
            row |= {"position_ids": list(range(len(ids))), "length": len(ids)}
        rows.append(row)
    return rows


def supervised(case: str, folder: str, arguments: dict[str, Any], resume: Any) -> Any:
    # A tracker that its callbacks import, and nobody here reports to.
    stand_in("wandb")
    from axolotl.utils.callbacks.tokens_per_second import TokensPerSecondCallback

    collator: Any = DataCollatorForSeq2Seq(tokenizer(), padding=True)
    arguments |= {"max_seq_length": 32}
    if case == "sft-packing":
        from axolotl.monkeypatch.data.batch_dataset_fetcher import apply_multipack_dataloader_patch
        from axolotl.utils.collators import V2BatchSamplerDataCollatorForSeq2Seq

        apply_multipack_dataloader_patch()
        collator = V2BatchSamplerDataCollatorForSeq2Seq(tokenizer(), padding=True, return_tensors="pt")
        arguments |= {
            "sample_packing": True,
            "eval_strategy": "no",
            "sample_packing_bin_size": 8,
            "sample_packing_group_size": 100,
            "sample_packing_sequentially": True,
            "curriculum_sampling": True,
            "multipack_real_batches": True,
            "remove_unused_columns": False,
        }
    if case == "sft-schedules":
        # Parameter groups and a schedule of its own.
        arguments |= {
            "lr_scheduler_type": "cosine",
            "cosine_min_lr_ratio": 0.1,
            "embedding_lr": 1e-4,
            "weight_decay": 0.1,
            "include_tkps": True,
        }
    # First: once the arguments have brought the processes together, only one of them writes models.
    model = language_model(folder)
    args = training_args.AxolotlTrainingArguments(**arguments)
    return base.AxolotlTrainer(
        model=model,
        args=args,
        data_collator=collator,
        eval_data_collator=DataCollatorForSeq2Seq(tokenizer(), padding=True),
        processing_class=tokenizer(),
        callbacks=[TokensPerSecondCallback(resume)],
        **data(tokens(case)),
    )


def build(case: str, folder: str, arguments: dict[str, Any], resume: Any) -> Any:
    if case.startswith("sft"):
        return supervised(case, folder, arguments, resume)
    pairs = [{"prompt": text(), "chosen": text(), "rejected": text()} for _ in range(ROWS)]
    words = tokenizer()
    if case == "dpo":
        models = {"model": language_model(folder), "ref_model": language_model(folder)}
        return AxolotlDPOTrainer(**models, args=AxolotlDPOConfig(**arguments), processing_class=words, **data(pairs))
    if case == "kto":
        rows = [{"prompt": text(), "completion": text(), "label": bool(n % 2)} for n in range(ROWS)]
        models = {"model": language_model(folder), "ref_model": language_model(folder)}
        args = training_args.AxolotlKTOConfig(**arguments)
        return preferences.AxolotlKTOTrainer(**models, args=args, processing_class=words, **data(rows))
    if case == "reward":
        args = training_args.AxolotlRewardConfig(**arguments)
        return preferences.AxolotlRewardTrainer(reward_model(), args=args, processing_class=words, **data(pairs))
    kinds = {
        "orpo": (preferences.AxolotlORPOTrainer, training_args.AxolotlORPOConfig),
        "cpo": (preferences.AxolotlCPOTrainer, training_args.AxolotlCPOConfig),
    }
    trainer, config = kinds[case]
    return trainer(
        model=language_model(folder), args=config(**arguments, max_length=48), processing_class=words, **data(pairs)
    )


# It begins accelerate anew without saying that there is no GPU: without this each of two processes trains alone.
os.environ["ACCELERATE_USE_CPU"] = "true"
found, arguments = given()
arguments = {"gradient_accumulation_steps": 1, "bf16": False, "gradient_checkpointing": False, **arguments}
trainer = build(found.case, found.output, arguments, found.resume)
trainer.train(resume_from_checkpoint=found.resume)
record(trainer)
