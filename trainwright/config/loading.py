"""An experiment file and a command line -> :class:`Experiment`, or an error that says which line to change and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.errors import ConfigError
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
from trainwright.config.fields.distributed import DistributedFields
from trainwright.config.fields.saving import SavingFields
from trainwright.config.fields.survival import SurvivalFields
from trainwright.config.keywords import USUAL_WORDS, hint_for
from trainwright.config.overrides import COMMAND_LINE, SHORT_FORMS, parse_overrides, put_value
from trainwright.config.registry import check_name, split_reference, suggestion
from trainwright.config.seq2seq import Seq2SeqTrainingArguments
from trainwright.config.shipped import SHIPPED
from trainwright.config.trust import code_references
from trainwright.config.yaml12 import Document, Place, read_yaml_file

_SECTIONS: dict[str, type] = {
    "model": ModelSection,
    "data": DataSection,
    "adapter": AdapterSection,
    "search": SearchSection,
}
#: Keys of data: that count something.
_COUNTS = ("max_length", "image_size", "limit_train", "limit_eval")


@dataclass(frozen=True)
class Loaded:
    """An experiment, where each of its values came from, and the arguments that its sections make."""

    experiment: Experiment
    document: Document
    #: Values that the command line gave.
    from_command_line: frozenset[Place]
    #: Whether the command line said that code the file names may run.
    trusted: bool
    #: The file's folder, from which its paths count.
    folder: Path

    def where(self, place: Place) -> str:
        """Where a value was written."""
        is_only_there = place not in self.document.lines and any(
            given[: len(place)] == place for given in self.from_command_line
        )
        return COMMAND_LINE if is_only_there or self._is_given(place) else self.document.where(place)

    def _is_given(self, place: Place) -> bool:
        """Whether the command line gave this value, or what it is a part of."""
        return any(place[:length] in self.from_command_line for length in range(1, len(place) + 1))

    def error(self, place: Place, problem: str) -> ConfigError:
        return ConfigError(f"{self.where(place)}: {'.'.join(map(str, place))}: {problem}")

    def is_allowed(self, place: Place) -> bool:
        """Whether the user let the code that this value names run."""
        return self.trusted or self._is_given(place)

    def base_folder(self, place: Place) -> Path:
        """What a relative path counts from: the file's folder, or where one is for the command line."""
        return Path() if self._is_given(place) else self.folder


def load_experiment(path: str | Path, overrides: Iterable[str] = (), *, trust: bool = False) -> Loaded:
    """Read ``path``, put ``overrides`` (``training.learning_rate=1e-4``) over it, check every key and type."""
    document = read_yaml_file(path)
    return experiment_from(document, overrides, trust=trust, folder=Path(path).parent)


def experiment_from(
    document: Document,
    overrides: Iterable[str] = (),
    *,
    trust: bool = False,
    folder: Path = Path(),
    values: Mapping[Place, Any] | None = None,
) -> Loaded:
    """The same, from what was read already; ``values`` count as given on the command line too, before ``overrides``."""
    if not isinstance(document.data, dict):
        raise ConfigError(f"{document.source}: an experiment has sections, such as model: and data:.")
    if "trust" in document.data:
        raise ConfigError(
            f"{document.where(('trust',))}: trust belongs on the command line (--trust): "
            "a file cannot vouch for itself."
        )
    data = with_long_forms(document.data)
    given: set[Place] = set()
    for place, value in [*(values or {}).items(), *parse_overrides(overrides)]:
        if place == ("trust",):
            if not isinstance(value, bool):
                raise ConfigError(f"{COMMAND_LINE}: trust={value}: write --trust, trust=true or trust=false.")
            trust = trust or value
            continue
        given.add(put_value(data, place, value))
    loaded = Loaded(_validated(data, document, frozenset(given)), document, frozenset(given), trust, folder)
    _refuse_untrusted(loaded)
    return loaded


def with_long_forms(data: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which ``model: bert`` is ``model: {name: bert}``; deep enough that overrides change nothing else."""
    found = {key: _copied(value) for key, value in data.items()}
    for section, key in SHORT_FORMS.items():
        if isinstance(found.get(section), str):
            found[section] = {key: found[section]}
    return found


def _copied(value: object) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def _validated(data: dict[str, Any], document: Document, given: frozenset[Place]) -> Experiment:
    # pydantic checks types; it is imported only where a file is loaded.
    from pydantic import TypeAdapter, ValidationError

    partly = Loaded(Experiment(model=ModelSection(name="")), document, given, False, Path())
    _refuse_unknown(partly, data, (), Experiment)
    for section, kind in _SECTIONS.items():
        if isinstance(data.get(section), dict):
            _refuse_unknown(partly, data[section], (section,), kind)
    for name, phase in data["phases"].items() if isinstance(data.get("phases"), dict) else ():
        if isinstance(phase, dict):
            _refuse_unknown(partly, phase, ("phases", name), PhaseSection)
            data["phases"][name] = {key: value for key, value in phase.items() if value is not None}
    model = data.get("model")
    if isinstance(model, dict) and isinstance(model.get("ensemble"), dict):
        _refuse_unknown(partly, model["ensemble"], ("model", "ensemble"), EnsembleSection)
        model["ensemble"] = {key: value for key, value in model["ensemble"].items() if value is not None}
    for section in ARGUMENT_SECTIONS:
        if isinstance(data.get(section), dict):
            _refuse_unknown_arguments(partly, data[section], section)
    for section in NAMED_SECTIONS:
        if data.get(section) is not None:
            data[section] = _with_options(partly, data[section], section)
    # A section or key that is there and empty is one that says nothing.
    said = {key: value for key, value in data.items() if value is not None}
    for section in _SECTIONS:
        if isinstance(said.get(section), dict):
            said[section] = {key: value for key, value in said[section].items() if value is not None}
            _refuse_values(partly, said[section], section)
    try:
        return TypeAdapter(Experiment).validate_python(said)
    except ValidationError as error:
        problem = error.errors()[0]
        place = _place_of(problem["loc"], data)
        if problem["type"] == "missing":
            place = place if place[-1:] == problem["loc"][-1:] else (*place, problem["loc"][-1])
            raise ConfigError(
                f"{partly.where(place[:-1])}: {'.'.join(map(str, place))} is missing"
                + (": say what to train, for example model: mlp." if place[0] == "model" else ".")
            ) from None
        raise partly.error(place, f"{problem['input']!r} should be {_expected(problem)}.") from None


#: What pydantic's kinds of problems mean for the author of a file.
_EXPECTED = {
    "string_type": "text (in quotes, if it looks like something else)",
    "dict_type": "keys with values, such as {key: value}",
    "dataclass_type": "one word, or keys with values such as {name: ...}",
    "list_type": "a list, such as [a, b]",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "float_type": "a number",
    "float_parsing": "a number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
}


def _expected(problem: Any) -> str:
    return _EXPECTED.get(problem["type"], problem["msg"].removeprefix("Input should be "))


def _refuse_values(loaded: Loaded, section: dict[str, Any], name: str) -> None:
    """What has the right type and still cannot be meant."""
    for key, value in section.items():
        if value == "":
            raise loaded.error((name, key), "it is empty: write a value, or leave the key out.")
        if key in _COUNTS and (isinstance(value, bool) or (isinstance(value, int) and value < 1)):
            raise loaded.error((name, key), f"{value!r} should be a whole number of at least 1.")
        if key == "holdout" and isinstance(value, bool):
            raise loaded.error((name, key), f"{value!r} should be a share such as 0.1.")
        if key == "loss" and isinstance(value, dict) and not isinstance(value.get("name"), str):
            raise loaded.error((name, key), "it needs the name of a loss: {name: focal, gamma: 2.0}.")
        for kind in ("task", "loss"):
            said = value.get("name") if isinstance(value, dict) else value
            if key == kind and isinstance(said, str) and split_reference(said) is None:
                check_name(kind, said, f"{loaded.where((name, key))}: {name}.{key}")


def _place_of(loc: tuple[Any, ...], data: object) -> Place:
    """pydantic names the branches of a union too; only what is in the file counts."""
    place: list[Any] = []
    for part in loc:
        if isinstance(data, dict) and (part in data or not place or len(place) < 2):
            place.append(part)
            data = data.get(part) if isinstance(data, dict) else None
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            place.append(part)
            data = data[part]
    return tuple(place)


def _refuse_unknown(loaded: Loaded, data: dict[str, Any], place: Place, kind: type) -> None:
    known = [one.name for one in dataclasses.fields(kind)]
    for key in data:
        if key not in known:
            hint = _section_of(key) or suggestion(key, known) or _elsewhere(key) or f"; there are {', '.join(known)}"
            raise loaded.error((*place, key), f"there is no such key{hint}.")


def _with_options(loaded: Loaded, listed: object, section: str) -> dict[str, dict[str, Any]]:
    """``[a, b: {c: 1}]`` and ``{a: , b: {c: 1}}`` alike as ``{a: {}, b: {c: 1}}``."""
    found: dict[str, dict[str, Any]] = {}
    for item in listed if isinstance(listed, list) else [listed]:
        named = {item: None} if isinstance(item, str) else item
        if not isinstance(named, dict):
            raise loaded.error((section,), f"{item!r} should be a name, or a name with options.")
        for name, options in named.items():
            if isinstance(options, bool):
                # `early_stopping: true` is it with its defaults, and false is without it.
                if not options:
                    continue
                options = None
            if options is not None and not isinstance(options, dict):
                raise loaded.error((section, name), f"{options!r} should be options by name, such as {{key: value}}.")
            if name in found:
                raise loaded.error((section, name), "it is listed twice.")
            found[name] = options or {}
    return found


def _section_of(key: str) -> str:
    """The section that a key of exactly this name belongs to; also where it is only not indented."""
    for section, kind in _SECTIONS.items():
        if key in {one.name for one in dataclasses.fields(kind)}:
            return f" (it belongs under {section}:)"
    return ""


def _elsewhere(key: str) -> str:
    """Where a key belongs that stands in the wrong section."""
    if key in SHIPPED["callback"]:
        return f" (it belongs under callbacks: {{{key}: true}})"
    if key in USUAL_WORDS:
        # A sentence says where; a name needs its section.
        return hint_for(key, argument_names()).replace("here it is ", "here it is training.")
    return " (it belongs under training:)" if key in argument_names() else ""


def argument_names(section: str = "training") -> tuple[str, ...]:
    """The keys that ``training:``, ``checkpoint:`` or ``parallel:`` takes."""
    if section == "checkpoint":
        return tuple(one.name for kind in (SavingFields, SurvivalFields) for one in dataclasses.fields(kind))
    if section == "parallel":
        return ("backend", "micro_batch", *(one.name for one in dataclasses.fields(DistributedFields)))
    return tuple(one.name for one in dataclasses.fields(Seq2SeqTrainingArguments) if not one.name.startswith("_"))


def _refuse_unknown_arguments(loaded: Loaded, data: dict[str, Any], section: str) -> None:
    known = argument_names(section)
    for key in data:
        if key not in known:
            elsewhere = " (it belongs under training:)" if key in argument_names() else hint_for(key, known)
            raise loaded.error((section, key), f"there is no such argument{elsewhere}.")


def _refuse_untrusted(loaded: Loaded) -> None:
    """Code that only the file names does not run."""
    for place, reference in code_references(loaded.experiment):
        if not loaded.is_allowed(place):
            raise loaded.error(
                place,
                f"{reference!r} would run code because a file says so. If you know that code, add --trust on the "
                "command line" + _by_hand(place, reference),
            )


def _by_hand(place: Place, reference: str) -> str:
    """How to give the same on the command line, where one word does it."""
    can = place[0] in ("model", "data") and len(place) == 2
    return f", or give it there: {'.'.join(map(str, place))}={reference}" if can else "."


def arguments_of(loaded: Loaded, kind: type[TrainingArguments] = TrainingArguments, **more: Any) -> TrainingArguments:
    """The TrainingArguments that ``training:``, ``checkpoint:`` and ``parallel:`` make; ``more`` fills the rest."""
    values: dict[str, Any] = {}
    places: dict[str, Place] = {}
    for section in ARGUMENT_SECTIONS:
        for name, value in getattr(loaded.experiment, section).items():
            if name in values:
                raise loaded.error((section, name), f"it is set at {loaded.where(places[name])} too: keep one.")
            values[name], places[name] = value, (section, name)
    known = {one.name for one in dataclasses.fields(kind)}
    for name in values:
        if name not in known:
            raise loaded.error(places[name], "it acts only with model.task: seq2seq.")
    for name, value in values.items():
        if value is None and not _may_be_none(kind, name):
            raise loaded.error(places[name], "it is empty: write a value, or leave the key out.")
    try:
        return kind(**{**more, **values})
    except ValueError as error:
        place = next((places[name] for name in _words(str(error)) if name in places), None)
        raise ConfigError(f"{loaded.where(place) if place else loaded.document.source}: {error}") from error


def _may_be_none(kind: type[TrainingArguments], name: str) -> bool:
    field = next(one for one in dataclasses.fields(kind) if one.name == name)
    return field.default is None or "None" in str(field.type) or "Optional" in str(field.type)


def _words(text: str) -> list[str]:
    """What may be names of arguments in a message, in order."""
    return "".join(letter if letter.isalnum() or letter == "_" else " " for letter in text).split()


def argument_fields() -> dict[str, Any]:
    """Every argument's dataclass field, by name."""
    return {one.name: one for one in dataclasses.fields(AllFields) if not one.name.startswith("_")}
