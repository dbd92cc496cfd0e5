"""An image with a text, to one of several labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from trainwright.config.loading import Loaded
from trainwright.experiment import measures
from trainwright.experiment.media import read_image, varied_image
from trainwright.experiment.models import build_pretrained, is_local, limit_length, processor_of
from trainwright.experiment.sources import class_numbers, columns_of, expect_columns, pick_column
from trainwright.experiment.tasks.base import Given, Prepared, classes_of
from trainwright.experiment.tasks.tabular import described_classes

_IMAGES = ("image", "img", "picture", "image_path", "file_name")
_TEXTS = ("text", "caption", "sentence", "question", "title")
_TARGETS = ("label", "labels", "target", "class")


class ImageTextClassification:
    """Models of transformers that embed images and texts (CLIP, SigLIP and their like), with a layer on both."""

    reads = ("text", "target", "max_length", "augment")
    reads_files = True

    def defaults(self, loaded: Loaded) -> dict[str, Any]:
        return {
            "learning_rate": 2e-5,
            "warmup_steps": 0.05,
            "per_device_train_batch_size": 32,
            "per_device_eval_batch_size": 64,
            "num_train_epochs": 5,
            "load_best_model_at_end": True,
            "metric_for_best_model": "accuracy",
        }

    def prepare(self, given: Given) -> Prepared:
        if is_local(given.loaded):
            raise given.loaded.error(
                ("model", "name"), "image-text-classification takes models of transformers such as CLIP and SigLIP."
            )
        facts = given.facts or _facts(given)
        tokenizer = processor_of(given.loaded, "AutoTokenizer")
        images = processor_of(given.loaded, "AutoImageProcessor")
        names: list[str] = facts["classes"]
        embedding = build_pretrained(given.loaded, "AutoModel")
        if not callable(getattr(embedding, "get_image_features", None)):
            raise given.loaded.error(
                ("model", "name"), f"{type(embedding).__name__} does not embed images and texts, as CLIP and SigLIP do."
            )
        _limit(given, facts, embedding, tokenizer)

        def encode(rows: object) -> Any:
            return ImageTextRows(rows, facts, tokenizer, images)

        def encode_train(rows: object) -> Any:
            return ImageTextRows(rows, facts, tokenizer, images, varied=bool(given.loaded.experiment.data.augment))

        return Prepared(
            model=ImageTextClassifier(embedding, len(names)),
            encode=encode,
            encode_train=encode_train,
            describe=lambda predictions: described_classes(np.asarray(predictions, dtype=np.float64), names),
            facts=facts,
            collator=TextsWithImages(tokenizer),
            metrics=measures.classification,
            target=facts["target"],
            notes=[f"looks at {facts['image']}, reads {facts['text']}, {len(names)} classes"],
            dropped=facts["dropped"],
        )


class ImageTextClassifier(nn.Module):
    """A layer on the embedding of the image, that of the text, and their product, which says how well they agree."""

    def __init__(self, embedding: nn.Module, classes: int) -> None:
        super().__init__()
        self.embedding = embedding
        config: Any = embedding.config
        size = getattr(config, "projection_dim", None) or config.vision_config.hidden_size
        self.head = nn.Linear(3 * size, classes)
        for name in ("logit_scale", "logit_bias"):
            if isinstance(scale := getattr(embedding, name, None), nn.Parameter):
                # Of the comparison of all texts with all images, which is not made here.
                scale.requires_grad_(False)

    def forward(
        self,
        input_ids: Tensor,
        pixel_values: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        found = self.embedding(input_ids=input_ids, pixel_values=pixel_values, attention_mask=attention_mask)
        text, image = found.text_embeds, found.image_embeds
        logits = self.head(torch.cat([text, image, text * image], -1))
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class ImageTextRows(Dataset):
    """Images read when they are asked for, with the tokens of their texts."""

    def __init__(self, rows: Any, facts: dict[str, Any], tokenizer: Any, images: Any, *, varied: bool = False) -> None:
        expect_columns(rows, [facts["image"], facts["text"]])
        self.rows, self.facts, self.tokenizer, self.images, self.varied = rows, facts, tokenizer, images, varied
        number = class_numbers(rows, facts)
        has_target = facts["target"] in columns_of(rows)
        #: Known now, and not in the middle of an epoch: a label that is not known is an error.
        self.targets = list(map(number, rows[facts["target"]])) if has_target else []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        image = read_image(row[self.facts["image"]], f"row {index}, {self.facts['image']!r}")
        image = varied_image(image) if self.varied else image
        found = {"pixel_values": self.images(image, return_tensors="pt")["pixel_values"][0]}
        text = row[self.facts["text"]]
        limits = {"truncation": True, "max_length": self.facts["max_length"]}
        found |= self.tokenizer("" if text is None else str(text), **limits)
        return {**found, "labels": torch.tensor(self.targets[index])} if self.targets else found


class TextsWithImages:
    """Pads the texts of a batch and stacks its images."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        stacked = {
            name: torch.stack([row[name] for row in rows]) for name in ("pixel_values", "labels") if name in rows[0]
        }
        # SigLIP was trained on texts padded to one length, and has no mask; others have.
        texts = [{key: row[key] for key in ("input_ids", "attention_mask") if key in row} for row in rows]
        whole = "attention_mask" not in rows[0]
        length = self.tokenizer.model_max_length if whole else None
        padded = self.tokenizer.pad(
            texts, padding="max_length" if whole else True, max_length=length, return_tensors="pt"
        )
        return {**{key: padded[key] for key in texts[0]}, **stacked}


def _limit(given: Given, facts: dict[str, Any], embedding: Any, tokenizer: Any) -> None:
    """No text longer than the part of the model that reads texts has positions for."""
    reader = embedding.text_model if hasattr(embedding, "text_model") else embedding
    if not hasattr(reader, "config") or getattr(reader.config, "max_position_embeddings", None) is None:
        return
    limit_length(given, facts, reader, tokenizer)


def _facts(given: Given) -> dict[str, Any]:
    data, rows = given.loaded.experiment.data, given.train
    said = data.text
    if isinstance(said, str) or (said is not None and len(said) != 2):
        raise given.loaded.error(("data", "text"), "two columns: that of the image, and that of the text.")
    image, text = said or (None, None)
    image = pick_column(given.loaded, "text", image, rows, _IMAGES, "the image (data.text: [image, text])")
    text = pick_column(given.loaded, "text", text, rows, _TEXTS, "the text (data.text: [image, text])")
    target = pick_column(given.loaded, "target", data.target, rows, _TARGETS, "the label")
    known = getattr(getattr(rows, "features", {}).get(target), "names", None)
    return {
        "image": image,
        "text": text,
        "target": target,
        "classes": known or classes_of(list(rows[target]), target),
        "numbered": known is not None,
        "max_length": data.max_length or 256,  # or less: what the model reads
        "dropped": [name for name in columns_of(rows) if name not in (image, text, target)],
    }
