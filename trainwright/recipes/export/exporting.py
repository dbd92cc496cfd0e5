"""A trained model in the format that somebody else reads."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainwright.config.registry import suggestion
from trainwright.core.modifier import Modifier
from trainwright.recipes.export.gaps import close_gaps, renamed, without_dropping
from trainwright.recipes.export.results import Exported
from trainwright.recipes.export.saving import WEIGHTS, save_model
from trainwright.recipes.language.records import Recipe
from trainwright.recipes.language.writing import write_recipe
from trainwright.recipes.quantization.layers import restore_layer

FORMATS = ("safetensors", "compressed-tensors", "onnx")
MASKS = "masks.safetensors"
SHAPES = "shapes.json"


def export_model(
    model: nn.Module,
    folder: str | Path,
    *,
    to: str = "safetensors",
    modifiers: Iterable[Modifier] = (),
    recipe: Recipe | str | None = None,
    example_inputs: object = None,
    scheme: object = None,
) -> Exported:
    """Write ``model`` into ``folder``; the model itself stays as it is.

    ``modifiers`` are those of its recipe, with their state: they know the masks. ``recipe`` is put beside the
    weights. ``example_inputs`` (a tensor, a tuple or a mapping) are what ONNX is traced with and checked on.
    ``scheme`` quantizes a model that was not trained so, by rounding its weights to the nearest.

    >>> import tempfile
    >>> model = nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = export_model(model, folder)
    ...     print(done.model.name)
    model.safetensors
    """
    if to not in FORMATS:
        raise ValueError(f"to={to!r} must be one of {', '.join(FORMATS)}{suggestion(to, FORMATS)}.")
    modifiers = list(modifiers)
    own = copy.deepcopy(model).cpu().eval()
    masks = masks_of(modifiers)
    put_zeros(own, masks)
    moved = close_gaps(own)
    masks = {renamed(name, moved or {}): mask for name, mask in masks.items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if to == "onnx":
        from trainwright.recipes.export.onnx_graph import write_onnx

        if example_inputs is None:
            raise ValueError("ONNX needs example_inputs: a tensor, a tuple or a mapping to run the model with.")
        done = write_onnx(own, folder, example_inputs, scheme)
    elif to == "compressed-tensors":
        # It needs packages that other exports do without.
        from trainwright.recipes.export.compressed import write_compressed

        done = write_compressed(own, folder, scheme)
    else:
        if scheme is not None:
            raise ValueError(
                "scheme= rounds weights, which plain safetensors do not hold: use to='compressed-tensors'."
            )
        done = write_plain(own, folder, masks)
    if to != "onnx":
        # A graph has its sizes in itself.
        done.notes += _about_gaps(moved)
        done.notes += _about_shapes(model, folder, modifiers)
    if recipe is not None:
        text = recipe if isinstance(recipe, str) else write_recipe(recipe)
        text = without_dropping(text) if moved else text
        (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    return done


def masks_of(modifiers: Iterable[Modifier]) -> dict[str, Tensor]:
    """Parameter -> True where its weights stay, from every modifier that prunes."""
    found: dict[str, Tensor] = {}
    for modifier in modifiers:
        for name, mask in getattr(modifier, "masks", {}).items():
            found[name] = found[name] & mask.to(found[name].device) if name in found else mask
    return found


@torch.no_grad()
def put_zeros(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Masked weights are exactly zero, and no zero has a sign."""
    for name, parameter in model.named_parameters():
        mask = masks.get(name)
        if mask is not None and mask.shape == parameter.shape:
            parameter.masked_fill_(~mask.to(parameter.device), 0)
        # Minus zero is a value of its own to whoever compares bytes.
        parameter.masked_fill_(parameter == 0, 0)


def write_plain(model: nn.Module, folder: Path, masks: Mapping[str, Tensor]) -> Exported:
    """Weights as any other model's, and the masks beside them."""
    for layer in list(model.modules()):
        restore_layer(layer)
    save_model(model, folder)
    if masks:
        whole = {name: mask.detach().cpu().contiguous() for name, mask in masks.items()}
        save_file(whole, folder / MASKS)
    weights = list(model.parameters())
    total = sum(weight.numel() for weight in weights)
    zeros = total - sum(int(weight.count_nonzero()) for weight in weights)
    notes = [f"{zeros / max(total, 1):.1%} of {total:,} parameters are zero"]
    if zeros > total / 10:
        notes.append("zeros take as much room and time as other numbers: thin the model, or compress the file")
    return Exported(folder, folder / WEIGHTS, notes)


# ---- models that became smaller


def _about_gaps(moved: dict[str, str] | None) -> list[str]:
    if moved is None:
        return [
            "layers are missing that the configuration still counts, and from_pretrained would give them random "
            "weights: build the model, and call trainwright.training.recipe_folder.restore_recipe before loading"
        ]
    if not moved:
        return []
    return ["the layers that were dropped are gone from the configuration too: from_pretrained loads the rest"]


def _about_shapes(model: nn.Module, folder: Path, modifiers: Iterable[Modifier]) -> list[str]:
    shapes: dict[str, list[int]] = {}
    for modifier in modifiers:
        shapes |= modifier.values_to_save().get("shapes") or {}
    if not shapes:
        return []
    if _fitted_config(model, shapes, folder):
        return ["the configuration has the smaller sizes: from_pretrained loads the model as it is"]
    (folder / SHAPES).write_text(json.dumps(shapes, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return [
        f"layers are smaller than the model's code makes them: build it, then call "
        f"trainwright.recipes.pruning.cutting.fit_to_shapes with what is in {SHAPES}, and load the weights"
    ]


#: Sizes that configurations name, where the model has one for all of its layers.
_SIZES = ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim", "hidden_sizes")


def _fitted_config(model: nn.Module, shapes: Mapping[str, list[int]], folder: Path) -> bool:
    """Whether the model's configuration can say its sizes; if so, ``config.json`` does."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict") or not (folder / "config.json").is_file():
        return False
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    sizes = {shape[0] for shape in shapes.values()}
    for name in [key for key in _SIZES if isinstance(getattr(config, key, None), int)]:
        for size in sizes:
            smaller = copy.deepcopy(config)
            setattr(smaller, name, size)
            with torch.device("meta"):
                built = type(model)(smaller)
            if {key: tuple(parameter.shape) for key, parameter in built.named_parameters()} == wanted:
                _merge_json(folder / "config.json", {name: size})
                return True
    return False


def _merge_json(path: Path, changes: Mapping[str, Any]) -> None:
    known = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**known, **changes}, indent=2, sort_keys=True) + "\n", encoding="utf-8")
