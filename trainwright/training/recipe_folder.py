"""A recipe beside the weights it made: ``recipe.yaml``, and what its modifiers know in ``recipe_state.safetensors``.

A checkpoint holds the same state among that of its callbacks; :func:`read_recipe_state` reads both."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from trainwright.checkpoint.manifest import holds
from trainwright.checkpoint.sharded import StoredTensors, is_stored
from trainwright.checkpoint.training_state import CALLBACKS, TRAINING
from trainwright.checkpoint.weights import WEIGHTS
from trainwright.core.dtensors import whole
from trainwright.core.modifier import Modifier, Site
from trainwright.recipes.distillation.base import LearnsFromTeacher
from trainwright.recipes.pruning.cutting import fit_to_shapes
from trainwright.recipes.pruning.layers import PassThrough
from trainwright.training.checkpoint_texts import callback_tensors, callback_values, numbered

logger = logging.getLogger("trainwright")


RECIPE = "recipe.yaml"


STATE = "recipe_state.safetensors"


#: Tensors and metadata of a safetensors file.
RecipeState = tuple[dict[str, Tensor], dict[str, str]]


def write_recipe_files(folder: Path, text: str | None, state: RecipeState | None) -> None:
    """Write what ``folder`` should say about how its weights were made; ``state`` is what :func:`state_file` says."""
    if text is not None:
        (folder / RECIPE).write_text(text, encoding="utf-8")
    if state is not None:
        save_file(state[0], folder / STATE, metadata=state[1])


def state_file(modifiers: list[Modifier]) -> RecipeState | None:
    """What modifiers know at present, as tensors and metadata of a safetensors file; copies. None without any."""
    if not modifiers:
        return None
    tensors, values = callback_tensors(modifiers)
    # Two modifiers may hold the same tensor, which the format does not know.
    own = {name: whole(tensor.detach()).cpu().contiguous().clone() for name, tensor in tensors.items()}
    shapes = {name: list(tensor.shape) for name, tensor in own.items() if tensor.dtype == torch.bool}
    packed = {name: _to_bits(tensor) if name in shapes else tensor for name, tensor in own.items()}
    return packed, {"values": json.dumps(values), "masks": json.dumps(shapes)}


def read_recipe_state(folder: Path) -> dict[str, dict[str, Any]]:
    """States of modifiers by ``<class>.<number>``, for their ``load_state_dict``."""
    if holds(folder, STATE):
        with safe_open(folder / STATE, framework="pt") as file:
            said = file.metadata() or {}
        shapes = json.loads(said.get("masks", "{}"))
        stored = StoredTensors(folder, STATE)
        tensors = {name: _from_bits(t, shapes[name]) if name in shapes else t for name, t in stored.items()}
        return _by_key(json.loads(said.get("values", "{}")), tensors)
    if holds(folder, TRAINING):
        values = json.loads((folder / TRAINING).read_text(encoding="utf-8"))["callbacks"]
        tensors = dict(StoredTensors(folder, CALLBACKS)) if is_stored(folder, CALLBACKS) else {}
        of_modifiers = {key: value for key, value in values.items() if "progress" in value}
        return _by_key(of_modifiers, tensors)
    return {}


def refuse_other_recipe(checkpoint: Path, text: str | None, *, has_modifiers: bool) -> None:
    """A run goes on with the recipe it began with."""
    stored = checkpoint / RECIPE
    if not holds(checkpoint, RECIPE):
        if text is not None:
            raise ValueError(
                f"{checkpoint.name} was saved by a run without a recipe: go on without one, or begin a new run from "
                "its weights with the recipe."
            )
        return
    if text is None:
        if has_modifiers:
            return
        raise ValueError(f"{checkpoint.name} was saved by a run with a recipe: pass recipe={str(stored)!r} to go on.")
    from trainwright.recipes.language.reading import read_recipe

    before, now = (read_recipe(source).modifiers for source in (stored, text))
    kinds = [[spec.kind for spec in modifiers] for modifiers in (before, now)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"The recipe of {checkpoint.name} has {', '.join(kinds[0])}, this one {', '.join(kinds[1])}: go on with "
            f"recipe={str(stored)!r}, or begin a new run from the checkpoint's weights."
        )
    changed = [new.kind for old, new in zip(before, now, strict=True) if old.arguments != new.arguments]
    if changed:
        logger.warning(
            "The recipe has changed since %s: %s. From here on the new one acts.", checkpoint.name, ", ".join(changed)
        )


def restore_recipe(model: nn.Module, folder: Path) -> list[Modifier]:
    """Make ``model``, as it was built, what the recipe beside saved weights made of it: layers, sizes, observers.

    Load the weights after this. Returns the recipe's modifiers with their state; none where there is no recipe.
    """
    from trainwright.recipes.building import build_modifiers
    from trainwright.recipes.language.reading import read_recipe

    if not holds(folder, RECIPE):
        return []
    modifiers = build_modifiers(read_recipe(folder / RECIPE))
    states = read_recipe_state(folder)
    for key, modifier in numbered(modifiers).items():
        if isinstance(modifier, LearnsFromTeacher):
            continue
        try:
            modifier.prepare_model(model)
        except ValueError as error:
            if modifier.changes_structure or modifier.needs_whole_tensors:
                raise
            # A stage that is long past may speak of a head that the model no longer has.
            logger.info("%s in %s is not about this model: %s", type(modifier).__name__, folder / RECIPE, error)
            continue
        if key in states:
            modifier.restore_structure(model, states[key]["values"]["own"])
            modifier.load_state_dict(states[key])
            modifier.resume(Site(model, None, 1.0), 1e6)
    return modifiers


def enlarge_to(model: nn.Module, checkpoint: Path, changing: list[str]) -> dict[Any, tuple[Any, Any]]:
    """Give ``model`` the sizes that a checkpoint of the same run has; returns which parameters replaced which.

    ``changing`` are the names of the modifiers that may have made it smaller since.
    """
    if not holds(checkpoint, WEIGHTS):
        return {}
    with safe_open(checkpoint / WEIGHTS, framework="pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - no mapping
    own, before = model.state_dict(), dict(model.named_parameters())
    out = tuple(f"{name}." for name, layer in model.named_modules() if isinstance(layer, PassThrough))
    if gone := [name for name in shapes if name.startswith(out)]:
        raise ValueError(
            f"{checkpoint.name} was saved before {', '.join(dict.fromkeys(changing))} took {gone[0]} out of the model, "
            "and this one no longer has it: build the model again and pass that checkpoint to "
            "train(resume_from_checkpoint=...); for the best model set best_model_after_epoch to a later epoch."
        )
    # A file may have other names for some, which are no layers that changed.
    fit_to_shapes(model, {n: shape for n, shape in shapes.items() if n in own and list(own[n].shape) != shape})
    now = dict(model.named_parameters())
    return {old: (now[name], None) for name, old in before.items() if now[name] is not old}


def _to_bits(mask: Tensor) -> Tensor:
    """Eight to a byte: a mask must not make the saved model a quarter larger."""
    return torch.from_numpy(np.packbits(mask.reshape(-1).numpy()))


def _from_bits(packed: Tensor, shape: list[int]) -> Tensor:
    bits = np.unpackbits(packed.numpy(), count=math.prod(shape))
    return torch.from_numpy(bits).view(shape).bool()


def _by_key(values: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, dict[str, Any]]:
    return {
        key: {
            "values": callback_values(own),
            "tensors": {n.removeprefix(f"{key}."): t for n, t in tensors.items() if n.startswith(f"{key}.")},
        }
        for key, own in values.items()
    }
