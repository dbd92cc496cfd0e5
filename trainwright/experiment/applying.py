"""A recipe on saved weights, without training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from trainwright.checkpoint.weights import save_weights
from trainwright.config.errors import ConfigError
from trainwright.config.registry import split_reference
from trainwright.config.warnings import warn
from trainwright.core.modifier import Modifier
from trainwright.experiment.building import build_trained, training_rows
from trainwright.experiment.exporting import (
    BESIDES,
    Trained,
    copy_besides,
    function_of,
    load_trained,
    refuse_existing,
)
from trainwright.experiment.running import is_refusal
from trainwright.experiment.sources import first
from trainwright.experiment.stored import EXPERIMENT, PREPROCESSING, load_stored, refuse_masked, stored_facts
from trainwright.recipes.building import build_modifiers
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.language.records import Recipe
from trainwright.recipes.language.writing import write_recipe
from trainwright.recipes.oneshot import acts_at_once, apply_modifiers, gradients_of
from trainwright.recipes.pruning.surgeon import SurgeonModifier
from trainwright.recipes.quantization.modifier import QuantizationModifier
from trainwright.recipes.selecting import prunable_layers
from trainwright.training.recipe_folder import RECIPE, state_file, write_recipe_files
from trainwright.training.recipe_past import Past

#: Rows of an experiment's training data to look at.
_ROWS = 512


@dataclass(frozen=True)
class Applied:
    """What was done."""

    folder: Path
    #: Modifiers that only a training can follow.
    skipped: list[str]
    #: Share of zeros among the weights that can be pruned, and how many of these there are.
    sparsity: float
    weights: int


def apply(
    recipe: str | Path,
    source: Path,
    output: Path,
    *,
    recipe_args: str | None = None,
    model: str | None = None,
    data: str | None = None,
    trust: bool = False,
) -> Applied:
    """Apply ``recipe`` to the model in ``source`` and write it to ``output``, with the recipe of its past before it.

    ``data`` is ``my_file.py:function``, which returns batches to calibrate with and to take gradients from; a run of an
    experiment takes its own training data.
    """
    refuse_existing(output)
    read = read_recipe(recipe, recipe_args)
    modifiers = build_modifiers(read)
    if data is not None and split_reference(data) is None:
        raise ConfigError(f"--data {data}: write my_file.py:function, which returns batches.")
    try:
        found = load_trained(source, model, trust=trust)
        seen = _data(found, source, data, modifiers, trust=trust)
        apply_modifiers(
            found.model,
            modifiers,
            gradients=None if seen is None else gradients_of(found.model, seen.batches, seen.loss),
            calibrate=None if seen is None else seen.batches(),
            run=None if seen is None else seen.run,
        )
    except ConfigError:
        raise
    except ValueError as error:
        if not is_refusal(error):
            raise
        raise ConfigError(str(error)) from error
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {output} cannot be made: {error.strerror}.") from error
    _write(found, read, modifiers, output)
    if (run := _run_of(source)) is not None:
        copy_besides(run, (EXPERIMENT, PREPROCESSING), output)
    return _described(found.model, modifiers, output)


@dataclass(frozen=True)
class _Data:
    """Batches, and what the model makes of one."""

    batches: Callable[[], Iterable[Any]]
    loss: Callable[[Any], Any]
    run: Callable[[Any], Any] | None = None


def _data(found: Trained, source: Path, data: str | None, modifiers: list[Modifier], *, trust: bool) -> _Data | None:
    needs_data = any(isinstance(m, (QuantizationModifier, SurgeonModifier)) for m in modifiers)
    if data is not None:
        if not needs_data:
            warn("--data has no effect: nothing in this recipe looks at data.")
        return _Data(function_of(data, "--data"), _loss_of(found.model))
    run = _run_of(source)
    if run is None and (asking := [type(m).__name__ for m in modifiers if isinstance(m, SurgeonModifier)]):
        raise ConfigError(f"{asking[0]} needs gradients: add --data my_file.py:function, which returns batches.")
    if run is None or not needs_data:
        return None
    loaded = load_stored(run, [], trust=trust)
    refuse_masked(loaded, "model", "data")
    built = build_trained(loaded, found.folder, stored_facts(run))
    rows, _ = training_rows(built.loaded, built.args)
    built.trainer.train_dataset = built.prepared.encode(first(rows, _ROWS))
    loader = built.trainer.get_train_dataloader()

    def loss(batch: Any) -> Any:
        # As its training computes it: the model itself may not take labels.
        return built.trainer.compute_loss(found.model, {name: value.cpu() for name, value in batch.items()})

    return _Data(lambda: loader, loss, loss)


def _run_of(source: Path) -> Path | None:
    """The folder of the experiment's run that ``source`` is, or lies in."""
    return next((folder for folder in (source, source.parent) if (folder / EXPERIMENT).is_file()), None)


def _loss_of(model: nn.Module) -> Callable[[Any], Any]:
    def loss(batch: Any) -> Any:
        outputs = model(**batch) if isinstance(batch, dict) else model(*batch)
        found = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
        if found is None:
            raise ConfigError(
                "The recipe needs gradients, and the model returns no loss for these batches: let --data give mappings "
                "with labels, and the model a dict with 'loss'."
            )
        return found

    return loss


def _write(found: Trained, recipe: Recipe, modifiers: list[Modifier], output: Path) -> None:
    save_weights(found.model, output)
    copy_besides(found.folder, (*BESIDES, "config.json"), output)
    if not (found.folder / RECIPE).is_file():
        write_recipe_files(output, write_recipe(recipe), state_file(modifiers))
        return
    for modifier in found.modifiers:
        if not modifier.changes_structure and not isinstance(modifier, QuantizationModifier):
            # What they did is in the weights, and what they know may no longer be true of them.
            modifier.forget()
    past = Past(read_recipe(found.folder / RECIPE), found.modifiers)
    write_recipe_files(output, write_recipe(past.with_next(recipe)), state_file(past.among(recipe, modifiers)))


def _described(model: nn.Module, modifiers: list[Modifier], output: Path) -> Applied:
    weights: list[Any] = [layer.weight for layer in prunable_layers(model).values()]
    total = sum(weight.numel() for weight in weights)
    zeros = total - sum(int(weight.count_nonzero()) for weight in weights)
    skipped = [type(modifier).__name__ for modifier in modifiers if not acts_at_once(modifier)]
    return Applied(output, list(dict.fromkeys(skipped)), zeros / max(total, 1), total)
