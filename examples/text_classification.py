"""A Hugging Face script after the import line was changed: a small BERT learns to tell greetings from farewells.

    pip install '.[hf]' && python examples/text_classification.py

Everything is built here, so that nothing is downloaded; with a network, use `AutoModelForSequenceClassification` and
`AutoTokenizer.from_pretrained` instead.
"""

from __future__ import annotations

import random

import numpy as np
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from trainwright import EarlyStoppingCallback, EvalPrediction, Trainer, TrainingArguments

GREETINGS = ["hello", "hi", "welcome", "morning", "greetings"]
FAREWELLS = ["goodbye", "bye", "farewell", "later", "night"]
OTHERS = ["dear", "friend", "good", "to", "you", "my", "all", "old", "see", "and"]


def sentences(count: int, seed: int) -> Dataset:
    chance = random.Random(seed)
    rows = []
    for _ in range(count):
        label = chance.randrange(2)
        words = chance.choices(OTHERS, k=chance.randrange(2, 8))
        words.insert(chance.randrange(len(words)), chance.choice(FAREWELLS if label else GREETINGS))
        rows.append({"text": " ".join(words), "label": label})
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
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=32,
        )
    )
    train, test = (
        data.map(lambda batch: tokenizer(batch["text"]), batched=True)
        for data in (sentences(800, 0), sentences(200, 1))
    )
    args = TrainingArguments(
        "runs/greetings",
        num_train_epochs=6,
        learning_rate=1e-3,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=25,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        save_total_limit=2,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=train,
        eval_dataset=test,
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
        callbacks=[EarlyStoppingCallback(2)],
    )
    trainer.train()
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    trainer.save_model()


if __name__ == "__main__":
    main()
