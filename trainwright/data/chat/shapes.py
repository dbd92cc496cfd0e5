"""Rows -> conversations: OpenAI's ``messages``, ShareGPT's ``conversations``, Alpaca's instructions, pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: What ShareGPT's files call the speakers.
_SPEAKERS = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model", "bot"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
    "system": "system",
    "function_call": "function_call",
}
_ROLES = ("system", "developer", "user", "assistant", "tool")
_LISTS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat")
_PAIRS = (("instruction", "output"), ("prompt", "completion"), ("prompt", "response"), ("question", "answer"))
_SAID = {
    "messages": "OpenAI's shape (role and content)",
    "sharegpt": "ShareGPT's shape (from and value)",
    "alpaca": "Alpaca's shape (an instruction and its output)",
}


@dataclass(frozen=True)
class Chat:
    """One conversation, in the form that chat templates take."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    #: Places of answers that the data marks as not to be learned (``weight: 0`` or ``train: false``).
    left_out: frozenset[int] = field(default_factory=frozenset)
    #: How many messages are the prompt of a completion: answers there are read and not learned.
    prompt: int = 0


@dataclass(frozen=True)
class Shape:
    """How the rows of a dataset hold conversations; ``columns`` says which column plays which part."""

    kind: str
    columns: dict[str, str]

    @property
    def said(self) -> str:
        """For people."""
        return f"{_SAID[self.kind]}: {', '.join(self.columns.values())}"

    def chat(self, row: Mapping[str, Any]) -> Chat:
        """The conversation of one row; ValueError says what is wrong with it."""
        self._refuse_other_shape(row)
        tools = _tools(row.get(self.columns.get("tools", "")))
        if self.kind == "alpaca":
            asked, answered = _from_pair(row, self.columns)
        else:
            asked, answered = [], _turns(row.get(self.columns["list"]), self.columns["list"], self.kind)
        plain = [*asked, *answered]
        if not plain and self.kind != "alpaca":
            return Chat([], tools)
        said = _cell(row, self.columns, "system")
        if said.strip() and not (plain and plain[0].get("role") == "system"):
            asked, plain = [{}, *asked], [{"role": "system", "content": said}, *plain]
        left_out = frozenset(place for place, turn in enumerate(plain) if not _is_wanted(turn))
        return Chat([_message(turn) for turn in plain], tools, left_out, len(asked) if self.kind == "alpaca" else 0)

    def _refuse_other_shape(self, row: Mapping[str, Any]) -> None:
        """A row that holds nothing where the first rows have their conversations, and another shape beside."""
        own = [self.columns[part] for part in ("list", "instruction", "output") if part in self.columns]
        if any(row.get(name) is not None for name in own):
            return
        others = [name for name in (*_LISTS, *(name for pair in _PAIRS for name in pair)) if row.get(name) is not None]
        if others:
            raise ValueError(
                f"it has nothing in {' and '.join(map(repr, own))}, where the first rows have their conversations, and "
                f"something in {others[0]!r}: bring all rows into one shape."
            )


def find_shape(
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    text: str | Sequence[str] | None = None,
    target: str | None = None,
) -> Shape:
    """The shape of ``rows`` (the first few of a dataset), by the names in use or by ``text`` and ``target``.

    >>> find_shape(["messages"], [{"messages": [{"role": "user", "content": "Hi"}]}]).said
    "OpenAI's shape (role and content): messages"
    >>> find_shape(["q", "a"], [{"q": "Hi", "a": "Hello"}], text="q", target="a").columns
    {'instruction': 'q', 'output': 'a'}
    """
    wanted = [text] if isinstance(text, str) else list(text or ())
    if unknown := [name for name in [*wanted, *([target] if target else [])] if name not in columns]:
        raise ValueError(f"there is no column {unknown[0]!r}; there are {', '.join(columns)}.")
    beside = {name: name for name in ("tools", "system") if name in columns}
    if target is not None or len(wanted) > 1:
        if target is None or not wanted:
            raise ValueError("questions and answers in two columns need both data.text and data.target.")
        names = dict(zip(("instruction", "input"), wanted, strict=False))
        return Shape("alpaca", {**names, "output": target, **beside})
    for name in wanted or [one for one in _LISTS if one in columns]:
        kinds = (_kind_of_list(row.get(name)) for row in rows)
        if (kind := next((one for one in kinds if one is not None), None)) is not None:
            return Shape(kind, {"list": name, **beside})
        if wanted:
            raise ValueError(f"{name!r} holds no list of messages; for plain answers, name their column data.target.")
    for question, answer in _PAIRS:
        if question in columns and answer in columns:
            more = {"input": "input"} if "input" in columns and question == "instruction" else {}
            return Shape("alpaca", {"instruction": question, **more, "output": answer, **beside})
    raise ValueError(
        f"which column holds the conversations? There are {', '.join(columns) or 'none'}: set data.text to a column of "
        "messages, or data.text and data.target to the columns of questions and answers."
    )


def _kind_of_list(value: Any) -> str | None:
    turns = _parsed(value)
    if not isinstance(turns, (list, tuple)) or not turns or not isinstance(turns[0], Mapping):
        return None
    first = _without_nothing(turns[0])
    return "messages" if "role" in first else "sharegpt" if "from" in first else None


def _parsed(value: Any) -> Any:
    """A list that a table keeps as JSON text, read; anything else as it is."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _without_nothing(value: Any) -> Any:
    """Without keys that hold nothing: tables give every message the keys of all."""
    if isinstance(value, Mapping):
        return {str(key): _without_nothing(one) for key, one in value.items() if one is not None}
    return [_without_nothing(one) for one in value] if isinstance(value, (list, tuple)) else value


def _tools(value: Any) -> list[Any] | None:
    found = _without_nothing(_parsed(value))
    if not found:
        return None
    if not isinstance(found, list):
        raise ValueError("tools should be a list of function descriptions (JSON schemas).")
    return found


def _turns(value: Any, column: str, kind: str) -> list[dict[str, Any]]:
    """Messages with role and content, from a list in the shape ``kind``."""
    turns = _parsed(value)
    if turns is None or (isinstance(turns, str) and not turns.strip()):
        return []
    if not isinstance(turns, (list, tuple)) or not all(isinstance(turn, Mapping) for turn in turns):
        raise ValueError(f"{column!r} should be a list of messages, each with a role and content.")
    plain = [_without_nothing(turn) for turn in turns]
    expected, other = ("from", "role") if kind == "sharegpt" else ("role", "from")
    if any(expected not in turn and other in turn for turn in plain):
        raise ValueError(
            f"{column!r} has messages with {other!r}, and those of the first rows have {expected!r}: bring all rows "
            "into one shape."
        )
    return [_from_sharegpt(turn) for turn in plain] if kind == "sharegpt" else plain


def _cell(row: Mapping[str, Any], columns: Mapping[str, str], part: str) -> str:
    """The text in a column; "" where there is none. What is no text would be learned in Python's words for it."""
    value = row.get(columns.get(part, ""))
    if value is None or isinstance(value, str):
        return value or ""
    raise ValueError(
        f"the column {columns[part]!r} holds {str(value)[:40]!r}, which is {type(value).__name__} and not text: "
        'write it in quotes in a JSONL file ({"'
        + columns[part]
        + '": "..."}), or name a CSV file, which is read as it '
        "stands."
    )


def _from_pair(row: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What is asked and what is answered; each may be text, or messages as TRL has them."""

    def messages(part: str) -> list[dict[str, Any]] | None:
        value = row.get(columns.get(part, ""))
        kind = None if isinstance(value, str) else _kind_of_list(value)
        return None if kind is None else _turns(value, columns[part], kind)

    asked, answered = messages("instruction"), messages("output")
    more = _cell(row, columns, "input")
    if asked is None:
        words = "\n\n".join(one for one in (_cell(row, columns, "instruction"), more) if one.strip())
        asked = [{"role": "user", "content": words}]
    elif more.strip():
        raise ValueError(f"{columns['instruction']!r} holds messages, and {columns['input']!r} text beside: keep one.")
    if answered is None:
        answered = [{"role": "assistant", "content": _cell(row, columns, "output")}]
    return asked, answered


def _from_sharegpt(turn: dict[str, Any]) -> dict[str, Any]:
    speaker, rest = turn.get("from"), {key: turn[key] for key in turn if key not in ("from", "value")}
    role = _SPEAKERS.get(str(speaker))
    if role is None:
        raise ValueError(f"nobody knows the speaker {speaker!r}; there are {', '.join(_SPEAKERS)}.")
    said = turn.get("value", "")
    if role != "function_call":
        return {"role": role, "content": said, **rest}
    called = _parsed(said)
    calls = called if isinstance(called, list) else [called]
    if not all(isinstance(call, dict) and "name" in call for call in calls):
        raise ValueError("a function_call should be JSON with a name and arguments.")
    made = [{"type": "function", "function": call} for call in calls]
    return {"role": "assistant", "content": "", "tool_calls": made, **rest}


def _is_wanted(turn: Mapping[str, Any]) -> bool:
    said = [turn[name] for name in ("weight", "train") if name in turn]
    for wanted in said:
        if wanted not in (0, 1):
            raise ValueError(f"weight: {wanted!r}: an answer is learned (1) or not (0); nothing lies between.")
    return all(said)


def _message(turn: dict[str, Any]) -> dict[str, Any]:
    role, content = turn.get("role"), turn.get("content", "")
    if role == "function":
        # The older name of what tools answer.
        turn, role = {**turn, "role": "tool"}, "tool"
    if role not in _ROLES:
        raise ValueError(f"there is no role {role!r}; messages are of {', '.join(_ROLES)}.")
    found = {**{key: value for key, value in turn.items() if key not in ("weight", "train")}, "content": content}
    if not isinstance(content, str):
        found["content"] = _joined_parts(content)
    if "function_call" in found:
        # OpenAI's older name; templates know the newer one alone.
        found["tool_calls"] = [*(found.get("tool_calls") or ()), {"function": found.pop("function_call")}]
    if found.get("tool_calls"):
        found["tool_calls"] = _calls(found["tool_calls"])
    return found


def _calls(calls: Any) -> list[dict[str, Any]]:
    """Calls of functions, with their arguments as objects: OpenAI keeps those as JSON text."""
    found = []
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function", call) if isinstance(call, Mapping) else call
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError(
                f"tool_calls holds {str(call)[:60]!r}: a call is an object, "
                '{"type": "function", "function": {"name": ..., "arguments": {...}}}.'
            )
        function = dict(function)
        if isinstance(function.get("arguments"), str):
            function["arguments"] = _parsed(function["arguments"])
        found.append({"type": "function", **call, "function": function} if "function" in call else function)
    return found


def _joined_parts(content: Any) -> str:
    """Text in parts, as one; a part that is no text is refused."""
    if not isinstance(content, list):
        raise ValueError(
            f"a message's content is {str(content)[:40]!r}, which is {type(content).__name__} and not text: write it "
            "in quotes."
        )
    parts = [{"text": part} if isinstance(part, str) else part for part in content]
    kinds = {str(part.get("type", "text")) if isinstance(part, Mapping) else "something unnamed" for part in parts}
    if kinds - {"text"}:
        raise ValueError(f"a message holds {', '.join(sorted(kinds - {'text'}))}; this task reads text alone.")
    return "".join(str(part.get("text") or "") for part in parts)
