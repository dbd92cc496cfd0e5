"""Teachers: where one comes from, what it is given, what it answers."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.config.refused_versions import refuse_unsafe_transformers
from trainwright.core.modifier import TEACHER_COLUMNS

SELF, DISABLE = "self", "disable"


def resolve_teacher(teacher: Any, model: nn.Module) -> nn.Module | None:
    """The teacher that ``teacher`` means for ``model``, ready to be asked; None for "disable" and None.

    A module; a folder that ``save_pretrained`` or trainwright wrote; "self", a copy of ``model`` as it is now.
    """
    if teacher is None or (isinstance(teacher, str) and teacher == DISABLE):
        return None
    if isinstance(teacher, nn.Module):
        if teacher is model:
            raise ValueError("The teacher is the model itself, which is about to change: pass teacher='self'.")
        found = teacher
    elif teacher == SELF:
        found = copy.deepcopy(model)
    elif isinstance(teacher, (str, Path)):
        found = _from_folder(Path(teacher), model)
    else:
        raise ValueError(
            f"teacher={teacher!r} is neither a module, nor the path of a saved model, nor 'self', 'disable' or None."
        )
    device = next((p.device for p in model.parameters()), None)
    found.eval()
    return found if device is None else found.to(device)


def _from_folder(folder: Path, model: nn.Module) -> nn.Module:
    if not folder.is_dir():
        raise ValueError(
            f"teacher={str(folder)!r} is not a folder with a saved model: pass the module, a folder, 'self' or "
            "'disable'."
        )
    config = folder / "config.json"
    if config.is_file() and "architectures" in json.loads(config.read_text(encoding="utf-8")):
        import transformers

        refuse_unsafe_transformers()
        architecture = json.loads(config.read_text(encoding="utf-8"))["architectures"][0]
        cls = getattr(transformers, architecture, None)
        if cls is None:
            raise ValueError(f"transformers has no {architecture}, which {config} names: load the teacher yourself.")
        found, info = cls.from_pretrained(folder, output_loading_info=True)
        if lost := sorted(info.get("missing_keys") or ()):
            raise ValueError(
                f"{folder} has no weights for {lost[0]}: a recipe took layers out, or made them smaller, so build the "
                "teacher as it was saved (restore_recipe does that), load its weights, and pass the module."
            )
        return found
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ValueError(f"{folder} holds neither a transformers model nor model.safetensors.")
    from safetensors.torch import load_file

    found = copy.deepcopy(model)
    stored = load_file(weights)
    shapes = {name: tuple(t.shape) for name, t in found.state_dict().items()}
    other = [name for name, tensor in stored.items() if shapes.get(name) != tuple(tensor.shape)]
    if other:
        raise ValueError(
            f"{folder} holds weights of another network than the student ({other[0]} differs), and how that one is "
            "built is not stored: build the teacher, load its weights, and pass the module."
        )
    # Tied weights are stored once.
    held = {tensor.data_ptr() for name, tensor in found.state_dict().items() if name in stored}
    lost = [n for n, tensor in found.state_dict().items() if n not in stored and tensor.data_ptr() not in held]
    if lost:
        raise ValueError(f"{folder} has no weights for {lost[0]}: build the teacher yourself, and pass the module.")
    found.load_state_dict(stored, strict=False)
    return found


def fingerprint(model: nn.Module) -> str:
    """A hash of all weights: the same model as before, or another one."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, Tensor):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def without_teacher_columns(inputs: Any) -> Any:
    """``inputs`` as the student takes them; a mapping of its own, for losses often take the labels out of it."""
    if not isinstance(inputs, Mapping):
        return inputs
    if not any(str(name).startswith(TEACHER_COLUMNS) for name in inputs):
        return copy.copy(inputs)
    return {name: value for name, value in inputs.items() if not str(name).startswith(TEACHER_COLUMNS)}


class Teacher:
    """A model that is asked without gradients, with those of a batch's columns that it takes."""

    def __init__(self, model: nn.Module, input_keys: list[str] | None = None, called: Any = None) -> None:
        """``called`` is what is asked where that is not ``model`` itself but around it: compiled, say."""
        self.model = model
        self._called = model if called is None else called
        self._input_keys = input_keys
        parameters = inspect.signature(model.forward).parameters.values()
        self._takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._takes = {p.name for p in parameters}
        self._last: tuple[Any, Any] | None = None

    def __call__(self, inputs: Any) -> Any:
        """What the teacher says to ``inputs``; asked twice about the same batch it answers from memory."""
        if self._last is None or self._last[0] is not inputs:
            self._last = (inputs, self._ask(inputs))
        return self._last[1]

    def forget(self) -> None:
        """Let the last batch go."""
        self._last = None

    def _ask(self, inputs: Any) -> Any:
        with torch.no_grad():
            if isinstance(inputs, Mapping):
                return self._called(**self._columns(inputs))
            if isinstance(inputs, (tuple, list)):
                return self._called(*(inputs[:-1] if len(inputs) > 1 else inputs))
            return self._called(inputs)

    def _columns(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        own = {
            name.removeprefix(TEACHER_COLUMNS): value
            for name, value in inputs.items()
            if name.startswith(TEACHER_COLUMNS)
        }
        chosen = own or dict(inputs)
        if self._input_keys is not None:
            missing = [name for name in self._input_keys if name not in chosen]
            if missing:
                raise ValueError(f"teacher_input_keys: the batch has no {', '.join(missing)}; it has {list(chosen)}.")
            return {name: chosen[name] for name in self._input_keys}
        # Labels too where it names them: its forward may compute a loss whatever it is asked for.
        return {name: value for name, value in chosen.items() if self._takes_any or name in self._takes}
