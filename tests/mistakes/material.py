"""What the mistakes are made with: files of an experiment, a network, samples."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainwright import TrainingArguments

TABLE = "a,b,kind\n" + "".join(f"{i},{i * i % 11},{'xy'[i % 2]}\n" for i in range(32))
TEXTS = "text,kind\n" + "".join(f"good film {i},{'xy'[i % 2]}\n" for i in range(32))
#: The smallest image there is, in PNG.
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")
#: The first five are there for every mistake.
FILES: dict[str, str | bytes] = {
    "table.csv": TABLE,
    "texts.csv": TEXTS,
    "e.yaml": "model: {name: mlp, options: {width: 4, layers: 1}}\n"
    "data: {train: table.csv, target: kind, holdout: 0.25}\n"
    "training: {max_steps: 2, per_device_train_batch_size: 8}\n",
    "texts.yaml": "model: {name: some-model, task: text-classification}\ndata: {train: texts.csv, target: kind}\n",
    "net.py": "import torch\n\n\nclass Net(torch.nn.Linear):\n    pass\n",
    "latin.csv": b"a,b,kind\n" + b"".join(b"%d,%d,caf\xe9\n" % (i, i % 7) for i in range(16)),
    "gaps.csv": TABLE.replace("3,9,y", "3,9,").replace("7,5,y", "7,5,"),
    "empty.csv": "a,b,kind\n",
    "same.csv": "a,b,kind\n" + "".join(f"{i},{i % 5},x\n" for i in range(16)),
    "broken.yaml": "model: {name: mlp\ndata: table.csv\n",
    "semicolons.csv": TABLE.replace(",", ";"),
    "nameless.csv": TABLE.split("\n", 1)[1].replace("0,0,", "0,0.1,", 1),
    "flat.yaml": "model: mlp\ndata:\ntrain: table.csv\ntarget: kind\n",
    "crooked.yaml": "model: mlp\ndata:\n  train: table.csv\n target: kind\n",
    "images.yaml": "model: {name: cnn, task: image-classification}\ndata: {train: pictures}\n",
    "pictures/cat/0.png": "no image",
    "pictures/cat/1.png": PIXEL,
    "pictures/dog/1.png": PIXEL,
    "notes/readme.txt": "nothing to learn from\n",
    "code.yaml": "model: {name: net.py:Net, task: own}\ndata: table.csv\n",
    "tabs.yaml": "model:\n\tname: mlp\n",
}
ALWAYS = ("table.csv", "texts.csv", "e.yaml", "texts.yaml", "net.py")


def write_files(folder: Path, more: tuple[str, ...] = ()) -> None:
    """The usual files, and those that a mistake asks for besides."""
    for name in (*ALWAYS, *more):
        content = FILES[name]
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


class Net(nn.Module):
    """Four numbers in, two classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Words(nn.Module):
    """Numbers of words in, two classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.table(input_ids).mean(1))


class Pictures(nn.Module):
    """Pictures in three colours."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.first(pixels).mean((2, 3)))


def samples(count: int = 16, **other: Any) -> list[dict[str, Any]]:
    """Samples for :class:`Net`; ``other`` stands in each of them."""
    return [{"x": torch.ones(4) * i, "labels": i % 2, **other} for i in range(count)]


def arguments(**settings: Any) -> TrainingArguments:
    """Two steps of four samples, in order."""
    usual: dict[str, Any] = {"max_steps": 2, "per_device_train_batch_size": 4, "use_cpu": True, "report_to": "none"}
    usual |= {"train_sampling_strategy": "sequential", "disable_tqdm": True, "save_strategy": "no"}
    return TrainingArguments("out", **(usual | settings))


def classifier(**settings: Any) -> Any:
    """A small BERT with two classes."""
    from transformers import BertConfig, BertForSequenceClassification

    size: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=16, **size, **settings))
