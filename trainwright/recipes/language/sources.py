"""Where a recipe comes from: a YAML or JSON file, a Markdown card, text, or a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.yaml12 import LARGEST_FILE, Document, Place, read_text_file, read_yaml
from trainwright.recipes.language.plain import plain

_ENDINGS = (".yaml", ".yml", ".md", ".json")
_FENCES = ("---", "+++")


class _PlacedDocument(Document):
    """Has no lines: keys lead to a value instead."""

    def where(self, place: Place) -> str:
        return "".join([self.source, *(f"[{key!r}]" for key in place)])


def document_of(source: str | Path | Mapping[str, Any]) -> Document:
    """What ``source`` says, and where it says it."""
    if isinstance(source, Mapping):
        return _PlacedDocument(plain(source, "recipe"), "recipe")
    if isinstance(source, Path):
        return _document_of_file(source)
    if not isinstance(source, str):
        raise ConfigError(f"A recipe is a file, text or a mapping, not a {type(source).__name__}.")
    if source.startswith("zoo:"):
        raise ConfigError(f"{source}: the SparseZoo is gone: pass the recipe as a file, or as text.")
    is_one_line = "\n" not in source and "\r" not in source
    if is_one_line and (source.lower().endswith(_ENDINGS) or _exists(source)):
        return _document_of_file(Path(source))
    if not is_one_line or "{" in source:
        if len(source) > LARGEST_FILE:
            raise ConfigError(f"recipe: longer than {LARGEST_FILE // 1_000_000} MB: this is no recipe.")
        return read_yaml(front_matter(source) or source, "recipe", tagged=True)
    raise ConfigError(
        f"{source!r} is neither a file that is there ({', '.join(_ENDINGS)}) nor the text of a recipe, which has more "
        "than one line."
    )


def front_matter(text: str, *, anywhere: bool = False) -> str | None:
    """The YAML at the head of a Markdown card, on the lines where it stands; None if there is none.

    It is between two lines ``---`` (or ``+++``) that hold nothing else. Only blank lines and comments come before it,
    unless ``anywhere``.

    >>> front_matter("---\\nrate: 1\\nrule: a---b\\n---\\n# A card")
    '\\nrate: 1\\nrule: a---b'
    """
    lines = text.replace("\r\n", "\n").split("\n")
    opening = next((index for index, line in enumerate(lines) if line.rstrip() in _FENCES), None)
    if opening is None:
        return None
    if not anywhere and not _holds_comments_alone("\n".join(lines[:opening])):
        return None
    fence = lines[opening].rstrip()
    for index in range(opening + 1, len(lines)):
        if lines[index].rstrip() == fence:
            # Blank lines in front: what stands on line 20 of the card is on line 20 of the YAML.
            return "\n" * (opening + 1) + "\n".join(lines[opening + 1 : index])
    return None


def _holds_comments_alone(text: str) -> bool:
    """Return True for blank lines and ``<!-- comments -->``."""
    outside, place = [], 0
    # Step by step: one expression for all of it would try every way to pair the ends.
    while (begin := text.find("<!--", place)) >= 0 and (end := text.find("-->", begin + 4)) >= 0:
        outside.append(text[place:begin])
        place = end + 3
    return not "".join([*outside, text[place:]]).strip()


def _document_of_file(path: Path) -> Document:
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name the recipe file in it.")
    if not path.is_file():
        raise ConfigError(f"There is no recipe file {path}.")
    text = read_text_file(path)
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        return read_yaml(text, str(path), tagged=True)
    is_card = path.suffix.lower() == ".md"
    matter = front_matter(text, anywhere=is_card)
    if is_card and matter is None:
        raise ConfigError(f"{path} has no recipe: a Markdown card has it at its head, between two lines ---.")
    return read_yaml(text if matter is None else matter, str(path), tagged=True)


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False
