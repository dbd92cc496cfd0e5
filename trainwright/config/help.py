"""One line of help per argument: the text under its declaration."""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from trainwright.config.fields import TOPICS


def help_for(name: str) -> str:
    """The text written under the field ``name``; empty for an unknown name."""
    return _texts().get(name, "")


def field_texts(kind: type) -> dict[str, str]:
    """The text under each field of a dataclass."""
    found: dict[str, str] = {}
    for node in ast.parse(inspect.getsource(kind)).body:
        found.update(_field_texts(getattr(node, "body", [])))
    return found


@cache
def _texts() -> dict[str, str]:
    """Read lazily: sources are parsed only when somebody asks for help."""
    found: dict[str, str] = {}
    # Seq2Seq's fields sit in a module that imports this one, so it is looked up instead of imported.
    extra = getattr(sys.modules.get("trainwright.config.seq2seq"), "Seq2SeqTrainingArguments", None)
    for topic in (*TOPICS, *((extra,) if extra else ())):
        found.update(field_texts(topic))
    return found


def _field_texts(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
            yield field.target.id, inspect.cleandoc(text.value.value)


class HelpMetadata(Mapping[str, Any]):
    """A field's metadata with ``help`` filled in when it is read (``HfArgumentParser`` copies it)."""

    def __init__(self, name: str, given: Mapping[str, Any]) -> None:
        self._name = name
        self._given = given

    def copy(self) -> dict[str, Any]:
        """A plain dict; argparse treats % as a placeholder, so it is doubled."""
        return {"help": help_for(self._name).replace("%", "%%"), **self._given}

    def __getitem__(self, key: str) -> Any:
        return self.copy()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.copy())

    def __len__(self) -> int:
        return len(self.copy())


def attach_help(cls: type) -> None:
    """Give every field of a finished dataclass its help."""
    for name, field in cls.__dataclass_fields__.items():  # type: ignore[attr-defined]
        if not isinstance(field.metadata, HelpMetadata):
            field.metadata = HelpMetadata(name, field.metadata)
