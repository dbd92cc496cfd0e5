"""Text, one token or character after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from trainwright.config.loading import Loaded
from trainwright.experiment import measures
from trainwright.experiment.builtin_data import documentation, encode
from trainwright.experiment.models import build_local, build_pretrained, is_local, limit_length, processor_of
from trainwright.experiment.sources import columns_of, expect_columns, pick_column
from trainwright.experiment.tasks.base import Given, Prepared, TensorRows

_TEXTS = ("text", "content", "document", "completion")
_CHARACTERS_READ = 220_000


class CausalLM:
    """A causal language model of transformers on tokens in blocks, or a network of one's own on characters."""

    reads = ("text", "max_length")

    def defaults(self, loaded: Loaded) -> dict[str, Any]:
        local = is_local(loaded)
        return {
            "learning_rate": 6e-3 if local else 5e-5,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 0.02,
            "per_device_train_batch_size": 32 if local else 8,
            "per_device_eval_batch_size": 64 if local else 16,
            "num_train_epochs": 4 if local else 3,
            "load_best_model_at_end": True,
            "metric_for_best_model": "loss",
        }

    def prepare(self, given: Given) -> Prepared:
        return _characters(given) if is_local(given.loaded) else _tokens(given)


def _tokens(given: Given) -> Prepared:
    data = given.loaded.experiment.data
    tokenizer = processor_of(given.loaded, "AutoTokenizer", given.trained)
    facts = given.facts or {
        "text": _text_column(given),
        "max_length": data.max_length or 512,
        "dropped": [name for name in columns_of(given.train) if name != _text_column(given)],
    }

    model = build_pretrained(given.loaded, "AutoModelForCausalLM", given.trained)
    limit_length(given, facts, model, tokenizer)

    def blocks(rows: object) -> Any:
        return _in_blocks(rows, facts, tokenizer)

    return Prepared(
        model=model,
        encode=blocks,
        describe=_described,
        facts=facts,
        metrics=measures.perplexity,
        preprocess_logits=shifted_losses,
        processor=tokenizer,
        notes=[f"reads {facts['text']} in blocks of {facts['max_length']} tokens"],
        dropped=facts["dropped"],
    )


def _text_column(given: Given) -> str:
    wanted = given.loaded.experiment.data.text
    chats = next((name for name in ("messages", "conversations") if name in columns_of(given.train)), None)
    if chats is not None and (wanted == chats or (wanted is None and not {*_TEXTS} & {*columns_of(given.train)})):
        raise given.loaded.error(("model", "task"), f"the column {chats} holds conversations: set model.task: chat.")
    return pick_column(
        given.loaded, "text", wanted if isinstance(wanted, str) else None, given.train, _TEXTS, "the text"
    )


def _in_blocks(rows: Any, facts: dict[str, Any], tokenizer: Any) -> Any:
    """All texts behind each other, with an end mark between them, cut into blocks; the short rest is left out."""
    length, end = facts["max_length"], tokenizer.eos_token_id
    expect_columns(rows, [facts["text"]])
    if length < 2:
        raise ValueError("data.max_length=1: a token is learned from the one before it, so a block needs two.")

    def cut(batch: dict[str, list[Any]]) -> dict[str, Any]:
        stream: list[int] = []
        texts = [str(text) for text in batch[facts["text"]] if text is not None]
        for tokens in tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []:
            stream += tokens if end is None else [*tokens, end]
        starts = range(0, len(stream) - length + 1, length) if len(stream) >= length else [0]
        found = [stream[start : start + length] for start in starts if len(stream[start : start + length]) > 1]
        return {"input_ids": found, "labels": [list(block) for block in found]}

    cut_rows = rows.map(cut, batched=True, batch_size=1000, remove_columns=rows.column_names)
    if len(cut_rows) == 0:
        raise ValueError(f"The column {facts['text']!r} holds too little text for one block.")
    return cut_rows.filter(lambda row: len(row["input_ids"]) == length) if len(cut_rows) > 1 else cut_rows


def shifted_losses(logits: Any, labels: Tensor) -> Tensor:
    """Loss of each token from those before it: one number to keep in place of a row of logits."""
    logits = logits[0] if isinstance(logits, tuple) else logits
    return token_losses(logits[:, :-1], labels[:, 1:])


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of each token; NaN where there is none to predict."""
    losses = F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none", ignore_index=-100)
    return losses.masked_fill(labels == -100, float("nan"))


def _described(predictions: object) -> list[dict[str, Any]]:
    losses = np.asarray(predictions, dtype=np.float64)
    return [{"loss": float(np.nanmean(row)), "perplexity": float(np.exp(np.nanmean(row)))} for row in losses]


# ---- characters


def _characters(given: Given) -> Prepared:
    data = given.loaded.experiment.data
    facts = given.facts or {
        "alphabet": "".join(sorted(set(_joined(given.train, _character_column(given))))),
        "max_length": data.max_length or 64,
        "text": _character_column(given),
        "dropped": [],
    }

    def rows_of(rows: object) -> TensorRows:
        return _character_rows(_joined(rows, facts.get("text", data.text)), facts)

    return Prepared(
        model=build_local(given.loaded, symbols=len(facts["alphabet"])),
        encode=rows_of,
        describe=_described,
        facts=facts,
        metrics=measures.perplexity,
        preprocess_logits=token_losses,
        notes=[f"{len(facts['alphabet'])} characters, in blocks of {facts['max_length']}"],
    )


def character_lines() -> list[str]:
    """The built-in text, in lines, so that some can be held out."""
    return documentation()[:_CHARACTERS_READ].splitlines(keepends=True)


def _character_column(given: Given) -> str | None:
    return _text_column(given) if columns_of(given.train) else None


def _joined(rows: Any, column: Any) -> str:
    if columns_of(rows):
        name = column if isinstance(column, str) else "text"
        expect_columns(rows, [name])
        return "\n".join(str(text) for text in rows[name])
    return "".join(rows[index] for index in range(len(rows)))


def _character_rows(text: str, facts: dict[str, Any]) -> TensorRows:
    length = facts["max_length"]
    numbers = encode(text, facts["alphabet"])
    count = (len(numbers) - 1) // length
    if count < 1:
        raise ValueError(f"The text has {len(text)} characters; a block of data.max_length={length} needs one more.")
    return TensorRows(
        input_ids=numbers[: count * length].reshape(count, length),
        labels=numbers[1 : count * length + 1].reshape(count, length),
    )
