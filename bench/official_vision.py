"""Models, images and stand-ins of packages for the vision scripts of bench/official_scripts.py."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import transformers
from PIL import Image

SIDE = 32
#: An untrained detector answers with the middle half of the image, which should hit some boxes: zeros are always equal.
BOX = 14
CLASSES = ["background", "cat", "dog"]
#: The semantic segmentation script takes this for a local folder of data and for a repository with names of labels.
STREETS = "streets"

_SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_PATCHES: dict[str, Any] = {"image_size": SIDE, "patch_size": 8}
_NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def make(folder: Path, words: list[str], tokenizer: Any) -> None:
    """Models, data and stand-ins; captions for CLIP are drawn from ``words``, which ``tokenizer`` knows."""
    for name, (build, prepare) in MODELS.items():
        build().save_pretrained(folder / "models" / name)
        write(folder / "models" / name / "preprocessor_config.json", json.dumps(prepare))
    tokenizer.save_pretrained(folder / "models" / "clip")
    _images(folder, random.Random(2), words)
    names = folder / "hub" / f"datasets--{STREETS}"
    write(names / "refs" / "main", "0" * 40)
    write(names / "snapshots" / ("0" * 40) / "id2label.json", json.dumps(dict(enumerate(CLASSES))))
    write(folder / "stand_ins" / "albumentations" / "__init__.py", ALBUMENTATIONS)
    write(folder / "stand_ins" / "albumentations" / "pytorch.py", "from albumentations import ToTensorV2\n")
    late = folder / "stand_in_torchvision"
    write(late / "sitecustomize.py", AFTER_TRANSFORMERS)
    stand_in = Path(__file__).with_name("official_torchvision.py").read_text()
    write(late / "late" / "torchvision" / "__init__.py", "")
    write(late / "late" / "torchvision" / "transforms" / "__init__.py", stand_in)
    for file in ("io.py", "ops.py", "models.py", "transforms/functional.py"):
        write(late / "late" / "torchvision" / file, "from torchvision.transforms import *\n" + UNUSED)


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


# ---------------------------------------------------------------------------------------------------------- models


def _config(kind: str, **options: Any) -> Any:
    """A configuration; what every one takes (num_labels, out_features) is not in the signature of its class."""
    return getattr(transformers, f"{kind}Config")(**options)


def _vit() -> Any:
    config = _config("ViT", **_SMALL, **_PATCHES, encoder_stride=8)
    return transformers.ViTForImageClassification(config)


def _vit_masked() -> Any:
    """A checkpoint with all of run_mim.py's weights: it sets no seed before it would draw those that are missing."""
    return transformers.ViTForMaskedImageModeling(_config("ViT", **_SMALL, **_PATCHES, encoder_stride=8))


def _mae() -> Any:
    decoder = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    sizes = {f"decoder_{name}": size for name, size in decoder.items()}
    return transformers.ViTMAEForPreTraining(_config("ViTMAE", **_SMALL, **_PATCHES, **sizes))


def _yolos() -> Any:
    sizes = {"image_size": [SIDE, SIDE], "patch_size": 8, "num_detection_tokens": 6}
    return transformers.YolosForObjectDetection(_config("Yolos", **_SMALL, **sizes, **_NO_DROPOUT))


def _clip() -> Any:
    text = {**_SMALL, "vocab_size": 80, "max_position_embeddings": 64}
    ends = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    config = _config("CLIP", text_config=text | ends, vision_config=_SMALL | _PATCHES, projection_dim=16)
    return transformers.CLIPModel(config)


def _segformer() -> Any:
    sizes = {"depths": [1] * 4, "hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1] * 4}
    none = {"classifier_dropout_prob": 0.0, "drop_path_rate": 0.0}
    config = _config("Segformer", **sizes, **none, decoder_hidden_size=16, num_labels=len(CLASSES))
    return transformers.SegformerForSemanticSegmentation(config)


def _maskformer() -> Any:
    swin = {"embed_dim": 8, "depths": [1] * 4, "num_heads": [1] * 4, "window_size": 2, "drop_path_rate": 0.0}
    stages = [f"stage{number}" for number in range(1, 5)]
    detr = {
        f"{part}_{what}": size
        for part in ("encoder", "decoder")
        for what, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32))
    }
    config = _config(
        "MaskFormer",
        backbone_config=_config("Swin", image_size=SIDE, out_features=stages, **swin),
        decoder_config=_config("MaskFormerDetr", d_model=16, num_queries=5, dropout=0.0, **detr),
        fpn_feature_size=32,  # its group norm has 32 groups
        mask_feature_size=32,
        num_labels=len(CLASSES),
    )
    model = transformers.MaskFormerForInstanceSegmentation(config)
    # So that its masks cover much of the image, and hit the background: zeros are always equal.
    for name, bias in model.named_parameters():
        if name.endswith(("mask_projection.bias", "mask_embedder.2.0.bias")):
            bias.data.fill_(0.3)
        if name == "class_predictor.bias":
            bias.data[0] = 0.5
    return model


def _prepared(kind: str, **options: Any) -> dict[str, Any]:
    return {"image_processor_type": f"{kind}ImageProcessor", "size": {"height": SIDE, "width": SIDE}, **options}


MODELS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "vit": (_vit, _prepared("ViT")),
    "vitmim": (_vit_masked, _prepared("ViT")),
    "vitmae": (_mae, _prepared("ViT")),
    "yolos": (_yolos, _prepared("Yolos")),
    "clip": (_clip, _prepared("CLIP", do_center_crop=False)),
    "segformer": (_segformer, _prepared("Segformer")),
    "maskformer": (_maskformer, _prepared("MaskFormer")),
}


# ------------------------------------------------------------------------------------------------------------ data


def _images(folder: Path, draw: random.Random, words: list[str]) -> None:
    """Noise, in folders by name; and with captions, boxes, areas and instances, in the form of each script."""
    noise = numpy.random.default_rng(draw.randrange(1000))
    data = folder / "data"
    for split, count in (("train", 48), ("validation", 22), ("test", 22)):
        captions, boxes, streets, things = [], [], [], []
        for number in range(count):
            file = data / "images" / split / ("warm", "cold")[number % 2] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noise.integers(0, 255, (SIDE, SIDE, 3), dtype=numpy.uint8)).save(file)
            captions.append({"image_path": str(file), "caption": " ".join(draw.choices(words, k=draw.randint(3, 12)))})
            corners = [
                (draw.randrange(16), draw.randrange(16), draw.randrange(1, 3)) for _ in range(draw.randint(1, 3))
            ]
            boxes.append({"image_id": number, "image": str(file), "width": SIDE, "height": SIDE, "objects": {
                "bbox_id": list(range(len(corners))), "category": [kind - 1 for _, _, kind in corners],
                "bbox": [[x, y, BOX, BOX] for x, y, _ in corners], "area": [BOX * BOX] * len(corners),
            }})  # fmt: skip
            kinds, instances = _painted(corners)
            streets.append({"image": str(file), "label": _saved(kinds, file.with_name(f"{number}-kinds.png"))})
            both = numpy.stack([kinds, instances, numpy.zeros_like(kinds)], axis=-1)
            things.append({
                "image": str(file), "annotation": _saved(both, file.with_name(f"{number}-instances.png")),
                "semantic_class_to_id": {name: number for number, name in enumerate(CLASSES)},
            })  # fmt: skip
        write(data / f"captions-{split}.json", "\n".join(json.dumps(row) for row in captions))
        _boxes(data / "boxes" / f"{split}-0.parquet", boxes)
        _pictures(folder / STREETS / f"{split}-0.parquet", streets, ("image", "label"))
        _pictures(data / "things" / f"{split}-0.parquet", things, ("image", "annotation"))


def _painted(corners: list[tuple[int, int, int]]) -> tuple[Any, Any]:
    """Return each pixel's class and number of instance; what is painted later covers what was there."""
    kinds, instances = numpy.zeros((2, SIDE, SIDE), dtype=numpy.uint8)
    for number, (x, y, kind) in enumerate(corners, 1):
        kinds[y : y + BOX, x : x + BOX] = kind
        instances[y : y + BOX, x : x + BOX] = number
    return kinds, instances


def _saved(pixels: Any, file: Path) -> str:
    # Beside "images", whose every file is a sample of the classification scripts.
    file = Path(*(part if part != "images" else "painted" for part in file.parts))
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)
    return str(file)


def _boxes(file: Path, rows: list[dict[str, Any]]) -> None:
    from datasets import ClassLabel, Dataset, Features, List, Value
    from datasets import Image as Picture

    objects = {
        "bbox_id": List(Value("int64")), "category": List(ClassLabel(names=CLASSES[1:])),
        "bbox": List(List(Value("float32"))), "area": List(Value("int64")),
    }  # fmt: skip
    sizes = {name: Value("int64") for name in ("image_id", "width", "height")}
    file.parent.mkdir(parents=True, exist_ok=True)
    features = Features({**sizes, "image": Picture(), "objects": objects})
    Dataset.from_list(rows, features=features).to_parquet(str(file))


def _pictures(file: Path, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    from datasets import Dataset
    from datasets import Image as Picture

    made = Dataset.from_list(rows)
    for column in columns:
        made = made.cast_column(column, Picture())
    file.parent.mkdir(parents=True, exist_ok=True)
    made.to_parquet(str(file))


# ------------------------------------------------------------------------------------------------------- stand-ins

#: Augmentations leave an image as it is, so that a difference is not one of their draws; tensors are made as asked.
ALBUMENTATIONS = """
import numpy
import torch

class Compose:
    def __init__(self, transforms=(), *rest, **options):
        self.transforms = transforms if isinstance(transforms, list) else []

    def __call__(self, **sample):
        for transform in self.transforms:
            sample = transform(**sample)
        return sample

class Normalize:
    def __init__(self, mean, std, **options):
        self.mean, self.std = numpy.array(mean), numpy.array(std)

    def __call__(self, image, **rest):
        return {"image": (image / 255 - self.mean) / self.std, **rest}

class ToTensorV2:
    def __call__(self, image, mask):
        return {"image": torch.from_numpy(image).permute(2, 0, 1), "mask": torch.from_numpy(mask)}

def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    return Compose
"""

#: torchmetrics imports names that it does not use here.
UNUSED = """
def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    return None
"""

#: transformers looks for torchvision once, and would then prepare images with parts of it that the stand-in does not
#: have. So it looks before the stand-in can be found, and prepares images with Pillow.
AFTER_TRANSFORMERS = """
import pathlib
import sys
from transformers.utils import is_torchvision_available

assert not is_torchvision_available()
sys.path.append(str(pathlib.Path(__file__).with_name("late")))
"""
