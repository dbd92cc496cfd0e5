"""The experiment as it is kept in a run's folder: what was asked for, and what was found out about the data."""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.config.errors import ConfigError
from trainwright.config.experiment import ARGUMENT_SECTIONS, NAMED_SECTIONS
from trainwright.config.loading import Loaded, experiment_from
from trainwright.config.registry import split_reference
from trainwright.config.secrets import holds_mask, redacted_values
from trainwright.config.trust import loss_name
from trainwright.config.yaml12 import Document, Place, read_yaml_file, write_yaml
from trainwright.core.files import replace_text
from trainwright.experiment.building import Built, run_name
from trainwright.experiment.sources import BUILT_IN, resolve

EXPERIMENT = "experiment.yaml"
PREPROCESSING = "preprocessing.json"
#: Whose files are watched: parts of the data, and the model under an adapter, which no checkpoint holds.
_PARTS = ("train", "eval", "model")
_MODEL_FILES = ("config.json", "*.safetensors", "*.bin")
#: Said of one start, and not repeated by the next.
_OF_ONE_START = ("take_over", "max_hours")
_HEADER = "# The experiment of this run with everything that the command line changed; paths are absolute.\n"


def resolved(loaded: Loaded) -> dict[str, Any]:
    """The experiment as plain data that means the same from anywhere: paths are absolute, defaults left out."""
    sections = {one.name: _said(getattr(loaded.experiment, one.name)) for one in dataclasses.fields(loaded.experiment)}
    model, data = sections["model"], sections["data"]
    for key in ("name", "tokenizer", "metrics", "chat_template"):
        if key in model:
            model[key] = resolve(loaded, ("model", key), model[key])
    if "ensemble" in model:
        model["ensemble"] = _said(model["ensemble"])
    if "loss" in model:
        model["loss"] = _loss_as_anywhere(loaded, model["loss"])
    for key in ("train", "eval", "test"):
        if key in data and data[key] not in BUILT_IN:
            data[key] = resolve(loaded, ("data", key), data[key])
    phases = {name: _said(phase) for name, phase in loaded.experiment.phases.items()}
    for name, phase in phases.items():
        if "data" in phase and phase["data"] not in BUILT_IN:
            phase["data"] = resolve(loaded, ("phases", name, "data"), phase["data"])
    sections["phases"] = phases
    for key in ("recipe", "teacher", "distill_teacher"):
        name = sections[key]
        if isinstance(name, str) and name not in ("self", "disable") and "\n" not in name:
            sections[key] = resolve(loaded, (key,), name)
    for section in NAMED_SECTIONS:
        named = sections[section].items()
        sections[section] = {_as_anywhere(loaded, (section, name), name): options for name, options in named}
    for section in ARGUMENT_SECTIONS:
        sections[section] = {name: value for name, value in sections[section].items() if name not in _OF_ONE_START}
    # Not of this training: what others of the same experiment try.
    sections["search"] = None
    # Going on from the folder, it is still called what its first file was called.
    sections["name"] = run_name(loaded)
    return {name: value for name, value in sections.items() if value not in (None, {}, [])}


def _as_anywhere(loaded: Loaded, place: Place, name: str) -> str:
    return resolve(loaded, place, name) if split_reference(name) is not None else name


def _loss_as_anywhere(loaded: Loaded, said: str | dict[str, Any]) -> str | dict[str, Any]:
    place, name = loss_name(loaded.experiment.model)
    assert name is not None
    name = _as_anywhere(loaded, place, name)
    # Alone, a name is the same however it is written.
    return {**said, "name": name} if isinstance(said, dict) and len(said) > 1 else name


def _said(section: object) -> Any:
    """What a section says beyond its defaults."""
    if not dataclasses.is_dataclass(section) or isinstance(section, type):
        return section
    values = {one.name: getattr(section, one.name) for one in dataclasses.fields(section)}
    defaults = {one.name: one.default for one in dataclasses.fields(section)}
    return {name: value for name, value in values.items() if value != defaults[name] and value != {}}


def store(built: Built, folder: Path, files: dict[str, list[Any]]) -> None:
    """Write both files, each whole or not at all; ``files`` are those that the data is read from."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = redacted_values(resolved(built.loaded))
    replace_text(folder / EXPERIMENT, _HEADER + write_yaml(plain), forced=True)
    found = {"task": built.task, "facts": built.prepared.facts, "samples": samples_of(built)}
    found["files"] = files
    found["parts"] = {part: [str(path) for path in _files(built.loaded, part)] for part in _PARTS}
    replace_text(folder / PREPROCESSING, json.dumps(found, indent=2, ensure_ascii=False) + "\n", forced=True)


def samples_of(built: Built) -> int | None:
    """How many samples there are to train on, where that is known."""
    return len(built.prepared.train) if hasattr(built.prepared.train, "__len__") else None


def files_of(loaded: Loaded, folder: Path) -> dict[str, list[Any]]:
    """Size, time of change and contents (SHA-256) of the files that the data is read from.

    Those that the run in ``folder`` has read before, and nobody touched since, are not read again.
    """
    known = _stored(folder, "files") or {}
    found: dict[str, list[Any]] = {}
    for path in (path for part in _PARTS for path in _files(loaded, part)):
        facts = [path.stat().st_size, path.stat().st_mtime_ns]
        before = known.get(str(path))
        is_known = isinstance(before, list) and before[:2] == facts and len(before) == 3
        found[str(path)] = before if is_known else [*facts, _contents(path)]
    return found


def contents_to_evaluate_on(loaded: Loaded, files: dict[str, list[Any]]) -> dict[str, str]:
    """What tells the files to evaluate on from others, as a setting; nothing where there are none."""
    marks = [files[str(path)][2] for path in _files(loaded, "eval")]
    return {"data.eval.contents": hashlib.sha256("".join(marks).encode()).hexdigest()[:12]} if marks else {}


class ChangedFile(NamedTuple):
    """A file whose contents are not what they were, or that is new or gone."""

    name: str
    part: str
    before: str
    now: str


def changed_files(loaded: Loaded, folder: Path) -> list[ChangedFile]:
    """Files that are not what they were when the run in ``folder`` began; one that was only touched is the same."""
    known = _stored(folder, "files") or {}
    parts = _stored(folder, "parts") or {}
    found = []
    for part in _PARTS:
        present = {str(path): path for path in _files(loaded, part)}
        if set(present) != set(parts.get(part, ())) and has_same_contents(loaded, folder, part):
            continue
        for name, path in present.items():
            before, now = known.get(name), path.stat()
            if isinstance(before, list) and before[:2] == [now.st_size, now.st_mtime_ns]:
                continue
            words = _differing(before, path, is_known=part in parts)
            if words is not None:
                found.append(ChangedFile(name, part, *words))
        gone = [name for name in parts.get(part, ()) if name not in present]
        found += [ChangedFile(name, part, "there", "gone") for name in gone]
    return found


def has_same_contents(loaded: Loaded, folder: Path, part: str) -> bool:
    """Return True where the files of a part of the data are those that the run began with, under whatever names."""
    known = _stored(folder, "files") or {}
    before = [known.get(name) for name in (_stored(folder, "parts") or {}).get(part, ())]
    facts = [(one[0], one[2]) for one in before if isinstance(one, list) and len(one) == 3]
    now = _files(loaded, part)
    if not facts or len(facts) != len(before) or [size for size, _ in facts] != [path.stat().st_size for path in now]:
        return False
    return [contents for _, contents in facts] == [_contents(path) for path in now]


def _differing(before: object, path: Path, *, is_known: bool) -> tuple[str, str] | None:
    """What was there and what is there now, in words; None where both are the same, or nothing is known."""
    size, contents = path.stat().st_size, _contents(path)
    now = f"{size} bytes, SHA-256 {contents[:12]}"
    if not isinstance(before, list):
        return ("not there", now) if is_known else None
    # Releases before 0.2 kept no hash: only another size shows then.
    was = before[2] if len(before) == 3 else contents if before[0] == size else "not known"
    return None if was == contents else (f"{before[0]} bytes, SHA-256 {str(was)[:12]}", now)


def _files(loaded: Loaded, part: str) -> list[Path]:
    if part == "model":
        return _files_of_model(loaded)
    named: list[tuple[Place, str | None]] = [(("data", part), getattr(loaded.experiment.data, part))]
    if part == "train":
        named += [(("phases", name, "data"), phase.data) for name, phase in loaded.experiment.phases.items()]
    found = [one for place, name in named if name for one in sorted(glob.glob(resolve(loaded, place, name)))]
    return [path for one in dict.fromkeys(found) if (path := Path(one)).is_file()]


def _files_of_model(loaded: Loaded) -> list[Path]:
    name = loaded.experiment.model.name
    if loaded.experiment.adapter is None or not name or split_reference(name) is not None:
        return []
    folder = Path(resolve(loaded, ("model", "name"), name))
    return sorted(path for pattern in _MODEL_FILES for path in folder.glob(pattern)) if folder.is_dir() else []


def _contents(path: Path) -> str:
    found = path.stat()
    return _digest(path, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _digest(path: Path, size: int, changed: int) -> str:
    # Once for each start: a file that was moved is asked for more than once, and may be large.
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stored_document(folder: Path) -> Document | None:
    """What is kept in ``folder``, if it is the folder of an experiment."""
    if not (folder / EXPERIMENT).is_file():
        return None
    document = read_yaml_file(folder / EXPERIMENT)
    if not isinstance(document.data, dict):
        raise ConfigError(f"{document.source} is no experiment: was it changed by hand?")
    return document


def stored_facts(folder: Path) -> dict[str, Any] | None:
    """What the run found out about its data."""
    return _stored(folder, "facts") or None


def stored_samples(folder: Path) -> int | None:
    """How many samples the run began with."""
    return _stored(folder, "samples")


def _stored(folder: Path, key: str) -> Any:
    path = folder / PREPROCESSING
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8")).get(key)
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): was it changed by hand?") from None


def load_stored(folder: Path, overrides: list[str], *, trust: bool) -> Loaded:
    """The experiment of a run, with what the command line changes in it."""
    document = stored_document(folder)
    if document is None:
        raise ConfigError(f"{folder} has no {EXPERIMENT}: it is not the folder of an experiment.")
    # It goes on in its own folder, wherever that has been moved to; as a value, for a folder may be called 1e3.
    own = ("checkpoint" if "output_dir" in (document.data.get("checkpoint") or {}) else "training", "output_dir")
    return experiment_from(document, overrides, trust=trust, folder=folder, values={own: str(folder)})


def refuse_masked(loaded: Loaded, *sections: str) -> None:
    """Ask for a secret again that was not kept with a run: in ``sections``, or anywhere.

    What only looked like one was not kept either, and the same command as before says it again.
    """
    said = {name: value for name, value in resolved(loaded).items() if not sections or name in sections}
    for place in _masked(said, ()):
        key = ".".join(map(str, place))
        raise loaded.error(
            place, f"secrets are not kept with a run: give it again, {key}=..., or run the same command."
        )


def _masked(value: object, place: Place) -> Iterator[Place]:
    """Places of values that were masked; of a list, the place of the list."""
    if not isinstance(value, dict):
        if holds_mask(value):
            yield place
        return
    for key, item in value.items():
        if holds_mask(key):
            yield place
        yield from _masked(item, (*place, key))


def differences(before: dict[str, Any], after: dict[str, Any], place: str = "") -> list[tuple[str, Any, Any]]:
    """(key, before, after) of everything that is not the same.

    >>> differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2})
    [('a.b', 1, 3)]
    """
    found: list[tuple[str, Any, Any]] = []
    for key in {**before, **after}:
        one, other = before.get(key), after.get(key)
        name = f"{place}.{key}" if place else key
        if isinstance(one, dict) or isinstance(other, dict):
            inner = differences(one or {}, other or {}, name)
            # A name without options, such as a callback's, is there or it is not.
            found += inner or ([(name, one, other)] if one != other else [])
        elif one != other:
            found.append((name, one, other))
    return found
