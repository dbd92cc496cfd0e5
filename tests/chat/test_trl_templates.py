"""The chat templates that the installed TRL ships: each is proven, or refused in words; read there, none copied."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.chat.chats import ONE, TOOLS, TWO, WITH_TOOL, assistant, encoded, trained, user
from tests.chat.tiny import tokenizer

HOME = Path(importlib.util.find_spec("trl").origin).with_name("chat_templates")  # type: ignore[union-attr, arg-type]
NAMES = sorted(path.stem for path in HOME.glob("*.jinja"))
#: Templates that render the last answer in another way than earlier ones: each answer as a sample of its own is proven.
LAST_IS_SPECIAL = {"gptoss", "qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6"}
#: Templates that ask for an answer in another way than they render it, mark its header, or write no end behind it.
UNPROVEN = {
    *("deepseek_r1_distill", "deepseekv3", "glm4moe", "gptoss_training", "muse_glimmer_training"),
    *("nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra"),
}
KNOWN: dict[str, Any] = {}


def known(name: str) -> Any:
    if name not in KNOWN:
        KNOWN[name] = tokenizer((HOME / f"{name}.jinja").read_text(encoding="utf-8"))
    return KNOWN[name]


def words_of(parts: list[str]) -> list[str]:
    return ["".join(part.split()) for part in parts]


def masked(name: str, chat: list[dict[str, Any]], **options: Any) -> list[str] | str:
    """What is trained, or why it is refused."""
    try:
        return words_of(trained(known(name), encoded(known(name), chat, **options)))
    except ValueError as error:
        return str(error)


def test_there_are_dozens() -> None:
    assert len(NAMES) >= 40


@pytest.mark.parametrize("name", NAMES)
def test_two_turns_are_proven_or_refused_in_words(name: str) -> None:
    found = masked(name, TWO)
    assert isinstance(found, str) == (name in LAST_IS_SPECIAL | UNPROVEN), found
    if isinstance(found, str):
        assert "model.chat_template" in found
        return
    assert len(found) == 2
    for text, answer in zip(found, ("Inaden.", "Inatree."), strict=True):
        assert answer in text
        assert "fox" not in text
        assert "owl" not in text
        # The end: a token that the template writes behind the answer.
        assert text.endswith(">")


@pytest.mark.parametrize("name", sorted(UNPROVEN & set(NAMES)))
def test_refused_templates_say_why_and_are_refused_in_every_way(name: str) -> None:
    for train_on in ("assistant", "each", "last"):
        found = masked(name, TWO, train_on=train_on)
        assert isinstance(found, str)
        assert any(words in found for words in ("prefix-preserving", "the mask is off", "the end is missing")), found


@pytest.mark.parametrize("name", sorted(LAST_IS_SPECIAL & set(NAMES)))
def test_where_the_last_answer_is_special_each_can_be_a_sample(name: str) -> None:
    found = masked(name, TWO)
    assert isinstance(found, str)
    assert "data.train_on: each" in found
    rows = encoded(known(name), TWO, train_on="each")
    texts = [words_of(trained(known(name), rows, place)) for place in range(2)]
    assert all(len(parts) == 1 for parts in texts)
    assert ["Inaden." in texts[0][0], "Inatree." in texts[1][0]] == [True, True]


@pytest.mark.parametrize("name", [name for name in NAMES if f"{name}_training" in NAMES])
def test_markers_and_prefixes_say_the_same(name: str) -> None:
    """TRL ships some templates twice, with and without markers: two ways to one mask."""
    for chat in (ONE, TWO):
        plain, marked = masked(name, chat), masked(f"{name}_training", chat)
        if isinstance(plain, str) or isinstance(marked, str):
            continue
        # Of thoughts that are empty, some templates for training write more.
        assert [text.split("</think>")[-1] for text in plain] == [text.split("</think>")[-1] for text in marked]


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3_instruct_2507", "llama3_1", "lfm2_v2_training", "gemma4"])
def test_calls_of_functions_are_learned_and_their_results_are_not(name: str) -> None:
    found = masked(name, WITH_TOOL, tools=TOOLS)
    assert isinstance(found, list), found
    assert "look_up" in found[0]
    assert "fox" in found[0]
    assert found[1].startswith("Inaden.")
    assert "result" not in "".join(found)


@pytest.mark.parametrize("name", ["llama3", "phi3", "lfm2"])
def test_a_template_that_drops_calls_is_refused(name: str) -> None:
    found = masked(name, WITH_TOOL, tools=TOOLS)
    assert isinstance(found, str)
    assert "message 2 says 'look_up'" in found or "prefix" in found


def test_thoughts_are_learned_where_the_template_writes_them() -> None:
    chat = [user("Where?"), assistant("In a den.", reasoning_content="It is a fox.")]
    found = masked("qwen3", chat)
    assert found == ["<think>Itisafox.</think>Inaden.<|im_end|>"]
    rows = encoded(known("llama3"), chat)
    assert dict(rows.counts.remarks) == {"answers lose their thoughts: the template leaves them out": 1}


@pytest.mark.parametrize(
    ("name", "words"),
    [("qwen3_6_training", "from a tag on that the model is given"), ("deepseekv3_training", "adds it to the prompt")],
)
def test_what_differs_when_the_model_is_asked_is_said(name: str, words: str) -> None:
    (remark,) = encoded(known(name), TWO).counts.remarks.items()
    assert words in remark[0]
    assert remark[1] == 2


def test_a_template_without_system_turns_says_so() -> None:
    found = masked("gemma", [{"role": "system", "content": "Be brief."}, *ONE])
    assert isinstance(found, str)
    assert "System role not supported" in found
    assert "can go into the first question" in found


def test_templates_for_texts_in_parts_are_given_parts() -> None:
    assert masked("smolvlm", ONE) == ["Inaden.<end_of_utterance>"]
