"""Alpaca's train.py, as it is, with a few made-up instructions."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

from common import (
    given,
    language_model,
    record_every_training,
    repository,
    stand_in,
    take_the_older_name,
    text,
    tokenizer,
    words,
)


def instructions(path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"instruction": text(), "input": text() if number % 2 else "", "output": text()} for number in range(40)
    ]
    path.write_text(json.dumps(rows))


found, arguments = given()
folder = Path(found.output)
model = language_model(found.output).config.name_or_path
tokenizer().save_pretrained(model)
data = Path(model) / "instructions.json"
instructions(data)
# It asks OpenAI for instructions elsewhere, and imports that here too.
stand_in("openai", openai_object=None)
stand_in("openai.openai_object", OpenAIObject=dict)
sys.modules["openai"].openai_object = sys.modules["openai.openai_object"]
take_the_older_name()
record_every_training(found.resume)
# It has no data to evaluate on.
arguments |= {"eval_strategy": "no", "gradient_accumulation_steps": 2, "model_max_length": 64}
sys.path.insert(0, str(repository("stanford_alpaca")))
sys.argv = ["train.py", *words({"model_name_or_path": model, "data_path": data, **arguments})]
runpy.run_path(str(repository("stanford_alpaca") / "train.py"), run_name="__main__")
