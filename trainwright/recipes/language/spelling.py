"""The newer way to write a recipe (``start``, ``end``, ``targets``), put into the words that modifiers take."""

from __future__ import annotations

from typing import Any

from trainwright.config.errors import ConfigError

_WORDS = {"start": "start_epoch", "end": "end_epoch", "update": "update_frequency", "targets": "params"}
#: Where a kind of modifier has other words; None: the word is its own.
_OTHER_WORDS: dict[str, dict[str, str | None]] = {
    "OutputDistillationModifier": {"targets": None},
    "QuantizationModifier": {"targets": None},
    "LayerPruningModifier": {"targets": "layers"},
    "MagnitudePruningModifier": {"update_scheduler": "inter_func", "mask_structure": "mask_type"},
    "GlobalMagnitudePruningModifier": {"update_scheduler": "inter_func", "mask_structure": "mask_type"},
}
_KINDS = {"LegacyQuantizationModifier": "QuantizationModifier"}


def known_words(kind: str, arguments: dict[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    """Kind and arguments by the names that the classes have.

    >>> known_words("MagnitudePruningModifier", {"start": 0, "targets": ["a"], "apply_globally": True}, "here")
    ('GlobalMagnitudePruningModifier', {'start_epoch': 0, 'params': ['a']})
    """
    kind = _KINDS.get(kind, kind)
    arguments = dict(arguments)
    if kind == "MagnitudePruningModifier" and arguments.pop("apply_globally", False) is True:
        kind = "GlobalMagnitudePruningModifier"
    words = {**_WORDS, **_OTHER_WORDS.get(kind, {})}
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        word = words.get(name) or name
        if word in found or (word != name and word in arguments):
            raise ConfigError(f"{where}: {kind} has both {name} and {word}: leave one out.")
        found[word] = value
    return kind, found
