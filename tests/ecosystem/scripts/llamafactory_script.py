"""LLaMA-Factory by the function behind its command, stage by stage, with made-up conversations."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

from common import given, language_model, record_every_training, stand_in, text, tokenizer

# It compares versions with those that it was tried with, and stops; and it can hear, which nobody here does.
os.environ["DISABLE_VERSION_CHECK"] = "1"
stand_in("torchaudio")

COLUMNS = {"prompt": "instruction", "query": "input", "response": "output"}
PAIRS = {"prompt": "instruction", "query": "input", "chosen": "chosen", "rejected": "rejected"}


def data(case: str, folder: Path) -> dict[str, Any]:
    """A folder of made-up data for one stage, described as it wants."""
    asked = [{"instruction": text(), "input": ""} for _ in range(40)]
    rows: list[dict[str, Any]] = [{**row, "output": text()} for row in asked]
    about: dict[str, Any] = {"file_name": "rows.json", "columns": COLUMNS}
    if case == "pt":
        rows, about = [{"text": text(20)} for _ in asked], {"file_name": "rows.json", "columns": {"prompt": "text"}}
    if case.partition("-")[0] in ("rm", "dpo"):
        rows = [{**row, "chosen": text(), "rejected": text()} for row in asked]
        about = {"file_name": "rows.json", "ranking": True, "columns": PAIRS}
    if case == "kto":
        rows = [{**row, "kto_tag": random.random() < 0.5} for row in rows]
        about["columns"] = COLUMNS | {"kto_tag": "kto_tag"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.json").write_text(json.dumps(rows))
    (folder / "dataset_info.json").write_text(json.dumps({"rows": about}))
    return {"dataset": "rows", "dataset_dir": str(folder)}


found, arguments = given()
# The second is of the head that its reward models get.
model = language_model(found.output, summary_dropout_prob=0.0).config.name_or_path
tokenizer().save_pretrained(model)
stage, _, variant = found.case.partition("-")
arguments |= {
    "model_name_or_path": model,
    "stage": stage,
    "do_train": True,
    "finetuning_type": "full",
    "template": "empty",
    "cutoff_len": 64,
    "val_size": 0.2,
    "preprocessing_num_workers": None,
    "overwrite_cache": True,
    # Its own checkpointing of activations does not run with transformers 5.23, on either loop.
    "disable_gradient_checkpointing": True,
    "gradient_accumulation_steps": 2,
    "resume_from_checkpoint": found.resume,
    **data(found.case, Path(model) / "data"),
}
if variant == "lora":
    arguments |= {"finetuning_type": "lora", "lora_rank": 4, "lora_target": "all", "lora_dropout": 0.0}
if variant in ("orpo", "simpo"):
    arguments |= {"pref_loss": variant}
record_every_training()

from llamafactory.train.tuner import run_exp  # noqa: E402 - once the door to it is prepared

run_exp(arguments)
