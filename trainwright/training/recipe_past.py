"""What was done to a model before: the recipe beside its weights, to which a new one is added."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from trainwright.checkpoint.interchange.from_transformers import shard_names
from trainwright.checkpoint.interchange.reading import read_pickle, tensors_of
from trainwright.checkpoint.manifest import holds
from trainwright.checkpoint.weights import INDEX, WEIGHTS
from trainwright.config.warnings import warn
from trainwright.core.modifier import Modifier, Site
from trainwright.recipes.building import build_modifier, build_modifiers, in_order
from trainwright.recipes.language.composing import compose_staged
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.language.records import Recipe
from trainwright.recipes.quantization.modifier import QuantizationModifier
from trainwright.training.checkpoint_texts import numbered
from trainwright.training.recipe_folder import RECIPE, read_recipe_state

logger = logging.getLogger("trainwright")


_BIN, _BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


_AFTER_ALL = 1e6


@dataclass
class Past:
    """A recipe that a model has behind it."""

    recipe: Recipe
    #: Those that changed what the model is know how; of the others nothing is left to know, weights hold what they did.
    modifiers: list[Modifier]

    def settle(self, model: nn.Module) -> None:
        """Ranges of activations stay as they were found: nobody would write down how they move."""
        for modifier in self.modifiers:
            if isinstance(modifier, QuantizationModifier):
                modifier.finish_model(model)

    def with_next(self, recipe: Recipe) -> Recipe:
        """This recipe and the next as one, stage after stage."""
        return compose_staged(self.recipe, recipe)

    def among(self, recipe: Recipe, modifiers: list[Modifier]) -> list[Modifier]:
        """All modifiers, old and new, in the order that :meth:`with_next` gives them."""
        of_specs = [*_by_spec(self.recipe, self.modifiers), *_by_spec(recipe, modifiers)]
        both = [build_modifier(spec) for spec in self.with_next(recipe).modifiers]
        place = {id(modifier): index for index, modifier in enumerate(both)}
        return [of_specs[place[id(modifier)]] for modifier in in_order(both)]


def _by_spec(recipe: Recipe, modifiers: list[Modifier]) -> list[Modifier]:
    """``modifiers``, which stand as they act, as the recipe lists them."""
    listed = [build_modifier(spec) for spec in recipe.modifiers]
    place = {id(modifier): index for index, modifier in enumerate(listed)}
    found = list(modifiers)
    for own, like in zip(modifiers, in_order(listed), strict=True):
        found[place[id(like)]] = own
    return found


def recall(model: nn.Module, folder: Path) -> Past | None:
    """Give ``model`` the layers, sizes and rounding that the recipe in ``folder`` gave it; None without a recipe.

    Its weights are read again from there where that made it another model than was built.
    """
    if not holds(folder, RECIPE):
        return None
    recipe = read_recipe(folder / RECIPE)
    modifiers = build_modifiers(recipe)
    try:
        states = read_recipe_state(folder)
    except SafetensorError as error:
        raise ValueError(
            f"The state beside {folder / RECIPE} is damaged ({error}): copy the folder anew, or pass "
            "model_state_path=None to begin without its past."
        ) from error
    before = _sizes(model)
    for key, modifier in numbered(modifiers).items():
        if modifier.changes_structure or isinstance(modifier, QuantizationModifier):
            try:
                _restore(modifier, model, states.get(key))
            except ValueError as error:
                raise ValueError(
                    f"{folder / RECIPE} does not fit this model: {error} Build the model that was saved there, or pass "
                    "model_state_path=None to begin without its past."
                ) from error
    if _sizes(model) != before:
        load_what_fits(model, folder)
    past = Past(recipe, modifiers)
    past.settle(model)
    return past


def _restore(modifier: Modifier, model: nn.Module, state: dict[str, Any] | None) -> None:
    site = Site(model, None, 1.0)
    modifier.prepare_model(model)
    if state is None:
        # Another library saved it: what the recipe says is all there is to know.
        modifier.advance(site, _AFTER_ALL)
    else:
        modifier.restore_structure(model, state["values"]["own"])
        modifier.load_state_dict(state)
        modifier.resume(site, _AFTER_ALL)
    if isinstance(modifier, QuantizationModifier) and state is None:
        warn("The ranges of activations are not known: weights are rounded as before, activations are not.")


def _sizes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def load_what_fits(model: nn.Module, folder: Path) -> list[str]:
    """Read weights that have the model's names and sizes; returns those that did not fit: of a new head, say."""
    stored, own = stored_tensors(folder), _sizes(model)
    fitting = {name: tensor for name, tensor in stored.items() if own.get(name) == tuple(tensor.shape)}
    if not fitting:
        raise ValueError(f"None of the weights in {folder} fits the model: was it built for them?")
    model.load_state_dict(fitting, strict=False)
    tie = getattr(model, "tie_weights", None)
    if callable(tie):
        tie()
    state = model.state_dict()
    held = {state[name].data_ptr() for name in fitting}
    left = sorted(name for name, tensor in state.items() if name not in fitting and tensor.data_ptr() not in held)
    logger.info("Read %d weights again from %s.%s", len(fitting), folder, f" Not there: {left[:5]}" if left else "")
    return left


def holds_pickled_weights(folder: Path) -> bool:
    """Whether the weights in ``folder`` are ``.bin`` files, as older libraries wrote them, and nothing else."""
    return not any(folder.glob("*.safetensors")) and any((folder / name).is_file() for name in (_BIN, _BIN_INDEX))


def stored_tensors(folder: Path) -> dict[str, Tensor]:
    """Weights in ``folder``: safetensors or ``.bin`` files, in one piece or several; nothing in them is run."""
    if holds(folder, WEIGHTS):
        return _read(folder / WEIGHTS)
    found: dict[str, Tensor] = {}
    if holds(folder, INDEX):
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        for shard in sorted(set(index["weight_map"].values())):
            found |= _read(folder / Path(shard).name)
        return found
    if (folder / _BIN).is_file():
        return tensors_of(read_pickle(folder / _BIN), _BIN)
    if (folder / _BIN_INDEX).is_file():
        for shard in shard_names(folder / _BIN_INDEX):
            found |= tensors_of(read_pickle(folder / shard), shard)
        return found
    raise ValueError(f"{folder} holds no weights: neither {WEIGHTS} nor {_BIN}.")


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"{path} is not there, though its index names it: copy the folder anew.")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): copy it anew.") from error
