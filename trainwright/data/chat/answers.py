"""Where the answers of a conversation stand among its tokens: by the template's markers, or by rendering prefixes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from trainwright.data.chat.shapes import Chat
from trainwright.data.chat.template import ChatTemplate

Offsets = list[tuple[int, int]]
_LONGEST = 40
_TAG = re.compile(r"<[^<>\s]+>")


@dataclass(frozen=True)
class Answer:
    """An assistant turn: the number of its message, and the places of its tokens."""

    turn: int
    tokens: list[int]
    #: Where a model that is asked begins to write, in characters; None where the template does not let one tell.
    begins: int | None
    #: Tokens that the template marks and the model is given; they are not trained.
    given: int = 0


@dataclass(frozen=True)
class Rendered:
    """A conversation as text and tokens."""

    text: str
    tokens: list[int]
    offsets: Offsets


def rendered(template: ChatTemplate, chat: Chat) -> Rendered:
    """The whole conversation, once."""
    text = template.text(chat.messages, chat.tools)
    return Rendered(text, *template.tokens(text))


def learnable(chat: Chat) -> list[int]:
    """Numbers of the messages that are answers: something was asked, something is said, the data does not say no."""
    return [
        place
        for place, message in enumerate(chat.messages)
        if place >= max(1, chat.prompt)
        and message["role"] == "assistant"
        and place not in chat.left_out
        and says_something(message)
    ]


def says_something(message: dict[str, Any]) -> bool:
    """Whether an answer has words, thoughts or calls."""
    return bool(str(message["content"]).strip() or message.get("tool_calls") or thoughts_of(message).strip())


def thoughts_of(message: dict[str, Any]) -> str:
    """What the model thought before it answered, under the names in use."""
    return str(next((message[name] for name in ("reasoning_content", "reasoning", "thinking") if name in message), ""))


def find_answers(template: ChatTemplate, chat: Chat, whole: Rendered, turns: list[int]) -> list[Answer]:
    """The tokens of the answers ``turns``; ValueError where the template leaves it in doubt."""
    if template.has_markers:
        return _by_markers(template, chat, whole, turns)
    return [_by_prefix(template, chat, whole, turn) for turn in turns]


# ---- prefixes


def _by_prefix(template: ChatTemplate, chat: Chat, whole: Rendered, turn: int) -> Answer:
    before = template.text(chat.messages[:turn], chat.tools, prompt=True)
    _expect_prefix(whole.text, before, chat, turn)
    end = _end(template, chat, whole.text, turn)
    tokens = [place for place, (start, stop) in enumerate(whole.offsets) if len(before) <= start and stop <= end]
    return Answer(turn, [place for place in tokens if whole.offsets[place][0] < end], len(before))


def _end(template: ChatTemplate, chat: Chat, text: str, turn: int) -> int:
    if turn == len(chat.messages) - 1:
        return len(text)
    until = template.text(chat.messages[: turn + 1], chat.tools)
    # What some templates write behind the last turn alone.
    closing = template.tokenizer.eos_token or ""
    shorter = until.rstrip().removesuffix(closing) if closing else until
    for found in (until, shorter):
        if text.startswith(found):
            return len(found)
    _expect_prefix(text, until, chat, turn)
    raise AssertionError


def _expect_prefix(text: str, beginning: str, chat: Chat, turn: int) -> None:
    if text.startswith(beginning):
        return
    at = next((place for place, pair in enumerate(zip(text, beginning, strict=False)) if pair[0] != pair[1]), len(text))
    there, alone = text[at : at + _LONGEST], beginning[at : at + _LONGEST]
    is_last = turn == len(chat.messages) - 1
    way_out = (
        "give a template with {% generation %} markers around the answers (model.chat_template)"
        if is_last
        else "train on the last answer alone (data.train_on: last), make each answer a sample of its own "
        "(data.train_on: each), or give a template with {% generation %} markers (model.chat_template)"
    )
    raise ValueError(
        f"the chat template is not prefix-preserving: message {turn + 1} begins with {alone!r} by itself and with "
        f"{there!r} in the whole conversation, so which tokens are the answer cannot be proven. To go on, {way_out}."
    )


# ---- markers


def _by_markers(template: ChatTemplate, chat: Chat, whole: Rendered, turns: list[int]) -> list[Answer]:
    tokens, mask = template.marked(chat.messages, chat.tools)
    if tokens != whole.tokens:
        raise ValueError("the chat template renders the same conversation in two ways; give one that does not.")
    runs = _runs(mask)
    if not runs:
        raise ValueError(
            "the mask is all zero: the template has {% generation %} markers, but nothing of this conversation stands "
            "between them. Put the markers around what an assistant turn writes (model.chat_template)."
        )
    begins = {turn: _beginning(template, chat, whole.text, turn) for turn in _assistant_turns(chat)}
    owners = _owners(runs, list(begins), begins, whole.offsets)
    found: dict[int, list[int]] = {turn: [] for turn in turns}
    for run, owner in zip(runs, owners, strict=True):
        if owner in found:
            found[owner] += run
    return [_without_given(whole, Answer(turn, places, begins[turn])) for turn, places in found.items()]


def _without_given(whole: Rendered, answer: Answer) -> Answer:
    """Without tags at the start that the model is given (an opened thought, say): it does not write them.

    Words there are left for the proof, which refuses them.
    """
    if not answer.tokens or answer.begins is None:
        return answer
    early = whole.text[whole.offsets[answer.tokens[0]][0] : answer.begins]
    if _TAG.sub("", early).strip():
        return answer
    kept = [place for place in answer.tokens if whole.offsets[place][0] >= answer.begins]
    return replace(answer, tokens=kept, given=len(answer.tokens) - len(kept))


def _assistant_turns(chat: Chat) -> list[int]:
    return [place for place, message in enumerate(chat.messages) if message["role"] == "assistant"]


def _beginning(template: ChatTemplate, chat: Chat, text: str, turn: int) -> int | None:
    if turn == 0:
        return 0
    try:
        before = template.text(chat.messages[:turn], chat.tools, prompt=True)
    except ValueError:
        return None
    return len(before) if text.startswith(before) else None


def _runs(mask: list[bool]) -> list[list[int]]:
    found: list[list[int]] = []
    for place, is_marked in enumerate(mask):
        if is_marked and place and mask[place - 1] and found:
            found[-1].append(place)
        elif is_marked:
            found.append([place])
    return found


def _owners(runs: list[list[int]], turns: list[int], begins: dict[int, int | None], offsets: Offsets) -> list[int]:
    """For each stretch between markers: the turn that it belongs to."""
    if len(runs) == len(turns):
        return turns
    known = [begin for begin in begins.values() if begin is not None]
    if len(known) != len(turns):
        raise ValueError(
            f"the template marks {len(runs)} stretches of a conversation with {len(turns)} answers, and which belongs "
            "to which cannot be told: put one pair of {% generation %} markers around each (model.chat_template)."
        )
    # A stretch belongs to the last turn that has begun; one that begins a little early, to the nearest.
    return [turns[max(sum(begin <= offsets[run[-1]][1] for begin in known) - 1, 0)] for run in runs]
