"""Text to text: translation, summaries, answers."""

from __future__ import annotations

from typing import Any

from trainwright.config.loading import Loaded
from trainwright.data.collators_text import DataCollatorForSeq2Seq
from trainwright.experiment import measures
from trainwright.experiment.models import build_pretrained, limit_length, processor_of
from trainwright.experiment.sources import columns_of, expect_columns, pick_column
from trainwright.experiment.tasks.base import Given, Prepared

_SOURCES = ("source", "input", "text", "document", "article", "question", "dialogue")
_TARGETS = ("target", "output", "summary", "highlights", "answer", "translation")


class Seq2Seq:
    """An encoder-decoder of transformers; evaluation generates."""

    reads = ("text", "target", "max_length")

    def defaults(self, loaded: Loaded) -> dict[str, Any]:
        return {
            "learning_rate": 1e-4,
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 16,
            "num_train_epochs": 3,
            "load_best_model_at_end": True,
            "metric_for_best_model": "loss",
            "predict_with_generate": True,
        }

    def prepare(self, given: Given) -> Prepared:
        facts = given.facts or _facts(given)
        tokenizer = processor_of(given.loaded, "AutoTokenizer", given.trained)
        model = build_pretrained(given.loaded, "AutoModelForSeq2SeqLM", given.trained)
        limit_length(given, facts, model, tokenizer)

        def encode(rows: object) -> Any:
            return _encoded(rows, facts, tokenizer)

        return Prepared(
            model=model,
            encode=encode,
            describe=lambda predictions: [{"prediction": text} for text in measures.decoded(tokenizer, predictions)],
            facts=facts,
            collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            metrics=measures.generation(tokenizer),
            processor=tokenizer,
            target=facts["target"],
            notes=[f"reads {facts['source']}, writes {facts['target']}"],
            dropped=facts["dropped"],
        )


def _facts(given: Given) -> dict[str, Any]:
    data, rows = given.loaded.experiment.data, given.train
    wanted = data.text if isinstance(data.text, str) else None
    source = pick_column(given.loaded, "text", wanted, rows, _SOURCES, "the source")
    target = pick_column(given.loaded, "target", data.target, rows, _TARGETS, "the target")
    dropped = [name for name in columns_of(rows) if name not in (source, target)]
    return {"source": source, "target": target, "max_length": data.max_length or 512, "dropped": dropped}


def _with_end(tokens: list[int], end: int | None, longest: int) -> list[int]:
    """A model that never saw an end would write on for ever; most tokenizers add one themselves."""
    return tokens if end is None or tokens[-1:] == [end] else [*tokens[: longest - 1], end]


def _encoded(rows: Any, facts: dict[str, Any], tokenizer: Any) -> Any:
    expect_columns(rows, [facts["source"]])

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, Any]:
        limits = {"truncation": True, "max_length": facts["max_length"]}
        found = dict(tokenizer(["" if text is None else str(text) for text in batch[facts["source"]]], **limits))
        if facts["target"] in batch:
            if None in batch[facts["target"]]:
                raise ValueError(f"There are rows with nothing in {facts['target']!r}: remove them, or fill them in.")
            texts = [str(text) for text in batch[facts["target"]]]
            labels = tokenizer(text_target=texts, **limits)["input_ids"]
            found["labels"] = [_with_end(tokens, tokenizer.eos_token_id, facts["max_length"]) for tokens in labels]
        return found

    return rows.map(tokenize, batched=True, remove_columns=rows.column_names)
