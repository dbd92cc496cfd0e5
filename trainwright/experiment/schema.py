"""The JSON schema by which editors complete and check experiments: ``python -m trainwright.experiment.schema``."""

from __future__ import annotations

import json
import warnings
from typing import Any

from trainwright.config.coerce import NAMES
from trainwright.config.experiment import (
    ARGUMENT_SECTIONS,
    NAMED_SECTIONS,
    AdapterSection,
    DataSection,
    EnsembleSection,
    Experiment,
    ModelSection,
    PhaseSection,
    SearchSection,
)
from trainwright.config.fields import AllFields
from trainwright.config.help import field_texts, help_for
from trainwright.config.loading import argument_names
from trainwright.config.seq2seq import Seq2SeqTrainingArguments
from trainwright.config.shipped import SHIPPED

#: Keys of model: that name something registered, each of the kind of that name.
_NAMED = {"task", "loss"}


def experiment_schema() -> dict[str, Any]:
    """The schema as plain data."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(Experiment).json_schema(ref_template="#/$defs/{model}")
    definitions = schema.pop("$defs")
    for section, kind in (("model", ModelSection), ("data", DataSection)):
        _describe(definitions[kind.__name__], field_texts(kind))
        for name in definitions[kind.__name__]["properties"].keys() & _NAMED:
            _complete(definitions[kind.__name__]["properties"][name], name)
        word = {"type": "string", "description": "Short for the section with only its name."}
        schema["properties"][section] = {"anyOf": [{"$ref": f"#/$defs/{kind.__name__}"}, word]}
    for section, key in (("adapter", "kind"),):
        word = {"type": "string", "description": f"Short for the section with only its {key}."}
        schema["properties"][section]["anyOf"].insert(1, word)
    for section in (EnsembleSection, SearchSection, PhaseSection, AdapterSection):
        _describe(definitions[section.__name__], field_texts(section))
    _describe(schema, field_texts(Experiment))
    arguments = _argument_schemas(definitions)
    for section in ARGUMENT_SECTIONS:
        names = argument_names(section)
        schema["properties"][section] = {
            "type": ["object", "null"],
            "description": field_texts(Experiment)[section],
            "properties": {name: arguments[name] for name in names if name in arguments},
            "additionalProperties": False,
        }
    for section in NAMED_SECTIONS:
        options = {"type": ["object", "null"]}
        schema["properties"][section] = {
            "description": field_texts(Experiment)[section],
            "anyOf": [
                {"type": "string"},
                {"type": "object", "additionalProperties": options},
                {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}},
                {"type": "null"},
            ],
        }
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "trainwright experiment"
    return {**schema, "additionalProperties": False, "$defs": definitions}


def _complete(entry: dict[str, Any], kind: str) -> None:
    """Let editors complete ours, and leave room for registered ones."""
    entry["anyOf"].insert(0, {"enum": list(SHIPPED[kind])})


def _describe(schema: dict[str, Any], texts: dict[str, str]) -> None:
    schema["additionalProperties"] = False
    for name, entry in schema["properties"].items():
        entry.pop("title", None)
        if name in texts:
            entry["description"] = " ".join(texts[name].split())


def _argument_schemas(definitions: dict[str, Any]) -> dict[str, Any]:
    from pydantic import TypeAdapter

    found: dict[str, Any] = {}
    for kind in (AllFields, Seq2SeqTrainingArguments):
        for name, hint in _hints(kind).items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    entry = TypeAdapter(hint).json_schema(ref_template="#/$defs/{model}")
                except Exception:
                    # Objects that only Python code can give.
                    entry = {}
            definitions.update(entry.pop("$defs", {}))
            entry.pop("title", None)
            if name in NAMES:
                entry = {"anyOf": [entry]}
                _complete(entry, NAMES[name][0])
            text = " ".join(help_for(name).split())
            found.setdefault(name, {"description": text, **_widened(entry)} if text else _widened(entry))
    return found


def _hints(kind: type) -> dict[str, Any]:
    import typing

    return {name: hint for name, hint in typing.get_type_hints(kind).items() if not name.startswith("_")}


def _widened(entry: dict[str, Any]) -> dict[str, Any]:
    """Booleans may be spelled no and yes, numbers may come as text: what loads must not be marked as wrong."""
    if entry.get("type") == "boolean":
        return {**{key: value for key, value in entry.items() if key != "type"}, "enum": [True, False, "yes", "no"]}
    return entry


def schema_text() -> str:
    """The schema as it is kept beside the packaged experiments."""
    return json.dumps(experiment_schema(), indent=1) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
