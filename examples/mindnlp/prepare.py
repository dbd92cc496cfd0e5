"""Writes what the example needs and a laptop without a network has not: reviews, a tokenizer, a small BERT, a metric.

python examples/mindnlp/prepare.py FOLDER
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

_GOOD = ["wonderful", "moving", "clever", "warm", "funny", "brilliant"]
_BAD = ["dull", "clumsy", "empty", "cold", "tedious", "awful"]
_REST = ["the", "film", "was", "a", "story", "about", "people", "who", "went", "to", "town", "and", "it", "had", "some"]

_METRIC = """
import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        values = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        features = datasets.Features(values)
        return evaluate.MetricInfo(description="share of right answers", citation="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(p == r for p, r in zip(predictions, references)) / len(references)}
"""


def reviews(count: int, seed: int) -> list[dict[str, int | str]]:
    """Sentences whose label is told by three words in them."""
    chance = random.Random(seed)
    rows: list[dict[str, int | str]] = []
    for number in range(count):
        words = [chance.choice(_REST) for _ in range(chance.randint(4, 8))]
        for _ in range(3):
            words.insert(chance.randrange(len(words)), chance.choice(_GOOD if number % 2 else _BAD))
        rows.append({"text": " ".join(words), "label": number % 2})
    chance.shuffle(rows)
    return rows


def prepare(folder: Path) -> None:
    """Everything, below ``folder``."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", 400, 1), ("test", 120, 2)):
        lines = [json.dumps(row) for row in reviews(count, seed)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *_GOOD, *_BAD, *dict.fromkeys(_REST)]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        model_max_length=16,
    ).save_pretrained(folder / "bert")  # fmt: skip
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder / "bert")
    (folder / "accuracy").mkdir(exist_ok=True)
    (folder / "accuracy" / "accuracy.py").write_text(_METRIC)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
