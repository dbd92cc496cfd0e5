"""The page that documents every argument, made from the code: ``python -m trainwright.config.reference``."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainwright.config.help import help_for
from trainwright.config.hf_fields import HF, NATIVE, REMOVED, SEQ2SEQ, Field
from trainwright.config.seq2seq import Seq2SeqTrainingArguments

_INTRODUCTION = """# Arguments

Every name that `TrainingArguments` takes. *acts*: it does what it says. *alias*: another name for an argument that
acts. *no effect*: accepted, and if set to something else than its default a warning says why it changes nothing.
*refused*: an error says why, before any work is done.

Made by `python -m trainwright.config.reference`; a test keeps it up to date.
"""

_SECTIONS: dict[str, dict[str, Field]] = {
    "Arguments of transformers": HF,
    "Arguments of `Seq2SeqTrainingArguments`": SEQ2SEQ,
    "Arguments of trainwright's own": NATIVE,
    "Names that transformers dropped": REMOVED,
}


def arguments_page() -> str:
    """docs/arguments.md."""
    defaults = {field.name: field for field in dataclasses.fields(Seq2SeqTrainingArguments)}
    parts = [_INTRODUCTION]
    for title, table in _SECTIONS.items():
        parts.append(f"## {title}\n\n| name | default | | what it does |\n|---|---|---|---|")
        parts.extend(_row(name, entry, defaults) for name, entry in table.items())
        parts.append("")
    return "\n".join(parts)


def _row(name: str, entry: Field, defaults: dict[str, Any]) -> str:
    # A status other than "acts" needs its reason; otherwise what the argument is for is what one wants to know.
    text = help_for(name) if entry.status == "acts" and name in defaults else entry.note
    text = " ".join(text.split()).replace("|", "\\|")
    return f"| `{name}` | {_default(defaults.get(name))} | {entry.status} | {text} |"


def _default(field: Any) -> str:
    if field is None or field.default is dataclasses.MISSING:
        return ""
    value = getattr(field.default, "value", field.default)
    return f"`{value!r}`"


if __name__ == "__main__":
    print(arguments_page(), end="")
