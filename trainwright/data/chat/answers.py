"""Where the answers of a conversation stand among its tokens: by the template's markers, or by rendering prefixes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from trainwright.data.chat.shapes import Chat
from trainwright.data.chat.template import ChatTemplate

Offsets = list[tuple[int, int]]
_LONGEST = 40
#: Put in the place of what is said, to see what stands around it.
_WORD = "qzxw"
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
    #: How far the text that a model is asked with is that of the conversation, in characters.
    shared: int = 0
    #: Where the words of the answer end, in characters, and where the whole turn does; None where that is in doubt.
    said_until: int | None = None
    ends: int | None = None


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
    if template.unasked:
        raise ValueError(
            f"the mask is off: the template writes {template.unasked!r} before an answer, and not when the model is "
            "asked (it takes no notice of add_generation_prompt), so it would be learned as part of the answer. Let "
            "the template end with {% if add_generation_prompt %} and these words (model.chat_template)."
        )
    end = _end(template, chat, whole, turn)
    tokens = [place for place, (start, stop) in enumerate(whole.offsets) if len(before) <= start and stop <= end]
    tokens = [place for place in tokens if whole.offsets[place][0] < end]
    said = _said_until(template, chat, whole, turn)
    kept = _with_first_end(template, whole, tokens, said)
    return Answer(turn, kept, len(before), said_until=said)


def _said_until(template: ChatTemplate, chat: Chat, whole: Rendered, turn: int) -> int | None:
    """Where the words of an answer end: what stands behind another word in their place stands behind them."""
    message = chat.messages[turn]
    if not str(message["content"]).strip() or message.get("tool_calls"):
        return None
    others = [*chat.messages[:turn], {**message, "content": _WORD}, *chat.messages[turn + 1 :]]
    try:
        text = template.text(others, chat.tools)
    except ValueError:
        return None
    behind = text.partition(_WORD)[2]
    is_known = text.count(_WORD) == 1 and whole.text.endswith(behind)
    return len(whole.text) - len(behind) if is_known else None


def _with_first_end(template: ChatTemplate, whole: Rendered, places: list[int], said_until: int | None) -> list[int]:
    """Up to the end behind the words: what else a template writes there closes or opens something of its own."""
    if said_until is None:
        return places
    behind = [place for place in places if whole.offsets[place][0] >= said_until]
    last = next((place for place in behind if whole.tokens[place] in template.stops), None)
    if last is None:
        return places
    while last + 1 in behind and _is_of_the_end(template, whole, last + 1):
        last += 1
    return [place for place in places if place <= last]


def _is_of_the_end(template: ChatTemplate, whole: Rendered, place: int) -> bool:
    """Whether a token behind an end belongs to it: a blank, the end of documents, another end right behind."""
    token = whole.tokens[place]
    if token == template.tokenizer.eos_token_id or not whole.text[slice(*whole.offsets[place])].strip():
        return True
    return token in template.stops and whole.tokens[place - 1] in template.stops and token not in template.openers


def _end(template: ChatTemplate, chat: Chat, whole: Rendered, turn: int) -> int:
    text = whole.text
    if turn == len(chat.messages) - 1:
        return _end_of_last(template, chat, whole)
    until = template.text(chat.messages[: turn + 1], chat.tools)
    # What some templates write behind the last turn alone.
    closing = template.tokenizer.eos_token or ""
    shorter = until.rstrip().removesuffix(closing) if closing else until
    for found in (until, shorter):
        if text.startswith(found):
            return len(found)
    _expect_prefix(text, until, chat, turn)
    raise AssertionError


def _end_of_last(template: ChatTemplate, chat: Chat, whole: Rendered) -> int:
    """The end of the conversation; of a call, what stays there once its result follows, if that has an end."""
    if not chat.messages[-1].get("tool_calls"):
        return len(whole.text)
    try:
        longer = template.text([*chat.messages, {"role": "tool", "content": _WORD}], chat.tools)
    except ValueError:
        return len(whole.text)
    same = _shared(whole.text, longer)
    solid = [at for at, (start, stop) in enumerate(whole.offsets) if stop <= same and whole.text[start:stop].strip()]
    while solid and whole.tokens[solid[-1]] in template.openers & template.stops:
        # Of the next turn, whoever speaks.
        same = whole.offsets[solid.pop()][0]
    return same if solid and whole.tokens[solid[-1]] in template.stops else len(whole.text)


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


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
    _refuse_marked_questions(template, chat)
    begins = {turn: _beginning(template, chat, whole.text, turn) for turn in _assistant_turns(chat)}
    owners = _owners(runs, list(begins), begins, whole.offsets)
    found: dict[int, list[int]] = {turn: [] for turn in turns}
    for run, owner in zip(runs, owners, strict=True):
        if owner in found:
            found[owner] += run
    return [
        _without_given(whole, _of_markers(template, chat, whole, Answer(turn, places, begins[turn])))
        for turn, places in found.items()
    ]


def _of_markers(template: ChatTemplate, chat: Chat, whole: Rendered, answer: Answer) -> Answer:
    """With what the proof needs to know besides."""
    said = _said_until(template, chat, whole, answer.turn)
    shared, ends = 0, None
    if answer.begins is None:
        shared = _shared(_text_of(template, chat, answer.turn, prompt=True), whole.text)
        # A word of the answer may begin as what the template adds does.
        shared = shared if said is None else min(shared, said - len(chat.messages[answer.turn]["content"].rstrip()))
    if said is None and answer.turn < len(chat.messages) - 1:
        until = _text_of(template, chat, answer.turn + 1)
        ends = len(until) if until and whole.text.startswith(until) else None
    return replace(answer, shared=shared, said_until=said, ends=ends)


def _text_of(template: ChatTemplate, chat: Chat, count: int, *, prompt: bool = False) -> str:
    """The first messages; nothing where the template refuses them alone."""
    try:
        return template.text(chat.messages[:count], chat.tools, prompt=prompt)
    except ValueError:
        return ""


def _refuse_marked_questions(template: ChatTemplate, chat: Chat) -> None:
    """Markers around what others say, seen by words put in its place; once for each order of turns."""
    kinds = [(one["role"], bool(one["content"]), bool(one.get("tool_calls")), bool(thoughts_of(one)))
             for one in chat.messages]  # fmt: skip
    order = (*kinds, bool(chat.tools))
    if order in template.outside:
        return
    words = {place: f"{_WORD}{place}q" for place, one in enumerate(chat.messages)
             if one["role"] != "assistant" and one["content"]}  # fmt: skip
    messages = [{**one, "content": words.get(place, one["content"])} for place, one in enumerate(chat.messages)]
    try:
        whole = rendered(template, replace(chat, messages=messages))
        tokens, mask = template.marked(messages, chat.tools)
    except ValueError:
        return
    trained = "".join(
        whole.text[start:end] for (start, end), is_marked in zip(whole.offsets, mask, strict=False) if is_marked
    )
    for place, word in words.items():
        if tokens == whole.tokens and word in trained:
            raise ValueError(
                f"the mask is off: the template's markers stand around message {place + 1} too, of the role "
                f"{chat.messages[place]['role']}, which the model does not write. Put {{% generation %}} markers "
                "around what the assistant writes alone (model.chat_template)."
            )
    template.outside.add(order)


def _without_given(whole: Rendered, answer: Answer) -> Answer:
    """Without tags at the start that the model is given (an opened thought, say): it does not write them.

    Words there are left for the proof, which refuses them.
    """
    begins = answer.shared if answer.begins is None else answer.begins
    if not answer.tokens:
        return answer
    early = whole.text[whole.offsets[answer.tokens[0]][0] : begins]
    if _TAG.sub("", early).strip():
        return answer
    kept = [place for place in answer.tokens if whole.offsets[place][0] >= begins]
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
    if not text.startswith(before):
        return None
    return len(before) + (len(template.unasked) if text.startswith(template.unasked, len(before)) else 0)


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
