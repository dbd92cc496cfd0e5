"""Conversations in the shapes that people keep them in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.chat.chats import ONE
from trainwright.data.chat.answers import learnable
from trainwright.data.chat.shapes import find_shape

SHAREGPT = [{"from": "human", "value": "Where does the fox live?"}, {"from": "gpt", "value": "In a den."}]


def chat_of(row: dict[str, Any], **named: Any) -> Any:
    return find_shape(list(row), [dict.fromkeys(row), row], **named).chat(row)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"messages": ONE}, {}),
        ({"id": 3, "dialogue": ONE}, {}),
        ({"talk": ONE}, {"text": "talk"}),
        ({"messages": json.dumps(ONE)}, {}),
        ({"conversations": SHAREGPT}, {}),
        ({"instruction": "Where does the fox live?", "input": "", "output": "In a den."}, {}),
        ({"question": "Where does the fox live?", "answer": "In a den."}, {}),
        ({"q": "Where does the fox live?", "a": "In a den."}, {"text": "q", "target": "a"}),
        ({"prompt": ONE[:1], "completion": ONE[1:]}, {}),
        ({"prompt": SHAREGPT[:1], "completion": "In a den."}, {}),
        ({"messages": [{**turn, "tool_calls": None} for turn in ONE]}, {}),
        ({"messages": [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in ONE]}, {}),
    ],
)
def test_every_shape_gives_the_same_conversation(row: dict[str, Any], named: Any) -> None:
    assert chat_of(row, **named).messages == ONE


def test_an_instruction_and_its_input_are_one_question() -> None:
    chat = chat_of({"instruction": "Add.", "input": "1 2", "output": "3", "system": "Be brief."})
    assert [turn["content"] for turn in chat.messages] == ["Be brief.", "Add.\n\n1 2", "3"]


def test_calls_of_functions_are_read_in_both_shapes() -> None:
    call = {"name": "look_up", "arguments": {"animal": "fox"}}
    openai = {"messages": [{"role": "assistant", "content": None, "tool_calls": [
        {"type": "function", "function": {**call, "arguments": json.dumps(call["arguments"])}}]}]}  # fmt: skip
    sharegpt = {"conversations": [{"from": "function_call", "value": json.dumps(call)}], "tools": json.dumps([call])}
    for row in (openai, sharegpt):
        (turn,) = chat_of(row).messages
        assert turn["tool_calls"][0]["function"] == call
        assert turn["content"] == ""
    assert chat_of(sharegpt).tools == [call]


def test_answers_in_a_prompt_are_read_and_not_learned() -> None:
    chat = chat_of({"prompt": [*ONE, ONE[0]], "completion": ONE[1:], "system": "Be brief."})
    assert [turn["content"] for turn in chat.messages[:2]] == ["Be brief.", ONE[0]["content"]]
    assert learnable(chat) == [4]


def test_calls_under_openais_older_names_are_read() -> None:
    old = {"name": "look_up", "arguments": '{"animal": "fox"}'}
    chat = chat_of({"messages": [ONE[0], {"role": "assistant", "content": "Wait.", "function_call": old},
        {"role": "function", "name": "look_up", "content": "a den"}]})  # fmt: skip
    assert chat.messages[1]["tool_calls"] == [
        {"type": "function", "function": {"name": "look_up", "arguments": {"animal": "fox"}}}
    ]
    assert "function_call" not in chat.messages[1]
    assert chat.messages[2]["role"] == "tool"


@pytest.mark.parametrize("said", [{"weight": 0}, {"train": False}, {"weight": 1, "train": False}])
def test_a_call_may_have_weight_zero_too(said: dict[str, Any]) -> None:
    call = {"from": "function_call", "value": {"name": "look_up", "arguments": {}}, **said}
    assert chat_of({"conversations": [SHAREGPT[0], call]}).left_out == {1}


@pytest.mark.parametrize(
    "second", [{"conversations": SHAREGPT}, {"prompt": "Where?", "completion": "There."}, {"messages": SHAREGPT}]
)
def test_a_row_of_another_shape_is_said(second: dict[str, Any]) -> None:
    shape = find_shape(["messages", *second], [{"messages": ONE}])
    with pytest.raises(ValueError, match="bring all rows into one shape"):
        shape.chat({"messages": None, **second})


def test_a_weight_of_zero_leaves_an_answer_out() -> None:
    chat = chat_of({"messages": [ONE[0], {**ONE[1], "weight": 0}]})
    assert chat.left_out == {1}
    assert chat.messages == ONE


@pytest.mark.parametrize(
    ("row", "named", "words"),
    [
        ({"words": "x"}, {}, "which column holds the conversations"),
        ({"words": "x"}, {"text": "talk"}, "there is no column 'talk'; there are words"),
        ({"words": "x"}, {"text": "words"}, "data.target"),
        ({"messages": [{"role": "robot", "content": "x"}]}, {}, "no role 'robot'"),
        ({"conversations": [{"from": "robot", "value": "x"}]}, {}, "nobody knows the speaker 'robot'"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, {}, "holds image; this task reads text"),
        ({"messages": [ONE[0], {**ONE[1], "weight": 0.5}]}, {}, "nothing lies between"),
        ({"conversations": [{"from": "function_call", "value": "no"}]}, {}, "a name and arguments"),
        ({"conversations": [{"from": "gpt", "value": 7}]}, {}, "content is '7', which is int and not text"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": "rm"}]}]}, {}, "tool_calls holds .*rm"),
        ({"messages": [{"role": "assistant", "tool_calls": "rm"}]}, {}, "tool_calls holds 'rm'"),
        ({"instruction": "x", "output": ["a", "b"]}, {}, "column 'output' holds .* which is list and not text"),
        ({"instruction": "x", "output": {"a": 1}}, {}, "column 'output' holds .* which is dict and not text"),
        ({"instruction": 7, "output": "x"}, {}, "column 'instruction' holds '7', which is int and not text"),
        ({"prompt": ONE[:1], "completion": 3.5}, {}, "column 'completion' holds '3.5'"),
    ],
)
def test_what_cannot_be_read_is_said(row: dict[str, Any], named: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        chat_of(row, **named)
