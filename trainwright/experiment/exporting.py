"""A trained model, found on disk, in the format that somebody else reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.checkpoint.manifest import holds
from trainwright.checkpoint.weights import load_weights
from trainwright.config.errors import ConfigError
from trainwright.config.refused_versions import refuse_unsafe_transformers
from trainwright.config.registry import load_object, split_reference
from trainwright.core.modifier import Modifier
from trainwright.core.signatures import forward_parameters
from trainwright.experiment.building import build_trained, training_rows
from trainwright.experiment.running import weights_of
from trainwright.experiment.sources import first
from trainwright.experiment.stored import EXPERIMENT, load_stored, refuse_masked, stored_facts
from trainwright.recipes.export.exporting import FORMATS, export_model
from trainwright.recipes.export.results import Exported
from trainwright.recipes.export.semi_structured import layers_of_two_of_four
from trainwright.training.recipe_folder import RECIPE, restore_recipe
from trainwright.training.recipe_past import holds_pickled_weights, load_what_fits

#: What belongs to a model besides its weights.
BESIDES = (
    *("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "spiece.model"),
    *("*processor_config.json", "generation_config.json", "chat_template*"),
)
_ROWS, _TOKENS = 4, 8


@dataclass
class Trained:
    """A model with its weights, and what its recipe did to it."""

    model: nn.Module
    folder: Path
    modifiers: list[Modifier] = field(default_factory=list)
    #: Inputs to run it with, where they can be known.
    sample: Any = None


def export(
    source: Path,
    to: str,
    output: Path | None = None,
    *,
    model: str | None = None,
    sample: str | None = None,
    scheme: str | None = None,
    trust: bool = False,
) -> Exported:
    """Export what ``source`` holds: a checkpoint, a saved model, or a run of an experiment."""
    if to not in FORMATS:
        raise ConfigError(f"--to {to}: there are {', '.join(FORMATS)}.")
    target = output if output is not None else source.parent / "exported" / f"{source.name}-{to}"
    refuse_existing(target)
    if sample is not None and to != "onnx":
        raise ConfigError(f"--sample has no meaning with --to {to}: leave it out.")
    found = load_trained(source, model, trust=trust)
    if sample is not None:
        found.sample = read_sample(sample)
    if to == "onnx" and found.sample is None:
        raise ConfigError(
            "ONNX needs inputs to run the model with: --sample 2x1x28x28 or --sample my_file.py:function."
        )
    recipe = found.folder / RECIPE
    try:
        done = export_model(
            found.model,
            target,
            to=to,
            modifiers=found.modifiers,
            recipe=recipe.read_text(encoding="utf-8") if recipe.is_file() else None,
            example_inputs=found.sample,
            scheme=scheme,
        )
    except Exception:
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        raise
    copy_besides(found.folder, BESIDES, target)
    return done


def refuse_existing(output: Path) -> None:
    """Nothing that is there is written over."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} is there already: choose another --output.")


def copy_besides(source: Path, patterns: tuple[str, ...], output: Path) -> None:
    """Copy the files in ``source`` that have such names, where ``output`` has none of its own."""
    for path in (path for pattern in patterns for path in source.glob(pattern)):
        if path.is_file() and not (output / path.name).exists():
            shutil.copy2(path, output / path.name)


def two_of_four(source: Path, *, model: str | None = None, trust: bool = False) -> list[str]:
    """Names of the layers that torch's 2:4 kernels could take."""
    return layers_of_two_of_four(load_trained(source, model, trust=trust).model)


def load_trained(source: Path, model: str | None = None, *, trust: bool = False) -> Trained:
    """The model in ``source``, with its weights and what its recipe made of it."""
    run = next((folder for folder in (source, source.parent) if (folder / EXPERIMENT).is_file()), None)
    weights = source if holds_pickled_weights(source) else weights_of(source, None)
    if model is not None:
        if split_reference(model) is None:
            raise ConfigError(f"--model {model}: write my_file.py:function, which returns the model.")
        built = function_of(model, "--model")()
        if not isinstance(built, nn.Module):
            raise ConfigError(f"--model {model}: returned a {type(built).__name__}, and should return the model.")
        return _loaded(built, weights)
    if run is not None:
        return _of_experiment(run, weights, trust)
    if holds(weights, "config.json"):
        return _of_transformers(weights)
    raise ConfigError(
        f"{source} does not say how its model is built: add --model my_file.py:function, which returns it."
    )


def _loaded(model: nn.Module, weights: Path) -> Trained:
    modifiers = restore_recipe(model, weights)
    if holds_pickled_weights(weights):
        if left := load_what_fits(model, weights):
            raise ConfigError(f"{weights} has no weights for {left[0]}: build the model that was saved there.")
    else:
        load_weights(model, weights)
    sample = None
    if hasattr(model, "config"):
        sample = sample_for(model)
    return Trained(model.eval(), weights, modifiers, sample)


def _of_experiment(run: Path, weights: Path, trust: bool) -> Trained:
    loaded = load_stored(run, [], trust=trust)
    refuse_masked(loaded, "model", "data")
    if loaded.experiment.adapter is not None:
        raise ConfigError(
            f"{run} holds an adapter: trainwright export {run} --to merged makes a whole model of it, which can be "
            "exported further."
        )
    built = build_trained(loaded, weights, stored_facts(run))
    model = built.prepared.model
    train, evaluation = training_rows(built.loaded, built.args)
    rows = built.prepared.encode(first(train if evaluation is None else evaluation, _ROWS))
    batch = next(iter(built.trainer.get_test_dataloader(rows)))
    takes = forward_parameters(model)
    sample = None
    if isinstance(batch, Mapping):
        inputs = {name: value for name, value in batch.items() if name in takes and not name.startswith("label")}
        sample = {name: value.cpu() for name, value in inputs.items()}
    return Trained(model.cpu().eval(), weights, built.modifiers, sample)


def _of_transformers(weights: Path) -> Trained:
    try:
        import transformers
    except ImportError as error:
        raise ConfigError("The model is one of transformers: pip install 'trainwright[hf]'") from error
    refuse_unsafe_transformers()
    config = transformers.AutoConfig.from_pretrained(weights)
    named = (config.architectures or [None])[0]
    kind = getattr(transformers, named, None) if named else None
    if kind is None:
        raise ConfigError(f"transformers has no {named!r}: add --model my_file.py:function, which builds the model.")
    model = kind(config)
    if holds(weights, "generation_config.json") and model.can_generate():
        model.generation_config = transformers.GenerationConfig.from_pretrained(weights)
    wanted = _number_format(weights)
    return _loaded(model if wanted is None else model.to(wanted), weights)


def _number_format(weights: Path) -> torch.dtype | None:
    said = json.loads((weights / "config.json").read_text(encoding="utf-8"))
    name = said.get("dtype") or said.get("torch_dtype")
    found = getattr(torch, name, None) if isinstance(name, str) else None
    return found if isinstance(found, torch.dtype) else None


def function_of(reference: str, option: str) -> Callable[[], Any]:
    """The function that ``my_file.py:function`` names."""
    found = load_object(reference, option)
    if not callable(found):
        raise ConfigError(f"{option} {reference}: that is a {type(found).__name__}, and should be a function.")
    return found


# ---- inputs to run a model with


def read_sample(text: str) -> Any:
    """``2x1x28x28`` for random numbers of that shape, or what ``my_file.py:function`` returns.

    >>> read_sample("2x3").shape
    torch.Size([2, 3])
    """
    if split_reference(text) is not None:
        return function_of(text, "--sample")()
    sizes = text.split("x")
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ConfigError(f"--sample {text}: write a shape such as 2x1x28x28, or my_file.py:function.")
    return torch.randn(*(int(size) for size in sizes), generator=torch.Generator().manual_seed(0))


def sample_for(model: nn.Module) -> dict[str, Tensor] | None:
    """Inputs that a model of transformers takes, where its configuration says enough."""
    config: Any = model.config
    name = getattr(model, "main_input_name", None)
    random = torch.Generator().manual_seed(0)
    if name == "input_ids" and isinstance(getattr(config, "vocab_size", None), int):
        tokens = torch.randint(config.vocab_size, (_ROWS, _TOKENS), generator=random)
        found = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        return {**found, "decoder_input_ids": tokens} if config.is_encoder_decoder else found
    size = getattr(config, "image_size", None)
    if name == "pixel_values" and size is not None:
        sides = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
        return {name: torch.randn(_ROWS, getattr(config, "num_channels", 3), *sides, generator=random)}
    return None
