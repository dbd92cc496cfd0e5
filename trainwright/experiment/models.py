"""Models by name: Hugging Face's, registered ones, ``my_file.py:Class``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch import nn

from trainwright.config.errors import ConfigError
from trainwright.config.loading import Loaded
from trainwright.config.options import fitting_options
from trainwright.config.origin import OURS, library_of
from trainwright.config.refused_versions import refuse_unsafe_transformers
from trainwright.config.registry import find, load_object, registered, split_reference, suggestion
from trainwright.config.yaml12 import Place
from trainwright.experiment.hub import means_missing, not_here, offline_where_unreachable
from trainwright.experiment.sources import is_by_name, resolve

_ARCHITECTURES = {
    "ForSequenceClassification": "text-classification",
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForConditionalGeneration": "seq2seq",
    "ForImageClassification": "image-classification",
    "ForCTC": "speech-recognition",
    "CLIPModel": "image-text-classification",
    "SiglipModel": "image-text-classification",
}


def is_local(loaded: Loaded) -> bool:
    """Whether the model is a class that this process has, and not one of transformers by name."""
    name = loaded.experiment.model.name
    return split_reference(name) is not None or is_by_name(loaded, "model", ("model", "name"), name)


def build_local(loaded: Loaded, **sizes: object) -> nn.Module:
    """A registered model or ``my_file.py:Class``, made with ``model.options`` and those ``sizes`` that it takes."""
    section = loaded.experiment.model
    if split_reference(section.name) is not None:
        make: Any = load_object(resolve(loaded, ("model", "name"), section.name), "model.name")
    elif is_by_name(loaded, "model", ("model", "name"), section.name):
        make = find("model", section.name, f"{loaded.where(('model', 'name'))}: model.name")
    else:
        known = ", ".join(sorted(registered("model")))
        raise loaded.error(("model", "name"), f"this task needs one of {known}, or my_file.py:Class.")
    if isinstance(make, nn.Module):
        return make
    try:
        takes = inspect.signature(make).parameters
        accepted = {name: value for name, value in sizes.items() if name in takes}
        inspect.signature(make).bind(**{**accepted, **section.options})
    except TypeError as error:
        unknown = next((key for key in section.options if key not in inspect.signature(make).parameters), "")
        near = suggestion(unknown, inspect.signature(make).parameters) if unknown else ""
        told = f"{section.name} {error}{near}; the data gives {_listed(sizes)}."
        raise loaded.error(("model", "options"), told) from None
    is_ours = library_of(make) == OURS
    options = {**accepted, **section.options}
    try:
        if is_ours and (given := set(sizes) & set(section.options)):
            raise ValueError(f"{', '.join(sorted(given))} is what the data gives: leave it out.")
        model = make(**(fitting_options(make, options) if is_ours else options))
    except (ValueError, TypeError, RuntimeError) as error:
        if not is_ours:
            # The traceback leads into the user's own code.
            raise
        raise loaded.error(("model", "options"), f"{section.name}: {_first_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise loaded.error(("model", "name"), f"{section.name} made {type(model).__name__}, which is no torch model.")
    return model


def _listed(sizes: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items()) or "no sizes"


def transformers_library(loaded: Loaded) -> Any:
    try:
        import transformers
    except ImportError as error:
        known = ", ".join(sorted(registered("model")))
        raise ConfigError(
            f"{loaded.where(('model', 'name'))}: {loaded.experiment.model.name!r} is none of {known}; models of "
            "Hugging Face need the package transformers: pip install 'trainwright[hf]'"
        ) from error
    refuse_unsafe_transformers()
    if not sys.stderr.isatty():
        # A bar never ends up in a log file.
        transformers.utils.logging.disable_progress_bar()
    return transformers


def build_pretrained(loaded: Loaded, auto_class: str, trained: str | None = None, **settings: object) -> nn.Module:
    """A model of transformers; ``settings`` are what the task knows (number of classes, their names)."""
    section = loaded.experiment.model
    library = transformers_library(loaded)
    auto = getattr(library, auto_class)
    name = trained or resolve(loaded, ("model", "name"), section.name)
    _refuse_other_number_of_labels(loaded, settings)
    # Said, so that nobody is asked at a prompt whether code may run.
    options = {"trust_remote_code": False, **settings, **section.options}
    with _read_by_name(loaded, ("model", "name"), name):
        if section.pretrained or trained:
            # Never a pickle that runs: transformers reads .bin files with weights_only.
            return auto.from_pretrained(name, **options)
        return auto.from_config(library.AutoConfig.from_pretrained(name, **options))


def _refuse_other_number_of_labels(loaded: Loaded, settings: dict[str, Any]) -> None:
    """A head with fewer outputs than there are classes learns something else, or nothing."""
    said, found = loaded.experiment.model.options.get("num_labels"), settings.get("num_labels")
    if isinstance(said, int) and isinstance(found, int) and (said < found or (found == 1) != (said == 1)):
        data = "a number to predict" if found == 1 else f"{found} classes"
        raise loaded.error(
            ("model", "options", "num_labels"), f"{said} contradicts the data, which has {data}: leave it out."
        )


@contextmanager
def _read_by_name(loaded: Loaded, place: Place, name: str) -> Iterator[None]:
    """What transformers says about a name, in one line and at the place where the name was written."""
    is_here = Path(name).exists()
    with nullcontext(False) if is_here else offline_where_unreachable() as is_offline:
        try:
            yield
        except (OSError, ValueError, TypeError) as error:
            near = suggestion(name, registered("model"))
            parent = (loaded.base_folder(place) / name).parent
            if not is_here and "/" in name and parent.is_dir():
                beside = suggestion(Path(name).name, [folder.name for folder in parent.iterdir()])
                there = f"there is no folder {name}{beside}, and no model of that name could be read from Hugging Face"
                raise loaded.error(place, f"{there}.") from error
            if is_offline and means_missing(error):
                raise loaded.error(place, not_here(name, "model", near)) from error
            raise loaded.error(place, f"{_first_line(error)}{near}") from error


def limit_length(given: Any, facts: dict[str, Any], model: nn.Module, tokenizer: Any) -> None:
    """No text longer than the model has positions for: less by itself, and more only if it was not asked for."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if given.facts is not None or not isinstance(positions, int):
        return
    longest = min(positions, tokenizer.model_max_length)
    if given.loaded.experiment.data.max_length is None:
        facts["max_length"] = min(facts["max_length"], longest)
    elif facts["max_length"] > positions:
        raise given.loaded.error(
            ("data", "max_length"), f"{facts['max_length']} is more than the {positions} tokens that the model reads."
        )


def processor_of(loaded: Loaded, auto_class: str, trained: str | None = None) -> Any:
    """Tokenizer or image processor: the one named, else the model's own."""
    section = loaded.experiment.model
    key = "tokenizer" if section.tokenizer else "name"
    name = trained or resolve(loaded, ("model", key), section.tokenizer or section.name)
    remote = {"trust_remote_code": bool(section.options.get("trust_remote_code", False))}
    library = transformers_library(loaded)
    with _read_by_name(loaded, ("model", key), name):
        return getattr(library, auto_class).from_pretrained(name, **remote)


def task_of_pretrained(loaded: Loaded) -> str | None:
    """The task that a model's configuration says it was made for."""
    name = resolve(loaded, ("model", "name"), loaded.experiment.model.name)
    library = transformers_library(loaded)
    with _read_by_name(loaded, ("model", "name"), name):
        config = library.AutoConfig.from_pretrained(
            name, trust_remote_code=bool(loaded.experiment.model.options.get("trust_remote_code", False))
        )
    for architecture in config.architectures or []:
        for ending, task in _ARCHITECTURES.items():
            if architecture.endswith(ending):
                return task
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
