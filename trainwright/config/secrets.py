"""Secrets are never written: what looks like one becomes ``***`` in everything that goes to disk or to a log.

A secret shows itself by the name it is kept under (``secret_names.py``), by its form (``secret_forms.py``), or because
it is the value of an environment variable with such a name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from trainwright.config.secret_forms import without_forms, without_random_words
from trainwright.config.secret_names import Secrecy, secrecy

MASK = "***"

_NAME_BEFORE = re.compile(r"""(?<![\w.-])([A-Za-z_][\w.-]{1,80})(\\*["']?[ \t]{0,3}(?:=(?!=)|:)[ \t]{0,3})(\\*["'])?""")
_VALUE = re.compile(
    r"""\[[^\]\n]{0,4096}\]?|\{[^}\n]{0,4096}\}?|(?:(?:basic|bearer|token|digest)[ \t])?[^\s"',;&]{1,4096}""",
    re.IGNORECASE,
)
#: The value of {name: value} on a command line, which may be several words.
_VALUE_IN_BRACES = re.compile(r"""\[[^\]]{0,4096}\]?|\{[^}]{0,4096}\}?|[^"',}\]\n][^,}\]\n]{0,4096}""")
_QUOTE = re.compile(r"""\\*["']|\n""")
#: Alone before a colon, other words are words of a sentence: "unknown token: x", "in the first pass: y".
_BEFORE_A_COLON = {"password", "passwd", "passphrase", "passcode", "pwd", "apikey", "authorization", "cookie"}
_PLACEHOLDER = re.compile(r"<[A-Z_]+>")
_SPECIAL_TOKEN = re.compile(r"<[^<>\s]{1,40}>|\[[A-Za-z_0-9]{1,40}\]")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_ORDINARY = re.compile(r"[A-Z]?[a-z]*(?:[ _.:/-]+[A-Z]?[a-z]+)*")
_SWITCHES = {"", "true", "false", "yes", "no", "on", "off", "none", "null", "auto", "True", "False", "None"}
_OPTION = re.compile(r"--?[^\W\d]")
#: Options that say yes or no, such as --use_auth_token: what follows is not theirs.
_SWITCH = re.compile(r"--?(?:use|no|skip|with|without|has|is|ask|require)[-_]")
#: Shorter values of environment variables are words like "true"; masking them would only spoil other text.
_SHORTEST = 8
#: Folders, whatever their names end in.
_FOLDERS = {"PWD", "OLDPWD"}


def is_secret_name(name: str) -> bool:
    """Return True when what is kept under ``name`` is likely to be secret.

    >>> [is_secret_name(name) for name in ("HF_TOKEN", "api_key", "tokenizer_name", "max_tokens_per_batch", "author")]
    [True, True, False, False, False]
    """
    return secrecy(name) is not Secrecy.NONE


def redacted(text: str, *, certain: bool = False) -> str:
    """Return ``text`` without secrets.

    ``certain`` leaves out guesses by randomness and by vague names: for what is read back and must not change.

    >>> redacted("failed with api_key=abc, hf_AbCdEfGhIjKlMnOp and https://me:pass-word@example.org/x?sig=a1&page=2")
    'failed with api_key=***, *** and https://***@example.org/x?sig=***&page=2'
    """
    return _redactor(certain)(text)


def redacted_values(data: object, *, certain: bool = False) -> Any:
    """Return nested plain data without secrets: text is redacted, and keys that look secret lose what is under them."""
    return _redact(data, _redactor(certain), certain)


def holds_mask(data: object) -> bool:
    """Return True when something in nested plain data was replaced by ``***``."""
    if isinstance(data, dict):
        return any(holds_mask(item) for pair in data.items() for item in pair)
    if isinstance(data, (list, tuple)):
        return any(map(holds_mask, data))
    return isinstance(data, str) and MASK in data


def masked_command(argv: list[str]) -> list[str]:
    """Return the command line with values of secret-looking options, and secret-looking values, replaced by ``***``."""
    redact = _redactor(certain=False)
    shown: list[str] = []
    option: str | None = None
    for word in argv:
        if option is not None:
            # The value of the option before it, even if it begins with dashes.
            shown.append(MASK if _is_secret(option, word) else redact(word))
            # Unless the option was a switch: then it may be the name of the next secret.
            option = word if word.startswith("--") and _takes_a_secret(word) else None
            continue
        shown.append(redact(_without_named_secret(word)))
        option = word if _takes_a_secret(word) else None
    return shown


def _takes_a_secret(word: str) -> bool:
    """Return True for an option whose value, the next word, is likely to be secret."""
    is_option = _OPTION.match(word) is not None and "=" not in word
    return is_option and is_secret_name(word) and not _SWITCH.match(word)


def _without_named_secret(word: str) -> str:
    """Return ``word`` without the value behind the first secret-looking name of ``name=value``, also a nested one."""
    parts = word.split("=")
    for index, part in enumerate(parts[:-1]):
        rest = "=".join(parts[index + 1 :])
        # A name, and not a text or an address that goes on until here: those have pairs of their own.
        if re.fullmatch(r"[\w.\-/]+", part) and _is_secret(part, rest):
            return "=".join([*parts[: index + 1], MASK])
    return _without_pairs(word, certain=False, is_argument=True) if "{" in word else word


def _is_secret(name: str, value: str, *, certain: bool = False) -> bool:
    """Return True when the text ``value`` under ``name`` is to be hidden."""
    sureness = secrecy(name)
    if sureness is Secrecy.NONE or value in _SWITCHES or _PLACEHOLDER.fullmatch(value):
        return False
    if sureness is Secrecy.ALWAYS:
        return True
    if _NUMBER.fullmatch(value) or _SPECIAL_TOKEN.fullmatch(value):
        return False
    return sureness is Secrecy.SURE or (not certain and not _ORDINARY.fullmatch(value))


def _redactor(certain: bool) -> Callable[[str], str]:
    """Return what hides the secrets of this moment: the environment may change while a process runs."""
    named = frozenset((name, value.strip()) for name, value in os.environ.items() if is_secret_name(name))
    return partial(_hide, _known_values(named), certain)


@lru_cache(maxsize=16)
def _known_values(named: frozenset[tuple[str, str]]) -> re.Pattern[str] | None:
    values = {
        part
        for name, value in named
        # A key of many lines is often shown line by line.
        for part in (value, *(line.strip() for line in re.split(r"\n|\\n", value)))
        if name not in _FOLDERS and _is_known_secret(name, part)
    }
    # Inside JSON a secret with quotes, backslashes or accents is spelled differently.
    spellings = values | {json.dumps(value)[1:-1] for value in values}
    # The longest first: one secret may begin like another.
    return re.compile("|".join(map(re.escape, sorted(spellings, key=len, reverse=True)))) if spellings else None


def _is_known_secret(name: str, value: str) -> bool:
    return len(value) >= _SHORTEST and _is_secret(name, value) and not os.path.exists(value)


def _hide(known: re.Pattern[str] | None, certain: bool, text: str) -> str:
    # Names of metrics come again with every log; long texts do not.
    return (_hide_again if len(text) < 100 else _hide_once)(known, certain, text)


def _hide_once(known: re.Pattern[str] | None, certain: bool, text: str) -> str:
    if known is not None:
        text = known.sub(MASK, text)
    # Forms first: a key of many lines begins where a pair would end.
    text = _without_pairs(without_forms(text, MASK), certain)
    return text if certain else without_random_words(text, MASK)


_hide_again = lru_cache(maxsize=4096)(_hide_once)


def _without_pairs(text: str, certain: bool, *, is_argument: bool = False) -> str:
    """Return ``text`` with values hidden that stand behind ``name=`` or ``name:``."""
    shown: list[str] = []
    done = 0
    for found in _NAME_BEFORE.finditer(text) if "=" in text or ":" in text else ():
        name, between, quote = found.groups()
        is_word = name.isalpha() and name.lower() not in _BEFORE_A_COLON and between[0] not in "\\\"'"
        if found.end() < done or not is_secret_name(name) or (":" in between and is_word):
            continue
        end = _value_end(text, found.end(), quote, is_argument)
        value = text[found.end() : end]
        value = value if quote else value.strip().rstrip("`)]}>.:")
        if end > found.end() and _is_secret(name, value, certain=certain):
            shown += [text[done : found.end()], MASK]
            done = end
    return "".join([*shown, text[done:]])


def _value_end(text: str, start: int, quote: str | None, is_argument: bool) -> int:
    """Return the place behind a value: that of the closing quote, or of the end of the line where none closes it."""
    if quote is None:
        value = (_VALUE_IN_BRACES if is_argument else _VALUE).match(text, start)
        return start if value is None else value.end()
    # In JSON within JSON a quote is \\", and one inside the value \\\\\\": that many more backslashes.
    level = len(quote)
    skipped = -1
    for found in _QUOTE.finditer(text, start):
        if found[0] == "\n" and not is_argument:
            return found.start()
        if found.start() == skipped or found[0][-1] != quote[-1] or len(found[0]) % (2 * level) != level % (2 * level):
            continue
        if quote == "'" and found.start() > start and text.startswith("'", found.end()):
            # YAML writes a quote inside quotes twice.
            skipped = found.end()
            continue
        return found.end() - level
    return len(text)


def _redact(data: object, redact: Callable[[str], str], certain: bool) -> Any:
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, dict):
        return {
            redact(key) if isinstance(key, str) else key: _under(str(key), value, redact, certain)
            for key, value in data.items()
        }
    if isinstance(data, (list, tuple)):
        return [_redact(item, redact, certain) for item in data]
    return data


def _under(name: str, value: object, redact: Callable[[str], str], certain: bool) -> Any:
    """Return what may be shown of ``value``, which is kept under ``name``: switches stay readable, most numbers too."""
    sureness = secrecy(name)
    if sureness is Secrecy.NONE:
        return _redact(value, redact, certain)
    if isinstance(value, str):
        return MASK if _is_secret(name, value, certain=certain) else redact(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return MASK if sureness is Secrecy.ALWAYS else value
    if isinstance(value, (list, tuple)):
        return [_under(name, item, redact, certain) for item in value]
    if isinstance(value, dict) and sureness in (Secrecy.SURE, Secrecy.ALWAYS):
        return {key: _under(name, item, redact, certain) for key, item in value.items()}
    return _redact(value, redact, certain)
