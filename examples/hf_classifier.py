"""An ordinary Hugging Face script, unchanged: a small Llama learns to tell greetings from farewells.

    pip install '.[hf]' && python examples/hf_classifier.py
    trainwright try examples/hf_classifier.py

Everything is built here, so that nothing is downloaded.
"""

from __future__ import annotations

import random

import numpy as np
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    EvalPrediction,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

GREETINGS = ["hello", "hi", "welcome", "morning", "greetings"]
FAREWELLS = ["goodbye", "bye", "farewell", "later", "night"]
OTHERS = ["dear", "friend", "good", "to", "you", "my", "all", "old", "see", "and"]


def sentences(tokenizer: PreTrainedTokenizerFast, count: int, seed: int) -> Dataset:
    chance = random.Random(seed)
    rows = []
    for _ in range(count):
        label = chance.randrange(2)
        words = chance.choices(OTHERS, k=chance.randrange(2, 8))
        words.insert(chance.randrange(len(words)), chance.choice(FAREWELLS if label else GREETINGS))
        rows.append({**tokenizer(" ".join(words)), "label": label})
    return Dataset.from_list(rows)


def build_tokenizer() -> PreTrainedTokenizerFast:
    words = ["[PAD]", "[UNK]", *GREETINGS, *FAREWELLS, *OTHERS]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    logits, labels = prediction
    return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}


def main() -> None:
    tokenizer = build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
        pad_token_id=tokenizer.pad_token_id,
    )
    args = TrainingArguments(
        "runs/hf-classifier",
        num_train_epochs=2,
        learning_rate=1e-3,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=25,
        load_best_model_at_end=True,
        report_to="none",
    )
    trainer = Trainer(
        model=LlamaForSequenceClassification(config),
        args=args,
        train_dataset=sentences(tokenizer, 800, 0),
        eval_dataset=sentences(tokenizer, 200, 1),
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
