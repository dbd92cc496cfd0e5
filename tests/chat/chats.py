"""Conversations that tests share."""

from __future__ import annotations

from typing import Any

from trainwright.data.chat.samples import IGNORED, ChatRows, encode_chats
from trainwright.data.chat.shapes import find_shape
from trainwright.data.chat.template import ChatTemplate


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


ONE = [user("Where does the fox live?"), assistant("In a den.")]
TWO = [*ONE, user("And the owl?"), assistant("In a tree.")]
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"animal": "fox"}}}
WITH_TOOL = [
    user("Where?"),
    assistant("", tool_calls=[CALL]),
    {"role": "tool", "name": "look_up", "content": "a den"},
    assistant("In a den."),
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Finds where an animal lives.",
            "parameters": {"type": "object", "properties": {"animal": {"type": "string"}}, "required": ["animal"]},
        },
    }
]


def encoded(tokenizer: Any, *chats: list[dict[str, Any]], tools: Any = None, **options: Any) -> ChatRows:
    """Samples of conversations of one shape."""
    rows = [{"messages": chat, **({"tools": tools} if tools else {})} for chat in chats]
    return encode_chats(rows, find_shape(list(rows[0]), rows), ChatTemplate(tokenizer), **options)


def trained(tokenizer: Any, rows: ChatRows, place: int = 0) -> list[str]:
    """The stretches of a sample that are trained, as text."""
    found: list[list[int]] = [[]]
    for token, label in zip(rows[place]["input_ids"].tolist(), rows[place]["labels"].tolist(), strict=True):
        if label == IGNORED:
            found.append([])
        else:
            assert label == token
            found[-1].append(token)
    return [tokenizer.decode(tokens) for tokens in found if tokens]
