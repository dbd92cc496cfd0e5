"""Conversations -> samples: tokens, which of them are learned, and what was cut or left out."""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from trainwright.data.chat.answers import (
    Answer,
    Rendered,
    find_answers,
    learnable,
    rendered,
    says_something,
    thoughts_of,
)
from trainwright.data.chat.proof import prove, refuse_double_beginning, refuse_no_end
from trainwright.data.chat.shapes import Chat, Shape
from trainwright.data.chat.template import ChatTemplate

IGNORED = -100
#: What of a conversation is learned.
CHOICES = ("assistant", "last", "each", "all")


@dataclass
class Counts:
    """What became of the conversations."""

    conversations: int = 0
    tokens: int = 0
    trained: int = 0
    lengths: list[int] = field(default_factory=list)
    cut: int = 0
    cut_tokens: int = 0
    #: Why something was left out -> how often.
    left_out: Counter[str] = field(default_factory=Counter)
    #: What templates and tokenizers made of the text -> how often.
    remarks: Counter[str] = field(default_factory=Counter)

    def lines(self, max_length: int) -> list[str]:
        """For people."""
        masked = self.tokens - self.trained
        found = [
            f"{self.conversations:,} conversations, {len(self.lengths):,} samples, {self.tokens:,} tokens: "
            f"{self.trained:,} trained, {masked:,} masked ({masked / max(1, self.tokens):.0%})"
        ]
        if self.lengths:
            middle = statistics.median_low(self.lengths)
            found.append(f"lengths {min(self.lengths)} to {max(self.lengths)} tokens, half of them up to {middle}")
        if self.cut:
            found.append(
                f"{self.cut:,} samples were longer than max_length={max_length} and were cut, {self.cut_tokens:,} "
                "tokens in all; a cut answer does not train its end"
            )
        found += [f"left out: {count:,} {what}" for what, count in self.left_out.items()]
        return found + [f"{count:,} {what}" for what, count in self.remarks.items()]


class ChatRows(Dataset):
    """Samples of different lengths in two flat tensors; each is ``input_ids`` and ``labels``."""

    def __init__(self, tokens: Tensor, labels: Tensor, starts: list[int], counts: Counts) -> None:
        self.tokens, self.labels, self.starts, self.counts = tokens, labels, starts, counts

    def __len__(self) -> int:
        return len(self.starts) - 1

    def digest(self) -> str:
        """A number of all samples, to tell whether they are the same as before."""
        found = hashlib.sha256(self.tokens.numpy().tobytes())
        found.update(self.labels.numpy().tobytes())
        return found.hexdigest()[:16]

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        place = slice(self.starts[index], self.starts[index + 1])
        return {"input_ids": self.tokens[place].long(), "labels": self.labels[place].long()}


def encode_chats(
    rows: Iterable[Any], shape: Shape, template: ChatTemplate, *, train_on: str = "assistant", max_length: int = 2048
) -> ChatRows:
    """Every conversation of ``rows``, rendered, masked and proven; ValueError names the row and what is wrong."""
    counts, tokens, labels, starts = Counts(), [], [], [0]
    for number, row in enumerate(rows):
        try:
            chat = shape.chat(row)
            for sample in _samples(chat, template, train_on, max_length, counts):
                tokens.append(torch.tensor(sample[0], dtype=torch.int32))
                labels.append(torch.tensor(sample[1], dtype=torch.int32))
                starts.append(starts[-1] + len(sample[0]))
        except ValueError as error:
            raise ValueError(f"{_named(rows, number)}: {error}") from error
        counts.conversations += 1
    if not tokens:
        why = "; ".join(f"{count} {what}" for what, count in counts.left_out.items()) or "there are no rows"
        raise ValueError(f"the mask is all zero: no conversation has a token to learn from ({why}).")
    return ChatRows(torch.cat(tokens), torch.cat(labels), starts, counts)


def _named(rows: Any, number: int) -> str:
    """A row as one finds it again: parts of the data were shuffled."""
    if (numbers := getattr(rows, "numbers", None)) is not None:
        return f"row {numbers[number]} of the file (the first is 1)"
    if (kept := getattr(rows, "_indices", None)) is not None:
        return f"row {kept.column(0)[number].as_py()} of the data (the first is 0)"
    return f"row {number}"


def _samples(
    chat: Chat, template: ChatTemplate, train_on: str, max_length: int, counts: Counts
) -> Iterator[tuple[list[int], list[int]]]:
    turns = learnable(chat)
    if not turns:
        counts.left_out["conversations without an answer to learn from"] += 1
        return
    _remark_turns(chat, train_on, counts)
    _remark_special(chat, template, counts)
    parts = [(replace(chat, messages=chat.messages[: turn + 1]), [turn]) for turn in turns]
    if train_on != "each":
        parts = [(chat, turns[-1:] if train_on == "last" else turns)]
    for part, chosen in parts:
        whole = rendered(template, part)
        trained = _trained(template, part, whole, chosen, train_on, counts)
        labels = [token if place in trained else IGNORED for place, token in enumerate(whole.tokens)]
        if len(labels) > max_length:
            counts.cut += 1
            counts.cut_tokens += len(labels) - max_length
        tokens, labels = whole.tokens[:max_length], labels[:max_length]
        learned = sum(label != IGNORED for label in labels[1:])
        if not learned:
            counts.left_out["samples whose answers lie behind max_length"] += 1
            continue
        counts.tokens += len(tokens)
        counts.trained += sum(label != IGNORED for label in labels)
        counts.lengths.append(len(tokens))
        yield tokens, labels


def _trained(
    template: ChatTemplate, chat: Chat, whole: Rendered, turns: list[int], train_on: str, counts: Counts
) -> set[int]:
    refuse_double_beginning(template, whole)
    unknown = template.tokenizer.unk_token_id
    if unknown is not None and (count := whole.tokens.count(unknown)):
        counts.remarks["tokens are unknown to the tokenizer"] += count
    if train_on == "all":
        places = list(range(len(whole.tokens)))
        if chat.messages[-1]["role"] == "assistant":
            refuse_no_end(template, whole, places, "the last answer")
        return set(places) - _unwanted(template, chat, whole)
    answers = find_answers(template, chat, whole, turns)
    for answer in answers:
        prove(template, chat, whole, answer)
        _remark_thoughts(chat, whole, answer, counts)
        _remark_beginning(whole, answer, counts)
    return {place for answer in answers for place in answer.tokens}


def _unwanted(template: ChatTemplate, chat: Chat, whole: Rendered) -> set[int]:
    """Tokens of answers with weight 0, where all else is learned."""
    turns = [place for place in sorted(chat.left_out) if chat.messages[place]["role"] == "assistant"]
    spoken = [place for place in turns if place > 0 and says_something(chat.messages[place])]
    if len(spoken) < len(chat.left_out):
        raise ValueError(
            "a message has weight 0 that is no answer to anything, and data.train_on: all learns whole conversations: "
            "take the message out, or learn answers alone (data.train_on: assistant)."
        )
    return {place for answer in find_answers(template, chat, whole, spoken) for place in answer.tokens}


def _remark_turns(chat: Chat, train_on: str, counts: Counts) -> None:
    """What of the answers is not learned, and why."""
    for place, message in enumerate(chat.messages):
        if message["role"] != "assistant":
            continue
        if train_on == "all" and place not in chat.left_out:
            continue
        if not says_something(message):
            counts.left_out["answers that say nothing"] += 1
        elif place in chat.left_out:
            counts.left_out["answers that the data marks with weight 0"] += 1
        elif place in range(chat.prompt):
            counts.left_out["answers that stand in the prompt of another"] += 1
        elif place == 0:
            counts.left_out["answers that nobody asked for, at the beginning"] += 1


def _remark_special(chat: Chat, template: ChatTemplate, counts: Counts) -> None:
    """Texts that hold a special token as words: the tokenizer takes it for the real one."""
    if any(token in str(message["content"]) for message in chat.messages for token in template.special):
        counts.remarks["conversations hold the text of a special token, which is read as the token itself"] += 1


def _remark_beginning(whole: Rendered, answer: Answer, counts: Counts) -> None:
    """What a model that is asked sees otherwise than in training."""
    if answer.begins is None:
        counts.remarks[
            "answers follow on something else when the model is asked: the template adds it to the prompt"
        ] += 1
        return
    if answer.given:
        counts.remarks["answers are marked from a tag on that the model is given, which is not trained"] += 1
    # A space that the tokenizer joins with the question; words would be missing, and are refused.
    before = answer.tokens[0] - 1
    if before >= 0 and whole.offsets[before][1] > answer.begins:
        counts.remarks["answers begin within a token of the question, which is not trained (a space, say)"] += 1


def _remark_thoughts(chat: Chat, whole: Rendered, answer: Answer, counts: Counts) -> None:
    thoughts = "".join(thoughts_of(chat.messages[answer.turn]).split())
    if thoughts and thoughts not in "".join(whole.text.split()):
        counts.remarks["answers lose their thoughts: the template leaves them out"] += 1
