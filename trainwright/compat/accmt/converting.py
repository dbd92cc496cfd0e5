"""``get --dtype``: a saved model in another precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.core.files import replace_text

if TYPE_CHECKING:
    import torch

_NAMES = ("float32", "float16", "bfloat16", "float64")


def floating_type(name: str) -> torch.dtype:
    """The precision of that name."""
    import torch

    if name not in _NAMES:
        raise ValueError(f"--dtype {name} must be one of {', '.join(_NAMES)}.")
    return getattr(torch, name)


def convert_model(folder: Path, dtype: torch.dtype) -> None:
    """Write the weights in ``folder`` again, with their floating-point tensors in ``dtype``."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    size = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as found:
            facts = found.metadata()
            tensors = {name: found.get_tensor(name) for name in found.keys()}  # noqa: SIM118
        cast = {name: each.to(dtype) if each.is_floating_point() else each for name, each in tensors.items()}
        size += sum(each.nbytes for each in cast.values())
        draft = file.with_suffix(".draft")
        save_file(cast, draft, facts)
        draft.replace(file)
    for index in folder.glob("*.safetensors.index.json"):
        content = json.loads(index.read_text(encoding="utf-8"))
        content.setdefault("metadata", {})["total_size"] = size
        replace_text(index, json.dumps(content, indent=2) + "\n")
    config = folder / "config.json"
    if config.is_file():
        content = json.loads(config.read_text(encoding="utf-8"))
        for key in ("dtype", "torch_dtype"):
            if key in content:
                content[key] = str(dtype).removeprefix("torch.")
        replace_text(config, json.dumps(content, indent=2) + "\n")
