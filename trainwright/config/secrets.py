"""Secrets are never written: what looks like one becomes ``***`` in everything that goes to disk or to a log.

A secret shows itself by the name it is kept under (an environment variable, an option, a key) or by its form.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

MASK = "***"

# "token" is also a word about text: tokenizers, counts and ids of tokens, and special tokens are no secrets.
_NAME = re.compile(
    r"(?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)(?<!special_)token(?!iz|s_|_?ids?\b|_type)"
    r"|secret|passw(?:or)?d|passphrase|credential|(?:api|access|private)[-_]?key|auth(?!or(?!iz))",
    re.IGNORECASE,
)
_FORMS = re.compile(
    r"\bhf_(?:[A-Za-z0-9]{12,}|(?=[A-Za-z0-9]*[A-Z0-9])[A-Za-z0-9]{8,})"
    r"|\bsk-[A-Za-z0-9_-]{8,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{8,}|\bgithub_pat_[A-Za-z0-9_]{8,}"
    r"|\bglpat-[A-Za-z0-9_-]{8,}"
    r"|\bxox[a-z]-[A-Za-z0-9-]{8,}"
    r"|\bAKIA[A-Z0-9]{12,}"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+"
    r"|(?<=\b[Bb]earer )[A-Za-z0-9._~+/=-]{8,}"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
)
_QUERY = re.compile(r"([?&][\w.-]+=)([^&#\s\"']+)")
_PLACEHOLDER = re.compile(r"<[A-Z_]+>")
_NUMBER = re.compile(r"-\d+(\.\d+)?([eE]-?\d+)?")
_SHORTEST = 8
"""Shorter values of environment variables are words like "true"; masking them would only spoil other text."""


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether what is kept under ``name`` is likely to be secret.

    >>> [is_secret_name(name) for name in ("HF_TOKEN", "api_key", "tokenizer_name", "max_tokens_per_batch", "author")]
    [True, True, False, False, False]
    """
    return _NAME.search(name) is not None


def redacted(text: str) -> str:
    """``text`` without secrets.

    >>> redacted("pushed with hf_AbCdEfGhIjKlMnOp to https://me:pass-word@example.org/x")
    'pushed with *** to https://***@example.org/x'
    """
    return _redactor()(text)


def redacted_values(data: Any) -> Any:
    """Nested plain data without secrets: text is redacted, and keys that look secret lose the text under them."""
    return _redact(data, _redactor())


def masked_command(argv: list[str]) -> list[str]:
    """The command line with values of secret-looking options, and secret-looking values, replaced by ``***``."""
    redact = _redactor()
    shown: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, _ = word.partition("=")
        is_option = word.startswith("-") and not _NUMBER.fullmatch(word)
        if hide_next and not word.startswith("--"):
            # The value of the option before it, even if it begins with a dash.
            shown.append(MASK)
            hide_next = False
            continue
        shown.append(redact(_without_named_secret(word)))
        hide_next = is_option and not equals and is_secret_name(name)
    return shown


def _without_named_secret(word: str) -> str:
    """``name=value`` pairs, also nested ones, lose the value behind the first secret-looking name."""
    parts = word.split("=")
    for index, part in enumerate(parts[:-1]):
        if is_secret_name(part):
            return "=".join([*parts[: index + 1], MASK])
    return word


def _redactor() -> Callable[[str], str]:
    """What hides the secrets of this moment: the environment may change while a process runs."""
    values = {value.strip() for name, value in os.environ.items() if is_secret_name(name)}
    known = _pattern(frozenset(value for value in values if len(value) >= _SHORTEST))

    def redact(text: str) -> str:
        if known is not None:
            text = known.sub(MASK, text)
        return _QUERY.sub(_without_query_secret, _FORMS.sub(MASK, text))

    return redact


@lru_cache(maxsize=16)
def _pattern(values: frozenset[str]) -> re.Pattern[str] | None:
    # Inside JSON a secret with quotes, backslashes or accents is spelled differently.
    spellings = values | {json.dumps(value)[1:-1] for value in values}
    # The longest first: one secret may begin like another.
    return re.compile("|".join(map(re.escape, sorted(spellings, key=len, reverse=True)))) if spellings else None


def _without_query_secret(match: re.Match[str]) -> str:
    return f"{match[1]}{MASK}" if is_secret_name(match[1]) else match[0]


def _redact(data: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, dict):
        return {
            redact(key) if isinstance(key, str) else key: (
                _hidden(value, redact) if is_secret_name(str(key)) else _redact(value, redact)
            )
            for key, value in data.items()
        }
    if isinstance(data, (list, tuple)):
        return [_redact(item, redact) for item in data]
    return data


def _hidden(value: Any, redact: Callable[[str], str]) -> Any:
    """What is under a secret-looking key: text vanishes; switches and numbers are settings and stay readable."""
    if isinstance(value, str):
        return value if _PLACEHOLDER.fullmatch(value) else MASK
    if isinstance(value, (list, tuple)):
        return [_hidden(item, redact) for item in value]
    return _redact(value, redact)
