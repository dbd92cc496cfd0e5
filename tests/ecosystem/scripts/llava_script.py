"""LLaVA's train.py, as it is: a tiny language model that sees through a tiny CLIP, with made-up pictures."""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
import transformers.trainer
from common import (
    byte_tokenizer,
    given,
    language_model,
    record_every_training,
    repository,
    stand_in,
    take_the_older_name,
    text,
    words,
)
from PIL import Image
from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel, Trainer


def eyes(folder: Path) -> Path:
    """A vision model in a folder of its own, and pictures beside it."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    CLIPVisionModel(CLIPVisionConfig(**sizes, image_size=8, patch_size=4)).save_pretrained(folder)
    side = {"height": 8, "width": 8}
    CLIPImageProcessor(size={"shortest_edge": 8}, crop_size=side).save_pretrained(folder)
    for number in range(4):
        Image.new("RGB", (8, 8), tuple(random.randrange(256) for _ in range(3))).save(folder / f"{number}.png")
    return folder


def conversations(path: Path, *, all_see: bool) -> Path:
    rows: list[dict[str, Any]] = []
    for number in range(40):
        # Some are about a picture and some are not: that is what its sampler keeps apart.
        seen = {"image": f"{number % 4}.png"} if all_see or number % 3 else {}
        asked = f"<image>\n{text()}" if seen else text()
        turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": text()}]
        rows.append({"id": str(number), "conversations": turns, **seen})
    path.write_text(json.dumps(rows))
    return path


def make_room_for_2024() -> None:
    """Names that transformers has given up since, and packages which are imported and not used."""
    transformers.trainer.ALL_LAYERNORM_LAYERS = [torch.nn.LayerNorm]
    stand_in("deepspeed", zero=None)
    stand_in("deepspeed.runtime")
    stand_in("deepspeed.runtime.zero")
    stand_in("deepspeed.runtime.zero.partition_parameters", ZeroParamStatus=None)
    take_the_older_name()


def let_transformers_call_as_then(kind: Any) -> None:
    """transformers' own loop passes the dataset to the sampler's method by now, and no metrics to the one that saves.

    Ours calls both forms.
    """
    sampler, save = kind._get_train_sampler, Trainer._save_checkpoint
    kind._get_train_sampler = lambda self, *dataset: sampler(self)
    Trainer._save_checkpoint = lambda self, model, trial, metrics=None: save(self, model, trial)


def draw_the_same_order(sampler: Any) -> None:
    """Its sampler takes random numbers from wherever torch stands, which differs between the loops."""
    inner = sampler.__iter__

    def seeded(self: Any) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return inner(self)

    sampler.__iter__ = seeded


found, arguments = given()
language = byte_tokenizer()
model = language_model(found.output, vocab_size=len(language)).config.name_or_path
settings = Path(model, "config.json")
settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_type": "llava_llama", "pretraining_tp": 1}))
language.save_pretrained(model)
vision = eyes(Path(model) / "eyes")
arguments |= {
    "model_name_or_path": model,
    "data_path": conversations(Path(model) / "conversations.json", all_see=found.case == "projector"),
    "image_folder": vision,
    "vision_tower": vision,
    "mm_vision_select_layer": -2,
    "mm_projector_type": "mlp2x_gelu",
    "mm_projector_lr": 2e-3,
    "group_by_modality_length": True,
    "tune_mm_mlp_adapter": found.case == "projector",
    "mm_use_im_patch_token": False,
    "version": "plain" if found.case == "projector" else "v1",
    "lazy_preprocess": True,
    "model_max_length": 512,
    # It has no data to evaluate on.
    "eval_strategy": "no",
}
make_room_for_2024()
record_every_training(found.resume)
sys.path.insert(0, str(repository("LLaVA")))
sys.argv = ["train.py", *words(arguments)]
train = importlib.import_module("llava.train.train")
if Trainer.__module__.partition(".")[0] == "transformers":
    let_transformers_call_as_then(train.LLaVATrainer)
if not found.case.endswith("-unseeded"):
    draw_the_same_order(sys.modules["llava.train.llava_trainer"].LengthGroupedSampler)
train.train()
