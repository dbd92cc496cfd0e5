"""The proof of a mask: what is trained, decoded, is what the assistant said with its end, and nothing before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainwright.data.chat.answers import Answer, Rendered
from trainwright.data.chat.shapes import Chat
from trainwright.data.chat.template import CONTROL, OTHER_TEMPLATE, TAG, ChatTemplate, has_words

_MARKERS_OUT = "Move the {% generation %} markers of the template (model.chat_template)"
_LONGEST = 60


def refuse_double_beginning(template: ChatTemplate, whole: Rendered) -> None:
    """Two tokens for the beginning: the model has never seen that."""
    first = template.tokenizer.bos_token_id
    if first is not None and whole.tokens[:2] == [first, first]:
        raise ValueError(
            f"the conversation begins with {template.tokenizer.bos_token} twice (double BOS): the template writes it "
            "more than once, or the text has it already. Take one away, from the template (model.chat_template) or the "
            "data."
        )


def prove(template: ChatTemplate, chat: Chat, whole: Rendered, answer: Answer) -> None:
    """Refuse, in a sentence that names the fault, a mask that is not exactly the answer."""
    number = answer.turn + 1
    if not answer.tokens:
        raise ValueError(
            f"the mask is all zero for message {number}: no token stands wholly inside the answer. {_MARKERS_OUT}."
        )
    text = "".join(whole.text[start:end] for start, end in _stretches(whole, answer.tokens))
    _refuse_early(whole, answer, number)
    _refuse_missing(chat.messages[answer.turn], text, number)
    _refuse_late(template, chat.messages[answer.turn], whole, answer, text)
    _refuse_other_text(template, whole, answer, text, number)
    refuse_no_end(template, whole, answer.tokens, f"message {number}")


def _refuse_early(whole: Rendered, answer: Answer, number: int) -> None:
    first = whole.offsets[answer.tokens[0]][0]
    if answer.begins is not None:
        early = whole.text[first : answer.begins]
    else:
        # What the prompt and the conversation have in common is given.
        early = whole.text[first : answer.shared]
        early = early if has_words(early) else ""
    if early:
        raise ValueError(
            f"the mask is off: in message {number} it begins with {early[-_LONGEST:]!r}, which the model is given and "
            f"does not write. {_MARKERS_OUT} behind it."
        )


def _refuse_missing(message: dict[str, Any], text: str, number: int) -> None:
    trained = _squeezed(text)
    for piece in _pieces(message):
        if _squeezed(piece) not in trained:
            shown = piece.strip()[:_LONGEST]
            raise ValueError(
                f"the mask is off: message {number} says {shown!r}, and the trained text {text[:_LONGEST]!r} does not "
                f"hold all of it: the template leaves it out or changes it, or its markers begin too late or end too "
                f"early. {_MARKERS_OUT}, or {OTHER_TEMPLATE}."
            )


def _refuse_late(template: ChatTemplate, message: dict[str, Any], whole: Rendered, answer: Answer, text: str) -> None:
    """Words behind the answer; tags there are ends, and what calls of functions look like is the template's affair."""
    last = whole.offsets[answer.tokens[-1]][1]
    if answer.said_until is not None:
        late = whole.text[answer.said_until : last]
    elif answer.ends is not None:
        late = whole.text[answer.ends : last]
    else:
        said = _squeezed(str(message["content"]).split("</think>")[-1])
        late = "" if not said or message.get("tool_calls") else _squeezed(text).rpartition(said)[2]
    for token in template.special:
        late = late.replace(token, "")
    if late := TAG.sub("", late).strip():
        way = (
            f"{_MARKERS_OUT} before it" if template.has_markers else "Take it out of the template (model.chat_template)"
        )
        raise ValueError(
            f"the mask is off: in message {answer.turn + 1} it goes on behind the answer, with {late[:_LONGEST]!r}, "
            f"which the model does not write. {way}, or {OTHER_TEMPLATE}."
        )


def _pieces(message: dict[str, Any]) -> Iterator[str]:
    """What must be among the trained text: the words behind the thoughts, and names of functions."""
    words = str(message["content"]).split("</think>")[-1]
    if words.strip():
        yield words
    for call in message.get("tool_calls") or ():
        yield str(call.get("function", call).get("name", ""))


def _refuse_other_text(template: ChatTemplate, whole: Rendered, answer: Answer, text: str, number: int) -> None:
    tokens = [whole.tokens[place] for place in answer.tokens]
    found = template.decoded(tokens)
    if _squeezed(found) == _squeezed(text):
        return
    # A tokenizer that loses something (capitals, unknown words) loses the same of the text alone.
    if _squeezed(found) == _squeezed(template.decoded(template.tokens(text)[0])):
        return
    raise ValueError(
        f"the mask is off: the trained tokens of message {number} read {found[:_LONGEST]!r}, and the answer is "
        f"{text[:_LONGEST]!r}. This tokenizer joins answers with what stands before them: {OTHER_TEMPLATE}."
    )


def _stretches(whole: Rendered, places: list[int]) -> list[tuple[int, int]]:
    """Characters of tokens, those that follow each other as one stretch."""
    found: list[tuple[int, int]] = []
    before = None
    for place in places:
        start, end = whole.offsets[place]
        if before is not None and place == before + 1:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
        before = place
    return found


def refuse_no_end(template: ChatTemplate, whole: Rendered, places: list[int], what: str) -> None:
    """An answer whose end is not learned never ends."""
    tokenizer = template.tokenizer
    stops = template.stops
    solid = [place for place in places if template.decoded([whole.tokens[place]]).strip()]
    if solid and whole.tokens[solid[-1]] in stops:
        return
    last = whole.text[: whole.offsets[places[-1]][1]].rstrip()
    written = next((m.group() for m in CONTROL.finditer(last) if m.end() == len(last)), None)
    made = tokenizer(written or "", add_special_tokens=False)["input_ids"]
    if written is not None and not (len(made) == 1 and made[0] in stops):
        raise ValueError(
            f"the template is not this tokenizer's: {what} ends with {written}, which the tokenizer does not know as "
            f"one special token (it makes {len(made)} of it), so the model would not learn to stop. Use the template "
            f"that came with the model: {OTHER_TEMPLATE}."
        )
    after = whole.tokens[places[-1] + 1] if places[-1] + 1 < len(whole.tokens) else None
    if after in stops and template.has_markers:
        raise ValueError(
            f"the end is missing from the loss: {template.decoded([after])} behind {what} is not trained, and the "
            f"model would never stop. {_MARKERS_OUT}: {{% endgeneration %}} belongs behind the end token."
        )
    raise ValueError(
        f"the end is missing from the loss: the template writes no end token behind {what} "
        f"({last[-_LONGEST:]!r}), and the model would never stop. Add {{{{ eos_token }}}} behind the answer in the "
        "template (model.chat_template)."
    )


def _squeezed(text: str) -> str:
    return "".join(text.split())
