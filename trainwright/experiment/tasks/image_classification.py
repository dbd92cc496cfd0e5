"""Images to one of several labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from trainwright.config.loading import Loaded
from trainwright.experiment import measures
from trainwright.experiment.builtin_data import digits
from trainwright.experiment.media import read_image, row_of, varied_image
from trainwright.experiment.models import build_local, build_pretrained, is_local, processor_of
from trainwright.experiment.sources import class_numbers, columns_of, expect_columns, pick_column
from trainwright.experiment.tasks.base import Given, Prepared, TensorRows, classes_of
from trainwright.experiment.tasks.tabular import described_classes

_IMAGES = ("image", "img", "pixel_values", "picture")
_TARGETS = ("label", "labels", "target", "class", "fine_label")


class ImageClassification:
    """transformers' models with their image processor; ``cnn`` and one's own with images scaled to one size."""

    reads = ("text", "target", "image_size", "augment")
    reads_files = True

    def defaults(self, loaded: Loaded) -> dict[str, Any]:
        return {
            "learning_rate": 3e-3 if is_local(loaded) else 5e-5,
            "warmup_steps": 0.05,
            "per_device_train_batch_size": 32,
            "per_device_eval_batch_size": 128,
            "num_train_epochs": 10,
            "load_best_model_at_end": True,
            "metric_for_best_model": "accuracy",
        }

    def prepare(self, given: Given) -> Prepared:
        facts = given.facts or _facts(given)
        names: list[str] = facts["classes"]
        local = is_local(given.loaded)
        processor = None if local else processor_of(given.loaded, "AutoImageProcessor", given.trained)
        if local:
            sizes = {"channels": facts["channels"], "outputs": len(names), "image_size": facts["image_size"]}
            sizes["inputs"] = facts["channels"] * facts["image_size"] ** 2
            model = build_local(given.loaded, **sizes)
        else:
            labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
            auto = "AutoModelForImageClassification"
            # A head of another size than the one that was trained is made anew.
            settings = {"num_labels": len(names), **labels, "ignore_mismatched_sizes": True}
            model = build_pretrained(given.loaded, auto, given.trained, **settings)

        varied = given.loaded.experiment.data.augment
        if varied and facts["image"] is None:
            raise given.loaded.error(("data", "augment"), "the built-in digits are numbers already: leave it out.")

        def encode(rows: object, *, varied: bool = False) -> Any:
            if isinstance(rows, torch.utils.data.Subset | TensorRows):
                return rows
            return ImageRows(rows, facts, processor, varied=varied)

        return Prepared(
            model=model,
            encode=encode,
            encode_train=lambda rows: encode(rows, varied=varied),
            describe=lambda predictions: described_classes(_logits(predictions), names),
            facts=facts,
            metrics=measures.classification,
            processor=processor,
            target=facts["target"],
            notes=[f"{len(names)} classes"],
            dropped=facts["dropped"],
        )


def digit_rows() -> TensorRows:
    """The built-in digits as rows of this task."""
    pixels, labels = digits()
    return TensorRows(pixel_values=pixels, labels=labels)


def _logits(predictions: object) -> np.ndarray:
    return np.asarray(predictions[0] if isinstance(predictions, tuple) else predictions, dtype=np.float64)


def _facts(given: Given) -> dict[str, Any]:
    data, rows = given.loaded.experiment.data, given.train
    if given.loaded.experiment.data.train == "digits":
        names = [str(digit) for digit in range(10)]
        return {"classes": names, "channels": 1, "image_size": 8, "dropped": [], "image": None, "target": "labels"}
    text = data.text if isinstance(data.text, str) else None
    image = pick_column(given.loaded, "text", text, rows, _IMAGES, "the image")
    target = pick_column(given.loaded, "target", data.target, rows, _TARGETS, "the label")
    known = getattr(getattr(rows, "features", {}).get(target), "names", None)
    return {
        "image": image,
        "target": target,
        "classes": known or classes_of(list(rows[target]), target),
        "numbered": known is not None,
        "channels": 3,
        "image_size": data.image_size or 64,
        "dropped": [name for name in columns_of(rows) if name not in (image, target)],
    }


class ImageRows(Dataset):
    """Images read and scaled when they are asked for."""

    def __init__(self, rows: Any, facts: dict[str, Any], processor: Any, *, varied: bool = False) -> None:
        self.rows, self.facts, self.processor, self.varied = rows, facts, processor, varied
        expect_columns(rows, [facts["image"]])
        self._number = class_numbers(rows, facts)
        self._has_target = facts["target"] in columns_of(rows)
        for value in set(rows[facts["target"]]) if self._has_target else ():
            # A label that is not known is known now, and not in the middle of an epoch.
            self._number(value)

    @property
    def targets(self) -> list[int]:
        """The class of each image, where classes are given."""
        return list(map(self._number, self.rows[self.facts["target"]])) if self._has_target else []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = row_of(self.rows, index)
        image = read_image(row[self.facts["image"]], f"row {index}, {self.facts['image']!r}")
        image = varied_image(image) if self.varied else image
        if self.processor is not None:
            pixels = self.processor(image, return_tensors="pt")["pixel_values"][0]
        else:
            pixels = _scaled(image, self.facts["image_size"])
        found: dict[str, Any] = {"pixel_values": pixels}
        if self._has_target:
            found["labels"] = torch.tensor(self._number(row[self.facts["target"]]))
        return found


def _scaled(image: Any, size: int) -> Tensor:
    """-1..1, square."""
    pixels = np.asarray(image.resize((size, size)), dtype=np.float32)
    return torch.from_numpy(pixels).permute(2, 0, 1) / 127.5 - 1.0
