"""What a trained model answers to the last question of each conversation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from trainwright.data.chat.answers import says_something
from trainwright.data.chat.shapes import Shape
from trainwright.data.chat.template import ChatTemplate

_MOST_TOKENS = 256


def answers_to(
    model: Any, template: ChatTemplate, shape: Shape, rows: Iterable[Any], *, batch_size: int, device: torch.device
) -> list[dict[str, Any]]:
    """One ``prediction`` a row, and as ``label`` the answer that the row ends with, if it has one.

    Nothing is drawn at random. A conversation that ends with an answer is asked for it again.
    """
    asked: list[list[int]] = []
    found: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        try:
            tokens, label = _question(template, shape, row)
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from error
        if len(tokens) >= _longest(model):
            raise ValueError(f"row {number}: it has {len(tokens)} tokens, and the model reads {_longest(model)}.")
        asked.append(tokens)
        found.append({} if label is None else {"label": label})
    model = model.to(device).eval()
    # Of one length or nearly: less is padded.
    order = sorted(range(len(asked)), key=lambda place: len(asked[place]))
    for start in range(0, len(order), batch_size):
        places = order[start : start + batch_size]
        for place, text in zip(places, _written(model, template, [asked[one] for one in places], device), strict=True):
            found[place]["prediction"] = text
    return found


def _question(template: ChatTemplate, shape: Shape, row: Any) -> tuple[list[int], str | None]:
    chat = shape.chat(row)
    messages, label = chat.messages, None
    if messages and messages[-1]["role"] == "assistant":
        *messages, last = messages
        label = str(last["content"]) if says_something(last) else None
    if not messages:
        raise ValueError("there is nothing to answer.")
    return template.tokens(template.text(messages, chat.tools, prompt=True))[0], label


def _longest(model: Any) -> int:
    return int(getattr(model.config, "max_position_embeddings", None) or 2**31)


def _written(model: Any, template: ChatTemplate, asked: list[list[int]], device: torch.device) -> list[str]:
    tokenizer = template.tokenizer
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0
    longest = max(map(len, asked))
    tokens = torch.tensor([[pad] * (longest - len(one)) + one for one in asked], device=device)
    mask: Tensor = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in asked], device=device)
    most = min(_MOST_TOKENS, _longest(model) - longest)
    with torch.inference_mode():
        whole = model.generate(
            input_ids=tokens, attention_mask=mask, max_new_tokens=most, do_sample=False, num_beams=1, pad_token_id=pad
        )
    return [text.strip() for text in tokenizer.batch_decode(whole[:, longest:], skip_special_tokens=True)]
