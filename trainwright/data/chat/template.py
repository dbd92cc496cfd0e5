"""A tokenizer's chat template: what it makes of a conversation, and the sentences when it cannot."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainwright.config.extras import is_installed

_MARKERS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
#: How templates write tokens that steer a chat.
CONTROL = re.compile(r"<[|\uff5c][^<>|\uff5c\s]{1,60}[|\uff5c]>|<(?:start|end)_of_\w+>|</s>|<eos>")
TAG = re.compile(r"<[^<>]+>")
#: Words that no template writes by itself.
_ASKED, _ANSWERED = "qzxa", "qzxb"

OTHER_TEMPLATE = (
    "set model.chat_template to a file with a template that fits, or model.tokenizer to one that has its own"
)


def stop_tokens(tokenizer: Any) -> set[int]:
    """Tokens that can end an answer: special ones and others that steer, but for the beginning and the unknown."""
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    # Some tokenizers add <|im_end|> without calling it special.
    found = {number for number, token in added.items() if token.special or CONTROL.fullmatch(str(token))}
    found |= set(tokenizer.all_special_ids)
    others = {tokenizer.bos_token_id, tokenizer.unk_token_id} - {tokenizer.eos_token_id}
    return found - others


class ChatTemplate:
    """Renders conversations with the template of ``tokenizer``."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                f"{type(tokenizer).__name__} cannot say which characters a token came from, so no mask can be proven: "
                "use a fast tokenizer (a folder with tokenizer.json)."
            )
        if not is_installed("jinja2"):
            raise ValueError("chat templates are read by the package jinja2: pip install jinja2")
        written = tokenizer.chat_template
        if not written:
            raise ValueError(f"the tokenizer has no chat template: {OTHER_TEMPLATE}. Models made for chat have one.")
        default = written.get("default", "") if isinstance(written, Mapping) else written
        self.has_markers = _MARKERS.search(default) is not None
        self.writes_date = "strftime_now" in default
        #: Special tokens, as text.
        self.special = tuple(token for token in tokenizer.all_special_tokens if len(token) > 1)
        self.stops = stop_tokens(tokenizer)
        #: Orders of turns whose questions are known to stand outside the markers.
        self.outside: set[Any] = set()
        #: Some templates read a text only as a list of parts.
        self._takes_parts = False
        self._takes_parts = not self._shows_plain_text()
        #: What stands before answers and is not written when the model is asked.
        self.unasked = self._unasked_header()
        #: Tokens that stand before what is said, and so end nothing.
        self.openers = self._openers()

    def _shows_plain_text(self) -> bool:
        probe = [{"role": "user", "content": _ASKED}, {"role": "assistant", "content": _ANSWERED}]
        try:
            plain = self.text(probe)
        except ValueError:
            plain = ""
        if _ASKED in plain and _ANSWERED in plain:
            return True
        self._takes_parts = True
        try:
            in_parts = self.text(probe)
        except ValueError:
            return True
        return _ASKED not in in_parts or _ANSWERED not in in_parts

    def _unasked_header(self) -> str:
        """The header of answers, where a template takes no notice of ``add_generation_prompt``."""
        asked = [{"role": "user", "content": _ASKED}]
        try:
            plain, prompt = self.text(asked), self.text(asked, prompt=True)
            whole = self.text([*asked, {"role": "assistant", "content": _ANSWERED}])
        except ValueError:
            return ""
        if plain != prompt or not whole.startswith(prompt) or _ANSWERED not in whole:
            return ""
        header = whole[len(prompt) : whole.index(_ANSWERED)]
        return header if has_words(header) else ""

    def _openers(self) -> set[int]:
        try:
            text = self.text([{"role": "user", "content": _ASKED}], prompt=True)
        except ValueError:
            return set()
        before, _, behind = text.partition(_ASKED)
        # A system turn that the template writes by itself has an end as others do.
        end = next((token for token in self.tokens(behind)[0] if token in self.stops), None)
        return set(self.tokens(before)[0]) - {end}

    def text(self, messages: Sequence[dict[str, Any]], tools: Any = None, *, prompt: bool = False) -> str:
        """The conversation as the model reads it; with ``prompt`` up to where it would begin to answer."""
        return str(self._apply(messages, tools, add_generation_prompt=prompt, tokenize=False))

    def marked(self, messages: Sequence[dict[str, Any]], tools: Any = None) -> tuple[list[int], list[bool]]:
        """Tokens, and which of them stand between the template's own ``{% generation %}`` markers."""
        quiet = {"tokenizer_kwargs": {"verbose": False}}
        found = self._apply(messages, tools, return_dict=True, return_assistant_tokens_mask=True, **quiet)
        return list(found["input_ids"]), [bool(one) for one in found["assistant_masks"]]

    def tokens(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokens of a rendered text, and the characters of each. The template has written special tokens already."""
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return list(found["input_ids"]), [(start, end) for start, end in found["offset_mapping"]]

    def decoded(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones too."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _apply(self, messages: Sequence[dict[str, Any]], tools: Any, **options: Any) -> Any:
        given = [_in_parts(one) for one in messages] if self._takes_parts else list(messages)
        try:
            try:
                return self.tokenizer.apply_chat_template(given, tools=tools, **options)
            except TypeError:
                # Some templates put the arguments of a call into the text as they are.
                return self.tokenizer.apply_chat_template(_arguments_as_text(given), tools=tools, **options)
        except Exception as error:
            # Whatever its author raises, and whatever jinja2 raises for what is not there.
            words = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"the chat template cannot render this conversation: {words}. Change the conversation (a system turn "
                f"can go into the first question, for example), or {OTHER_TEMPLATE}."
            ) from error


def has_words(text: str) -> bool:
    """Whether there is more than blanks and tags; tokens that steer a chat are more."""
    return CONTROL.search(text) is not None or bool(TAG.sub("", text).strip())


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"]}]} if message["content"] else message


def _arguments_as_text(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = copy.deepcopy(list(messages))
    for message in found:
        for call in message.get("tool_calls") or ():
            function = call.get("function", call)
            if not isinstance(function.get("arguments"), str):
                function["arguments"] = json.dumps(function.get("arguments", {}), ensure_ascii=False)
    return found
