"""Texts, or pairs of texts, to one of several labels (or to a number)."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.config.loading import Loaded
from trainwright.experiment import measures
from trainwright.experiment.models import build_pretrained, limit_length, processor_of
from trainwright.experiment.sources import class_numbers, columns_of, expect_columns, pick_column
from trainwright.experiment.tasks.base import Given, Prepared, classes_of
from trainwright.experiment.tasks.tabular import described_classes, finite

_TEXTS = ("text", "sentence", "sentence1", "premise", "content", "review", "question")
_SECONDS = {"sentence1": "sentence2", "premise": "hypothesis"}
_TARGETS = ("label", "labels", "target", "class")


class TextClassification:
    """A transformer with a head of as many outputs as there are labels."""

    reads = ("text", "target", "max_length")

    def defaults(self, loaded: Loaded) -> dict[str, Any]:
        return {
            "learning_rate": 2e-5,
            "per_device_train_batch_size": 16,
            "per_device_eval_batch_size": 64,
            "num_train_epochs": 3,
            "load_best_model_at_end": True,
            "metric_for_best_model": "loss",
            "warmup_steps": 0.06,
        }

    def prepare(self, given: Given) -> Prepared:
        facts = given.facts or _facts(given)
        tokenizer = processor_of(given.loaded, "AutoTokenizer", given.trained)
        names: list[str] | None = facts["classes"]
        settings: dict[str, Any] = {"num_labels": 1, "problem_type": "regression"}
        if names is not None:
            settings = {
                "num_labels": len(names),
                "id2label": dict(enumerate(names)),
                "label2id": {name: index for index, name in enumerate(names)},
            }
        auto = "AutoModelForSequenceClassification"
        model = build_pretrained(given.loaded, auto, given.trained, **settings)
        limit_length(given, facts, model, tokenizer)

        def encode(rows: object) -> Any:
            return _encoded(rows, facts, tokenizer)

        return Prepared(
            model=model,
            encode=encode,
            describe=lambda predictions: _described(predictions, names),
            facts=facts,
            metrics=measures.classification if names else measures.regression(),
            processor=tokenizer,
            target=facts["target"],
            notes=[f"reads {' and '.join(facts['text'])}, predicts {facts['target']} ({_kind(names)})"],
            dropped=facts["dropped"],
        )


def _kind(names: list[str] | None) -> str:
    return "a number" if names is None else f"{len(names)} labels"


def _facts(given: Given) -> dict[str, Any]:
    data, rows = given.loaded.experiment.data, given.train
    columns = columns_of(rows)
    texts = [data.text] if isinstance(data.text, str) else list(data.text or [])
    texts = [pick_column(given.loaded, "text", name, rows, (), "text") for name in texts]
    if not texts:
        texts = [pick_column(given.loaded, "text", None, rows, _TEXTS, "the text")]
        second = _SECONDS.get(texts[0])
        texts += [second] if second in columns else []
    if len(texts) > 2:
        raise given.loaded.error(("data", "text"), "one column of text, or two for pairs.")
    target = pick_column(given.loaded, "target", data.target, rows, _TARGETS, "the label")
    feature = getattr(rows, "features", {}).get(target)
    known = getattr(feature, "names", None)
    values = list(rows[target])
    is_number = known is None and all(isinstance(value, float) for value in values)
    return {
        "text": texts,
        "target": target,
        # Numbers of a dataset that knows its names stay what they are.
        "classes": known or (None if is_number else classes_of(values, target)),
        "numbered": known is not None,
        "max_length": data.max_length or 256,  # or less: what the model reads
        "dropped": [name for name in columns if name not in (*texts, target)],
    }


def _encoded(rows: Any, facts: dict[str, Any], tokenizer: Any) -> Any:
    expect_columns(rows, facts["text"])
    number = class_numbers(rows, facts)

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, Any]:
        texts = [["" if text is None else str(text) for text in batch[name]] for name in facts["text"]]
        found = dict(tokenizer(*texts, truncation=True, max_length=facts["max_length"]))
        values = batch.get(facts["target"])
        if values is not None:
            found["labels"] = finite(values, facts["target"]) if facts["classes"] is None else list(map(number, values))
        return found

    return rows.map(tokenize, batched=True, remove_columns=rows.column_names)


def _described(predictions: object, names: list[str] | None) -> list[dict[str, Any]]:
    logits = np.asarray(predictions[0] if isinstance(predictions, tuple) else predictions, dtype=np.float64)
    if names is None:
        return [{"prediction": float(value)} for value in logits.reshape(-1)]
    return described_classes(logits, names)
